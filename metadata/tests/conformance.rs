//! The suite over both stores of this crate, and what only a store on disk can show.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use common::rng::Rng;
use futures::TryStreamExt;
use metadata::{
    CommitError, EmbeddedStore, ErrorKind, Expect, FaultRates, FaultyStore, Key, MemoryStore, MetadataStore,
    MeteredStore, Transaction, scan, suite,
};

#[tokio::test(start_paused = true)]
async fn memory() {
    suite::run(async || Arc::new(MemoryStore::new()) as Arc<dyn MetadataStore>).await;
}

/// A meter changes nothing.
#[tokio::test(start_paused = true)]
async fn metered() {
    suite::run(async || Arc::new(MeteredStore::new(Arc::new(MemoryStore::new()))) as Arc<dyn MetadataStore>).await;
}

/// Real time and real parallelism.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_in_parallel() {
    suite::run(async || Arc::new(MemoryStore::new()) as Arc<dyn MetadataStore>).await;
}

#[tokio::test(start_paused = true)]
async fn embedded() {
    let dir = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    suite::run(async || {
        count.set(count.get() + 1);
        let store = EmbeddedStore::open(dir.path().join(count.get().to_string())).await.unwrap();
        Arc::new(store) as Arc<dyn MetadataStore>
    })
    .await;
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn random_transactions_agree_with_a_map(seed: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(suite::random_transactions(Arc::new(MemoryStore::new()), seed));
    }
}

#[tokio::test]
async fn faults_by_chance_tell_no_lies() {
    let inner: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
    let rates = FaultRates {
        fail_before: 100,
        applied_unknown: 200,
        not_applied_unknown: 200,
        fail_read: 0,
        delay: 100,
        delay_max: Duration::from_micros(50),
    };
    let store = FaultyStore::new(Arc::clone(&inner), Rng::seeded(11), rates);
    let (mut done, mut not_done, mut unknown) = (0, 0, 0);
    for index in 0..300 {
        let key = Key::new(&format!("/f/{index}")).unwrap();
        let outcome = store.create(&key, "x".into()).await;
        let there = inner.get_quorum(&key).await.unwrap();
        match outcome {
            Ok(version) => {
                done += 1;
                assert_eq!(there.unwrap().version, version);
            }
            Err(CommitError::NotDone(_)) => {
                not_done += 1;
                assert_eq!(there, None);
            }
            Err(CommitError::Unknown(_)) => unknown += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(done > 0 && not_done > 0 && unknown > 0, "{done} {not_done} {unknown}");
}

const CHILD_DIR: &str = "METADATA_TEST_CHILD_DIR";

/// Not a test of its own: run again as a child process by `a_killed_process_loses_nothing_it_answered`.
#[tokio::test]
async fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let store = EmbeddedStore::open(dir).await.unwrap();
    let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    let leased = Transaction::new().put_leased(Key::new("/leased").unwrap(), "x", Expect::Absent, lease);
    store.commit(leased).await.unwrap();
    // Until it is killed.
    for index in 0_u64.. {
        store.create(&Key::new(&format!("/k/{index:06}")).unwrap(), "x".into()).await.unwrap();
        println!("\nanswered {index}");
    }
}

#[tokio::test]
async fn a_killed_process_loses_nothing_it_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD_DIR, dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut answered = lines.filter_map(|line| line.strip_prefix("answered ")?.parse::<usize>().ok());
    let first = answered.find(|index| *index >= 20).expect("the child works");

    let error = EmbeddedStore::open(dir.path()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("another process has this metadata directory open"), "{error}");

    child.kill().unwrap();
    child.wait().unwrap();
    let last = answered.last().unwrap_or(first);
    let store = EmbeddedStore::open(dir.path()).await.unwrap();
    let root = Key::new("/k").unwrap();
    let rows: Vec<_> = scan(&store, &root, 1000).try_collect().await.unwrap();
    assert!(rows.len() > last, "{} rows, but {last} was answered", rows.len());
    assert_eq!(store.get_quorum(&Key::new("/leased").unwrap()).await.unwrap(), None, "its lease died with it");
}
