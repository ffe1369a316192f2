use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::support::*;
use crate::disk::Disk as _;
use crate::index::{Index, MemoryIndex, Write};
use crate::ledger_state::Tombstone;
use crate::store::Tombstones;
use crate::{Bookie, Error};
use bytes::Bytes;
use common::shutdown::TaskTree;
use ledger::MasterKey;
use metadata::{Expect, FaultKind, FaultyStore, MemoryStore, Transaction, layout};
use proto::client::{decode_response_v3, encode_read_lac_v3, encode_read_v3};
use proto::{ReadTarget, Status};

/// Fills segments with entries of one ledger, one segment more than asked for being open.
async fn filled(world: &World, l: u64) -> (Running, Wire, u64) {
    let running = world.start().await;
    let mut wire = running.connect().await;
    let end = wire.fill(&running, l, 0, 2).await;
    (running, wire, end)
}

#[tokio::test]
async fn segments_of_a_deleted_ledger_are_removed() {
    let world = World::new();
    let (running, mut wire, _) = filled(&world, 1).await;
    let before = running.bookie.stats();
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!((report.segments_removed, report.ledgers_deleted), (2, 1));
    let after = running.bookie.stats();
    assert!(after.allocated_bytes + report.bytes_freed == before.allocated_bytes && report.bytes_freed > 0);
    assert_eq!(after.segments, 1);
    let on_disk: usize = world.segment_files().iter().map(|(_, file)| file.len()).sum();
    assert_eq!(on_disk as u64, after.allocated_bytes, "the files are really gone");
    let mut world = world;
    let mut running = running;
    for _ in 0..2 {
        assert_eq!(wire.read(1, 0).await, Err(Status::NoLedger));
        assert_eq!(wire.read_last(1).await, Err(Status::NoLedger));
        assert_eq!(wire.fence(1, &key()).await, Err(Status::NoLedger));
        assert_eq!(wire.add(1, 0, b"late").await, Status::Fenced);
        assert_eq!(wire.recover(1, 0, b"late").await, Status::Fenced);
        world = world.crash(running).await;
        running = world.start().await;
        wire = running.connect().await;
    }
    // What the open segment held of it goes with that segment.
    wire.fill(&running, 2, 0, 1).await;
    let report = running.bookie.collect_now().await.unwrap();
    assert!(report.segments_removed >= 1);
    running.stop().await;
}

#[tokio::test]
async fn a_gone_ledger_is_fenced_for_ever_and_never_told_as_absent() {
    let world = World::new();
    let (running, mut wire, end) = filled(&world, 1).await;
    world.create_ledger(1, "elsewhere:3181", true).await;
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!((report.segments_removed, report.ledgers_gone), (2, 1));
    // On version 2 connections *unknown* is said as an I/O error.
    assert_eq!(wire.read(1, 0).await, Err(Status::Io));
    assert_eq!(wire.read(1, end + 100).await, Err(Status::Io));
    assert_eq!(wire.read_last(1).await, Err(Status::Io));
    assert_eq!(wire.recovery_read(1, 0).await, Err(Status::Io));
    assert_eq!(wire.add(1, 0, b"late").await, Status::Fenced);
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.read(1, 0).await, Err(Status::Io));
    assert_eq!(wire.add(1, 0, b"late").await, Status::Fenced);
    let other = MasterKey::derive(b"other");
    assert_eq!(wire.add_as(1, 0, b"x", &other, RECOVERY).await, Status::Unauthorized, "the key outlives the entries");

    // Repair brings an entry back: it is served and protected, the rest stays unknown.
    assert_eq!(wire.recover(1, 3, b"repaired").await, Status::Ok);
    assert_eq!(wire.read(1, 3).await.unwrap(), body(1, 3, b"repaired"));
    assert_eq!(wire.read(1, 0).await, Err(Status::Io));
    assert_eq!(wire.add(1, 4, b"late").await, Status::Fenced);
    wire.fill(&running, 2, 0, 1).await;
    world.create_ledger(2, "bk1:3181", false).await;
    running.bookie.collect_now().await.unwrap();
    assert_eq!(wire.read(1, 3).await.unwrap(), body(1, 3, b"repaired"), "protected for an hour");
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.read(1, 3).await.unwrap(), body(1, 3, b"repaired"));
    running.bookie.collect_now().await.unwrap();
    assert_eq!(wire.read(1, 3).await.unwrap(), body(1, 3, b"repaired"), "still protected after a crash");
    world.time.advance(Duration::from_secs(3601));
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!(report.ledgers_gone, 1, "not wanted here, and repair is over");
    running.stop().await;
}

#[tokio::test]
async fn version_3_says_unknown_of_a_gone_ledger_and_absent_of_a_deleted_one() {
    let world = World::new();
    let (running, mut wire, _) = filled(&world, 1).await;
    wire.fill(&running, 2, 0, 1).await;
    world.create_ledger(1, "elsewhere:3181", true).await;
    running.bookie.collect_now().await.unwrap();
    let mut wire = running.connect().await;
    let mut out = bytes::BytesMut::new();
    for (l, expected) in [(1, Status::UnknownLedgerState), (2, Status::NoLedger)] {
        encode_read_v3(1, ledger(l), ReadTarget::Entry(entry(0)), None, false, &mut out);
        encode_read_v3(2, ledger(l), ReadTarget::Last, Some(&key()), false, &mut out);
        encode_read_lac_v3(3, ledger(l), &mut out);
        wire.send_raw(&out.split()).await;
        for _ in 0..3 {
            let reply = decode_response_v3(wire.frame().await.unwrap()).unwrap();
            assert_eq!(reply.status, expected, "ledger {l}, request {}", reply.txn);
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn without_an_answer_from_metadata_everything_is_kept() {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let world = World { metadata: store.clone(), ..World::new() };
    let (running, mut wire, end) = filled(&world, 1).await;
    store.fail_next_on(&layout::ledger_key(ledger(1)), FaultKind::FailRead);
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_asked, report.ledgers_unknown, report.segments_removed), (1, 1, 0));
    assert_eq!(running.bookie.stats().tombstones, 0);
    for e in 0..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    assert_eq!(running.bookie.collect_now().await.unwrap().segments_removed, 2, "with an answer it is dropped");
    running.stop().await;
}

#[tokio::test]
async fn one_answer_that_fails_does_not_keep_what_others_have_proved() {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let world = World { metadata: store.clone(), ..World::new() };
    let running = world.start().await;
    let mut wire = running.connect().await;
    for l in [1, 2] {
        wire.fill(&running, l, 0, 2).await;
    }
    store.fail_next_on(&layout::ledger_key(ledger(2)), FaultKind::FailRead);
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_deleted, report.ledgers_unknown, report.cut_short), (1, 1, true));
    assert!(report.segments_removed >= 1, "{report:?}");
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!(
        (report.ledgers_deleted, report.ledgers_unknown, report.cut_short),
        (1, 0, false),
        "the next run asks again"
    );
    running.stop().await;
}

#[tokio::test]
async fn a_removed_cluster_says_nothing_about_its_ledgers() {
    let world = World::new();
    let (running, mut wire, end) = filled(&world, 1).await;
    let metadata = &*world.metadata;
    let instance = metadata.get_quorum(&layout::instance_key()).await.unwrap().unwrap();
    let (own, other) = (instance.value.clone(), Bytes::from_static(b"another-cluster"));
    // Removed, then another one in its place.
    let removed = Transaction::new().delete(layout::instance_key(), Expect::Present);
    for step in [removed, Transaction::new().put(layout::instance_key(), other, Expect::Absent)] {
        metadata.commit(step).await.unwrap();
        let report = running.bookie.collect_now().await.unwrap();
        assert_eq!((report.ledgers_asked, report.ledgers_unknown), (1, 1));
        assert_eq!((report.ledgers_deleted, report.segments_removed), (0, 0));
    }
    assert_eq!(running.bookie.stats().tombstones, 0);
    for e in 0..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    metadata.commit(Transaction::new().put(layout::instance_key(), own, Expect::Present)).await.unwrap();
    assert_eq!(running.bookie.collect_now().await.unwrap().segments_removed, 2, "the cluster itself is believed");
    running.stop().await;
}

#[tokio::test]
async fn live_ledgers_hold_their_segments() {
    let world = World::new();
    // Open and elsewhere, open and here, closed and here: all are kept.
    for (l, member, closed) in [(1, "elsewhere:3181", false), (2, "bk1:3181", false), (3, "bk1:3181", true)] {
        world.create_ledger(l, member, closed).await;
    }
    let running = world.start().await;
    let mut wire = running.connect().await;
    for l in 1..=3 {
        wire.fill(&running, l, 0, 1).await;
    }
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!((report.segments_removed, report.ledgers_deleted, report.ledgers_gone), (0, 0, 0));
    for l in 1..=3 {
        assert_eq!(wire.read(l, 0).await.unwrap(), body(l, 0, &payload(l, 0)));
    }
    running.stop().await;
}

#[tokio::test]
async fn a_fence_alone_holds_its_segment_while_the_ledger_lives() {
    let world = World::new();
    world.create_ledger(1, "elsewhere:3181", false).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.fence(1, &key()).await, Err(Status::NoEntry));
    wire.fill(&running, 2, 0, 1).await;
    assert_eq!(running.bookie.collect_now().await.unwrap().segments_removed, 0);
    assert_eq!(wire.add(1, 0, b"late").await, Status::Fenced);
    running.stop().await;
}

#[tokio::test]
async fn a_crash_between_mark_and_removal_is_completed() {
    let world = World::new();
    let (running, _, _) = filled(&world, 1).await;
    let disk_before = world.disk.crash();
    assert_eq!(running.bookie.collect_now().await.unwrap().segments_removed, 2);
    // The power went after the mark was synced, before the directory was: the files are back, the marks still there.
    let world = world.crash(running).await;
    let rows = crate::index::rows::segments(&world.index).await.unwrap();
    assert!(rows.is_empty());
    let names = disk_before.list(&segment_path("")).await.unwrap();
    let first = crate::format::SegmentId::from_file_name(names.iter().find(|name| name.ends_with(".seg")).unwrap());
    let row = crate::index::rows::SegmentRow { id: first.unwrap(), file_bytes: 1, entries: 1, dropping: true };
    crate::index::Index::write(&world.index, vec![crate::index::rows::put_segment(&row)]).await.unwrap();
    let world = World { disk: disk_before, ..world };
    let running = world.start().await;
    assert!(!world.disk.list(&segment_path("")).await.unwrap().contains(&row.id.file_name()));
    assert_eq!(running.connect().await.read(1, 0).await, Err(Status::NoLedger));
    running.stop().await;
}

#[tokio::test]
async fn readers_and_the_collector_do_not_disturb_each_other() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.create_ledger(1, "bk1:3181", false).await;
    let end = wire.fill(&running, 1, 0, 1).await;
    for l in 2..12 {
        wire.fill(&running, l, 0, 1).await;
        let (report, ()) = tokio::join!(running.bookie.collect_now(), async {
            let mut reader = running.connect().await;
            for e in 0..end {
                assert_eq!(reader.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
            }
        });
        report.unwrap();
        assert_eq!(wire.read(l, 0).await, Err(Status::NoLedger));
    }
    running.stop().await;
}

/// An index whose next write of a tombstone, once asked for, waits to be let go on; others pass it meanwhile.
#[derive(Clone, Default)]
struct SlowIndex {
    inner: MemoryIndex,
    hold: Arc<AtomicBool>,
    holding: Arc<AtomicBool>,
    go_on: Arc<tokio::sync::Notify>,
}

#[async_trait::async_trait]
impl Index for SlowIndex {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.inner.get(key).await
    }

    async fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.inner.scan(prefix, after, limit).await
    }

    async fn write(&self, batch: Vec<Write>) -> Result<(), Error> {
        let tombstone = |change: &Write| matches!(change, Write::Put(key, _) if b"DGV".contains(&key[0]));
        if batch.iter().any(tombstone) && self.hold.swap(false, Ordering::SeqCst) {
            self.holding.store(true, Ordering::SeqCst);
            self.go_on.notified().await;
        }
        self.inner.write(batch).await
    }
}

impl SlowIndex {
    async fn start(&self, world: &World) -> (Bookie, Wire) {
        let tasks = TaskTree::root("test");
        let index = Arc::new(self.clone());
        let bookie = Bookie::start_with_index(world.config.clone(), world.parts(&tasks), index).await.unwrap();
        let wire = self.connect(world).await;
        (bookie, wire)
    }

    async fn connect(&self, world: &World) -> Wire {
        use common::net::Connector as _;
        Wire::new(world.network.connect("bk1:3181").await.unwrap())
    }

    async fn holds(&self) {
        settle(|| self.holding.load(Ordering::SeqCst)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn tombstones_that_change_at_the_same_time_are_all_kept() {
    let world = World::new();
    let (running, mut wire, _) = filled(&world, 1).await;
    wire.fill(&running, 2, 0, 1).await;
    for l in [1, 2] {
        world.create_ledger(l, "elsewhere:3181", true).await;
    }
    assert_eq!(running.bookie.collect_now().await.unwrap().ledgers_gone, 2);
    running.stop().await;

    let index = SlowIndex { inner: world.index.clone(), ..SlowIndex::default() };
    let (bookie, mut first) = index.start(&world).await;
    let mut second = index.connect(&world).await;
    index.hold.store(true, Ordering::SeqCst);
    first.put_add(1, 3, b"repaired", &key(), RECOVERY);
    first.send().await;
    index.holds().await;
    second.put_add(2, 3, b"repaired", &key(), RECOVERY);
    second.send().await;
    // Paused time moves only when nothing else can: by then the second add has overtaken, if it can.
    tokio::time::sleep(Duration::from_millis(50)).await;
    index.go_on.notify_one();
    assert_eq!(first.reply().await.status, Status::Ok);
    assert_eq!(second.reply().await.status, Status::Ok);
    let stored = Tombstones::load(&world.index).await.unwrap();
    for l in [1, 2] {
        assert_eq!(stored.of(ledger(l)), Some(Tombstone::Revived), "ledger {l}");
    }
    bookie.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_fence_does_not_rely_on_a_tombstone_that_is_still_being_written() {
    let world = World::new();
    let (running, _, end) = filled(&world, 1).await;
    running.stop().await;
    world.create_ledger(1, "elsewhere:3181", true).await;
    let index = SlowIndex { inner: world.index.clone(), ..SlowIndex::default() };
    let (bookie, mut wire) = index.start(&world).await;
    index.hold.store(true, Ordering::SeqCst);
    let (report, (disk, index)) = tokio::join!(bookie.collect_now(), async {
        index.holds().await;
        assert_eq!(wire.fence(1, &key()).await, Err(Status::Io), "fenced, and what the last entry was is unknown");
        let crashed = (world.disk.crash(), world.index.crash());
        index.go_on.notify_one();
        crashed
    });
    assert_eq!(report.unwrap().ledgers_gone, 1);
    bookie.stop(PATIENCE).await.unwrap();
    let world = World { disk, index, ..world };
    let running = world.start().await;
    assert_eq!(running.bookie.stats().tombstones, 0, "the power went before it was stored");
    assert_eq!(running.connect().await.add(1, end, b"late").await, Status::Fenced);
    running.stop().await;
}
