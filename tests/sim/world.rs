//! What all parts of a run share, and the clients in it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{Client, ClientConfig, ClientParts};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::rng::Rng;
use common::shutdown::TaskTree;
use config::Span;
use metadata::{FaultRates, FaultyStore, MemoryStore, MetadataStore};

use crate::history::History;
use crate::net::SimNet;
use crate::store::NodeStore;
use crate::trace::Trace;

/// The longest that any one request may take, retries inside it included.
const REQUEST_LIMIT: Duration = Duration::from_secs(120);

/// What all parts share. Clones are the same world.
#[derive(Clone)]
pub struct World {
    pub trace: Trace,
    pub history: History,
    pub net: SimNet,
    pub metadata: Arc<dyn MetadataStore>,
    pub clock: Clock,
    /// Where parts get their own randomness from.
    pub rng: Rng,
    over: Arc<AtomicBool>,
}

impl World {
    pub fn new(seed: u64, trace: &Trace) -> Self {
        let rng = Rng::seeded(seed);
        let rates = FaultRates {
            fail_before: 5,
            applied_unknown: 10,
            not_applied_unknown: 10,
            fail_read: 5,
            delay: 10,
            delay_max: Duration::from_millis(500),
        };
        Self {
            trace: trace.clone(),
            history: History::new(trace),
            net: SimNet::new(rng.fork()),
            metadata: Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), rng.fork(), rates)),
            clock: Clock::following(1_700_000_000_000),
            rng,
            over: Arc::default(),
        }
    }

    /// Whether the parts should come to an end.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub fn end(&self) {
        self.trace.note("the faults are over");
        self.over.store(true, Ordering::Relaxed);
    }

    /// A client process.
    pub fn client(&self, name: &str) -> SimClient {
        let store = NodeStore::new(self.metadata.clone(), self.rng.fork());
        let tasks = TaskTree::root(name);
        let parts = ClientParts {
            metadata: store.clone(),
            connector: self.net.connector(name),
            clock: self.clock.clone(),
            rng: self.rng.fork(),
            budget: ByteBudget::new("client", 64 << 20),
            tasks: tasks.clone(),
        };
        let config =
            ClientConfig { add_timeout: Span::secs(2), read_timeout: Span::secs(2), ..ClientConfig::default() };
        SimClient { client: Client::new(parts, config), store, tasks }
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

/// A client and what belongs to its process.
pub struct SimClient {
    pub client: Client,
    pub store: Arc<NodeStore>,
    tasks: TaskTree,
}

impl SimClient {
    /// The process dies.
    pub fn kill(&self) {
        self.store.kill();
        self.tasks.ask_to_stop();
    }
}

impl Drop for SimClient {
    fn drop(&mut self) {
        self.kill();
    }
}
