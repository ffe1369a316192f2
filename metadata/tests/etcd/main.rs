//! The suite on a real etcd, and what only a server can show. Needs the program `etcd`; skipped with a line that says so without.
#![allow(clippy::unwrap_used)]

mod copying;
mod layouts;
mod link;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Client, CompactionOptions};
use faults::{Etcd, EtcdCluster};
use futures::TryStreamExt;
use metadata::{
    CommitError, ErrorKind, EtcdStore, Expect, Key, MetadataStore, OPS_MAX, Transaction, WatchEvent, WatchStream, scan,
    suite,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long any single wait of a test may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn open(uri: &str) -> Arc<dyn MetadataStore> {
    Arc::new(EtcdStore::open(uri).await.unwrap())
}

/// Forgets all history again and again, as an operator's compaction does, only oftener.
async fn compact_forever(endpoint: String) {
    loop {
        if let Ok(mut client) = Client::connect([&endpoint], None).await {
            while let Ok(found) = client.get("x", None).await {
                let revision = found.header().unwrap().revision();
                let _ = client.compact(revision, Some(CompactionOptions::new().with_physical())).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Every store of the suite gets its own root, and the roots are neighbours by their names.
async fn on_a_calm_server() {
    let etcd = Etcd::start().await.unwrap();
    let count = AtomicUsize::new(0);
    suite::run(async || open(&etcd.uri(&format!("/suite/{}", count.fetch_add(1, Ordering::Relaxed)))).await).await;
}

/// On a server that is compacted all the time, and restarted or paused before each case.
pub(crate) async fn on_a_restless_server(word: &str) {
    let etcd = Etcd::start().await.unwrap();
    let compactor = tokio::spawn(compact_forever(etcd.endpoint()));
    let etcd = Mutex::new(etcd);
    let count = AtomicUsize::new(0);
    suite::run(async || {
        let count = count.fetch_add(1, Ordering::Relaxed);
        let mut etcd = etcd.lock().await;
        let uri = format!("etcd{word}://{}/suite/{count}", etcd.endpoint());
        if count.is_multiple_of(4) {
            etcd.restart().await.unwrap();
            return open(&uri).await;
        }
        etcd.pause();
        let (store, ()) = tokio::join!(open(&uri), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            etcd.resume();
        });
        store
    })
    .await;
    compactor.abort();
}

/// Both at once, because the suite mostly waits for leases to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    tokio::join!(on_a_calm_server(), on_a_restless_server(""));
}

async fn opening_says_what_is_wrong_and_in_time() {
    let began = Instant::now();
    let nobody = EtcdStore::open("etcd://127.0.0.1:1,127.0.0.1:2/root").await.err().unwrap();
    assert_eq!(nobody.kind(), ErrorKind::Unavailable);
    let text = nobody.to_string();
    assert!(
        text.contains("no etcd answers at 127.0.0.1:1, 127.0.0.1:2") && text.contains("check that it runs"),
        "{text}"
    );
    let cause = std::error::Error::source(&nobody).unwrap().to_string();
    assert!(cause.contains("Connection refused"), "{cause}");

    let etcd = Etcd::start().await.unwrap();
    etcd.pause();
    let silent = EtcdStore::open(&etcd.uri("")).await.err().unwrap();
    assert_eq!(silent.kind(), ErrorKind::Unavailable);
    assert!(silent.to_string().contains(&etcd.endpoint()), "{silent}");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    etcd.resume();
    open(&etcd.uri("")).await;
}

async fn next_put(watch: &mut WatchStream) -> Key {
    loop {
        match tokio::time::timeout(DEADLINE, watch.next()).await.unwrap() {
            Some(WatchEvent::Put { key, .. }) => return key,
            Some(WatchEvent::Delete { .. }) => {}
            other => panic!("nothing was lost: {other:?}"),
        }
    }
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

#[tokio::test]
async fn watches_and_leases_outlive_the_servers_process() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let mut etcd = Etcd::start().await.unwrap();
    let store = open(&etcd.uri("/r")).await;
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    store.commit(Transaction::new().put_leased(key("/a/leased"), "x", Expect::Absent, lease)).await.unwrap();
    let mut watch = store.watch(&key("/a")).await.unwrap();
    for round in 0..3 {
        etcd.kill();
        if round == 0 {
            // The read finds that the old connection has ended; a commit on it could not be told from one that was received.
            let down = store.get_quorum(&key("/a/leased")).await.unwrap_err();
            assert_eq!(down.kind(), ErrorKind::Unavailable);
            let written = store.create(&key("/a/while-down"), Bytes::new()).await;
            assert!(matches!(written, Err(CommitError::NotDone(_))), "no connection was made: {written:?}");
        }
        etcd.restart().await.unwrap();
        let name = format!("/a/{round}");
        put_until_done(&*store, &name).await;
        while next_put(&mut watch).await != key(&name) {}
        store.keep_alive(lease).await.unwrap();
        assert!(store.get_quorum(&key("/a/leased")).await.unwrap().is_some());
    }
    assert_eq!(store.get_quorum(&key("/a/while-down")).await.unwrap(), None);
    assert_eq!(store.list(&key("/a"), None, 10).await.unwrap().len(), 4);
}

async fn a_silent_server_leaves_commits_unknown_within_the_deadline() {
    let etcd = Etcd::start().await.unwrap();
    let store = open(&etcd.uri("")).await;
    store.create(&key("/a"), Bytes::new()).await.unwrap();
    etcd.pause();
    let began = Instant::now();
    let (a, b) = (key("/a"), key("/b"));
    let (written, read) = tokio::join!(store.create(&b, Bytes::new()), store.get_quorum(&a));
    assert!(matches!(written, Err(CommitError::Unknown(_))), "{written:?}");
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    etcd.resume();
    assert!(store.get_quorum(&a).await.unwrap().is_some(), "a new connection is made");
}

#[tokio::test]
async fn large_values_are_listed_in_pages_that_fit() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let store = open(&etcd.uri("/r")).await;
    let value = Bytes::from(vec![7; 700_000]);
    let root = key("/big");
    for index in 0..24 {
        store.create(&key(&format!("/big/{index:02}")), value.clone()).await.unwrap();
    }
    for index in 0..24 {
        store.create(&key(&format!("/big/small-{index:02}")), Bytes::new()).await.unwrap();
    }
    let page = store.list(&root, None, 1000).await.unwrap();
    let bytes: usize = page.iter().map(|(_, found)| found.value.len()).sum();
    assert!(!page.is_empty() && bytes <= 4 << 20, "{} rows of {bytes} bytes", page.len());
    let rows: Vec<_> = scan(&*store, &root, 1000).try_collect().await.unwrap();
    let names: BTreeSet<_> = rows.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!((rows.len(), names.len()), (48, 48));

    // A conflict over many large values is still an answer.
    let many =
        (0..24).fold(Transaction::new(), |all, index| all.check(key(&format!("/big/{index:02}")), Expect::Present));
    match store.commit(many.check(key("/big/none"), Expect::Present)).await {
        Err(CommitError::Conflict { op: 24, found: None }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn names_of_others_are_left_out() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let store = open(&etcd.uri("/r")).await;
    let mut client = Client::connect([etcd.endpoint()], None).await.unwrap();
    let mut watch = store.watch(&key("/a")).await.unwrap();
    for index in 0..OPS_MAX {
        client.put(format!("/r/a//{index}"), "x", None).await.unwrap();
    }
    client.put(&b"/r/a/\xff"[..], "x", None).await.unwrap();
    client.put("/r/a/trailing/", "x", None).await.unwrap();
    store.create(&key("/a/z"), Bytes::new()).await.unwrap();
    assert_eq!(next_put(&mut watch).await, key("/a/z"));
    for page in [1, 10, 1000] {
        let rows = store.list(&key("/a"), None, page).await.unwrap();
        assert_eq!(rows.len(), 1, "the end is not told while something follows");
        assert_eq!(rows[0].0, key("/a/z"));
    }
    assert_eq!(store.list(&key("/a"), Some(&key("/a/z")), 5).await.unwrap(), []);
}

/// A member cut off from the others can give hints, and nothing more.
async fn without_a_quorum_there_are_hints_but_no_proofs() {
    let cluster = EtcdCluster::start(3).await.unwrap();
    let all = open(&cluster.uri("/r")).await;
    let lease = all.grant_lease(Duration::from_secs(60)).await.unwrap();
    // A busy machine may elect a new leader at any time, so a first try may be unknown.
    let give_up = Instant::now() + DEADLINE;
    while let Err(error) = all.commit(Transaction::new().put_leased(key("/a"), "x", Expect::Any, lease)).await {
        assert!(Instant::now() < give_up, "{error:?}");
    }
    let lone = open(&cluster.members[2].uri("/r")).await;
    let proven = lone.get_quorum(&key("/a")).await.unwrap().unwrap().version;

    cluster.members[0].pause();
    cluster.members[1].pause();
    let began = Instant::now();
    let (a, b) = (key("/a"), key("/b"));
    let (hint, proof, write, kept) =
        tokio::join!(lone.get(&a), lone.get_quorum(&a), lone.create(&b, Bytes::new()), lone.keep_alive(lease),);
    assert_eq!(hint.unwrap().unwrap().version, proven, "a hint needs nobody else");
    assert_eq!(proof.unwrap_err().kind(), ErrorKind::Unavailable, "a proof needs most of them");
    assert!(matches!(write, Err(CommitError::Unknown(_) | CommitError::NotDone(_))), "{write:?}");
    // The member asked may have been the leader and not know yet that it is alone; else it must not say that the lease is gone.
    assert!(kept.is_ok() || kept.unwrap_err().kind() == ErrorKind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    cluster.members[0].resume();
    cluster.members[1].resume();

    let give_up = Instant::now() + DEADLINE;
    while lone.get_quorum(&key("/a")).await.is_err() {
        assert!(Instant::now() < give_up, "the cluster does not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    all.keep_alive(lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_one_member_may_die() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let mut cluster = EtcdCluster::start(3).await.unwrap();
    let store = open(&cluster.uri("/r")).await;
    let mut watch = store.watch(&key("/a")).await.unwrap();
    for victim in 0..3 {
        cluster.members[victim].kill();
        let name = format!("/a/{victim}");
        put_until_done(&*store, &name).await;
        while next_put(&mut watch).await != key(&name) {}
        for _ in 0..20 {
            assert!(store.get_quorum(&key(&name)).await.unwrap().is_some());
            assert!(store.get(&key(&name)).await.unwrap().is_some(), "a hint is not older than what was told");
        }
        cluster.members[victim].restart().await.unwrap();
    }
}

/// All at once, because they mostly wait for deadlines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_are_kept() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    tokio::join!(
        opening_says_what_is_wrong_and_in_time(),
        a_silent_server_leaves_commits_unknown_within_the_deadline(),
        without_a_quorum_there_are_hints_but_no_proofs(),
        link::lost_requests_are_unknown_within_the_deadline_and_not_done(),
    );
}
