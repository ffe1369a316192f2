//! Dropping ledgers that live elsewhere, under the locks that all who change replicas share.
//!
//! A worker of auto-recovery writes the entries first, and names their new place in metadata afterwards: in between this bookie holds
//! what metadata does not name yet. So *gone* is decided only while this bookie holds the ledger's lock, on metadata that was read by
//! proof under it, and not while the ledger is marked as lacking replicas. Who recovers without the lock is covered by the hour for
//! which recovery adds are kept.
//!
//! # Cost
//! For each ledger the hint that brought it here and two proofs; for each [`LOCKED_TOGETHER`] of them a lease, two transactions of
//! locks, and the end of the lease, which gives all locks back.
//!
//! # Crash and failure
//! The locks end with the lease, of themselves if need be. Whatever fails before the verdict keeps the ledgers.

use futures::StreamExt as _;
use ledger::LedgerId;
use metadata::{LeaseId, RepairLock};

use super::{ASK_CONCURRENCY, CollectReport, Collector, judge};
use crate::error::Error;
use crate::ledger_state::{Tombstone, Verdict};

/// Ledgers whose locks are held at the same time.
const LOCKED_TOGETHER: usize = 128;

/// What is told of a ledger whose lock is held.
enum Found {
    Verdict(Verdict),
    Keep,
    Marked,
    Unknown,
}

impl Collector {
    /// Drops those of `gone` that are proved to live elsewhere.
    pub(super) async fn drop_elsewhere(&self, gone: &[LedgerId], report: &mut CollectReport) -> Result<(), Error> {
        for batch in gone.chunks(LOCKED_TOGETHER) {
            let lease = match self.metadata.grant_lease(self.store.config.registration_ttl.duration()).await {
                Ok(lease) => lease,
                Err(error) => {
                    report.ledgers_unknown += batch.len() as u64;
                    tracing::debug!(error = &error as &dyn std::error::Error, "no lease for locks of ledgers");
                    continue;
                }
            };
            let done = self.drop_under(batch, lease, report).await;
            if let Err(error) = self.metadata.revoke(lease).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "locks of ledgers end by themselves");
            }
            done?;
        }
        Ok(())
    }

    async fn drop_under(&self, batch: &[LedgerId], lease: LeaseId, report: &mut CollectReport) -> Result<(), Error> {
        let locked = match self.repair.lock(batch, &self.me, lease).await {
            Ok(locked) => locked,
            Err(error) => {
                report.ledgers_unknown += batch.len() as u64;
                tracing::debug!(error = &error as &dyn std::error::Error, "no locks of ledgers");
                return Ok(());
            }
        };
        report.ledgers_locked += locked.held.len() as u64;
        let verdicts = self.prove_elsewhere(locked.taken, report).await;
        if verdicts.is_empty() {
            return Ok(());
        }
        let mine = self.is_my_cluster().await;
        // Asked last: whoever has the lease now had the locks while metadata was read.
        if !mine || self.metadata.keep_alive(lease).await.is_err() {
            report.ledgers_unknown += verdicts.len() as u64;
            return Ok(());
        }
        self.decide(&verdicts, report).await
    }

    async fn prove_elsewhere(&self, locks: Vec<RepairLock>, report: &mut CollectReport) -> Vec<Verdict> {
        let ask = async |lock: RepairLock| self.prove_one(lock.ledger).await;
        let mut answers = futures::stream::iter(locks).map(ask).buffer_unordered(ASK_CONCURRENCY);
        let mut verdicts = Vec::new();
        while let Some(found) = answers.next().await {
            match found {
                Found::Verdict(verdict) => verdicts.push(verdict),
                Found::Keep => {}
                Found::Marked => report.ledgers_marked += 1,
                Found::Unknown => report.ledgers_unknown += 1,
            }
        }
        verdicts.sort_by_key(|verdict| verdict.ledger);
        verdicts
    }

    async fn prove_one(&self, ledger: LedgerId) -> Found {
        let (record, marked) = futures::join!(self.ledgers.get_quorum(ledger), self.repair.is_marked(ledger));
        let (record, marked) = match (record, marked) {
            (Ok(record), Ok(marked)) => (record, marked),
            (Err(error), _) | (_, Err(error)) => {
                tracing::debug!(%ledger, error = &error as &dyn std::error::Error, "no verdict");
                return Found::Unknown;
            }
        };
        match judge(record.as_ref().map(|record| &record.metadata), &self.me) {
            Some(Tombstone::Gone) if marked => Found::Marked,
            Some(tombstone) => Found::Verdict(Verdict { ledger, tombstone }),
            None => Found::Keep,
        }
    }
}
