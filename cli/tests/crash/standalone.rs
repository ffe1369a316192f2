//! The standalone node, killed at random moments: while it starts, recovers, writes, closes, settles and releases.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cold::{ColdStore, StoreOptions};
use common::rng::Rng;
use metadata::MetadataStore;
use proto::v1::LedgerTier;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::acks::AckLog;
use crate::calls::Calls;
use crate::counts::{FLOOR, Since};
use crate::folder::Folder;
use crate::process::{self, Process, Spec};
use crate::writers::{self, Load, Until};
use crate::{counts, eventually, outsider, rounds, seed, sweep};

/// Rounds on one folder, before the next begins with a new one.
const ROUNDS_OF_A_FOLDER: u64 = 4;
const WRITERS: u64 = 3;
const LOAD: Load = Load { entries_max: 250, batch_max: 32 };

/// Small segments and quick passes, so that a short life sees segments sealed, collected and replayed.
pub const BOOKIE_SETS: &[&str] = &[
    "bookie.segment_bytes=128KiB",
    "bookie.disk_free_bytes_min=64MiB",
    "bookie.collect_interval=200ms",
    "bookie.recovery_grace=500ms",
];
pub const OFFLOADER_SETS: &[&str] = &["offloader.scan_interval=100ms", "offloader.failure_pause_max=1s"];
/// The policy for nodes that are to settle and release by themselves, some time after.
pub const POLICY_SETS: &[&str] = &["offloader.settle_after=300ms", "offloader.hot_retention=600ms"];

/// A standalone node's folder and how it is started.
pub struct Site {
    pub folder: Folder,
    pub acks: AckLog,
    sets: Vec<String>,
}

impl Site {
    pub fn new(about: String, seed: u64, sets: &[&str]) -> Self {
        let folder = Folder::new(about);
        let acks = AckLog::create(&folder.join("acks"), seed);
        let sets = BOOKIE_SETS
            .iter()
            .chain(OFFLOADER_SETS)
            .chain(sets)
            .flat_map(|set| ["--set".to_owned(), (*set).to_owned()])
            .collect();
        Self { folder, acks, sets }
    }

    fn spec(&self) -> Spec {
        let dir = self.folder.join("node").display().to_string();
        let first = ["standalone", "--dir", &dir, "--listen", "127.0.0.1:0"].map(str::to_owned);
        let arguments = first.into_iter().chain(self.sets.iter().cloned()).collect();
        Spec { name: "standalone", within: Vec::new(), arguments, log: self.log() }
    }

    pub fn log(&self) -> std::path::PathBuf {
        self.folder.join("node.log")
    }

    pub fn start(&self, more: &[&str]) -> Process {
        Process::start(&self.spec().and(more))
    }

    /// Starts a node and kills it before anybody has spoken to it.
    async fn start_and_kill(&self, after: Duration) {
        Process::start_and_kill(&self.spec(), after).await;
    }

    /// Looks at the records of a node that is down.
    pub async fn check_records(&self) -> BTreeMap<u64, String> {
        let store = self.metadata().await;
        let named = sweep::records(store, &self.cold(), &self.acks).await;
        process::check_log(&self.log(), &[]);
        named
    }

    /// The metadata of a node that is down.
    pub async fn metadata(&self) -> Arc<dyn MetadataStore> {
        let dir = self.folder.join("node").join("metadata");
        metadata::open(&format!("embedded:{}", dir.display())).await.unwrap()
    }

    pub fn cold(&self) -> ColdStore {
        cold_store(&self.folder.join("node").join("cold"))
    }

    /// Reads everything through a running node.
    pub async fn check_reads(&self, calls: &Calls) {
        let bookies = bookies(&mut calls.clone()).await;
        assert_eq!(bookies.len(), 3, "{bookies:?}");
        sweep::through(&mut [calls.clone()], &bookies, &self.acks).await;
    }
}

pub fn cold_store(dir: &Path) -> ColdStore {
    let url = url::Url::from_directory_path(dir).unwrap();
    ColdStore::open(&url, StoreOptions::default(), Rng::seeded(1)).unwrap()
}

/// Ids and addresses of the registered bookies.
pub async fn bookies(calls: &mut Calls) -> BTreeMap<String, String> {
    let status = calls.status().await.unwrap();
    status.bookies.into_iter().map(|bookie| (bookie.bookie_id, bookie.address)).collect()
}

/// Waits for the tasks of a load; a violation in one of them is a violation of the test.
pub async fn join(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        let ended = tokio::time::timeout(crate::DEADLINE, task).await.expect("the load ends with its node");
        if let Err(error) = ended {
            resume_unwind(error.into_panic());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_standalone_node_is_killed_at_random_moments() {
    let (seed, rounds) = (seed(), rounds(50, 4));
    let since = Since::now();
    let mut site: Option<Site> = None;
    for round in 0..rounds {
        let rng = Rng::seeded(seed.wrapping_add(round));
        let about = format!("standalone, round {round}, CRASH_SEED={seed}");
        println!("{about}");
        let here = site.take().filter(|_| round % ROUNDS_OF_A_FOLDER != 0);
        let here = here.unwrap_or_else(|| Site::new(about, seed.wrapping_add(round), POLICY_SETS));
        one_round(&here, &rng).await;
        if (round + 1) % ROUNDS_OF_A_FOLDER == 0 || round + 1 == rounds {
            end_of_folder(&here).await;
        } else {
            site = Some(here);
        }
        counts::add("rounds standalone", 1);
    }
    if rounds > 0 {
        since.assert_counted(FLOOR);
    }
    counts::tell();
}

async fn one_round(site: &Site, rng: &Rng) {
    while rng.below(3) == 0 {
        site.start_and_kill(Duration::from_millis(rng.below(500))).await;
    }
    let node = site.start(&[]);
    let calls = Calls::to(&node.endpoint());
    let before = site.acks.acknowledged();
    let (over, told) = watch::channel(false);
    let until = Until(told);
    let mut tasks: Vec<JoinHandle<()>> = (0..WRITERS)
        .map(|_| tokio::spawn(writers::write(calls.clone(), site.acks.clone(), rng.fork(), LOAD, until.clone())))
        .collect();
    tasks.push(tokio::spawn(writers::read(calls.clone(), site.acks.clone(), rng.fork(), until.clone())));
    tasks.push(tokio::spawn(writers::offload(calls, site.acks.clone(), rng.fork(), until)));
    tokio::time::sleep(Duration::from_millis(50 + rng.below(1500))).await;
    site.acks.more_than(before).await;
    node.kill9();
    over.send_replace(true);
    join(tasks).await;
    site.check_records().await;
    let node = site.start(&[]);
    site.check_reads(&Calls::to(&node.endpoint())).await;
    node.kill9();
}

/// Waits until each closed ledger with entries is released.
pub async fn all_released(calls: &mut Calls, acks: &AckLog) {
    for (ledger, promises) in acks.ledgers() {
        if promises.deleted || promises.closed.is_none_or(|(last, _)| last.is_none()) {
            continue;
        }
        eventually(&format!("ledger {ledger} is released"), async || {
            calls.get(ledger).await.is_ok_and(|seen| seen.tier() == LedgerTier::Released)
        })
        .await;
    }
}

/// Everything comes to its end by itself: each closed ledger with entries is released; then everything is read once more.
async fn end_of_folder(site: &Site) {
    let node = site.start(&[]);
    let mut calls = Calls::to(&node.endpoint());
    all_released(&mut calls, &site.acks).await;
    site.check_reads(&calls).await;
    node.kill9();
    let named = site.check_records().await;
    outsider::check(&site.folder.join("node").join("cold"), &named, &site.acks);
}
