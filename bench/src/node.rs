//! A storage node to measure: a real bookie on a real directory behind loopback TCP, in threads of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bookie::{Bookie, BookieConfig, BookieParts, LocalDisk};
use client::{Client, ClientConfig, ClientParts};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{TcpConnector, TcpListener};
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::BookieId;
use metadata::{MemoryStore, MetadataStore};
use tokio::runtime::Runtime;

use crate::cpu;
use crate::disk_record::{RecordingDisk, Written};
use crate::plan::{Error, Result};
use crate::timing::{now, sleep_until};

/// Memory that requests and replies share; the limits of a bookie are what binds.
pub(crate) const BUDGET_BYTES: u64 = 256 << 20;
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// A runtime whose threads carry `name`, and live long enough for their processor time to be read.
pub(crate) fn runtime(name: &str) -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .thread_name(name)
        .thread_keep_alive(Duration::from_secs(3600))
        .enable_all()
        .build()
        .map_err(Error::at(format!("start the {name} threads")))
}

/// What a bookie leaves that was killed: its files, and the metadata that knows it.
pub(crate) struct Remains {
    dir: PathBuf,
    metadata: Arc<dyn MetadataStore>,
}

/// A bookie that runs.
pub(crate) struct Node {
    runtime: Runtime,
    bookie: Option<Bookie>,
    disk: RecordingDisk,
    metadata: Arc<dyn MetadataStore>,
    dir: PathBuf,
    registration_ttl: Duration,
}

impl Node {
    /// Starts a bookie in `dir`, which it makes.
    pub(crate) fn start(dir: &Path, config: BookieConfig) -> Result<Self> {
        Self::start_again(Remains { dir: dir.to_path_buf(), metadata: Arc::new(MemoryStore::new()) }, config)
    }

    /// Starts a bookie on what another one has left.
    pub(crate) fn start_again(remains: Remains, config: BookieConfig) -> Result<Self> {
        let Remains { dir, metadata } = remains;
        let dir = dir.as_path();
        let runtime = runtime(cpu::NODE)?;
        let registration_ttl = config.registration_ttl.duration();
        let place = format!("start a bookie in {}", dir.display());
        let started = runtime.block_on(async {
            let disk = LocalDisk::open(dir).await.map_err(Error::at(&place))?;
            let disk = RecordingDisk::new(Arc::new(disk));
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Error::at(&place))?;
            let parts = BookieParts {
                id: BookieId::for_real_bookie("bench").map_err(Error::at(&place))?,
                dir: dir.to_path_buf(),
                disk: Arc::new(disk.clone()),
                metadata: metadata.clone(),
                connector: Arc::new(TcpConnector),
                listener: Box::new(listener),
                clock: Clock::system(),
                rng: Rng::from_os(),
                budget: ByteBudget::new("bench", BUDGET_BYTES),
                tasks: TaskTree::root("bench"),
            };
            let bookie = Bookie::start(config, parts).await.map_err(|error| Error::new(&place, chain(&error)))?;
            Ok((bookie, disk))
        });
        let (bookie, disk) = started?;
        Ok(Self { runtime, bookie: Some(bookie), disk, metadata, dir: dir.to_path_buf(), registration_ttl })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        self.bookie.as_ref().map_or_else(String::new, Bookie::address)
    }

    /// Where ledgers are registered.
    pub(crate) fn metadata(&self) -> Arc<dyn MetadataStore> {
        self.metadata.clone()
    }

    /// A client of it; its tasks run in `tasks`.
    pub(crate) fn client(&self, tasks: &TaskTree) -> Client {
        let parts = ClientParts {
            metadata: self.metadata(),
            connector: Arc::new(TcpConnector),
            clock: Clock::system(),
            rng: Rng::from_os(),
            budget: ByteBudget::new("bench-client", BUDGET_BYTES),
            tasks: tasks.clone(),
        };
        Client::new(parts, ClientConfig::default())
    }

    /// What it has written so far.
    pub(crate) fn written(&self) -> Written {
        self.disk.written()
    }

    /// The files of its journal, oldest first.
    pub(crate) fn journal_files(&self) -> Result<Vec<PathBuf>> {
        let journal = self.dir.join("journal");
        let listed = std::fs::read_dir(&journal).map_err(Error::at(format!("list {}", journal.display())))?;
        let mut files: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|end| end == "seg"));
        files.sort_unstable();
        Ok(files)
    }

    /// How many ledgers it knows.
    pub(crate) fn ledgers(&self) -> u64 {
        self.bookie.as_ref().map_or(0, |bookie| bookie.stats().ledgers)
    }

    /// Ends it as SIGKILL would, as far as its files tell: its tasks are dropped where they are, and nothing is written in farewell.
    /// Returns once its registration has lived out its time, for which a bookie that starts again would wait.
    pub(crate) fn kill(mut self) -> Result<Remains> {
        drop(self.bookie.take());
        self.runtime.shutdown_timeout(STOP_DEADLINE);
        sleep_until(now() + self.registration_ttl);
        Ok(Remains { dir: self.dir, metadata: self.metadata })
    }

    /// Stops it; `remove` also removes its directory.
    pub(crate) fn stop(mut self, remove: bool) -> Result<()> {
        if let Some(bookie) = self.bookie.take() {
            self.runtime.block_on(bookie.stop(STOP_DEADLINE)).map_err(Error::at("stop the bookie"))?;
        }
        self.runtime.shutdown_timeout(STOP_DEADLINE);
        if remove {
            std::fs::remove_dir_all(&self.dir).map_err(Error::at(format!("remove {}", self.dir.display())))?;
        }
        Ok(())
    }
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
