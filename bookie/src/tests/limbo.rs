//! A bookie that does not sync its journal, after a power cut: what it lost is unknown until it is there again, and never absent.

use std::sync::Arc;

use ledger::{BookieId, DigestType, EntryId, LedgerMetadata, Password, Quorums};
use metadata::{Expect, FaultKind, FaultyStore, MemoryStore, MetadataStore, layout};
use proto::client::{PayloadV3, encode_list_entries_v3, encode_read_v3};
use proto::{ReadTarget, Status};

use super::support::*;
use crate::disk::BLOCK_BYTES;
use crate::{BookieConfig, BookieState, SyncMode};

const PEER: &str = "bk2:3181";
const MARK: &str = "/bookie/UNPROVEN";

fn unsynced() -> BookieConfig {
    BookieConfig { sync: SyncMode::Never, ..small_config() }
}

/// A bookie that does not sync, and a peer that does, in one cluster.
struct Pair {
    world: World,
    peer_world: World,
    peer: Running,
}

impl Pair {
    async fn new() -> (Self, Running) {
        Self::with(Arc::new(MemoryStore::new())).await
    }

    async fn with(metadata: Arc<dyn MetadataStore>) -> (Self, Running) {
        let world = World { config: unsynced(), metadata, ..World::new() };
        let peer_world = World {
            id: BookieId::new(PEER).unwrap(),
            metadata: world.metadata.clone(),
            network: world.network.clone(),
            ..World::new()
        };
        let (running, peer) = (world.start().await, peer_world.start().await);
        (Self { world, peer_world, peer }, running)
    }

    /// Ledgers with both as members, every entry on both.
    async fn create(&self, id: u64) {
        self.world.ledgers().create(ledger(id), &self.open()).await.unwrap();
    }

    fn open(&self) -> LedgerMetadata {
        let members = vec![self.world.id.clone(), self.peer_world.id.clone()];
        LedgerMetadata::open(Quorums::new(2, 2, 1).unwrap(), members, DigestType::Crc32c, Password::empty()).unwrap()
    }

    async fn close(&self, id: u64, last: u64) {
        let record = self.world.ledgers().get_quorum(ledger(id)).await.unwrap().unwrap();
        let closed = record.metadata.closed(EntryId::new(last), 1).unwrap();
        self.world.ledgers().update(ledger(id), &closed, record.version).await.unwrap();
    }

    /// Adds entries to both members.
    async fn write(&self, running: &Running, id: u64, entries: std::ops::Range<u64>) {
        for mut wire in [running.connect().await, self.peer.connect().await] {
            for e in entries.clone() {
                assert_eq!(wire.add(id, e, &payload(id, e)).await, Status::Ok);
            }
        }
    }

    async fn power_cut(mut self, running: Running) -> Self {
        self.world = self.world.crash(running).await;
        self
    }

    async fn stop(self, running: Running) {
        running.stop().await;
        self.peer.stop().await;
    }
}

/// How a read ends, in the words of version 3.
async fn status_of(running: &Running, l: u64, target: ReadTarget) -> Status {
    let mut wire = running.connect().await;
    wire.ask(|out| encode_read_v3(7, ledger(l), target, None, false, out)).await.status
}

async fn entry_status(running: &Running, l: u64, e: u64) -> Status {
    status_of(running, l, ReadTarget::Entry(entry(e))).await
}

async fn list_status(running: &Running, l: u64) -> Result<(), Status> {
    let mut wire = running.connect().await;
    let reply = wire.ask(|out| encode_list_entries_v3(7, ledger(l), out)).await;
    if matches!(reply.payload, PayloadV3::Entries(_)) { Ok(()) } else { Err(reply.status) }
}

async fn settled(running: &Running) {
    let is_settled = || running.bookie.stats().state == BookieState::Writable && running.bookie.stats().limbo == 0;
    // Ledgers that wait are looked at every half minute.
    for _ in 0..40 {
        if is_settled() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    panic!("{:?}", running.bookie.stats());
}

fn has_mark(world: &World) -> bool {
    world.disk.files().into_iter().any(|(path, _)| path.to_str() == Some(MARK))
}

#[tokio::test(start_paused = true)]
async fn what_a_power_cut_took_is_unknown_until_it_is_fetched() {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let (pair, running) = Pair::with(store.clone()).await;
    pair.create(1).await;
    pair.write(&running, 1, 0..300).await;
    pair.close(1, 299).await;
    let pair = pair.power_cut(running).await;
    let running = pair.world.try_start().await.unwrap();
    // Before anything else runs.
    for _ in 0..20 {
        store.fail_next_on(&layout::ledgers_root(), FaultKind::FailRead);
    }
    // Nobody can say yet which ledgers were here.
    assert!(matches!(running.bookie.stats().state, BookieState::ReadOnly { for_good: false, .. }));
    for l in [1, 77] {
        assert_eq!(entry_status(&running, l, 299).await, Status::UnknownLedgerState);
        assert_eq!(status_of(&running, l, ReadTarget::Last).await, Status::UnknownLedgerState);
        assert_eq!(list_status(&running, l).await, Err(Status::UnknownLedgerState));
        assert_eq!(running.connect().await.read_lac(l).await, Err(Status::UnknownLedgerState));
    }
    assert_eq!(running.connect().await.add(77, 0, b"x").await, Status::ReadOnly);
    assert_eq!(running.connect().await.recover(1, 299, b"x").await, Status::ReadOnly);
    settled(&running).await;
    assert_eq!(store.outstanding(), 0);
    assert!(has_mark(&pair.world), "this run does not sync either");
    let mut wire = running.connect().await;
    for e in 0..300 {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    assert_eq!(list_status(&running, 1).await, Ok(()));
    assert_eq!(entry_status(&running, 1, 300).await, Status::NoEntry);
    assert_eq!(entry_status(&running, 77, 0).await, Status::NoLedger);
    assert_eq!(wire.add(77, 0, b"x").await, Status::Ok);
    assert_eq!(wire.add(1, 300, b"x").await, Status::Fenced, "a fence it had would be lost too");
    // What was fetched survives the next power cut, and an orderly stop leaves no doubt.
    let pair = pair.power_cut(running).await;
    let running = pair.world.start().await;
    settled(&running).await;
    let mut wire = running.connect().await;
    for e in 0..300 {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    pair.stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_open_ledger_stays_in_limbo_and_fenced_until_it_is_closed() {
    let (pair, running) = Pair::new().await;
    pair.create(1).await;
    pair.write(&running, 1, 0..10).await;
    // This fence is lost with the rest; whoever set it counts on it.
    running.connect().await.fence(1, &key()).await.unwrap();
    let pair = pair.power_cut(running).await;
    let running = pair.world.start().await;
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    assert_eq!(running.bookie.stats().limbo, 1);
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 10, b"x").await, Status::Fenced);
    for e in [0, 9, 10] {
        assert_eq!(entry_status(&running, 1, e).await, Status::UnknownLedgerState);
    }
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    assert_eq!(entry_status(&running, 1, 0).await, Status::UnknownLedgerState, "time alone proves nothing");
    assert_eq!(wire.recover(1, 9, &payload(1, 9)).await, Status::Ok, "who recovers it may bring entries");
    assert_eq!(wire.read(1, 9).await.unwrap(), body(1, 9, &payload(1, 9)));
    assert!(has_mark(&pair.world));
    // The doubt outlives an orderly stop, and a change of the setting.
    running.stop().await;
    let world = World { config: small_config(), ..pair.world };
    let pair = Pair { world, ..pair };
    let running = pair.world.start().await;
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    assert_eq!(entry_status(&running, 1, 0).await, Status::UnknownLedgerState);
    pair.close(1, 9).await;
    settled(&running).await;
    let mut wire = running.connect().await;
    for e in 0..10 {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    assert_eq!(wire.add(1, 10, b"x").await, Status::Fenced);
    settle(|| !has_mark(&pair.world)).await;
    pair.stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_orderly_stop_leaves_no_doubt() {
    let (pair, running) = Pair::new().await;
    pair.create(1).await;
    pair.write(&running, 1, 0..10).await;
    assert!(has_mark(&pair.world));
    running.stop().await;
    assert!(!has_mark(&pair.world));
    // What the stop did not sync would be gone now.
    let world = World { disk: pair.world.disk.crash(), index: pair.world.index.crash(), ..pair.world };
    let pair = Pair { world, ..pair };
    let running = pair.world.start().await;
    assert_eq!((running.bookie.stats().state, running.bookie.stats().limbo), (BookieState::Writable, 0));
    let mut wire = running.connect().await;
    for e in 0..10 {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    assert_eq!(wire.read(1, 10).await, Err(Status::NoEntry));
    assert_eq!(wire.add(1, 10, b"x").await, Status::Ok, "it is not fenced");
    pair.stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_ledger_without_copies_elsewhere_stays_unknown() {
    let (pair, running) = Pair::new().await;
    pair.create(1).await;
    let mut wire = running.connect().await;
    for e in 0..10 {
        assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
    }
    pair.close(1, 9).await;
    let pair = pair.power_cut(running).await;
    let running = pair.world.start().await;
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    assert_eq!(running.bookie.stats().limbo, 1);
    assert_eq!(entry_status(&running, 1, 3).await, Status::UnknownLedgerState);
    // Once a peer has them they come, but for the one that is damaged there.
    let mut wire = pair.peer.connect().await;
    for e in 0..9 {
        assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
    }
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(running.connect().await.read(1, 3).await.unwrap(), body(1, 3, &payload(1, 3)));
    assert_eq!(entry_status(&running, 1, 9).await, Status::UnknownLedgerState);
    assert_eq!(wire.add(1, 9, &payload(1, 9)).await, Status::Ok);
    settled(&running).await;
    assert_eq!(running.connect().await.read(1, 9).await.unwrap(), body(1, 9, &payload(1, 9)));
    pair.stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn metadata_that_cannot_be_read_may_name_the_bookie() {
    let (pair, running) = Pair::new().await;
    let path = layout::ledger_key(ledger(5));
    pair.world.metadata.put_if(&path, "nonsense".into(), Expect::Absent).await.unwrap();
    let pair = pair.power_cut(running).await;
    let running = pair.world.start().await;
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    assert_eq!(running.bookie.stats().limbo, 1);
    assert_eq!(entry_status(&running, 5, 0).await, Status::UnknownLedgerState);
    assert_eq!(running.connect().await.add(5, 0, b"x").await, Status::Fenced);
    pair.world.metadata.delete_if(&path, Expect::Any).await.unwrap();
    settled(&running).await;
    pair.stop(running).await;
}

/// Groups of a journal that was not synced come to the disk in any order.
#[tokio::test(start_paused = true)]
async fn what_stands_behind_a_hole_is_kept() {
    let (pair, running) = Pair::new().await;
    pair.create(1).await;
    pair.write(&running, 1, 0..20).await;
    // All of it but one group came to the disk before the power cut.
    let (path, _) = pair.world.segment_files().into_iter().next().unwrap();
    pair.world.disk.damage(&path, |file| file[5 * BLOCK_BYTES..6 * BLOCK_BYTES].fill(0));
    let pair = pair.power_cut(running).await;
    let pair = Pair { world: World { config: small_config(), ..pair.world }, ..pair };
    let running = pair.world.start().await;
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    let mut held = 0;
    for e in 0..20 {
        match entry_status(&running, 1, e).await {
            Status::Ok => held += 1,
            status => assert_eq!(status, Status::UnknownLedgerState),
        }
    }
    assert_eq!(held, 19, "each was a group of its own");
    pair.close(1, 19).await;
    settled(&running).await;
    let mut wire = running.connect().await;
    for e in 0..20 {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    let restarted = pair.power_cut(running).await;
    let running = restarted.world.start().await;
    assert_eq!(running.bookie.stats().state, BookieState::Writable);
    assert_eq!(running.connect().await.read(1, 19).await.unwrap(), body(1, 19, &payload(1, 19)));
    restarted.stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_was_dropped_and_brought_back_is_completed_like_others() {
    let (pair, running) = Pair::new().await;
    pair.world.create_ledger(1, PEER, true).await;
    let mut wire = running.connect().await;
    wire.fill(&running, 1, 0, 2).await;
    assert_eq!(pair.peer.connect().await.add(1, 0, &payload(1, 0)).await, Status::Ok);
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_gone, report.segments_removed), (1, 2));
    // Repair brings it back, and metadata counts on this copy.
    assert_eq!(wire.recover(1, 0, &payload(1, 0)).await, Status::Ok);
    let record = pair.world.ledgers().get_quorum(ledger(1)).await.unwrap().unwrap();
    let here_too = pair.open().closed(EntryId::new(0_u64), 1).unwrap();
    pair.world.ledgers().update(ledger(1), &here_too, record.version).await.unwrap();
    let pair = pair.power_cut(running).await;
    let running = pair.world.start().await;
    settled(&running).await;
    assert_eq!(running.connect().await.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    // Where metadata does not want it any more, and a power cut takes it, nothing is waited for.
    let record = pair.world.ledgers().get_quorum(ledger(1)).await.unwrap().unwrap();
    pair.world.ledgers().delete(ledger(1), Some(record.version)).await.unwrap();
    pair.world.create_ledger(1, PEER, true).await;
    let pair = pair.power_cut(running).await;
    let running = pair.world.start().await;
    settled(&running).await;
    assert_ne!(entry_status(&running, 1, 0).await, Status::NoEntry);
    pair.stop(running).await;
}
