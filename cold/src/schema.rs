//! The columns of format version 1: names, physical types, encodings. Frozen by `golden/v1.parquet`.

use std::sync::Arc;

use parquet::basic::{Compression, Encoding, Repetition, Type, ZstdLevel};
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, SchemaDescriptor, TypePtr};

use crate::limits::Limits;

/// Stands in every footer as the program that wrote the file; no build details, so that the same rows give the same bytes.
pub(crate) const CREATED_BY: &str = "thermocline version 1";

const MESSAGE: &str = "
message entry {
  required int64 ledger_id;
  required int64 entry_id;
  required int64 last_confirmed;
  required int64 ledger_length;
  required binary digest;
  required int32 crc32c;
  optional binary payload;
  optional binary raw;
  optional boolean redacted;
  optional int64 ts (TIMESTAMP(MICROS,true));
}";

/// A column of format version 1, in file order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    LedgerId,
    EntryId,
    LastConfirmed,
    LedgerLength,
    Digest,
    Crc32c,
    Payload,
    Raw,
    Redacted,
    Ts,
}

impl Column {
    pub(crate) const COUNT: usize = 10;

    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::LedgerId,
        Self::EntryId,
        Self::LastConfirmed,
        Self::LedgerLength,
        Self::Digest,
        Self::Crc32c,
        Self::Payload,
        Self::Raw,
        Self::Redacted,
        Self::Ts,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::LedgerId => "ledger_id",
            Self::EntryId => "entry_id",
            Self::LastConfirmed => "last_confirmed",
            Self::LedgerLength => "ledger_length",
            Self::Digest => "digest",
            Self::Crc32c => "crc32c",
            Self::Payload => "payload",
            Self::Raw => "raw",
            Self::Redacted => "redacted",
            Self::Ts => "ts",
        }
    }

    const fn shape(self) -> (Type, Repetition) {
        match self {
            Self::LedgerId | Self::EntryId | Self::LastConfirmed | Self::LedgerLength => {
                (Type::INT64, Repetition::REQUIRED)
            }
            Self::Digest => (Type::BYTE_ARRAY, Repetition::REQUIRED),
            Self::Crc32c => (Type::INT32, Repetition::REQUIRED),
            Self::Payload | Self::Raw => (Type::BYTE_ARRAY, Repetition::OPTIONAL),
            Self::Redacted => (Type::BOOLEAN, Repetition::OPTIONAL),
            Self::Ts => (Type::INT64, Repetition::OPTIONAL),
        }
    }

    const fn encoding(self) -> Encoding {
        match self {
            Self::LedgerId | Self::EntryId | Self::LastConfirmed | Self::LedgerLength => Encoding::DELTA_BINARY_PACKED,
            // A ledger's digests are of one length: their lengths cost nothing this way, 4 bytes a row as PLAIN.
            Self::Digest => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            Self::Crc32c | Self::Payload | Self::Raw | Self::Redacted | Self::Ts => Encoding::PLAIN,
        }
    }

    fn path(self) -> ColumnPath {
        ColumnPath::from(self.name())
    }
}

/// How payloads are stored, decided once per object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PayloadCodec {
    /// As they are: a sample did not shrink.
    Stored,
    /// zstd, level 1.
    Zstd,
}

impl PayloadCodec {
    fn compression(self) -> Compression {
        match self {
            Self::Stored => Compression::UNCOMPRESSED,
            Self::Zstd => Compression::ZSTD(ZstdLevel::try_new(1).expect("zstd has a level 1")),
        }
    }
}

/// The schema of version 1.
pub(crate) fn schema() -> TypePtr {
    Arc::new(parse_message_type(MESSAGE).expect("the message type is a constant that tests parse"))
}

/// The writer's settings. Only payloads are worth compressing: the rest is packed already or random (digests, checksums).
pub(crate) fn properties(codec: PayloadCodec, limits: &Limits) -> WriterPropertiesPtr {
    let sorted = |column: Column| SortingColumn { column_idx: column as i32, descending: false, nulls_first: false };
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(CREATED_BY.to_owned())
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_compression(Compression::UNCOMPRESSED)
        .set_data_page_size_limit(limits.page_bytes)
        .set_data_page_row_count_limit(limits.page_rows)
        .set_write_batch_size(1_024)
        .set_sorting_columns(Some(vec![sorted(Column::LedgerId), sorted(Column::EntryId)]))
        .set_column_statistics_enabled(Column::EntryId.path(), EnabledStatistics::Page);
    for column in Column::ALL {
        builder = builder.set_column_encoding(column.path(), column.encoding());
    }
    for column in [Column::Payload, Column::Raw] {
        builder = builder
            .set_column_compression(column.path(), codec.compression())
            .set_column_data_page_row_count_limit(column.path(), 20_000);
    }
    Arc::new(builder.build())
}

/// Where each column of version 1 stands in a file's schema. Columns this reader does not know are passed over.
pub(crate) fn locate(schema: &SchemaDescriptor) -> Result<[usize; Column::COUNT], String> {
    let mut places = [usize::MAX; Column::COUNT];
    for column in Column::ALL {
        let place = schema.columns().iter().position(|found| found.path().parts() == [column.name()]);
        let Some(place) = place else {
            return Err(format!("column {} is missing", column.name()));
        };
        let found = schema.column(place);
        let (physical, repetition) = column.shape();
        let optional = found.max_def_level() == 1;
        let fits = found.max_rep_level() == 0
            && found.max_def_level() <= 1
            && optional == (repetition == Repetition::OPTIONAL);
        if found.physical_type() != physical || !fits {
            return Err(format!("column {} has another type than in format version 1", column.name()));
        }
        places[column as usize] = place;
    }
    Ok(places)
}
