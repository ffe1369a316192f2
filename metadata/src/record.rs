//! The frame of our own stored records.
//!
//! Layout: version byte; fields, each tag (1 byte, ascending), length (2 bytes, big-endian), bytes; CRC32C of all before it
//! (4 bytes, big-endian). A reader skips fields it does not know, refuses versions it does not know, and refuses a value whose
//! checksum does not fit.

use uuid::Uuid;

use crate::{Error, ErrorKind};

const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;

/// Builds a record; tags must be given in ascending order.
pub(crate) struct RecordWriter {
    bytes: Vec<u8>,
    last_tag: u8,
}

impl RecordWriter {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![VERSION], last_tag: 0 }
    }

    /// # Panics
    /// When a field is longer than 65,535 bytes; callers check their texts against [`crate::KEY_BYTES_MAX`] before.
    pub(crate) fn bytes(mut self, tag: u8, value: &[u8]) -> Self {
        assert!(tag > self.last_tag, "tags ascend");
        self.last_tag = tag;
        let length = u16::try_from(value.len()).expect("the caller checked the length");
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(value);
        self
    }

    pub(crate) fn number(self, tag: u8, value: u64) -> Self {
        self.bytes(tag, &value.to_be_bytes())
    }

    pub(crate) fn uuid(self, tag: u8, value: Uuid) -> Self {
        self.bytes(tag, value.as_bytes())
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let crc = crc32c::crc32c(&self.bytes);
        self.bytes.extend_from_slice(&crc.to_be_bytes());
        self.bytes
    }
}

/// The fields of a record whose frame is whole.
pub(crate) struct RecordReader<'a> {
    what: &'static str,
    fields: Vec<(u8, &'a [u8])>,
}

impl<'a> RecordReader<'a> {
    /// `what` names the record in errors.
    pub(crate) fn open(what: &'static str, bytes: &'a [u8]) -> Result<Self, Error> {
        let refuse = |fault: String| Error::new(ErrorKind::Damaged, format!("read {what}: {fault}"));
        let (body, crc) = match bytes.split_last_chunk::<CRC_BYTES>() {
            Some((body, crc)) if !body.is_empty() => (body, u32::from_be_bytes(*crc)),
            _ => return Err(refuse(format!("{} bytes are too few", bytes.len()))),
        };
        if crc32c::crc32c(body) != crc {
            return Err(refuse("its checksum does not fit".into()));
        }
        if body[0] != VERSION {
            return Err(refuse(format!("its version is {}, this release reads {VERSION}", body[0])));
        }
        let mut fields = Vec::new();
        let mut rest = &body[1..];
        while let [tag, high, low, tail @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let (value, tail) = tail.split_at_checked(length).ok_or_else(|| refuse("a field is cut short".into()))?;
            if fields.last().is_some_and(|(last, _)| last >= tag) {
                return Err(refuse("its fields are out of order".into()));
            }
            fields.push((*tag, value));
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(refuse("a field is cut short".into()));
        }
        Ok(Self { what, fields })
    }

    fn fault(&self, tag: u8, fault: &str) -> Error {
        Error::new(ErrorKind::Damaged, format!("read {}: field {tag} {fault}", self.what))
    }

    pub(crate) fn slice(&self, tag: u8) -> Result<&'a [u8], Error> {
        let found = self.fields.iter().find(|(found, _)| *found == tag);
        found.map(|(_, value)| *value).ok_or_else(|| self.fault(tag, "is missing"))
    }

    /// Whether the record has a field, for those that may be left out.
    pub(crate) fn has(&self, tag: u8) -> bool {
        self.fields.iter().any(|(found, _)| *found == tag)
    }

    pub(crate) fn number(&self, tag: u8) -> Result<u64, Error> {
        let bytes = self.slice(tag)?;
        Ok(u64::from_be_bytes(bytes.try_into().map_err(|_| self.fault(tag, "is not 8 bytes"))?))
    }

    pub(crate) fn uuid(&self, tag: u8) -> Result<Uuid, Error> {
        Uuid::from_slice(self.slice(tag)?).map_err(|_| self.fault(tag, "is not 16 bytes"))
    }

    pub(crate) fn text(&self, tag: u8) -> Result<String, Error> {
        let text = std::str::from_utf8(self.slice(tag)?).map_err(|_| self.fault(tag, "is not text"))?;
        Ok(text.to_owned())
    }

    pub(crate) fn ledger(&self, tag: u8) -> Result<ledger::LedgerId, Error> {
        ledger::LedgerId::new(self.number(tag)?).ok_or_else(|| self.fault(tag, "is no ledger id"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let bytes = RecordWriter::new().number(1, 258).bytes(3, b"ab").finish();
        assert_eq!(hex(&bytes[..bytes.len() - 4]), "0101000800000000000001020300026162");
        let record = RecordReader::open("test", &bytes).unwrap();
        assert_eq!((record.number(1).unwrap(), record.text(3).unwrap().as_str()), (258, "ab"));
        assert!(record.number(2).unwrap_err().to_string().contains("field 2 is missing"));
    }

    #[test]
    fn unknown_versions_are_refused_and_unknown_fields_are_not() {
        let mut bytes = RecordWriter::new().number(1, 5).bytes(200, b"from later").finish();
        assert_eq!(RecordReader::open("test", &bytes).unwrap().number(1).unwrap(), 5);
        bytes.truncate(bytes.len() - 4);
        bytes[0] = 2;
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        let error = RecordReader::open("test", &bytes).err().unwrap();
        assert_eq!(error.to_string(), "read test: its version is 2, this release reads 1");
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_noticed(value: u64, text in "[a-z]{0,40}", at: prop::sample::Index, flip in 1_u8..) {
            let mut bytes = RecordWriter::new().number(1, value).bytes(2, text.as_bytes()).finish();
            let index = at.index(bytes.len());
            bytes[index] ^= flip;
            prop_assert!(RecordReader::open("test", &bytes).is_err());
        }

        #[test]
        fn any_bytes_are_an_answer(bytes: Vec<u8>) {
            let _ = RecordReader::open("test", &bytes);
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
