//! Row groups of cold objects in memory.
//!
//! [`BlockTable`] is the seam where a better table can take the place of [`MokaBlocks`]: a cache weighed by bytes, evicting what
//! was used longest ago.
//!
//! # Single flight
//! However many readers ask for a row group, one fetch is under way. It runs in a task of its own: it goes on when those who
//! asked for it have gone away, and its result is kept.
//!
//! # Memory
//! A fetch takes a permit for the encoded and the decoded bytes together before its GET and gives back what decoding left over;
//! the block keeps the rest until it is dropped. The cache holds less than the budget: the *headroom* between the two is for
//! fetches, so a fetch finds room without anything having to be evicted for it. A fetch that is larger than the headroom, or that
//! has waited because other users of the parent budget hold it, empties the cache, and until it is admitted nothing is kept.
//! Fetches hold nothing while they wait, and readers must not hold a block while they wait for another: so the wait ends.
//!
//! # Failures
//! An error answers all who wait, and is not kept.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cold::{EntryRead, GroupInfo, Row, RowGroup};
use common::budget::{ByteBudget, BytePermit};
use common::shutdown::TaskTree;
use ledger::EntryId;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::flights::{Boarding, Flights};
use crate::metrics::{Lookup, Metrics};
use crate::objects::{OpenObject, no_room};
use crate::quiet::quietly;

/// The most that is kept free of cached blocks, if the budget allows it: a row group of the largest size, encoded and decoded.
const HEADROOM_BYTES_MAX: u64 = 96 << 20;

/// How long a fetch waits for memory before it has the cache emptied.
const PATIENCE: Duration = Duration::from_secs(1);

/// A decoded row group, charged to a budget for as long as it lives.
pub struct Block {
    group: RowGroup,
    _permit: BytePermit,
}

impl Deref for Block {
    type Target = RowGroup;

    fn deref(&self) -> &RowGroup {
        &self.group
    }
}

/// One row, with the memory it lies in charged to a budget.
pub struct HeldRow {
    row: Row,
    _held: Held,
}

enum Held {
    Block(#[expect(dead_code, reason = "held for its permit")] Arc<Block>),
    Permit(#[expect(dead_code, reason = "held for its bytes")] BytePermit),
}

impl Deref for HeldRow {
    type Target = Row;

    fn deref(&self) -> &Row {
        &self.row
    }
}

/// Gives row groups.
///
/// Implementations MUST fetch a row group once however many callers wait for it, MUST take its bytes from a budget before they
/// are allocated, and MUST finish a fetch whose callers have gone away. Callers MUST NOT hold a block while they wait for another.
#[async_trait]
pub trait BlockTable: Send + Sync + 'static {
    /// The row group at place `group` of an object. Cancel-safe.
    ///
    /// # Errors
    /// Damage, an unreachable store, or no room in time; the message names the object.
    async fn block(&self, object: &Arc<OpenObject>, group: usize) -> Result<Arc<Block>>;

    /// The row of one entry, from its row group if that is in memory, else from the pages it needs; `None` when the object's
    /// entries do not include it. Cancel-safe.
    ///
    /// # Errors
    /// As [`BlockTable::block`].
    async fn row(&self, object: &Arc<OpenObject>, entry: EntryId) -> Result<Option<HeldRow>>;

    /// The row of one entry if its row group is in memory. Fetches nothing. Cancel-safe.
    ///
    /// # Errors
    /// Damage.
    async fn cached_row(&self, object: &Arc<OpenObject>, entry: EntryId) -> Result<Option<HeldRow>>;

    /// Room for `bytes` that are no block, if there is some and nobody waits for it.
    fn try_room(&self, bytes: u64) -> Option<BytePermit>;

    /// Begins to fetch a row group that will be asked for soon. Only if that takes nothing from anyone; else nothing happens.
    fn prefetch(&self, object: &Arc<OpenObject>, group: usize);
}

type Key = (Uuid, usize);

/// The block table over a `moka` cache.
#[derive(Clone)]
pub struct MokaBlocks {
    shared: Arc<Table>,
    flights: Flights<Key, Arc<Block>>,
}

struct Table {
    cache: Cache<Key, Arc<Block>>,
    budget: ByteBudget,
    headroom_bytes: u64,
    /// Fetches that need the cached blocks' memory too.
    starving: AtomicUsize,
    memory_timeout: Duration,
    metrics: Metrics,
}

impl MokaBlocks {
    /// A table within `budget`. `memory_timeout` is how long a fetch waits for room; its tasks run in `tasks`.
    pub fn new(budget: ByteBudget, memory_timeout: Duration, tasks: TaskTree) -> Self {
        Self::with_metrics(budget, memory_timeout, tasks, Metrics::new())
    }

    pub(crate) fn with_metrics(
        budget: ByteBudget,
        memory_timeout: Duration,
        tasks: TaskTree,
        metrics: Metrics,
    ) -> Self {
        let headroom_bytes = HEADROOM_BYTES_MAX.min(budget.limit_bytes() / 2);
        let cache = Cache::builder()
            .name("gateway blocks")
            .max_capacity(budget.limit_bytes() - headroom_bytes)
            .weigher(|_, block: &Arc<Block>| u32::try_from(block.memory_bytes()).unwrap_or(u32::MAX))
            // A frequency sketch would turn away a block that was fetched ahead: nobody has asked for it yet.
            .eviction_policy(EvictionPolicy::lru())
            .build();
        let starving = AtomicUsize::new(0);
        let table = Table { cache, budget, headroom_bytes, starving, memory_timeout, metrics };
        Self { shared: Arc::new(table), flights: Flights::new("fetch row group", tasks) }
    }

    /// The fetch of a row group that is under way, or a new one, which is paid for by `permit` if there is one.
    fn join_or_fetch(
        &self,
        object: &Arc<OpenObject>,
        group: usize,
        permit: Option<BytePermit>,
    ) -> impl Future<Output = Result<Arc<Block>>> + Send + 'static {
        let (table, object) = (Arc::clone(&self.shared), Arc::clone(object));
        let (boarding, block) = self
            .flights
            .join_or_begin((object.object(), group), move |_| async move { table.fetch(&object, group, permit).await });
        self.shared.metrics.looked_up(match boarding {
            Boarding::Joined => Lookup::Joined,
            Boarding::Began => Lookup::Miss,
        });
        block
    }

    /// Memory of the row groups that are kept, give or take what is being evicted. Keeps nothing alive.
    pub(crate) fn cached_bytes(&self) -> impl Fn() -> Option<f64> + Send + Sync + use<> {
        let table = Arc::downgrade(&self.shared);
        move || Some(table.upgrade()?.cache.weighted_size() as f64)
    }
}

#[async_trait]
impl BlockTable for MokaBlocks {
    async fn block(&self, object: &Arc<OpenObject>, group: usize) -> Result<Arc<Block>> {
        if let Some(block) = quietly(self.shared.cache.get(&(object.object(), group))).await {
            self.shared.metrics.looked_up(Lookup::Hit);
            return Ok(block);
        }
        self.join_or_fetch(object, group, None).await
    }

    async fn row(&self, object: &Arc<OpenObject>, entry: EntryId) -> Result<Option<HeldRow>> {
        let Some(info) = object.reader().group_of(entry) else { return Ok(None) };
        if let Some(row) = self.cached_row(object, entry).await? {
            return Ok(Some(row));
        }
        let Some(mut bytes) = object.reader().entry_bytes(entry) else {
            let block = self.block(object, info.index).await?;
            let row = block.entry(entry)?;
            return Ok(row.map(|row| HeldRow { row, _held: Held::Block(block) }));
        };
        loop {
            // Given back before more is asked for: nobody waits for memory with memory in hand.
            let permit = self.shared.admit(bytes).await?;
            match object.reader().read_entry_within(entry, bytes).await? {
                EntryRead::Row(row) => return Ok(Some(HeldRow { row, _held: Held::Permit(permit) })),
                EntryRead::Needs(more) => bytes = more,
            }
        }
    }

    async fn cached_row(&self, object: &Arc<OpenObject>, entry: EntryId) -> Result<Option<HeldRow>> {
        let Some(info) = object.reader().group_of(entry) else { return Ok(None) };
        let cached = quietly(self.shared.cache.get(&(object.object(), info.index))).await;
        let Some(block) = cached else { return Ok(None) };
        self.shared.metrics.looked_up(Lookup::Hit);
        let row = block.entry(entry)?;
        Ok(row.map(|row| HeldRow { row, _held: Held::Block(block) }))
    }

    fn try_room(&self, bytes: u64) -> Option<BytePermit> {
        // Over the limit a request is charged the limit, which would be less than it takes.
        (bytes <= self.shared.budget.limit_bytes()).then(|| self.shared.budget.try_acquire(bytes))?
    }

    fn prefetch(&self, object: &Arc<OpenObject>, group: usize) {
        let key = (object.object(), group);
        let Some(info) = object.reader().row_groups().get(group) else { return };
        if self.shared.cache.contains_key(&key) || self.flights.contains(&key) {
            return;
        }
        // Never from what others wait for, and never so much that it would have to push out what is cached.
        let bytes = fetch_cost(info);
        if bytes > self.shared.headroom_bytes {
            return;
        }
        let Some(permit) = self.shared.budget.try_acquire(bytes) else { return };
        // The task goes on alone; nobody has to wait for it.
        drop(self.join_or_fetch(object, group, Some(permit)));
    }
}

/// Encoded and decoded bytes are in memory together for a moment.
fn fetch_cost(info: &GroupInfo) -> u64 {
    info.fetch_bytes().saturating_add(info.decoded_bytes)
}

/// Counts one starving fetch.
struct Starving<'a>(&'a AtomicUsize);

impl<'a> Starving<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Starving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Table {
    async fn fetch(&self, object: &OpenObject, group: usize, permit: Option<BytePermit>) -> Result<Arc<Block>> {
        let key = (object.object(), group);
        // Another fetch may have ended between the caller's look into the cache and the start of this one.
        if let Some(block) = quietly(self.cache.get(&key)).await {
            return Ok(block);
        }
        let Some(info) = object.reader().row_groups().get(group) else {
            let message = format!("read object {}: it has no row group {group}", object.reader().key());
            return Err(Error::new(ErrorKind::Internal, message));
        };
        let began = Instant::now();
        let fetched = async {
            let permit = match permit {
                Some(permit) => permit,
                None => self.admit(fetch_cost(info)).await?,
            };
            Ok::<_, Error>((permit, object.reader().read_group(group).await?))
        };
        let fetched = fetched.await;
        self.metrics.fetched(fetched.is_ok().then(|| info.fetch_bytes()), began.elapsed());
        let (mut permit, group) = fetched?;
        permit.shrink_to(group.memory_bytes());
        let block = Arc::new(Block { group, _permit: permit });
        if self.starving.load(Ordering::SeqCst) == 0 {
            quietly(self.cache.insert(key, Arc::clone(&block))).await;
            // Without this, what the new block pushed out would keep its bytes until somebody uses the cache.
            quietly(self.cache.run_pending_tasks()).await;
        }
        Ok(block)
    }

    async fn admit(&self, bytes: u64) -> Result<BytePermit> {
        if let Some(permit) = self.budget.try_acquire(bytes) {
            return Ok(permit);
        }
        quietly(self.cache.run_pending_tasks()).await;
        if bytes <= self.headroom_bytes
            && let Ok(permit) = tokio::time::timeout(PATIENCE, self.budget.acquire(bytes)).await
        {
            return Ok(permit);
        }
        let _starving = Starving::new(&self.starving);
        self.metrics.cache_emptied();
        self.cache.invalidate_all();
        quietly(self.cache.run_pending_tasks()).await;
        tokio::time::timeout(self.memory_timeout, self.budget.acquire(bytes)).await.map_err(|_| no_room(&self.budget))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
