//! Encodes the columns of one row group side by side, each into its own buffer, so that a row group's memory is its encoded
//! size plus one batch of rows, whatever its rows decode to.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::column::page::{CompressedPage, PageWriteSpec, PageWriter};
use parquet::column::writer::{
    ColumnCloseResult, ColumnWriter, ColumnWriterImpl, get_column_writer, get_typed_column_writer_mut,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::SchemaDescPtr;

use crate::row::Row;
use crate::schema::Column;

/// The bytes of a column chunk under construction, shared by the Parquet writer that fills them and us who count and take them.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn capacity(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).capacity()
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Pages {
    sink: TrackedWrite<Buffer>,
}

impl PageWriter for Pages {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        let spec = SerializedPageWriter::new(&mut self.sink).write_page(page)?;
        self.sink.flush()?;
        Ok(spec)
    }

    fn close(&mut self) -> Result<()> {
        Ok(self.sink.flush()?)
    }
}

/// An encoded column chunk and what the Parquet library knows of it.
pub(crate) struct EncodedColumn {
    pub(crate) bytes: Bytes,
    pub(crate) close: ColumnCloseResult,
}

struct Encoder {
    writer: ColumnWriter<'static>,
    buffer: Buffer,
}

impl Encoder {
    fn new(schema: &SchemaDescPtr, place: usize, properties: &WriterPropertiesPtr) -> Self {
        let buffer = Buffer::default();
        let pages = Pages { sink: TrackedWrite::new(buffer.clone()) };
        let writer = get_column_writer(schema.column(place), Arc::clone(properties), Box::new(pages));
        Self { writer, buffer }
    }

    fn typed<T: DataType>(&mut self) -> &mut ColumnWriterImpl<'static, T> {
        get_typed_column_writer_mut::<T>(&mut self.writer)
    }

    fn close(self) -> Result<EncodedColumn> {
        let close = self.writer.close()?;
        Ok(EncodedColumn { bytes: self.buffer.take().into(), close })
    }
}

/// The columns of the row group under construction.
pub(crate) struct GroupEncoder {
    columns: Vec<Encoder>,
    /// The library looks at a page's size after each step, so a page is larger than its limit by a step at most (or a row).
    step_bytes: u64,
}

impl GroupEncoder {
    pub(crate) fn new(schema: &SchemaDescPtr, properties: &WriterPropertiesPtr) -> Self {
        let columns = Column::ALL.iter().map(|column| Encoder::new(schema, *column as usize, properties)).collect();
        Self { columns, step_bytes: properties.data_page_size_limit() as u64 / 8 }
    }

    /// Bytes of the finished pages.
    pub(crate) fn finished_bytes(&self, column: Column) -> u64 {
        self.columns[column as usize].buffer.len() as u64
    }

    /// Bytes reserved for finished pages, all columns.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.buffer.capacity() as u64).sum()
    }

    /// Encodes a batch of rows.
    pub(crate) fn write(&mut self, rows: &[Row]) -> Result<()> {
        let longs = |value: &dyn Fn(&Row) -> i64| rows.iter().map(value).collect::<Vec<_>>();
        self.column::<Int64Type>(Column::LedgerId, &longs(&|row| row.ledger.as_i64()), None)?;
        self.column::<Int64Type>(Column::EntryId, &longs(&|row| row.entry.as_i64()), None)?;
        let last_confirmed = longs(&|row| ledger::EntryId::option_to_i64(row.last_confirmed));
        self.column::<Int64Type>(Column::LastConfirmed, &last_confirmed, None)?;
        let lengths = longs(&|row| i64::try_from(row.ledger_length).unwrap_or(i64::MAX));
        self.column::<Int64Type>(Column::LedgerLength, &lengths, None)?;
        let digests: Vec<_> = rows.iter().map(|row| ByteArray::from(row.digest.clone())).collect();
        self.column::<ByteArrayType>(Column::Digest, &digests, None)?;
        let crcs: Vec<_> = rows.iter().map(|row| i32::from_ne_bytes(row.crc32c.to_ne_bytes())).collect();
        self.column::<Int32Type>(Column::Crc32c, &crcs, None)?;
        for rows in by_bytes(rows, self.step_bytes) {
            self.optional::<ByteArrayType>(Column::Payload, rows, |row| row.payload.clone().map(ByteArray::from))?;
            self.optional::<ByteArrayType>(Column::Raw, rows, |row| row.raw.clone().map(ByteArray::from))?;
        }
        self.optional::<BoolType>(Column::Redacted, rows, |row| row.redacted.then_some(true))?;
        self.optional::<Int64Type>(Column::Ts, rows, |row| row.timestamp_micros)
    }

    /// Ends the row group.
    pub(crate) fn finish(self) -> Result<Vec<EncodedColumn>> {
        self.columns.into_iter().map(Encoder::close).collect()
    }

    fn optional<T: DataType>(
        &mut self,
        column: Column,
        rows: &[Row],
        value: impl Fn(&Row) -> Option<T::T>,
    ) -> Result<()> {
        let mut levels = Vec::with_capacity(rows.len());
        let mut values = Vec::new();
        for row in rows {
            let value = value(row);
            levels.push(i16::from(value.is_some()));
            values.extend(value);
        }
        self.column::<T>(column, &values, Some(&levels))
    }

    fn column<T: DataType>(&mut self, column: Column, values: &[T::T], levels: Option<&[i16]>) -> Result<()> {
        self.columns[column as usize].typed::<T>().write_batch(values, levels, None).map(|_| ())
    }
}

/// Cuts rows into runs that end with the row that reaches `bytes`.
fn by_bytes(mut rows: &[Row], bytes: u64) -> impl Iterator<Item = &[Row]> {
    std::iter::from_fn(move || {
        let mut sum = 0;
        let more = rows.iter().take_while(|row| {
            let below = sum < bytes;
            sum += row.raw_bytes();
            below
        });
        let count = more.count();
        let (run, rest) = rows.split_at(count);
        rows = rest;
        (count > 0).then_some(run)
    })
}

/// Whether payloads shrink: encodes a sample with the settings it would be written with and looks at the sizes.
pub(crate) fn shrinks(
    schema: &SchemaDescPtr,
    compressing: &WriterPropertiesPtr,
    rows: &[Row],
    sample_bytes: usize,
) -> Result<bool> {
    let mut encoder = Encoder::new(schema, Column::Payload as usize, compressing);
    let mut left = sample_bytes;
    for row in rows {
        let bytes = row.payload.as_ref().or(row.raw.as_ref()).map(|bytes| bytes.slice(..bytes.len().min(left)));
        let Some(bytes) = bytes else { continue };
        left -= bytes.len();
        encoder.typed::<ByteArrayType>().write_batch(&[ByteArray::from(bytes)], Some(&[1]), None)?;
        if left == 0 {
            break;
        }
    }
    let metadata = encoder.close()?.close.metadata;
    // Less than a tenth saved is not worth the reader's time.
    Ok(metadata.compressed_size() * 10 < metadata.uncompressed_size() * 9)
}
