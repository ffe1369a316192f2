//! The layouts of other clients: BookKeeper's driver for etcd, and Pulsar's. Looked at with a plain client of etcd, and made with one
//! as the drivers do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::rng::Rng;
use etcd_client::{Client, Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use faults::Etcd;
use futures::future::join_all;
use ledger::{BookieId, DigestType, LedgerId, LedgerMetadata, Password, Quorums};
use metadata::{
    BookieInfo, Bookies, Cluster, CommitError, Cookie, Cookies, ErrorKind, EtcdStore, Expect, GivenIds, LedgerLayout,
    Ledgers, MetadataStore, Mode, Transaction, WatchEvent, admin, layout, suite,
};

use crate::{DEADLINE, key, open};

fn id(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn metadata(token: i64) -> LedgerMetadata {
    let bookie = BookieId::new("10.0.0.1:3181").unwrap();
    let quorums = Quorums::new(1, 1, 1).unwrap();
    let metadata = LedgerMetadata::open(quorums, vec![bookie], DigestType::Crc32c, Password::empty()).unwrap();
    metadata.with_ctoken(token).unwrap()
}

fn uri(etcd: &Etcd, word: &str, root: &str) -> String {
    format!("etcd{word}://{}{root}", etcd.endpoint())
}

/// Everything below a root: names and values.
async fn rows(client: &Client, root: &str) -> Vec<(String, Vec<u8>)> {
    let options = GetOptions::new().with_prefix();
    let found = client.kv_client().get(root, Some(options)).await.unwrap();
    found.kvs().iter().map(|row| (row.key_str().unwrap()[root.len()..].to_owned(), row.value().to_vec())).collect()
}

async fn names(client: &Client, root: &str) -> Vec<String> {
    rows(client, root).await.into_iter().map(|(name, _)| name).collect()
}

const DRIVERS_VALUE: &str = "2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0";
const MARKERS: [&str; 8] =
    ["", "/bookies", "/bookies/readonly", "/bookies/writable", "/buckets", "/cookies", "/ledgers", "/underreplication"];

/// A new cluster of ours, with what the set-up of others looks for.
const PATHS: [&str; 6] =
    ["", "/ledgers", "/ledgers/INSTANCEID", "/ledgers/LAYOUT", "/ledgers/available", "/ledgers/available/readonly"];

/// A cluster as BookKeeper's `initnewcluster` makes it; false when there is one.
async fn made_by_java(client: &Client, scope: &str, instance: &str) -> bool {
    let puts = MARKERS.iter().map(|name| TxnOp::put(format!("{scope}{name}"), "", None));
    let values = [("/layout", DRIVERS_VALUE), ("/instanceid", instance)];
    let values = values.map(|(name, value)| TxnOp::put(format!("{scope}{name}"), value, None));
    let absent = Compare::create_revision(scope, CompareOp::Equal, 0);
    let txn = Txn::new().when([absent]).and_then(puts.chain(values).collect::<Vec<_>>());
    client.kv_client().txn(txn).await.unwrap().succeeded()
}

/// The next id, as Java's `Etcd64bitIdGenerator` makes it from one of its buckets.
async fn id_of_java(client: &Client, scope: &str, bucket: u64) -> u64 {
    let name = format!("{scope}/buckets/{bucket:03}");
    let txn = Txn::new().and_then([TxnOp::put(name.clone(), "", None), TxnOp::get(name, None)]);
    let answer = client.kv_client().txn(txn).await.unwrap();
    let TxnOpResponse::Get(found) = &answer.op_responses()[1] else { panic!("{answer:?}") };
    bucket << 56 | u64::try_from(found.kvs()[0].version()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_in_the_layouts_of_others() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let count = AtomicUsize::new(0);
    let in_layout = async |word: &str| {
        suite::run(async || {
            let store = open(&uri(&etcd, word, &format!("/suite/{}", count.fetch_add(1, Ordering::Relaxed)))).await;
            Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
            store
        })
        .await;
    };
    tokio::join!(in_layout("+apache"), in_layout("+hierarchical"), crate::on_a_restless_server("+apache"));
}

#[tokio::test]
async fn a_new_cluster_is_the_one_that_java_makes() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let client = Client::connect([etcd.endpoint()], None).await.unwrap();
    let ours = open(&uri(&etcd, "+apache", "/ours")).await;
    let identity = admin::init(&*ours, &Rng::seeded(1), None).await.unwrap();
    assert!(made_by_java(&client, "/java", identity.instance.as_str()).await);
    assert_eq!(rows(&client, "/ours").await, rows(&client, "/java").await);
    assert!(!made_by_java(&client, "/ours", "x").await, "Java finds the cluster there");

    // Java's cluster is found under the URI that Java has, and under the one that names the layout.
    for word in ["", "+apache", "+null"] {
        let store = open(&uri(&etcd, word, "/java")).await;
        assert_eq!(Cluster::open(&*store).await.unwrap(), Some(identity.instance.clone()));
        assert_eq!(store.layouts(), [LedgerLayout::Etcd]);
        assert!(!store.clients_resolve_by_registration());
        admin::init(&*store, &Rng::seeded(2), None).await.unwrap_err();
    }
    let other = EtcdStore::open(&uri(&etcd, "+hierarchical", "/java")).await.err().unwrap();
    assert_eq!(other.kind(), ErrorKind::Unsupported);
    assert!(other.to_string().contains("leave it out of the URI"), "{other}");

    // A store that was opened when nothing was there goes along with whoever makes the cluster.
    let [early, late] = [open(&uri(&etcd, "", "/early")).await, open(&uri(&etcd, "", "/late")).await];
    assert!(made_by_java(&client, "/early", "i-1").await);
    assert_eq!(Cluster::init_or_open(&*early, &Rng::seeded(3)).await.unwrap().as_str(), "i-1");
    Cluster::init_or_open(&*late, &Rng::seeded(3)).await.unwrap();
    assert_eq!(names(&client, "/late").await, PATHS);
    assert!(late.clients_resolve_by_registration());

    // Removed, it leaves nothing: Java can make one there again.
    let ledgers = Ledgers::new(Arc::clone(&ours));
    ledgers.create(ledgers.allocate_id().await.unwrap(), &metadata(1)).await.unwrap();
    let found = admin::state(&*ours).await.unwrap();
    let options = admin::FormatOptions { run: Rng::seeded(4).uuid(), now_ms: 1, force: false };
    admin::format(&*ours, &found, options, &|_| {}).await.unwrap();
    assert_eq!(names(&client, "/ours").await, [""; 0]);
    assert!(made_by_java(&client, "/ours", "i-2").await);
}

#[tokio::test]
async fn two_clusters_do_not_get_below_one_root() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let client = Client::connect([etcd.endpoint()], None).await.unwrap();
    // Both were opened when nothing was there; the second to write is refused, and sees the first from then on.
    let [driver, plain] = [open(&uri(&etcd, "+apache", "/r")).await, open(&uri(&etcd, "", "/r")).await];
    let found = |store: Arc<dyn MetadataStore>| async move {
        let founding = Transaction::new().put(layout::instance_key(), "id", Expect::Absent).put(
            layout::layout_key(),
            store.layouts()[0].value(),
            Expect::Absent,
        );
        store.commit(founding).await
    };
    let both = join_all([driver, plain].map(|store| tokio::spawn(found(store)))).await;
    let done = both.into_iter().map(Result::unwrap).filter(Result::is_ok).count();
    assert_eq!(done, 1, "one of two");

    // Guards hold where the look at what is there came too early: the driver's cluster lies one level below.
    assert!(made_by_java(&client, "/below/ledgers", "i-1").await);
    let above = open(&uri(&etcd, "", "/below")).await;
    match above.commit(Transaction::new().put(layout::layout_key(), "x", Expect::Absent)).await {
        Err(CommitError::NotDone(error)) if error.kind() == ErrorKind::Refused => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(Cluster::open(&*open(&uri(&etcd, "", "/below/ledgers")).await).await.unwrap().unwrap().as_str(), "i-1");
    let beside = EtcdStore::open(&uri(&etcd, "", "/other/ledgers")).await.err().unwrap();
    assert!(beside.to_string().contains("below which clusters keep their keys"), "{beside}");

    // Two that got there all the same are told apart by nobody.
    for name in ["/two/ledgers/INSTANCEID", "/two/instanceid"] {
        client.kv_client().put(name, "i-1", None).await.unwrap();
    }
    let two = EtcdStore::open(&uri(&etcd, "", "/two")).await.err().unwrap();
    assert_eq!(two.kind(), ErrorKind::Refused);
    assert!(two.to_string().contains("two clusters lie below this root"), "{two}");
}

async fn format(store: &Arc<dyn MetadataStore>) {
    let found = admin::state(&**store).await.unwrap();
    let options = admin::FormatOptions { run: Rng::from_os().uuid(), now_ms: 1, force: false };
    admin::format(&**store, &found, options, &|_| {}).await.unwrap();
}

/// BookKeeper's `initnewcluster` looks for its root alone, Pulsar's set-up for `/ledgers`; both format or go on where it is not.
#[tokio::test]
async fn the_set_up_of_others_finds_clusters_of_ours() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let client = Client::connect([etcd.endpoint()], None).await.unwrap();
    let exists = async |name: &str| client.kv_client().get(name, None).await.unwrap().kvs().len() == 1;
    for (word, root) in [("", "/one"), ("+hierarchical", "/two"), ("", "")] {
        let store = open(&uri(&etcd, word, root)).await;
        let identity = admin::init(&*store, &Rng::seeded(1), None).await.unwrap();
        let ledgers = format!("{root}/ledgers");
        assert!(exists(&ledgers).await, "Pulsar's set-up formats otherwise");
        assert!(!made_by_java(&client, &ledgers, "x").await, "the root in BookKeeper's example");
        assert!(root.is_empty() || !made_by_java(&client, root, "x").await);
        // None of it is a bookie, or a key.
        assert!(Bookies::new(Arc::clone(&store)).list().await.unwrap().is_empty());
        assert_eq!(store.list(&key("/ledgers"), None, 100).await.unwrap().len(), 2);

        // A cluster of an earlier release gets them when a role starts.
        let found = names(&client, &ledgers).await;
        assert_eq!(found, ["", "/INSTANCEID", "/LAYOUT", "/available", "/available/readonly"]);
        for name in ["", "/available", "/available/readonly"] {
            client.kv_client().delete(format!("{ledgers}{name}"), None).await.unwrap();
        }
        let again = open(&uri(&etcd, "", root)).await;
        assert_eq!(Cluster::init_or_open(&*again, &Rng::seeded(2)).await.unwrap(), identity.instance);
        assert_eq!(names(&client, &ledgers).await, found);

        // They go with the cluster, with what others counted ids by and kept of repairs; what has a value is not ours.
        let theirs = ["idgen", "idgen-long/HOB-0000000001", "underreplication/disable", "disableHealthCheck"];
        for name in theirs.iter().filter(|_| word == "+hierarchical") {
            client.kv_client().put(format!("{ledgers}/{name}"), "", None).await.unwrap();
        }
        client.kv_client().put(format!("{ledgers}/available"), "x", None).await.unwrap();
        format(&again).await;
        assert_eq!(names(&client, &format!("{root}/")).await, ["ledgers/available"], "{word} {root}");
        client.kv_client().delete(format!("{ledgers}/available"), None).await.unwrap();
        assert!(root.is_empty() || !exists(root).await);
        assert_eq!(Cluster::open(&*again).await.unwrap(), None);
        again.mark_cluster().await.unwrap();
        assert!(!exists(&ledgers).await, "where no cluster is nothing is marked");
    }
}

/// A cluster whose LAYOUT nobody put, as Pulsar's set-up makes it: what is said is true, whatever the URI wants.
#[tokio::test]
async fn a_cluster_without_a_layout_is_not_taken_for_another() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let client = Client::connect([etcd.endpoint()], None).await.unwrap();
    for name in ["/ledgers", "/ledgers/available", "/ledgers/available/readonly"] {
        client.kv_client().put(name, "", None).await.unwrap();
    }
    client.kv_client().put("/ledgers/INSTANCEID", "i-1", None).await.unwrap();
    // Foreign keys, with names that only the driver has below a root.
    client.kv_client().put("/layout", "x", None).await.unwrap();
    for word in ["", "+hierarchical"] {
        let store = open(&uri(&etcd, word, "")).await;
        let error = Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("no LAYOUT"), "{error}");
    }
    client.kv_client().put("/ledgers/LAYOUT", LedgerLayout::Hierarchical.value(), None).await.unwrap();
    let store = open(&uri(&etcd, "", "")).await;
    assert_eq!(Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap().as_str(), "i-1");
    assert_eq!(store.layouts(), [LedgerLayout::Hierarchical]);
}

async fn next_key(watch: &mut metadata::WatchStream) -> metadata::Key {
    match tokio::time::timeout(DEADLINE, watch.next()).await.unwrap() {
        Some(WatchEvent::Put { key, .. } | WatchEvent::Delete { key }) => key,
        other => panic!("nothing was lost: {other:?}"),
    }
}

#[tokio::test]
async fn ledgers_lie_where_the_layout_says() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let client = Client::connect([etcd.endpoint()], None).await.unwrap();
    let ids = [1, 2, 10_001, 220_000_000, 2_147_483_646, 2_147_483_647, 1 << 40, 5 << 56 | 1, 127 << 56 | 3].map(id);
    for (word, layout) in [("+apache", LedgerLayout::Etcd), ("+hierarchical", LedgerLayout::Hierarchical)] {
        let root = format!("/{layout:?}");
        let store = open(&uri(&etcd, word, &root)).await;
        Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
        let before = rows(&client, &root).await;
        let ledgers = Ledgers::new(Arc::clone(&store));
        let mut watch = ledgers.watch(ids[3]).await.unwrap();
        let mut all = store.watch(&layout::ledgers_root()).await.unwrap();
        for ledger in ids {
            ledgers.create(ledger, &metadata(7)).await.unwrap();
            assert_eq!(next_key(&mut all).await, layout::ledger_key(ledger));
        }
        assert_eq!(next_key(&mut watch).await, layout::ledger_key(ids[3]));
        for ledger in ids {
            let name = format!("{root}/ledgers/{}", layout.path(ledger).unwrap());
            let found = client.kv_client().get(name.clone(), None).await.unwrap();
            assert_eq!(found.kvs()[0].value(), metadata(7).encode(), "{name}");
            let version = ledgers.get_quorum(ledger).await.unwrap().unwrap().version;
            assert_eq!(version.to_string(), found.kvs()[0].mod_revision().to_string(), "the version that Java has");
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
        for ledger in ids {
            ledgers.delete(ledger, None).await.unwrap();
        }
        assert_eq!(rows(&client, &root).await, before, "nothing is left");
    }
}

#[tokio::test]
async fn bookies_and_cookies_are_those_of_java() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let mut client = Client::connect([etcd.endpoint()], None).await.unwrap();
    made_by_java(&client, "/s", "i-1").await;
    let store = open(&etcd.uri("/s")).await;
    let bookies = Bookies::new(Arc::clone(&store));
    let [ours, javas] = ["10.0.0.1:3181", "10.0.0.2:3181"].map(|id| BookieId::new(id).unwrap());
    let mut watch = bookies.watch().await.unwrap();
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    bookies.register(&ours, &BookieInfo::at("10.9.9.9:3181"), lease).await.unwrap();
    assert_eq!(next_key(&mut watch).await, layout::available_key(&ours));
    let found = client.get("/s/bookies/writable/10.0.0.1:3181", None).await.unwrap();
    assert_ne!(found.kvs()[0].lease(), 0);

    // Java's: without a value, the id is the address.
    let java = client.lease_grant(60, None).await.unwrap().id();
    let leased = PutOptions::new().with_lease(java);
    client.put("/s/bookies/readonly/10.0.0.2:3181", "", Some(leased)).await.unwrap();
    assert_eq!(next_key(&mut watch).await, layout::readonly_key(&javas));
    let listed = bookies.list().await.unwrap();
    assert_eq!(
        listed.into_iter().map(|(id, info, writable)| (id, info.address, writable)).collect::<BTreeSet<_>>(),
        BTreeSet::from([
            (ours.clone(), "10.9.9.9:3181".to_owned(), true),
            (javas.clone(), "10.0.0.2:3181".to_owned(), false)
        ])
    );
    bookies.register_as(&ours, &BookieInfo::at("10.9.9.9:3181"), lease, Mode::ReadOnly).await.unwrap();
    let registered = names(&client, "/s/bookies/").await;
    assert_eq!(registered, ["readonly", "readonly/10.0.0.1:3181", "readonly/10.0.0.2:3181", "writable"]);
    store.revoke(lease).await.unwrap();
    assert_eq!(bookies.get(&ours).await.unwrap(), None);

    let cookie = Cookie::new(ours.clone(), vec!["j".into()], vec!["l".into()], "i-1").unwrap();
    Cookies::new(Arc::clone(&store)).create(&cookie).await.unwrap();
    assert_eq!(names(&client, "/s/cookies").await, ["", "/10.0.0.1:3181"]);
    // What is ours lies beside, and goes with the cluster when Java removes it.
    store.create(&layout::commit_counter_key(), "x".into()).await.unwrap();
    assert_eq!(names(&client, "/s/thermocline").await, ["/commit-counter"]);
    client.delete("/s", Some(DeleteOptions::new().with_range("/s0"))).await.unwrap();
    assert_eq!(store.get_quorum(&layout::commit_counter_key()).await.unwrap(), None);
    assert_eq!(Cluster::open(&*store).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_given_once_whoever_asks() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let client = Client::connect([etcd.endpoint()], None).await.unwrap();
    let [one, two] = [open(&uri(&etcd, "+apache", "/s")).await, open(&uri(&etcd, "+apache", "/s")).await];
    Cluster::init_or_open(&*one, &Rng::seeded(1)).await.unwrap();
    let asked = (0..300).map(|turn| if turn % 2 == 0 { one.allocate_ledger_id() } else { two.allocate_ledger_id() });
    let ours: Vec<u64> = join_all(asked).await.into_iter().map(Result::unwrap).collect();
    let javas = join_all((0..128).map(|bucket| id_of_java(&client, "/s", bucket))).await;
    let all: BTreeSet<u64> = ours.iter().chain(&javas).copied().collect();
    assert_eq!(all.len(), 428, "each id once");
    let buckets: BTreeSet<u64> = ours.iter().map(|id| id >> 56).collect();
    assert_eq!(buckets.len(), 128, "all buckets in turn");
    assert!(all.iter().all(|number| LedgerId::new(*number).is_some()));

    // What was given is known, and skipped elsewhere.
    let given = one.given_ids().await.unwrap();
    assert!(all.iter().all(|id| given.highest_in(*id..=*id) == Some(*id)));
    assert_eq!(given.highest(), all.last().copied());
    let late = open(&uri(&etcd, "+apache", "/late")).await;
    Cluster::init_or_open(&*late, &Rng::seeded(1)).await.unwrap();
    late.skip_ids(&given).await.unwrap();
    late.skip_ids(&GivenIds::up_to(100)).await.unwrap();
    let fresh: Vec<u64> =
        join_all((0..256).map(|_| late.allocate_ledger_id())).await.into_iter().map(Result::unwrap).collect();
    assert!(fresh.iter().all(|id| !all.contains(id) && *id > 100), "none comes back");
    let refused = late.skip_ids(&GivenIds::up_to(1 << 40)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.to_string().contains("copy into another layout"), "{refused}");
}

#[tokio::test]
async fn pulsars_ids_are_its_sequences() {
    if Etcd::is_missing_for("etcd") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let client = Client::connect([etcd.endpoint()], None).await.unwrap();
    let store = open(&uri(&etcd, "+hierarchical", "")).await;
    Cluster::init_or_open(&*store, &Rng::seeded(1)).await.unwrap();
    assert!(store.clients_resolve_by_registration());
    // A put of the parent, whose number of puts so far is the sequence number.
    let pulsars = async |parent: &str| {
        let options = PutOptions::new().with_prev_key();
        let put = client.kv_client().put(format!("/ledgers/{parent}"), "", Some(options)).await.unwrap();
        put.prev_key().map_or(0, |before| u64::try_from(before.version()).unwrap())
    };
    let mut ids = BTreeSet::new();
    for _ in 0..20 {
        assert!(ids.insert(store.allocate_ledger_id().await.unwrap()));
        assert!(ids.insert(pulsars("idgen").await));
    }
    assert_eq!(ids, (0..40).collect());
    store.skip_ids(&GivenIds::up_to(3 << 32 | 7)).await.unwrap();
    assert_eq!(store.allocate_ledger_id().await.unwrap(), 4 << 32 | 1);
    assert_eq!(pulsars("idgen-long/HOB-0000000004").await, 2);
    assert_eq!(store.allocate_ledger_id().await.unwrap(), 4 << 32 | 3);
    let given = store.given_ids().await.unwrap();
    assert_eq!(given, GivenIds::up_to(4 << 32 | 4));
    let listed = Ledgers::new(Arc::clone(&store)).list(None, 10).await.unwrap();
    assert!(listed.is_empty(), "what counts ids is no ledger: {listed:?}");
    assert_eq!(store.list(&key("/ledgers"), None, 10).await.unwrap().len(), 2);
}
