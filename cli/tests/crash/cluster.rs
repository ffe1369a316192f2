//! A cluster of processes over a real etcd: bookies, offloader and gateways killed at random while writers and readers go on, and
//! the offloader killed at every step.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cli::kill_at::When;
use common::rng::Rng;
use faults::Etcd;
use metadata::{Attempts, MetadataStore};
use offloader::Step;
use proto::v1::LedgerTier;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::acks::AckLog;
use crate::calls::Calls;
use crate::counts::{FLOOR, Since};
use crate::folder::Folder;
use crate::process::{self, Process, Spec};
use crate::standalone::{BOOKIE_SETS, OFFLOADER_SETS, POLICY_SETS, all_released, cold_store, join};
use crate::steps::{self, Road};
use crate::writers::{self, Load, Until};
use crate::{counts, eventually, outsider, rounds, seed, sweep};

/// Rounds on one cluster, before the next begins with a new one.
const ROUNDS_OF_A_FOLDER: usize = 4;
const BOOKIES: usize = 3;
const GATEWAYS: usize = 2;
const LOAD: Load = Load { entries_max: 250, batch_max: 32 };
/// A short lease: the attempts of an offloader that died go to the next one soon.
const OWNER_TTL: &str = "2s";
/// A bookie that comes back waits until the registration of the one that was killed has lapsed.
const SHORT_REGISTRATION: &str = "bookie.registration_ttl=3s";
/// Where no bookie is killed a busy machine may not let its registration lapse.
const LONG_REGISTRATION: &str = "bookie.registration_ttl=10s";
/// Kinds of processes that are killed in turn: bookies, the offloader, gateways.
const KINDS: u64 = 3;

/// A process of a role with how it is started, always at the address it got first.
struct Member {
    spec: Spec,
    address: Option<String>,
    process: Option<Process>,
}

impl Member {
    fn new(name: &'static str, log: PathBuf, arguments: &[&str], sets: &[&[&str]]) -> Self {
        let sets = sets.iter().copied().flatten().flat_map(|set| ["--set", set]);
        let arguments = arguments.iter().copied().chain(["--admin", "off"]).chain(sets).map(str::to_owned).collect();
        let spec = Spec { name, within: Vec::new(), arguments, log };
        Self { spec, address: None, process: None }
    }

    fn start(&mut self, more: &[&str]) {
        let address = self.address.clone().unwrap_or_else(|| "127.0.0.1:0".to_owned());
        let process = Process::start(&self.spec.and(&["--listen", &address]).and(more));
        let said = process.said("address").or_else(|| process.said("endpoint")).unwrap();
        self.address = Some(said.trim_start_matches("http://").to_owned());
        self.process = Some(process);
    }

    fn kill9(&mut self) {
        self.process.take().expect("it runs").kill9();
    }

    fn address(&self) -> &str {
        self.address.as_deref().expect("it was started")
    }

    fn calls(&self) -> Calls {
        Calls::to(&format!("http://{}", self.address()))
    }
}

struct Site {
    // The processes go before what they write to.
    bookies: Vec<Member>,
    gateways: Vec<Member>,
    offloader: Member,
    etcd: Etcd,
    store: Arc<dyn MetadataStore>,
    acks: AckLog,
    folder: Folder,
}

impl Site {
    /// A cluster whose offloader follows `policy`; it is not started yet when that is `None`.
    async fn new(about: String, seed: u64, registration: &str, policy: &[&str]) -> Self {
        let etcd = Etcd::start().await.unwrap();
        let uri = etcd.uri("");
        let folder = Folder::new(about);
        let acks = AckLog::create(&folder.join("acks"), seed);
        let log = |name: String| folder.join(&format!("{name}.log"));
        std::fs::create_dir(folder.join("cold")).unwrap();
        let cold = url::Url::from_directory_path(folder.join("cold")).unwrap().to_string();
        let mut bookies: Vec<Member> = (1..=BOOKIES)
            .map(|number| {
                let id = format!("bookie-{number}");
                let dir = folder.join(&id).display().to_string();
                let arguments = ["bookie", "--id", &id, "--dir", &dir, "--metadata", &uri];
                Member::new("bookie", log(id.clone()), &arguments, &[BOOKIE_SETS, &[registration]])
            })
            .collect();
        let mut gateways: Vec<Member> = (1..=GATEWAYS)
            .map(|number| {
                let id = format!("gateway-{number}");
                let arguments = ["gateway", "--id", &id, "--metadata", &uri, "--cold", &cold];
                Member::new("gateway", log(id.clone()), &arguments, &[])
            })
            .collect();
        let ttl = format!("offloader.owner_ttl={OWNER_TTL}");
        let arguments = ["offloader", "--metadata", &uri, "--cold", &cold];
        let offloader =
            Member::new("offloader", log("offloader".to_owned()), &arguments, &[OFFLOADER_SETS, policy, &[&ttl]]);
        for member in bookies.iter_mut().chain(&mut gateways) {
            member.start(&[]);
        }
        let store = metadata::open(&uri).await.unwrap();
        Self { bookies, gateways, offloader, etcd, store, acks, folder }
    }

    fn gateway(&self, number: u64) -> Calls {
        self.gateways[(number as usize) % GATEWAYS].calls()
    }

    /// Reads everything back, by both gateways, from the bookies and the objects, and checks the records.
    async fn check(&mut self) -> BTreeMap<u64, String> {
        let bookies: BTreeMap<String, String> = self
            .bookies
            .iter()
            .enumerate()
            .map(|(at, bookie)| (format!("bookie-{}", at + 1), bookie.address().to_owned()))
            .collect();
        let mut gateways: Vec<Calls> = self.gateways.iter().map(Member::calls).collect();
        sweep::through(&mut gateways, &bookies, &self.acks).await;
        let named = sweep::records(self.store.clone(), &cold_store(&self.folder.join("cold")), &self.acks).await;
        for member in self.bookies.iter().chain(&self.gateways).chain([&self.offloader]) {
            process::check_log(&member.spec.log, &[]);
        }
        assert!(self.etcd.dir().exists());
        named
    }

    async fn all_released(&self) {
        all_released(&mut self.gateway(0), &self.acks).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_a_cluster_are_killed_while_work_goes_on() {
    if Etcd::is_missing_for("crash-cluster") {
        return;
    }
    let (seed, rounds) = (seed(), rounds(50, 3));
    let since = Since::now();
    for first in (0..rounds).step_by(ROUNDS_OF_A_FOLDER) {
        let about = format!("cluster, round {first} and those after it, CRASH_SEED={seed}");
        let mut site = Site::new(about, seed.wrapping_add(first), SHORT_REGISTRATION, POLICY_SETS).await;
        site.offloader.start(&[]);
        for round in first..rounds.min(first + ROUNDS_OF_A_FOLDER as u64) {
            let rng = Rng::seeded(seed.wrapping_add(round));
            println!("cluster, round {round}, CRASH_SEED={seed}");
            one_round(&mut site, round, &rng).await;
            counts::add("rounds cluster", 1);
        }
        site.all_released().await;
        let named = site.check().await;
        outsider::check(&site.folder.join("cold"), &named, &site.acks);
    }
    if rounds > 0 {
        since.assert_counted(FLOOR);
    }
    if rounds >= KINDS {
        let kills = ["bookie", "offloader", "gateway"].map(|name| format!("kills of {name} amid appends and reads"));
        since.assert_counted(&kills.each_ref().map(String::as_str));
    }
    counts::tell();
}

/// Work goes on from the first kill to the last start; then everything is read back.
async fn one_round(site: &mut Site, round: u64, rng: &Rng) {
    let (over, told) = watch::channel(false);
    let until = Until(told);
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for number in 0..3 {
        let (calls, acks) = (site.gateway(number), site.acks.clone());
        tasks.push(tokio::spawn(writers::write(calls, acks, rng.fork(), LOAD, until.clone())));
    }
    for number in 0..2 {
        let (calls, acks) = (site.gateway(number), site.acks.clone());
        tasks.push(tokio::spawn(writers::read(calls, acks, rng.fork(), until.clone())));
    }
    let (calls, acks) = (site.offloader.calls(), site.acks.clone());
    tasks.push(tokio::spawn(writers::offload(calls, acks.clone(), rng.fork(), until)));
    // One of each in three rounds, and one more at random: at most one of a kind is down at a time.
    for kind in [round % KINDS, rng.below(KINDS)] {
        let member = match kind {
            0 => &mut site.bookies[rng.below(BOOKIES as u64) as usize],
            1 => &mut site.offloader,
            _ => &mut site.gateways[rng.below(GATEWAYS as u64) as usize],
        };
        pause(rng, 600).await;
        if writers::amid_work().await {
            counts::add(format!("kills of {} amid appends and reads", member.spec.name), 1);
        }
        member.kill9();
        pause(rng, 400).await;
        member.start(&[]);
        acks.more_than(acks.acknowledged()).await;
    }
    pause(rng, 300).await;
    over.send_replace(true);
    join(tasks).await;
    site.check().await;
}

async fn pause(rng: &Rng, most_ms: u64) {
    tokio::time::sleep(Duration::from_millis(20 + rng.below(most_ms))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_offloader_is_killed_before_and_after_every_step() {
    if Etcd::is_missing_for("crash-cluster") {
        return;
    }
    let seed = seed();
    let quick = ["offloader.settle_after=0s", "offloader.hot_retention=0s"];
    let about = format!("every step of the offloader, CRASH_SEED={seed}");
    let mut site = Site::new(about, seed, LONG_REGISTRATION, &quick).await;
    let mut killed = BTreeSet::new();
    for step in Step::ALL {
        for when in When::ALL {
            let moment = format!("{}:{}", when.name(), step.name());
            println!("offloader killed {moment}");
            match steps::road(step) {
                Road::Order => {
                    let ledger = steps::written(&site.acks, &mut site.gateway(0), 60).await;
                    die_at(&site, &moment).await;
                    site.check().await;
                    let named = site.acks.ledgers()[&ledger].object.is_some();
                    assert_eq!(named, steps::is_committed(when, step), "{moment}: whether the dead one had committed");
                }
                Road::Abandon => {
                    let ledger = steps::written(&site.acks, &mut site.gateway(0), 60).await;
                    die_at(&site, "after:upload").await;
                    site.acks.deleted(ledger);
                    site.gateway(1).delete(ledger).await.unwrap();
                    die_at(&site, &moment).await;
                }
            }
            killed.insert((step, when));
            // The next process finishes it unasked.
            site.offloader.start(&[]);
            site.all_released().await;
            let attempts = Attempts::new(site.store.clone());
            eventually("no attempt is left", async || attempts.list(None, 10).await.unwrap().is_empty()).await;
            site.offloader.kill9();
            counts::add(format!("offloader kills {} {}", when.name(), step.name()), 1);
        }
    }
    site.offloader.start(&[]);
    site.check().await;
    let all: BTreeSet<_> = Step::ALL.into_iter().flat_map(|step| When::ALL.map(|when| (step, when))).collect();
    assert_eq!(killed, all, "each step was reached, and the offloader was killed there");
    for (ledger, promises) in site.acks.ledgers() {
        if !promises.deleted {
            assert_eq!(site.gateway(0).get(ledger).await.unwrap().tier(), LedgerTier::Released);
        }
    }
    counts::tell();
}

/// Starts an offloader that finds its work by itself and dies at that moment.
async fn die_at(site: &Site, moment: &str) {
    let spec = site.offloader.spec.and(&["--listen", "127.0.0.1:0", "--kill-at", moment]);
    let status = Process::start_to_end(&spec).await;
    assert_eq!(status.signal(), Some(9), "{moment}: {status}\n{}", process::tail(&spec.log));
}
