//! Conformance: what every store must do under [`ColdStore`], as code.
//!
//! A store's test calls [`run`] with a way to open a store whose keys are its own; a shared bucket is fine when each one gets its own
//! prefix. Sizes follow the store's parts, so a store that wants parts of 5 MiB gets such. A failed expectation panics.

use bytes::Bytes;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::rng::Rng;
use futures::StreamExt;
use futures::future::join_all;
use ledger::{BookieId, DigestType, Digester, EntryHeader, EntryId, LedgerId, LedgerMetadata, Password, Quorums};

use crate::{
    Capability, ColdStore, Error, ErrorKind, Finding, Limits, ObjectMeta, ObjectReader, ObjectWriter, Result, Row,
    Uploaded, verify_object,
};

/// Runs every case, each on a store of its own.
///
/// # Panics
/// When the store breaks a rule; the message says which.
pub async fn run(make: impl AsyncFn() -> ColdStore) {
    sizes(&make().await).await;
    taken_keys(&make().await).await;
    races(&make().await).await;
    ranges(&make().await).await;
    listings(&make().await).await;
    stopped_uploads(&make().await).await;
    objects(&make().await).await;
    probes(&make().await).await;
}

/// Bytes that do not compress, the same for the same seed.
fn noise(seed: u64, bytes: u64) -> Bytes {
    let mut noise = vec![0; usize::try_from(bytes).expect("tests are small")];
    Rng::seeded(seed).fill(&mut noise);
    noise.into()
}

fn budget() -> ByteBudget {
    ByteBudget::new("suite", 1 << 30)
}

async fn put(store: &ColdStore, key: &str, bytes: &Bytes) -> Result<Uploaded> {
    let mut upload = store.upload(key, &budget())?;
    // Chunks that are no divisor of a part.
    for start in (0..bytes.len()).step_by(333_333) {
        upload.write(bytes.slice(start..bytes.len().min(start + 333_333))).await?;
    }
    upload.finish().await
}

fn kind<T>(what: &str, done: Result<T>) -> ErrorKind {
    match done {
        Err(error) => error.kind(),
        Ok(_) => panic!("{what}: it must be refused"),
    }
}

fn done<T>(what: &str, done: Result<T>) -> T {
    done.unwrap_or_else(|error| panic!("{what}: {}", words(&error)))
}

fn words(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// Objects below, at and beyond the size of a part come back as they were.
async fn sizes(store: &ColdStore) {
    let part = store.part_bytes();
    for size in [0, 1, part - 1, part, part + 1, 2 * part + 500] {
        let key = format!("sizes/{size}");
        let bytes = noise(size, size);
        let uploaded = done(&key, put(store, &key, &bytes).await);
        assert_eq!(uploaded.bytes, size, "{key}");
        let facts = done(&key, store.head(&key).await);
        assert_eq!((facts.bytes, facts.key.as_str()), (size, key.as_str()));
        if size > 0 {
            assert_eq!(done(&key, store.get_range(&key, 0..size, Some(size)).await), bytes, "{key}");
        }
    }
    assert_eq!(kind("look up an absent object", store.head("sizes/none").await), ErrorKind::NotFound);
    assert_eq!(kind("read an absent object", store.get_range("sizes/none", 0..1, None).await), ErrorKind::NotFound);
}

/// An object is never replaced, whether it was written whole or in parts.
async fn taken_keys(store: &ColdStore) {
    for size in [10, store.part_bytes() + 10] {
        let key = format!("taken/{size}");
        let first = noise(1, size);
        done(&key, put(store, &key, &first).await);
        for other in [size, size + 1] {
            let refused = kind(&key, put(store, &key, &noise(2, other)).await);
            assert_eq!(refused, ErrorKind::AlreadyExists, "{key}");
        }
        assert_eq!(done(&key, store.get_range(&key, 0..size, Some(size)).await), first, "{key}");
    }
}

/// Of many writers of one key one wins, and its bytes are there.
async fn races(store: &ColdStore) {
    for round in 0..5 {
        let key = format!("races/{round}");
        let writers = (0..16u64).map(|writer| {
            let key = &key;
            async move { put(store, key, &noise(writer, 2_000)).await }
        });
        let outcomes = join_all(writers).await;
        let winners: Vec<usize> =
            outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_ok()).map(|(writer, _)| writer).collect();
        assert_eq!(winners.len(), 1, "round {round}: the winners are {winners:?}");
        for refused in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "round {round}: {}", words(refused));
        }
        let found = done(&key, store.get_range(&key, 0..2_000, Some(2_000)).await);
        assert_eq!(found, noise(winners[0] as u64, 2_000), "round {round}");
    }
}

/// Exactly the range that was asked for, or damage.
async fn ranges(store: &ColdStore) {
    let size = store.part_bytes() + 1_000;
    let bytes = noise(3, size);
    done("write", put(store, "ranges", &bytes).await);
    let seam = store.part_bytes();
    for range in [0..1, 1..2, 0..100, seam - 5..seam + 5, size - 1..size, size - 1_000..size] {
        let found = done("read", store.get_range("ranges", range.clone(), Some(size)).await);
        let place = |offset: u64| usize::try_from(offset).expect("tests are small");
        assert_eq!(found, bytes.slice(place(range.start)..place(range.end)), "{range:?}");
    }
    for (what, range, object_bytes) in [
        ("beyond the end", size - 5..size + 1, None),
        ("behind the end", size..size + 1, None),
        ("of an object of another size", 0..10, Some(size - 1)),
    ] {
        assert_eq!(kind(what, store.get_range("ranges", range, object_bytes).await), ErrorKind::Damaged, "{what}");
    }
    let empty = store.get_range("ranges", 5..5, None).await;
    assert_eq!(kind("an empty range", empty), ErrorKind::Invalid);
    assert_eq!(kind("a malformed key", store.get_range("a//b", 0..10, None).await), ErrorKind::Invalid);
}

/// Listings are ascending, complete over pages, bounded, begin where told, and keep to whole path segments.
async fn listings(store: &ColdStore) {
    let keys: Vec<String> = (0..1_050).map(|number| format!("list/{number:04}")).collect();
    let byte = Bytes::from_static(b"x");
    let all = ["list2/other".to_owned(), "list/deep/er".to_owned()];
    let writes = keys.iter().chain(&all).map(|key| put(store, key, &byte));
    let written: Vec<_> = futures::stream::iter(writes).buffer_unordered(24).collect().await;
    written.into_iter().for_each(|outcome| drop(done("write", outcome)));
    let list = async |after: Option<&str>, limit| -> Vec<String> {
        done("list", store.list("list", after, limit).await).into_iter().map(|facts| facts.key).collect()
    };
    let whole = list(None, 10_000).await;
    assert_eq!(whole.len(), 1_051);
    assert_eq!(whole[..1_050], keys);
    assert_eq!(whole[1_050], "list/deep/er");
    assert_eq!(list(None, 3).await, keys[..3]);
    assert_eq!(list(Some("list/0003"), 2).await, keys[4..6]);
    assert_eq!(list(Some("list/1048"), 10).await, ["list/1049", "list/deep/er"]);
    assert_eq!(list(Some("list/zzz"), 10).await, Vec::<String>::new());
    assert_eq!(done("list nothing", store.list("nothing", None, 10).await), []);
}

/// An upload that was given up or dropped is no object, and its key is free.
async fn stopped_uploads(store: &ColdStore) {
    let bytes = noise(4, store.part_bytes() + 10);
    let mut upload = done("begin", store.upload("stopped/aborted", &budget()));
    done("write", upload.write(bytes.clone()).await);
    done("abort", upload.abort().await);
    let mut upload = done("begin", store.upload("stopped/dropped", &budget()));
    done("write", upload.write(bytes.clone()).await);
    drop(upload);
    for key in ["stopped/aborted", "stopped/dropped"] {
        assert_eq!(kind(key, store.head(key).await), ErrorKind::NotFound, "{key}");
        done(key, put(store, key, &bytes).await);
    }
}

/// A ledger's object is written, verified and read entry by entry.
async fn objects(store: &ColdStore) {
    let instance = "5b9a2f0e-1c0d-4c55-8a0f-6f0f2b9d7e11";
    let ledger = LedgerId::new(42).expect("a valid id");
    let bookies = (1..=3).map(|i| BookieId::new(&format!("bookie-{i}:3181")).expect("a valid id")).collect();
    let quorums = Quorums::new(3, 3, 2).expect("valid quorums");
    let password = Password::new(b"correct-horse".to_vec());
    let metadata =
        LedgerMetadata::open(quorums, bookies, DigestType::Crc32c, password.clone()).expect("valid metadata");
    let object = Rng::seeded(store.part_bytes()).uuid();
    let meta = ObjectMeta::new(instance, ledger, object, &metadata);
    let key = meta.key();
    let digester = Digester::new(DigestType::Crc32c, &password);
    let mut writer = ObjectWriter::new(meta, Limits::v1());
    let mut upload = done("begin", store.upload(&key, &budget()));
    let entries: Vec<Bytes> = (0..200).map(|id| noise(id, 40_000)).collect();
    let mut length = 0;
    for (id, payload) in entries.iter().enumerate() {
        let id = EntryId::new(id as u64).expect("a valid id");
        length += payload.len() as u64;
        let header = EntryHeader { ledger, entry: id, last_confirmed: id.prev(), length };
        let body = digester.seal(&header, payload);
        let entry = digester.open(ledger, Some(id), &body).expect("what was sealed opens");
        if let Some(chunk) = done("encode", writer.push(Row::from_entry(&entry))) {
            done("write", upload.write(chunk).await);
        }
    }
    let (tail, summary) = done("encode", writer.finish());
    done("write", upload.write(tail).await);
    assert_eq!(done("finish", upload.finish().await).bytes, summary.object_bytes);
    done("verify", verify_object(store, instance, ledger, &summary, &budget()).await);
    let reader = done("open", ObjectReader::open_summary(store, instance, ledger, &summary).await);
    for id in [0, 77, 199] {
        let row = done("read", reader.read_entry(EntryId::new(id).expect("a valid id")).await);
        assert_eq!(
            row.and_then(|row| row.payload).as_ref(),
            entries.get(usize::try_from(id).expect("small")),
            "entry {id}"
        );
    }
}

/// The check at start and the whole probe pass and leave nothing.
async fn probes(store: &ColdStore) {
    done("check", store.check().await);
    let mut begun = Vec::new();
    let report = store.probe(&Clock::system(), |capability| begun.push(capability)).await;
    assert_eq!(begun, Capability::ALL);
    assert!(report.is_usable(), "{report:?}");
    for (capability, finding) in &report.findings {
        assert!(matches!(finding, Finding::Works(_)), "{capability:?}: {finding:?}");
    }
    assert!(report.round_trip_p50.is_some() && report.left_behind.is_empty(), "{report:?}");
    assert_eq!(done("list", store.list(".thermocline-check", None, 10).await), []);
}
