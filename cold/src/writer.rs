//! The writer of cold objects.
//!
//! ## Overview
//! Rows are pushed one by one in entry order; encoded bytes come back in chunks to upload, one for each row group. The first rows
//! wait until a sample has decided whether payloads are compressed; from then on a batch of rows is encoded at a time, every column
//! into its own buffer, and spliced into the file when the row group is full.
//!
//! ## Layout
//! `docs/formats/cold-object.md`. The same rows and the same [`ObjectMeta`] always give the same bytes.
//!
//! ## Memory
//! One encoded row group and one batch (at most 256 KiB, or one row), see [`ObjectWriter::memory_bytes`]; twice the row group for
//! the moment it is put together.
//!
//! ## Crash
//! The writer keeps nothing on disk; a lost one is started again under another uuid.

use bytes::Bytes;
use ledger::EntryId;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor};
use std::sync::Arc;

use crate::digest::LedgerDigest;
use crate::encoder::{GroupEncoder, shrinks};
use crate::error::{Error, ErrorKind, Result};
use crate::footer::{self, Extras, GroupChecksums, Identity};
use crate::limits::Limits;
use crate::object::{ObjectMeta, ObjectSummary};
use crate::page_header;
use crate::row::Row;
use crate::schema::{self, Column, PayloadCodec};

/// A batch is encoded when it has this many rows (a whole number of them makes a page of the narrow columns) ...
const BATCH_ROWS: usize = 1_024;
/// ... or this many bytes.
const BATCH_BYTES: u64 = 256 << 10;
/// Page headers, delta block headers and the like of a row group, at most.
const GROUP_SLACK_BYTES: u64 = 64 << 10;

/// Writes one ledger as one object.
///
/// Encoding is done in the caller's thread: a row group takes some 10 ms of it. Dropping a writer loses nothing but its work.
pub struct ObjectWriter {
    meta: ObjectMeta,
    limits: Limits,
    schema: SchemaDescPtr,
    /// `None` until the sample has decided how payloads are stored.
    file: Option<File>,
    batch: Vec<Row>,
    batch_bytes: u64,
    batch_rows_max: usize,
    group: Group,
    checksums: Vec<GroupChecksums>,
    whole: Whole,
}

struct File {
    writer: SerializedFileWriter<Vec<u8>>,
    encoder: GroupEncoder,
}

/// The row group under construction, the batch included.
#[derive(Default)]
struct Group {
    rows: u64,
    raw_bytes: u64,
    extras: Extras,
    digest_bytes: u64,
    last: Option<(i64, i64, i64)>,
    /// The most bytes a value of the delta columns takes.
    delta_bytes: [u64; 3],
}

/// The object so far.
#[derive(Default)]
struct Whole {
    bytes: u64,
    crc32c: u32,
    rows: u64,
    payload_bytes: u64,
    last_entry: Option<EntryId>,
    digest: LedgerDigest,
}

impl ObjectWriter {
    /// A writer of an empty object.
    pub fn new(meta: ObjectMeta, limits: Limits) -> Self {
        Self {
            meta,
            limits,
            schema: Arc::new(SchemaDescriptor::new(schema::schema())),
            file: None,
            batch: Vec::new(),
            batch_bytes: 0,
            batch_rows_max: BATCH_ROWS,
            group: Group::default(),
            checksums: Vec::new(),
            whole: Whole::default(),
        }
    }

    /// Adds a row, whose entry id must be above that of the row before. Gives the bytes that are ready, if any: they follow those
    /// given before.
    ///
    /// # Errors
    /// `Invalid` when the row is another ledger's, out of order, too large, or would not read back as itself. The writer must not
    /// be used after an error.
    pub fn push(&mut self, row: Row) -> Result<Option<Bytes>> {
        self.admit(&row)?;
        let mut ready = None;
        if self.group.rows > 0 && !self.fits(&row) {
            ready = self.end_group()?;
        }
        self.whole.rows += 1;
        self.whole.payload_bytes += row.payload_bytes();
        self.whole.last_entry = Some(row.entry);
        self.whole.digest.add(row.entry, row.crc32c);
        self.group.add(&row);
        self.batch_bytes += row.raw_bytes();
        self.batch.push(row);
        if self.batch.len() >= self.batch_rows_max || self.batch_bytes >= BATCH_BYTES {
            self.encode_batch()?;
        }
        Ok(ready)
    }

    /// Ends the object: the bytes that are left, and what is known of the whole.
    ///
    /// # Errors
    /// `Invalid` when the ids are not contiguous from 0, or there is no row: an empty ledger needs no object.
    pub fn finish(mut self) -> Result<(Bytes, ObjectSummary)> {
        let entries = self.whole.rows;
        match self.whole.last_entry {
            None => return Err(Error::invalid("it has no rows; an empty ledger needs no object")),
            Some(last) if last.get() != entries - 1 => {
                return Err(Error::invalid(format_args!(
                    "entry ids are not contiguous: {entries} rows end with entry {last}"
                )));
            }
            Some(_) => {}
        }
        let mut out = self.end_group()?.map(Vec::from).unwrap_or_default();
        let footer_offset = self.whole.bytes;
        let identity = Identity {
            instance_id: self.meta.instance_id.clone(),
            object: self.meta.object,
            ledger: self.meta.ledger,
            entries,
            payload_bytes: self.whole.payload_bytes,
            metadata: self.meta.metadata.clone(),
        };
        let Some(mut file) = self.file.take() else { return Err(Error::invalid("it has no rows")) };
        for pair in footer::to_pairs(&identity, &self.checksums) {
            file.writer.append_key_value_metadata(pair);
        }
        file.writer.finish().map_err(encode_error)?;
        let tail = std::mem::take(file.writer.inner_mut());
        self.whole.count(&tail);
        let footer_bytes = u32::try_from(tail.len()).ok().filter(|bytes| u64::from(*bytes) <= self.limits.tail_bytes);
        let Some(footer_bytes) = footer_bytes else {
            return Err(Error::invalid(format_args!("its footer has {} bytes, more than readers accept", tail.len())));
        };
        let summary = ObjectSummary {
            object: self.meta.object,
            object_bytes: self.whole.bytes,
            object_crc32c: self.whole.crc32c,
            footer_offset,
            footer_bytes,
            footer_crc32c: crc32c::crc32c(&tail),
            entries,
            payload_bytes: self.whole.payload_bytes,
            ledger_digest: Some(self.whole.digest.finish()),
        };
        out.extend_from_slice(&tail);
        Ok((out.into(), summary))
    }

    /// Bytes this writer holds: pages of the open row group and the rows of the open batch.
    pub fn memory_bytes(&self) -> u64 {
        let encoded =
            self.file.as_ref().map_or(0, |file| file.encoder.held_bytes() + file.writer.inner().capacity() as u64);
        // Every column has one open page.
        encoded + self.batch_bytes + 2 * self.limits.page_bytes as u64
    }

    /// Bytes given out so far.
    pub fn bytes_written(&self) -> u64 {
        self.whole.bytes
    }

    fn admit(&self, row: &Row) -> Result<()> {
        if row.ledger != self.meta.ledger {
            return Err(Error::invalid(format_args!("a row of ledger {} in ledger {}", row.ledger, self.meta.ledger)));
        }
        if let Some(last) = self.whole.last_entry
            && row.entry <= last
        {
            return Err(Error::invalid(format_args!("entry {} follows entry {last}", row.entry)));
        }
        if row.raw_bytes() > self.limits.group_raw_bytes {
            return Err(Error::invalid(format_args!("entry {} has {} bytes", row.entry, row.raw_bytes())));
        }
        row.validate()
    }

    /// Whether the open row group stays within the limits with one more row, however badly it compresses.
    fn fits(&self, row: &Row) -> bool {
        let rows = self.group.rows + 1;
        let strings = |column: Column| self.file.as_ref().map_or(0, |file| file.encoder.finished_bytes(column));
        // What is not a finished page yet counts as it is: at most one page and one batch.
        let open = 2 * (self.limits.page_bytes as u64).min(self.group.raw_bytes) + self.batch_bytes;
        // Deltas, checksum, digest and its length, levels of the optional columns.
        let ts = if self.group.extras.has(Extras::TS) { 8 } else { 0 };
        let narrow = rows * (self.group.delta_bytes(row) + 4 + 2 + 1 + ts) + self.group.digest_bytes;
        let encoded =
            strings(Column::Payload) + strings(Column::Raw) + open + narrow + row.raw_bytes() + GROUP_SLACK_BYTES;
        rows <= u64::from(self.limits.group_rows)
            && self.group.raw_bytes + row.raw_bytes() <= self.limits.group_raw_bytes
            && encoded <= self.limits.group_encoded_bytes
    }

    fn file(&mut self) -> Result<&mut File> {
        if self.file.is_none() {
            let compressing = schema::properties(PayloadCodec::Zstd, &self.limits);
            let codec =
                if shrinks(&self.schema, &compressing, &self.batch, self.limits.sample_bytes).map_err(encode_error)? {
                    PayloadCodec::Zstd
                } else {
                    PayloadCodec::Stored
                };
            let properties = schema::properties(codec, &self.limits);
            let encoder = GroupEncoder::new(&self.schema, &properties);
            let writer = SerializedFileWriter::new(Vec::new(), schema::schema(), properties).map_err(encode_error)?;
            self.file = Some(File { writer, encoder });
        }
        self.file.as_mut().ok_or_else(|| Error::invalid("it has no file"))
    }

    fn encode_batch(&mut self) -> Result<()> {
        self.file()?;
        if let Some(file) = &mut self.file {
            file.encoder.write(&self.batch).map_err(encode_error)?;
        }
        self.batch.clear();
        self.batch_bytes = 0;
        Ok(())
    }

    /// Splices the columns into the file and gives the bytes it has now.
    fn end_group(&mut self) -> Result<Option<Bytes>> {
        if !self.batch.is_empty() {
            self.encode_batch()?;
        }
        let group = std::mem::take(&mut self.group);
        if group.rows == 0 {
            return Ok(None);
        }
        let schema = Arc::clone(&self.schema);
        let file = self.file()?;
        let fresh = GroupEncoder::new(&schema, file.writer.properties());
        let columns = std::mem::replace(&mut file.encoder, fresh).finish().map_err(encode_error)?;
        let mut pages = Vec::new();
        let mut row_group = file.writer.next_row_group().map_err(encode_error)?;
        for column in columns {
            page_checksums(&column.bytes, &mut pages)?;
            row_group.append_column(&column.bytes, column.close).map_err(encode_error)?;
        }
        row_group.close().map_err(encode_error)?;
        file.writer.flush().map_err(|error| encode_error(error.into()))?;
        let bytes = std::mem::take(file.writer.inner_mut());
        // The magic bytes of the file come out with the first row group, which does not include them.
        let magic = if self.whole.bytes == 0 { 4 } else { 0 };
        self.checksums.push(GroupChecksums { extras: group.extras, crc32c: crc32c::crc32c(&bytes[magic..]), pages });
        self.whole.count(&bytes);
        Ok(Some(bytes.into()))
    }
}

impl Group {
    fn add(&mut self, row: &Row) {
        self.delta_bytes = self.widened(row);
        self.last = Some(numbers(row));
        self.rows += 1;
        self.raw_bytes += row.raw_bytes();
        self.digest_bytes += row.digest.len() as u64;
        if row.raw.is_some() {
            self.extras.insert(Extras::RAW);
        }
        if row.redacted {
            self.extras.insert(Extras::REDACTED);
        }
        if row.timestamp_micros.is_some() {
            self.extras.insert(Extras::TS);
        }
    }

    /// The bytes a row takes in the delta columns, once `row` is in the group; block headers included.
    fn delta_bytes(&self, row: &Row) -> u64 {
        self.widened(row).iter().map(|bytes| bytes + 1).sum()
    }

    fn widened(&self, row: &Row) -> [u64; 3] {
        let Some(last) = self.last else { return self.delta_bytes };
        let now = numbers(row);
        let width = |before: i64, after: i64| {
            let delta = after.wrapping_sub(before).unsigned_abs();
            // One bit more: deltas are stored above the smallest one of their block, which may be negative.
            u64::from(u64::BITS - delta.leading_zeros() + 1).div_ceil(8).min(8)
        };
        let [a, b, c] = self.delta_bytes;
        [a.max(width(last.0, now.0)), b.max(width(last.1, now.1)), c.max(width(last.2, now.2))]
    }
}

impl Whole {
    fn count(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
    }
}

fn numbers(row: &Row) -> (i64, i64, i64) {
    let length = i64::try_from(row.ledger_length).unwrap_or(i64::MAX);
    (row.entry.as_i64(), EntryId::option_to_i64(row.last_confirmed), length)
}

/// Adds the CRC32C of each page of an encoded column chunk, header included.
fn page_checksums(mut chunk: &[u8], out: &mut Vec<u32>) -> Result<()> {
    while !chunk.is_empty() {
        let page = page_header::read(chunk).map(|header| header.header_bytes + header.stored_bytes);
        let (page, rest) = page
            .and_then(|bytes| chunk.split_at_checked(bytes))
            .ok_or_else(|| Error::invalid("a page just encoded has no readable header"))?;
        out.push(crc32c::crc32c(page));
        chunk = rest;
    }
    Ok(())
}

fn encode_error(error: parquet::errors::ParquetError) -> Error {
    Error::with_source(ErrorKind::Invalid, "encode rows", error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
