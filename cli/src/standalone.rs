//! The standalone node: three bookies, embedded metadata, offloader and gateway in one process.
//!
//! This is the composition root: it alone chooses the metadata driver, the disk and the network, and hands them down as traits.
//!
//! Start order: metadata, object store, bookies (each replays its journal), client, gateway and offloader behind one gRPC
//! listener. The listener is bound first, so that a busy port is told before anything is touched. Stop order is the reverse:
//! callers are drained before the bookies go.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bookie::{Bookie, BookieParts, BookieState, LocalDisk};
use client::{Client, ClientParts, CreateOptions, LedgerWriter};
use cold::{ColdStore, StoreOptions};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{Listener as _, TcpConnector, TcpListener};
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::{BookieId, DigestType, Password, Quorums};
use metadata::{Cluster, MetadataStore};
use tokio::sync::Mutex;

use crate::fault::chain;
use crate::{Fault, Settings, output};

mod serve;
mod status;

/// Bookies of a standalone node, and copies of each entry.
pub const COPIES: u64 = 3;
/// Requests, blocks and jobs of all roles cannot get on with less, 192 MiB.
const SHARED_BYTES_MIN: u64 = 192 << 20;
/// How long an orderly stop may take, each part of it.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// A running node.
pub struct Node {
    settings: Settings,
    front: serve::Front,
    cold_store: String,
    client: Client,
    bookies: status::SharedBookies,
    tasks: Tasks,
}

/// The parts of the task tree, in the order they are stopped.
struct Tasks {
    root: TaskTree,
    front: TaskTree,
    client: TaskTree,
}

impl Node {
    /// Starts every role.
    ///
    /// # Errors
    /// A sentence that names what could not be started and what to do: the port, the directory, the object store.
    pub async fn start(settings: Settings) -> Result<Self, Fault> {
        let clock = Clock::system();
        let rng = Rng::from_os();
        let root = TaskTree::root("standalone");
        let budget = ByteBudget::new("node", shared_bytes(&settings)?);

        let front_listener = serve::bind(&settings.listen).await?;
        let cold_url = settings.cold_url()?;
        tokio::fs::create_dir_all(&settings.dir).await.map_err(|error| {
            Fault::usage(format!("data folder {}: {error}; choose another with --dir", settings.dir.display()))
        })?;

        let metadata_uri = format!("embedded:{}", settings.dir.join("metadata").display());
        let metadata = metadata::open(&metadata_uri).await.map_err(usage)?;
        let instance = Cluster::init_or_open(metadata.as_ref(), &rng).await.map_err(failed)?;
        let cold = ColdStore::open(&cold_url, StoreOptions::default(), rng.clone()).map_err(usage)?;
        cold.check().await.map_err(usage)?;

        let bookies = Self::start_bookies(&settings, &metadata, &clock, &rng, &budget, &root).await?;
        let client_tasks = root.child("client");
        let client = Client::new(
            ClientParts {
                metadata: metadata.clone(),
                connector: Arc::new(TcpConnector),
                clock: clock.clone(),
                rng: rng.clone(),
                budget: budget.child("client", budget.limit_bytes() / 4),
                tasks: client_tasks.clone(),
            },
            settings.client.clone(),
        );
        let front = root.child("front");
        let parts = serve::FrontParts {
            listener: front_listener,
            metadata,
            instance,
            cold,
            client: client.clone(),
            bookies: bookies.clone(),
            clock,
            rng,
            budget,
            tasks: front.clone(),
        };
        let front_service = serve::start(&settings, parts).await?;
        Ok(Self {
            settings,
            front: front_service,
            cold_store: cold_url.to_string(),
            client,
            bookies,
            tasks: Tasks { root, front, client: client_tasks },
        })
    }

    async fn start_bookies(
        settings: &Settings,
        metadata: &Arc<dyn MetadataStore>,
        clock: &Clock,
        rng: &Rng,
        budget: &ByteBudget,
        root: &TaskTree,
    ) -> Result<status::SharedBookies, Fault> {
        let mut bookies = Vec::new();
        for number in 1..=COPIES {
            let name = format!("bookie-{number}");
            let id = BookieId::for_real_bookie(&name).map_err(failed)?;
            let listener = TcpListener::bind(&format!("{}:0", settings.bookie_host)).await.map_err(usage)?;
            let address = listener.address();
            let dir = settings.dir.join(&name);
            let disk = LocalDisk::open(&dir)
                .await
                .map_err(|error| Fault::usage(format!("start {name} in {}: {error}", dir.display())))?;
            let parts = BookieParts {
                id,
                dir,
                disk: Arc::new(disk),
                metadata: metadata.clone(),
                listener: Box::new(listener),
                clock: clock.clone(),
                rng: rng.clone(),
                budget: budget.clone(),
                tasks: root.child("bookie"),
            };
            let bookie = Bookie::start(settings.bookie.clone(), parts)
                .await
                .map_err(|error| Fault::usage(format!("start {name}: {}", chain(&error))))?;
            tracing::info!(bookie = name, address, "bookie serves");
            bookies.push(Some(bookie));
        }
        Ok(Arc::new(Mutex::new(bookies)))
    }

    /// Where the gRPC front is reached.
    pub fn endpoint(&self) -> String {
        self.front.endpoint.clone()
    }

    /// The object store's URL.
    pub fn cold_store(&self) -> &str {
        &self.cold_store
    }

    /// The replicating client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// How the demo creates ledgers: three copies, acknowledged by two, CRC-32C.
    pub async fn create_ledger(&self) -> Result<LedgerWriter, Fault> {
        let quorums = Quorums::new(3, 3, 2).map_err(failed)?;
        let options =
            CreateOptions { quorums, digest: DigestType::Crc32c, password: Password::default(), custom: Vec::new() };
        self.client.create(options).await.map_err(failed)
    }

    /// The bookies' directories.
    pub fn bookie_dirs(&self) -> Vec<PathBuf> {
        (1..=COPIES).map(|number| self.settings.dir.join(format!("bookie-{number}"))).collect()
    }

    /// The size of a journal segment.
    pub fn segment_bytes(&self) -> u64 {
        self.settings.bookie.segment_bytes.bytes()
    }

    /// Resolves with the cause when a critical task has died.
    pub fn failed(&self) -> impl Future<Output = String> + use<> {
        let root = self.tasks.root.clone();
        async move { root.failed().await }
    }

    /// Why bookies take no adds, one sentence for each that does not; empty when all is well.
    pub async fn read_only_bookies(&self) -> Vec<String> {
        let bookies = self.bookies.lock().await;
        let refusals = bookies.iter().flatten().filter_map(|bookie| match bookie.stats().state {
            BookieState::Writable => None,
            BookieState::ReadOnly { reason, .. } => Some(format!("{} takes no entries: {reason}", bookie.id())),
        });
        refusals.collect()
    }

    /// Stops one bookie (0, 1 or 2), as for maintenance. Stopping it again does nothing.
    pub async fn stop_bookie(&self, index: usize) -> Result<(), Fault> {
        let taken = self.bookies.lock().await.get_mut(index).and_then(Option::take);
        match taken {
            Some(bookie) => bookie.stop(STOP_DEADLINE).await.map_err(failed),
            None => Ok(()),
        }
    }

    /// Stops all bookies; what is released stays readable.
    pub async fn stop_bookies(&self) -> Result<(), Fault> {
        for index in 0..COPIES as usize {
            self.stop_bookie(index).await?;
        }
        Ok(())
    }

    /// Serves until Ctrl-C, SIGTERM or the death of a critical task, then stops in order.
    ///
    /// # Errors
    /// The cause, when it was a task's death; or what would not stop in time.
    pub async fn run_until_interrupted(self) -> Result<(), Fault> {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .map_err(|error| Fault::failed(format!("listen for SIGTERM: {error}")))?;
        let died = tokio::select! {
            _ = tokio::signal::ctrl_c() => None,
            _ = terminate.recv() => None,
            cause = self.failed() => Some(cause),
        };
        match died {
            None => self.stop().await,
            Some(cause) => {
                let _ = self.stop().await;
                Err(Fault::failed(format!("the node stopped: {cause}")))
            }
        }
    }

    /// Stops every role in order: open ledgers are closed, then front, client and bookies stop.
    pub async fn stop(self) -> Result<(), Fault> {
        // A ledger that cannot be closed now is recovered when somebody closes it: no reason to keep the node from stopping.
        if let Err(error) = self.front.gateway.close_writers(STOP_DEADLINE).await {
            tracing::warn!(error = chain(&error), "some ledgers stay open");
        }
        self.tasks.front.stop(STOP_DEADLINE).await.map_err(failed)?;
        self.tasks.client.stop(STOP_DEADLINE).await.map_err(failed)?;
        self.stop_bookies().await?;
        self.tasks.root.stop(STOP_DEADLINE).await.map_err(failed)
    }
}

/// What the roles share: the configured memory less what each bookie keeps for itself, its write buffer and its index cache.
fn shared_bytes(settings: &Settings) -> Result<u64, Fault> {
    let kept = COPIES * (settings.bookie.write_buffer_bytes.bytes() + settings.bookie.index_cache_bytes.bytes());
    let needed = kept + SHARED_BYTES_MIN;
    let all = settings.memory_max.bytes();
    if all < needed {
        let (all, needed) = (output::bytes(all), output::bytes(needed));
        return Err(Fault::usage(format!(
            "memory_max is {all}, at least {needed} is needed: raise it, or lower bookie.write_buffer_bytes and bookie.index_cache_bytes"
        )));
    }
    Ok(all - kept)
}

fn failed(error: impl std::error::Error) -> Fault {
    Fault::failed(chain(&error))
}

fn usage(error: impl std::error::Error) -> Fault {
    Fault::usage(chain(&error))
}
