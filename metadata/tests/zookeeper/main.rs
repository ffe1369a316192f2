//! The suite on a real ZooKeeper, and what only a server can show. Needs Java and the package `zookeeper`; skipped with a line that
//! says so without.
#![allow(clippy::unwrap_used)]

mod bookkeeper;
mod link;
mod many;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use faults::{ZooKeeper, ZooKeeperCluster};
use metadata::{CommitError, ErrorKind, Expect, Key, MetadataStore, WatchEvent, WatchStream, ZooKeeperStore, suite};
use tokio::time::Instant;

/// How long any single wait of a test may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn open(uri: &str) -> Arc<dyn MetadataStore> {
    Arc::new(ZooKeeperStore::open(uri).await.unwrap())
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < give_up, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn next_event(watch: &mut WatchStream) -> Option<WatchEvent> {
    tokio::time::timeout(DEADLINE, watch.next()).await.unwrap()
}

/// Writes until it is done: a server that was away a moment ago may still break a connection.
async fn put_until_done(store: &dyn MetadataStore, name: &str) {
    let give_up = Instant::now() + DEADLINE;
    loop {
        match store.put_if(&key(name), Bytes::from_static(b"x"), Expect::Any).await {
            Ok(_) => return,
            Err(CommitError::NotDone(_) | CommitError::Unknown(_)) if Instant::now() < give_up => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{name}: {error:?}"),
        }
    }
}

/// Every store of the suite gets its own root, and the roots are neighbours by their names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let count = AtomicUsize::new(0);
    suite::run(async || open(&server.uri(&format!("/suite/{}", count.fetch_add(1, Ordering::Relaxed)))).await).await;
}

/// On an ensemble, with a store for each case that may be with any member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_of_an_ensemble() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let cluster = ZooKeeperCluster::start(3).await.unwrap();
    let count = AtomicUsize::new(0);
    suite::run(async || open(&cluster.uri(&format!("/suite/{}", count.fetch_add(1, Ordering::Relaxed)))).await).await;
}

#[tokio::test]
async fn opening_says_what_is_wrong_and_in_time() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let began = Instant::now();
    let nobody = ZooKeeperStore::open("zk://127.0.0.1:1,127.0.0.1:2/root").await.err().unwrap();
    assert_eq!(nobody.kind(), ErrorKind::Unavailable);
    let text = nobody.to_string();
    assert!(text.contains("no ZooKeeper answers at 127.0.0.1:1, 127.0.0.1:2"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

/// Without most members nothing is proved and nothing is written, though a session with a member still stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_there_are_no_proofs() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let cluster = ZooKeeperCluster::start(3).await.unwrap();
    let all = open(&cluster.uri("/r")).await;
    let give_up = Instant::now() + DEADLINE;
    while let Err(error) = all.put_if(&key("/a"), Bytes::from_static(b"x"), Expect::Any).await {
        assert!(Instant::now() < give_up, "{error:?}");
    }
    let lone = open(&cluster.members[2].uri("/r")).await;
    assert!(lone.get_quorum(&key("/a")).await.unwrap().is_some());
    cluster.members[0].pause();
    cluster.members[1].pause();
    let began = Instant::now();
    let (a, b) = (key("/a"), key("/b"));
    let (proof, write, absent) = tokio::join!(lone.get_quorum(&a), lone.create(&b, Bytes::new()), lone.get_quorum(&b));
    assert_eq!(proof.unwrap_err().kind(), ErrorKind::Unavailable, "a proof needs most of them");
    assert_eq!(absent.unwrap_err().kind(), ErrorKind::Unavailable, "absence above all");
    assert!(matches!(write, Err(CommitError::Unknown(_) | CommitError::NotDone(_))), "{write:?}");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    cluster.members[0].resume();
    cluster.members[1].resume();
    until("the ensemble comes back", async || lone.get_quorum(&a).await.is_ok_and(|found| found.is_some())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_one_member_may_die() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let mut cluster = ZooKeeperCluster::start(3).await.unwrap();
    let store = open(&cluster.uri("/r")).await;
    for victim in 0..3 {
        cluster.members[victim].kill();
        let name = format!("/a/{victim}");
        put_until_done(&*store, &name).await;
        for _ in 0..20 {
            until("a proof comes", async || store.get_quorum(&key(&name)).await.is_ok_and(|found| found.is_some()))
                .await;
            if let Ok(found) = store.get(&key(&name)).await {
                assert!(found.is_some(), "a hint is not older than what was told");
            }
        }
        cluster.members[victim].restart().await.unwrap();
    }
}
