//! What all parts of a run share, and what belongs to one process in it.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use client::{Client, ClientConfig, ClientParts};
use cold::{ColdStore, FaultStore, StoreOptions};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::retry::RetryPolicy;
use common::rng::Rng;
use common::shutdown::TaskTree;
use config::Span;
use ledger::LedgerId;
use metadata::{Cluster, FaultyStore, InstanceId, MemoryStore, MetadataStore};
use object_store::memory::InMemory;

use crate::bookies::Node;
use crate::disk::Honesty;
use crate::history::History;
use crate::net::SimConnector;
use crate::store::{Letters, RemoteStore};
use crate::trace::Trace;

/// Storage nodes.
pub const BOOKIES: usize = 3;
/// The longest that any one request may take, retries inside it included.
const REQUEST_LIMIT: Duration = Duration::from_secs(120);
/// The wall clock when a run begins.
const WALL_MS: u64 = 1_700_000_000_000;

/// What all parts share. Clones are the same world.
#[derive(Clone)]
pub struct World {
    pub trace: Trace,
    pub history: History,
    /// Where parts get their own randomness from.
    pub rng: Rng,
    /// The metadata itself, for those who judge; everyone else asks over the network.
    pub truth: Arc<MemoryStore>,
    /// The metadata that loses answers, once its host runs.
    pub metadata_faults: Arc<OnceLock<Arc<FaultyStore>>>,
    /// Requests and answers of metadata under way.
    pub letters: Letters,
    /// The object store, which fails where it is told to.
    pub objects: FaultStore,
    /// The same objects without faults, for those who judge.
    pub sound_objects: FaultStore,
    attempts: Arc<Mutex<BTreeSet<LedgerId>>>,
    pub nodes: Arc<[Node; BOOKIES]>,
    /// Whether the gateway serves.
    pub gateway_serves: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl World {
    pub fn new(seed: u64, honesty: Honesty, trace: &Trace) -> Self {
        let inner = Arc::new(InMemory::new());
        Self {
            trace: trace.clone(),
            history: History::new(trace),
            rng: Rng::seeded(seed),
            truth: Arc::new(MemoryStore::new()),
            metadata_faults: Arc::default(),
            letters: Letters::default(),
            objects: FaultStore::new(inner.clone()),
            sound_objects: FaultStore::new(inner),
            attempts: Arc::default(),
            nodes: Arc::new(std::array::from_fn(|number| Node::new(number, honesty))),
            gateway_serves: Arc::default(),
            over: Arc::default(),
        }
    }

    /// Ledgers for which the offloader's process has an attempt open.
    pub fn attempts(&self) -> MutexGuard<'_, BTreeSet<LedgerId>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the parts should come to an end.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub fn end(&self) {
        self.trace.note("the faults are over");
        self.over.store(true, Ordering::Relaxed);
    }

    /// A new process of the host that runs.
    pub fn process(&self, name: &str) -> Process {
        let elapsed = turmoil::sim_elapsed().unwrap_or_default();
        let wall_ms = WALL_MS + u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        Process {
            rng: self.rng.fork(),
            clock: Clock::following(wall_ms),
            tasks: TaskTree::root(name),
            metadata: RemoteStore::new(self.letters.clone()),
            objects: self.objects.clone(),
        }
    }

    /// Waits for a request that must end; `None`, and a violation, when it does not.
    pub async fn within<T>(&self, what: &str, request: impl Future<Output = T>) -> Option<T> {
        let answer = tokio::time::timeout(REQUEST_LIMIT, request).await;
        if answer.is_err() {
            self.history.violation(8, format!("{what}: no answer within {REQUEST_LIMIT:?}"));
        }
        answer.ok()
    }

    pub async fn pause(&self, rng: &Rng, millis: std::ops::Range<u64>) {
        let millis = millis.start + rng.below(millis.end - millis.start);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// What a process is made of. All of it ends with the process.
pub struct Process {
    pub rng: Rng,
    pub clock: Clock,
    pub tasks: TaskTree,
    pub metadata: Arc<dyn MetadataStore>,
    objects: FaultStore,
}

impl Process {
    /// A client.
    pub fn client(&self) -> Client {
        let parts = ClientParts {
            metadata: self.metadata.clone(),
            connector: Arc::new(SimConnector),
            clock: self.clock.clone(),
            rng: self.rng.fork(),
            budget: ByteBudget::new("client", 64 << 20),
            tasks: self.tasks.clone(),
        };
        let config =
            ClientConfig { add_timeout: Span::secs(2), read_timeout: Span::secs(2), ..ClientConfig::default() };
        Client::new(parts, config)
    }

    /// Its way to the object store.
    pub fn cold(&self) -> ColdStore {
        self.objects.cold_store(store_options(), self.rng.fork())
    }

    /// The cluster's identity, once metadata tells it.
    pub async fn instance(&self) -> InstanceId {
        loop {
            if let Ok(Some(instance)) = Cluster::open(&*self.metadata).await {
                return instance;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Small parts, so that uploads have several, and little patience.
pub fn store_options() -> StoreOptions {
    let retry = RetryPolicy {
        initial: Duration::from_millis(50),
        factor: 2.0,
        max: Duration::from_millis(500),
        deadline: Duration::from_secs(3),
    };
    StoreOptions { retry, part_bytes: 32 << 10, ..StoreOptions::default() }
}
