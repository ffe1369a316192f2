//! Clusters that move from each driver and layout to each other: what lies in them is equal, and ids go on behind what was given.

use std::collections::BTreeSet;
use std::sync::Arc;

use common::rng::Rng;
use faults::{Etcd, ZooKeeper};
use futures::future::join_all;
use ledger::{BookieId, DigestType, LedgerId, LedgerMetadata, Password, Quorums};
use metadata::admin::copy::{self, CopyOptions};
use metadata::admin::{self, Identity, State};
use metadata::{Bookies, Cookie, Cookies, ErrorKind, Ledgers, MetadataStore, layout};
use uuid::Uuid;

const LEDGERS: usize = 40;

fn metadata(token: usize) -> LedgerMetadata {
    let bookie = BookieId::new("10.0.0.1:3181").unwrap();
    let quorums = Quorums::new(1, 1, 1).unwrap();
    let metadata = LedgerMetadata::open(quorums, vec![bookie], DigestType::Crc32c, Password::empty()).unwrap();
    metadata.with_ctoken(i64::try_from(token).unwrap() + 1).unwrap()
}

/// A cluster, and every id that was ever given in it. The highest of them has no ledger any more.
async fn filled(store: &Arc<dyn MetadataStore>) -> (Identity, BTreeSet<u64>) {
    let identity = admin::init(&**store, &Rng::seeded(1), Some(&"logs".parse().unwrap())).await.unwrap();
    let ledgers = Ledgers::new(Arc::clone(store));
    let mut given = BTreeSet::new();
    for token in 0..LEDGERS {
        let id = ledgers.allocate_id().await.unwrap();
        ledgers.create(id, &metadata(token)).await.unwrap();
        assert!(given.insert(id.get()));
    }
    for highest in given.iter().rev().take(3) {
        ledgers.delete(LedgerId::new(*highest).unwrap(), None).await.unwrap();
    }
    let bookie = BookieId::new("10.0.0.1:3181").unwrap();
    let cookie = Cookie::new(bookie.clone(), vec!["j".into()], vec!["l".into()], identity.instance.as_str()).unwrap();
    Cookies::new(Arc::clone(store)).create(&cookie).await.unwrap();
    // As a cold id's: without a lease.
    store
        .create(&layout::readonly_key(&BookieId::new("c00-0.cold.thermocline:3181").unwrap()), "".into())
        .await
        .unwrap();
    (identity, given)
}

async fn listed(store: &Arc<dyn MetadataStore>) -> Vec<(LedgerId, LedgerMetadata)> {
    let ledgers = Ledgers::new(Arc::clone(store));
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = ledgers.list(after, 7).await.unwrap();
        let Some((last, _)) = page.last() else { return found };
        after = Some(*last);
        found.extend(page.into_iter().map(|(id, record)| (id, record.metadata)));
    }
}

fn options(run: u128) -> CopyOptions {
    CopyOptions { run: Uuid::from_u128(run), now_ms: 5, abandon_attempts: false }
}

async fn copied(from: &Arc<dyn MetadataStore>, to: &Arc<dyn MetadataStore>) -> Result<copy::Copied, metadata::Error> {
    let survey = copy::survey(&**from, &**to, &|_| {}).await?;
    copy::copy(from, to, &survey, options(1), &|_| {}, &|_| {}).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_move_between_all_drivers_and_layouts() {
    if Etcd::is_missing_for("etcd") || ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let (etcd, zookeeper) = (Etcd::start().await.unwrap(), ZooKeeper::start().await.unwrap());
    let etcd_at = |word: &str| format!("etcd{word}://{}", etcd.endpoint());
    let places = [
        ("embedded", "memory:".to_owned()),
        ("etcd", etcd_at("")),
        ("etcd-apache", etcd_at("+apache")),
        ("etcd-hierarchical", etcd_at("+hierarchical")),
        ("zk", format!("zk://{}", zookeeper.endpoint())),
        ("zk-long", format!("zk+longhierarchical://{}", zookeeper.endpoint())),
    ];
    let open = async |uri: &str, root: &str| match uri {
        "memory:" => metadata::open(uri).await.unwrap(),
        _ => metadata::open(&format!("{uri}{root}")).await.unwrap(),
    };
    for (source, from) in &places {
        // Long ids of ZooKeeper are too many for the counters of BookKeeper's driver for etcd; see below.
        let goes = |target: &str| target != *source && (*source, target) != ("zk-long", "etcd-apache");
        for (target, to) in places.iter().filter(|(target, _)| goes(target)) {
            let way = format!("{source}-to-{target}");
            let (from, to) = (open(from, &format!("/{way}/from")).await, open(to, &format!("/{way}/to")).await);
            let (identity, given) = filled(&from).await;
            let want = listed(&from).await;
            assert_eq!(want.len(), LEDGERS - 3, "{way}");
            let done = copied(&from, &to).await.unwrap_or_else(|error| panic!("{way}: {error:?}"));
            assert_eq!(done.verified.keys.of(admin::Kind::Ledger), want.len() as u64, "{way}");
            assert_eq!(listed(&to).await, want, "{way}");
            assert_eq!(admin::state(&*to).await.unwrap(), State::Cluster(identity), "{way}");
            assert_eq!(Bookies::new(Arc::clone(&to)).list().await.unwrap().len(), 1, "{way}");
            let fresh = join_all((0..200).map(|_| to.allocate_ledger_id())).await;
            let fresh: BTreeSet<u64> = fresh.into_iter().map(Result::unwrap).collect();
            assert_eq!(fresh.len(), 200, "{way}");
            assert!(fresh.is_disjoint(&given), "{way}: an id that was given comes back");
            // Once more: only compared.
            let again = copied(&from, &to).await.unwrap_or_else(|error| panic!("{way}: {error:?}"));
            assert!(again.only_compared, "{way}");
        }
    }
}

#[tokio::test]
async fn a_target_whose_ids_cannot_go_on_is_refused_before_anything_is_copied() {
    if Etcd::is_missing_for("etcd") || ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let (etcd, zookeeper) = (Etcd::start().await.unwrap(), ZooKeeper::start().await.unwrap());
    let from = metadata::open(&format!("zk+longhierarchical://{}/from", zookeeper.endpoint())).await.unwrap();
    let (identity, _) = filled(&from).await;
    for (to, word) in [
        (format!("etcd+apache://{}/to", etcd.endpoint()), "copy into another layout"),
        (format!("zk+flat://{}/to", zookeeper.endpoint()), "zk+longhierarchical://"),
    ] {
        let store = metadata::open(&to).await.unwrap();
        let refused = copied(&from, &store).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{to}");
        assert!(refused.to_string().contains(word) && refused.to_string().contains("cluster format"), "{refused}");
        assert!(listed(&store).await.is_empty(), "{to}");
        assert_eq!(admin::state(&*from).await.unwrap(), State::Cluster(identity.clone()), "the source goes on");
        // What was begun is given up as always, whatever word the URI has.
        let again = metadata::open(&to.replace("+apache", "").replace("+flat", "")).await.unwrap();
        let found = admin::state(&*again).await.unwrap();
        assert!(matches!(found, State::Unfinished(..)), "{found:?}");
        let run = admin::FormatOptions { run: Uuid::from_u128(2), now_ms: 1, force: false };
        admin::format(&*again, &found, run, &|_| {}).await.unwrap();
        assert_eq!(admin::state(&*again).await.unwrap(), State::Empty);
    }
}
