use std::time::Duration;

use super::*;
use crate::{FaultKind, FaultyStore, MemoryStore};

fn id(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn bookie(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

fn world() -> (Arc<FaultyStore>, UnderReplication) {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    (store.clone(), UnderReplication::new(store))
}

#[tokio::test]
async fn marks_are_merged_listed_in_order_and_removed_in_the_version_that_was_read() {
    let (_, under) = world();
    assert!(!under.is_marked(id(7)).await.unwrap());
    under.add_mark(id(7), &["a"], 1).await.unwrap();
    let first = under.mark(id(7)).await.unwrap().unwrap();
    under.add_mark(id(7), &["b", "a"], 2).await.unwrap();
    let second = under.mark(id(7)).await.unwrap().unwrap();
    assert_eq!(second.mark, Mark { replicas: vec!["a".into(), "b".into()], ctime_ms: Some(2) });
    for ledger in [70_000, 5, 1 << 40] {
        under.add_mark(id(ledger), &["a"], 1).await.unwrap();
    }
    for page in [1, 3, 10] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let rows = under.list(after, page).await.unwrap();
            let Some((last, _)) = rows.last() else { break };
            after = Some(*last);
            found.extend(rows.into_iter().map(|(ledger, _)| ledger));
        }
        assert_eq!(found, [5, 7, 70_000, 1 << 40].map(id), "pages of {page}");
    }
    let stale = under.remove_mark(id(7), first.version).await;
    assert!(matches!(stale, Err(WriteError::Conflict(()))), "{stale:?}");
    under.remove_mark(id(7), second.version).await.unwrap();
    under.remove_mark(id(7), second.version).await.unwrap();
    assert!(!under.is_marked(id(7)).await.unwrap());
}

#[tokio::test]
async fn a_mark_that_cannot_be_read_is_a_mark() {
    let (store, under) = world();
    store.create(&layout::mark_key(id(7)), "replica".into()).await.unwrap();
    assert!(under.is_marked(id(7)).await.unwrap());
    assert_eq!(under.mark(id(7)).await.unwrap_err().kind(), ErrorKind::Damaged);
    under.add_mark(id(7), &["a"], 1).await.unwrap_err();
}

#[tokio::test]
async fn locks_are_taken_where_nobody_holds_them_and_go_with_their_lease() {
    let (store, under) = world();
    let [mine, other] = [store.grant_lease(Duration::from_secs(60)), store.grant_lease(Duration::from_secs(60))];
    let (mine, other) = (mine.await.unwrap(), other.await.unwrap());
    let held = under.lock(&[id(3), id(70), id(150)], &bookie("other"), other).await.unwrap();
    assert_eq!((held.taken.len(), held.held.len()), (3, 0));
    assert_eq!(under.lock_holder(id(70)).await.unwrap().as_deref(), Some("other"));
    let all: Vec<_> = (0..200).map(id).collect();
    let locked = under.lock(&all, &bookie("me"), mine).await.unwrap();
    assert_eq!(locked.held, [3, 70, 150].map(id));
    assert_eq!(locked.taken.len(), 197);
    let row = store.get_quorum(&layout::repair_lock_key(id(5))).await.unwrap().unwrap();
    assert_eq!((&row.value[..], row.lease), (&b"bookieId: \"me\"\n"[..], Some(mine)));
    under.unlock(locked.taken[0]).await.unwrap();
    assert_eq!(under.lock_holder(id(0)).await.unwrap(), None);
    // A lock that was lost is not taken from its next holder.
    assert_eq!(under.lock(&[id(0)], &bookie("other"), other).await.unwrap().taken.len(), 1);
    under.unlock(locked.taken[0]).await.unwrap();
    assert_eq!(under.lock_holder(id(0)).await.unwrap().as_deref(), Some("other"));
    store.revoke(mine).await.unwrap();
    assert_eq!(under.lock_holder(id(5)).await.unwrap(), None);
    let error = under.lock(&[id(5)], &bookie("me"), mine).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseGone);
}

#[tokio::test]
async fn an_unknown_outcome_is_an_error_and_ending_the_lease_settles_it() {
    let (store, under) = world();
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    store.fail_next_on(&layout::repair_lock_key(id(7)), FaultKind::AppliedUnknown);
    under.lock(&[id(6), id(7)], &bookie("me"), lease).await.unwrap_err();
    assert!(under.lock_holder(id(7)).await.unwrap().is_some());
    store.revoke(lease).await.unwrap();
    assert_eq!(under.lock_holder(id(7)).await.unwrap(), None);
}

#[tokio::test]
async fn the_auditor_is_who_voted_first_and_still_stands() {
    let (store, under) = world();
    assert_eq!(under.auditor().await.unwrap(), None);
    let (first, second) =
        (store.grant_lease(Duration::from_secs(60)).await.unwrap(), store.grant_lease(Duration::from_secs(60)).await);
    let vote = async |number: &str, name: &str, lease| {
        let key = layout::auditor_votes_root().join(&format!("V_{number}")).unwrap();
        let vote = Transaction::new().put_leased(key, text::encode_holder(name), Expect::Absent, lease);
        store.commit(vote).await.unwrap();
    };
    vote("0000000002", "b2", first).await;
    vote("0000000010", "b10", second.unwrap()).await;
    // What the last election left says nothing of who lives.
    store.create(&layout::auditor_votes_root(), text::encode_holder("gone")).await.unwrap();
    assert_eq!(under.auditor().await.unwrap().as_deref(), Some("b2"));
    store.revoke(first).await.unwrap();
    assert_eq!(under.auditor().await.unwrap().as_deref(), Some("b10"));
    assert!(!under.is_disabled().await.unwrap());
    store.create(&layout::recovery_disabled_key(), "".into()).await.unwrap();
    assert!(under.is_disabled().await.unwrap());
}
