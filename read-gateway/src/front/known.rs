//! What is known of ledgers that are served: kept for a while, because clients ask for one entry at a time.

use std::sync::Arc;
use std::time::Duration;

use ledger::LedgerId;
use moka::future::Cache;
use tokio::sync::Semaphore;

use crate::cold_tier::bodies::ColdLedger;
use crate::error::{ErrorKind, Result};
use crate::quiet::quietly;
use crate::reading::Tiers;

/// How long a ledger is served without a look at its metadata, and so the longest that a deleted one is.
const KEPT: Duration = Duration::from_secs(60);
/// A ledger takes about half a KiB.
const LEDGERS_MAX: u64 = 16 * 1024;
/// Proofs by quorum at a time: they cost the metadata store most, and whoever asks for ledgers that do not exist causes them.
const PROOFS_MAX: usize = 16;

/// See the module.
pub(super) struct KnownLedgers {
    tiers: Arc<Tiers>,
    cache: Cache<LedgerId, Arc<ColdLedger>>,
    proofs: Semaphore,
}

impl KnownLedgers {
    pub(super) fn new(tiers: Arc<Tiers>) -> Self {
        let cache = Cache::builder().name("gateway cold ledgers").max_capacity(LEDGERS_MAX).time_to_live(KEPT).build();
        Self { tiers, cache, proofs: Semaphore::new(PROOFS_MAX) }
    }

    /// A ledger, from what is kept or by a look at its metadata. Only a hint that it can be served is taken for an answer.
    ///
    /// # Errors
    /// `NotFound` with a proof; `Unavailable` for a ledger that the cold tier does not have; those of the metadata.
    pub(super) async fn get(&self, ledger: LedgerId) -> Result<Arc<ColdLedger>> {
        if let Some(known) = quietly(self.cache.get(&ledger)).await {
            return Ok(known);
        }
        if let Some(record) = self.tiers.ledgers.get(ledger).await?
            && let Ok(known) = ColdLedger::of(ledger, &record)
        {
            return Ok(self.keep(known).await);
        }
        self.prove(ledger).await
    }

    /// A ledger by a quorum read of its metadata. What was known stays until a proof replaces it: metadata that is away takes no
    /// ledger away.
    ///
    /// # Errors
    /// As [`KnownLedgers::get`].
    pub(super) async fn prove(&self, ledger: LedgerId) -> Result<Arc<ColdLedger>> {
        // The semaphore is never closed.
        let _turn = self.proofs.acquire().await.ok();
        let proven = match self.tiers.proven_record(ledger).await {
            Ok(record) => ColdLedger::of(ledger, &record),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(error),
            Err(error) => return Err(error),
        };
        match proven {
            Ok(known) => Ok(self.keep(known).await),
            Err(error) => {
                quietly(self.cache.invalidate(&ledger)).await;
                Err(error)
            }
        }
    }

    async fn keep(&self, known: ColdLedger) -> Arc<ColdLedger> {
        let known = Arc::new(known);
        quietly(self.cache.insert(known.id, Arc::clone(&known))).await;
        known
    }
}
