//! Reads one row without its row group: the page of each narrow column that holds it, and its payload page.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ledger::EntryId;
use parquet::basic::Compression;
use parquet::data_type::{Int32Type, Int64Type};

use super::decode::{Damage, Run, Window, page_of};
use super::tail::Group;
use super::{GroupInfo, Inner, ObjectReader, maybe_blocking};
use crate::error::{Error, ErrorKind, Result};
use crate::page_header;
use crate::row::Row;
use crate::schema::Column;

/// The columns a body is rebuilt of, beside the payload. They lie side by side in the row group.
const NARROW: [Column; 5] =
    [Column::EntryId, Column::LastConfirmed, Column::LedgerLength, Column::Digest, Column::Crc32c];

/// Two ranges with no more than this between them are read as one.
const MERGE_GAP_BYTES: u64 = 16 << 10;

/// What a row of a page takes while it is decoded, in the columns beside the payload.
const NARROW_ROW_BYTES: u64 = 96;
/// What a compressed payload page is expected to decode to: pages are closed at half of it.
const PAYLOAD_PAGE_BYTES: u64 = 256 << 10;

/// What a read of one entry within some memory gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryRead {
    /// The row.
    Row(Row),
    /// Its pages decode to more than was expected: so much memory is needed in all, in bytes.
    Needs(u64),
}

impl ObjectReader {
    /// Reads one entry: at most two GETs at a time, of the pages it needs; `None` when the id is outside of the object's entries.
    ///
    /// A row group that has raw bodies, erased rows or timestamps, or gaps between its ids, is read as a whole.
    ///
    /// # Errors
    /// `NotFound`, `Damaged`, or what keeps the store from answering.
    pub async fn read_entry(&self, entry: EntryId) -> Result<Option<Row>> {
        let Some(GroupInfo { index, .. }) = self.group_of(entry).cloned() else { return Ok(None) };
        if !self.is_read_by_pages(index) {
            return self.read_group(index).await?.entry(entry);
        }
        match self.read_entry_within(entry, u64::MAX).await? {
            EntryRead::Row(row) => Ok(Some(row)),
            EntryRead::Needs(bytes) => {
                let message = format!("read object {}: entry {entry} decodes to {bytes} bytes", self.key());
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// Bytes that [`ObjectReader::read_entry_within`] is expected to have in memory for an entry; `None` where only a read of its
    /// whole row group gives it, or nothing does.
    pub fn entry_bytes(&self, entry: EntryId) -> Option<u64> {
        let info = self.group_of(entry)?;
        let group = &self.inner.tail.groups[info.index];
        if !self.is_read_by_pages(info.index) || entry > group.last {
            return None;
        }
        let row = row_of(entry, group);
        let payload = ranges(group, row).1;
        let decoded = match group.chunk(Column::Payload).codec {
            Compression::UNCOMPRESSED => payload.end - payload.start,
            _ => PAYLOAD_PAGE_BYTES.max(2 * (payload.end - payload.start)).min(group.raw_bytes),
        };
        Some(fetched_bytes(group, row) + narrow_bytes(group, row) + decoded)
    }

    /// As [`ObjectReader::read_entry`], of an entry that has [`ObjectReader::entry_bytes`], with at most `bytes` in memory at one time:
    /// what its pages decode to is known once they are there.
    ///
    /// # Errors
    /// `NotFound`, `Damaged`, or what keeps the store from answering; `Invalid` for an entry that is not read by its pages.
    pub async fn read_entry_within(&self, entry: EntryId, bytes: u64) -> Result<EntryRead> {
        let info = self.group_of(entry).filter(|info| self.is_read_by_pages(info.index)).cloned();
        let Some(GroupInfo { index, decoded_bytes, .. }) = info else {
            let message = format!("read object {}: entry {entry} is not read by its pages", self.key());
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        let group = &self.inner.tail.groups[index];
        if entry > group.last {
            return Err(Error::damaged(self.key(), format_args!("entry {entry} is missing")));
        }
        let row = row_of(entry, group);
        let fetched = fetched_bytes(group, row);
        if fetched > bytes {
            return Ok(EntryRead::Needs(self.entry_bytes(entry).unwrap_or(fetched)));
        }
        let (narrow, payload) = ranges(group, row);
        let windows = if is_one_range(&narrow, &payload) {
            let window = self.window(narrow.start..payload.end).await?;
            (Arc::clone(&window), window)
        } else {
            futures::future::try_join(self.window(narrow), self.window(payload.clone())).await?
        };
        // A page without a readable header is damage, which decoding tells.
        let page = windows.1.slice(payload.clone()).and_then(|page| page_header::read(&page));
        let raw = page.map_or(0, |page| page.raw_bytes as u64).min(self.inner.limits.accepted_raw_bytes());
        let needed = fetched + narrow_bytes(group, row) + raw;
        if needed > bytes {
            return Ok(EntryRead::Needs(needed));
        }
        let inner = Arc::clone(&self.inner);
        let payload_bytes = (payload.end - payload.start).min(decoded_bytes);
        let decode = move || decode(&inner, index, row, entry, &windows.0, &windows.1);
        maybe_blocking("decode entry", payload_bytes, decode).await.map(EntryRead::Row)
    }

    fn is_read_by_pages(&self, index: usize) -> bool {
        let group = &self.inner.tail.groups[index];
        group.extras.is_empty() && group.is_contiguous()
    }

    async fn window(&self, range: Range<u64>) -> Result<Arc<Window>> {
        let start = range.start;
        let bytes = self.get(range).await?;
        Ok(Arc::new(Window { start, bytes }))
    }
}

/// The place of an entry in a row group without gaps.
fn row_of(entry: EntryId, group: &Group) -> u32 {
    u32::try_from(entry.since(group.first)).unwrap_or(u32::MAX)
}

/// Whether both ranges are read by one GET.
fn is_one_range(narrow: &Range<u64>, payload: &Range<u64>) -> bool {
    narrow.end + MERGE_GAP_BYTES >= payload.start && payload.start >= narrow.end
}

/// Bytes of the GETs for a row.
fn fetched_bytes(group: &Group, row: u32) -> u64 {
    let (narrow, payload) = ranges(group, row);
    if is_one_range(&narrow, &payload) {
        payload.end - narrow.start
    } else {
        (narrow.end - narrow.start) + (payload.end - payload.start)
    }
}

/// An upper bound of what the pages of a row take when they are decoded, without the payload.
fn narrow_bytes(group: &Group, row: u32) -> u64 {
    let rows = NARROW.iter().map(|column| {
        let chunk = group.chunk(*column);
        let place = page_of(chunk, row);
        let end = chunk.pages.get(place + 1).map_or(group.rows, |next| next.first_row);
        end.saturating_sub(chunk.pages[place].first_row)
    });
    u64::from(rows.max().unwrap_or_default()) * NARROW_ROW_BYTES
}

/// What must be read for a row: from the first to the last page of the narrow columns, and the payload page.
fn ranges(group: &Group, row: u32) -> (Range<u64>, Range<u64>) {
    let page = |column: Column| {
        let chunk = group.chunk(column);
        chunk.pages[page_of(chunk, row)].range()
    };
    let narrow = NARROW.iter().map(|column| page(*column)).reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
    let payload = page(Column::Payload);
    (narrow.unwrap_or(payload.clone()), payload)
}

fn decode(
    inner: &Inner,
    index: usize,
    row: u32,
    entry: EntryId,
    narrow: &Arc<Window>,
    payload: &Arc<Window>,
) -> Result<Row> {
    let damaged = |what: Damage| Error::damaged(&inner.key, format_args!("row group {index}, entry {entry}: {what}"));
    // As for row groups: checksums keep damage away from the library, this is for what is left.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_checked(inner, index, row, entry, narrow, payload)));
    let row = match decoded {
        Ok(decoded) => decoded.map_err(damaged)?,
        Err(_) => return Err(damaged("the Parquet library gave up on it".to_owned())),
    };
    row.check().map_err(damaged)?;
    Ok(row)
}

fn decode_checked(
    inner: &Inner,
    index: usize,
    row: u32,
    entry: EntryId,
    narrow: &Arc<Window>,
    payload: &Arc<Window>,
) -> std::result::Result<Row, Damage> {
    let group = &inner.tail.groups[index];
    let mut left = inner.limits.accepted_raw_bytes();
    let mut run = |column: Column, window: &Arc<Window>| {
        let run = Run::of_row(&inner.tail, column, group.chunk(column), group.rows, row, window);
        run.check_pages()?;
        run.check_headers(&mut left)?;
        let place = (row - run.first_row()) as usize;
        Ok::<_, Damage>((run, place))
    };
    let mut long = |column: Column| {
        let (run, place) = run(column, narrow)?;
        run.required::<Int64Type>()?.get(place).copied().ok_or_else(|| "its row is missing".to_owned())
    };
    let missing = || "its row is malformed".to_owned();
    let found = long(Column::EntryId)?;
    if found != entry.as_i64() {
        return Err(format!("its row has entry id {found}"));
    }
    let last_confirmed = EntryId::option_from_i64(long(Column::LastConfirmed)?).ok_or_else(missing)?;
    let ledger_length = u64::try_from(long(Column::LedgerLength)?).map_err(|_| missing())?;
    let (digests, place) = run(Column::Digest, narrow)?;
    let digest = digests.packed()?.get(place).ok_or_else(missing)?;
    let (crcs, place) = run(Column::Crc32c, narrow)?;
    let crc32c = *crcs.required::<Int32Type>()?.get(place).ok_or_else(missing)?;
    let (payloads, place) = run(Column::Payload, payload)?;
    let payload = payloads.strings()?.get(place).ok_or_else(missing)?;
    Ok(Row {
        ledger: inner.tail.identity.ledger,
        entry,
        last_confirmed,
        ledger_length,
        digest,
        crc32c: u32::from_ne_bytes(crc32c.to_ne_bytes()),
        payload,
        raw: None,
        redacted: false,
        timestamp_micros: None,
    })
}
