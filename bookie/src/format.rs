//! The journal segment, byte for byte: pure encoders and decoders. `docs/formats/journal.md` and `docs/formats/segment-index.md`
//! describe the same bytes in prose; `golden/` holds a file of this version.
//!
//! A segment is a header block, then groups (one write each), then, once sealed, a sorted index and a trailer block. Every part
//! names the segment and carries a CRC32C; every group repeats the segment's random nonce, so that bytes a client sent can never
//! pass for a group. Integers are big-endian.

mod bytes_io;
mod group;
mod sealed;
mod segment;

pub use group::{
    GROUP_HEADER_BYTES, GroupCheck, GroupHead, GroupWriter, Place, RECORD_HEADER_BYTES, Record, RecordKind,
    decode_group, decode_record,
};
pub use sealed::{
    Directory, ENTRY_BLOCK_ROWS, EntryBlock, EntryRow, LEDGER_BLOCK_ROWS, LedgerRow, SealedLayout, Trailer,
    encode_entry_block, encode_ledger_block,
};
pub use segment::{SegmentHeader, SegmentId};

/// Why stored bytes were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damage(pub String);

impl Damage {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
