use ::ledger::{BookieId, DigestType, Password, Quorums};
use proptest::prelude::*;

use super::*;
use crate::{Attempts, FaultKind, FaultyStore, MemoryStore, NewAttempt};

fn id(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

struct World {
    store: Arc<FaultyStore>,
    ledgers: Ledgers,
    attempts: Attempts,
    catalog: Catalog,
    attempt: AttemptRecord,
    closed: LedgerRecord,
}

impl World {
    async fn new() -> Self {
        let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
        let (ledgers, attempts) = (Ledgers::new(store.clone()), Attempts::new(store.clone()));
        let bookies = ["b1:1", "b2:1", "b3:1"].map(|id| BookieId::new(id).unwrap()).to_vec();
        let quorums = Quorums::new(3, 3, 2).unwrap();
        let open = LedgerMetadata::open(quorums, bookies, DigestType::Crc32c, Password::empty()).unwrap();
        let metadata = open.closed(None, 0).unwrap();
        let version = ledgers.create(id(1), &metadata).await.unwrap();
        let attempt = attempts.begin(new(1)).await.unwrap();
        let closed = LedgerRecord { metadata, version };
        Self { catalog: Catalog::new(store.clone()), store, ledgers, attempts, attempt, closed }
    }

    fn settled(&self) -> LedgerMetadata {
        let record = ColdRecord {
            store_id: 0,
            object: self.attempt.attempt.uuid,
            object_bytes: 9,
            object_crc32c: 1,
            footer_offset: 1,
            footer_bytes: 8,
            footer_crc32c: 1,
            entries: 0,
            payload_bytes: 0,
            ledger_digest: None,
            commit_counter: self.attempt.attempt.counter,
            pack: None,
            length_differs: None,
        };
        self.closed.metadata.with_cold_record(&record).unwrap()
    }

    async fn commit(&self) -> Result<Version, CommitOffloadError> {
        let metadata = self.settled();
        self.catalog
            .commit(CommitOffload {
                attempt: &self.attempt,
                metadata: &metadata,
                expected: self.closed.version,
                object_bytes: 9,
            })
            .await
    }

    async fn assert_committed(&self) {
        let record = self.ledgers.get_quorum(id(1)).await.unwrap().unwrap();
        assert_eq!(record.metadata, self.settled());
        let entry = CatalogEntry::of(&self.attempt, 9);
        assert_eq!(self.catalog.list(None, 10).await.unwrap(), std::slice::from_ref(&entry));
        assert_eq!(self.catalog.get(id(1), entry.uuid).await.unwrap(), Some(entry));
        assert_eq!(self.attempts.get(id(1)).await.unwrap(), None);
        assert!(self.attempts.list_abandoned(None, 10).await.unwrap().is_empty());
    }

    async fn assert_not_committed(&self) {
        assert!(self.catalog.list(None, 10).await.unwrap().is_empty());
    }
}

fn new(uuid: u128) -> NewAttempt {
    NewAttempt {
        uuid: Uuid::from_u128(uuid),
        ledger: id(1),
        key: format!("k{uuid}"),
        owner: "one".into(),
        started_ms: 1,
    }
}

#[test]
fn golden() {
    let entry = CatalogEntry {
        ledger: id(258),
        uuid: Uuid::from_u128(1),
        key: "a/b".into(),
        object_bytes: 10,
        commit_counter: 3,
    };
    let hex: String = entry.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex[..hex.len() - 8],
        *concat!(
            "01",
            "0100080000000000000102",
            "02001000000000000000000000000000000001",
            "030003612f62",
            "040008000000000000000a",
            "0500080000000000000003",
        )
    );
}

proptest! {
    #[test]
    fn round_trip(
        ledger in 0..=i64::MAX.unsigned_abs(), uuid: u128, key in ".{1,100}", object_bytes: u64, commit_counter: u64,
        at: prop::sample::Index, flip in 1_u8..,
    ) {
        let entry = CatalogEntry { ledger: id(ledger), uuid: Uuid::from_u128(uuid), key, object_bytes, commit_counter };
        let mut bytes = entry.encode();
        prop_assert_eq!(&CatalogEntry::decode(&bytes).unwrap(), &entry);
        let index = at.index(bytes.len());
        bytes[index] ^= flip;
        prop_assert!(CatalogEntry::decode(&bytes).is_err());
    }
}

#[tokio::test]
async fn all_three_change_at_once() {
    let world = World::new().await;
    let version = world.commit().await.unwrap();
    assert_eq!(world.ledgers.get(id(1)).await.unwrap().unwrap().version, version);
    world.assert_committed().await;
    assert_eq!(world.commit().await.unwrap(), version, "again: recognised as our own");
}

#[tokio::test]
async fn lost_answers_are_settled() {
    for kind in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        let world = World::new().await;
        world.store.fail_next(kind);
        world.commit().await.unwrap();
        world.assert_committed().await;
    }
    let world = World::new().await;
    world.store.fail_next(FaultKind::AppliedUnknown);
    world.store.fail_next(FaultKind::FailRead);
    let blind = world.commit().await;
    assert!(matches!(blind, Err(CommitOffloadError::Unknown(_))), "{blind:?}");
    world.assert_committed().await;
    let world = World::new().await;
    world.store.fail_next(FaultKind::FailBefore);
    assert!(matches!(world.commit().await, Err(CommitOffloadError::NotDone(_))));
    world.assert_not_committed().await;
}

#[tokio::test]
async fn a_stolen_attempt_cannot_commit() {
    let world = World::new().await;
    world.attempts.steal(&world.attempt, new(2)).await.unwrap();
    assert!(matches!(world.commit().await, Err(CommitOffloadError::AttemptLost)));
    world.store.fail_next(FaultKind::NotAppliedUnknown);
    assert!(matches!(world.commit().await, Err(CommitOffloadError::AttemptLost)));
    world.assert_not_committed().await;
    assert_eq!(world.ledgers.get(id(1)).await.unwrap(), Some(world.closed.clone()));
}

#[tokio::test]
async fn a_ledger_that_moved_is_given_back() {
    let world = World::new().await;
    let touched = world.closed.metadata.with_custom("policy", "x").unwrap();
    let version = world.ledgers.update(id(1), &touched, world.closed.version).await.unwrap();
    match world.commit().await {
        Err(CommitOffloadError::LedgerMoved(Some(found))) => {
            assert_eq!(*found, LedgerRecord { metadata: touched, version });
        }
        other => panic!("{other:?}"),
    }
    world.assert_not_committed().await;
    world.ledgers.delete(id(1), None).await.unwrap();
    assert!(matches!(world.commit().await, Err(CommitOffloadError::LedgerMoved(None))));
    assert_eq!(
        world.attempts.get(id(1)).await.unwrap(),
        Some(world.attempt.clone()),
        "the attempt is still ours to end"
    );
}

#[tokio::test]
async fn a_commit_stands_when_the_ledger_is_deleted_right_after() {
    let world = World::new().await;
    world.commit().await.unwrap();
    world.ledgers.delete(id(1), None).await.unwrap();
    world.commit().await.unwrap();
    let found: Option<Versioned> = world.store.get(&layout::ledger_key(id(1))).await.unwrap();
    assert_eq!(found, None, "and nothing brings the record back");
}
