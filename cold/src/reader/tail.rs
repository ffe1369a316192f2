//! The tail of an object: page indexes and footer, checked and boiled down to what reads need.
//!
//! Nothing of it is believed because it parses. The bytes match the cold record's checksum before anything is parsed, and every
//! place and size is checked against the object and the limits before anything is read or reserved for it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use ledger::{EntryId, LedgerId};
use parquet::DecodeResult;
use parquet::basic::Compression;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataPushDecoder, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use parquet::schema::types::SchemaDescPtr;

use crate::error::{Error, ErrorKind, Result};
use crate::footer::{self, Extras, GroupChecksums, Identity, Refusal};
use crate::limits::Limits;
use crate::object::ObjectSummary;
use crate::schema::{self, Column};

/// The magic bytes a file begins with.
pub(crate) const MAGIC_BYTES: u64 = 4;

/// What reads need to know of an object.
pub(crate) struct Tail {
    pub(crate) schema: SchemaDescPtr,
    pub(crate) places: [usize; Column::COUNT],
    pub(crate) identity: Identity,
    pub(crate) groups: Vec<Group>,
}

/// A row group.
pub(crate) struct Group {
    pub(crate) first: EntryId,
    pub(crate) last: EntryId,
    pub(crate) rows: u32,
    pub(crate) range: Range<u64>,
    pub(crate) raw_bytes: u64,
    pub(crate) crc32c: u32,
    pub(crate) extras: Extras,
    /// The columns of version 1, in its order.
    pub(crate) chunks: Vec<Chunk>,
}

/// A column of a row group.
pub(crate) struct Chunk {
    pub(crate) codec: Compression,
    pub(crate) pages: Vec<Page>,
}

/// A page of a column: it follows the page before it.
pub(crate) struct Page {
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    pub(crate) first_row: u32,
    pub(crate) crc32c: u32,
}

impl Page {
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.bytes)
    }
}

impl Group {
    /// Whether ids in the row group have no gaps, so that a row's place follows from its id.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.last.since(self.first) + 1 == u64::from(self.rows)
    }

    pub(crate) fn chunk(&self, column: Column) -> &Chunk {
        &self.chunks[column as usize]
    }
}

impl Tail {
    pub(crate) fn memory_bytes(&self) -> u64 {
        let groups: usize = self
            .groups
            .iter()
            .map(|group| {
                let pages: usize = group.chunks.iter().map(|chunk| chunk.pages.capacity()).sum();
                size_of::<Group>() + group.chunks.capacity() * size_of::<Chunk>() + pages * size_of::<Page>()
            })
            .sum();
        // The schema is a few kilobytes whatever the object.
        (groups + self.identity.metadata.capacity() + 8_192) as u64
    }
}

/// Reads the tail of `object`, whose bytes `tail` are, and holds it to what is known of the object.
pub(crate) fn read(
    object: &str,
    tail: &Bytes,
    expected: &ObjectSummary,
    instance_id: &str,
    ledger: LedgerId,
    limits: &Limits,
) -> Result<Tail> {
    let found = crc32c::crc32c(tail);
    if found != expected.footer_crc32c {
        let want = expected.footer_crc32c;
        return Err(Error::damaged(
            object,
            format_args!("tail has crc32c {found:08x}, the cold record says {want:08x}"),
        ));
    }
    // The library may panic on bytes no writer makes. The checksum keeps damage away from it; this is for what is left.
    let parsed = catch_unwind(AssertUnwindSafe(|| parse(tail, expected)));
    let metadata = match parsed {
        Ok(parsed) => parsed.map_err(|error| damage(object, "parse footer", error))?,
        Err(_) => return Err(Error::damaged(object, "parse footer: the Parquet library gave up on it")),
    };
    let pairs = metadata.file_metadata().key_value_metadata().map_or(&[][..], Vec::as_slice);
    let (identity, checksums) =
        footer::from_pairs(pairs, metadata.num_row_groups()).map_err(|refusal| match refusal {
            Refusal::Unsupported(what) => Error::new(ErrorKind::Unsupported, format!("read object {object}: {what}")),
            Refusal::Damaged(what) => Error::damaged(object, what),
        })?;
    check_identity(&identity, expected, instance_id, ledger).map_err(|what| Error::damaged(object, what))?;
    let schema = metadata.file_metadata().schema_descr_ptr();
    let places = schema::locate(&schema)
        .map_err(|what| Error::new(ErrorKind::Unsupported, format!("read object {object}: {what}")))?;
    let groups =
        groups(&metadata, &places, &checksums, expected, limits).map_err(|what| Error::damaged(object, what))?;
    Ok(Tail { schema, places, identity, groups })
}

fn parse(tail: &Bytes, expected: &ObjectSummary) -> parquet::errors::Result<ParquetMetaData> {
    let mut decoder = ParquetMetaDataPushDecoder::try_new(expected.object_bytes)?
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Required);
    decoder.push_range(expected.footer_offset..expected.object_bytes, tail.clone())?;
    match decoder.try_decode()? {
        DecodeResult::Data(metadata) => Ok(metadata),
        DecodeResult::NeedsData(_) | DecodeResult::Finished => {
            Err(parquet::errors::ParquetError::General("page indexes or footer lie outside of the tail".to_owned()))
        }
    }
}

fn damage(object: &str, doing: &str, error: parquet::errors::ParquetError) -> Error {
    Error::with_source(ErrorKind::Damaged, format!("read object {object}: {doing}"), error)
}

fn check_identity(
    identity: &Identity,
    expected: &ObjectSummary,
    instance_id: &str,
    ledger: LedgerId,
) -> std::result::Result<(), String> {
    if identity.instance_id != instance_id {
        return Err(format!("it belongs to cluster {}, expected {instance_id}", identity.instance_id));
    }
    if identity.ledger != ledger {
        return Err(format!("it is of ledger {}, expected {ledger}", identity.ledger));
    }
    if identity.object != expected.object {
        return Err(format!("it is generation {}, expected {}", identity.object, expected.object));
    }
    if identity.entries != expected.entries {
        return Err(format!("it has {} entries, expected {}", identity.entries, expected.entries));
    }
    if identity.payload_bytes != expected.payload_bytes {
        return Err(format!("it has {} payload bytes, expected {}", identity.payload_bytes, expected.payload_bytes));
    }
    Ok(())
}

fn groups(
    metadata: &ParquetMetaData,
    places: &[usize; Column::COUNT],
    checksums: &[GroupChecksums],
    expected: &ObjectSummary,
    limits: &Limits,
) -> std::result::Result<Vec<Group>, String> {
    let mut groups: Vec<Group> = Vec::with_capacity(metadata.num_row_groups());
    let mut end = MAGIC_BYTES;
    let mut rows = 0u64;
    for (index, (row_group, checksums)) in metadata.row_groups().iter().zip(checksums).enumerate() {
        let group = group(metadata, index, row_group, places, checksums, limits)
            .map_err(|what| format!("row group {index}: {what}"))?;
        if group.range.start != end {
            return Err(format!("row group {index}: it begins at {}, the one before ends at {end}", group.range.start));
        }
        if let Some(before) = groups.last()
            && group.first <= before.last
        {
            return Err(format!("row group {index}: entry {} follows entry {}", group.first, before.last));
        }
        end = group.range.end;
        rows += u64::from(group.rows);
        groups.push(group);
    }
    if end != expected.footer_offset {
        return Err(format!("row groups end at {end}, the tail begins at {}", expected.footer_offset));
    }
    if rows != expected.entries {
        return Err(format!("row groups have {rows} rows, expected {}", expected.entries));
    }
    Ok(groups)
}

fn group(
    metadata: &ParquetMetaData,
    index: usize,
    row_group: &RowGroupMetaData,
    places: &[usize; Column::COUNT],
    checksums: &GroupChecksums,
    limits: &Limits,
) -> std::result::Result<Group, String> {
    let rows = u64::try_from(row_group.num_rows()).ok().filter(|rows| (1..=limits.accepted_rows()).contains(rows));
    let rows = rows.ok_or_else(|| format!("it has {} rows", row_group.num_rows()))?;
    let page_index = metadata.page_index_for_row_group(index);
    let mut next_crc = checksums.pages.iter();
    let mut chunks: [Option<Chunk>; Column::COUNT] = Default::default();
    let (mut start, mut end, mut raw_bytes) = (None, 0u64, 0u64);
    for (place, column) in row_group.columns().iter().enumerate() {
        let name = column.column_path();
        let bad = |what: &str| format!("column {name}: {what}");
        let offset = |value: i64| u64::try_from(value).map_err(|_| bad("a negative place or size"));
        if column.dictionary_page_offset().is_some() && places.contains(&place) {
            return Err(bad("it has a dictionary"));
        }
        let at = offset(column.dictionary_page_offset().unwrap_or(column.data_page_offset()))?;
        let bytes = offset(column.compressed_size())?;
        let chunk_end = at.checked_add(bytes).ok_or_else(|| bad("its end overflows"))?;
        let expected_start = if start.is_none() { at } else { end };
        if at != expected_start {
            return Err(bad("it does not follow the column before it"));
        }
        start.get_or_insert(at);
        end = chunk_end;
        raw_bytes = raw_bytes.saturating_add(offset(column.uncompressed_size())?);
        let locations = page_index.page_locations(place).ok_or_else(|| bad("it has no offset index"))?;
        let mut pages = Vec::with_capacity(locations.len());
        for location in locations {
            let crc32c = *next_crc.next().ok_or_else(|| bad("more pages than checksums"))?;
            pages.push(Page {
                offset: offset(location.offset)?,
                bytes: u32::try_from(location.compressed_page_size).map_err(|_| bad("a page of negative size"))?,
                first_row: u32::try_from(location.first_row_index).map_err(|_| bad("a page at an impossible row"))?,
                crc32c,
            });
        }
        if let Some(known) = places.iter().position(|wanted| *wanted == place) {
            check_pages(&pages, at..chunk_end, rows).map_err(bad)?;
            chunks[known] = Some(Chunk { codec: column.compression(), pages });
        }
    }
    if next_crc.next().is_some() {
        return Err("more checksums than pages".to_owned());
    }
    let start = start.ok_or("it has no columns")?;
    if end - start > limits.accepted_group_bytes(rows) {
        return Err(format!("it has {} bytes, more than accepted", end - start));
    }
    if raw_bytes > limits.accepted_raw_bytes() {
        return Err(format!("it decodes to {raw_bytes} bytes, more than accepted"));
    }
    let (first, last) =
        entry_bounds(row_group, places[Column::EntryId as usize]).ok_or("it has no bounds of entry ids")?;
    if first > last || last.since(first) + 1 < rows {
        return Err(format!("{rows} rows do not fit into entries {first} to {last}"));
    }
    let rows = u32::try_from(rows).map_err(|_| "it has too many rows")?;
    let chunks = chunks.into_iter().collect::<Option<Vec<_>>>().ok_or("a column is missing")?;
    Ok(Group {
        first,
        last,
        rows,
        range: start..end,
        raw_bytes,
        crc32c: checksums.crc32c,
        extras: checksums.extras,
        chunks,
    })
}

/// Pages must tile their column and begin at ascending rows.
fn check_pages(pages: &[Page], chunk: Range<u64>, rows: u64) -> std::result::Result<(), &'static str> {
    let mut end = chunk.start;
    let mut row = None;
    for page in pages {
        if page.offset != end {
            return Err("a page does not follow the one before it");
        }
        end = page.range().end;
        let first_row = u64::from(page.first_row);
        if row.is_none() && first_row != 0 || row.is_some_and(|before| first_row <= before) || first_row >= rows {
            return Err("its pages begin at impossible rows");
        }
        row = Some(first_row);
    }
    if end != chunk.end || pages.is_empty() { Err("its pages do not fill it") } else { Ok(()) }
}

fn entry_bounds(row_group: &RowGroupMetaData, place: usize) -> Option<(EntryId, EntryId)> {
    match row_group.column(place).statistics()? {
        Statistics::Int64(bounds) => Some((EntryId::new(*bounds.min_opt()?)?, EntryId::new(*bounds.max_opt()?)?)),
        _ => None,
    }
}
