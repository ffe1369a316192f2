use common::budget::ByteBudget;
use url::Url;

use super::*;
use crate::testing::*;
use crate::{Fault, FaultStore};

fn budget() -> ByteBudget {
    ByteBudget::new("test", 1 << 30)
}

fn small_parts() -> (ColdStore, FaultStore) {
    let faults = FaultStore::in_memory();
    let options = StoreOptions { part_bytes: 1_000, parts_in_flight: 2, ..options() };
    (faults.cold_store(options, Rng::seeded(1)), faults)
}

async fn put(store: &ColdStore, key: &str, bytes: Vec<u8>) -> Result<Uploaded> {
    let mut upload = store.upload(key, &budget())?;
    for chunk in bytes.chunks(333) {
        upload.write(Bytes::copy_from_slice(chunk)).await?;
    }
    upload.finish().await
}

#[tokio::test]
async fn uploads_of_every_size_read_back() {
    let (store, faults) = small_parts();
    for size in [0usize, 1, 999, 1_000, 1_001, 2_000, 5_500] {
        let key = format!("a/b/{size}");
        let bytes = noise(size as u64, size);
        let done = put(&store, &key, bytes.clone()).await.unwrap();
        let traffic = faults.take_traffic();
        assert_eq!((traffic.puts, traffic.multiparts), if size <= 1_000 { (1, 0) } else { (0, 1) }, "{size}");
        assert_eq!(done.bytes, size as u64);
        assert_eq!(store.head(&key).await.unwrap().bytes, size as u64);
        if size > 0 {
            assert_eq!(store.get_range(&key, 0..size as u64, Some(size as u64)).await.unwrap(), bytes);
        }
    }
    assert_eq!(store.head("a/b/none").await.unwrap_err().kind(), ErrorKind::NotFound);
    let listed: Vec<_> = store.list("a/b", None, 3).await.unwrap().into_iter().map(|found| found.key).collect();
    assert_eq!(listed, ["a/b/0", "a/b/1", "a/b/1000"]);
    let listed: Vec<_> =
        store.list("a/b", Some("a/b/1000"), 2).await.unwrap().into_iter().map(|found| found.key).collect();
    assert_eq!(listed, ["a/b/1001", "a/b/2000"]);
}

#[tokio::test]
async fn a_taken_key_is_never_replaced() {
    let (store, _) = small_parts();
    for size in [10, 3_000] {
        let key = format!("key-{size}");
        put(&store, &key, noise(1, size)).await.unwrap();
        for other in [size, size + 1] {
            let error = put(&store, &key, noise(2, other)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        }
        assert_eq!(store.get_range(&key, 0..size as u64, None).await.unwrap(), noise(1, size));
    }
}

#[tokio::test]
async fn a_lost_reply_is_found_out() {
    let (store, faults) = small_parts();
    faults.inject(Fault::LosePutReply);
    assert_eq!(put(&store, "small", noise(1, 10)).await.unwrap().bytes, 10);
    faults.inject(Fault::LosePutReply);
    assert_eq!(put(&store, "large", noise(1, 3_001)).await.unwrap().bytes, 3_001);

    faults.inject(Fault::FailPut);
    let error = put(&store, "failed", noise(1, 10)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    faults.inject(Fault::FailPut);
    let error = put(&store, "failed", noise(1, 4_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert_eq!(store.head("failed").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(faults.take_traffic().deletes, 0);
}

#[tokio::test]
async fn a_stopped_upload_leaves_no_object() {
    let (store, _) = small_parts();
    let mut upload = store.upload("stopped", &budget()).unwrap();
    upload.write(noise(1, 5_000).into()).await.unwrap();
    upload.abort().await.unwrap();
    let mut upload = store.upload("dropped", &budget()).unwrap();
    upload.write(noise(1, 5_000).into()).await.unwrap();
    drop(upload);
    for key in ["stopped", "dropped"] {
        assert_eq!(store.head(key).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[tokio::test]
async fn uploads_share_a_budget_smaller_than_a_part() {
    let (store, _) = small_parts();
    let tight = ByteBudget::new("tight", 100);
    let work = (0..4u64).map(|i| {
        let (store, tight) = (store.clone(), tight.clone());
        async move {
            let mut upload = store.upload(&format!("tight-{i}"), &tight).unwrap();
            for part in 0..10 {
                upload.write(noise(part, 700).into()).await.unwrap();
            }
            upload.finish().await.unwrap();
        }
    });
    futures::future::join_all(work).await;
    assert_eq!(tight.peak_bytes(), 100);
    assert_eq!(tight.used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_upload_with_room_of_its_own_does_not_wait_behind_others() {
    let (store, _) = small_parts();
    let budget = ByteBudget::new("shared", 10_000);
    // As an offload job does: what it works with, and room for one part, at once.
    let mut work = budget.acquire(4_000 + store.part_bytes()).await;
    let mut upload = store.upload("kept", &budget).unwrap().keep(work.split(store.part_bytes()));
    // Somebody who needs more than is left until the upload has ended, and behind whom every request queues.
    let large = budget.acquire(8_000);
    tokio::pin!(large);
    assert!(futures::poll!(&mut large).is_pending());
    let all = async {
        upload.write(noise(1, 7_500).into()).await.unwrap();
        upload.finish().await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("it does not wait for the one that waits for it");
    drop(work);
    assert_eq!(large.await.bytes(), 8_000);
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn memory_of_a_streaming_write_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let url = Url::from_directory_path(directory.path()).unwrap();
    let store = ColdStore::open(&url, StoreOptions { parts_in_flight: 2, ..options() }, Rng::seeded(1)).unwrap();
    let uploads = ByteBudget::new("uploads", 24 << 20);
    let mut upload = store.upload(&meta().key(), &uploads).unwrap();
    let mut writer = crate::ObjectWriter::new(meta(), crate::Limits::v1());
    let mut most = 0;
    let digester = ledger::Digester::new(ledger::DigestType::Crc32c, &ledger::Password::new(PASSWORD.to_vec()));
    let (payload, mut length) = (noise(1, 4_096), 0);
    for id in 0..(64u64 << 20) / 4_096 {
        length += 4_096;
        let header =
            ledger::EntryHeader { ledger: ledger(), entry: entry(id), last_confirmed: entry(id).prev(), length };
        let body = digester.seal(&header, &payload);
        let row = crate::Row::from_entry(&digester.open(ledger(), None, &body).unwrap());
        if let Some(chunk) = writer.push(row).unwrap() {
            upload.write(chunk).await.unwrap();
        }
        most = most.max(writer.memory_bytes());
    }
    let (last, summary) = writer.finish().unwrap();
    upload.write(last).await.unwrap();
    let done = upload.finish().await.unwrap();
    assert_eq!(done.bytes, summary.object_bytes);
    assert!(most <= 20 << 20, "the writer held {most} bytes");
    assert!(uploads.peak_bytes() <= 24 << 20, "{}", uploads.peak_bytes());
    let reads = ByteBudget::new("reads", 48 << 20);
    crate::verify_object(&store, INSTANCE, ledger(), &summary, &reads).await.unwrap();
    assert!(reads.peak_bytes() <= 48 << 20);
}

#[tokio::test]
async fn a_directory_is_made_checked_and_used() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("not/there yet");
    let url = Url::from_directory_path(&root).unwrap();
    let store = ColdStore::open(&url, options(), Rng::seeded(1)).unwrap();
    store.check().await.unwrap();
    assert_eq!(store.list(".thermocline-check", None, 10).await.unwrap(), []);
    put(&store, &meta().key(), noise(1, 10)).await.unwrap();
    assert!(root.join(meta().key()).is_file());
    // Part by part, into a directory that exists by now.
    let large = put(&store, "7f/x/large", noise(1, 9 << 20)).await.unwrap();
    assert_eq!(large.bytes, 9 << 20);
    assert_eq!(store.get_range("7f/x/large", 5..9, Some(9 << 20)).await.unwrap(), noise(1, 9)[5..]);
    let error = store.get_range("7f/x/large", 5..(9 << 20) + 1, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}

#[tokio::test]
async fn a_check_says_what_does_not_work() {
    let (store, faults) = cold_store();
    store.check().await.unwrap();
    let traffic = faults.take_traffic();
    assert_eq!((traffic.puts, traffic.deletes), (1, 1));
    faults.inject(Fault::FailPut);
    let error = store.check().await.unwrap_err();
    assert!(error.to_string().contains("cannot write to it"), "{error}");
    faults.inject(Fault::FlipGet(3));
    let error = store.check().await.unwrap_err();
    assert!(error.to_string().contains("other bytes"), "{error}");
    assert_eq!(faults.take_traffic().deletes, 1, "its own probe is removed");
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let (store, faults) = small_parts();
    let object = noise(1, 10);
    for (fault, kind, advice) in [
        (Fault::DenyPut, ErrorKind::Denied, "give these credentials the right"),
        (Fault::LoseBucket, ErrorKind::Config, "the bucket is missing; create it"),
    ] {
        faults.inject(fault);
        let error = put(&store, "key", object.clone()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(advice) && error.to_string().contains("key"), "{error}");
    }
    for (fault, kind, advice) in [
        (Fault::DenyPut, ErrorKind::Denied, "cannot write to it, permission denied"),
        (Fault::LoseBucket, ErrorKind::Config, "does not exist: create it"),
        (Fault::DenyGet, ErrorKind::Denied, "cannot read a range"),
    ] {
        faults.inject(fault);
        let error = store.check().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[tokio::test]
async fn bad_urls_are_refused_with_advice() {
    let open = |url: &str| ColdStore::open(&Url::parse(url).unwrap(), options(), Rng::seeded(1));
    let file = tempfile::NamedTempFile::new().unwrap();
    let below_a_file = format!("file://{}/store", file.path().display());
    for (url, advice) in [
        ("ftp://host/path", "write it as file:///"),
        ("s3:///path", "s3:"),
        ("s3:///path", "names no bucket"),
        ("file://another-host/path", "no directory of this machine"),
        (below_a_file.as_str(), "choose a directory"),
    ] {
        let error = open(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    }
    let shown = open("ftp://user:secret@host/path?token=secret").unwrap_err().to_string();
    assert!(!shown.contains("secret"), "{shown}");
    open("memory:///").unwrap().check().await.unwrap();
    assert_eq!(open("s3://bucket/some/path").unwrap().path("a/b").unwrap().as_ref(), "some/path/a/b");
    assert_eq!(open("s3://bucket/some/path").unwrap().key(&Path::parse("some/path/a/b").unwrap()), "a/b");
}

#[tokio::test]
async fn ranges_are_bounded() {
    let (store, _) = cold_store();
    put(&store, "key", noise(1, 100)).await.unwrap();
    for range in [5..5, 0..u64::MAX, 0..(256 << 20) + 1] {
        assert_eq!(store.get_range("key", range, None).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let error = store.get_range("key", 0..101, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    let error = store.get_range("key", 0..10, Some(99)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    let error = store.get_range("a//b", 0..10, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
