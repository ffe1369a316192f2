//! Reads one row without its row group: the page of each narrow column that holds it, and its payload page.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ledger::EntryId;
use parquet::data_type::{Int32Type, Int64Type};

use super::decode::{Damage, Run, Window, page_of};
use super::tail::Group;
use super::{GroupInfo, Inner, ObjectReader, maybe_blocking};
use crate::error::{Error, Result};
use crate::row::Row;
use crate::schema::Column;

/// The columns a body is rebuilt of, beside the payload. They lie side by side in the row group.
const NARROW: [Column; 5] =
    [Column::EntryId, Column::LastConfirmed, Column::LedgerLength, Column::Digest, Column::Crc32c];

/// Two ranges with no more than this between them are read as one.
const MERGE_GAP_BYTES: u64 = 16 << 10;

impl ObjectReader {
    /// Reads one entry: at most two GETs at a time, of the pages it needs; `None` when the id is outside of the object's entries.
    ///
    /// A row group that has raw bodies, erased rows or timestamps, or gaps between its ids, is read as a whole.
    ///
    /// # Errors
    /// `NotFound`, `Damaged`, or what keeps the store from answering.
    pub async fn read_entry(&self, entry: EntryId) -> Result<Option<Row>> {
        let Some(GroupInfo { index, first, decoded_bytes, .. }) = self.group_of(entry).cloned() else {
            return Ok(None);
        };
        let group = &self.inner.tail.groups[index];
        if entry > group.last {
            return Err(Error::damaged(self.key(), format_args!("entry {entry} is missing")));
        }
        if !group.extras.is_empty() || !group.is_contiguous() {
            return self.read_group(index).await?.entry(entry);
        }
        let row = u32::try_from(entry.since(first)).unwrap_or(u32::MAX);
        let (narrow, payload) = ranges(group, row);
        let windows = if narrow.end + MERGE_GAP_BYTES >= payload.start && payload.start >= narrow.end {
            let window = self.window(narrow.start..payload.end).await?;
            (Arc::clone(&window), window)
        } else {
            futures::future::try_join(self.window(narrow), self.window(payload.clone())).await?
        };
        let inner = Arc::clone(&self.inner);
        let payload_bytes = (payload.end - payload.start).min(decoded_bytes);
        let decode = move || decode(&inner, index, row, entry, &windows.0, &windows.1);
        maybe_blocking("decode entry", payload_bytes, decode).await.map(Some)
    }

    async fn window(&self, range: Range<u64>) -> Result<Arc<Window>> {
        let start = range.start;
        let bytes = self.get(range).await?;
        Ok(Arc::new(Window { start, bytes }))
    }
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
