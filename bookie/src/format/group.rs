use ledger::{EntryId, LedgerId};

use super::bytes_io::{Cursor, Filler};
use super::{Damage, SegmentHeader};
use crate::disk::AlignedBuffer;

/// Bytes before the records of a group.
pub const GROUP_HEADER_BYTES: usize = 48;
/// Bytes before the body of a record.
pub const RECORD_HEADER_BYTES: usize = 28;

const MAGIC: u32 = u32::from_be_bytes(*b"TCGR");
const VERSION: u32 = 1;
/// Where the group's checksum stands in its header.
const CRC_AT: usize = 40;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// An entry added by the writer.
    Entry = 1,
    /// An entry added by recovery or re-replication.
    RecoveryEntry = 2,
    /// From here on only recovery may add to the ledger.
    Fence = 3,
    /// The body is the ledger's master key.
    MasterKey = 4,
    /// The body is an explicit last-add-confirmed, as the client sent it.
    ExplicitLac = 5,
    /// The ledger was dropped. Reserved: this version keeps tombstones in the index.
    Tombstone = 6,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Entry,
            2 => Self::RecoveryEntry,
            3 => Self::Fence,
            4 => Self::MasterKey,
            5 => Self::ExplicitLac,
            6 => Self::Tombstone,
            _ => return None,
        })
    }

    /// Whether the record carries an entry of a ledger.
    pub const fn is_entry(self) -> bool {
        matches!(self, Self::Entry | Self::RecoveryEntry)
    }
}

/// One record of the journal. `entry` is 0 for records that are not about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it says.
    pub kind: RecordKind,
    /// The ledger it is about.
    pub ledger: LedgerId,
    /// The entry it is about.
    pub entry: EntryId,
    /// Its content.
    pub body: &'a [u8],
}

impl Record<'_> {
    /// Bytes of a record with a body of this length.
    pub const fn encoded_bytes(body_bytes: usize) -> usize {
        RECORD_HEADER_BYTES + body_bytes
    }
}

/// Where a record lies, header included: relative to its group while that is built, else in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first byte.
    pub offset: u32,
    /// How many bytes.
    pub bytes: u32,
}

/// Builds one group in an aligned buffer.
#[derive(Debug)]
pub struct GroupWriter {
    buffer: AlignedBuffer,
    at: usize,
    records: u32,
}

impl GroupWriter {
    /// A group with room for records of `records_bytes` in all, headers included.
    pub fn with_room(records_bytes: usize) -> Self {
        Self::in_buffer(AlignedBuffer::zeroed(GROUP_HEADER_BYTES + records_bytes))
    }

    /// A group in a buffer that has room for its header and records; what it held before is written over.
    pub fn in_buffer(buffer: AlignedBuffer) -> Self {
        Self { buffer, at: GROUP_HEADER_BYTES, records: 0 }
    }

    /// Adds a record; its place is relative to the group.
    ///
    /// # Panics
    /// When the room given at the start is used up.
    pub fn push(&mut self, record: &Record<'_>) -> Place {
        let bytes = Record::encoded_bytes(record.body.len());
        let start = self.at;
        let slot = &mut self.buffer.as_mut()[start..start + bytes];
        let length = u32::try_from(record.body.len()).expect("the frame limit is far below 4 GiB");
        Filler::new(slot)
            .u32(length)
            .u32(0)
            .put(&[record.kind as u8, 0, 0, 0])
            .u64(record.ledger.get())
            .u64(record.entry.get())
            .put(record.body);
        let crc = crc32c::crc32c(&slot[8..]);
        slot[4..8].copy_from_slice(&crc.to_be_bytes());
        self.at += bytes;
        self.records += 1;
        Place { offset: to_u32(start), bytes: to_u32(bytes) }
    }

    /// Completes the group for its place in the journal. `unsettled` is how many groups before it may not be durable when it is
    /// written: see [`GroupHead::settled_through`].
    pub fn finish(mut self, segment: &SegmentHeader, sequence: u64, unsettled: u32) -> AlignedBuffer {
        let (bytes, records) = (to_u32(self.at), self.records);
        let (group, padding) = self.buffer.as_mut().split_at_mut(self.at);
        padding.fill(0);
        Filler::new(group)
            .u32(MAGIC)
            .u32(VERSION)
            .u64(segment.id.get())
            .u64(segment.nonce)
            .u64(sequence)
            .u32(records)
            .u32(bytes)
            .u32(0)
            .u32(unsettled);
        let crc = checksum(group);
        group[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
        self.buffer
    }
}

fn to_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a group is far below 4 GiB")
}

fn checksum(group: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&group[..CRC_AT]), &group[CRC_AT + 4..])
}

/// What the header of a group says; believed only after [`decode_group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHead {
    /// Place in the bookie's sequence of groups.
    pub sequence: u64,
    /// Records in the group.
    pub records: u32,
    /// Bytes of the group without padding.
    pub bytes: u32,
    /// Groups right before it that were not known to be durable when it was written.
    pub unsettled: u32,
}

impl GroupHead {
    /// Reads the header at a block boundary. `None` when no group of this segment begins here, or it would be longer than
    /// `bytes_max`, which is what the file has left.
    pub fn peek(block: &[u8], segment: &SegmentHeader, bytes_max: u64) -> Option<Self> {
        let mut cursor = Cursor(block);
        if cursor.u32()? != MAGIC || cursor.u32()? != VERSION {
            return None;
        }
        if cursor.u64()? != segment.id.get() || cursor.u64()? != segment.nonce {
            return None;
        }
        let (sequence, records, bytes, _crc) = (cursor.u64()?, cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let head = Self { sequence, records, bytes, unsettled: cursor.u32()? };
        (head.bytes as usize >= GROUP_HEADER_BYTES && u64::from(head.bytes) <= bytes_max).then_some(head)
    }

    /// The last group that was certainly durable when this one was written, with all before it; none of them can be missing but
    /// by damage.
    pub const fn settled_through(&self) -> u64 {
        self.sequence.saturating_sub(1).saturating_sub(self.unsettled as u64)
    }
}

/// Checks the checksum of a group part by part, so that a length nobody vouches for yet costs no memory.
#[derive(Debug)]
pub struct GroupCheck {
    expected: u32,
    crc: u32,
}

impl GroupCheck {
    /// Begins with the header; `None` when it is cut short.
    pub fn new(header: &[u8]) -> Option<Self> {
        let header = header.get(..GROUP_HEADER_BYTES)?;
        Some(Self { expected: Cursor(&header[CRC_AT..]).u32()?, crc: checksum(header) })
    }

    /// Goes on with what follows.
    pub fn put(&mut self, part: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, part);
    }

    /// Whether the group is as it was written, all of it given.
    pub fn holds(self) -> bool {
        self.crc == self.expected
    }
}

/// Reads the records of a group whose header was peeked; `group` has exactly the bytes the header names. Each record comes with
/// its place relative to the group.
///
/// # Errors
/// When the checksum is wrong, or the records do not fill the group as the header says.
pub fn decode_group<'a>(head: &GroupHead, group: &'a [u8]) -> Result<Vec<(Record<'a>, Place)>, Damage> {
    if group.len() != head.bytes as usize || group.len() < GROUP_HEADER_BYTES {
        return Err(Damage::new("the group is cut short"));
    }
    let crc = Cursor(&group[CRC_AT..]).u32();
    if crc != Some(checksum(group)) {
        return Err(Damage::new("the group has a wrong checksum"));
    }
    let mut records = Vec::with_capacity((head.records as usize).min(group.len() / RECORD_HEADER_BYTES));
    let mut at = GROUP_HEADER_BYTES;
    while at < group.len() {
        let (record, bytes) = split_record(&group[at..])?;
        records.push((record, Place { offset: to_u32(at), bytes: to_u32(bytes) }));
        at += bytes;
    }
    if records.len() != head.records as usize {
        return Err(Damage::new(format!(
            "the group holds {} records, its header says {}",
            records.len(),
            head.records
        )));
    }
    Ok(records)
}

/// Reads one record that fills `bytes`, with its own checksum.
///
/// # Errors
/// When a byte of it changed.
pub fn decode_record(bytes: &[u8]) -> Result<Record<'_>, Damage> {
    let (record, used) = split_record(bytes)?;
    if used != bytes.len() {
        return Err(Damage::new(format!("the record has {used} bytes where {} were expected", bytes.len())));
    }
    let crc = Cursor(&bytes[4..]).u32();
    if crc != Some(crc32c::crc32c(&bytes[8..])) {
        return Err(Damage::new("the record has a wrong checksum"));
    }
    Ok(record)
}

fn split_record(bytes: &[u8]) -> Result<(Record<'_>, usize), Damage> {
    let mut cursor = Cursor(bytes);
    let parts = (|| {
        let (length, _crc, kind, zeros) = (cursor.u32()?, cursor.u32()?, cursor.u8()?, cursor.array::<3>()?);
        let (ledger, entry) = (cursor.u64()?, cursor.u64()?);
        Some((cursor.take(length as usize)?, kind, zeros, ledger, entry))
    })();
    let Some((body, kind, zeros, ledger, entry)) = parts else {
        return Err(Damage::new("a record is cut short"));
    };
    let (Some(kind), [0, 0, 0]) = (RecordKind::from_byte(kind), zeros) else {
        return Err(Damage::new(format!("a record has the unknown kind {kind}")));
    };
    let (Some(ledger), Some(entry)) = (LedgerId::new(ledger), EntryId::new(entry)) else {
        return Err(Damage::new("a record names an impossible ledger or entry"));
    };
    Ok((Record { kind, ledger, entry, body }, Record::encoded_bytes(body.len())))
}
