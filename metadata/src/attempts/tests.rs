use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{FaultKind, FaultyStore, MemoryStore};

const HOUR: Duration = Duration::from_secs(3600);

fn id(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn new(ledger: u64, uuid: u128, owner: &str) -> NewAttempt {
    NewAttempt {
        uuid: Uuid::from_u128(uuid),
        ledger: id(ledger),
        key: format!("ab/instance/{ledger:016x}-{uuid}.parquet"),
        owner: owner.to_owned(),
        started_ms: 5,
    }
}

async fn setup() -> (Attempts, Arc<FaultyStore>, LeaseId) {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let attempts = Attempts::new(store.clone());
    let lease = store.grant_lease(HOUR).await.unwrap();
    attempts.register_owner("one", lease).await.unwrap();
    (attempts, store, lease)
}

#[test]
fn golden() {
    let attempt = Attempt { counter: 3, ..new_attempt(&new(258, 1, "one"), 3) };
    let hex: String = attempt.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        concat!(
            "01",
            "010010",
            "00000000000000000000000000000001",
            "020008",
            "0000000000000102",
            "030026",
            "61622f696e7374616e63652f303030303030303030303030303130322d312e70617271756574",
            "040003",
            "6f6e65",
            "050008",
            "0000000000000003",
            "060008",
            "0000000000000005",
            "070008",
            "0000000000000001",
            "78e6bc66",
        )
    );
}

proptest! {
    #[test]
    fn round_trip(
        uuid: u128, ledger in 0..=i64::MAX.unsigned_abs(), key in ".{1,100}", owner in ".{0,40}",
        counter: u64, started_ms: u64, running: bool, at: prop::sample::Index, flip in 1_u8..,
    ) {
        let state = if running { AttemptState::Running } else { AttemptState::Abandoned };
        let attempt = Attempt { uuid: Uuid::from_u128(uuid), ledger: id(ledger), key, owner, counter, started_ms, state };
        let mut bytes = attempt.encode();
        prop_assert_eq!(&Attempt::decode(&bytes).unwrap(), &attempt);
        let index = at.index(bytes.len());
        bytes[index] ^= flip;
        prop_assert!(Attempt::decode(&bytes).is_err());
    }
}

#[tokio::test]
async fn a_ledger_has_one_attempt_and_counters_grow() {
    let (attempts, _, _) = setup().await;
    let first = attempts.begin(new(1, 1, "one")).await.unwrap();
    let second = attempts.begin(new(2, 2, "one")).await.unwrap();
    assert_eq!((first.attempt.counter, second.attempt.counter), (1, 2));
    assert_eq!(attempts.counter().await.unwrap(), 2);
    match attempts.begin(new(1, 3, "two")).await {
        Err(AttemptError::Busy(found)) => assert_eq!(*found, first),
        other => panic!("{other:?}"),
    }
    assert_eq!(attempts.counter().await.unwrap(), 2, "a refused attempt takes no number");
    assert_eq!(attempts.get(id(1)).await.unwrap(), Some(first.clone()));
    assert_eq!(attempts.list(None, 10).await.unwrap(), [first, second.clone()]);
    assert_eq!(attempts.list(Some(id(1)), 10).await.unwrap(), [second]);
}

#[tokio::test]
async fn many_begin_at_once() {
    let (attempts, _, _) = setup().await;
    let tasks = (0..16).map(|index| {
        let attempts = attempts.clone();
        tokio::spawn(async move { attempts.begin(new(index / 2, u128::from(index) + 1, "one")).await })
    });
    let mut counters = Vec::new();
    for task in futures::future::join_all(tasks).await {
        match task.unwrap() {
            Ok(record) => counters.push(record.attempt.counter),
            Err(AttemptError::Busy(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    counters.sort_unstable();
    assert_eq!(counters, (1..=8).collect::<Vec<_>>());
}

#[tokio::test]
async fn only_the_dead_are_robbed_and_their_attempt_is_abandoned() {
    let (attempts, store, lease) = setup().await;
    let old = attempts.begin(new(1, 1, "one")).await.unwrap();
    let refused = attempts.steal(&old, new(1, 2, "two")).await;
    assert!(matches!(refused, Err(AttemptError::Busy(ref found)) if **found == old), "{refused:?}");
    assert!(attempts.owner_lives("one").await.unwrap());
    store.revoke(lease).await.unwrap();
    assert!(!attempts.owner_lives("one").await.unwrap());
    let stolen = attempts.steal(&old, new(1, 2, "two")).await.unwrap();
    assert!(stolen.version > old.version);
    let abandoned = attempts.list_abandoned(None, 10).await.unwrap();
    assert_eq!(abandoned.len(), 1);
    assert_eq!(abandoned[0].attempt, Attempt { state: AttemptState::Abandoned, ..old.attempt.clone() });
    attempts.abandon(&old).await.unwrap();
    let late = attempts.steal(&old, new(1, 3, "three")).await;
    assert!(matches!(late, Err(AttemptError::Busy(ref found)) if **found == stolen), "{late:?}");
    attempts.abandon(&stolen).await.unwrap();
    assert_eq!(attempts.get(id(1)).await.unwrap(), None);
    assert!(matches!(attempts.steal(&stolen, new(1, 4, "three")).await, Err(AttemptError::Lost)));
    assert_eq!(attempts.list_abandoned(Some(Uuid::from_u128(1)), 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_owner_replaces_its_own_attempt() {
    let (attempts, _, _) = setup().await;
    let old = attempts.begin(new(1, 1, "one")).await.unwrap();
    let again = attempts.steal(&old, new(1, 2, "one")).await.unwrap();
    assert_eq!(attempts.get(id(1)).await.unwrap(), Some(again));
}

#[tokio::test]
async fn lost_answers_are_settled() {
    let (attempts, store, lease) = setup().await;
    let mut ledger = 0;
    for kind in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        ledger += 1;
        store.fail_next(kind);
        let record = attempts.begin(new(ledger, u128::from(ledger), "one")).await.unwrap();
        assert_eq!(attempts.get(id(ledger)).await.unwrap(), Some(record.clone()));
        store.fail_next(kind);
        let again = attempts.steal(&record, new(ledger, u128::from(ledger) + 100, "one")).await.unwrap();
        assert_eq!(attempts.get(id(ledger)).await.unwrap(), Some(again.clone()));
        store.fail_next(kind);
        attempts.abandon(&again).await.unwrap();
        assert_eq!(attempts.get(id(ledger)).await.unwrap(), None);
    }
    assert_eq!(attempts.list_abandoned(None, 10).await.unwrap().len(), 4);
    store.fail_next(FaultKind::FailBefore);
    assert!(matches!(attempts.begin(new(9, 9, "one")).await, Err(AttemptError::NotDone(_))));
    store.fail_next(FaultKind::AppliedUnknown);
    attempts.register_owner("two", lease).await.unwrap();
    let other = store.grant_lease(HOUR).await.unwrap();
    assert_eq!(attempts.register_owner("two", other).await.unwrap_err().kind(), ErrorKind::Refused);
}

#[tokio::test]
async fn names_are_checked() {
    let (attempts, store, lease) = setup().await;
    for owner in ["", "a/b", "a\n"] {
        assert_eq!(attempts.register_owner(owner, lease).await.unwrap_err().kind(), ErrorKind::Invalid, "{owner:?}");
    }
    let long = NewAttempt { key: "k".repeat(KEY_BYTES_MAX + 1), ..new(1, 1, "one") };
    assert!(matches!(attempts.begin(long).await, Err(AttemptError::NotDone(_))));
    assert!(store.list(&layout::attempts_root(), None, 1).await.unwrap().is_empty());
}
