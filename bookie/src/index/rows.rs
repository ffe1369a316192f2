//! Keys and values of the index, and typed access to them.
//!
//! | key | value |
//! |---|---|
//! | `i` | identity: bookie id and INSTANCEID |
//! | `o` | the last segment opened for writing |
//! | `s` | the last segment sealed, and the sequence of its last group |
//! | `S` segment | length of the sealed file, entries, whether it is being dropped |
//! | `L` ledger | what is known of the ledger |
//! | `R` ledger segment | the ledger's entries in that segment |
//! | `D`/`G`/`V` chunk | ledgers deleted / gone / revived: roaring bitmap of the low 16 bits of the ids of a chunk |
//!
//! Ids are 8 bytes big-endian, a chunk is an id without its low 16 bits. Values begin with a version byte.

use std::collections::BTreeMap;

use bytes::Bytes;
use ledger::{EntryId, LedgerId, MASTER_KEY_BYTES, MasterKey};
use roaring::RoaringBitmap;

use super::{Index, Write};
use crate::error::Error;
use crate::format::SegmentId;

const VERSION: u8 = 1;
/// Of ledger rows: version 1 knew no explicit last-add-confirmed, and is still read.
const LEDGER_VERSION: u8 = 2;
const ABSENT: u64 = u64::MAX;
const PAGE: usize = 1024;

/// What the index says of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRow {
    pub(crate) id: SegmentId,
    pub(crate) file_bytes: u64,
    pub(crate) entries: u64,
    /// Set, durably, before the file is removed.
    pub(crate) dropping: bool,
}

/// What the index says of a ledger.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LedgerStateRow {
    pub(crate) master_key: Option<MasterKey>,
    pub(crate) fenced: bool,
    pub(crate) max_entry: Option<EntryId>,
    pub(crate) last_confirmed: Option<EntryId>,
    pub(crate) recovery_ms: u64,
    pub(crate) explicit_lac: Option<Bytes>,
}

/// The entries of one ledger in one sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LedgerSegment {
    pub(crate) segment: SegmentId,
    /// First and last entry; `None` when the segment only holds the ledger's key or fence.
    pub(crate) entries: Option<(EntryId, EntryId)>,
}

/// Which tombstone a chunk belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TombstoneKind {
    Deleted,
    Gone,
    Revived,
}

impl TombstoneKind {
    pub(crate) const ALL: [Self; 3] = [Self::Deleted, Self::Gone, Self::Revived];

    fn letter(self) -> u8 {
        match self {
            Self::Deleted => b'D',
            Self::Gone => b'G',
            Self::Revived => b'V',
        }
    }
}

fn key(letter: u8, ids: &[u64]) -> Vec<u8> {
    let mut key = vec![letter];
    for id in ids {
        key.extend_from_slice(&id.to_be_bytes());
    }
    key
}

fn value(numbers: &[u64]) -> Vec<u8> {
    let mut value = vec![VERSION];
    for number in numbers {
        value.extend_from_slice(&number.to_be_bytes());
    }
    value
}

fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let numbers: Vec<u64> = chunks.iter().map(|chunk| u64::from_be_bytes(*chunk)).collect();
    if rest.is_empty() { numbers.try_into().ok() } else { None }
}

fn content(value: &[u8]) -> Option<&[u8]> {
    value.split_first().filter(|(version, _)| **version == VERSION).map(|(_, content)| content)
}

fn damaged(what: &'static str) -> Error {
    Error::index("read", format!("a {what} row is damaged or of another version"))
}

fn number(entry: Option<EntryId>) -> u64 {
    entry.map_or(ABSENT, EntryId::get)
}

fn entry(number: u64) -> Option<Option<EntryId>> {
    if number == ABSENT { Some(None) } else { EntryId::new(number).map(Some) }
}

pub(crate) fn put_identity(identity: &str) -> Write {
    let mut value = vec![VERSION];
    value.extend_from_slice(identity.as_bytes());
    Write::Put(key(b'i', &[]), value)
}

pub(crate) fn put_opened(segment: SegmentId) -> Write {
    Write::Put(key(b'o', &[]), value(&[segment.get()]))
}

pub(crate) fn put_sealed(segment: SegmentId, last_sequence: u64) -> Write {
    Write::Put(key(b's', &[]), value(&[segment.get(), last_sequence]))
}

pub(crate) fn put_segment(row: &SegmentRow) -> Write {
    let content = [row.file_bytes, row.entries, u64::from(row.dropping)];
    Write::Put(key(b'S', &[row.id.get()]), value(&content))
}

pub(crate) fn delete_segment(segment: SegmentId) -> Write {
    Write::Delete(key(b'S', &[segment.get()]))
}

pub(crate) fn put_ledger(ledger: LedgerId, row: &LedgerStateRow) -> Write {
    let flags = u64::from(row.fenced) | if row.master_key.is_some() { 2 } else { 0 };
    let mut value = value(&[flags, number(row.max_entry), number(row.last_confirmed), row.recovery_ms]);
    value[0] = LEDGER_VERSION;
    value.extend_from_slice(row.master_key.unwrap_or(MasterKey::EMPTY).as_bytes());
    // To the end of the row; never empty where there is one.
    value.extend_from_slice(row.explicit_lac.as_deref().unwrap_or_default());
    Write::Put(key(b'L', &[ledger.get()]), value)
}

pub(crate) fn delete_ledger(ledger: LedgerId) -> Write {
    Write::Delete(key(b'L', &[ledger.get()]))
}

pub(crate) fn put_ledger_segment(ledger: LedgerId, row: &LedgerSegment) -> Write {
    let content = [number(row.entries.map(|(first, _)| first)), number(row.entries.map(|(_, last)| last))];
    Write::Put(key(b'R', &[ledger.get(), row.segment.get()]), value(&content))
}

pub(crate) fn delete_ledger_segment(ledger: LedgerId, segment: SegmentId) -> Write {
    Write::Delete(key(b'R', &[ledger.get(), segment.get()]))
}

/// A set of ledgers, kept in chunks of 65,536 neighbouring ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LedgerSet(BTreeMap<u64, RoaringBitmap>);

impl LedgerSet {
    pub(crate) fn contains(&self, ledger: LedgerId) -> bool {
        let (chunk, low) = split(ledger);
        self.0.get(&chunk).is_some_and(|bitmap| bitmap.contains(low))
    }

    pub(crate) fn insert(&mut self, ledger: LedgerId) {
        let (chunk, low) = split(ledger);
        self.0.entry(chunk).or_default().insert(low);
    }

    pub(crate) fn remove(&mut self, ledger: LedgerId) {
        let (chunk, low) = split(ledger);
        if let Some(bitmap) = self.0.get_mut(&chunk) {
            bitmap.remove(low);
            if bitmap.is_empty() {
                self.0.remove(&chunk);
            }
        }
    }

    /// The ledgers behind one of them, or all, in the order of ids.
    pub(crate) fn behind(&self, after: Option<LedgerId>) -> impl Iterator<Item = LedgerId> {
        let (chunk, low) = after.map_or((0, None), |after| (split(after).0, Some(split(after).1)));
        self.0.range(chunk..).flat_map(move |(at, bitmap)| {
            let from = if *at == chunk { low.map_or(0, |low| low + 1) } else { 0 };
            bitmap.range(from..).filter_map(move |low| LedgerId::new((at << 16) | u64::from(low)))
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.values().map(RoaringBitmap::len).sum()
    }

    /// Writes all chunks.
    pub(crate) fn put_all(&self, kind: TombstoneKind) -> Vec<Write> {
        let firsts = self.0.keys().filter_map(|chunk| LedgerId::new(chunk << 16));
        firsts.map(|first| self.put_chunk(kind, first)).collect()
    }

    /// Writes the chunk that holds `ledger`.
    pub(crate) fn put_chunk(&self, kind: TombstoneKind, ledger: LedgerId) -> Write {
        let (chunk, _) = split(ledger);
        let key = key(kind.letter(), &[chunk]);
        let Some(bitmap) = self.0.get(&chunk) else { return Write::Delete(key) };
        let mut value = vec![VERSION];
        bitmap.serialize_into(&mut value).expect("writing to memory cannot fail");
        Write::Put(key, value)
    }
}

/// The chunk of a set that holds a ledger.
pub(crate) fn chunk_of(ledger: LedgerId) -> u64 {
    split(ledger).0
}

fn split(ledger: LedgerId) -> (u64, u32) {
    (ledger.get() >> 16, (ledger.get() & 0xffff) as u32)
}

pub(crate) async fn identity(index: &dyn Index) -> Result<Option<String>, Error> {
    let Some(value) = index.get(&key(b'i', &[])).await? else { return Ok(None) };
    let text = content(&value).and_then(|content| String::from_utf8(content.to_vec()).ok());
    text.map(Some).ok_or_else(|| damaged("identity"))
}

pub(crate) async fn opened(index: &dyn Index) -> Result<SegmentId, Error> {
    let Some(value) = index.get(&key(b'o', &[])).await? else { return Ok(SegmentId::NONE) };
    let [segment] = content(&value).and_then(numbers).ok_or_else(|| damaged("journal"))?;
    Ok(SegmentId::new(segment))
}

pub(crate) async fn sealed(index: &dyn Index) -> Result<(SegmentId, u64), Error> {
    let Some(value) = index.get(&key(b's', &[])).await? else { return Ok((SegmentId::NONE, 0)) };
    let [segment, sequence] = content(&value).and_then(numbers).ok_or_else(|| damaged("journal"))?;
    Ok((SegmentId::new(segment), sequence))
}

pub(crate) async fn segments(index: &dyn Index) -> Result<Vec<SegmentRow>, Error> {
    let rows = scan_all(index, &key(b'S', &[])).await?;
    let decode = |(key, value): &(Vec<u8>, Vec<u8>)| {
        let [id] = numbers(&key[1..])?;
        let [file_bytes, entries, dropping] = numbers(content(value)?)?;
        Some(SegmentRow { id: SegmentId::new(id), file_bytes, entries, dropping: dropping != 0 })
    };
    rows.iter().map(decode).collect::<Option<_>>().ok_or_else(|| damaged("segment"))
}

pub(crate) async fn ledger_state(index: &dyn Index, ledger: LedgerId) -> Result<Option<LedgerStateRow>, Error> {
    let Some(value) = index.get(&key(b'L', &[ledger.get()])).await? else { return Ok(None) };
    decode_ledger(&value).map(Some).ok_or_else(|| damaged("ledger"))
}

fn decode_ledger(value: &[u8]) -> Option<LedgerStateRow> {
    let (version, content) = value.split_first()?;
    let (head, rest) = content.split_at_checked(32)?;
    let (master_key, explicit_lac) = rest.split_at_checked(MASTER_KEY_BYTES)?;
    match *version {
        VERSION if explicit_lac.is_empty() => {}
        LEDGER_VERSION => {}
        _ => return None,
    }
    let [flags, max_entry, last_confirmed, recovery_ms] = numbers(head)?;
    let master_key = MasterKey::from_slice(master_key)?;
    Some(LedgerStateRow {
        master_key: (flags & 2 != 0).then_some(master_key),
        fenced: flags & 1 != 0,
        max_entry: entry(max_entry)?,
        last_confirmed: entry(last_confirmed)?,
        recovery_ms,
        explicit_lac: (!explicit_lac.is_empty()).then(|| Bytes::copy_from_slice(explicit_lac)),
    })
}

/// The segments of a ledger, oldest first.
pub(crate) async fn ledger_segments(index: &dyn Index, ledger: LedgerId) -> Result<Vec<LedgerSegment>, Error> {
    let rows = scan_all(index, &key(b'R', &[ledger.get()])).await?;
    let decode = |(key, value): &(Vec<u8>, Vec<u8>)| {
        let [_, segment] = numbers(&key[1..])?;
        let [first, last] = numbers(content(value)?)?;
        Some(LedgerSegment { segment: SegmentId::new(segment), entries: entry(first)?.zip(entry(last)?) })
    };
    rows.iter().map(decode).collect::<Option<_>>().ok_or_else(|| damaged("ledger segment"))
}

/// Counts the ledgers the index knows.
pub(crate) async fn count_ledgers(index: &dyn Index) -> Result<u64, Error> {
    let (prefix, mut after, mut count) = (key(b'L', &[]), None, 0);
    loop {
        let page = index.scan(&prefix, after.as_deref(), PAGE).await?;
        count += page.len() as u64;
        match page.into_iter().next_back() {
            Some((last, _)) => after = Some(last),
            None => return Ok(count),
        }
    }
}

pub(crate) async fn tombstones(index: &dyn Index, kind: TombstoneKind) -> Result<LedgerSet, Error> {
    let mut set = LedgerSet::default();
    for (key, value) in scan_all(index, &key(kind.letter(), &[])).await? {
        let chunk = numbers(&key[1..]).map(|[chunk]: [u64; 1]| chunk);
        let bitmap = content(&value).and_then(|content| RoaringBitmap::deserialize_from(content).ok());
        let (Some(chunk), Some(bitmap)) = (chunk, bitmap) else { return Err(damaged("tombstone")) };
        set.0.insert(chunk, bitmap);
    }
    Ok(set)
}

async fn scan_all(index: &dyn Index, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
    let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    loop {
        let after = rows.last().map(|(key, _)| key.clone());
        let page = index.scan(prefix, after.as_deref(), PAGE).await?;
        let done = page.len() < PAGE;
        rows.extend(page);
        if done {
            return Ok(rows);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::MemoryIndex;
    use super::*;

    fn ledger(id: u64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    #[tokio::test]
    async fn rows_come_back_as_they_were_put() {
        let index = MemoryIndex::new();
        assert_eq!(opened(&index).await.unwrap(), SegmentId::NONE);
        assert_eq!(sealed(&index).await.unwrap(), (SegmentId::NONE, 0));
        assert_eq!(identity(&index).await.unwrap(), None);
        let entry = EntryId::new(7);
        let state = LedgerStateRow {
            master_key: Some(MasterKey::derive(b"x")),
            fenced: true,
            max_entry: entry,
            last_confirmed: None,
            recovery_ms: 5,
            explicit_lac: Some(Bytes::from_static(b"an explicit last-add-confirmed")),
        };
        let row = |segment, entries| LedgerSegment { segment: SegmentId::new(segment), entries };
        let segment = SegmentRow { id: SegmentId::new(3), file_bytes: 10, entries: 2, dropping: true };
        let spans = [row(2, None), row(300, entry.zip(entry))];
        index
            .write(vec![
                put_identity("me"),
                put_opened(SegmentId::new(4)),
                put_sealed(SegmentId::new(3), 99),
                put_segment(&segment),
                put_ledger(ledger(1), &state),
                put_ledger_segment(ledger(1), &spans[1]),
                put_ledger_segment(ledger(1), &spans[0]),
                put_ledger_segment(ledger(2), &spans[0]),
            ])
            .await
            .unwrap();
        assert_eq!(identity(&index).await.unwrap().as_deref(), Some("me"));
        assert_eq!(opened(&index).await.unwrap(), SegmentId::new(4));
        assert_eq!(sealed(&index).await.unwrap(), (SegmentId::new(3), 99));
        assert_eq!(segments(&index).await.unwrap(), [segment]);
        assert_eq!(ledger_segments(&index, ledger(1)).await.unwrap(), spans);
        let found = ledger_state(&index, ledger(1)).await.unwrap().unwrap();
        assert_eq!(found, state);
        assert_eq!(found.master_key.unwrap().as_bytes(), MasterKey::derive(b"x").as_bytes());
        assert_eq!(count_ledgers(&index).await.unwrap(), 1);
    }

    /// Rows of both versions as they were written; what is written now must be read for ever.
    #[test]
    fn ledger_rows_of_every_version_are_read() {
        let head = "0000000000000003 0000000000000007 ffffffffffffffff 0000000000000005";
        let key = "850bf1071c5e3d8c24235676f8816ae0cbe2f14f";
        let lac = "0000000000000001 0000000000000029 ee4119b0";
        let unhex = |text: String| hex::decode(text.replace(' ', "")).unwrap();
        let mut row = LedgerStateRow {
            master_key: Some(MasterKey::derive(b"")),
            fenced: true,
            max_entry: EntryId::new(7),
            last_confirmed: None,
            recovery_ms: 5,
            explicit_lac: None,
        };
        assert_eq!(decode_ledger(&unhex(format!("01 {head} {key}"))), Some(row.clone()), "version 1");
        let bare = unhex(format!("02 {head} {key}"));
        assert_eq!(decode_ledger(&bare), Some(row.clone()));
        assert_eq!(put_ledger(ledger(1), &row), Write::Put(b"L\0\0\0\0\0\0\0\x01".to_vec(), bare.clone()));
        row.explicit_lac = Some(unhex(lac.to_owned()).into());
        let whole = unhex(format!("02 {head} {key} {lac}"));
        assert_eq!(decode_ledger(&whole), Some(row.clone()));
        assert_eq!(put_ledger(ledger(1), &row), Write::Put(b"L\0\0\0\0\0\0\0\x01".to_vec(), whole));
        assert_eq!(decode_ledger(&bare[..bare.len() - 1]), None);
        assert_eq!(decode_ledger(&unhex(format!("01 {head} {key} 00"))), None, "version 1 ends with the key");
        assert_eq!(decode_ledger(&unhex(format!("03 {head} {key}"))), None, "a later version");
    }

    #[tokio::test]
    async fn tombstones_come_back_from_their_chunks() {
        let index = MemoryIndex::new();
        let ids = [0, 5, 65_535, 65_536, 1 << 40, i64::MAX as u64];
        let mut set = LedgerSet::default();
        for id in ids {
            set.insert(ledger(id));
            index.write(vec![set.put_chunk(TombstoneKind::Gone, ledger(id))]).await.unwrap();
        }
        assert_eq!(set.len(), 6);
        assert_eq!(tombstones(&index, TombstoneKind::Gone).await.unwrap(), set);
        assert_eq!(tombstones(&index, TombstoneKind::Deleted).await.unwrap().len(), 0);
        set.remove(ledger(1 << 40));
        index.write(vec![set.put_chunk(TombstoneKind::Gone, ledger(1 << 40))]).await.unwrap();
        let found = tombstones(&index, TombstoneKind::Gone).await.unwrap();
        assert!(!found.contains(ledger(1 << 40)) && found.contains(ledger(65_535)));
    }
}
