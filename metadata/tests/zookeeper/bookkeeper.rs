//! The tree as BookKeeper's own clients see and make it, looked at with a plain client of ZooKeeper.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::rng::Rng;
use faults::ZooKeeper;
use faults::tcp::{Behaviour, Proxy};
use futures::future::join_all;
use ledger::{BookieId, DigestType, LedgerId, LedgerMetadata, Password, Quorums};
use metadata::{
    BookieInfo, Bookies, Cluster, CommitError, ErrorKind, Expect, Key, LedgerLayout, Ledgers, MetadataStore,
    Transaction, UnderReplication, Version, WatchEvent, ZooKeeperStore, layout,
};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

use crate::{key, next_event, open, until};

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

fn id(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn metadata(token: i64) -> LedgerMetadata {
    let bookie = BookieId::new("10.0.0.1:3181").unwrap();
    let quorums = Quorums::new(1, 1, 1).unwrap();
    let metadata = LedgerMetadata::open(quorums, vec![bookie], DigestType::Crc32c, Password::empty()).unwrap();
    metadata.with_ctoken(token).unwrap()
}

async fn names(client: &Client, path: &str) -> BTreeSet<String> {
    client.list_children(path).await.unwrap().into_iter().collect()
}

/// Java's clients of the long layout begin with short ids, and end them when `idgen-long` stands.
#[tokio::test]
async fn asking_for_ids_given_does_not_end_short_ones() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.endpoint()).await.unwrap();
    let store = open(&format!("zk+longhierarchical://{}/long", server.endpoint())).await;
    Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
    client.mkdir("/long/idgen", &PERSISTENT).await.unwrap();
    let number = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for _ in 0..10 {
        client.create("/long/idgen/ID-", &[], &number).await.unwrap();
    }
    let given = store.given_ids().await.unwrap();
    assert_eq!(given.highest(), Some(10), "behind ten, which begin at 0");
    assert!(client.check_stat("/long/idgen-long").await.unwrap().is_none());
    // Ours are long, and all count from then on.
    let long = store.allocate_ledger_id().await.unwrap();
    assert!(long >= 1 << 32);
    assert!(store.given_ids().await.unwrap().highest() > Some(long));
}

#[tokio::test]
async fn a_new_cluster_is_the_one_that_java_makes() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.endpoint()).await.unwrap();
    for (uri, root, value) in [
        (server.uri(""), "/ledgers", LedgerLayout::Hierarchical.value()),
        (server.uri("/a/b"), "/a/b", LedgerLayout::Hierarchical.value()),
        (format!("zk+longhierarchical://{}/long", server.endpoint()), "/long", LedgerLayout::LongHierarchical.value()),
        (format!("zk+flat://{}/flat", server.endpoint()), "/flat", LedgerLayout::Flat.value()),
    ] {
        let store = open(&uri).await;
        let instance = Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
        assert_eq!(Cluster::open(&*store).await.unwrap(), Some(instance.clone()));
        let made = BTreeSet::from(["LAYOUT", "INSTANCEID", "available", "cookies"].map(String::from));
        assert_eq!(names(&client, root).await, made);
        assert_eq!(names(&client, &format!("{root}/available")).await, BTreeSet::from(["readonly".to_owned()]));
        assert_eq!(client.get_data(&format!("{root}/LAYOUT")).await.unwrap().0, value.as_bytes());
        assert_eq!(client.get_data(&format!("{root}/INSTANCEID")).await.unwrap().0, instance.as_str().as_bytes());
        let ledgers = Ledgers::new(Arc::clone(&store));
        let found = Bookies::new(Arc::clone(&store)).list().await.unwrap();
        assert!(found.is_empty(), "directories are no bookies: {found:?}");
        assert_eq!(ledgers.list(None, 10).await.unwrap(), []);
    }
    // The layout of a cluster stays what it is.
    let other = ZooKeeperStore::open(&format!("zk+flat://{}/ledgers", server.endpoint())).await.err().unwrap();
    assert_eq!(other.kind(), ErrorKind::Unsupported);
    assert!(other.to_string().contains("leave it out of the URI"), "{other}");
    client.set_data("/a/b/LAYOUT", b"2\norg.example.Other:1", None).await.unwrap();
    assert_eq!(ZooKeeperStore::open(&server.uri("/a/b")).await.err().unwrap().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn ledgers_lie_where_the_layout_says_and_leave_nothing_behind() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.endpoint()).await.unwrap();
    for layout in ["hierarchical", "longhierarchical", "flat"] {
        let root = format!("/{layout}");
        let store = open(&format!("zk+{layout}://{}{root}", server.endpoint())).await;
        Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
        let ledgers = Ledgers::new(Arc::clone(&store));
        let before = names(&client, &root).await;
        let ids = [1, 2, 10_000, 10_001, 123_456_789, 2_147_483_646, 2_147_483_647, 4_294_967_301].map(id);
        let mut watch = ledgers.watch(ids[0]).await.unwrap();
        for ledger in ids {
            ledgers.create(ledger, &metadata(7)).await.unwrap();
        }
        assert!(matches!(next_event(&mut watch).await, Some(WatchEvent::Put { .. } | WatchEvent::Delete { .. })));
        let parsed = LedgerLayout::parse(&client.get_data(&format!("{root}/LAYOUT")).await.unwrap().0).unwrap();
        for ledger in ids {
            let path = format!("{root}/{}", parsed.path(ledger).unwrap());
            let (value, stat) = client.get_data(&path).await.unwrap();
            assert_eq!((value, stat.ephemeral_owner), (metadata(7).encode(), 0), "{path}");
        }
        for page in [1, 3, 100] {
            let (mut after, mut found) = (None, Vec::new());
            loop {
                let rows = ledgers.list(after, page).await.unwrap();
                let Some((last, _)) = rows.last() else { break };
                after = Some(*last);
                found.extend(rows.into_iter().map(|(id, _)| id));
            }
            assert_eq!(found, ids, "in the order of ids");
        }
        // A create that was retried is recognised, another's is not.
        let again = ledgers.create(ids[0], &metadata(7)).await.unwrap();
        assert_eq!(again, ledgers.get_quorum(ids[0]).await.unwrap().unwrap().version);
        ledgers.create(ids[0], &metadata(8)).await.unwrap_err();
        for ledger in ids {
            ledgers.delete(ledger, None).await.unwrap();
            assert_eq!(ledgers.get_quorum(ledger).await.unwrap(), None);
            ledgers.delete(ledger, None).await.unwrap();
        }
        assert_eq!(names(&client, &root).await, before, "empty directories of ledgers are removed");
        assert!(names(&client, "/").await.iter().all(|name| !name.ends_with("-own")), "and nothing is beside them");
    }
}

#[tokio::test]
async fn a_ledger_without_the_l_is_that_ledger() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.endpoint()).await.unwrap();
    let store = open(&server.uri("")).await;
    Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
    let ledgers = Ledgers::new(Arc::clone(&store));
    client.mkdir("/ledgers/00/0000", &PERSISTENT).await.unwrap();
    client.create("/ledgers/00/0000/0005", &metadata(9).encode(), &PERSISTENT).await.unwrap();
    ledgers.create(id(6), &metadata(7)).await.unwrap();
    let found = ledgers.get_quorum(id(5)).await.unwrap().unwrap();
    assert_eq!(ledgers.get(id(5)).await.unwrap().unwrap(), found);
    let listed: Vec<_> = ledgers.list(None, 10).await.unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(listed, [id(5), id(6)]);
    ledgers.create(id(5), &metadata(7)).await.unwrap_err();
    let closed = found.metadata.closed(None, 0).unwrap();
    ledgers.update(id(5), &closed, found.version).await.unwrap();
    assert_eq!(client.get_data("/ledgers/00/0000/0005").await.unwrap().0, closed.encode(), "where it was");
    ledgers.delete(id(5), None).await.unwrap();
    assert_eq!(ledgers.get_quorum(id(5)).await.unwrap(), None);
    assert_eq!(client.check_stat("/ledgers/00/0000/0005").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_those_of_javas_generators() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.endpoint()).await.unwrap();
    let store = open(&server.uri("")).await;
    Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
    let ledgers = Ledgers::new(Arc::clone(&store));
    let mut ids: BTreeSet<_> =
        join_all((0..20).map(|_| ledgers.allocate_id())).await.into_iter().map(Result::unwrap).collect();
    // Another client of the same generator, as Java does it.
    let other = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = client.create("/ledgers/idgen/ID-", &[], &other).await.unwrap();
    assert!(ids.insert(id(u64::try_from(number.into_i64()).unwrap())));
    assert_eq!(ids, (0..21).map(id).collect(), "each number once");
    assert_eq!(names(&client, "/ledgers/idgen").await.len(), 1, "only the other client's number is left");

    // Once there are long ids, everyone makes them.
    client.mkdir("/ledgers/idgen-long/HOB-0000000003", &PERSISTENT).await.unwrap();
    assert_eq!(ledgers.allocate_id().await.unwrap(), id(3 << 32));
    assert_eq!(ledgers.allocate_id().await.unwrap(), id(3 << 32 | 1));
    let long = open(&format!("zk+longhierarchical://{}/long", server.endpoint())).await;
    Cluster::init_or_open(&*long, &Rng::seeded(1)).await.unwrap();
    assert_eq!(Ledgers::new(long).allocate_id().await.unwrap(), id(1 << 32));
    assert_eq!(names(&client, "/long/idgen-long").await, BTreeSet::from(["HOB-0000000001".to_owned()]));
}

#[tokio::test]
async fn bookies_are_held_by_sessions() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.endpoint()).await.unwrap();
    let store = open(&server.uri("")).await;
    Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
    let bookies = Bookies::new(Arc::clone(&store));
    let bookie = BookieId::new("10.0.0.1:3181").unwrap();
    let info = BookieInfo::at("10.0.0.1:3181");
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    let version = bookies.register(&bookie, &info, lease).await.unwrap();
    assert_eq!(bookies.register(&bookie, &info, lease).await.unwrap(), version);
    let (value, stat) = client.get_data("/ledgers/available/10.0.0.1:3181").await.unwrap();
    assert_eq!(value, info.encode().unwrap());
    assert!(stat.ephemeral_owner != 0 && stat.ephemeral_owner != client.session_id().0);
    bookies.register_as(&bookie, &info, lease, metadata::Mode::ReadOnly).await.unwrap();
    assert_eq!(client.check_stat("/ledgers/available/10.0.0.1:3181").await.unwrap(), None);
    assert_eq!(bookies.list().await.unwrap(), [(bookie.clone(), info.clone(), false)]);
    let other = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    let taken = bookies.register(&bookie, &info, other).await;
    assert!(matches!(taken, Err(metadata::RegisterError::Taken { .. })), "{taken:?}");
    store.revoke(lease).await.unwrap();
    bookies.register(&bookie, &info, other).await.unwrap();
    assert_eq!(bookies.list().await.unwrap(), [(bookie, info, true)]);
}

/// Java's workers and ours respect each other: same paths, same bytes, ephemeral locks.
#[tokio::test]
async fn auto_recovery_of_java_sees_our_marks_and_locks_and_we_see_its() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.endpoint()).await.unwrap();
    let store = open(&server.uri("")).await;
    Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
    let under = UnderReplication::new(Arc::clone(&store));
    let root = "/ledgers/underreplication";
    assert_eq!((under.auditor().await.unwrap(), under.is_disabled().await.unwrap()), (None, false));

    let ledger = id(123_456_789);
    under.add_mark(ledger, &["10.0.0.1:3181"], 1_700_000_000_123).await.unwrap();
    let path = format!("{root}/ledgers/0000/0000/075b/cd15/urL0123456789");
    let (value, stat) = client.get_data(&path).await.unwrap();
    assert_eq!(value, b"replica: \"10.0.0.1:3181\"\nctime: 1700000000123\n");
    assert_eq!(stat.ephemeral_owner, 0);
    // What Java's auditor writes.
    client.mkdir(&format!("{root}/ledgers/0000/0000/0000/0005"), &PERSISTENT).await.unwrap();
    let other = format!("{root}/ledgers/0000/0000/0000/0005/urL0000000005");
    client.create(&other, b"replica: \"b-2\"\nctime: 5\n", &PERSISTENT).await.unwrap();
    client.create(&format!("{root}/LAYOUT"), b"type: \"BASIC\"\nversion: 1\n", &PERSISTENT).await.unwrap();
    for page in [1, 2, 10] {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let rows = under.list(after, page).await.unwrap();
            let Some((last, _)) = rows.last() else { break };
            after = Some(*last);
            found.extend(rows.into_iter().map(|(ledger, mark)| (ledger, mark.mark.replicas)));
        }
        assert_eq!(found, [(id(5), vec!["b-2".to_owned()]), (ledger, vec!["10.0.0.1:3181".to_owned()])]);
    }
    let mark = under.mark(id(5)).await.unwrap().unwrap();
    under.remove_mark(id(5), mark.version).await.unwrap();
    let left = names(&client, &format!("{root}/ledgers/0000/0000")).await;
    assert_eq!(left, BTreeSet::from(["075b".to_owned()]), "empty directories go with their mark");

    // A lock of Java's is honoured, one of ours is where Java looks and goes with its session.
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.mkdir(&format!("{root}/locks"), &PERSISTENT).await.unwrap();
    client.create(&format!("{root}/locks/urL0000000005"), b"bookieId: \"java\"\n", &ephemeral).await.unwrap();
    let me = BookieId::new("10.0.0.9:3181").unwrap();
    let lease = store.grant_lease(Duration::from_secs(20)).await.unwrap();
    let locked = under.lock(&[id(5), ledger, id(6)], &me, lease).await.unwrap();
    assert_eq!(locked.held, [id(5)]);
    assert_eq!(locked.taken.iter().map(|lock| lock.ledger).collect::<Vec<_>>(), [ledger, id(6)]);
    assert_eq!(under.lock_holder(id(5)).await.unwrap().as_deref(), Some("java"));
    let path = format!("{root}/locks/urL0123456789");
    let (value, stat) = client.get_data(&path).await.unwrap();
    assert_eq!(value, b"bookieId: \"10.0.0.9:3181\"\n");
    assert!(stat.ephemeral_owner != 0);
    let refused = client.create(&path, b"bookieId: \"java\"\n", &ephemeral).await;
    assert_eq!(refused.err(), Some(Error::NodeExists), "Java's worker finds it taken");
    under.unlock(locked.taken[1]).await.unwrap();
    store.revoke(lease).await.unwrap();
    let left = names(&client, &format!("{root}/locks")).await;
    assert_eq!(left, BTreeSet::from(["urL0000000005".to_owned()]));

    let vote = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.mkdir(&format!("{root}/auditorelection"), &PERSISTENT).await.unwrap();
    for name in ["first", "second"] {
        let value = format!("bookieId: \"{name}\"\n");
        client.create(&format!("{root}/auditorelection/V_"), value.as_bytes(), &vote).await.unwrap();
    }
    assert_eq!(under.auditor().await.unwrap().as_deref(), Some("first"));
    client.create(&format!("{root}/disable"), b"", &PERSISTENT).await.unwrap();
    assert!(under.is_disabled().await.unwrap());
    // Whoever removes a cluster finds all of it, in order.
    let all = store.list(&layout::underreplication_root(), None, 100).await.unwrap();
    let all: Vec<_> = all.iter().map(|(key, _)| key.as_str().trim_start_matches(root)).collect();
    let votes = ["/auditorelection/V_0000000000", "/auditorelection/V_0000000001"];
    assert_eq!(all[..2], ["/LAYOUT", "/auditorelection"]);
    assert_eq!(all[2..4], votes);
    assert_eq!(all[4..], ["/disable", "/ledgers/0000/0000/075b/cd15/urL0123456789", "/locks/urL0000000005"]);
}

/// Made again by others with the same data version as before: what was read is not what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_made_again_never_passes_for_the_old_one() {
    made_again(500, async |store, name| {
        let version = store.create(name, Bytes::new()).await.unwrap();
        store.delete_if(name, Expect::At(version)).await.unwrap();
        version
    })
    .await;
}

/// As above, where ZooKeeper removes the key itself: with the session that held it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_key_made_again_never_passes_for_the_old_one() {
    made_again(150, async |store, name| {
        let lease = store.grant_lease(Duration::from_secs(30)).await.unwrap();
        let put = Transaction::new().put_leased(name.clone(), Bytes::new(), Expect::Absent, lease);
        let version = store.commit(put).await.unwrap().put_version(0);
        store.revoke(lease).await.unwrap();
        version
    })
    .await;
}

/// Between the reads of a slow store and the requests that assert them, `make` makes the key again many times.
async fn made_again(rounds: usize, make: impl AsyncFn(&dyn MetadataStore, &Key) -> Version) {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let proxy = Proxy::start(server.endpoint()).await.unwrap();
    let [slow, quick] = [open(&format!("zk://{}/r", proxy.address())).await, open(&server.uri("/r")).await];
    proxy.set(Behaviour::delay(Duration::from_millis(20)));
    let name = key("/s/aba");
    // The version it asserted and the one it wrote, when it held.
    let asserts = async || {
        let found = slow.get(&name).await.unwrap()?;
        let transaction = Transaction::new().check(name.clone(), Expect::At(found.version)).put(
            key("/s/seen"),
            Bytes::new(),
            Expect::Any,
        );
        match slow.commit(transaction).await {
            Ok(done) => Some(Ok((found.version, done.put_version(1)))),
            Err(CommitError::Conflict { op: 0, .. }) => Some(Err(())),
            Err(other) => panic!("{other:?}"),
        }
    };
    let finished = AtomicBool::new(false);
    let maker = async {
        let mut made = Vec::new();
        for _ in 0..rounds {
            made.push(make(&*quick, &name).await);
        }
        finished.store(true, Ordering::Relaxed);
        made
    };
    let asserter = async {
        let (mut held, mut conflicts) = (Vec::new(), 0);
        while !finished.load(Ordering::Relaxed) {
            match asserts().await {
                Some(Ok(versions)) => held.push(versions),
                Some(Err(())) => conflicts += 1,
                None => {}
            }
        }
        (held, conflicts)
    };
    let (made, (held, conflicts)) = tokio::join!(maker, asserter);
    assert!(conflicts > 0, "the key was never made again in between");
    for (checked, committed) in held {
        let between = made.iter().find(|version| checked < **version && **version < committed);
        assert_eq!(between, None, "version {checked} was not the last one at {committed}");
    }
    // Left alone, it holds.
    let version = quick.create(&name, Bytes::new()).await.unwrap();
    until("the slow store sees it", async || slow.get(&name).await.unwrap().is_some()).await;
    assert_eq!(asserts().await.unwrap().unwrap().0, version);
}

/// Whoever looks with a plain client sees what the other store sees.
#[tokio::test]
async fn two_stores_share_a_cluster_and_two_roots_do_not() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.endpoint()).await.unwrap();
    let [one, same, other] =
        [open(&server.uri("/r")).await, open(&server.uri("/r")).await, open(&server.uri("/r2")).await];
    let name: Key = layout::commit_counter_key();
    let mut watch = same.watch(&name).await.unwrap();
    let version = one.create(&name, "x".into()).await.unwrap();
    assert_eq!(next_event(&mut watch).await, Some(WatchEvent::Put { key: name.clone(), version }));
    assert_eq!(same.get_quorum(&name).await.unwrap().unwrap().version, version);
    assert_eq!(other.get_quorum(&name).await.unwrap(), None);
    assert_eq!(client.check_stat("/r").await.unwrap(), None, "nothing of ours is in BookKeeper's tree");
    assert_eq!(client.list_children("/r-own/thermocline").await.unwrap().len(), 1);
    let gone = client.delete("/r-own/thermocline", None).await;
    assert_eq!(gone, Err(Error::NotEmpty));
    until("the other store sees it go", async || {
        one.delete_if(&name, Expect::Any).await.unwrap();
        next_event(&mut watch).await == Some(WatchEvent::Delete { key: name.clone() })
    })
    .await;
}
