use std::collections::BTreeSet;

use common::budget::ByteBudget;
use ledger::{DigestType, Digester, Password};
use proptest::prelude::*;

use super::*;
use crate::testing::*;
use crate::{Fault, Row};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn open(store: &ColdStore, summary: &ObjectSummary) -> Result<ObjectReader> {
    ObjectReader::open_summary(store, INSTANCE, ledger(), summary).await
}

/// Everything an object says, in order.
async fn read_all(reader: &ObjectReader) -> Result<Vec<Row>> {
    let mut out = Vec::new();
    for index in 0..reader.row_groups().len() {
        let group = reader.read_group(index).await?;
        out.extend(group.rows(group.first()..group.last().next()).collect::<Result<Vec<_>>>()?);
    }
    Ok(out)
}

/// Writes rows, reads them back by every path, and gives the object.
async fn round_trip(rows: &[Row], limits: Limits) -> (Vec<u8>, ObjectSummary, ObjectReader) {
    let (bytes, summary) = write_with(rows, limits).unwrap();
    assert_eq!(summary.object_bytes, bytes.len() as u64);
    assert_eq!(summary.object_crc32c, crc32c::crc32c(&bytes));
    assert_eq!(summary.entries, rows.len() as u64);
    let (store, faults) = cold_store();
    place(&faults, bytes.clone()).await;
    let reader = open(&store, &summary).await.unwrap();
    let tail = summary.footer_offset..summary.object_bytes;
    assert_eq!(faults.take_traffic().gets.as_slice(), std::slice::from_ref(&tail), "one read opens an object");
    assert_eq!(read_all(&reader).await.unwrap(), rows);
    verify_object(&store, INSTANCE, ledger(), &summary, &ByteBudget::new("test", 1 << 30)).await.unwrap();
    (bytes, summary, reader)
}

#[tokio::test]
async fn a_ledger_reads_back_bit_for_bit() {
    let rows = rows((0..3_000u64).map(|i| text(i, (i % 700) as usize)));
    let (_, summary, reader) = round_trip(&rows, small()).await;
    assert!(reader.row_groups().len() > 3);
    let digester = Digester::new(DigestType::Crc32c, &Password::new(PASSWORD.to_vec()));
    for row in rows.iter().step_by(97) {
        let read = reader.read_entry(row.entry).await.unwrap().unwrap();
        assert_eq!(&read, row);
        let body = read.rebuild_body().unwrap();
        let opened = digester.open(ledger(), Some(row.entry), &body).unwrap();
        assert_eq!(Some(opened), read.to_entry());
    }
    let end = entry(summary.entries);
    assert_eq!(reader.read_entry(end).await.unwrap(), None);
    assert!(reader.group_of(end).is_none());
    let record = summary.to_record(0, 7, None);
    assert_eq!(ObjectSummary::from(&record), summary);
    assert_eq!(reader.key(), record.object_key(INSTANCE, ledger()));
}

#[tokio::test]
async fn the_password_is_nowhere() {
    let (bytes, _, reader) = round_trip(&rows([b"payload".to_vec()]), Limits::v1()).await;
    let in_hex = hex::encode(PASSWORD);
    for secret in [PASSWORD, in_hex.as_bytes()] {
        assert!(bytes.windows(secret.len()).all(|window| window != secret));
    }
    let snapshot = ledger::LedgerMetadata::decode(reader.metadata_snapshot()).unwrap();
    assert_eq!(snapshot, metadata().without_password());
    assert_eq!(snapshot.digest_type(), Some(DigestType::Crc32c));
}

#[tokio::test]
async fn row_groups_keep_their_caps() {
    let limits = Limits::v1();
    let many = rows((0..140_000u64).map(|i| (i as u32).to_be_bytes().to_vec()));
    let wide = rows((0..40u64).map(|i| noise(i, 900_000)));
    let shrinking = rows((0..90u64).map(|_| vec![b'x'; 1 << 20]));
    let huge = rows((0..3u64).map(|i| noise(i, 9 << 20)));
    for (rows, name) in [(many, "many"), (wide, "wide"), (shrinking, "shrinking"), (huge, "huge")] {
        let (_, _, reader) = round_trip(&rows, limits).await;
        for group in reader.row_groups() {
            assert!(group.rows == 1 || group.fetch_bytes() <= limits.group_encoded_bytes, "{name}: {group:?}");
            assert!(group.rows <= limits.group_rows, "{name}: {group:?}");
            let decoded = reader.read_group(group.index).await.unwrap();
            assert!(decoded.memory_bytes() <= limits.group_raw_bytes + (8 << 20), "{name}: {}", decoded.memory_bytes());
            assert!(decoded.memory_bytes() <= group.decoded_bytes, "{name}: {} of {group:?}", decoded.memory_bytes());
        }
        let groups = reader.row_groups();
        match name {
            "many" => assert_eq!(groups.len(), 2),
            "huge" => assert!(groups.iter().all(|group| group.rows == 1)),
            "wide" => assert!(groups[0].fetch_bytes() > limits.group_encoded_bytes / 2),
            _ => assert_eq!(groups.len(), 2, "cut by decoded bytes"),
        }
    }
}

#[tokio::test]
async fn reads_cost_what_they_say() {
    let rows = rows((0..20_000u64).map(|i| noise(i, 1_024)));
    let (bytes, summary) = write(&rows);
    let (store, faults) = cold_store();
    place(&faults, bytes).await;
    let reader = open(&store, &summary).await.unwrap();
    faults.take_traffic();
    for index in 0..reader.row_groups().len() {
        reader.read_group(index).await.unwrap();
        assert_eq!(faults.take_traffic().gets, [reader.row_groups()[index].range.clone()]);
    }
    let mut most = 0;
    for row in rows.iter().step_by(777) {
        assert_eq!(reader.read_entry(row.entry).await.unwrap().as_ref(), Some(row));
        let traffic = faults.take_traffic();
        assert!(traffic.gets.len() <= 2, "{traffic:?}");
        most = most.max(traffic.get_bytes());
    }
    assert!(most <= 240 << 10, "{most} bytes for one entry");
    assert!(most >= 128 << 10, "a payload page is at least 128 KiB, {most} bytes were counted");
}

#[tokio::test]
async fn an_entry_is_read_within_the_memory_that_its_caller_has() {
    // What shrinks well decodes to far more than is fetched.
    let rows = rows((0..64u64).map(|i| if i % 32 == 7 { vec![7; 4 << 20] } else { text(i, 1_024) }));
    let (bytes, summary) = write(&rows);
    let (store, faults) = cold_store();
    place(&faults, bytes).await;
    let reader = open(&store, &summary).await.unwrap();
    let mut retries = 0;
    for row in &rows {
        let mut bytes = reader.entry_bytes(row.entry).unwrap();
        let fetched = reader.group_of(row.entry).unwrap().fetch_bytes();
        assert!(bytes <= 2 * fetched + (1 << 20), "{bytes} for entry {}", row.entry);
        faults.take_traffic();
        assert!(
            matches!(reader.read_entry_within(row.entry, 10).await.unwrap(), EntryRead::Needs(needed) if needed >= bytes.min(8 << 10))
        );
        assert!(faults.take_traffic().gets.is_empty(), "nothing is fetched that there is no room for");
        loop {
            match reader.read_entry_within(row.entry, bytes).await.unwrap() {
                EntryRead::Row(read) => {
                    assert_eq!(&read, row);
                    break;
                }
                EntryRead::Needs(more) => {
                    assert!(more > bytes);
                    (bytes, retries) = (more, retries + 1);
                }
            }
        }
    }
    assert!(retries >= 2, "{retries}");
    let end = EntryId::new(64).unwrap();
    assert_eq!(reader.entry_bytes(end), None);
    assert_eq!(reader.read_entry_within(end, u64::MAX).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn unusual_rows_read_back() {
    let mut rows = rows((0..300u64).map(|i| text(i, 100)));
    // Another LAC and a shorter length, as recovery and other replicas leave them.
    rows[5].last_confirmed = None;
    rows[6].last_confirmed = Some(entry(299));
    rows[7].ledger_length = 3;
    rows[8].ledger_length = i64::MAX as u64;
    rows[9].digest = Bytes::new();
    rows[10].digest = vec![7; 20].into();
    for row in &mut rows[5..11] {
        row.crc32c = row.body_crc32c().unwrap();
    }
    rows[20] = Row::from_raw(ledger(), entry(20), Bytes::from_static(b"not a body"));
    rows[21] = Row::from_raw(ledger(), entry(21), Bytes::new());
    rows[30].payload = None;
    rows[30].redacted = true;
    rows[40].timestamp_micros = Some(-5);
    rows[41].timestamp_micros = Some(1_764_518_400_000_000);
    let (_, _, reader) = round_trip(&rows, small()).await;
    for row in &rows {
        assert_eq!(reader.read_entry(row.entry).await.unwrap().as_ref(), Some(row));
    }
    let group = reader.read_group(0).await.unwrap();
    assert_eq!(group.entry(entry(20)).unwrap().unwrap().rebuild_body().unwrap(), "not a body");
    assert_eq!(group.entry(entry(30)).unwrap().unwrap().rebuild_body(), None);
}

#[tokio::test]
async fn ranges_of_a_row_group() {
    let rows = rows((0..100u64).map(|i| noise(i, 10)));
    let (_, _, reader) = round_trip(&rows, small()).await;
    let group = reader.read_group(0).await.unwrap();
    let ids =
        |from: u64, to: u64| group.rows(entry(from)..entry(to)).map(|row| row.unwrap().entry.get()).collect::<Vec<_>>();
    assert_eq!(ids(0, 3), [0, 1, 2]);
    assert_eq!(ids(98, 200), [98, 99]);
    assert!(ids(7, 7).is_empty());
    assert!(ids(9, 7).is_empty());
    assert!(ids(100, 200).is_empty());
    assert_eq!(group.entry(entry(100)).unwrap(), None);
}

#[tokio::test]
async fn another_cluster_ledger_or_generation_is_refused() {
    let (bytes, summary) = write(&rows([b"a".to_vec()]));
    let (store, faults) = cold_store();
    place(&faults, bytes.clone()).await;
    let refused = |result: Result<ObjectReader>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.to_string().contains(".parquet"), "{error}");
        error.to_string()
    };
    for (change, word) in [
        (ObjectSummary { entries: 2, ..summary.clone() }, "entries"),
        (ObjectSummary { payload_bytes: 2, ..summary.clone() }, "payload bytes"),
        (
            ObjectSummary {
                object_bytes: summary.object_bytes + 1,
                footer_bytes: summary.footer_bytes + 1,
                ..summary.clone()
            },
            "bytes, expected",
        ),
        (ObjectSummary { footer_crc32c: 0, ..summary.clone() }, "crc32c"),
        (ObjectSummary { footer_offset: u64::MAX, ..summary.clone() }, "impossible"),
    ] {
        let error = refused(open(&store, &change).await);
        assert!(error.contains(word), "{error}");
    }
    // The same bytes under other names.
    let elsewhere = ObjectSummary { object: uuid::Uuid::from_u128(5), ..summary.clone() };
    let other_ledger = LedgerId::new(43).unwrap();
    for (instance, ledger, summary, word) in [
        ("another", ledger(), &summary, "cluster"),
        (INSTANCE, other_ledger, &summary, "ledger"),
        (INSTANCE, ledger(), &elsewhere, "generation"),
    ] {
        let key = ColdRecord::key_of(instance, ledger, summary.object);
        let mut upload = store.upload(&key, &ByteBudget::new("test", 1 << 30)).unwrap();
        upload.write(bytes.clone().into()).await.unwrap();
        upload.finish().await.unwrap();
        let error = refused(ObjectReader::open_summary(&store, instance, ledger, summary).await);
        assert!(error.contains(word), "{error}");
    }
    let gone = ObjectSummary { object: uuid::Uuid::from_u128(6), ..summary };
    assert_eq!(open(&store, &gone).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn cut_objects_are_damage() {
    let rows = rows((0..500u64).map(|i| noise(i, 300)));
    let (bytes, summary) = write_with(&rows, small()).unwrap();
    for keep in [0, 1, 8, bytes.len() / 2, bytes.len() - 9, bytes.len() - 1] {
        let (store, faults) = cold_store();
        place(&faults, bytes[..keep].to_vec()).await;
        let error = open(&store, &summary).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "kept {keep}: {error}");
        assert!(error.to_string().contains(&meta().key()), "{error}");
    }
    // Cut after it was opened.
    let (store, faults) = cold_store();
    place(&faults, bytes.clone()).await;
    let reader = open(&store, &summary).await.unwrap();
    place(&faults, bytes[..1_000].to_vec()).await;
    assert_eq!(reader.read_group(1).await.unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(reader.read_entry(entry(400)).await.unwrap_err().kind(), ErrorKind::Damaged);
}

// Paused time: the pauses between tries must not run into the deadline of all tries on a busy machine.
#[tokio::test(start_paused = true)]
async fn lying_answers_are_damage_and_failed_ones_are_repeated() {
    let rows = rows((0..500u64).map(|i| noise(i, 300)));
    let (bytes, summary) = write_with(&rows, small()).unwrap();
    let (store, faults) = cold_store();
    place(&faults, bytes).await;
    let reader = open(&store, &summary).await.unwrap();
    for fault in
        [Fault::CutGet(1), Fault::CutGet(usize::MAX), Fault::LengthenGet, Fault::FlipGet(77), Fault::FlipGet(20_000)]
    {
        faults.inject(fault);
        let error = reader.read_group(0).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{fault:?}: {error}");
        assert!(error.to_string().contains(&meta().key()), "{error}");
    }
    faults.inject(Fault::FailGet);
    faults.inject(Fault::FailGet);
    assert_eq!(reader.read_group(0).await.unwrap().len(), reader.row_groups()[0].rows as usize);
    for _ in 0..200 {
        faults.inject(Fault::FailGet);
    }
    assert_eq!(reader.read_group(0).await.err().unwrap().kind(), ErrorKind::Transient);
}

/// Whatever is done to an object, what is read is what was written, or an error.
async fn true_or_error(bytes: Vec<u8>, summary: &ObjectSummary, rows: &[Row]) -> BTreeSet<ErrorKindName> {
    let (store, faults) = cold_store();
    place(&faults, bytes).await;
    let mut seen = BTreeSet::new();
    let reader = match open(&store, summary).await {
        Ok(reader) => reader,
        Err(error) => return [format!("{:?}", error.kind())].into(),
    };
    for index in 0..reader.row_groups().len() {
        match reader.read_group(index).await {
            Ok(group) => {
                for row in group.rows(group.first()..group.last().next()) {
                    match row {
                        Ok(row) => assert_eq!(row, rows[row.entry.get() as usize]),
                        Err(error) => drop(seen.insert(format!("{:?}", error.kind()))),
                    }
                }
            }
            Err(error) => drop(seen.insert(format!("{:?}", error.kind()))),
        }
    }
    for row in rows.iter().step_by(7) {
        match reader.read_entry(row.entry).await {
            Ok(read) => assert_eq!(read.as_ref(), Some(row)),
            Err(error) => drop(seen.insert(format!("{:?}", error.kind()))),
        }
    }
    let verified = verify_object(&store, INSTANCE, ledger(), summary, &ByteBudget::new("test", 1 << 30)).await;
    seen.insert(verified.err().map_or("Verified".to_owned(), |error| format!("{:?}", error.kind())));
    seen
}

type ErrorKindName = String;

#[tokio::test]
async fn one_altered_byte_is_found_wherever_it_is() {
    for payloads in [0, 1] {
        // One object stores payloads, the other compresses them.
        let make = |i: u64| if payloads == 0 { noise(i, 60) } else { text(7, 60) };
        let rows = rows((0..40u64).map(make));
        let (bytes, summary) = write_with(&rows, Limits { group_rows: 25, ..small() }).unwrap();
        let intact = true_or_error(bytes.clone(), &summary, &rows).await;
        assert_eq!(intact, ["Verified".to_owned()].into());
        for place in (0..bytes.len()).step_by(5) {
            let mut altered = bytes.clone();
            altered[place] ^= 1 << (place % 8);
            let seen = true_or_error(altered, &summary, &rows).await;
            assert!(seen.contains("Damaged"), "byte {place}: {seen:?}");
            assert!(!seen.contains("Verified"), "byte {place}: {seen:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn random_rows_round_trip(
        sizes in prop::collection::vec(prop_oneof![8 => 0usize..400, 2 => 0usize..40_000, 1 => 0usize..(2 << 20)], 1..60),
        seed in any::<u64>(),
        shrink in any::<bool>(),
    ) {
        let rows = rows(sizes.iter().enumerate().map(|(i, size)| {
            let seed = seed ^ i as u64;
            if shrink { text(seed, *size) } else { noise(seed, *size) }
        }));
        runtime().block_on(async {
            let (_, _, reader) = round_trip(&rows, small()).await;
            for row in rows.iter().step_by(5) {
                assert_eq!(reader.read_entry(row.entry).await.unwrap().as_ref(), Some(row));
            }
        });
    }

    #[test]
    fn many_alterations_never_change_what_is_read(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let rows = rows((0..60u64).map(|i| text(i, 90)));
        let (bytes, summary) = write_with(&rows, Limits { group_rows: 25, ..small() }).unwrap();
        let mut altered = bytes.clone();
        for (place, value) in flips {
            altered[place.index(bytes.len())] = value;
        }
        if let Some(cut) = cut {
            altered.truncate(cut.index(bytes.len()));
        }
        runtime().block_on(true_or_error(altered, &summary, &rows));
    }

    /// Past the checksums: a tail that matches its record but no writer made, as a hostile or broken writer would leave it.
    #[test]
    fn a_malformed_tail_with_a_right_checksum_is_no_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        anywhere in any::<bool>(),
    ) {
        let rows = rows((0..60u64).map(|i| text(i, 90)));
        let (bytes, mut summary) = write_with(&rows, Limits { group_rows: 25, ..small() }).unwrap();
        let mut altered = bytes.clone();
        let from = if anywhere { 0 } else { summary.footer_offset as usize };
        for (place, value) in flips {
            altered[from + place.index(bytes.len() - from)] = value;
        }
        summary.footer_crc32c = crc32c::crc32c(&altered[summary.footer_offset as usize..]);
        summary.object_crc32c = crc32c::crc32c(&altered);
        runtime().block_on(true_or_error(altered, &summary, &rows));
    }
}
