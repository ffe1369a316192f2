//! A process's way to the metadata store: it takes time, it can be cut, and it dies with the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::rng::Rng;
use metadata::{
    CommitError, Committed, Error, ErrorKind, Key, LeaseId, MetadataStore, Transaction, Versioned, WatchStream,
};

/// See the module.
pub struct NodeStore {
    inner: Arc<dyn MetadataStore>,
    rng: Rng,
    reachable: AtomicBool,
    alive: AtomicBool,
}

impl NodeStore {
    pub fn new(inner: Arc<dyn MetadataStore>, rng: Rng) -> Arc<Self> {
        Arc::new(Self { inner, rng, reachable: AtomicBool::new(true), alive: AtomicBool::new(true) })
    }

    /// Makes every call fail for now, or work again.
    pub fn set_reachable(&self, reachable: bool) {
        self.reachable.store(reachable, Ordering::Relaxed);
    }

    /// The process has died: nothing it still does may be seen by others. A commit that is on its way may arrive.
    pub fn kill(&self) {
        self.alive.store(false, Ordering::Relaxed);
    }

    async fn travel(&self) -> Result<(), Error> {
        tokio::time::sleep(Duration::from_micros(200 + self.rng.below(2_000))).await;
        if self.alive.load(Ordering::Relaxed) && self.reachable.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "reach metadata: simulated outage"))
    }

    /// The way back: the answer may be lost though the work is done.
    async fn back(&self) -> Result<(), Error> {
        self.travel().await
    }
}

#[async_trait]
impl MetadataStore for NodeStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.travel().await?;
        let found = self.inner.get(key).await?;
        self.back().await?;
        Ok(found)
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.travel().await?;
        let found = self.inner.get_quorum(key).await?;
        self.back().await?;
        Ok(found)
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        self.travel().await.map_err(CommitError::Unknown)?;
        let outcome = self.inner.commit(transaction).await;
        self.back().await.map_err(CommitError::Unknown)?;
        outcome
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        self.travel().await?;
        self.inner.list(prefix, after, limit).await
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        self.travel().await?;
        self.inner.watch(prefix).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        self.travel().await?;
        self.inner.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        self.travel().await?;
        self.inner.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.travel().await?;
        self.inner.revoke(lease).await
    }
}
