//! Lives of a bookie that end at any call to its disk, one after the other: what was acknowledged in one is there in the next. Every third
//! bookie does not sync: what it lost is unknown then, and what it fenced stays fenced.
//!
//! `THERMOCLINE_DISK_SEEDS` sets how many seeds run (40), `THERMOCLINE_DISK_SEED` runs one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::config::{ByteSize, Span};
use common::rng::Rng;
use common::shutdown::TaskTree;
use metadata::Expect;
use proto::client::{AddFlags, encode_read_v3, encode_write_lac_v3};
use proto::{ReadTarget, Status};

use super::support::*;
use crate::disk::{DiskFault, FaultyDisk};
use crate::index::{FileIndex, Index};
use crate::*;

const LEDGERS: u64 = 5;
const LIVES: u64 = 4;
/// Of the calls of a life, about.
const CALLS: u64 = 160;
/// No writer gets that far.
const NEVER: u64 = 1 << 40;

/// What clients were told in all lives.
#[derive(Default)]
struct Told {
    /// Entries that were sent, and whether any was acknowledged.
    entries: BTreeMap<(u64, u64), bool>,
    next: BTreeMap<u64, u64>,
    /// Ledgers somebody tried to fence, and whether that was acknowledged.
    fences: BTreeMap<u64, bool>,
    /// Explicit last-add-confirmed that were acknowledged.
    confirmed: BTreeMap<u64, u64>,
    /// Ledgers that were deleted in metadata.
    deleted: BTreeSet<u64>,
}

/// How often things happened, so that a run that tests nothing is seen.
#[derive(Debug, Default)]
struct Counts {
    lives: u64,
    cuts: u64,
    failed: u64,
    starts_cut: u64,
    entries: u64,
    checked: u64,
    fences: u64,
    sealed: u64,
    removed: u64,
    unknown: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        self.cuts += other.cuts;
        self.failed += other.failed;
        self.starts_cut += other.starts_cut;
        self.entries += other.entries;
        self.checked += other.checked;
        self.fences += other.fences;
        self.sealed += other.sealed;
        self.removed += other.removed;
        self.unknown += other.unknown;
    }
}

struct Run {
    seed: u64,
    /// For messages.
    when: String,
    rng: Rng,
    world: World,
    told: Told,
    counts: Counts,
    syncs: bool,
}

async fn start(world: &World, disk: &FaultyDisk) -> Result<Running, Error> {
    let tasks = TaskTree::root("test");
    let dir = Path::new(DIR).join("index");
    let open = async || Ok(Arc::new(FileIndex::open(disk, &dir).await?) as Arc<dyn Index>);
    let parts = BookieParts { disk: Arc::new(disk.clone()), ..world.parts(&tasks) };
    let bookie = Bookie::start_inner(world.config.clone(), parts, open, async || Ok(())).await?;
    Ok(Running::of(bookie, tasks, world))
}

impl Run {
    fn new(seed: u64) -> Self {
        let config = BookieConfig {
            segment_bytes: ByteSize::kib(64),
            // Of half of them several groups are at the disk at the same time.
            group_bytes_max: if seed % 2 == 1 { ByteSize::kib(4) } else { ByteSize::mib(1) },
            recovery_grace: Span::millis(1),
            sync: if seed % 3 == 2 { SyncMode::Never } else { SyncMode::Always },
            ..small_config()
        };
        let syncs = config.sync == SyncMode::Always;
        let world = World { config, ..World::new() };
        Self {
            seed,
            when: String::new(),
            rng: Rng::seeded(seed),
            world,
            told: Told::default(),
            counts: Counts::default(),
            syncs,
        }
    }

    async fn run(mut self) -> Counts {
        for life in 0..LIVES {
            for number in 1..=LEDGERS {
                let l = self.ledger(number, life);
                if !self.told.next.contains_key(&l) {
                    self.world.create_ledger(l, self.world.id.as_str(), false).await;
                    self.told.next.insert(l, 0);
                }
            }
            let disk = FaultyDisk::new(&self.world.disk, self.rng.fork());
            let fault = match self.rng.below(10) {
                0..=2 => DiskFault::CutBefore,
                3..=5 => DiskFault::CutWithin,
                6..=7 => DiskFault::CutAfter,
                8 => DiskFault::Fail(io::ErrorKind::StorageFull),
                _ => DiskFault::Fail(io::ErrorKind::Other),
            };
            let call = self.rng.below(CALLS);
            disk.plan(call, fault);
            self.when = format!("seed {}, life {life}, {fault:?} at call {call}", self.seed);
            self.counts.lives += 1;
            match start(&self.world, &disk).await {
                Ok(running) => self.live(&running, &disk, life).await.end(running, &disk).await,
                Err(error) => {
                    let planned = disk.left().is_some() || matches!(fault, DiskFault::Fail(_));
                    assert!(planned, "{}: {error}", self.when);
                    self.counts.starts_cut += 1;
                }
            }
            self.counts.cuts += u64::from(disk.left().is_some());
            self.world.disk = disk.cut();
            self.forget_registration().await;
            self.check().await;
        }
        self.counts
    }

    /// The ledger with that number in this life. One that was open when a bookie lost what it did not sync takes nothing more.
    fn ledger(&self, number: u64, life: u64) -> u64 {
        if self.syncs { number } else { 10 * life + number }
    }

    /// A process that died leaves its registration until its lease ends.
    async fn forget_registration(&self) {
        tokio::time::sleep(self.world.config.registration_ttl.duration() * 2).await;
    }

    async fn live(&mut self, running: &Running, disk: &FaultyDisk, life: u64) -> &mut Self {
        let mut wire = running.connect().await;
        for _ in 0..60 {
            if disk.left().is_some() {
                break;
            }
            let number = 1 + self.rng.below(LEDGERS);
            let l = self.ledger(number, life);
            match self.rng.below(20) {
                0..=13 => self.add(&mut wire, l).await,
                14..=15 => self.recover(&mut wire, l).await,
                16 => self.fence(&mut wire, l).await,
                17 => self.confirm(running, l).await,
                // Only the last ledger is deleted, and not too early: the others are to live.
                18 => self.collect(running, (number == LEDGERS && life > 1).then_some(l)).await,
                _ => tokio::time::sleep(Duration::from_millis(self.rng.below(200))).await,
            }
        }
        self.counts.sealed += running.bookie.sealed_segments();
        self
    }

    async fn add(&mut self, wire: &mut Wire, l: u64) {
        let count = 1 + self.rng.below(24);
        let first = *self.told.next.get(&l).unwrap_or(&0);
        for e in first..first + count {
            wire.put_add(l, e, &payload(l, e), &key(), AddFlags::default());
            self.told.entries.entry((l, e)).or_default();
        }
        self.told.next.insert(l, first + count);
        wire.send().await;
        let is_fenced = self.told.fences.get(&l) == Some(&true);
        let mut refused = false;
        for e in first..first + count {
            let reply = wire.reply().await;
            assert_eq!((reply.ledger, reply.entry), (l as i64, e as i64), "answers come in order");
            if reply.status == Status::Ok {
                assert!(!is_fenced, "{}: an add after a fence", self.when);
                assert!(!refused, "{}: an add is acknowledged behind one that failed", self.when);
                self.told.entries.insert((l, e), true);
                self.counts.entries += 1;
            } else {
                // For want of space one may be refused and the next not: space comes back.
                refused |= reply.status != Status::ReadOnly;
            }
        }
    }

    async fn recover(&mut self, wire: &mut Wire, l: u64) {
        let e = self.rng.below(self.told.next.get(&l).unwrap_or(&0) + 3);
        let acknowledged = wire.recover(l, e, &payload(l, e)).await == Status::Ok;
        *self.told.entries.entry((l, e)).or_default() |= acknowledged;
    }

    async fn fence(&mut self, wire: &mut Wire, l: u64) {
        self.told.fences.entry(l).or_default();
        // An answer about the entry comes once the fence is durable.
        if matches!(wire.fence(l, &key()).await, Ok(_) | Err(Status::NoEntry)) {
            self.told.fences.insert(l, true);
            self.counts.fences += 1;
        }
    }

    async fn confirm(&mut self, running: &Running, l: u64) {
        let lac = self.told.confirmed.get(&l).unwrap_or(&0) + self.rng.below(5);
        let mut wire = running.connect().await;
        let body = lac_body(l, lac);
        let reply = wire.ask(|out| encode_write_lac_v3(3, ledger(l), lac_entry(lac), &key(), &body, out)).await;
        if reply.status == Status::Ok {
            self.told.confirmed.insert(l, lac);
        }
    }

    async fn collect(&mut self, running: &Running, delete: Option<u64>) {
        if let Some(l) = delete
            && self.told.deleted.insert(l)
        {
            let path = metadata::layout::ledger_key(ledger(l));
            self.world.metadata.delete_if(&path, Expect::Any).await.unwrap();
        }
        if let Ok(report) = running.bookie.collect_now().await {
            self.counts.removed += report.segments_removed;
        }
    }

    /// Ends a life. What the disk refused ends writing for good, and takes nothing of what is there.
    async fn end(&mut self, running: Running, disk: &FaultyDisk) {
        let failed = matches!(running.bookie.stats().state, BookieState::ReadOnly { for_good: true, .. });
        if failed && disk.left().is_none() {
            self.counts.failed += 1;
            self.check_told(&running, "after a failure").await;
        }
        let _ = disk.cut();
        // Whatever an end without power comes to.
        let _ = running.bookie.stop(PATIENCE).await;
    }

    /// Starts on what is left, without faults, and compares everything with what was told.
    async fn check(&mut self) {
        let disk = FaultyDisk::new(&self.world.disk, self.rng.fork());
        let running = start(&self.world, &disk)
            .await
            .unwrap_or_else(|error| panic!("{}: a power cut keeps the bookie from starting: {error}", self.when));
        self.check_told(&running, "after the cut").await;
        settle(|| running.bookie.stats().state == BookieState::Writable).await;
        self.check_told(&running, "writable again").await;
        let mut wire = running.connect().await;
        for (l, acknowledged) in &self.told.fences {
            let status = wire.add(*l, NEVER, b"late").await;
            // Of a ledger that metadata does not name any more nothing is left to find a lost fence by.
            let is_lost = !self.syncs && self.told.deleted.contains(l);
            if *acknowledged && !is_lost {
                assert_eq!(status, Status::Fenced, "{}: ledger {l} was fenced", self.when);
            }
            if status == Status::Ok {
                // The fence was never acknowledged and is lost: the ledger goes on.
                self.told.entries.insert((*l, NEVER), true);
            }
        }
        running.stop().await;
        self.world.disk = disk.cut();
        self.forget_registration().await;
    }

    async fn check_told(&mut self, running: &Running, when: &str) {
        let mut wire = running.connect().await;
        for ((l, e), acknowledged) in &self.told.entries {
            let reply =
                wire.ask(|out| encode_read_v3(7, ledger(*l), ReadTarget::Entry(entry(*e)), None, false, out)).await;
            let is_dropped = self.told.deleted.contains(l);
            self.counts.checked += 1;
            match reply.status {
                Status::Ok => {
                    let proto::client::PayloadV3::Entry { body: found, .. } = reply.payload else { panic!("no entry") };
                    let sent = if *e == NEVER { body(*l, *e, b"late") } else { body(*l, *e, &payload(*l, *e)) };
                    assert_eq!(found, sent);
                }
                Status::NoEntry | Status::NoLedger => assert!(
                    !*acknowledged || is_dropped,
                    "{}, {when}: entry {e} of ledger {l} was acknowledged and is told to be absent",
                    self.when
                ),
                Status::UnknownLedgerState if !self.syncs => self.counts.unknown += 1,
                other => panic!("{}, {when}: entry {e} of ledger {l}: {other:?}", self.when),
            }
        }
        for (l, confirmed) in self.told.confirmed.iter().filter(|(l, _)| !self.told.deleted.contains(l)) {
            let read = running.connect().await.read_lac(*l).await;
            if !self.syncs && read == Err(Status::UnknownLedgerState) {
                continue;
            }
            let (explicit, _) = read.unwrap();
            let explicit = explicit.expect("it was acknowledged");
            let found = u64::from_be_bytes(explicit[8..16].try_into().unwrap());
            assert!(found >= *confirmed, "{}, {when}: ledger {l} went back to {found}", self.when);
        }
    }
}

fn lac_entry(lac: u64) -> Option<ledger::EntryId> {
    Some(entry(lac))
}

#[test]
fn lives_that_end_at_any_call_to_the_disk() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let seeds = match number("THERMOCLINE_DISK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("THERMOCLINE_DISK_SEEDS").unwrap_or(40),
    };
    let (mut total, many) = (Counts::default(), seeds.end - seeds.start >= 40);
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        total.add(&runtime.block_on(Run::new(seed).run()));
    }
    println!("{total:?}");
    if many {
        let Counts { cuts, failed, starts_cut, entries, fences, sealed, removed, unknown, .. } = total;
        assert!(
            cuts > 50 && failed > 0 && starts_cut > 5 && entries > 3_000 && fences > 20 && sealed > 50,
            "{total:?}"
        );
        assert!(removed > 0 && unknown > 100, "{total:?}");
    }
}
