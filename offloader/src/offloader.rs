use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};

use cold::ColdStore;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::metrics::Set;
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::{BookieId, LedgerId};
use metadata::{Attempts, Bookies, Catalog, ColdShards, InstanceId, Ledgers, MetadataStore, ReleaseRequests};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, oneshot};
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, Wanted};
use crate::metrics::Metrics;
use crate::owner::Owner;
use crate::plan::{Plan, Why};
use crate::report::Counters;
use crate::seen::{Requested, Seen};
use crate::waiting::Waiting;
use crate::{EntrySource, OffloadReport, OffloaderConfig, ReleaseProbe, StepObserver, Tallies};

/// What an offloader is made of.
pub struct OffloaderParts {
    /// The cluster's metadata.
    pub metadata: Arc<dyn MetadataStore>,
    /// Where objects go.
    pub cold: ColdStore,
    /// The cluster's identity, which is part of every object key.
    pub instance_id: InstanceId,
    /// Where entries come from.
    pub entries: Arc<dyn EntrySource>,
    /// How a release is proved.
    pub probe: Arc<dyn ReleaseProbe>,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub rng: Rng,
    /// The process' memory; the offloader takes its own limit out of it.
    pub budget: ByteBudget,
    /// Where its tasks live; it stops when they are asked to.
    pub tasks: TaskTree,
    /// Sees every step; [`crate::NoObserver`] outside of tests.
    pub observer: Arc<dyn StepObserver>,
}

/// The tiering worker. Cheap to clone; clones are the same worker.
#[derive(Clone)]
pub struct Offloader {
    pub(crate) inner: Arc<Inner>,
}

/// The registered bookies, and whether each sends readers on to the cold tier.
pub(crate) type Relaying = Arc<BTreeMap<BookieId, bool>>;

pub(crate) struct Inner {
    pub(crate) config: OffloaderConfig,
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) ledgers: Ledgers,
    pub(crate) bookies: Bookies,
    /// Which bookies relay, and when that was looked up.
    pub(crate) relaying: AsyncMutex<Option<(Instant, Relaying)>>,
    pub(crate) attempts: Attempts,
    pub(crate) catalog: Catalog,
    pub(crate) cold: ColdStore,
    pub(crate) instance_id: InstanceId,
    pub(crate) entries: Arc<dyn EntrySource>,
    pub(crate) probe: Arc<dyn ReleaseProbe>,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) budget: ByteBudget,
    pub(crate) tasks: TaskTree,
    pub(crate) observer: Arc<dyn StepObserver>,
    pub(crate) owner: Owner,
    pub(crate) seen: Seen,
    pub(crate) release_requests: ReleaseRequests,
    /// What bookies asked for when it was last looked.
    pub(crate) requested: Requested,
    /// Whether releases wait for gateways.
    pub(crate) waiting: Waiting,
    pub(crate) cold_shards: ColdShards,
    /// Members for which the cluster is known to have named cold ids.
    pub(crate) names_ensured: AtomicU32,
    pub(crate) counters: Counters,
    pub(crate) metrics: Metrics,
    /// One job at a time for each ledger: whoever comes second waits, and finds the work done.
    turns: Mutex<BTreeMap<LedgerId, Arc<AsyncMutex<()>>>>,
    /// Jobs at a time.
    slots: Semaphore,
}

impl Offloader {
    /// A worker that does nothing yet: see [`Offloader::start`] and [`Offloader::offload_now`].
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when the settings cannot work.
    pub fn new(parts: OffloaderParts, config: OffloaderConfig) -> Result<Self> {
        config.validate()?;
        let release_requests = ReleaseRequests::new(Arc::clone(&parts.metadata));
        let cold_shards = ColdShards::new(Arc::clone(&parts.metadata));
        let owner = Owner::new(Arc::clone(&parts.metadata), parts.rng.clone(), config.owner_ttl.duration());
        let inner = Inner {
            ledgers: Ledgers::new(Arc::clone(&parts.metadata)),
            bookies: Bookies::new(Arc::clone(&parts.metadata)),
            relaying: AsyncMutex::default(),
            attempts: Attempts::new(Arc::clone(&parts.metadata)),
            catalog: Catalog::new(Arc::clone(&parts.metadata)),
            store: parts.metadata,
            cold: parts.cold,
            instance_id: parts.instance_id,
            entries: parts.entries,
            probe: parts.probe,
            clock: parts.clock,
            rng: parts.rng,
            budget: parts.budget.child("offloader", config.memory_max.bytes()),
            tasks: parts.tasks,
            observer: parts.observer,
            owner,
            seen: Seen::default(),
            release_requests,
            requested: Requested::default(),
            waiting: Waiting::default(),
            cold_shards,
            names_ensured: AtomicU32::new(0),
            counters: Counters::default(),
            metrics: Metrics::new(),
            turns: Mutex::default(),
            slots: Semaphore::new(config.ledgers_in_flight),
            config,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Starts the tasks that keep the lease alive and look for work. Call once.
    pub fn start(&self) {
        let inner = Arc::clone(&self.inner);
        let keep_alive = async move {
            inner.owner.keep_alive(inner.tasks.clone()).await;
            Ok::<(), Error>(())
        };
        self.inner.tasks.spawn_critical("offloader-lease", keep_alive);
        let inner = Arc::clone(&self.inner);
        let scans = async move {
            inner.scan_until_stopped().await;
            Ok::<(), Error>(())
        };
        self.inner.tasks.spawn_critical("offloader-scan", scans);
    }

    /// Settles a closed ledger now, whatever the policy says, and releases it if asked to. Finishes what was begun before, and
    /// answers at once for a ledger that is there already. A ledger without entries is reported as hot: nothing to offload.
    ///
    /// Dropping the future does not stop the work.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn offload_now(&self, ledger: LedgerId, release: bool) -> Result<OffloadReport> {
        let (answer, answered) = oneshot::channel();
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.spawn("offload", async move {
            // The caller may have gone; the work is done all the same.
            let _ = answer.send(inner.run(ledger, Wanted::Now { release }).await);
        });
        let stopped = || Error::of_ledger(ErrorKind::Stopped, "offload", ledger, "the offloader is stopping");
        let report = answered.await.map_err(|_| stopped())??;
        let refuse = |kind, why: Why| Err(Error::of_ledger(kind, "offload", ledger, why.text()));
        match &report.end {
            Plan::Nothing(why @ Why::Open) => refuse(ErrorKind::NotClosed, *why),
            Plan::Nothing(why @ (Why::NoDigest | Why::FormatTooOld)) => refuse(ErrorKind::Unsuitable, *why),
            Plan::Nothing(why @ (Why::BadColdRecord | Why::NoColdRecord)) => refuse(ErrorKind::Damaged, *why),
            Plan::HeldByOther(owner) => {
                Err(Error::of_ledger(ErrorKind::Busy, "offload", ledger, format_args!("{owner} is settling it")))
            }
            _ => Ok(report),
        }
    }

    /// The worker's metrics. They keep nothing of it alive.
    pub fn metrics(&self) -> Set {
        Metrics::shown(&self.inner)
    }

    /// What was done since this worker was made.
    pub fn tallies(&self) -> Tallies {
        self.inner.counters.tallies()
    }

    /// What releases wait for; `None` when they do not.
    pub fn releases_wait_for(&self) -> Option<String> {
        self.inner.waiting.why()
    }

    /// Jobs between claim and commit.
    pub fn running(&self) -> u64 {
        self.inner.counters.running.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The memory its jobs use.
    pub fn budget(&self) -> &ByteBudget {
        &self.inner.budget
    }
}

impl Inner {
    /// One job for a ledger, when its turn has come, within the deadline and until the process stops.
    pub(crate) async fn run(&self, ledger: LedgerId, wanted: Wanted) -> Result<OffloadReport> {
        let turn = self.turn(ledger);
        let work = async {
            let _turn = turn.lock().await;
            let _slot = self.slots.acquire().await.map_err(|_| self.stopped(ledger))?;
            Box::pin(Job { at: self, ledger }.run(wanted)).await
        };
        let deadline = self.config.ledger_deadline.duration();
        let done = self.tasks.token().run_until_cancelled(tokio::time::timeout(deadline, work)).await;
        drop(turn);
        self.lock_turns().retain(|_, turn| Arc::strong_count(turn) > 1);
        let result = match done {
            None => Err(self.stopped(ledger)),
            Some(Err(_)) => {
                let why = format_args!("given up after {}", self.config.ledger_deadline);
                Err(Error::of_ledger(ErrorKind::Timeout, "offload", ledger, why))
            }
            Some(Ok(result)) => result,
        };
        self.metrics.job_ended(&result);
        if result.as_ref().is_err_and(|error| error.kind() != ErrorKind::Waiting) {
            Counters::add(&self.counters.failed, 1);
        }
        result
    }

    fn stopped(&self, ledger: LedgerId) -> Error {
        Error::of_ledger(ErrorKind::Stopped, "offload", ledger, "the offloader is stopping")
    }

    fn turn(&self, ledger: LedgerId) -> Arc<AsyncMutex<()>> {
        Arc::clone(self.lock_turns().entry(ledger).or_default())
    }

    fn lock_turns(&self) -> std::sync::MutexGuard<'_, BTreeMap<LedgerId, Arc<AsyncMutex<()>>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
