use std::collections::BTreeSet;

use ::ledger::{BookieId, DigestType, Password, Quorums};
use futures::future::join_all;

use super::*;
use crate::{FaultKind, FaultyStore, MemoryStore, WatchEvent};

fn metadata(token: i64) -> LedgerMetadata {
    let bookies = ["b1:3181", "b2:3181", "b3:3181"].map(|id| BookieId::new(id).unwrap());
    LedgerMetadata::open(Quorums::new(3, 3, 2).unwrap(), bookies.to_vec(), DigestType::Crc32c, Password::empty())
        .unwrap()
        .with_ctoken(token)
        .unwrap()
}

fn id(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn setup() -> (Ledgers, Arc<FaultyStore>) {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    (Ledgers::new(store.clone()), store)
}

#[tokio::test]
async fn ids_are_given_once_even_when_answers_are_lost() {
    let (ledgers, faults) = setup();
    assert_eq!(ledgers.allocate_id().await.unwrap(), id(1));
    for kind in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown, FaultKind::AppliedUnknown] {
        faults.fail_next_on(&layout::idgen_key(), kind);
    }
    let tasks = (0..16).map(|_| {
        let ledgers = ledgers.clone();
        tokio::spawn(async move { (ledgers.allocate_id().await, ledgers.allocate_id().await) })
    });
    let mut given = BTreeSet::new();
    for task in join_all(tasks).await {
        let (one, two) = task.unwrap();
        for id in [one, two].into_iter().flatten() {
            assert!(given.insert(id), "{id} was given twice");
        }
    }
    assert!(given.len() >= 30);
    faults.fail_next(FaultKind::FailBefore);
    assert_eq!(ledgers.allocate_id().await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn creating_has_one_winner() {
    let (ledgers, _) = setup();
    let tasks = (1..=16).map(|token| {
        let ledgers = ledgers.clone();
        tokio::spawn(async move { (token, ledgers.create(id(5), &metadata(token)).await) })
    });
    let outcomes: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let winner = outcomes.iter().find(|(_, outcome)| outcome.is_ok()).unwrap().0;
    for (token, outcome) in outcomes {
        match outcome {
            Ok(_) => assert_eq!(token, winner),
            Err(WriteError::Conflict(Some(found))) => assert_eq!(found.metadata.ctoken(), Some(winner)),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_unknown_create_is_settled_by_the_token() {
    let (ledgers, faults) = setup();
    for (number, kind) in [(1, FaultKind::AppliedUnknown), (2, FaultKind::NotAppliedUnknown)] {
        faults.fail_next(kind);
        let version = ledgers.create(id(number), &metadata(77)).await.unwrap();
        assert_eq!(ledgers.get_quorum(id(number)).await.unwrap().unwrap().version, version);
    }
    assert_eq!(ledgers.create(id(1), &metadata(77)).await.unwrap(), ledgers.get(id(1)).await.unwrap().unwrap().version);
    faults.fail_next(FaultKind::AppliedUnknown);
    let untold = ledgers.create(id(3), &metadata(0)).await;
    assert!(matches!(untold, Err(WriteError::Unknown(_))), "without a token nobody can tell: {untold:?}");
    faults.fail_next(FaultKind::AppliedUnknown);
    faults.fail_next(FaultKind::FailRead);
    let unread = ledgers.create(id(4), &metadata(77)).await;
    assert!(matches!(unread, Err(WriteError::Unknown(_))), "{unread:?}");
    faults.fail_next(FaultKind::FailBefore);
    let refused = ledgers.create(id(5), &metadata(77)).await.unwrap_err();
    assert!(refused.is_surely_not_done());
    assert!(ledgers.get_quorum(id(5)).await.unwrap().is_none());
}

#[tokio::test]
async fn updates_swap_and_settle() {
    let (ledgers, faults) = setup();
    let first = ledgers.create(id(1), &metadata(7)).await.unwrap();
    let recovering = metadata(7).in_recovery().unwrap();
    faults.fail_next(FaultKind::AppliedUnknown);
    let second = ledgers.update(id(1), &recovering, first).await.unwrap();
    faults.fail_next(FaultKind::NotAppliedUnknown);
    let closed = recovering.closed(None, 0).unwrap();
    let third = ledgers.update(id(1), &closed, second).await.unwrap();
    assert!(third > second && second > first);
    match ledgers.update(id(1), &recovering, second).await {
        Err(WriteError::Conflict(Some(found))) => {
            assert_eq!(*found, LedgerRecord { metadata: closed.clone(), version: third });
        }
        other => panic!("{other:?}"),
    }
    faults.fail_next(FaultKind::AppliedUnknown);
    let overtaken = ledgers.update(id(1), &recovering, second).await;
    assert!(matches!(overtaken, Err(WriteError::Unknown(_))), "{overtaken:?}");
    assert_eq!(ledgers.get(id(1)).await.unwrap().unwrap().metadata, closed);
    assert!(matches!(ledgers.update(id(9), &closed, third).await, Err(WriteError::Conflict(None))));
}

#[tokio::test]
async fn deleting_what_is_gone_is_a_success() {
    let (ledgers, faults) = setup();
    let version = ledgers.create(id(1), &metadata(7)).await.unwrap();
    let newer = ledgers.update(id(1), &metadata(7).in_recovery().unwrap(), version).await.unwrap();
    assert!(matches!(ledgers.delete(id(1), Some(version)).await, Err(WriteError::Conflict(Some(_)))));
    faults.fail_next(FaultKind::NotAppliedUnknown);
    ledgers.delete(id(1), Some(newer)).await.unwrap();
    assert!(ledgers.get_quorum(id(1)).await.unwrap().is_none());
    ledgers.delete(id(1), Some(newer)).await.unwrap();
    ledgers.delete(id(1), None).await.unwrap();
    ledgers.create(id(2), &metadata(7)).await.unwrap();
    faults.fail_next(FaultKind::AppliedUnknown);
    ledgers.delete(id(2), None).await.unwrap();
    ledgers.create(id(3), &metadata(7)).await.unwrap();
    faults.fail_next(FaultKind::FailBefore);
    assert!(ledgers.delete(id(3), None).await.unwrap_err().is_surely_not_done());
}

#[tokio::test]
async fn listing_gives_ledgers_in_order_and_nothing_else() {
    let (ledgers, store) = setup();
    let want = [0, 1, 9, 10, 99_999_999, 2_147_483_647, 2_147_483_648, 4_294_967_296, i64::MAX.unsigned_abs()].map(id);
    for id in want {
        ledgers.create(id, &metadata(7)).await.unwrap();
    }
    for name in ["/ledgers/INSTANCEID", "/ledgers/LAYOUT", "/ledgers/available/b1:3181", "/ledgers/cookies/b1:3181"] {
        store.create(&Key::new(name).unwrap(), Bytes::from_static(b"x")).await.unwrap();
    }
    // Unreadable records do not end the listing early, whatever the page size, and are not told as absent.
    for number in 20..25 {
        store.create(&layout::ledger_key(id(number)), Bytes::from_static(b"garbage")).await.unwrap();
        assert_eq!(ledgers.get(id(number)).await.unwrap_err().kind(), ErrorKind::Damaged);
    }
    for page in [1, 2, 100] {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let rows = ledgers.list(after, page).await.unwrap();
            let Some((last, _)) = rows.last() else { break };
            after = Some(*last);
            found.extend(rows.into_iter().map(|(id, _)| id));
        }
        assert_eq!(found, want, "page {page}");
    }
}

#[tokio::test]
async fn a_watch_tells_of_its_ledger() {
    let (ledgers, _) = setup();
    let mut watch = ledgers.watch(id(1)).await.unwrap();
    ledgers.create(id(2), &metadata(7)).await.unwrap();
    let version = ledgers.create(id(1), &metadata(7)).await.unwrap();
    assert_eq!(watch.next().await, Some(WatchEvent::Put { key: layout::ledger_key(id(1)), version }));
}
