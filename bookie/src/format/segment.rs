use std::fmt;

use super::Damage;
use super::bytes_io::{Cursor, Filler};
use crate::disk::BLOCK_BYTES;

const MAGIC: &[u8; 8] = b"TCJRNL\0\x01";
const HEADER_BYTES: usize = 28;
/// Where the checksum of the reserved length is.
const RESERVED_CRC_AT: usize = HEADER_BYTES + 8;
const SUFFIX: &str = ".seg";

/// Names a journal segment of one bookie. Ids only grow and are never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(u64);

impl SegmentId {
    /// The id before the first segment.
    pub const NONE: Self = Self(0);

    /// The id with this number.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The id as a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The following id.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The name of the segment's file in the journal directory.
    pub fn file_name(self) -> String {
        format!("{:016x}{SUFFIX}", self.0)
    }

    /// The segment a file of this name holds; `None` when the name is not a segment's.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let digits = name.strip_suffix(SUFFIX)?;
        let id = u64::from_str_radix(digits, 16).ok().map(Self)?;
        (id.file_name() == name).then_some(id)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentId({})", self.0)
    }
}

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The segment.
    pub id: SegmentId,
    /// A random number that every group of the segment repeats.
    pub nonce: u64,
}

impl SegmentHeader {
    /// The header block: magic with the version in its last byte, id, nonce, CRC32C of these, zeros.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        Filler::new(&mut block).put(MAGIC).u64(self.id.0).u64(self.nonce);
        let crc = crc32c::crc32c(&block[..HEADER_BYTES - 4]);
        block[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_be_bytes());
        block
    }

    /// The header block of a file for which so many bytes were reserved: that number and CRC32C of all before it follow. Releases that
    /// do not know them skip them.
    pub fn encode_reserved(&self, file_bytes: u64) -> [u8; BLOCK_BYTES] {
        let mut block = self.encode();
        block[HEADER_BYTES..RESERVED_CRC_AT].copy_from_slice(&file_bytes.to_be_bytes());
        let crc = crc32c::crc32c(&block[..RESERVED_CRC_AT]);
        block[RESERVED_CRC_AT..RESERVED_CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
        block
    }

    /// How many bytes were reserved for the file, as its header block says; `None` where an earlier release made it.
    ///
    /// # Errors
    /// When the bytes changed.
    pub fn reserved_bytes(block: &[u8]) -> Result<Option<u64>, Damage> {
        let mut cursor = Cursor(block.get(HEADER_BYTES..).unwrap_or_default());
        match (cursor.u64(), cursor.u32()) {
            (Some(0), Some(0)) => Ok(None),
            (Some(bytes), Some(crc)) if crc32c::crc32c(&block[..RESERVED_CRC_AT]) == crc => Ok(Some(bytes)),
            _ => Err(Damage::new("the segment header has a wrong checksum behind the reserved length")),
        }
    }

    /// Reads a header block.
    ///
    /// # Errors
    /// When it is not a header of this version, or its bytes changed.
    pub fn decode(block: &[u8]) -> Result<Self, Damage> {
        let mut cursor = Cursor(block);
        let parts = (|| Some((cursor.array::<8>()?, cursor.u64()?, cursor.u64()?, cursor.u32()?)))();
        let Some((magic, id, nonce, crc)) = parts else {
            return Err(Damage::new("the segment header is cut short"));
        };
        if &magic != MAGIC {
            return Err(Damage::new("it does not begin like a journal segment of this version"));
        }
        if crc32c::crc32c(&block[..HEADER_BYTES - 4]) != crc {
            return Err(Damage::new("the segment header has a wrong checksum"));
        }
        Ok(Self { id: SegmentId(id), nonce })
    }
}
