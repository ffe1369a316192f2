//! Bookies and nodes on a disk that has no space left: read-only, nothing acknowledged is lost, and writable again by themselves.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::rng::Rng;
use faults::{Etcd, skipped};
use ledger::BookieId;
use metadata::{Bookies, MetadataStore};
use proto::Status;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::acks::AckLog;
use crate::calls::Calls;
use crate::folder::Folder;
use crate::process::{self, Process, Spec};
use crate::small_disk::SmallDisk;
use crate::standalone::{self, OFFLOADER_SETS, join};
use crate::wire::Wire;
use crate::writers::{self, Load, Until};
use crate::{counts, eventually, seed};

/// What lies on the small disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Small {
    Journal,
    Index,
    Both,
}

impl Small {
    fn directories(self) -> &'static [&'static str] {
        match self {
            Self::Journal => &["journal"],
            Self::Index => &["index"],
            Self::Both => &["journal", "index"],
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_the_journal() {
    fill(Small::Journal, 24 << 20, 3 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_the_index() {
    fill(Small::Index, 24 << 20, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_both_while_reads_go_on() {
    fill(Small::Both, 48 << 20, 3 << 20).await;
}

/// A bookie over etcd, part of whose directory is on a small disk.
struct Site {
    spec: Spec,
    process: Option<Process>,
    disk: SmallDisk,
    store: Arc<dyn MetadataStore>,
    acks: AckLog,
    _etcd: Etcd,
    folder: Folder,
}

impl Site {
    fn address(&self) -> String {
        self.process.as_ref().unwrap().said("address").unwrap().to_owned()
    }

    async fn wire(&self) -> Wire {
        Wire::connect(&self.address()).await.unwrap()
    }

    fn start(&mut self) {
        self.process = Some(Process::start(&self.spec));
    }

    fn kill9(&mut self) {
        self.process.take().unwrap().kill9();
    }

    async fn registered_as(&self, writable: bool) {
        let (bookies, id) = (Bookies::new(self.store.clone()), BookieId::new("bookie-1").unwrap());
        eventually(
            &format!("the bookie is registered, writable: {writable}\n{}", process::tail(&self.spec.log)),
            async || bookies.get(&id).await.unwrap().is_some_and(|(_, found)| found == writable),
        )
        .await;
    }

    /// Adds entries to a ledger from `first` on until one is refused, at most `most`; gives the refusal. Each positive reply goes
    /// to the log.
    async fn add(&self, ledger: u64, first: u64, most: u64, acked: &AtomicU64) -> Option<Status> {
        let mut wire = self.wire().await;
        for entry in first..first + most {
            let status = wire.add(ledger, entry, &self.acks.payload(ledger, entry)).await.unwrap();
            if status != Status::Ok {
                return Some(status);
            }
            self.acks.acked(ledger, entry, 1);
            counts::add("entries acknowledged", 1);
            acked.store(entry + 1, Ordering::Release);
        }
        None
    }

    /// Everything in the log is there.
    async fn check(&self) {
        let mut wire = self.wire().await;
        for (ledger, promises) in self.acks.ledgers() {
            let answers = wire.read_all(ledger, promises.acked.len() as u64).await.unwrap();
            for (entry, answer) in answers.into_iter().enumerate() {
                let payload = answer.unwrap_or_else(|status| panic!("ledger {ledger} entry {entry}: {status:?}"));
                assert!(
                    payload == self.acks.payload(ledger, entry as u64),
                    "ledger {ledger} entry {entry}: other bytes"
                );
                counts::add("entries read back, full disk", 1);
            }
        }
        process::check_log(&self.spec.log, &[]);
    }
}

/// `None` when a small disk or etcd is not to be had here.
async fn site(small: Small, bytes: u64) -> Option<Site> {
    if Etcd::is_missing_for("crash-disk-full") {
        return None;
    }
    let seed = seed();
    let folder = Folder::new(format!("full disk, {small:?}, CRASH_SEED={seed}"));
    let disk = match SmallDisk::mount(&folder.join("small"), bytes) {
        Ok(disk) => disk,
        Err(reason) => {
            skipped("crash-disk-full", &reason);
            return None;
        }
    };
    let etcd = Etcd::start().await.unwrap();
    let dir = folder.join("bookie");
    let sets = ["bookie.segment_bytes=128KiB", "bookie.disk_free_bytes_min=0", "bookie.registration_ttl=2s"];
    let (id, uri, shown) = ("bookie-1", etcd.uri(""), dir.display().to_string());
    let words =
        ["bookie", "--id", id, "--dir", &shown, "--metadata", &uri, "--listen", "127.0.0.1:0", "--admin", "off"];
    let arguments = words.into_iter().chain(sets.iter().flat_map(|set| ["--set", set])).map(str::to_owned).collect();
    let mut spec = Spec { name: "bookie", within: Vec::new(), arguments, log: folder.join("bookie.log") };
    // A new bookie begins in an empty directory; parts of it move to the small disk afterwards.
    Process::start(&spec).terminate().await;
    for name in small.directories() {
        let from = dir.join(name);
        copy(&from, &disk.seen(name));
        std::fs::remove_dir_all(&from).unwrap();
        symlink(folder.join("small").join(name), &from).unwrap();
    }
    spec.within = disk.within();
    let store = metadata::open(&uri).await.unwrap();
    let acks = AckLog::create(&folder.join("acks"), seed);
    Some(Site { spec, process: None, disk, store, acks, _etcd: etcd, folder })
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

async fn fill(small: Small, bytes: u64, leave: u64) {
    let Some(mut site) = site(small, bytes).await else { return };
    site.start();
    for ledger in 1..=3 {
        site.acks.created(ledger);
    }
    let acked = Arc::new(AtomicU64::new(0));
    assert_eq!(site.add(1, 0, 500, &acked).await, None, "with space everything is taken");
    let (over, told) = watch::channel(false);
    let reader = tokio::spawn(read_on(site.address(), site.acks.clone(), acked.clone(), told));

    site.disk.take("ballast", leave);
    let refused = site.add(1, 500, 100_000, &acked).await;
    assert_eq!(refused, Some(Status::ReadOnly), "{small:?}");
    site.registered_as(false).await;
    assert_eq!(site.add(2, 0, 1, &acked).await, Some(Status::ReadOnly));
    // Reads and fences are served.
    site.check().await;
    assert_eq!(site.wire().await.fence(1).await.unwrap(), Status::Ok);
    over.send_replace(true);
    join(vec![reader]).await;

    // A start on a full disk: read-only, and everything is served.
    site.kill9();
    site.disk.take("more ballast", 0);
    site.start();
    site.check().await;
    assert_eq!(site.add(2, 0, 1, &acked).await, Some(Status::ReadOnly), "{small:?}: still no space");
    site.registered_as(false).await;
    let end = site.acks.ledgers()[&1].acked.len() as u64;

    // Space comes back, and with it the bookie, unasked.
    site.disk.give_back("ballast");
    site.registered_as(true).await;
    assert_eq!(site.add(1, end, 1, &acked).await, Some(Status::Fenced));
    assert_eq!(site.add(2, 0, 500, &acked).await, None, "{small:?}: it takes everything again");
    site.check().await;

    // Once more without a restart between the two.
    site.disk.take("ballast", 0);
    assert_eq!(site.add(3, 0, 100_000, &acked).await, Some(Status::ReadOnly), "{small:?}");
    site.registered_as(false).await;
    site.disk.give_back("ballast");
    site.registered_as(true).await;
    let end = site.acks.ledgers()[&3].acked.len() as u64;
    assert_eq!(site.add(3, end, 500, &acked).await, None, "{small:?}: it takes everything again");

    site.kill9();
    site.start();
    site.check().await;
    assert_eq!(site.add(1, site.acks.ledgers()[&1].acked.len() as u64, 1, &acked).await, Some(Status::Fenced));
    site.kill9();
    assert!(site.folder.path().exists());
    counts::add("full disks", 2);
    counts::tell();
}

/// Reads acknowledged entries of ledger 1 all the time: never one that is missing or other than written.
async fn read_on(address: String, acks: AckLog, acked: Arc<AtomicU64>, told: watch::Receiver<bool>) {
    let mut wire = Wire::connect(&address).await.unwrap();
    let rng = Rng::seeded(1);
    while !*told.borrow() {
        let entry = rng.below(acked.load(Ordering::Acquire));
        let payload = wire.read(1, entry).await.unwrap().unwrap_or_else(|status| panic!("entry {entry}: {status:?}"));
        assert!(payload == acks.payload(1, entry), "entry {entry}: other bytes");
        counts::add("entries read back, full disk", 1);
    }
}

/// A whole node, its metadata included, on a small disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_a_standalone_node() {
    let seed = seed();
    let folder = Folder::new(format!("full disk, standalone, CRASH_SEED={seed}"));
    let disk = match SmallDisk::mount(&folder.join("small"), 64 << 20) {
        Ok(disk) => disk,
        Err(reason) => return skipped("crash-disk-full", &reason),
    };
    let dir = folder.join("small").join("node").display().to_string();
    let sets = [
        "bookie.segment_bytes=256KiB",
        "bookie.disk_free_bytes_min=0",
        "bookie.collect_interval=200ms",
        "offloader.enabled=false",
    ];
    let words = ["standalone", "--dir", &dir, "--listen", "127.0.0.1:0"].into_iter();
    let sets = sets.iter().chain(OFFLOADER_SETS).flat_map(|set| ["--set", set]);
    let arguments = words.chain(sets).map(str::to_owned).collect();
    let spec = Spec { name: "standalone", within: disk.within(), arguments, log: folder.join("node.log") };
    let acks = AckLog::create(&folder.join("acks"), seed);
    let node = Process::start(&spec);
    let mut calls = Calls::to(&node.endpoint());
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(calls.create().await.unwrap());
    }
    let (over, told) = watch::channel(false);
    let until = Until(told);
    let load = Load { entries_max: 400, batch_max: 32 };
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for number in 0..2 {
        let rng = Rng::seeded(seed.wrapping_add(number));
        tasks.push(tokio::spawn(writers::write(calls.clone(), acks.clone(), rng, load, until.clone())));
    }
    tasks.push(tokio::spawn(writers::read(calls.clone(), acks.clone(), Rng::seeded(seed), until)));
    let some = |acks: &AckLog| acks.ledgers().values().map(|promises| promises.acked.len()).sum::<usize>();
    eventually("entries are written", async || some(&acks) > 300).await;

    disk.take("ballast", 2 << 20);
    eventually("a bookie takes no entries", async || {
        calls.status().await.is_ok_and(|status| status.bookies.iter().any(|bookie| !bookie.writable))
    })
    .await;
    // Nothing is left for anybody, so that commits of metadata fail too.
    disk.take("more ballast", 0);
    let mut refused = 0;
    for ledger in &open {
        refused += u32::from(calls.close(*ledger).await.is_err());
    }
    assert!(refused > 0, "a commit found no space");
    let before = some(&acks);
    disk.give_back("ballast");
    eventually("entries are written again", async || some(&acks) > before + 300).await;
    for ledger in open {
        let closed = calls.close(ledger).await.unwrap();
        assert_eq!(closed.last_entry_id, None);
    }
    over.send_replace(true);
    join(tasks).await;

    let bookies = standalone::bookies(&mut calls).await;
    crate::sweep::through(&mut [calls.clone()], &bookies, &acks).await;
    node.kill9();
    let node = Process::start(&spec);
    let mut calls = Calls::to(&node.endpoint());
    let bookies = standalone::bookies(&mut calls).await;
    crate::sweep::through(&mut [calls.clone()], &bookies, &acks).await;
    node.kill9();
    process::check_log(&spec.log, &["metadata write failed"]);
    counts::add("full disks", 1);
    counts::tell();
}
