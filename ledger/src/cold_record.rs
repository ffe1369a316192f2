//! The cold record: what a settled ledger's metadata says about its object. It is kept small (at most 256 bytes), because a
//! metadata store holds one for each ledger; the index of row groups lives in the object. Byte layout:
//! `docs/formats/cold-record.md`.

use uuid::Uuid;

use crate::cold_id::ledger_hash;
use crate::error::{Error, ErrorKind};
use crate::ids::LedgerId;
use crate::metadata::LedgerMetadata;

/// The most bytes that an encoded record may have.
pub const COLD_RECORD_BYTES_MAX: usize = 256;

const VERSION: u8 = 1;

const STORE_ID: u8 = 1;
const OBJECT: u8 = 2;
const OBJECT_BYTES: u8 = 3;
const OBJECT_CRC32C: u8 = 4;
const FOOTER_OFFSET: u8 = 5;
const FOOTER_BYTES: u8 = 6;
const ENTRIES: u8 = 7;
const PAYLOAD_BYTES: u8 = 8;
const LEDGER_DIGEST: u8 = 9;
const COMMIT_COUNTER: u8 = 10;
const PACK: u8 = 11;
const LENGTH_DIFFERS: u8 = 12;
const FOOTER_CRC32C: u8 = 13;

/// One past the highest tag known here.
const TAGS: usize = FOOTER_CRC32C as usize + 1;

/// Where a settled ledger's entries are in the object store, and what proves that they are the right ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdRecord {
    /// Which of the cluster's object stores; 0 is the only one today.
    pub store_id: u32,
    /// The object's identity; its key is made of it.
    pub object: Uuid,
    /// The object's size.
    pub object_bytes: u64,
    /// CRC32C of the whole object.
    pub object_crc32c: u32,
    /// Where the range begins that one read of gives the indexes, the footer and the tail.
    pub footer_offset: u64,
    /// The size of that range, which ends where the object ends.
    pub footer_bytes: u32,
    /// CRC32C of that range, so that altered bytes are found before anything of it is parsed.
    pub footer_crc32c: u32,
    /// How many entries the ledger has: ids 0 to `entries - 1`.
    pub entries: u64,
    /// The sum of the entries' payload bytes.
    pub payload_bytes: u64,
    /// A digest over the ledger's entries, as the object's writer defines it.
    pub ledger_digest: Option<[u8; 32]>,
    /// The cluster's commit counter at the commit of this record.
    pub commit_counter: u64,
    /// Where the ledger lies in an object shared with others; `None`: it has the object to itself.
    pub pack: Option<PackPlace>,
    /// The length that the sealed ledger metadata states, where it differs from `payload_bytes`: a fact to note, not an error.
    pub length_differs: Option<u64>,
}

/// Where a ledger lies in an object shared with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackPlace {
    /// The ledger's first row group.
    pub first_row_group: u32,
    /// Where the ledger's own footer begins.
    pub mini_footer_offset: u64,
    /// The size of the ledger's own footer.
    pub mini_footer_bytes: u32,
}

impl ColdRecord {
    /// The key under which ledger metadata's custom values hold the record.
    pub const KEY: &'static str = "thermocline/cold";

    /// The stored form: a version byte, then fields of tag, length and value, ascending by tag.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        out.push(VERSION);
        put(&mut out, STORE_ID, &self.store_id.to_be_bytes());
        put(&mut out, OBJECT, self.object.as_bytes());
        put(&mut out, OBJECT_BYTES, &self.object_bytes.to_be_bytes());
        put(&mut out, OBJECT_CRC32C, &self.object_crc32c.to_be_bytes());
        put(&mut out, FOOTER_OFFSET, &self.footer_offset.to_be_bytes());
        put(&mut out, FOOTER_BYTES, &self.footer_bytes.to_be_bytes());
        put(&mut out, ENTRIES, &self.entries.to_be_bytes());
        put(&mut out, PAYLOAD_BYTES, &self.payload_bytes.to_be_bytes());
        if let Some(digest) = &self.ledger_digest {
            put(&mut out, LEDGER_DIGEST, digest);
        }
        put(&mut out, COMMIT_COUNTER, &self.commit_counter.to_be_bytes());
        if let Some(pack) = &self.pack {
            let mut value = [0; 16];
            value[..4].copy_from_slice(&pack.first_row_group.to_be_bytes());
            value[4..12].copy_from_slice(&pack.mini_footer_offset.to_be_bytes());
            value[12..].copy_from_slice(&pack.mini_footer_bytes.to_be_bytes());
            put(&mut out, PACK, &value);
        }
        if let Some(length) = self.length_differs {
            put(&mut out, LENGTH_DIFFERS, &length.to_be_bytes());
        }
        put(&mut out, FOOTER_CRC32C, &self.footer_crc32c.to_be_bytes());
        assert!(out.len() <= COLD_RECORD_BYTES_MAX, "a record with every field is far below the limit");
        out
    }

    /// Reads the stored form. Fields with unknown tags are passed over.
    ///
    /// # Errors
    /// When the version is not known here, the bytes are more than a record may have, a field is cut short, of the wrong size,
    /// present twice or missing, or the footer does not end where the object ends.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > COLD_RECORD_BYTES_MAX {
            return Err(refuse(format!("{} bytes, at most {COLD_RECORD_BYTES_MAX} are allowed", bytes.len())));
        }
        let (version, rest) = bytes.split_first().ok_or_else(|| refuse("it is empty"))?;
        if *version != VERSION {
            return Err(refuse(format!("version {version} is not known here, expected {VERSION}")));
        }
        let fields = Fields::split(rest)?;
        let record = Self {
            store_id: u32::from_be_bytes(fields.required(STORE_ID)?),
            object: Uuid::from_bytes(fields.required(OBJECT)?),
            object_bytes: u64::from_be_bytes(fields.required(OBJECT_BYTES)?),
            object_crc32c: u32::from_be_bytes(fields.required(OBJECT_CRC32C)?),
            footer_offset: u64::from_be_bytes(fields.required(FOOTER_OFFSET)?),
            footer_bytes: u32::from_be_bytes(fields.required(FOOTER_BYTES)?),
            footer_crc32c: u32::from_be_bytes(fields.required(FOOTER_CRC32C)?),
            entries: u64::from_be_bytes(fields.required(ENTRIES)?),
            payload_bytes: u64::from_be_bytes(fields.required(PAYLOAD_BYTES)?),
            ledger_digest: fields.optional(LEDGER_DIGEST)?,
            commit_counter: u64::from_be_bytes(fields.required(COMMIT_COUNTER)?),
            pack: fields.optional::<16>(PACK)?.map(PackPlace::from_bytes),
            length_differs: fields.optional(LENGTH_DIFFERS)?.map(u64::from_be_bytes),
        };
        if record.footer_offset.checked_add(u64::from(record.footer_bytes)) != Some(record.object_bytes) {
            return Err(refuse("the footer does not end where the object ends"));
        }
        Ok(record)
    }

    /// The record of a ledger, when its metadata holds one.
    ///
    /// # Errors
    /// When the value is there but malformed: the ledger must then not be taken for one without a cold copy.
    pub fn from_metadata(metadata: &LedgerMetadata) -> Result<Option<Self>, Error> {
        metadata.custom(Self::KEY).map(Self::decode).transpose()
    }

    /// The object's key in the store: `{hh}/{instance}/{ledger:016x}-{uuid}.parquet`, where `hh` is the top byte of
    /// [`ledger_hash`] in hexadecimal, so that keys spread over the store's partitions.
    pub fn object_key(&self, instance_id: &str, ledger: LedgerId) -> String {
        Self::key_of(instance_id, ledger, self.object)
    }

    /// The key that an object of this identity has: see [`ColdRecord::object_key`].
    pub fn key_of(instance_id: &str, ledger: LedgerId, object: Uuid) -> String {
        let prefix = ledger_hash(ledger) >> 56;
        format!("{prefix:02x}/{instance_id}/{:016x}-{object}.parquet", ledger.get())
    }
}

impl PackPlace {
    fn from_bytes(value: [u8; 16]) -> Self {
        let [a, b, c, d, e @ .., w, x, y, z] = value;
        Self {
            first_row_group: u32::from_be_bytes([a, b, c, d]),
            mini_footer_offset: u64::from_be_bytes(e),
            mini_footer_bytes: u32::from_be_bytes([w, x, y, z]),
        }
    }
}

fn put(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    out.push(u8::try_from(value.len()).expect("every field's size is fixed and small"));
    out.extend_from_slice(value);
}

/// The fields of a record by tag.
struct Fields<'a>([Option<&'a [u8]>; TAGS]);

impl<'a> Fields<'a> {
    fn split(mut rest: &'a [u8]) -> Result<Self, Error> {
        let mut fields = [None; TAGS];
        while let Some((tag, after)) = rest.split_first() {
            let (len, after) = after.split_first().ok_or_else(|| refuse(format!("field {tag} is cut short")))?;
            let (value, after) =
                after.split_at_checked(usize::from(*len)).ok_or_else(|| refuse(format!("field {tag} is cut short")))?;
            if let Some(slot) = fields.get_mut(usize::from(*tag))
                && slot.replace(value).is_some()
            {
                return Err(refuse(format!("field {tag} is present twice")));
            }
            rest = after;
        }
        Ok(Self(fields))
    }

    fn optional<const N: usize>(&self, tag: u8) -> Result<Option<[u8; N]>, Error> {
        let Some(value) = self.0[usize::from(tag)] else { return Ok(None) };
        let sized = value.try_into().map_err(|_| refuse(format!("field {tag} has {} bytes, not {N}", value.len())))?;
        Ok(Some(sized))
    }

    fn required<const N: usize>(&self, tag: u8) -> Result<[u8; N], Error> {
        self.optional(tag)?.ok_or_else(|| refuse(format!("field {tag} is missing")))
    }
}

fn refuse(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::ColdRecord, format!("read cold record: {why}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
