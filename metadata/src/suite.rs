//! Conformance: what every [`MetadataStore`] must do, as code.
//!
//! A driver's test calls [`run`]. Each case works on a store that `make` has just made; a shared server is fine when every
//! store gets its own root. Cases about time wait for conditions with a deadline, so they pass under paused tokio time and under
//! real time alike. A failed expectation panics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::rng::Rng;
use futures::TryStreamExt;
use futures::future::join_all;

use crate::{
    CommitError, ErrorKind, Expect, FaultKind, FaultyStore, Key, LeaseId, MetadataStore, OPS_MAX, Transaction,
    VALUE_BYTES_MAX, Version, Versioned, WatchEvent, WatchStream, resolve, scan,
};

type Store = Arc<dyn MetadataStore>;

/// No wait of the suite is longer; only a store that is broken comes near it.
const DEADLINE: Duration = Duration::from_secs(30);

/// Runs every case, each on a store of its own.
///
/// # Panics
/// When the store breaks a rule; the message says which.
pub async fn run(make: impl AsyncFn() -> Store) {
    basics(make().await).await;
    conditions(make().await).await;
    refusals(make().await).await;
    atomicity(make().await).await;
    versions_never_return(make().await).await;
    create_race(make().await).await;
    swap_race(make().await).await;
    transfers(make().await).await;
    paging(make().await).await;
    paging_again(make().await).await;
    paging_while_inserting(make().await).await;
    listing_borders(make().await).await;
    watching(make().await).await;
    leases(make().await).await;
    lease_changes(make().await).await;
    keeping_alive(make().await).await;
    unknown_is_settled(make().await).await;
    for seed in 0..4 {
        random_transactions(make().await, seed).await;
    }
}

fn key(name: &str) -> Key {
    Key::new(name).expect("the suite's keys are valid")
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: did not happen in {DEADLINE:?}"),
    }
}

async fn read(store: &Store, name: &str) -> Option<Versioned> {
    store.get_quorum(&key(name)).await.expect("a store at rest answers")
}

async fn text(store: &Store, name: &str) -> Option<String> {
    read(store, name).await.map(|found| String::from_utf8_lossy(&found.value).into_owned())
}

async fn put(store: &Store, name: &str, value: &str) -> Version {
    store.put_if(&key(name), Bytes::copy_from_slice(value.as_bytes()), Expect::Any).await.expect("an unconditional put")
}

#[track_caller]
fn assert_conflict<T: std::fmt::Debug>(result: Result<T, CommitError>, want: usize) -> Option<Versioned> {
    match result {
        Err(CommitError::Conflict { op, found }) => {
            assert_eq!(op, want, "the conflict names the wrong operation");
            found
        }
        other => panic!("wanted a conflict at operation {want}, got {other:?}"),
    }
}

#[track_caller]
fn assert_not_done<T: std::fmt::Debug>(result: Result<T, CommitError>, want: ErrorKind) {
    match result {
        Err(CommitError::NotDone(error)) if error.kind() == want => {}
        other => panic!("wanted surely-not-done of kind {want:?}, got {other:?}"),
    }
}

async fn basics(store: Store) {
    assert_eq!(read(&store, "/s/a").await, None, "a new store is empty");
    let first = store.create(&key("/s/a"), Bytes::from_static(b"one")).await.expect("create");
    let found = read(&store, "/s/a").await.expect("a done create is seen");
    assert_eq!(found, Versioned { value: Bytes::from_static(b"one"), version: first, lease: None });
    let second = store.put_if(&key("/s/a"), Bytes::new(), Expect::At(first)).await.expect("put at version");
    assert!(second > first, "versions grow");
    let found = read(&store, "/s/a").await.expect("an empty value is a value");
    assert_eq!((found.value.len(), found.version), (0, second));
    store.delete_if(&key("/s/a"), Expect::At(second)).await.expect("delete at version");
    assert_eq!(read(&store, "/s/a").await, None);
    let every: Vec<u8> = (0..=255).collect();
    store.create(&key("/s/a"), Bytes::from(every.clone())).await.expect("create again");
    assert_eq!(read(&store, "/s/a").await.expect("there").value, every, "values are any bytes");
    assert!(store.get(&key("/s/a")).await.expect("a hint").is_some());
    assert_eq!(read(&store, "/s").await, None, "a parent need not exist");
    assert_eq!(read(&store, "/s/a/b").await, None);
}

async fn conditions(store: Store) {
    let version = put(&store, "/s/there", "x").await;
    let old = put(&store, "/s/other", "y").await;
    for (expect, there, absent) in [
        (Expect::Any, true, true),
        (Expect::Absent, false, true),
        (Expect::Present, true, false),
        (Expect::At(version), true, false),
        (Expect::At(old), false, false),
    ] {
        for (name, want) in [("/s/there", there), ("/s/absent", absent)] {
            let checked = store.commit(Transaction::new().check(key(name), expect)).await;
            if want {
                let done = checked.unwrap_or_else(|error| panic!("check {expect:?} of {name}: {error:?}"));
                assert_eq!(done.versions, [(name == "/s/there").then_some(version)]);
            } else {
                let found = assert_conflict(checked, 0);
                if let Some(found) = found {
                    assert_eq!((name, found.version), ("/s/there", version), "what was found is the truth");
                }
            }
        }
    }
    assert_eq!(read(&store, "/s/there").await.expect("there").version, version, "a check changes nothing");
    assert_conflict(store.create(&key("/s/there"), Bytes::new()).await, 0);
    assert_conflict(store.put_if(&key("/s/there"), Bytes::new(), Expect::At(old)).await, 0);
    assert_conflict(store.put_if(&key("/s/absent"), Bytes::new(), Expect::Present).await, 0);
    assert_conflict(store.delete_if(&key("/s/there"), Expect::At(old)).await, 0);
    assert_conflict(store.delete_if(&key("/s/absent"), Expect::Present).await, 0);
    store.delete_if(&key("/s/absent"), Expect::Any).await.expect("removing nothing unconditionally is done");
    assert_eq!(text(&store, "/s/there").await.as_deref(), Some("x"), "conflicts change nothing");
}

async fn refusals(store: Store) {
    let twice = Transaction::new().put(key("/s/a"), "1", Expect::Any).check(key("/s/a"), Expect::Any);
    assert_not_done(store.commit(twice).await, ErrorKind::Invalid);
    assert_not_done(store.commit(Transaction::new()).await, ErrorKind::Invalid);
    let many = |count: usize| {
        (0..count).fold(Transaction::new(), |all, index| all.put(key(&format!("/s/m/{index}")), "m", Expect::Any))
    };
    assert_not_done(store.commit(many(OPS_MAX + 1)).await, ErrorKind::Invalid);
    assert_eq!(store.list(&key("/s"), None, 10).await.expect("list"), [], "refused transactions change nothing");
    store.commit(many(OPS_MAX)).await.expect("as many operations as allowed");
    let big = Bytes::from(vec![7; VALUE_BYTES_MAX]);
    assert_not_done(
        store
            .commit(Transaction::new().put(key("/s/a"), big.clone(), Expect::Any).put(key("/s/b"), "x", Expect::Any))
            .await,
        ErrorKind::Invalid,
    );
    store.create(&key("/s/big"), big.clone()).await.expect("as many bytes as allowed");
    assert_eq!(read(&store, "/s/big").await.expect("there").value, big);
    let error = store.list(&key("/s"), None, 0).await.expect_err("a page of nothing cannot tell the end");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

async fn atomicity(store: Store) {
    let a = put(&store, "/s/a", "a1").await;
    let failing = Transaction::new()
        .put(key("/s/a"), "a2", Expect::At(a))
        .put(key("/s/b"), "b", Expect::Absent)
        .delete(key("/s/c"), Expect::Present);
    assert_conflict(store.commit(failing).await, 2);
    assert_eq!(text(&store, "/s/a").await.as_deref(), Some("a1"));
    assert_eq!(read(&store, "/s/b").await, None);
    let done = store
        .commit(
            Transaction::new()
                .put(key("/s/a"), "a2", Expect::At(a))
                .put(key("/s/b"), "b", Expect::Absent)
                .delete(key("/s/c"), Expect::Any)
                .check(key("/s/d"), Expect::Absent),
        )
        .await
        .expect("all conditions hold");
    let [Some(one), Some(two), None, None] = done.versions[..] else { panic!("wrong versions: {:?}", done.versions) };
    assert_eq!(one, two, "one commit, one version");
    assert!(one > a);
    assert_eq!(read(&store, "/s/a").await.expect("there").version, one);
    assert_eq!(read(&store, "/s/b").await.expect("there").version, one);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

/// A key that was deleted and made again with the same value must not pass for the old one.
async fn versions_never_return(store: Store) {
    let mut seen = BTreeSet::new();
    let mut highest = None;
    for round in 0..20 {
        let version = put(&store, "/s/aba", "same").await;
        assert!(seen.insert(version), "a version came back in round {round}");
        assert!(highest < Some(version), "a later version is higher");
        highest = Some(version);
        if round % 2 == 0 {
            store.delete_if(&key("/s/aba"), Expect::At(version)).await.expect("delete");
        }
        if let Some(old) = seen.iter().rev().nth(1) {
            assert_conflict(store.put_if(&key("/s/aba"), Bytes::new(), Expect::At(*old)).await, 0);
        }
    }
    let other = put(&store, "/s/zzz", "").await;
    assert!(Some(other) > highest, "versions order the commits of the whole store");
}

async fn create_race(store: Store) {
    for round in 0..8 {
        let name = key(&format!("/s/race/{round}"));
        let tries = (0..16_u8).map(|index| {
            let (store, name) = (Arc::clone(&store), name.clone());
            tokio::spawn(async move { (index, store.create(&name, Bytes::from(vec![index])).await) })
        });
        let mut winners = Vec::new();
        for outcome in join_all(tries).await {
            match outcome.expect("the task ends") {
                (index, Ok(version)) => winners.push((index, version)),
                (_, Err(CommitError::Conflict { .. })) => {}
                (_, Err(other)) => panic!("a healthy store answers surely: {other:?}"),
            }
        }
        let [(winner, version)] = winners[..] else { panic!("{} creators won", winners.len()) };
        let found = store.get_quorum(&name).await.expect("read").expect("there");
        assert_eq!((&found.value[..], found.version), (&[winner][..], version));
    }
}

async fn swap_race(store: Store) {
    const TASKS: usize = 8;
    const STEPS: usize = 25;
    let name = key("/s/count");
    put(&store, "/s/count", "0").await;
    let tasks = (0..TASKS).map(|_| {
        let (store, name) = (Arc::clone(&store), name.clone());
        tokio::spawn(async move {
            for _ in 0..STEPS {
                loop {
                    let found = store.get_quorum(&name).await.expect("read").expect("there");
                    let count: usize = String::from_utf8_lossy(&found.value).parse().expect("a number");
                    let next = Bytes::from((count + 1).to_string());
                    match store.put_if(&name, next, Expect::At(found.version)).await {
                        Ok(_) => break,
                        Err(CommitError::Conflict { .. }) => {}
                        Err(other) => panic!("a healthy store answers surely: {other:?}"),
                    }
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("the task ends");
    }
    assert_eq!(text(&store, "/s/count").await, Some((TASKS * STEPS).to_string()), "a swap was lost");
}

/// Money moves between accounts in transactions; the sum never changes.
async fn transfers(store: Store) {
    for account in 0..4 {
        put(&store, &format!("/s/account/{account}"), "100").await;
    }
    let tasks = (0..6_u64).map(|seed| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let rng = Rng::seeded(seed);
            for _ in 0..20 {
                let from = rng.below(4);
                let to = (from + 1 + rng.below(3)) % 4;
                let [from, to] = [from, to].map(|account| key(&format!("/s/account/{account}")));
                let amount =
                    |found: &Versioned| String::from_utf8_lossy(&found.value).parse::<i64>().expect("a number");
                let a = store.get_quorum(&from).await.expect("read").expect("there");
                let b = store.get_quorum(&to).await.expect("read").expect("there");
                let transaction = Transaction::new()
                    .put(from, (amount(&a) - 1).to_string(), Expect::At(a.version))
                    .put(to, (amount(&b) + 1).to_string(), Expect::At(b.version));
                match store.commit(transaction).await {
                    Ok(_) | Err(CommitError::Conflict { .. }) => {}
                    Err(other) => panic!("a healthy store answers surely: {other:?}"),
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("the task ends");
    }
    let root = key("/s/account");
    let rows: Vec<_> = scan(&*store, &root, 3).try_collect().await.expect("list");
    let sum: i64 =
        rows.iter().map(|(_, found)| String::from_utf8_lossy(&found.value).parse::<i64>().expect("a number")).sum();
    assert_eq!((rows.len(), sum), (4, 400), "a transaction was done by half");
}

async fn fill(store: &Store, names: impl Iterator<Item = String>) {
    let names: Vec<_> = names.collect();
    for chunk in names.chunks(OPS_MAX) {
        let all = chunk.iter().fold(Transaction::new(), |all, name| all.put(key(name), name.clone(), Expect::Absent));
        store.commit(all).await.expect("fill");
    }
}

async fn paging(store: Store) {
    fill(&store, (0..2000).map(|index| format!("/s/page/{index:04}"))).await;
    fill(&store, ["/s/pag".into(), "/s/page0".into(), "/s/pagf/x".into()].into_iter()).await;
    for page in [1000, 37] {
        let root = key("/s/page");
        let mut after: Option<Key> = None;
        let mut seen = 0;
        loop {
            let rows = store.list(&root, after.as_ref(), page).await.expect("list");
            assert!(rows.len() <= page, "a page is not longer than asked");
            let Some((last, _)) = rows.last() else { break };
            after = Some(last.clone());
            for (found, value) in rows {
                assert_eq!(found, key(&format!("/s/page/{seen:04}")), "in order, none twice, none left out");
                assert_eq!(value.value, found.as_str());
                seen += 1;
            }
        }
        assert_eq!(seen, 2000);
    }
}

/// A scan that was given up leaves nothing behind that another would go on in.
async fn paging_again(store: Store) {
    fill(&store, (0..10).map(|index| format!("/s/again/{index}"))).await;
    let (root, page) = (key("/s/again"), 3);
    let first = store.list(&root, None, page).await.expect("a page");
    assert_eq!(first.len(), page);
    fill(&store, ["/s/again/55".to_owned()].into_iter()).await;
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let rows = store.list(&root, after.as_ref(), page).await.expect("a page");
        let Some((last, _)) = rows.last() else { break };
        after = Some(last.clone());
        found.extend(rows.into_iter().map(|(key, _)| key));
    }
    assert!(found.contains(&key("/s/again/55")), "it was there before the scan began: {found:?}");
    assert_eq!(found.len(), 11);
}

async fn paging_while_inserting(store: Store) {
    fill(&store, (0..500).map(|index| format!("/s/busy/{index:04}-old"))).await;
    let inserter = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let rng = Rng::seeded(3);
            for index in 0..300 {
                let name = key(&format!("/s/busy/{:04}-new{index}", rng.below(500)));
                store.create(&name, Bytes::new()).await.expect("insert");
                let victim = key(&format!("/s/busy/{:04}-new{}", rng.below(500), rng.below(300)));
                store.delete_if(&victim, Expect::Any).await.expect("remove");
            }
        })
    };
    for _ in 0..3 {
        let root = key("/s/busy");
        let rows: Vec<_> = scan(&*store, &root, 13).try_collect().await.expect("list");
        assert!(rows.is_sorted_by(|(a, _), (b, _)| a < b), "in order, none twice");
        let old = rows.iter().filter(|(key, _)| key.as_str().ends_with("-old")).count();
        assert_eq!(old, 500, "a key that was there all the time was left out");
        tokio::task::yield_now().await;
    }
    inserter.await.expect("the inserter ends");
}

async fn listing_borders(store: Store) {
    fill(&store, ["/s/l/a", "/s/l/a-b", "/s/l/a/b", "/s/l/a0", "/s/l/b"].map(String::from).into_iter()).await;
    put(&store, "/s/l", "the prefix itself").await;
    let list = async |prefix: &str, after: Option<&str>| -> Vec<String> {
        let after = after.map(key);
        let rows = store.list(&key(prefix), after.as_ref(), 100).await.expect("list");
        rows.into_iter().map(|(key, _)| key.to_string()).collect()
    };
    let all = ["/s/l/a", "/s/l/a-b", "/s/l/a/b", "/s/l/a0", "/s/l/b"];
    assert_eq!(list("/s/l", None).await, all, "ordered by bytes, the prefix itself left out");
    assert_eq!(list("/s/l", Some("/s/l")).await, all, "a start before the prefix's keys");
    assert_eq!(list("/s/l", Some("/a")).await, all);
    assert_eq!(list("/s/l", Some("/s/l/a")).await, all[1..]);
    assert_eq!(list("/s/l", Some("/s/l/a-a")).await, all[1..], "the start need not exist");
    assert_eq!(list("/s/l", Some("/s/l/b")).await, [""; 0]);
    assert_eq!(list("/s/l", Some("/t")).await, [""; 0], "a start behind the prefix's keys");
    assert_eq!(list("/s/l/a", None).await, ["/s/l/a/b"]);
    assert_eq!(list("/s/nothing", None).await, [""; 0]);
}

/// Follows a watch until `state` is what `want` says.
async fn follow(watch: &mut WatchStream, state: &mut BTreeMap<Key, Version>, want: &BTreeMap<Key, Version>) {
    within("the watch to tell the last state of every key", async {
        while state != want {
            match watch.next().await {
                Some(WatchEvent::Put { key, version }) => {
                    let before = state.insert(key, version);
                    assert!(before <= Some(version), "a watch went back in time");
                }
                Some(WatchEvent::Delete { key }) => {
                    state.remove(&key);
                }
                other => panic!("a quick watcher on a healthy store loses nothing: {other:?}"),
            }
        }
    })
    .await;
}

async fn watching(store: Store) {
    put(&store, "/s/w/before", "").await;
    let mut watch = store.watch(&key("/s/w")).await.expect("watch");
    let mut one = store.watch(&key("/s/w/3")).await.expect("watch one key");
    put(&store, "/s/wx", "a neighbour").await;
    let rng = Rng::seeded(9);
    let mut want = BTreeMap::new();
    for _ in 0..200 {
        let name = format!("/s/w/{}", rng.below(10));
        if rng.below(3) == 0 {
            store.delete_if(&key(&name), Expect::Any).await.expect("delete");
            want.remove(&key(&name));
        } else {
            let version = put(&store, &name, "v").await;
            want.insert(key(&name), version);
        }
    }
    let last = put(&store, "/s/w/3", "end").await;
    want.insert(key("/s/w/3"), last);
    follow(&mut watch, &mut BTreeMap::new(), &want).await;
    follow(&mut one, &mut BTreeMap::new(), &BTreeMap::from([(key("/s/w/3"), last)])).await;
    // A commit tells all of its keys, and a watch that was quiet for a while still works.
    let done = store
        .commit(Transaction::new().put(key("/s/w/x"), "", Expect::Absent).delete(key("/s/w/3"), Expect::Present))
        .await
        .expect("commit");
    let mut state = want.clone();
    want.insert(key("/s/w/x"), done.put_version(0));
    want.remove(&key("/s/w/3"));
    follow(&mut watch, &mut state, &want).await;
}

async fn until_gone(watch: &mut WatchStream, name: &str) {
    within(&format!("the watch to tell the end of {name}"), async {
        loop {
            match watch.next().await {
                Some(WatchEvent::Delete { key: found }) if found == key(name) => return,
                Some(WatchEvent::Lost) | None => panic!("a quick watcher on a healthy store loses nothing"),
                Some(_) => {}
            }
        }
    })
    .await;
}

async fn put_leased(store: &Store, name: &str, lease: LeaseId) -> Result<Version, CommitError> {
    let done = store.commit(Transaction::new().put_leased(key(name), "leased", Expect::Any, lease)).await?;
    Ok(done.put_version(0))
}

async fn leases(store: Store) {
    let mut watch = store.watch(&key("/s/lease")).await.expect("watch");
    let lease = store.grant_lease(Duration::from_secs(1)).await.expect("grant");
    let version = put_leased(&store, "/s/lease/a", lease).await.expect("put under a live lease");
    put_leased(&store, "/s/lease/b", lease).await.expect("put under a live lease");
    put(&store, "/s/lease/free", "").await;
    assert_eq!(read(&store, "/s/lease/a").await.expect("there").lease, Some(lease), "a reader sees whose it is");
    until_gone(&mut watch, "/s/lease/a").await;
    assert_eq!(read(&store, "/s/lease/a").await, None);
    within("all keys of a lease to end", async {
        while read(&store, "/s/lease/b").await.is_some() {
            watch.next().await;
        }
    })
    .await;
    assert!(read(&store, "/s/lease/free").await.is_some(), "only the lease's keys end with it");
    let gone = store.keep_alive(lease).await.expect_err("a lease that ended cannot be kept");
    assert_eq!(gone.kind(), ErrorKind::LeaseGone);
    assert_not_done(put_leased(&store, "/s/lease/c", lease).await, ErrorKind::LeaseGone);
    assert_eq!(read(&store, "/s/lease/c").await, None);
    store.revoke(lease).await.expect("ending what has ended");
    let again = put(&store, "/s/lease/a", "").await;
    assert!(again > version, "an expired key's version does not come back");

    let lease = store.grant_lease(DEADLINE * 10).await.expect("grant");
    put_leased(&store, "/s/lease/r", lease).await.expect("put under a live lease");
    store.revoke(lease).await.expect("revoke");
    until_gone(&mut watch, "/s/lease/r").await;
    assert_eq!(read(&store, "/s/lease/r").await, None, "revoking ends the keys at once");
    assert_eq!(store.keep_alive(lease).await.expect_err("revoked").kind(), ErrorKind::LeaseGone);
}

async fn lease_changes(store: Store) {
    let [first, second] = [(); 2].map(|()| DEADLINE * 10);
    let first = store.grant_lease(first).await.expect("grant");
    let second = store.grant_lease(second).await.expect("grant");
    assert_ne!(first, second);
    for name in ["/s/c/kept", "/s/c/moved", "/s/c/dropped", "/s/c/deleted"] {
        put_leased(&store, name, first).await.expect("put under a live lease");
    }
    put(&store, "/s/c/kept", "permanent now").await;
    put_leased(&store, "/s/c/moved", second).await.expect("put under a live lease");
    store.delete_if(&key("/s/c/deleted"), Expect::Present).await.expect("delete");
    put(&store, "/s/c/deleted", "made again, permanent").await;
    store.revoke(first).await.expect("revoke");
    let left = async || -> Vec<String> {
        let rows = store.list(&key("/s/c"), None, 10).await.expect("list");
        rows.into_iter().map(|(key, _)| key.name().to_owned()).collect()
    };
    assert_eq!(left().await, ["deleted", "kept", "moved"]);
    store.revoke(second).await.expect("revoke");
    assert_eq!(left().await, ["deleted", "kept"]);
}

async fn keeping_alive(store: Store) {
    let ttl = Duration::from_secs(4);
    let lease = store.grant_lease(ttl).await.expect("grant");
    put_leased(&store, "/s/alive", lease).await.expect("put under a live lease");
    let mut watch = store.watch(&key("/s/alive")).await.expect("watch");
    let start = tokio::time::Instant::now();
    let mut ticks = tokio::time::interval(ttl / 8);
    while start.elapsed() < ttl * 3 / 2 {
        ticks.tick().await;
        store.keep_alive(lease).await.expect("a lease kept in time lives");
    }
    assert!(read(&store, "/s/alive").await.is_some(), "a kept lease outlives its first time");
    until_gone(&mut watch, "/s/alive").await;
}

/// The happened × reported matrix over this store: whatever the fault, reading back tells the truth.
async fn unknown_is_settled(store: Store) {
    let faulty = FaultyStore::scripted(Arc::clone(&store));
    let name = key("/s/u");
    let create = async |value: &'static str| {
        let value = Bytes::from_static(value.as_bytes());
        let mine = value.clone();
        resolve::put(&faulty, &name, &value, Expect::Absent, move |found| found.value == mine).await
    };
    faulty.fail_next_on(&key("/s/elsewhere"), FaultKind::FailBefore);
    faulty.fail_next(FaultKind::AppliedUnknown);
    let version = create("mine").await.expect("it was done, and recognised");
    assert_eq!(read(&store, "/s/u").await.expect("there").version, version);
    assert_eq!(faulty.outstanding(), 1, "a fault waits for its key");

    store.delete_if(&name, Expect::Any).await.expect("delete");
    faulty.fail_next(FaultKind::NotAppliedUnknown);
    create("mine").await.expect("it was not done, and sent again under the same condition");

    faulty.fail_next(FaultKind::AppliedUnknown);
    let other = create("another's value is there").await;
    assert!(matches!(other, Err(crate::WriteError::Unknown(_))), "never a false answer: {other:?}");

    faulty.fail_next(FaultKind::AppliedUnknown);
    faulty.fail_next(FaultKind::FailRead);
    let found = read(&store, "/s/u").await.expect("there");
    let value = Bytes::from_static(b"second");
    let blind = resolve::put(&faulty, &name, &value, Expect::At(found.version), |found| found.value == value).await;
    assert!(matches!(blind, Err(crate::WriteError::Unknown(_))), "without reading back nobody knows: {blind:?}");
    assert_eq!(text(&store, "/s/u").await.as_deref(), Some("second"));

    faulty.fail_next(FaultKind::AppliedUnknown);
    resolve::delete(&faulty, &name, Expect::Present).await.expect("it was done");
    assert_eq!(read(&store, "/s/u").await, None);
    faulty.fail_next(FaultKind::FailBefore);
    let refused = create("x").await;
    assert!(matches!(refused, Err(crate::WriteError::NotDone(_))), "{refused:?}");
    assert_eq!(read(&store, "/s/u").await, None);
}

/// Random transactions, one after the other, against the obvious map.
///
/// # Panics
/// When the store and the map differ; the message has the seed.
pub async fn random_transactions(store: Store, seed: u64) {
    let rng = Rng::seeded(seed);
    let root = key("/s/model");
    let mut expected: BTreeMap<Key, (Bytes, Version)> = BTreeMap::new();
    for step in 0..60 {
        let mut transaction = Transaction::new();
        let mut after = expected.clone();
        let mut conflict = None;
        for op in 0..1 + rng.below(4) {
            let name = key(&format!("{root}/{}", op * 3 + rng.below(3)));
            let now = expected.get(&name).map(|(_, version)| *version);
            let expect = match rng.below(6) {
                0 => Expect::Absent,
                1 => Expect::Present,
                2 | 3 => now.map_or(Expect::Absent, Expect::At),
                _ => Expect::Any,
            };
            if !expect.allows(now) && conflict.is_none() {
                conflict = Some(transaction.ops().len());
            }
            transaction = match rng.below(4) {
                0 => transaction.check(name, expect),
                1 => {
                    after.remove(&name);
                    transaction.delete(name, expect)
                }
                _ => {
                    let value = Bytes::from(format!("{step}-{op}"));
                    // The version is filled in when the commit has answered.
                    after.insert(name.clone(), (value.clone(), Version::new(0)));
                    transaction.put(name, value, expect)
                }
            };
        }
        match (store.commit(transaction.clone()).await, conflict) {
            (Ok(done), None) => {
                for (op, version) in transaction.ops().iter().zip(done.versions) {
                    assert_eq!(version.is_some(), after.contains_key(op.key()), "{op:?}");
                    if let (Some(version), Some(row)) = (version, after.get_mut(op.key())) {
                        row.1 = version;
                    }
                }
                expected = after;
            }
            (Err(CommitError::Conflict { op, .. }), Some(want)) => assert_eq!(op, want, "seed {seed}, step {step}"),
            (got, want) => panic!("seed {seed}, step {step}: got {got:?}, wanted conflict {want:?}"),
        }
    }
    let rows: Vec<_> = scan(&*store, &root, 2).try_collect().await.expect("list");
    let rows: Vec<_> = rows.into_iter().map(|(key, found)| (key, (found.value, found.version))).collect();
    assert_eq!(rows, expected.into_iter().collect::<Vec<_>>(), "seed {seed}");
}
