//! Decodes runs of pages of one column. Every page's header is checked against the page index and the limits first, so what is
//! reserved for a page is what its row group was allowed to declare.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parquet::basic::Encoding;
use parquet::column::page::{Page as ParquetPage, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArrayType, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::tail::{Chunk, Page, Tail};
use crate::page_header;
use crate::schema::Column;

/// What is wrong with the bytes.
pub(super) type Damage = String;

/// Fetched bytes that know where in the object they were.
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) bytes: Bytes,
}

impl Window {
    /// The bytes of a range of the object, if they were fetched.
    pub(super) fn slice(&self, range: Range<u64>) -> Option<Bytes> {
        let start = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.start)?).ok()?;
        (start <= end && end <= self.bytes.len()).then(|| self.bytes.slice(start..end))
    }
}

impl Length for Window {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Window {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let bytes = self.slice(start..self.len()).ok_or_else(outside)?;
        Ok(bytes.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let end = start.checked_add(length as u64).ok_or_else(outside)?;
        self.slice(start..end).ok_or_else(outside)
    }
}

fn outside() -> ParquetError {
    ParquetError::EOF("read outside of the fetched bytes".to_owned())
}

/// A run of pages of one column.
pub(super) struct Run<'a> {
    tail: &'a Tail,
    column: Column,
    chunk: &'a Chunk,
    pages: Range<usize>,
    group_rows: u32,
    window: Arc<Window>,
}

impl<'a> Run<'a> {
    /// All pages of a column.
    pub(super) fn whole(
        tail: &'a Tail,
        column: Column,
        chunk: &'a Chunk,
        group_rows: u32,
        window: &Arc<Window>,
    ) -> Self {
        Self { tail, column, chunk, pages: 0..chunk.pages.len(), group_rows, window: Arc::clone(window) }
    }

    /// The one page that holds a row.
    pub(super) fn of_row(
        tail: &'a Tail,
        column: Column,
        chunk: &'a Chunk,
        group_rows: u32,
        row: u32,
        window: &Arc<Window>,
    ) -> Self {
        let place = page_of(chunk, row);
        Self { tail, column, chunk, pages: place..place + 1, group_rows, window: Arc::clone(window) }
    }

    pub(super) fn first_row(&self) -> u32 {
        self.pages().first().map_or(0, |page| page.first_row)
    }

    /// Refuses pages whose checksums do not match.
    pub(super) fn check_pages(&self) -> Result<(), Damage> {
        for page in self.pages() {
            let bytes = self.window.slice(page.range()).ok_or_else(|| self.bad("a page was not fetched"))?;
            let found = crc32c::crc32c(&bytes);
            if found != page.crc32c {
                let (at, want) = (page.offset, page.crc32c);
                return Err(
                    self.bad(format_args!("the page at {at} has crc32c {found:08x}, the footer says {want:08x}"))
                );
            }
        }
        Ok(())
    }

    /// Refuses pages that claim other sizes than the index says or decode to more than `left` bytes, which is counted down.
    pub(super) fn check_headers(&self, left: &mut u64) -> Result<(), Damage> {
        for place in self.pages.clone() {
            let page = &self.chunk.pages[place];
            let at = page.offset;
            let bytes = self.window.slice(page.range()).ok_or_else(|| self.bad("a page was not fetched"))?;
            let header = page_header::read(&bytes)
                .ok_or_else(|| self.bad(format_args!("the page at {at} has no readable header")))?;
            if header.header_bytes + header.stored_bytes != bytes.len()
                || header.values as u64 != u64::from(self.rows_of(place))
            {
                return Err(self.bad(format_args!("the page at {at} differs from the page index")));
            }
            *left = left
                .checked_sub(header.raw_bytes as u64)
                .ok_or_else(|| self.bad(format_args!("the page at {at} decodes to more than accepted")))?;
        }
        Ok(())
    }

    /// The values of a required column.
    pub(super) fn required<T: DataType>(&self) -> Result<Vec<T::T>, Damage> {
        let rows = self.rows();
        let mut reader = ColumnReaderImpl::<T>::new(self.descriptor(), Box::new(self.reader()?));
        let mut values = Vec::with_capacity(rows);
        while values.len() < rows {
            let (read, _, _) =
                reader.read_records(rows - values.len(), None, None, &mut values).map_err(|e| self.bad(e))?;
            if read == 0 {
                break;
            }
        }
        if values.len() != rows {
            Err(self.bad(format_args!("{} values for {rows} rows", values.len())))
        } else {
            Ok(values)
        }
    }

    /// The values of an optional column, one for each row.
    pub(super) fn optional<T: DataType>(&self) -> Result<Vec<Option<T::T>>, Damage> {
        let rows = self.rows();
        let mut reader = ColumnReaderImpl::<T>::new(self.descriptor(), Box::new(self.reader()?));
        let (mut levels, mut values) = (Vec::with_capacity(rows), Vec::new());
        while levels.len() < rows {
            let left = rows - levels.len();
            let (read, _, _) =
                reader.read_records(left, Some(&mut levels), None, &mut values).map_err(|e| self.bad(e))?;
            if read == 0 {
                break;
            }
        }
        let mut values = values.into_iter();
        let out: Vec<_> = levels.iter().map(|level| if *level == 1 { values.next() } else { None }).collect();
        if out.len() != rows { Err(self.bad(format_args!("{} values for {rows} rows", out.len()))) } else { Ok(out) }
    }

    /// The byte strings of a required column, one after the other in one buffer.
    pub(super) fn packed(&self) -> Result<Packed, Damage> {
        let values = self.required::<ByteArrayType>()?;
        let mut bytes = Vec::with_capacity(values.iter().map(|value| value.data().len()).sum());
        let mut ends = Vec::with_capacity(values.len());
        for value in &values {
            bytes.extend_from_slice(value.data());
            ends.push(u32::try_from(bytes.len()).map_err(|_| self.bad("its values are too long"))?);
        }
        Ok(Packed { bytes: bytes.into(), ends })
    }

    /// The byte strings of an optional column, in place in their decoded pages.
    pub(super) fn strings(&self) -> Result<Strings, Damage> {
        let mut reader = self.reader()?;
        let mut out = Strings { pages: Vec::with_capacity(self.pages.len()), slots: Vec::with_capacity(self.rows()) };
        while let Some(page) = reader.get_next_page().map_err(|error| self.bad(error))? {
            let ParquetPage::DataPage {
                buf,
                num_values,
                encoding: Encoding::PLAIN,
                def_level_encoding: Encoding::RLE,
                ..
            } = page
            else {
                return Err(self.bad("a page of another encoding than format version 1 has"));
            };
            out.add_page(buf, num_values as usize).ok_or_else(|| self.bad("a page is malformed"))?;
        }
        if out.slots.len() != self.rows() {
            return Err(self.bad(format_args!("{} values for {} rows", out.slots.len(), self.rows())));
        }
        Ok(out)
    }

    fn pages(&self) -> &'a [Page] {
        &self.chunk.pages[self.pages.clone()]
    }

    fn rows_of(&self, place: usize) -> u32 {
        let end = self.chunk.pages.get(place + 1).map_or(self.group_rows, |page| page.first_row);
        end - self.chunk.pages[place].first_row
    }

    fn rows(&self) -> usize {
        self.pages.clone().map(|place| self.rows_of(place) as usize).sum()
    }

    fn descriptor(&self) -> parquet::schema::types::ColumnDescPtr {
        self.tail.schema.column(self.tail.places[self.column as usize])
    }

    /// Reads this run as if it were a whole column chunk.
    fn reader(&self) -> Result<SerializedPageReader<Window>, Damage> {
        let start = self.pages().first().map_or(0, |page| page.offset);
        let bytes: u64 = self.pages().iter().map(|page| u64::from(page.bytes)).sum();
        let signed = |value: u64| i64::try_from(value).map_err(|_| self.bad("an impossible place"));
        let metadata = ColumnChunkMetaData::builder(self.descriptor())
            .set_compression(self.chunk.codec)
            .set_num_values(self.rows() as i64)
            .set_total_compressed_size(signed(bytes)?)
            .set_data_page_offset(signed(start)?)
            .build()
            .map_err(|error| self.bad(error))?;
        SerializedPageReader::new(Arc::clone(&self.window), &metadata, self.rows(), None)
            .map_err(|error| self.bad(error))
    }

    fn bad(&self, what: impl std::fmt::Display) -> Damage {
        format!("column {}: {what}", self.column.name())
    }
}

/// The page of a column that holds a row.
pub(super) fn page_of(chunk: &Chunk, row: u32) -> usize {
    chunk.pages.partition_point(|page| page.first_row <= row).saturating_sub(1)
}

/// Byte strings one after the other.
pub(super) struct Packed {
    bytes: Bytes,
    ends: Vec<u32>,
}

impl Packed {
    pub(super) fn get(&self, place: usize) -> Option<Bytes> {
        let end = *self.ends.get(place)? as usize;
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(self.bytes.slice(start..end))
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + self.ends.capacity() * size_of::<u32>()) as u64
    }
}

/// Byte strings in place in decoded pages.
pub(super) struct Strings {
    pages: Vec<Bytes>,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy)]
struct Slot {
    page: u32,
    start: u32,
    bytes: u32,
}

impl Slot {
    const NULL: Self = Self { page: u32::MAX, start: 0, bytes: 0 };
}

impl Strings {
    /// The value of a row, sharing the page's memory; the inner `None` is a null.
    pub(super) fn get(&self, place: usize) -> Option<Option<Bytes>> {
        let slot = self.slots.get(place)?;
        let Some(page) = self.pages.get(slot.page as usize) else { return Some(None) };
        let start = slot.start as usize;
        Some(Some(page.slice(start..start + slot.bytes as usize)))
    }

    /// Bytes of the table and, when `owned`, of the pages: stored pages are slices of what was fetched.
    pub(super) fn memory_bytes(&self, owned: bool) -> u64 {
        let pages: usize = if owned { self.pages.iter().map(Bytes::len).sum() } else { 0 };
        (pages + self.pages.capacity() * size_of::<Bytes>() + self.slots.capacity() * size_of::<Slot>()) as u64
    }

    /// A page: `u32` length of the levels, levels, then for each value that is not null its `u32` length and bytes.
    fn add_page(&mut self, page: Bytes, values: usize) -> Option<()> {
        let number = u32::try_from(self.pages.len()).ok()?;
        let level_bytes = u32::from_le_bytes(page.get(..4)?.try_into().ok()?) as usize;
        let levels = page.get(4..)?.get(..level_bytes)?;
        let mut at = 4 + level_bytes;
        for_each_level(levels, values, |present| {
            if !present {
                self.slots.push(Slot::NULL);
                return Some(());
            }
            let bytes = u32::from_le_bytes(page.get(at..at.checked_add(4)?)?.try_into().ok()?);
            let start = at + 4;
            at = start.checked_add(bytes as usize).filter(|end| *end <= page.len())?;
            self.slots.push(Slot { page: number, start: u32::try_from(start).ok()?, bytes });
            Some(())
        })?;
        self.pages.push(page);
        Some(())
    }
}

/// Reads `count` levels of one bit each, in Parquet's mix of runs and packed bits.
fn for_each_level(mut input: &[u8], count: usize, mut each: impl FnMut(bool) -> Option<()>) -> Option<()> {
    let mut left = count;
    while left > 0 {
        let mut head = 0u64;
        let mut shift = 0;
        loop {
            let (byte, rest) = input.split_first()?;
            input = rest;
            head |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
        let length = usize::try_from(head >> 1).ok()?;
        if length == 0 {
            return None;
        }
        if head & 1 == 0 {
            let (value, rest) = input.split_first()?;
            input = rest;
            let run = length.min(left);
            for _ in 0..run {
                each(*value == 1)?;
            }
            left -= run;
        } else {
            // `length` bytes of eight levels; the writer may leave the last one incomplete.
            let (packed, rest) = input.split_at_checked(length.min(left.div_ceil(8)))?;
            input = rest;
            for byte in packed {
                let run = left.min(8);
                for bit in 0..run {
                    each(byte >> bit & 1 == 1)?;
                }
                left -= run;
            }
        }
    }
    Some(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn levels(input: &[u8], count: usize) -> Option<Vec<bool>> {
        let mut out = Vec::new();
        for_each_level(input, count, |level| {
            out.push(level);
            Some(())
        })?;
        Some(out)
    }

    #[test]
    fn levels_are_runs_and_packed_bits() {
        assert_eq!(levels(&[6, 1], 3), Some(vec![true; 3]));
        assert_eq!(levels(&[6, 0], 2), Some(vec![false; 2]));
        assert_eq!(levels(&[3, 0b101], 3), Some(vec![true, false, true]));
        assert_eq!(levels(&[4, 1, 3, 0b10], 4), Some(vec![true, true, false, true]));
        assert_eq!(levels(&[4], 2), None, "a run without a value");
        assert_eq!(levels(&[4, 1], 3), None, "too few");
        assert_eq!(levels(&[0, 1], 1), None, "an empty run");
        assert_eq!(levels(&[0x80; 12], 1), None, "a length without end");
    }

    #[test]
    fn strings_stay_within_their_page() {
        let add = |page: &'static [u8], values| {
            let mut strings = Strings { pages: Vec::new(), slots: Vec::new() };
            strings
                .add_page(Bytes::from_static(page), values)
                .map(|()| (0..values).map(|i| strings.get(i).unwrap()).collect::<Vec<_>>())
        };
        let page = b"\x02\0\0\0\x03\x05\x02\0\0\0ab\0\0\0\0";
        assert_eq!(add(page, 3), Some(vec![Some(Bytes::from("ab")), None, Some(Bytes::new())]));
        assert_eq!(add(b"\x02\0\0\0\x02\x01\x09\0\0\0ab", 1), None, "longer than the page");
        assert_eq!(add(b"\xff\xff\xff\xff", 1), None);
        assert_eq!(add(b"", 1), None);
    }
}
