//! Dropping ledgers that live elsewhere, under the locks that all who change replicas share.
//!
//! A worker of auto-recovery writes the entries first, and names their new place in metadata afterwards: in between this bookie holds
//! what metadata does not name yet. So *gone* is decided only while this bookie holds the ledger's lock, on metadata that was read by
//! proof under it, and not while the ledger is marked as lacking replicas. Who recovers without the lock is covered by the hour for
//! which recovery adds are kept.
//!
//! # Cost
//! For each ledger the hint that brought it here and two proofs; for each [`LOCKED_TOGETHER`] of them a lease, two transactions of
//! locks, a keep-alive and one more in each third of the lease's life, and the end of the lease, which gives all locks back.
//!
//! # Crash and failure
//! The locks end with the lease, of themselves if need be. Whatever fails before the verdict keeps the ledgers.

use std::time::Duration;

use futures::StreamExt as _;
use ledger::{LedgerId, LedgerState};
use metadata::{LeaseId, RepairLock};
use tokio::time::Instant;

use super::{ASK_CONCURRENCY, CollectReport, Collector, judge, no_verdict};
use crate::error::Error;
use crate::ledger_state::{Tombstone, Verdict};

/// Ledgers whose locks are held at the same time.
const LOCKED_TOGETHER: usize = 128;

/// What is told of a ledger whose lock is held.
enum Found {
    Verdict(Verdict),
    Keep,
    Marked,
}

impl Collector {
    /// Drops those of `gone` that are proved to live elsewhere.
    pub(super) async fn drop_elsewhere(&self, gone: &[LedgerId], report: &mut CollectReport) -> Result<(), Error> {
        // Before the first lock: those of another cluster are not this bookie's to take.
        if !gone.is_empty() && !self.is_my_cluster(report).await {
            report.ledgers_unknown += gone.len() as u64;
            return Ok(());
        }
        let mut batches = gone.chunks(LOCKED_TOGETHER);
        while !report.cut_short
            && !self.tasks.is_stopping()
            && let Some(batch) = batches.next()
        {
            // A lease that nobody waits for any more ends by itself.
            let granted = self.metadata.grant_lease(self.lease_ttl());
            let lease = match self.tasks.token().run_until_cancelled(granted).await {
                None => {
                    report.ledgers_unknown += batch.len() as u64;
                    report.cut_short = true;
                    break;
                }
                Some(Ok(lease)) => lease,
                Some(Err(error)) => {
                    nothing_known(batch.len(), &error, report);
                    continue;
                }
            };
            let done = self.drop_under(batch, lease, report).await;
            if let Err(error) = self.metadata.revoke(lease).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "locks of ledgers end by themselves");
            }
            done?;
        }
        let left: usize = batches.map(<[LedgerId]>::len).sum();
        report.cut_short |= left > 0;
        report.ledgers_unknown += left as u64;
        Ok(())
    }

    fn lease_ttl(&self) -> Duration {
        self.store.config.registration_ttl.duration()
    }

    async fn drop_under(&self, batch: &[LedgerId], lease: LeaseId, report: &mut CollectReport) -> Result<(), Error> {
        // Locks that were taken meanwhile end with the lease, which is given back in any case.
        let locked = self.tasks.token().run_until_cancelled(self.repair.lock(batch, &self.me, lease)).await;
        let locked = match locked {
            None => {
                report.ledgers_unknown += batch.len() as u64;
                report.cut_short = true;
                return Ok(());
            }
            Some(Ok(locked)) => locked,
            Some(Err(error)) => {
                nothing_known(batch.len(), &error, report);
                return Ok(());
            }
        };
        report.ledgers_locked += locked.held.len() as u64;
        // To take them may have taken most of its life.
        if !locked.taken.is_empty()
            && let Err(error) = self.metadata.keep_alive(lease).await
        {
            nothing_known(locked.taken.len(), &error, report);
            return Ok(());
        }
        let verdicts = self.prove_elsewhere(locked.taken, lease, report).await;
        if verdicts.is_empty() {
            return Ok(());
        }
        // What stays of them here until its segment goes is still read, and tells how far the ledger is confirmed. Before the last look at
        // the lease, because it waits for the disk.
        let gone = verdicts.iter().filter(|verdict| verdict.tombstone == Tombstone::Gone);
        let ends: Vec<_> = gone.map(|verdict| (verdict.ledger, verdict.last)).collect();
        let mine = self.is_my_cluster(report).await;
        if mine {
            self.store.confirm_ends(&ends).await?;
        }
        // Asked last: whoever has the lease now had the locks while metadata was read.
        if !mine || self.metadata.keep_alive(lease).await.is_err() {
            report.ledgers_unknown += verdicts.len() as u64;
            return Ok(());
        }
        self.decide(&verdicts, report).await
    }

    async fn prove_elsewhere(
        &self,
        locks: Vec<RepairLock>,
        lease: LeaseId,
        report: &mut CollectReport,
    ) -> Vec<Verdict> {
        let mut left = locks.len() as u64;
        let ask = async |lock: RepairLock| self.prove_one(lock.ledger).await;
        let mut answers = futures::stream::iter(locks).map(ask).buffer_unordered(ASK_CONCURRENCY);
        let mut verdicts = Vec::new();
        let pause = self.lease_ttl() / 3;
        let mut kept = Instant::now();
        while let Some(found) = self.next_answer(&mut answers, report).await {
            left -= 1;
            match found {
                Ok(Found::Verdict(verdict)) => verdicts.push(verdict),
                Ok(Found::Keep) => {}
                Ok(Found::Marked) => report.ledgers_marked += 1,
                Err((ledger, error)) => no_verdict(ledger, &error, report),
            }
            if kept.elapsed() >= pause {
                if let Err(error) = self.metadata.keep_alive(lease).await {
                    nothing_known(verdicts.len(), &error, report);
                    verdicts.clear();
                    break;
                }
                kept = Instant::now();
            }
        }
        report.ledgers_unknown += left;
        verdicts.sort_by_key(|verdict| verdict.ledger);
        verdicts
    }

    async fn prove_one(&self, ledger: LedgerId) -> Result<Found, (LedgerId, metadata::Error)> {
        let both = futures::try_join!(self.ledgers.get_quorum(ledger), self.repair.is_marked(ledger));
        let (record, marked) = both.map_err(|error| (ledger, error))?;
        Ok(match judge(record.as_ref().map(|record| &record.metadata), &self.me) {
            Some(Tombstone::Gone) if marked => Found::Marked,
            Some(tombstone) => {
                let last = record.and_then(|record| match record.metadata.state() {
                    LedgerState::Closed { last_entry, .. } => last_entry,
                    _ => None,
                });
                Found::Verdict(Verdict { ledger, tombstone, last })
            }
            None => Found::Keep,
        })
    }
}

/// So many ledgers are kept, since there is no lock of them.
fn nothing_known(ledgers: usize, error: &metadata::Error, report: &mut CollectReport) {
    report.ledgers_unknown += ledgers as u64;
    report.cut_short |= error.kind() == metadata::ErrorKind::Unavailable;
    tracing::debug!(error = error as &dyn std::error::Error, "no locks of ledgers");
}
