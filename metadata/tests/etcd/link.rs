//! Faults on the way between the store and the server: what is told must be what happened.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::rng::Rng;
use etcd_client::{Client, CompactionOptions};
use faults::Etcd;
use faults::tcp::{Behaviour, Fate, Flow, Proxy};
use ledger::LedgerId;
use metadata::{Cluster, CommitError, ErrorKind, Expect, Key, MetadataStore, Transaction, WatchEvent, layout};
use tokio::time::Instant;

use crate::{DEADLINE, key, next_put, open, put_until_done};

/// A store over a link that can fail, and one beside it that sees what really happened.
struct World {
    etcd: Etcd,
    proxy: Proxy,
    store: Arc<dyn MetadataStore>,
    truth: Arc<dyn MetadataStore>,
}

impl World {
    async fn start() -> Self {
        Self::of_layout("").await
    }

    /// With a layout's word in the URI.
    async fn of_layout(word: &str) -> Self {
        let etcd = Etcd::start().await.unwrap();
        let proxy = Proxy::start(etcd.endpoint()).await.unwrap();
        let store = open(&format!("etcd{word}://{}/r", proxy.address())).await;
        let truth = open(&format!("etcd{word}://{}/r", etcd.endpoint())).await;
        Cluster::init_or_open(&*truth, &Rng::seeded(1)).await.unwrap();
        Self { etcd, proxy, store, truth }
    }

    async fn is_there(&self, name: &Key) -> bool {
        self.truth.get_quorum(name).await.unwrap().is_some()
    }

    /// Everything passes again, on new connections.
    fn heal(&self) {
        self.proxy.set(Behaviour::pass());
        self.proxy.reset_connections();
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < give_up, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_reading_back_settles_it() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    a_lost_reply("", key("/a")).await;
    // Where what BookKeeper knows has other names.
    a_lost_reply("+apache", key("/ledgers/cookies/b-1")).await;
    a_lost_reply("+hierarchical", layout::ledger_key(LedgerId::new(7_u64).unwrap())).await;
}

async fn a_lost_reply(word: &str, name: Key) {
    let world = World::of_layout(word).await;
    // Both know the cluster's layout before the link fails.
    world.store.get_quorum(&name).await.unwrap();
    world.proxy.set(Behaviour::swallow_replies());
    let (told, ()) = tokio::join!(world.store.create(&name, Bytes::from_static(b"mine")), async {
        until("the create is done although its reply is lost", async || world.is_there(&name).await).await;
        world.heal();
    });
    assert!(matches!(told, Err(CommitError::Unknown(_))), "{told:?}");
    let found = world.store.get_quorum(&name).await.unwrap().unwrap();
    assert_eq!(found.value, "mine");
    // The driver did not send it again: that would have met its own first try.
    let again = world.store.create(&name, Bytes::from_static(b"mine")).await;
    assert!(matches!(again, Err(CommitError::Conflict { op: 0, found: Some(now) }) if now == found));
}

async fn a_lost_request(behaviour: Behaviour) {
    let world = World::start().await;
    world.proxy.set(behaviour);
    let began = Instant::now();
    let told = world.store.create(&key("/a"), Bytes::new()).await;
    assert!(matches!(told, Err(CommitError::Unknown(_))), "{told:?}");
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(4) && waited < Duration::from_secs(15), "{waited:?}");
    // What the link still holds goes down with the connections: let go earlier, it could still arrive and be done.
    world.proxy.reset_connections();
    until("the connections end", async || world.proxy.traffic().open == 0).await;
    world.proxy.set(Behaviour::pass());
    assert_eq!(world.store.get_quorum(&key("/a")).await.unwrap(), None);
    assert!(!world.is_there(&key("/a")).await);
}

pub(crate) async fn lost_requests_are_unknown_within_the_deadline_and_not_done() {
    let swallow = Behaviour { up: Flow { fate: Fate::Swallow, ..Flow::default() }, ..Behaviour::default() };
    tokio::join!(a_lost_request(swallow), a_lost_request(Behaviour::blackhole()));
}

#[tokio::test]
async fn a_refusing_link_does_nothing_and_a_missing_one_says_so() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let world = World::start().await;
    world.proxy.set(Behaviour::refuse());
    world.proxy.reset_connections();
    let told = world.store.create(&key("/a"), Bytes::new()).await;
    assert!(matches!(told, Err(CommitError::NotDone(_) | CommitError::Unknown(_))), "{told:?}");
    assert_eq!(world.store.get_quorum(&key("/a")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let World { etcd: _etcd, proxy, store, truth } = world;
    drop(proxy);
    // Its listener goes with its task.
    until("nothing listens any more", async || {
        matches!(store.create(&key("/b"), Bytes::new()).await, Err(CommitError::NotDone(_)))
    })
    .await;
    for name in ["/a", "/b"] {
        assert_eq!(truth.get_quorum(&key(name)).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_watch_tells_what_happened_while_it_was_cut_off() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    a_cut_watch("", "/a", "/b").await;
    a_cut_watch("+apache", "/ledgers/available", "/ledgers/cookies/b").await;
}

/// A watch of `below`, which keys that begin with `beside` have nothing to do with.
async fn a_cut_watch(word: &str, below: &str, beside: &str) {
    let world = World::of_layout(word).await;
    let mut watch = world.store.watch(&key(below)).await.unwrap();
    let [x, y] = ["x", "y"].map(|name| format!("{below}/{name}"));
    for round in 0..5 {
        world.proxy.set(Behaviour::refuse());
        world.proxy.reset_connections();
        for name in [&x, beside, &y] {
            put_until_done(&*world.truth, &format!("{name}{round}")).await;
        }
        world.proxy.set(Behaviour::pass());
        // What was told last before the cut may be told again.
        let mut missing = BTreeSet::from([key(&format!("{x}{round}")), key(&format!("{y}{round}"))]);
        while !missing.is_empty() {
            missing.remove(&next_put(&mut watch).await);
        }
    }
    // Quiet, then cut, then told: it begins behind the last thing it has seen.
    world.proxy.reset_connections();
    let gone_key = key(&format!("{x}0"));
    world.truth.delete_if(&gone_key, Expect::Present).await.unwrap();
    let gone = tokio::time::timeout(DEADLINE, async {
        loop {
            match watch.next().await {
                Some(WatchEvent::Delete { key }) => return key,
                Some(WatchEvent::Put { .. }) => {}
                other => panic!("nothing was lost: {other:?}"),
            }
        }
    });
    assert_eq!(gone.await.unwrap(), gone_key);
}

#[tokio::test]
async fn a_watch_that_missed_what_is_compacted_is_lost() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let world = World::start().await;
    let mut watch = world.store.watch(&key("/a")).await.unwrap();
    world.proxy.set(Behaviour::refuse());
    world.proxy.reset_connections();
    for _ in 0..3 {
        put_until_done(&*world.truth, "/a/x").await;
    }
    let mut client = Client::connect([world.etcd.endpoint()], None).await.unwrap();
    let now = client.get("x", None).await.unwrap().header().unwrap().revision();
    client.compact(now, Some(CompactionOptions::new().with_physical())).await.unwrap();
    world.proxy.set(Behaviour::pass());
    assert_eq!(tokio::time::timeout(DEADLINE, watch.next()).await.unwrap(), Some(WatchEvent::Lost));
    assert_eq!(watch.next().await, None);
    // To begin again works: watch, then list.
    let mut watch = world.store.watch(&key("/a")).await.unwrap();
    assert_eq!(world.store.list(&key("/a"), None, 10).await.unwrap().len(), 1);
    put_until_done(&*world.truth, "/a/z").await;
    assert_eq!(next_put(&mut watch).await, key("/a/z"));
}

#[tokio::test]
async fn a_lease_outlives_a_short_cut_and_not_a_long_one() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let world = World::start().await;
    let ttl = Duration::from_secs(3);
    let lease = world.store.grant_lease(ttl).await.unwrap();
    let name = key("/a");
    world.store.commit(Transaction::new().put_leased(name.clone(), "x", Expect::Absent, lease)).await.unwrap();
    for _ in 0..4 {
        world.proxy.set(Behaviour::refuse());
        world.proxy.reset_connections();
        let cut = world.store.keep_alive(lease).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::Unavailable, "a lease that cannot be reached is not one that ended: {cut}");
        tokio::time::sleep(ttl / 4).await;
        world.proxy.set(Behaviour::pass());
        world.store.keep_alive(lease).await.unwrap();
    }
    assert!(world.is_there(&name).await);

    let mut watch = world.store.watch(&name).await.unwrap();
    world.proxy.set(Behaviour::refuse());
    world.proxy.reset_connections();
    until("the lease ends", async || !world.is_there(&name).await).await;
    world.proxy.set(Behaviour::pass());
    assert_eq!(world.store.keep_alive(lease).await.unwrap_err().kind(), ErrorKind::LeaseGone);
    let told = tokio::time::timeout(DEADLINE, watch.next()).await.unwrap();
    assert_eq!(told, Some(WatchEvent::Delete { key: name }));
}
