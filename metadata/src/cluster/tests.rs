use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::{FaultKind, FaultyStore, MemoryStore};

#[tokio::test]
async fn all_openers_of_a_new_cluster_get_one_identity() {
    let store = Arc::new(MemoryStore::new());
    let tasks = (0..16).map(|seed| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { Cluster::init_or_open(&*store, &Rng::seeded(seed)).await.unwrap() })
    });
    let ids: Vec<_> = futures::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(ids[0].as_str().len(), 36);
    let stored = store.get(&layout::instance_key()).await.unwrap().unwrap();
    assert_eq!(stored.value, ids[0].as_str(), "text, no line feed");
    let stored = store.get(&layout::layout_key()).await.unwrap().unwrap();
    assert_eq!(stored.value, "2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1");
}

#[tokio::test]
async fn a_lost_answer_does_not_matter() {
    let store = FaultyStore::scripted(Arc::new(MemoryStore::new()));
    assert_eq!(Cluster::open(&store).await.unwrap(), None);
    store.fail_next(FaultKind::NotAppliedUnknown);
    Cluster::init_or_open(&store, &Rng::seeded(1)).await.unwrap_err();
    store.fail_next(FaultKind::AppliedUnknown);
    let id = Cluster::init_or_open(&store, &Rng::seeded(2)).await.unwrap();
    assert_eq!(Cluster::open(&store).await.unwrap(), Some(id));
}

#[tokio::test]
async fn foreign_layouts_and_damaged_identities_are_refused() {
    for (instance, ledgers, want) in [
        (
            Some("id-1"),
            Some("2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"),
            ErrorKind::Unsupported,
        ),
        (Some("id-1"), None, ErrorKind::Damaged),
        (None, Some(LedgerLayout::LongHierarchical.value()), ErrorKind::Damaged),
        (Some("a/b"), Some(LedgerLayout::LongHierarchical.value()), ErrorKind::Damaged),
        (Some(""), Some(LedgerLayout::LongHierarchical.value()), ErrorKind::Damaged),
    ] {
        let store = MemoryStore::new();
        for (key, value) in [(layout::instance_key(), instance), (layout::layout_key(), ledgers)] {
            if let Some(value) = value {
                store.create(&key, Bytes::from_static(value.as_bytes())).await.unwrap();
            }
        }
        let error = Cluster::init_or_open(&store, &Rng::seeded(1)).await.unwrap_err();
        assert_eq!(error.kind(), want, "{instance:?} {ledgers:?}: {error}");
    }
}
