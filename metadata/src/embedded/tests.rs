use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, Ordering};

use super::*;
use crate::{CommitError, Expect, MetadataStore, Transaction};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn value(store: &EmbeddedStore, name: &str) -> Option<Bytes> {
    store.get_quorum(&key(name)).await.unwrap().map(|found| found.value)
}

#[tokio::test]
async fn everything_is_there_after_reopening_and_versions_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = None;
    for round in 0..3 {
        let store = EmbeddedStore::open(dir.path()).await.unwrap();
        for index in 0..round {
            assert_eq!(value(&store, &format!("/k/{index}")).await.unwrap(), format!("v{index}"));
        }
        let name = key(&format!("/k/{round}"));
        let version = store.create(&name, format!("v{round}").into()).await.unwrap();
        assert!(Some(version) > last, "a version came back after a restart");
        store.delete_if(&key("/gone"), Expect::Any).await.unwrap();
        last = Some(store.create(&key("/gone"), Bytes::new()).await.unwrap());
        store.delete_if(&key("/gone"), Expect::Present).await.unwrap();
    }
}

#[tokio::test]
async fn leased_keys_end_with_the_process_and_others_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let before = {
        let store = EmbeddedStore::open(dir.path()).await.unwrap();
        let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
        let leased = Transaction::new()
            .put_leased(key("/l/a"), "a", Expect::Absent, lease)
            .put_leased(key("/l/b"), "b", Expect::Absent, lease)
            .put(key("/l/c"), "c", Expect::Absent);
        store.commit(leased).await.unwrap();
        // Made permanent before the end.
        store.put_if(&key("/l/b"), "kept".into(), Expect::Present).await.unwrap()
    };
    let store = EmbeddedStore::open(dir.path()).await.unwrap();
    assert_eq!(value(&store, "/l/a").await, None);
    assert_eq!(value(&store, "/l/b").await.unwrap(), "kept");
    assert_eq!(value(&store, "/l/c").await.unwrap(), "c");
    assert!(store.create(&key("/l/a"), Bytes::new()).await.unwrap() > before);
}

/// 0: the disk works; 1: a write fails and nothing is there; 2: a write fails and is there all the same.
static DISK: AtomicU8 = AtomicU8::new(0);

fn failing(db: &DB, batch: WriteBatch) -> Result<(), String> {
    let mode = DISK.load(Ordering::SeqCst);
    if mode != 1 {
        write_synced(db, batch)?;
    }
    if mode == 0 { Ok(()) } else { Err("input/output error".into()) }
}

#[tokio::test]
async fn a_failed_write_is_unknown_and_ends_writing() {
    for mode in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open_with(dir.path(), failing).await.unwrap();
        store.create(&key("/a"), Bytes::new()).await.unwrap();
        let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
        DISK.store(mode, Ordering::SeqCst);
        let failed = store.create(&key("/b"), Bytes::new()).await;
        DISK.store(0, Ordering::SeqCst);
        assert!(matches!(failed, Err(CommitError::Unknown(_))), "{failed:?}");
        // The disk works again, but nobody can tell what is on it.
        for name in ["/b", "/c"] {
            match store.create(&key(name), Bytes::new()).await {
                Err(CommitError::NotDone(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Poisoned);
                    assert!(error.to_string().contains("input/output error"), "the first reason is kept: {error}");
                }
                other => panic!("a poisoned store takes no writes: {other:?}"),
            }
        }
        assert_eq!(store.get_quorum(&key("/b")).await.unwrap_err().kind(), ErrorKind::Poisoned, "no proof either way");
        assert_eq!(store.revoke(lease).await.unwrap_err().kind(), ErrorKind::Poisoned);
        assert!(store.get(&key("/a")).await.unwrap().is_some(), "hints are still given");
        drop(store);
        let store = EmbeddedStore::open(dir.path()).await.unwrap();
        assert_eq!(value(&store, "/b").await.is_some(), mode == 2);
        store.create(&key("/c"), Bytes::new()).await.unwrap();
    }
}

/// As [`DISK`], for want of space.
static SPACE: AtomicU8 = AtomicU8::new(0);

fn full(db: &DB, batch: WriteBatch) -> Result<(), String> {
    let mode = SPACE.load(Ordering::SeqCst);
    // It happened, but from then on nothing more does.
    if mode != 1 {
        write_synced(db, batch)?;
        if mode == 2 {
            SPACE.store(1, Ordering::SeqCst);
        }
    }
    if mode == 0 { Ok(()) } else { Err("IO error: No space left on device: While appending to file".into()) }
}

#[tokio::test]
async fn missing_space_is_made_good_without_reopening_and_the_failed_write_is_resolved() {
    for mode in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open_with(dir.path(), full).await.unwrap();
        let before = store.create(&key("/k/a"), "a".into()).await.unwrap();
        let mut watch = store.watch(&key("/k")).await.unwrap();
        SPACE.store(mode, Ordering::SeqCst);
        let failed = store.create(&key("/k/b"), "b".into()).await;
        assert!(matches!(failed, Err(CommitError::Unknown(_))), "{failed:?}");
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let error = store.get_quorum(&key("/k/b")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "no proof while there is no space");
        assert!(error.to_string().contains("goes on when there is some"), "{error}");
        SPACE.store(0, Ordering::SeqCst);
        let gone_on = async {
            while store.grant_lease(Duration::from_secs(60)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone_on).await.unwrap();
        assert_eq!(value(&store, "/k/b").await.is_some(), mode == 2, "proof either way");
        let after = store.put_if(&key("/k/c"), "c".into(), Expect::Absent).await.unwrap();
        assert!(after.raw() > before.raw() + 1, "the revision of the failed write is never given again");
        // Watchers hear of it exactly if it happened, and in order.
        let heard = futures::StreamExt::next(&mut watch).await.unwrap();
        let name = if mode == 2 { "/k/b" } else { "/k/c" };
        assert!(format!("{heard:?}").contains(name), "{heard:?}");
        drop((store, watch));
        let store = EmbeddedStore::open(dir.path()).await.unwrap();
        assert_eq!(value(&store, "/k/b").await.is_some(), mode == 2);
        assert_eq!(value(&store, "/k/c").await.unwrap(), "c");
    }
}

#[tokio::test]
async fn keys_of_a_lease_that_ended_without_space_are_removed_when_there_is_some() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open_with(dir.path(), lease_disk).await.unwrap();
    let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    store.commit(Transaction::new().put_leased(key("/l/a"), "a", Expect::Absent, lease)).await.unwrap();
    LEASE_SPACE.store(1, Ordering::SeqCst);
    store.revoke(lease).await.unwrap_err();
    LEASE_SPACE.store(0, Ordering::SeqCst);
    let gone = async {
        while !matches!(store.get_quorum(&key("/l/a")).await, Ok(None)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap();
}

static LEASE_SPACE: AtomicU8 = AtomicU8::new(0);

fn lease_disk(db: &DB, batch: WriteBatch) -> Result<(), String> {
    if LEASE_SPACE.load(Ordering::SeqCst) == 0 {
        write_synced(db, batch)
    } else {
        Err("IO error: No space left on device".into())
    }
}

#[tokio::test]
async fn opening_twice_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let _first = EmbeddedStore::open(dir.path()).await.unwrap();
    let error = EmbeddedStore::open(dir.path()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("this process has this metadata directory open already"), "{error}");
}

#[tokio::test]
async fn a_place_that_is_no_directory_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let error = EmbeddedStore::open(file.join("below")).await.err().unwrap();
    assert!(error.to_string().starts_with("make metadata directory"), "{error}");
}

/// The one file with the log of commits.
fn log_of(dir: &Path) -> PathBuf {
    let mut logs: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .filter(|path| path.metadata().unwrap().len() > 0)
        .collect();
    assert_eq!(logs.len(), 1, "{logs:?}");
    logs.remove(0)
}

async fn ten_commits(dir: &Path) {
    let store = EmbeddedStore::open(dir).await.unwrap();
    for index in 0..10 {
        store.create(&key(&format!("/k/{index}")), vec![b'x'; 100].into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_torn_tail_is_cut_and_a_damaged_middle_refuses_to_open() {
    let dir = tempfile::tempdir().unwrap();
    ten_commits(dir.path()).await;
    let log = log_of(dir.path());
    let bytes = std::fs::read(&log).unwrap();

    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    std::fs::write(&log, &damaged).unwrap();
    let error = EmbeddedStore::open(dir.path()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}: {:?}", std::error::Error::source(&error));

    std::fs::write(&log, &bytes[..bytes.len() - 7]).unwrap();
    let store = EmbeddedStore::open(dir.path()).await.unwrap();
    let rows = store.list(&key("/k"), None, 100).await.unwrap();
    assert_eq!(rows.len(), 9, "only the torn record is missing");
}

#[tokio::test]
async fn a_directory_that_is_not_the_stores_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), b"x").unwrap();
    let error = EmbeddedStore::open(dir.path()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("it holds \"notes.txt\" and no metadata"), "{error}");

    // What a crash may leave of the first start, and a fresh mount has.
    std::fs::remove_file(dir.path().join("notes.txt")).unwrap();
    for name in ["LOCK", "LOG", "MANIFEST-000001", "000001.dbtmp", "lost+found"] {
        std::fs::write(dir.path().join(name), b"").unwrap();
    }
    ten_commits(dir.path()).await;

    std::fs::remove_file(dir.path().join("CURRENT")).unwrap();
    let error = EmbeddedStore::open(dir.path()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged, "never begin anew over data: {error}");
}

#[tokio::test]
async fn a_later_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = EmbeddedStore::open(dir.path()).await.unwrap();
        store.create(&key("/a"), Bytes::new()).await.unwrap();
    }
    {
        let db = DB::open(&options().unwrap(), dir.path()).unwrap();
        assert_eq!(db.get(FORMAT_KEY).unwrap().unwrap(), [1], "golden");
        assert_eq!(db.get(b"k/a").unwrap().unwrap(), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], "golden");
        db.put(FORMAT_KEY, [2]).unwrap();
    }
    let error = EmbeddedStore::open(dir.path()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    {
        let db = DB::open(&options().unwrap(), dir.path()).unwrap();
        db.put(FORMAT_KEY, [1]).unwrap();
        db.put(b"k/a", [2, 0]).unwrap();
        db.put(b"k/b", [1, 0]).unwrap();
    }
    let store = EmbeddedStore::open(dir.path()).await.unwrap();
    for name in ["/a", "/b"] {
        assert_eq!(store.get(&key(name)).await.unwrap_err().kind(), ErrorKind::Damaged);
        let refused = store.create(&key(name), Bytes::new()).await;
        assert!(matches!(refused, Err(CommitError::NotDone(_))), "an unreadable row is not an absent one: {refused:?}");
    }
}

#[tokio::test]
async fn the_directory_stays_small() {
    let dir = tempfile::tempdir().unwrap();
    ten_commits(dir.path()).await;
    let store = EmbeddedStore::open(dir.path()).await.unwrap();
    store.create(&key("/x"), Bytes::new()).await.unwrap();
    let files = std::fs::read_dir(dir.path()).unwrap();
    let allocated: u64 = files.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum();
    assert!(allocated < 512 << 10, "{allocated} bytes");
}
