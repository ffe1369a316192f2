use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use ledger::{EntryId, LedgerId};
use parquet::basic::Compression;
use parquet::data_type::{BoolType, Int32Type, Int64Type};

use super::decode::{Damage, Packed, Run, Strings, Window};
use super::tail::{Group, Tail};
use crate::error::{Error, Result};
use crate::footer::Extras;
use crate::limits::Limits;
use crate::row::Row;
use crate::schema::Column;

/// A decoded row group: the rows of a range of entries, in memory.
///
/// Payloads are not copied out: one that is kept alive keeps its decoded page (some 128 KiB) alive or, when the object stores
/// payloads uncompressed, the whole fetched row group. Copy what must outlive the group.
pub struct RowGroup {
    object: Arc<str>,
    index: usize,
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
    rows: usize,
    /// Where ids have gaps.
    ids: Option<Vec<i64>>,
    last_confirmed: Vec<i64>,
    ledger_length: Vec<i64>,
    digests: Packed,
    crcs: Vec<i32>,
    payloads: Strings,
    raws: Option<Strings>,
    redacted: Option<Vec<Option<bool>>>,
    ts: Option<Vec<Option<i64>>>,
    memory_bytes: u64,
}

impl RowGroup {
    /// Decodes the bytes of a row group after their checksum was found right.
    pub(super) fn decode(object: &Arc<str>, tail: &Tail, index: usize, bytes: Bytes, limits: &Limits) -> Result<Self> {
        let group = &tail.groups[index];
        let damaged = |what: Damage| Error::damaged(object, format_args!("row group {index}: {what}"));
        let found = crc32c::crc32c(&bytes);
        if found != group.crc32c {
            return Err(damaged(format!("it has crc32c {found:08x}, the footer says {:08x}", group.crc32c)));
        }
        // The library may panic on bytes no writer makes. The checksum keeps damage away from it; this is for what is left.
        match catch_unwind(AssertUnwindSafe(|| Self::decode_checked(object, tail, index, group, bytes, limits))) {
            Ok(decoded) => decoded.map_err(damaged),
            Err(_) => Err(damaged("the Parquet library gave up on it".to_owned())),
        }
    }

    fn decode_checked(
        object: &Arc<str>,
        tail: &Tail,
        index: usize,
        group: &Group,
        bytes: Bytes,
        limits: &Limits,
    ) -> std::result::Result<Self, Damage> {
        let fetched_bytes = bytes.len() as u64;
        let window = Arc::new(Window { start: group.range.start, bytes });
        let mut left = limits.accepted_raw_bytes();
        let mut run = |column: Column| {
            let run = Run::whole(tail, column, group.chunk(column), group.rows, &window);
            run.check_headers(&mut left).map(|()| run)
        };
        let ledgers = run(Column::LedgerId)?.required::<Int64Type>()?;
        if ledgers.iter().any(|found| *found != tail.identity.ledger.as_i64()) {
            return Err(format!("it has rows of another ledger than {}", tail.identity.ledger));
        }
        drop(ledgers);
        let ids = run(Column::EntryId)?.required::<Int64Type>()?;
        check_ids(&ids, group)?;
        let last_confirmed = run(Column::LastConfirmed)?.required::<Int64Type>()?;
        let ledger_length = run(Column::LedgerLength)?.required::<Int64Type>()?;
        let digests = run(Column::Digest)?.packed()?;
        let crcs = run(Column::Crc32c)?.required::<Int32Type>()?;
        let payloads = run(Column::Payload)?.strings()?;
        let raws = group.extras.has(Extras::RAW).then(|| run(Column::Raw)?.strings()).transpose()?;
        let redacted =
            group.extras.has(Extras::REDACTED).then(|| run(Column::Redacted)?.optional::<BoolType>()).transpose()?;
        let ts = group.extras.has(Extras::TS).then(|| run(Column::Ts)?.optional::<Int64Type>()).transpose()?;
        let mut decoded = Self {
            object: Arc::clone(object),
            index,
            ledger: tail.identity.ledger,
            first: group.first,
            last: group.last,
            rows: group.rows as usize,
            ids: (!group.is_contiguous()).then_some(ids),
            last_confirmed,
            ledger_length,
            digests,
            crcs,
            payloads,
            raws,
            redacted,
            ts,
            memory_bytes: 0,
        };
        decoded.memory_bytes = decoded.count(group, fetched_bytes);
        Ok(decoded)
    }

    /// Counts what this row group keeps in memory.
    fn count(&self, group: &Group, fetched_bytes: u64) -> u64 {
        let stored = |column: Column| group.chunk(column).codec == Compression::UNCOMPRESSED;
        let strings = |strings: &Strings, column| strings.memory_bytes(!stored(column));
        let longs =
            self.last_confirmed.capacity() + self.ledger_length.capacity() + self.ids.as_ref().map_or(0, Vec::capacity);
        let options = self.redacted.as_ref().map_or(0, |v| v.capacity() * size_of::<Option<bool>>())
            + self.ts.as_ref().map_or(0, |v| v.capacity() * size_of::<Option<i64>>());
        let tables = size_of::<Self>() + longs * size_of::<i64>() + self.crcs.capacity() * size_of::<i32>() + options;
        // Stored payloads are slices of the fetched bytes, which then stay as a whole.
        let kept =
            if stored(Column::Payload) || self.raws.is_some() && stored(Column::Raw) { fetched_bytes } else { 0 };
        tables as u64
            + kept
            + self.digests.memory_bytes()
            + strings(&self.payloads, Column::Payload)
            + self.raws.as_ref().map_or(0, |raws| strings(raws, Column::Raw))
    }

    /// The place of this row group in its object.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The first entry.
    pub fn first(&self) -> EntryId {
        self.first
    }

    /// The last entry.
    pub fn last(&self) -> EntryId {
        self.last
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Never: a row group has at least one row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes this row group keeps in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The row of an entry; `None` when the id is outside of `first..=last`.
    ///
    /// # Errors
    /// `Damaged` when the row is missing or does not rebuild the body that was stored.
    pub fn entry(&self, entry: EntryId) -> Result<Option<Row>> {
        if entry < self.first || entry > self.last {
            return Ok(None);
        }
        match self.place_of(entry) {
            Ok(place) => self.row(place).map(Some),
            Err(_) => Err(self.damaged(format_args!("entry {entry} is missing"))),
        }
    }

    /// The rows of `entries`, as far as this row group has them, in order. A missing row is an error in its place, after which
    /// the iterator goes on with the next row that is there.
    pub fn rows(&self, entries: Range<EntryId>) -> impl Iterator<Item = Result<Row>> + '_ {
        let start = entries.start.max(self.first);
        let end =
            if entries.end > self.last { self.rows } else { self.place_of(entries.end).unwrap_or_else(|place| place) };
        let from = self.place_of(start).unwrap_or_else(|place| place);
        let mut expected = start;
        (from..end.max(from)).flat_map(move |place| {
            let row = self.row(place);
            let found = self.id(place);
            let gap = found.filter(|found| *found != expected);
            let missing = gap.map(|_| Err(self.damaged(format_args!("entry {expected} is missing"))));
            expected = found.map_or(expected, EntryId::next);
            missing.into_iter().chain([row])
        })
    }

    /// The row at a place, `0..len`.
    ///
    /// # Errors
    /// `Damaged` when it does not rebuild the body that was stored; `Invalid` when there is no such place.
    pub fn row(&self, place: usize) -> Result<Row> {
        let row = self.build(place).ok_or_else(|| self.damaged(format_args!("row {place} is malformed")))?;
        row.check().map_err(|what| self.damaged(what))?;
        Ok(row)
    }

    fn build(&self, place: usize) -> Option<Row> {
        Some(Row {
            ledger: self.ledger,
            entry: self.id(place)?,
            last_confirmed: EntryId::option_from_i64(*self.last_confirmed.get(place)?)?,
            ledger_length: u64::try_from(*self.ledger_length.get(place)?).ok()?,
            digest: self.digests.get(place)?,
            crc32c: u32::from_ne_bytes(self.crcs.get(place)?.to_ne_bytes()),
            payload: self.payloads.get(place)?,
            raw: self.raws.as_ref().map_or(Some(None), |raws| raws.get(place))?,
            redacted: self.redacted.as_ref().is_some_and(|redacted| redacted.get(place) == Some(&Some(true))),
            timestamp_micros: self.ts.as_ref().and_then(|ts| ts.get(place).copied().flatten()),
        })
    }

    fn id(&self, place: usize) -> Option<EntryId> {
        match &self.ids {
            Some(ids) => EntryId::new(*ids.get(place)?),
            None => self.first.checked_add(place as u64).filter(|_| place < self.rows),
        }
    }

    /// As `binary_search`.
    fn place_of(&self, entry: EntryId) -> std::result::Result<usize, usize> {
        match &self.ids {
            Some(ids) => ids.binary_search(&entry.as_i64()),
            None => {
                let place = usize::try_from(entry.since(self.first)).unwrap_or(usize::MAX).min(self.rows);
                if place < self.rows && entry >= self.first { Ok(place) } else { Err(place) }
            }
        }
    }

    pub(super) fn damaged(&self, what: impl std::fmt::Display) -> Error {
        Error::damaged(&self.object, format_args!("row group {}: {what}", self.index))
    }
}

impl std::fmt::Debug for RowGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowGroup({} of {}, entries {} to {})", self.index, self.object, self.first, self.last)
    }
}

/// Ids ascend from the first to the last that the footer names.
fn check_ids(ids: &[i64], group: &Group) -> std::result::Result<(), Damage> {
    let ascending = ids.windows(2).all(|pair| pair[0] < pair[1]);
    let bounds = (ids.first().copied(), ids.last().copied());
    if !ascending || bounds != (Some(group.first.as_i64()), Some(group.last.as_i64())) {
        return Err(format!("its entry ids do not ascend from {} to {}", group.first, group.last));
    }
    Ok(())
}
