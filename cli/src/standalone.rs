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
use client::{Client, CreateOptions, LedgerWriter};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{Connector, Listener as _, TcpListener};
use common::rng::Rng;
use common::shutdown::TaskTree;
use guard::Guard;
use ledger::{BookieId, DigestType, Password, Quorums};
use metadata::MetadataStore;
use offloader::{NoObserver, StepObserver};
use tokio::sync::Mutex;

use crate::admin::{self, Admin};
use crate::fault::chain;
use crate::roles::compose::{self, ClientOf};
use crate::roles::{self, Signals, Watched, door, front};
use crate::{Fault, Settings};

mod serve;
mod status;

/// Bookies of a standalone node, and copies of each entry.
pub const COPIES: u64 = 3;
/// How long an orderly stop may take, each part of it.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// A running node.
pub struct Node {
    settings: Settings,
    front: serve::Front,
    cold_store: String,
    client: Client,
    bookies: status::SharedBookies,
    watched: Watched,
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
        Self::start_observed(settings, Arc::new(NoObserver)).await
    }

    /// The same with an observer of the offloader's steps.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn start_observed(settings: Settings, observer: Arc<dyn StepObserver>) -> Result<Self, Fault> {
        let clock = Clock::system();
        let rng = Rng::from_os();
        let root = TaskTree::root("standalone");
        let memory = Memory::divide(&settings)?;
        door::fits(&settings.guard, &settings.connect)?;
        let (connector, connecting) = door::connector(&settings.connect, &clock).await?;
        let guard = door::guard(&settings.guard, &settings.bookie_host, &clock).await?;
        let budget = ByteBudget::new("node", memory.charged);

        let front_listener = front::bind(&settings.listen).await?;
        let cold_ids = roles::bind_bookkeeper(&settings.bookkeeper_listen, &settings.listen).await?;
        let watched = Watched::start("standalone", &root, &settings.admin, &settings.listen).await?;
        watched.admin.metrics.add(connecting);
        let cold_url = settings.cold_url()?;
        tokio::fs::create_dir_all(&settings.dir).await.map_err(|error| {
            Fault::usage(format!("data folder {}: {error}; choose another with --dir", settings.dir.display()))
        })?;

        let metadata_uri = format!("embedded:{}", settings.dir.join("metadata").display());
        let (metadata, instance) = compose::metadata(&metadata_uri, &rng, &watched.admin.metrics).await?;
        let cold = compose::cold(&cold_url, &rng, &watched.admin.metrics).await?;

        let of_bookies = OfBookies {
            guard: guard.as_ref(),
            connector: &connector,
            metadata: &metadata,
            clock: &clock,
            rng: &rng,
            budget: &budget,
        };
        let bookies = Self::start_bookies(&settings, of_bookies, &root).await?;
        let client_tasks = root.child("client");
        let of = ClientOf {
            metadata: metadata.clone(),
            clock: &clock,
            rng: &rng,
            budget: &budget,
            bytes: memory.client,
            tasks: client_tasks.clone(),
            metrics: &watched.admin.metrics,
            connector: connector.clone(),
        };
        let client = compose::client(of, settings.client.clone());
        let front = root.child("front");
        let cold_ids = cold_ids.map(|listener| door::guarded(guard.as_ref(), Box::new(listener), &front));
        let parts = serve::FrontParts {
            listener: front_listener,
            cold_ids,
            connector,
            metadata,
            instance,
            cold,
            client: client.clone(),
            bookies: bookies.clone(),
            clock,
            rng,
            budget,
            tasks: front.clone(),
            observer,
        };
        let front_service = serve::start(&settings, parts).await?;
        for bookie in bookies.lock().await.iter().flatten() {
            watched.admin.watch_bookie(bookie);
        }
        watched.admin.metrics.add(front_service.metrics.clone());
        watched.admin.metrics.add(Guard::metrics(guard.as_ref()));
        watched.admin.metrics.add(admin::metrics::budgets(&front_service.budgets));
        watched.admin.health.ready();
        Ok(Self {
            settings,
            front: front_service,
            cold_store: cold_url.to_string(),
            client,
            bookies,
            watched,
            tasks: Tasks { root, front, client: client_tasks },
        })
    }

    async fn start_bookies(
        settings: &Settings,
        of: OfBookies<'_>,
        root: &TaskTree,
    ) -> Result<status::SharedBookies, Fault> {
        let OfBookies { guard, connector, metadata, clock, rng, budget } = of;
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
                connector: connector.clone(),
                listener: door::guarded(guard, Box::new(listener), root),
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

    /// Where metrics and health are served, unless that is off.
    pub fn admin_address(&self) -> Option<&str> {
        self.watched.address.as_deref()
    }

    /// Metrics and health, also where they are not served.
    pub fn admin(&self) -> &Admin {
        &self.watched.admin
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
        let died = Signals::listen()?.wait(&self.tasks.root).await;
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
        self.watched.admin.health.stopping();
        let stopped = self.stop_roles().await;
        self.watched.stop(STOP_DEADLINE).await.map_err(failed)?;
        stopped
    }

    async fn stop_roles(&self) -> Result<(), Fault> {
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

/// What the bookies of a node share.
struct OfBookies<'a> {
    guard: Option<&'a Arc<Guard>>,
    connector: &'a Arc<dyn Connector>,
    metadata: &'a Arc<dyn MetadataStore>,
    clock: &'a Clock,
    rng: &'a Rng,
    budget: &'a ByteBudget,
}

/// How the node's memory is divided.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    /// What requests of all roles are charged to: everything but what each bookie keeps for itself.
    charged: u64,
    /// The client's part: what the configured parts of the other roles leave.
    client: u64,
}

impl Memory {
    /// Divides `memory_max` so that the parts together are not more than the whole. No role can then wait for memory that another
    /// role holds while it waits for the first: a full cache of the gateway never stands in the way of an add.
    fn divide(settings: &Settings) -> Result<Self, Fault> {
        let bookie = &settings.bookie;
        let kept = COPIES * (bookie.write_buffer_bytes.bytes() + bookie.index_cache_bytes.bytes());
        let bookies = COPIES * bookie.request_bytes();
        let others = kept + bookies + roles::gateway_memory(&settings.gateway) + settings.offloader.memory_max.bytes();
        let all = settings.memory_max.bytes();
        let client = compose::client_bytes(all, others, "bookie, gateway and offloader")?;
        Ok(Self { charged: all - kept, client })
    }
}

/// Whether the parts of a node's memory fit it.
#[cfg(test)]
pub(crate) fn check_memory(settings: &Settings) -> Result<(), Fault> {
    Memory::divide(settings).map(|_| ())
}

fn failed(error: impl std::error::Error) -> Fault {
    Fault::failed(chain(&error))
}

fn usage(error: impl std::error::Error) -> Fault {
    Fault::usage(chain(&error))
}

#[cfg(test)]
mod tests {
    use config::ByteSize;

    use super::*;

    #[test]
    fn the_default_memory_is_divided_without_a_remainder() {
        let settings = Settings::default();
        let memory = Memory::divide(&settings).unwrap();
        assert_eq!(memory, Memory { charged: 440 << 20, client: 49 << 20 });
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_with_the_sum() {
        let settings = Settings { memory_max: ByteSize::mib(256), ..Settings::default() };
        let fault = Memory::divide(&settings).unwrap_err();
        assert!(
            fault.to_string().contains("memory_max is 256.0 MiB, but the parts of the roles come to 511.0 MiB"),
            "{fault}"
        );
        assert_eq!(fault.exit_code(), 2);
    }
}
