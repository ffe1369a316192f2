//! The body of an entry as writers make it and bookies keep it, big-endian:
//!
//! ```text
//!  0  ledger id        i64
//!  8  entry id         i64
//! 16  last confirmed   i64   -1 = none
//! 24  length           i64   user bytes of the ledger up to and including this entry
//! 32  digest           0, 4, 8 or 20 bytes
//! ..  payload
//! ```
//!
//! A bookie looks at the first 24 bytes only ([`peek`]). The explicit last-confirmed body has the same shape without entry
//! id and length: `ledger id, last confirmed, digest`.

use bytes::{BufMut, Bytes, BytesMut};

use crate::digest::Digester;
use crate::ids::{EntryId, LedgerId};

/// The bytes of a body before its digest.
pub const BODY_HEADER_BYTES: usize = 32;

/// The bytes of an explicit last-confirmed body before its digest.
pub const LAC_HEADER_BYTES: usize = 16;

/// Why a body was refused. Seen on a replica's answer, each of them means: try another replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body ends before its fixed part does.
    #[error("read entry body: {found} bytes, need at least {needed}")]
    TooShort {
        /// The bytes found.
        found: usize,
        /// The bytes needed.
        needed: usize,
    },
    /// A number in the header is outside what it may be.
    #[error("read entry body: {field} is {value}")]
    BadField {
        /// The field's name.
        field: &'static str,
        /// The number found.
        value: i64,
    },
    /// The digest is not that of the header and payload.
    #[error("check entry body: digest does not match")]
    DigestMismatch,
    /// The body belongs to another ledger.
    #[error("check entry body: it belongs to ledger {found}, expected {expected}")]
    WrongLedger {
        /// The ledger asked for.
        expected: LedgerId,
        /// The ledger in the body.
        found: LedgerId,
    },
    /// The body belongs to another entry.
    #[error("check entry body: it is entry {found}, expected {expected}")]
    WrongEntry {
        /// The entry asked for.
        expected: EntryId,
        /// The entry in the body.
        found: EntryId,
    },
}

/// What stands before the digest of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryHeader {
    /// The ledger the entry belongs to.
    pub ledger: LedgerId,
    /// The entry's place in it.
    pub entry: EntryId,
    /// The highest entry that the sender knew to be confirmed. Below `entry` when a writer or a recovery sent it; re-replicated
    /// copies of other implementations may carry the ledger's last entry.
    pub last_confirmed: Option<EntryId>,
    /// User bytes of the ledger up to and including this entry; at most `i64::MAX`.
    pub length: u64,
}

impl EntryHeader {
    /// The 32 header bytes. A length above `i64::MAX`, which no ledger can reach, is written as that.
    pub fn to_bytes(&self) -> [u8; BODY_HEADER_BYTES] {
        let mut out = [0; BODY_HEADER_BYTES];
        out[..8].copy_from_slice(&self.ledger.as_i64().to_be_bytes());
        out[8..16].copy_from_slice(&self.entry.as_i64().to_be_bytes());
        out[16..24].copy_from_slice(&EntryId::option_to_i64(self.last_confirmed).to_be_bytes());
        out[24..].copy_from_slice(&i64::try_from(self.length).unwrap_or(i64::MAX).to_be_bytes());
        out
    }

    /// Reads the header of a body.
    ///
    /// # Errors
    /// When the body is shorter than a header, an id or the length is negative, or the last confirmed is below -1.
    pub fn from_body(body: &[u8]) -> Result<Self, BodyError> {
        if body.len() < BODY_HEADER_BYTES {
            return Err(BodyError::TooShort { found: body.len(), needed: BODY_HEADER_BYTES });
        }
        let Peek { ledger, entry, last_confirmed } = peek(body)?;
        let length = i64_at(body, 24)?;
        let length = u64::try_from(length).map_err(|_| BodyError::BadField { field: "length", value: length })?;
        Ok(Self { ledger, entry, last_confirmed, length })
    }
}

/// An entry whose digest was checked. Digest and payload are slices of the body that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What stands before the digest.
    pub header: EntryHeader,
    /// The writer's digest, 0 to 20 bytes.
    pub digest: Bytes,
    /// The user's bytes.
    pub payload: Bytes,
}

impl Entry {
    /// The whole body again, bit for bit.
    pub fn to_body(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(BODY_HEADER_BYTES + self.digest.len() + self.payload.len());
        out.put_slice(&self.header.to_bytes());
        out.put_slice(&self.digest);
        out.put_slice(&self.payload);
        out.freeze()
    }
}

/// What a bookie reads of a body it stores unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peek {
    /// The ledger the entry belongs to.
    pub ledger: LedgerId,
    /// The entry's place in it.
    pub entry: EntryId,
    /// The highest entry that the sender knew to be confirmed.
    pub last_confirmed: Option<EntryId>,
}

/// Reads ledger, entry and last confirmed from the first 24 bytes of a body.
///
/// # Errors
/// When the body is shorter than that, an id is negative, or the last confirmed is below -1.
pub fn peek(body: &[u8]) -> Result<Peek, BodyError> {
    let ledger = i64_at(body, 0)?;
    let entry = i64_at(body, 8)?;
    let last_confirmed = i64_at(body, 16)?;
    Ok(Peek {
        ledger: LedgerId::new(ledger).ok_or(BodyError::BadField { field: "ledger id", value: ledger })?,
        entry: EntryId::new(entry).ok_or(BodyError::BadField { field: "entry id", value: entry })?,
        last_confirmed: EntryId::option_from_i64(last_confirmed)
            .ok_or(BodyError::BadField { field: "last confirmed", value: last_confirmed })?,
    })
}

impl Digester {
    /// Makes the whole body of an entry.
    pub fn seal(&self, header: &EntryHeader, payload: &[u8]) -> Bytes {
        let head = header.to_bytes();
        let mut out = BytesMut::with_capacity(BODY_HEADER_BYTES + self.digest_len() + payload.len());
        out.put_slice(&head);
        out.put_slice(self.digest(&head, payload).as_slice());
        out.put_slice(payload);
        out.freeze()
    }

    /// Checks a body and takes it apart without copying. `expect_entry` is `None` when the last entry was asked for.
    ///
    /// # Errors
    /// When the body is too short, its digest does not match, its header is malformed, or it is another entry's.
    pub fn open(
        &self,
        expect_ledger: LedgerId,
        expect_entry: Option<EntryId>,
        body: &Bytes,
    ) -> Result<Entry, BodyError> {
        let needed = BODY_HEADER_BYTES + self.digest_len();
        if body.len() < needed {
            return Err(BodyError::TooShort { found: body.len(), needed });
        }
        let digest = body.slice(BODY_HEADER_BYTES..needed);
        let payload = body.slice(needed..);
        if !self.verify(&body[..BODY_HEADER_BYTES], &payload, &digest) {
            return Err(BodyError::DigestMismatch);
        }
        let header = EntryHeader::from_body(body)?;
        if header.ledger != expect_ledger {
            return Err(BodyError::WrongLedger { expected: expect_ledger, found: header.ledger });
        }
        if let Some(expected) = expect_entry
            && header.entry != expected
        {
            return Err(BodyError::WrongEntry { expected, found: header.entry });
        }
        Ok(Entry { header, digest, payload })
    }

    /// Checks that an entry taken from elsewhere (a cold object) carries the writer's digest.
    pub fn verify_entry(&self, entry: &Entry) -> bool {
        self.verify(&entry.header.to_bytes(), &entry.payload, &entry.digest)
    }

    /// Makes an explicit last-confirmed body.
    pub fn seal_lac(&self, ledger: LedgerId, last_confirmed: Option<EntryId>) -> Bytes {
        let mut out = BytesMut::with_capacity(LAC_HEADER_BYTES + self.digest_len());
        out.put_i64(ledger.as_i64());
        out.put_i64(EntryId::option_to_i64(last_confirmed));
        let digest = self.digest(&out, &[]);
        out.put_slice(digest.as_slice());
        out.freeze()
    }

    /// Checks an explicit last-confirmed body and gives what it confirms.
    ///
    /// # Errors
    /// When the body has another size, its digest does not match, its numbers are malformed, or it is another ledger's.
    pub fn open_lac(&self, expect_ledger: LedgerId, body: &[u8]) -> Result<Option<EntryId>, BodyError> {
        let needed = LAC_HEADER_BYTES + self.digest_len();
        if body.len() < needed {
            return Err(BodyError::TooShort { found: body.len(), needed });
        }
        if body.len() > needed {
            return Err(BodyError::BadField {
                field: "body size",
                value: i64::try_from(body.len()).unwrap_or(i64::MAX),
            });
        }
        let (head, digest) = body.split_at(LAC_HEADER_BYTES);
        if !self.verify(head, &[], digest) {
            return Err(BodyError::DigestMismatch);
        }
        let ledger = i64_at(head, 0)?;
        let found = LedgerId::new(ledger).ok_or(BodyError::BadField { field: "ledger id", value: ledger })?;
        if found != expect_ledger {
            return Err(BodyError::WrongLedger { expected: expect_ledger, found });
        }
        let last_confirmed = i64_at(head, 8)?;
        EntryId::option_from_i64(last_confirmed)
            .ok_or(BodyError::BadField { field: "last confirmed", value: last_confirmed })
    }
}

fn i64_at(body: &[u8], offset: usize) -> Result<i64, BodyError> {
    let needed = offset + 8;
    match body.get(offset..needed).and_then(|bytes| bytes.try_into().ok()) {
        Some(bytes) => Ok(i64::from_be_bytes(bytes)),
        None => Err(BodyError::TooShort { found: body.len(), needed }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
