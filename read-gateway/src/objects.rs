//! Open cold objects: their footers, cached by bytes.

use std::sync::Arc;
use std::time::Duration;

use cold::{ColdStore, ObjectReader};
use common::budget::{ByteBudget, BytePermit};
use ledger::{ColdRecord, LedgerId};
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
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

/// Opens objects, and keeps them open while there is room.
pub struct ObjectCache {
    store: ColdStore,
    instance_id: String,
    cache: Cache<Uuid, Arc<OpenObject>>,
    budget: ByteBudget,
    memory_timeout: Duration,
    metrics: Metrics,
}

impl ObjectCache {
    /// A cache of the objects of one cluster in one store. Half of `budget` is for footers that are kept, the other half for
    /// footers being read.
    pub fn new(store: ColdStore, instance_id: impl Into<String>, budget: ByteBudget, memory_timeout: Duration) -> Self {
        let cache = Cache::builder()
            .name("gateway footers")
            .max_capacity(budget.limit_bytes() / 2)
            .weigher(|_, object: &Arc<OpenObject>| u32::try_from(object.reader.memory_bytes()).unwrap_or(u32::MAX))
            .eviction_policy(EvictionPolicy::lru())
            .build();
        Self { store, instance_id: instance_id.into(), cache, budget, memory_timeout, metrics: Metrics::new() }
    }

    pub(crate) fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// The object that a ledger's cold record names. However many ask at once, it is opened once.
    ///
    /// # Errors
    /// Damage, an unreachable store, or no room; the message names the object.
    pub async fn open(&self, ledger: LedgerId, record: &ColdRecord) -> Result<Arc<OpenObject>> {
        if let Some(object) = quietly(self.cache.get(&record.object)).await {
            return Ok(object);
        }
        // In a box, because it is large and rare.
        let opening = Box::pin(self.cache.try_get_with(record.object, async {
            let permit = self.admit(record).await?;
            self.read(ledger, record, permit).await
        }));
        let opened = quietly(opening).await;
        opened.map_err(|error| Error::clone(&error))
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
        if let Some(object) = quietly(self.cache.get(&record.object)).await {
            return Ok(object);
        }
        match self.budget.try_acquire(opening_bytes(record)) {
            Some(permit) => {
                let opening = Box::pin(self.cache.try_get_with(record.object, self.read(ledger, record, permit)));
                quietly(opening).await.map_err(|error| Error::clone(&error))
            }
            None => {
                let permit = reserve.acquire(opening_bytes(record)).await;
                Box::pin(self.read(ledger, record, permit)).await
            }
        }
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
