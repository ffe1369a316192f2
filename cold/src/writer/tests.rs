use std::path::PathBuf;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::parser::parse_message_type;
use parquet::schema::printer::print_schema;

use super::*;
use crate::testing::*;
use crate::{ColdStore, ObjectReader};

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

/// The rows of `golden/v1.parquet`: two row groups and every column in use.
fn golden_rows() -> Vec<Row> {
    let mut rows = rows((0..60u64).map(|i| {
        format!("entry {i}: {}", "the thermocline parts warm from cold; ".repeat(i as usize % 7)).into_bytes()
    }));
    rows[3].last_confirmed = None;
    rows[3].crc32c = rows[3].body_crc32c().unwrap();
    rows[50] = Row::from_raw(ledger(), entry(50), Bytes::from_static(b"\x00\x01not an entry body\xff"));
    rows[51].payload = None;
    rows[51].redacted = true;
    rows[52].timestamp_micros = Some(1_764_518_400_000_001);
    rows
}

fn golden_limits() -> Limits {
    Limits { group_rows: 45, ..Limits::v1() }
}

/// Reads the golden object of version 1 for ever. `THERMOCLINE_WRITE_GOLDEN=1` makes it where there is none; it is never made
/// again for a released version.
#[tokio::test]
async fn the_golden_object_reads_and_is_what_we_write() {
    let (bytes, summary) = write_with(&golden_rows(), golden_limits()).unwrap();
    let (object, record) = (golden_path("v1.parquet"), golden_path("v1.record.hex"));
    if std::env::var_os("THERMOCLINE_WRITE_GOLDEN").is_some() && !object.exists() {
        std::fs::write(&object, &bytes).unwrap();
        std::fs::write(&record, hex::encode(summary.to_record(0, 1, None).encode()) + "\n").unwrap();
    }
    let golden = std::fs::read(&object).unwrap();
    let record =
        ledger::ColdRecord::decode(&hex::decode(std::fs::read_to_string(&record).unwrap().trim()).unwrap()).unwrap();

    let (store, faults) = cold_store();
    place(&faults, golden.clone()).await;
    let reader = ObjectReader::open(&store, INSTANCE, ledger(), &record).await.unwrap();
    assert_eq!(reader.row_groups().len(), 2);
    let mut read = Vec::new();
    for index in 0..2 {
        let group = reader.read_group(index).await.unwrap();
        read.extend((0..group.len()).map(|place| group.row(place).unwrap()));
    }
    assert_eq!(read, golden_rows());
    for row in &read {
        assert_eq!(reader.read_entry(row.entry).await.unwrap().as_ref(), Some(row));
    }
    assert_eq!(ledger::LedgerMetadata::decode(reader.metadata_snapshot()).unwrap(), metadata().without_password());

    assert_eq!(ObjectSummary::from(&record), summary, "today's writer makes another object");
    assert!(golden == bytes, "today's writer makes other bytes");
}

#[test]
fn other_engines_see_a_plain_parquet_file() {
    let rows = rows((0..20_000u64).map(|i| text(i, 1_000)));
    let (bytes, summary) = write(&rows);
    let file = SerializedFileReader::new(Bytes::from(bytes)).unwrap();
    let metadata = file.metadata();
    let mut schema = Vec::new();
    print_schema(&mut schema, metadata.file_metadata().schema());
    let schema = String::from_utf8(schema).unwrap();
    let want = "message entry {
  REQUIRED INT64 ledger_id;
  REQUIRED INT64 entry_id;
  REQUIRED INT64 last_confirmed;
  REQUIRED INT64 ledger_length;
  REQUIRED BYTE_ARRAY digest;
  REQUIRED INT32 crc32c;
  OPTIONAL BYTE_ARRAY payload;
  OPTIONAL BYTE_ARRAY raw;
  OPTIONAL BOOLEAN redacted;
  OPTIONAL INT64 ts (TIMESTAMP(MICROS,true));
}
";
    assert_eq!(schema, want);
    assert_eq!(metadata.file_metadata().num_rows(), 20_000);
    assert_eq!(metadata.file_metadata().created_by(), Some("thermocline version 1"));
    for group in metadata.row_groups() {
        assert_eq!(group.sorting_columns().unwrap().len(), 2);
        assert!(matches!(group.column(6).compression(), Compression::ZSTD(_)));
        assert!(group.column(1).statistics().is_some());
        assert!([0, 2, 3, 4, 5, 6, 7, 8, 9].iter().all(|column| group.column(*column).statistics().is_none()));
        assert!(group.columns().iter().all(|column| column.offset_index_offset().is_some()));
    }
    let ids = file.get_row_iter(None).unwrap().map(|row| row.unwrap().into_columns()).take(3);
    for (id, columns) in ids.enumerate() {
        assert_eq!(columns[1].1.to_string(), id.to_string());
    }
    // The tail is small beside what it indexes.
    assert!(u64::from(summary.footer_bytes) * 100 < summary.object_bytes, "{summary:?}");
}

#[test]
fn compression_is_used_where_it_pays() {
    let codec = |rows: &[Row]| {
        let file = SerializedFileReader::new(Bytes::from(write(rows).0)).unwrap();
        file.metadata().row_group(0).column(6).compression()
    };
    assert_eq!(codec(&rows((0..300u64).map(|i| noise(i, 1_000)))), Compression::UNCOMPRESSED);
    assert!(matches!(codec(&rows((0..300u64).map(|i| text(i, 1_000)))), Compression::ZSTD(_)));
    assert_eq!(codec(&rows([Vec::new()])), Compression::UNCOMPRESSED);
}

#[test]
fn the_same_rows_give_the_same_bytes() {
    let rows = rows((0..4_000u64).map(|i| text(i, 300)));
    assert_eq!(write(&rows), write(&rows));
}

#[test]
fn rows_out_of_place_are_refused() {
    let all = rows((0..3u64).map(|i| noise(i, 9)));
    let refused = |rows: &[Row]| {
        let error = write_with(rows, Limits::v1()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    assert!(refused(&[]).contains("no rows"));
    assert!(refused(&[all[0].clone(), all[0].clone()]).contains("entry 0 follows entry 0"));
    assert!(refused(&[all[0].clone(), all[2].clone()]).contains("not contiguous"));
    assert!(refused(&all[1..]).contains("not contiguous"));
    let change = |change: fn(&mut Row)| {
        let mut row = all[0].clone();
        change(&mut row);
        refused(&[row])
    };
    assert!(change(|row| row.ledger = ledger::LedgerId::new(7).unwrap()).contains("ledger 7"));
    assert!(change(|row| row.crc32c ^= 1).contains("crc32c"));
    assert!(change(|row| row.payload = None).contains("not marked as erased"));
    assert!(change(|row| row.redacted = true).contains("has bytes"));
    assert!(change(|row| row.raw = Some(Bytes::new())).contains("a raw body"));
    assert!(change(|row| row.payload = Some(vec![0; (64 << 20) + 1].into())).contains("bytes"));
}

/// An object as a later minor version might write it: a column this version does not know stands in front of the others.
fn object_with_another_column(
    rows: &[Row],
    pairs: impl Fn(Vec<KeyValue>) -> Vec<KeyValue>,
) -> (Vec<u8>, ObjectSummary) {
    let message = "message entry {
      optional int64 future;
      required int64 ledger_id; required int64 entry_id; required int64 last_confirmed; required int64 ledger_length;
      required binary digest; required int32 crc32c; optional binary payload; optional binary raw; optional boolean redacted;
      optional int64 ts; }";
    let properties = schema::properties(PayloadCodec::Zstd, &Limits::v1());
    let mut file =
        SerializedFileWriter::new(Vec::new(), Arc::new(parse_message_type(message).unwrap()), properties).unwrap();
    let mut group = file.next_row_group().unwrap();
    let present = vec![1i16; rows.len()];
    let absent = vec![0i16; rows.len()];
    let longs = |value: fn(&Row) -> i64| rows.iter().map(value).collect::<Vec<_>>();
    for column in 0..11 {
        let mut writer = group.next_column().unwrap().unwrap();
        match column {
            0 => writer.typed::<Int64Type>().write_batch(&longs(|_| 5), Some(&present), None),
            1 => writer.typed::<Int64Type>().write_batch(&longs(|row| row.ledger.as_i64()), None, None),
            2 => writer.typed::<Int64Type>().write_batch(&longs(|row| row.entry.as_i64()), None, None),
            3 => writer.typed::<Int64Type>().write_batch(
                &longs(|row| EntryId::option_to_i64(row.last_confirmed)),
                None,
                None,
            ),
            4 => writer.typed::<Int64Type>().write_batch(&longs(|row| row.ledger_length as i64), None, None),
            5 => writer.typed::<ByteArrayType>().write_batch(
                &rows.iter().map(|row| ByteArray::from(row.digest.clone())).collect::<Vec<_>>(),
                None,
                None,
            ),
            6 => writer.typed::<Int32Type>().write_batch(
                &rows.iter().map(|row| row.crc32c as i32).collect::<Vec<_>>(),
                None,
                None,
            ),
            7 => writer.typed::<ByteArrayType>().write_batch(
                &rows.iter().map(|row| ByteArray::from(row.payload.clone().unwrap())).collect::<Vec<_>>(),
                Some(&present),
                None,
            ),
            8 => writer.typed::<ByteArrayType>().write_batch(&[], Some(&absent), None),
            9 => writer.typed::<BoolType>().write_batch(&[], Some(&absent), None),
            _ => writer.typed::<Int64Type>().write_batch(&[], Some(&absent), None),
        }
        .unwrap();
        writer.close().unwrap();
    }
    group.close().unwrap();
    file.flush().unwrap();
    let mut bytes = std::mem::take(file.inner_mut());
    let mut pages = Vec::new();
    page_checksums(&bytes[4..], &mut pages).unwrap();
    let checksums = [GroupChecksums { extras: Extras::default(), crc32c: crc32c::crc32c(&bytes[4..]), pages }];
    let payload_bytes = rows.iter().map(Row::payload_bytes).sum();
    let identity = Identity {
        instance_id: INSTANCE.to_owned(),
        object: object(),
        ledger: ledger(),
        entries: rows.len() as u64,
        payload_bytes,
        metadata: Vec::new(),
    };
    for pair in pairs(footer::to_pairs(&identity, &checksums)) {
        file.append_key_value_metadata(pair);
    }
    file.finish().unwrap();
    let tail = std::mem::take(file.inner_mut());
    let footer_offset = bytes.len() as u64;
    bytes.extend_from_slice(&tail);
    let summary = ObjectSummary {
        object: object(),
        object_bytes: bytes.len() as u64,
        object_crc32c: crc32c::crc32c(&bytes),
        footer_offset,
        footer_bytes: tail.len() as u32,
        footer_crc32c: crc32c::crc32c(&tail),
        entries: rows.len() as u64,
        payload_bytes,
        ledger_digest: None,
    };
    (bytes, summary)
}

async fn open(bytes: Vec<u8>, summary: &ObjectSummary) -> Result<ObjectReader> {
    let (store, faults): (ColdStore, _) = cold_store();
    place(&faults, bytes).await;
    ObjectReader::open_summary(&store, INSTANCE, ledger(), summary).await
}

#[tokio::test]
async fn unknown_columns_and_keys_are_passed_over() {
    let rows = rows((0..200u64).map(|i| text(i, 500)));
    let (bytes, summary) = object_with_another_column(&rows, |mut pairs| {
        pairs.push(KeyValue::new("thermocline.later".to_owned(), "1".to_owned()));
        pairs
    });
    let reader = open(bytes, &summary).await.unwrap();
    let group = reader.read_group(0).await.unwrap();
    for row in &rows {
        assert_eq!(group.entry(row.entry).unwrap().as_ref(), Some(row));
        assert_eq!(reader.read_entry(row.entry).await.unwrap().as_ref(), Some(row));
    }
}

#[tokio::test]
async fn other_format_versions_are_refused() {
    let rows = rows([b"a".to_vec()]);
    let version = |value: Option<&'static str>| {
        let (bytes, summary) = object_with_another_column(&rows, |mut pairs| {
            pairs.retain(|pair| pair.key != "thermocline.format");
            pairs.extend(value.map(|value| KeyValue::new("thermocline.format".to_owned(), value.to_owned())));
            pairs
        });
        async move { open(bytes, &summary).await.map(|_| ()).unwrap_err() }
    };
    for (value, word) in [(Some("2"), "\"2\""), (Some(""), "\"\""), (None, "without a thermocline.format")] {
        let error = version(value).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    // A pair of ours that is missing or malformed is damage.
    let (bytes, summary) = object_with_another_column(&rows, |mut pairs| {
        pairs.retain(|pair| pair.key != "thermocline.checksums");
        pairs
    });
    assert_eq!(open(bytes, &summary).await.unwrap_err().kind(), ErrorKind::Damaged);
}
