use bytes::{BufMut, Bytes, BytesMut};
use ledger::{BODY_HEADER_BYTES, Entry, EntryHeader, EntryId, LedgerId};

use crate::error::{Error, Result};

/// One entry as a row of a cold object.
///
/// From it the entry's body is rebuilt bit for bit, so that the writer's own digest is what its last reader verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The ledger.
    pub ledger: LedgerId,
    /// The entry's place in it.
    pub entry: EntryId,
    /// The last-add-confirmed the body carries.
    pub last_confirmed: Option<EntryId>,
    /// The ledger length the body carries, in bytes; at most `i64::MAX`. It may be lower than the row before has.
    pub ledger_length: u64,
    /// The writer's digest; empty for ledgers without one.
    pub digest: Bytes,
    /// CRC32C of the whole body as it was stored hot.
    pub crc32c: u32,
    /// The user's bytes; `None` when the body stands in `raw`, or was erased.
    pub payload: Option<Bytes>,
    /// A whole body that could not be taken apart, kept under the policy `accept-damaged`.
    pub raw: Option<Bytes>,
    /// The payload was erased on request. Its checksum stays.
    pub redacted: bool,
    /// When the entry was written, in microseconds since 1970 UTC, where the writer's layer knows it.
    pub timestamp_micros: Option<i64>,
}

/// The most columns' bytes a row has beside its byte strings; used in size estimates.
pub(crate) const FIXED_BYTES: u64 = 8 * 4 + 4 + 3 * 4 + 9;

impl Row {
    /// The row of an entry whose digest was checked.
    pub fn from_entry(entry: &Entry) -> Self {
        let mut row = Self {
            ledger: entry.header.ledger,
            entry: entry.header.entry,
            last_confirmed: entry.header.last_confirmed,
            ledger_length: entry.header.length,
            digest: entry.digest.clone(),
            crc32c: 0,
            payload: Some(entry.payload.clone()),
            raw: None,
            redacted: false,
            timestamp_micros: None,
        };
        row.crc32c = row.body_crc32c().unwrap_or_default();
        row
    }

    /// The row of a body that could not be taken apart.
    pub fn from_raw(ledger: LedgerId, entry: EntryId, body: Bytes) -> Self {
        Self {
            ledger,
            entry,
            last_confirmed: None,
            ledger_length: 0,
            digest: Bytes::new(),
            crc32c: crc32c::crc32c(&body),
            payload: None,
            raw: Some(body),
            redacted: false,
            timestamp_micros: None,
        }
    }

    /// What stands before the digest of the body.
    pub fn header(&self) -> EntryHeader {
        EntryHeader {
            ledger: self.ledger,
            entry: self.entry,
            last_confirmed: self.last_confirmed,
            length: self.ledger_length,
        }
    }

    /// The body in two pieces, the second one not copied: header and digest, then payload. A raw body is all in the second.
    /// `None` when the entry was erased.
    pub fn body_parts(&self) -> Option<(Bytes, Bytes)> {
        if let Some(raw) = &self.raw {
            return Some((Bytes::new(), raw.clone()));
        }
        let payload = self.payload.clone()?;
        let mut head = BytesMut::with_capacity(BODY_HEADER_BYTES + self.digest.len());
        head.put_slice(&self.header().to_bytes());
        head.put_slice(&self.digest);
        Some((head.freeze(), payload))
    }

    /// The whole body, bit for bit as the writer made it; `None` when the entry was erased. Copies the payload.
    pub fn rebuild_body(&self) -> Option<Bytes> {
        let (head, tail) = self.body_parts()?;
        if head.is_empty() {
            return Some(tail);
        }
        let mut body = BytesMut::with_capacity(head.len() + tail.len());
        body.put_slice(&head);
        body.put_slice(&tail);
        Some(body.freeze())
    }

    /// The entry, for those who want to check the writer's digest; `None` when it was erased or is kept raw.
    pub fn to_entry(&self) -> Option<Entry> {
        let payload = self.payload.clone()?;
        Some(Entry { header: self.header(), digest: self.digest.clone(), payload })
    }

    /// CRC32C of the body this row rebuilds; `None` when it was erased.
    pub fn body_crc32c(&self) -> Option<u32> {
        if let Some(raw) = &self.raw {
            return Some(crc32c::crc32c(raw));
        }
        let payload = self.payload.as_ref()?;
        let crc = crc32c::crc32c(&self.header().to_bytes());
        let crc = crc32c::crc32c_append(crc, &self.digest);
        Some(crc32c::crc32c_append(crc, payload))
    }

    /// User bytes of the row: 0 when they are erased or kept raw.
    pub fn payload_bytes(&self) -> u64 {
        self.payload.as_ref().map_or(0, |payload| payload.len() as u64)
    }

    /// Decoded bytes of the row in all columns.
    pub(crate) fn raw_bytes(&self) -> u64 {
        let raw = self.raw.as_ref().map_or(0, |raw| raw.len() as u64);
        FIXED_BYTES + self.digest.len() as u64 + self.payload_bytes() + raw
    }

    /// Whether what was rebuilt is what was stored hot. Says what is wrong.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        match self.body_crc32c() {
            Some(found) if found == self.crc32c => Ok(()),
            Some(found) => {
                Err(format!("entry {}: body has crc32c {found:08x}, the row says {:08x}", self.entry, self.crc32c))
            }
            None if self.redacted => Ok(()),
            None => Err(format!("entry {}: it has no payload and is not marked as erased", self.entry)),
        }
    }

    /// What a writer refuses: a row that would not read back as itself.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.payload.is_some() && self.raw.is_some() {
            return Err(Error::invalid(format_args!("entry {} has a payload and a raw body", self.entry)));
        }
        if self.redacted && (self.payload.is_some() || self.raw.is_some()) {
            return Err(Error::invalid(format_args!("entry {} is marked as erased but has bytes", self.entry)));
        }
        if i64::try_from(self.ledger_length).is_err() {
            return Err(Error::invalid(format_args!("entry {} has a ledger length above i64::MAX", self.entry)));
        }
        self.check().map_err(Error::invalid)
    }
}
