//! Open cold objects: their footers, cached by bytes.

use std::sync::Arc;
use std::time::Duration;

use cold::{ColdStore, ObjectReader};
use common::budget::{ByteBudget, BytePermit};
use common::shutdown::TaskTree;
use ledger::{ColdRecord, LedgerId};
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::flights::Flights;
use crate::metrics::Metrics;
use crate::quiet::quietly;

/// While a footer is parsed, its bytes and what becomes of them are in memory together.
const PARSE_FACTOR: u64 = 4;

/// An object whose footer is in memory. What it takes is charged to a budget for as long as it lives.
#[derive(Debug)]
pub struct OpenObject {
    reader: ObjectReader,
    object: Uuid,
    _permit: BytePermit,
}

impl OpenObject {
    /// The reader of the object.
    pub fn reader(&self) -> &ObjectReader {
        &self.reader
    }

    /// The object's identity.
    pub fn object(&self) -> Uuid {
        self.object
    }
}

/// Opens objects, and keeps them open while there is room. Cheap to clone; clones are the same cache.
///
/// An object is opened in a task of its own, however many wait for it: who waits may go away or not be polled for a while.
#[derive(Clone)]
pub struct ObjectCache {
    shared: Arc<Shared>,
    flights: Flights<Uuid, Arc<OpenObject>>,
    /// Of those whose indexes are charged to a reserve.
    reserved: Flights<Uuid, Arc<OpenObject>>,
}

struct Shared {
    store: ColdStore,
    instance_id: String,
    cache: Cache<Uuid, Arc<OpenObject>>,
    budget: ByteBudget,
    memory_timeout: Duration,
    metrics: Metrics,
}

impl ObjectCache {
    /// A cache of the objects of one cluster in one store. Half of `budget` is for footers that are kept, the other half for
    /// footers being read. Its tasks run in `tasks`.
    pub fn new(
        store: ColdStore,
        instance_id: impl Into<String>,
        budget: ByteBudget,
        memory_timeout: Duration,
        tasks: TaskTree,
    ) -> Self {
        Self::with_metrics(store, instance_id, budget, memory_timeout, tasks, Metrics::new())
    }

    pub(crate) fn with_metrics(
        store: ColdStore,
        instance_id: impl Into<String>,
        budget: ByteBudget,
        memory_timeout: Duration,
        tasks: TaskTree,
        metrics: Metrics,
    ) -> Self {
        let cache = Cache::builder()
            .name("gateway footers")
            .max_capacity(budget.limit_bytes() / 2)
            .weigher(|_, object: &Arc<OpenObject>| u32::try_from(object.reader.memory_bytes()).unwrap_or(u32::MAX))
            .eviction_policy(EvictionPolicy::lru())
            .build();
        let shared = Shared { store, instance_id: instance_id.into(), cache, budget, memory_timeout, metrics };
        let flights = Flights::new("open object", tasks.clone());
        Self { shared: Arc::new(shared), flights, reserved: Flights::new("open object with reserve", tasks) }
    }

    /// The object that a ledger's cold record names. However many ask at once, it is opened once. Cancel-safe.
    ///
    /// # Errors
    /// Damage, an unreachable store, or no room; the message names the object.
    pub async fn open(&self, ledger: LedgerId, record: &ColdRecord) -> Result<Arc<OpenObject>> {
        if let Some(object) = quietly(self.shared.cache.get(&record.object)).await {
            return Ok(object);
        }
        self.join(ledger, record, None).await
    }

    /// As [`ObjectCache::open`], for those who must not wait for memory that others use up: then the footer is charged to `reserve`,
    /// and is not kept.
    ///
    /// # Errors
    /// Damage, or an unreachable store.
    pub(crate) async fn open_with_reserve(
        &self,
        ledger: LedgerId,
        record: &ColdRecord,
        reserve: &ByteBudget,
    ) -> Result<Arc<OpenObject>> {
        if let Some(object) = quietly(self.shared.cache.get(&record.object)).await {
            return Ok(object);
        }
        if let Some(permit) = self.shared.budget.try_acquire(opening_bytes(record)) {
            return self.join(ledger, record, Some(permit)).await;
        }
        // Who is under way in the common memory may be waiting for it.
        let (_, opened) = self.reserved.join_or_begin(record.object, |wanted| {
            let (shared, record, reserve) = (Arc::clone(&self.shared), record.clone(), reserve.clone());
            async move {
                let permit = wanted.room(&reserve, opening_bytes(&record)).await?;
                Box::pin(shared.read(ledger, &record, permit)).await
            }
        });
        opened.await
    }

    /// Joins those who wait for an object, or opens it and keeps it.
    async fn join(&self, ledger: LedgerId, record: &ColdRecord, permit: Option<BytePermit>) -> Result<Arc<OpenObject>> {
        let (_, opened) = self.flights.join_or_begin(record.object, |_| {
            let (shared, record) = (Arc::clone(&self.shared), record.clone());
            async move { Box::pin(shared.open(ledger, &record, permit)).await }
        });
        opened.await
    }
}

impl Shared {
    async fn open(&self, ledger: LedgerId, record: &ColdRecord, permit: Option<BytePermit>) -> Result<Arc<OpenObject>> {
        // It may have been opened between the caller's look into the cache and the start of this.
        if let Some(object) = quietly(self.cache.get(&record.object)).await {
            return Ok(object);
        }
        let permit = match permit {
            Some(permit) => permit,
            None => self.admit(record).await?,
        };
        let opened = self.read(ledger, record, permit).await?;
        quietly(self.cache.insert(record.object, Arc::clone(&opened))).await;
        Ok(opened)
    }

    async fn admit(&self, record: &ColdRecord) -> Result<BytePermit> {
        let bytes = opening_bytes(record);
        if let Some(permit) = self.budget.try_acquire(bytes) {
            return Ok(permit);
        }
        // Evictions happen lazily; what has been evicted must give its bytes back now.
        quietly(self.cache.run_pending_tasks()).await;
        let admitted = tokio::time::timeout(self.memory_timeout, self.budget.acquire(bytes)).await;
        admitted.map_err(|_| no_room(&self.budget))
    }

    async fn read(&self, ledger: LedgerId, record: &ColdRecord, mut permit: BytePermit) -> Result<Arc<OpenObject>> {
        if record.store_id != self.store.store_id() {
            let key = record.object_key(&self.instance_id, ledger);
            let (theirs, ours) = (record.store_id, self.store.store_id());
            let message =
                format!("read object {key}: it lies in cold store {theirs}, this gateway is set up for store {ours}");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let reader = ObjectReader::open(&self.store, &self.instance_id, ledger, record).await?;
        permit.shrink_to(reader.memory_bytes());
        self.metrics.object_opened();
        Ok(Arc::new(OpenObject { reader, object: record.object, _permit: permit }))
    }
}

/// What opening an object takes.
fn opening_bytes(record: &ColdRecord) -> u64 {
    u64::from(record.footer_bytes).saturating_mul(PARSE_FACTOR)
}

/// The error of a wait for memory that took too long.
pub(crate) fn no_room(budget: &ByteBudget) -> Error {
    let message = format!("wait for memory: the budget {:?} is used up; try again later", budget.name());
    Error::new(ErrorKind::Exhausted, message)
}
