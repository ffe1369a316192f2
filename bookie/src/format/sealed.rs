use std::ops::Range;

use bytes::Bytes;
use ledger::{EntryId, LedgerId, MasterKey};

use super::bytes_io::{Cursor, Filler};
use super::{Damage, Place, SegmentHeader, SegmentId};
use crate::disk::BLOCK_BYTES;

const MAGIC: &[u8; 8] = b"TCSEAL\0\x01";
const TRAILER_BYTES: usize = 96;
const ENTRY_ROW_BYTES: usize = 24;
const LEDGER_ROW_BYTES: usize = 80;
const DIRECTORY_ROW_BYTES: usize = 16;
const CRC_BYTES: usize = 4;
/// Stands for "no entry" in a ledger row.
const ABSENT: u64 = u64::MAX;
const FLAG_KEY: u32 = 1;
const FLAG_FENCED: u32 = 2;

/// Rows in an entry block; the last block of a segment may have fewer.
pub const ENTRY_BLOCK_ROWS: usize = 682;
/// Rows in a ledger block; the last block of a segment may have fewer.
pub const LEDGER_BLOCK_ROWS: usize = 204;

/// Where an entry lies in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// The ledger.
    pub ledger: LedgerId,
    /// The entry.
    pub entry: EntryId,
    /// Its record.
    pub place: Place,
}

/// What a segment says about one ledger.
#[derive(Clone, Copy, Debug)]
pub struct LedgerRow {
    /// The ledger.
    pub ledger: LedgerId,
    /// Lowest and highest entry in this segment; `None` when it only holds a key or a fence.
    pub entries: Option<(EntryId, EntryId)>,
    /// How many entries of the ledger this segment holds.
    pub count: u64,
    /// Wall time of the last recovery add to this segment, in milliseconds; 0 for none.
    pub recovery_ms: u64,
    /// Highest entry of the ledger on this bookie when the segment was sealed.
    pub max_entry: Option<EntryId>,
    /// Highest last-add-confirmed seen when the segment was sealed.
    pub last_confirmed: Option<EntryId>,
    /// The ledger's key, when known.
    pub master_key: Option<MasterKey>,
    /// Whether the ledger was fenced.
    pub fenced: bool,
}

/// The bytes of a block of entry rows, which must be sorted and distinct: the rows, then their CRC32C.
pub fn encode_entry_block(rows: &[EntryRow]) -> Vec<u8> {
    let mut block = vec![0; rows.len() * ENTRY_ROW_BYTES + CRC_BYTES];
    let mut filler = Filler::new(&mut block);
    for row in rows {
        filler.u64(row.ledger.get()).u64(row.entry.get()).u32(row.place.offset).u32(row.place.bytes);
    }
    seal_block(block)
}

/// The bytes of a block of ledger rows, sorted by ledger: the rows, then their CRC32C.
pub fn encode_ledger_block(rows: &[LedgerRow]) -> Vec<u8> {
    let mut block = vec![0; rows.len() * LEDGER_ROW_BYTES + CRC_BYTES];
    let mut filler = Filler::new(&mut block);
    let number = |entry: Option<EntryId>| entry.map_or(ABSENT, EntryId::get);
    for row in rows {
        let flags = if row.master_key.is_some() { FLAG_KEY } else { 0 } | if row.fenced { FLAG_FENCED } else { 0 };
        filler
            .u64(row.ledger.get())
            .u64(number(row.entries.map(|(first, _)| first)))
            .u64(number(row.entries.map(|(_, last)| last)))
            .u64(row.count)
            .u64(row.recovery_ms)
            .u64(number(row.max_entry))
            .u64(number(row.last_confirmed))
            .u32(flags)
            .put(row.master_key.unwrap_or(MasterKey::EMPTY).as_bytes());
    }
    seal_block(block)
}

fn seal_block(mut block: Vec<u8>) -> Vec<u8> {
    let content = block.len() - CRC_BYTES;
    let crc = crc32c::crc32c(&block[..content]);
    block[content..].copy_from_slice(&crc.to_be_bytes());
    block
}

fn open_block(block: &[u8], row_bytes: usize) -> Result<&[u8], Damage> {
    let content = block.len().checked_sub(CRC_BYTES).ok_or_else(|| Damage::new("an index block is cut short"))?;
    if Cursor(&block[content..]).u32() != Some(crc32c::crc32c(&block[..content])) {
        return Err(Damage::new("an index block has a wrong checksum"));
    }
    if content % row_bytes != 0 {
        return Err(Damage::new("an index block does not hold whole rows"));
    }
    Ok(&block[..content])
}

/// A checked block of entry rows.
#[derive(Clone, Debug)]
pub struct EntryBlock(Bytes);

impl EntryBlock {
    /// Checks a block.
    ///
    /// # Errors
    /// When a byte of it changed.
    pub fn decode(block: Bytes) -> Result<Self, Damage> {
        let content = open_block(&block, ENTRY_ROW_BYTES)?.len();
        Ok(Self(block.slice(..content)))
    }

    /// Bytes it keeps in memory.
    pub fn memory_bytes(&self) -> usize {
        self.0.len()
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.0.len() / ENTRY_ROW_BYTES
    }

    /// The entries of a ledger in this block, ascending.
    pub fn entries_of(&self, ledger: LedgerId) -> impl Iterator<Item = EntryId> {
        let ids = self.0.chunks_exact(ENTRY_ROW_BYTES).filter_map(|row| {
            let mut cursor = Cursor(row);
            Some((cursor.u64()?, cursor.u64()?))
        });
        ids.filter(move |(held, _)| *held == ledger.get()).filter_map(|(_, entry)| EntryId::new(entry))
    }

    /// The record of an entry, when this block names it.
    pub fn find(&self, ledger: LedgerId, entry: EntryId) -> Option<Place> {
        let wanted = (ledger.get(), entry.get());
        let (mut low, mut high) = (0, self.rows());
        while low < high {
            let middle = low.midpoint(high);
            let mut cursor = Cursor(&self.0[middle * ENTRY_ROW_BYTES..]);
            let found = (cursor.u64()?, cursor.u64()?);
            match found.cmp(&wanted) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(Place { offset: cursor.u32()?, bytes: cursor.u32()? }),
            }
        }
        None
    }
}

impl LedgerRow {
    /// Reads a block of ledger rows.
    ///
    /// # Errors
    /// When a byte of it changed.
    pub fn decode_block(block: &[u8]) -> Result<Vec<Self>, Damage> {
        let content = open_block(block, LEDGER_ROW_BYTES)?;
        let rows = content.chunks_exact(LEDGER_ROW_BYTES).map(Self::decode);
        rows.collect::<Option<_>>().ok_or_else(|| Damage::new("a ledger row holds an impossible id"))
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(row);
        let id = |cursor: &mut Cursor<'_>| -> Option<Option<EntryId>> {
            let number = cursor.u64()?;
            if number == ABSENT { Some(None) } else { EntryId::new(number).map(Some) }
        };
        let ledger = LedgerId::new(cursor.u64()?)?;
        let (first, last) = (id(&mut cursor)?, id(&mut cursor)?);
        let (count, recovery_ms) = (cursor.u64()?, cursor.u64()?);
        let (max_entry, last_confirmed) = (id(&mut cursor)?, id(&mut cursor)?);
        let (flags, key) = (cursor.u32()?, cursor.array()?);
        Some(Self {
            ledger,
            entries: first.zip(last),
            count,
            recovery_ms,
            max_entry,
            last_confirmed,
            master_key: (flags & FLAG_KEY != 0).then(|| MasterKey::from_bytes(key)),
            fenced: flags & FLAG_FENCED != 0,
        })
    }
}

/// The first key of each entry block of a segment: one lookup decides which block to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory(Vec<(u64, u64)>);

impl Directory {
    /// Notes the next block by its first row.
    pub fn push(&mut self, first: &EntryRow) {
        self.0.push((first.ledger.get(), first.entry.get()));
    }

    /// The block that would hold an entry; `None` when the entry lies before the first block.
    pub fn block_of(&self, ledger: LedgerId, entry: EntryId) -> Option<u32> {
        let after = self.0.partition_point(|first| *first <= (ledger.get(), entry.get()));
        after.checked_sub(1).and_then(|block| u32::try_from(block).ok())
    }

    /// The bytes: first keys, then their CRC32C.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; self.0.len() * DIRECTORY_ROW_BYTES + CRC_BYTES];
        let mut filler = Filler::new(&mut block);
        for (ledger, entry) in &self.0 {
            filler.u64(*ledger).u64(*entry);
        }
        seal_block(block)
    }

    /// Reads a directory.
    ///
    /// # Errors
    /// When a byte of it changed.
    pub fn decode(block: &[u8]) -> Result<Self, Damage> {
        let content = open_block(block, DIRECTORY_ROW_BYTES)?;
        let row = |row: &[u8]| {
            let mut cursor = Cursor(row);
            Some((cursor.u64()?, cursor.u64()?))
        };
        let rows = content.chunks_exact(DIRECTORY_ROW_BYTES).map(row);
        rows.collect::<Option<_>>().map(Self).ok_or_else(|| Damage::new("the directory is cut short"))
    }
}

/// Where the parts of a sealed segment lie; follows from four numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedLayout {
    /// End of the groups, start of the entry blocks. A multiple of the block size.
    pub groups_end: u64,
    /// Entry rows in all.
    pub entries: u64,
    /// Ledger rows in all.
    pub ledgers: u64,
}

impl SealedLayout {
    fn blocks(rows: u64, block_rows: usize, row_bytes: usize) -> (u64, u64) {
        let blocks = rows.div_ceil(block_rows as u64);
        (blocks, rows * row_bytes as u64 + blocks * CRC_BYTES as u64)
    }

    fn block_range(
        &self,
        start: u64,
        block: u32,
        rows: u64,
        block_rows: usize,
        row_bytes: usize,
    ) -> Option<Range<u64>> {
        let first = u64::from(block) * block_rows as u64;
        let held = rows.checked_sub(first).filter(|left| *left > 0)?.min(block_rows as u64);
        let start = start + u64::from(block) * (block_rows * row_bytes + CRC_BYTES) as u64;
        Some(start..start + held * row_bytes as u64 + CRC_BYTES as u64)
    }

    /// The bytes of an entry block; `None` when there is no such block.
    pub fn entry_block(&self, block: u32) -> Option<Range<u64>> {
        self.block_range(self.groups_end, block, self.entries, ENTRY_BLOCK_ROWS, ENTRY_ROW_BYTES)
    }

    /// How many entry blocks there are.
    pub fn entry_blocks(&self) -> u32 {
        u32::try_from(self.entries.div_ceil(ENTRY_BLOCK_ROWS as u64)).unwrap_or(u32::MAX)
    }

    fn ledgers_start(&self) -> u64 {
        self.groups_end + Self::blocks(self.entries, ENTRY_BLOCK_ROWS, ENTRY_ROW_BYTES).1
    }

    /// The bytes of a ledger block; `None` when there is no such block.
    pub fn ledger_block(&self, block: u32) -> Option<Range<u64>> {
        self.block_range(self.ledgers_start(), block, self.ledgers, LEDGER_BLOCK_ROWS, LEDGER_ROW_BYTES)
    }

    /// The bytes of the directory.
    pub fn directory(&self) -> Range<u64> {
        let start = self.ledgers_start() + Self::blocks(self.ledgers, LEDGER_BLOCK_ROWS, LEDGER_ROW_BYTES).1;
        let blocks = Self::blocks(self.entries, ENTRY_BLOCK_ROWS, ENTRY_ROW_BYTES).0;
        start..start + blocks * DIRECTORY_ROW_BYTES as u64 + CRC_BYTES as u64
    }

    /// Length of the sealed file: the trailer is its last block.
    pub fn file_bytes(&self) -> u64 {
        self.directory().end.next_multiple_of(BLOCK_BYTES as u64) + BLOCK_BYTES as u64
    }

    /// Bytes a segment must keep free behind its groups to be sealed with so many rows.
    pub fn room_needed(entries: u64, ledgers: u64) -> u64 {
        Self { groups_end: 0, entries, ledgers }.file_bytes()
    }
}

/// The last block of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The segment, as in its header.
    pub segment: SegmentHeader,
    /// Sequence of its last group; that of the segment before when it has none.
    pub last_sequence: u64,
    /// Where its parts lie.
    pub layout: SealedLayout,
}

impl Trailer {
    /// The trailer block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        Filler::new(&mut block)
            .put(MAGIC)
            .u64(self.segment.id.get())
            .u64(self.segment.nonce)
            .u64(self.last_sequence)
            .u64(self.layout.groups_end)
            .u64(self.layout.entries)
            .u64(self.layout.ledgers)
            .u64(self.layout.file_bytes());
        let crc = crc32c::crc32c(&block[..TRAILER_BYTES - CRC_BYTES]);
        block[TRAILER_BYTES - CRC_BYTES..TRAILER_BYTES].copy_from_slice(&crc.to_be_bytes());
        block
    }

    /// Reads the last block of a file of `file_bytes`.
    ///
    /// # Errors
    /// When the block is no trailer, changed, or does not fit the file.
    pub fn decode(block: &[u8], file_bytes: u64) -> Result<Self, Damage> {
        let mut cursor = Cursor(block);
        let parts = (|| {
            let magic = cursor.array::<8>()?;
            let mut numbers = [0; 7];
            for number in &mut numbers {
                *number = cursor.u64()?;
            }
            Some((magic, numbers))
        })();
        let Some((magic, [id, nonce, last_sequence, groups_end, entries, ledgers, stored_bytes])) = parts else {
            return Err(Damage::new("the trailer is cut short"));
        };
        if &magic != MAGIC {
            return Err(Damage::new("it does not end like a sealed segment of this version"));
        }
        let content = TRAILER_BYTES - CRC_BYTES;
        let checked = block.get(..content).map(crc32c::crc32c);
        if checked.is_none() || checked != block.get(content..).and_then(|tail| Cursor(tail).u32()) {
            return Err(Damage::new("the trailer has a wrong checksum"));
        }
        let limit = file_bytes / ENTRY_ROW_BYTES as u64;
        if groups_end > file_bytes || entries > limit || ledgers > limit {
            return Err(Damage::new("the trailer names more than the file can hold"));
        }
        let layout = SealedLayout { groups_end, entries, ledgers };
        if layout.file_bytes() != file_bytes || stored_bytes != file_bytes {
            return Err(Damage::new(format!(
                "the trailer is for a file of {stored_bytes} bytes, this one has {file_bytes}"
            )));
        }
        Ok(Self { segment: SegmentHeader { id: SegmentId::new(id), nonce }, last_sequence, layout })
    }
}
