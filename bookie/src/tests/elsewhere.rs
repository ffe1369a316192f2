//! Copies that no metadata names are dropped under the locks of auto-recovery only.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::*;
use crate::MemoryDisk;
use async_trait::async_trait;
use ledger::BookieId;
use metadata::{
    CommitError, Committed, Error, ErrorKind, Key, LeaseId, MemoryStore, MetadataStore, Transaction, UnderReplication,
    Versioned, WatchStream, layout,
};

/// Counts requests, and loses what it is told to lose.
#[derive(Default)]
struct Spy {
    inner: MemoryStore,
    requests: AtomicU64,
    /// Leases end before they are kept alive.
    loses_leases: AtomicBool,
    /// Proofs and leases are not to be had.
    is_away: AtomicBool,
    /// Proofs are never answered.
    hangs: AtomicBool,
    /// Seconds that a proof takes.
    slowness: AtomicU64,
    leases: AtomicU64,
    /// Where the segments of a bookie lie, and how many there were when the last lease was granted.
    disk: Mutex<Option<(MemoryDisk, usize)>>,
}

impl Spy {
    fn pass(&self) -> Result<&MemoryStore, Error> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "away")),
            false => Ok(&self.inner),
        }
    }
}

#[async_trait]
impl MetadataStore for Spy {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.inner.get(key).await
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let slowness = Duration::from_secs(self.slowness.load(Ordering::SeqCst));
        if !slowness.is_zero() {
            tokio::time::sleep(slowness).await;
        }
        self.pass()?.get_quorum(key).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        self.pass().map_err(CommitError::NotDone)?.commit(transaction).await
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        self.pass()?.list(prefix, after, limit).await
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        self.inner.watch(prefix).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        self.leases.fetch_add(1, Ordering::SeqCst);
        if let Some((disk, segments)) = &mut *self.disk.lock().unwrap() {
            *segments = segments_on(disk);
        }
        self.pass()?.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        if self.loses_leases.load(Ordering::SeqCst) {
            self.inner.revoke(lease).await?;
        }
        self.pass()?.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.pass()?.revoke(lease).await
    }
}

fn segments_on(disk: &MemoryDisk) -> usize {
    disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "seg")).count()
}

struct Scene {
    spy: Arc<Spy>,
    world: World,
    repair: UnderReplication,
    running: Running,
    wire: Wire,
}

impl Scene {
    /// A bookie with sealed segments of ledger 1, which is closed and lives elsewhere.
    async fn new() -> Self {
        let spy = Arc::new(Spy::default());
        let world = World { metadata: spy.clone(), ..World::new() };
        let running = world.start().await;
        let mut wire = running.connect().await;
        wire.fill(&running, 1, 0, 2).await;
        world.create_ledger(1, "elsewhere:3181", true).await;
        Self { repair: UnderReplication::new(spy.clone()), spy, world, running, wire }
    }

    /// Nothing was dropped, and no lock was left behind.
    async fn keeps(&mut self) {
        assert_eq!(self.running.bookie.stats().tombstones, 0);
        assert_eq!(self.wire.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    }

    async fn then_drops(self) {
        let report = self.running.bookie.collect_now().await.unwrap();
        assert_eq!((report.ledgers_gone, report.segments_removed), (1, 2));
        assert_eq!(self.repair.lock_holder(ledger(1)).await.unwrap(), None, "the lock is given back");
        self.running.stop().await;
    }
}

#[tokio::test]
async fn a_ledger_whose_replicas_are_being_changed_is_kept_until_that_is_over() {
    let mut scene = Scene::new().await;
    let lease = scene.spy.grant_lease(Duration::from_secs(600)).await.unwrap();
    scene.repair.lock(&[ledger(1)], &BookieId::new("worker").unwrap(), lease).await.unwrap();
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_locked, report.ledgers_gone, report.ledgers_unknown), (1, 0, 0));
    assert_eq!(scene.running.bookie.held_back(), (1, 0), "it is counted");
    scene.keeps().await;
    assert_eq!(scene.repair.lock_holder(ledger(1)).await.unwrap().as_deref(), Some("worker"), "the lock is honoured");
    scene.spy.revoke(lease).await.unwrap();
    scene.then_drops().await;
}

#[tokio::test]
async fn a_ledger_that_lacks_replicas_keeps() {
    let mut scene = Scene::new().await;
    scene.repair.add_mark(ledger(1), &["lost:3181"], 1).await.unwrap();
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_marked, report.ledgers_gone), (1, 0));
    assert_eq!(scene.running.bookie.held_back(), (0, 1), "it is counted");
    scene.keeps().await;
    assert_eq!(scene.repair.lock_holder(ledger(1)).await.unwrap(), None);
    let mark = scene.repair.mark(ledger(1)).await.unwrap().unwrap();
    scene.repair.remove_mark(ledger(1), mark.version).await.unwrap();
    scene.then_drops().await;
}

#[tokio::test]
async fn what_was_read_under_a_lock_that_was_lost_says_nothing() {
    let mut scene = Scene::new().await;
    scene.spy.loses_leases.store(true, Ordering::SeqCst);
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_unknown, report.ledgers_gone), (1, 0));
    scene.keeps().await;
    scene.spy.loses_leases.store(false, Ordering::SeqCst);
    scene.then_drops().await;
}

#[tokio::test]
async fn without_metadata_no_lock_is_had_and_everything_keeps() {
    let mut scene = Scene::new().await;
    scene.spy.is_away.store(true, Ordering::SeqCst);
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_unknown, report.ledgers_gone), (1, 0));
    scene.keeps().await;
    scene.spy.is_away.store(false, Ordering::SeqCst);
    scene.then_drops().await;
}

/// A worker that was done between the hint and the lock has named this bookie.
#[tokio::test]
async fn what_metadata_says_under_the_lock_decides() {
    let scene = Scene::new().await;
    let lease = scene.spy.grant_lease(Duration::from_secs(600)).await.unwrap();
    let locked = scene.repair.lock(&[ledger(1)], &BookieId::new("worker").unwrap(), lease).await.unwrap();
    assert_eq!(scene.running.bookie.collect_now().await.unwrap().ledgers_locked, 1);
    scene.world.ledgers().delete(ledger(1), None).await.unwrap();
    scene.world.create_ledger(1, "bk1:3181", true).await;
    scene.repair.unlock(locked.taken[0]).await.unwrap();
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_gone, report.ledgers_deleted, report.segments_removed), (0, 0, 0));
    scene.running.stop().await;
}

#[tokio::test]
async fn thousands_of_released_ledgers_cost_few_requests_each() {
    const LEDGERS: u64 = 1_000;
    let scene = Scene::new().await;
    let mut wire = scene.running.connect().await;
    for l in 2..=LEDGERS {
        assert_eq!(wire.add(l, 0, b"x").await, proto::Status::Ok);
        scene.world.create_ledger(l, "elsewhere:3181", true).await;
    }
    wire.fill(&scene.running, 1, 1_000_000, 1).await;
    let before = scene.spy.requests.load(Ordering::SeqCst);
    let report = scene.running.bookie.collect_now().await.unwrap();
    let requests = scene.spy.requests.load(Ordering::SeqCst) - before;
    assert_eq!(report.ledgers_gone, LEDGERS);
    println!("{requests} requests of metadata for {LEDGERS} ledgers");
    assert!(requests < LEDGERS * 31 / 10, "{requests} requests for {LEDGERS} ledgers");
    assert!(scene.spy.list(&layout::repair_locks_root(), None, 10).await.unwrap().is_empty());
    scene.running.stop().await;
}

#[tokio::test]
async fn a_run_ends_with_the_first_answer_that_metadata_is_away() {
    const LEDGERS: u64 = 200;
    let scene = Scene::new().await;
    let mut wire = scene.running.connect().await;
    // Deleted ones, and one that lives elsewhere.
    for l in 2..=LEDGERS {
        assert_eq!(wire.add(l, 0, b"x").await, proto::Status::Ok);
    }
    wire.fill(&scene.running, 1, 1_000_000, 1).await;
    scene.spy.is_away.store(true, Ordering::SeqCst);
    let before = scene.spy.requests.load(Ordering::SeqCst);
    let report = scene.running.bookie.collect_now().await.unwrap();
    let requests = scene.spy.requests.load(Ordering::SeqCst) - before;
    assert_eq!((report.cut_short, report.ledgers_unknown, report.segments_removed), (true, LEDGERS, 0));
    assert!(requests < LEDGERS + 20, "{requests} requests");
    scene.spy.is_away.store(false, Ordering::SeqCst);
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.cut_short, report.ledgers_deleted, report.ledgers_gone), (false, LEDGERS - 1, 1));
    scene.running.stop().await;
}

#[tokio::test]
async fn a_run_ends_when_the_bookie_stops() {
    let scene = Scene::new().await;
    scene.spy.hangs.store(true, Ordering::SeqCst);
    scene.world.ledgers().delete(ledger(1), None).await.unwrap();
    let run = scene.running.bookie.collect_now();
    tokio::pin!(run);
    assert!(futures::poll!(run.as_mut()).is_pending());
    scene.running.tasks.ask_to_stop();
    let report = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
    assert_eq!((report.cut_short, report.ledgers_unknown, report.segments_removed), (true, 1, 0));
}

#[tokio::test]
async fn space_of_deleted_ledgers_is_given_back_before_locks_are_taken() {
    let scene = Scene::new().await;
    let mut wire = scene.running.connect().await;
    wire.fill(&scene.running, 2, 0, 3).await;
    let segments = segments_on(&scene.world.disk);
    *scene.spy.disk.lock().unwrap() = Some((scene.world.disk.clone(), 0));
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_deleted, report.ledgers_gone), (1, 1));
    let (_, then) = scene.spy.disk.lock().unwrap().take().unwrap();
    assert!(then < segments, "{then} of {segments} were left when locks were asked for");
    assert!(segments_on(&scene.world.disk) < then);
    scene.running.stop().await;
}

#[tokio::test]
async fn locks_of_another_cluster_are_not_taken() {
    let mut scene = Scene::new().await;
    let key = layout::instance_key();
    let own = scene.spy.inner.get(&key).await.unwrap().unwrap().value;
    let other = "00000000-0000-4000-8000-000000000000";
    scene.spy.inner.put_if(&key, other.into(), metadata::Expect::Present).await.unwrap();
    let leases = scene.spy.leases.load(Ordering::SeqCst);
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_unknown, report.ledgers_gone), (1, 0));
    assert_eq!(scene.spy.leases.load(Ordering::SeqCst), leases, "no lease is asked of a foreign cluster");
    scene.keeps().await;
    scene.spy.inner.put_if(&key, own, metadata::Expect::Present).await.unwrap();
    scene.then_drops().await;
}

#[tokio::test]
async fn locks_are_kept_for_as_long_as_proofs_take() {
    const LEDGERS: u64 = 100;
    let scene = Scene::new().await;
    let mut wire = scene.running.connect().await;
    for l in 2..=LEDGERS {
        assert_eq!(wire.add(l, 0, b"x").await, proto::Status::Ok);
        scene.world.create_ledger(l, "elsewhere:3181", true).await;
    }
    wire.fill(&scene.running, 1, 1_000_000, 1).await;
    tokio::time::pause();
    // Of all together more than the life of a lease.
    scene.spy.slowness.store(2, Ordering::SeqCst);
    let report = scene.running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_gone, report.ledgers_unknown), (LEDGERS, 0));
    scene.running.stop().await;
}
