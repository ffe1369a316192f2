//! Faults on the way between the store and the server, and of the server itself: what is told must be what happened.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use faults::ZooKeeper;
use faults::tcp::{Behaviour, Fate, Flow, Proxy};
use metadata::{CommitError, ErrorKind, Expect, Key, MetadataStore, Transaction, WatchEvent};
use tokio::time::Instant;

use crate::{DEADLINE, key, next_event, open, put_until_done, until};

/// A store over a link that can fail, and one beside it that sees what really happened.
struct World {
    server: ZooKeeper,
    proxy: Proxy,
    store: Arc<dyn MetadataStore>,
    truth: Arc<dyn MetadataStore>,
}

impl World {
    async fn start() -> Self {
        let server = ZooKeeper::start().await.unwrap();
        let proxy = Proxy::start(server.endpoint()).await.unwrap();
        let store = open(&format!("zk://{}/r", proxy.address())).await;
        let truth = open(&server.uri("/r")).await;
        Self { server, proxy, store, truth }
    }

    async fn is_there(&self, name: &Key) -> bool {
        self.truth.get_quorum(name).await.unwrap().is_some()
    }

    /// Everything passes again, on new connections.
    fn heal(&self) {
        self.proxy.set(Behaviour::pass());
        self.proxy.reset_connections();
    }

    fn cut(&self) {
        self.proxy.set(Behaviour::refuse());
        self.proxy.reset_connections();
    }
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_reading_back_settles_it() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let world = World::start().await;
    let name = key("/a");
    // Its directory is there then, so that one request does it.
    world.store.create(&name, Bytes::new()).await.unwrap();
    world.store.delete_if(&name, Expect::Present).await.unwrap();
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
    assert!(matches!(&again, Err(CommitError::Conflict { op: 0, found: Some(now) }) if *now == found), "{again:?}");
}

#[tokio::test]
async fn a_lost_request_is_unknown_within_the_deadline_and_not_done() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let world = World::start().await;
    let name = key("/a");
    world.proxy.set(Behaviour { up: Flow { fate: Fate::Swallow, ..Flow::default() }, ..Behaviour::default() });
    let began = Instant::now();
    let told = world.store.create(&name, Bytes::new()).await;
    assert!(matches!(told, Err(CommitError::Unknown(_))), "{told:?}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    world.heal();
    assert_eq!(world.store.get_quorum(&name).await.unwrap(), None);
    assert!(!world.is_there(&name).await);
}

#[tokio::test]
async fn a_refusing_link_does_nothing_and_a_new_one_goes_on() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let world = World::start().await;
    world.cut();
    let told = world.store.create(&key("/a"), Bytes::new()).await;
    assert!(matches!(told, Err(CommitError::NotDone(_) | CommitError::Unknown(_))), "{told:?}");
    assert_eq!(world.store.get_quorum(&key("/a")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let refused = world.store.create(&key("/b"), Bytes::new()).await;
    assert!(matches!(refused, Err(CommitError::NotDone(_))), "no connection was made: {refused:?}");
    world.proxy.set(Behaviour::pass());
    world.store.create(&key("/c"), Bytes::new()).await.unwrap();
    for name in ["/a", "/b"] {
        assert!(!world.is_there(&key(name)).await);
    }
}

#[tokio::test]
async fn a_watch_that_was_cut_off_is_lost_and_can_begin_again() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let world = World::start().await;
    let mut watch = world.store.watch(&key("/a")).await.unwrap();
    world.store.create(&key("/a/x"), Bytes::new()).await.unwrap();
    assert!(matches!(next_event(&mut watch).await, Some(WatchEvent::Put { key: found, .. }) if found == key("/a/x")));
    world.cut();
    put_until_done(&*world.truth, "/a/y").await;
    world.proxy.set(Behaviour::pass());
    assert_eq!(next_event(&mut watch).await, Some(WatchEvent::Lost));
    assert_eq!(watch.next().await, None);
    let mut watch = world.store.watch(&key("/a")).await.unwrap();
    assert_eq!(world.store.list(&key("/a"), None, 10).await.unwrap().len(), 2);
    put_until_done(&*world.truth, "/a/z").await;
    assert!(matches!(next_event(&mut watch).await, Some(WatchEvent::Put { key: found, .. }) if found == key("/a/z")));
}

#[tokio::test]
async fn a_lease_outlives_a_short_cut_and_not_a_long_one() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let world = World::start().await;
    let ttl = Duration::from_secs(6);
    let lease = world.store.grant_lease(ttl).await.unwrap();
    let name = key("/a");
    world.store.commit(Transaction::new().put_leased(name.clone(), "x", Expect::Absent, lease)).await.unwrap();
    world.cut();
    let cut = world.store.keep_alive(lease).await.unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::Unavailable, "a lease that cannot be reached is not one that ended: {cut}");
    world.proxy.set(Behaviour::pass());
    until("the lease's session comes back", async || world.store.keep_alive(lease).await.is_ok()).await;
    assert!(world.is_there(&name).await);

    let mut watch = world.truth.watch(&name).await.unwrap();
    world.cut();
    assert_eq!(next_event(&mut watch).await, Some(WatchEvent::Delete { key: name.clone() }));
    world.proxy.set(Behaviour::pass());
    assert_eq!(world.store.keep_alive(lease).await.unwrap_err().kind(), ErrorKind::LeaseGone);
    let put = world.store.commit(Transaction::new().put_leased(name.clone(), "x", Expect::Absent, lease)).await;
    assert!(matches!(&put, Err(CommitError::NotDone(error)) if error.kind() == ErrorKind::LeaseGone), "{put:?}");
    assert_eq!(world.store.get(&name).await.unwrap(), None, "a hint is not older than what was told");
}

#[tokio::test]
async fn leases_and_values_outlive_the_servers_process() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let World { mut server, proxy: _proxy, store, truth: _ } = World::start().await;
    let lease = store.grant_lease(Duration::from_secs(120)).await.unwrap();
    store.commit(Transaction::new().put_leased(key("/a/leased"), "x", Expect::Absent, lease)).await.unwrap();
    for round in 0..2 {
        server.kill();
        let down = store.create(&key("/a/while-down"), Bytes::new()).await;
        assert!(matches!(down, Err(CommitError::NotDone(_) | CommitError::Unknown(_))), "{down:?}");
        server.restart().await.unwrap();
        put_until_done(&*store, &format!("/a/{round}")).await;
        let give_up = Instant::now() + DEADLINE;
        while let Err(error) = store.keep_alive(lease).await {
            assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < give_up, "{error}");
        }
        assert!(store.get_quorum(&key("/a/leased")).await.unwrap().is_some());
    }
    assert_eq!(store.get_quorum(&key("/a/while-down")).await.unwrap(), None);
    assert_eq!(store.list(&key("/a"), None, 10).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_silent_server_leaves_commits_unknown_within_the_deadline() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let world = World::start().await;
    world.store.create(&key("/a"), Bytes::new()).await.unwrap();
    world.server.pause();
    let began = Instant::now();
    let (a, b) = (key("/a"), key("/b"));
    let (written, read) = tokio::join!(world.store.create(&b, Bytes::new()), world.store.get_quorum(&a));
    assert!(matches!(written, Err(CommitError::Unknown(_))), "{written:?}");
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    world.server.resume();
    until("a new session is made", async || world.store.get_quorum(&a).await.is_ok_and(|found| found.is_some())).await;
}
