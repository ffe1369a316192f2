//! A job: reads the ledger, decides, does the step that is due, and looks again, until nothing is left to do.

use std::error::Error as StdError;
use std::future::Future;

use ledger::{ColdRecord, LedgerId, LedgerMetadata};
use metadata::{AttemptError, AttemptRecord, LedgerRecord};
use tracing::Instrument as _;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::{Step, Verdict};
use crate::offloader::Inner;
use crate::plan::{self, AttemptFacts, Facts, Order, Plan};
use crate::report::{Counters, OffloadReport};

/// How often a job looks at its ledger before it gives way to whoever keeps changing it.
const ROUNDS_MAX: usize = 8;

/// On whose word a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Policy,
    Now { release: bool },
}

pub(crate) struct Job<'a> {
    pub(crate) at: &'a Inner,
    pub(crate) ledger: LedgerId,
}

impl Job<'_> {
    pub(crate) async fn run(&self, wanted: Wanted) -> Result<OffloadReport> {
        let span = tracing::info_span!("offload", ledger_id = self.ledger.get());
        Box::pin(self.rounds(wanted)).instrument(span).await
    }

    async fn rounds(&self, wanted: Wanted) -> Result<OffloadReport> {
        let started = self.at.clock.now();
        let (mut uploaded, mut released) = (false, false);
        for _ in 0..ROUNDS_MAX {
            let (attempt, record) = self.step(Step::ReadLedger, self.read()).await?;
            let Some(record) = record else {
                // Its entries are to be forgotten; what was written of them is condemned.
                if let Some(attempt) = &attempt
                    && !self.is_held_by_other(attempt).await?
                {
                    self.step(Step::Abandon, self.abandon(attempt)).await?;
                }
                return Err(Error::of_ledger(ErrorKind::NoSuchLedger, "offload", self.ledger, "it does not exist"));
            };
            match self.decide(&record.metadata, attempt.as_ref(), wanted).await? {
                Plan::AbandonAttempt => {
                    if let Some(attempt) = &attempt {
                        self.step(Step::Abandon, self.abandon(attempt)).await?;
                    }
                }
                Plan::Settle => uploaded |= self.settle(record, attempt).await?,
                Plan::Release => released |= Box::pin(self.release(record, wanted)).await?,
                end => {
                    return Ok(OffloadReport {
                        ledger: self.ledger,
                        tier: record.metadata.tier(),
                        uploaded,
                        released,
                        cold: ColdRecord::from_metadata(&record.metadata).ok().flatten(),
                        partly_released_until_ms: record.metadata.partly_released_until(),
                        end,
                        elapsed: self.at.clock.now() - started,
                    });
                }
            }
        }
        Err(Error::of_ledger(ErrorKind::Busy, "offload", self.ledger, "its record keeps changing"))
    }

    /// Reads attempt and record by proof. The attempt first: a commit ends it and changes the record at once, so a record read
    /// after an attempt that had ended shows the commit.
    async fn read(&self) -> Result<(Option<AttemptRecord>, Option<LedgerRecord>)> {
        let failed = |error| Error::metadata("read metadata of", self.ledger, error);
        let attempt = self.at.attempts.get(self.ledger).await.map_err(failed)?;
        let record = self.at.ledgers.get_quorum(self.ledger).await.map_err(failed)?;
        Ok((attempt, record))
    }

    async fn decide(&self, metadata: &LedgerMetadata, attempt: Option<&AttemptRecord>, wanted: Wanted) -> Result<Plan> {
        let attempt = match attempt {
            None => None,
            Some(record) => {
                let held_by_other = self.is_held_by_other(record).await?;
                Some(AttemptFacts { owner: &record.attempt.owner, held_by_other })
            }
        };
        let now = self.at.clock.now();
        let sight = self.at.seen.get(self.ledger);
        let facts = Facts {
            metadata,
            attempt,
            closed_since: sight.closed_since,
            settled_since: sight.settled_since,
            is_requested: self.at.requested.has(self.ledger),
            now,
            wall_ms: self.at.clock.wall_ms(),
        };
        let order = match wanted {
            Wanted::Policy => Order::Policy(&self.at.config),
            Wanted::Now { release } => Order::Now { release },
        };
        Ok(plan::decide(&facts, order))
    }

    /// Whether another process owns the attempt and shows that it lives.
    async fn is_held_by_other(&self, record: &AttemptRecord) -> Result<bool> {
        let owner = record.attempt.owner.as_str();
        if self.at.owner.is_me(owner) {
            return Ok(false);
        }
        let lives = self.at.attempts.owner_lives(owner).await;
        lives.map_err(|error| Error::metadata("look up who settles", self.ledger, error))
    }

    /// Marks an attempt that will never be committed. One that has ended by then is none.
    pub(crate) async fn abandon(&self, attempt: &AttemptRecord) -> Result<()> {
        let refuse = |kind, error: metadata::Error| {
            let object = &attempt.attempt.key;
            Error::of_ledger(kind, "abandon attempt to settle", self.ledger, format_args!("object {object}"))
                .caused_by(error)
        };
        match self.at.attempts.abandon(attempt).await {
            Ok(()) => {
                Counters::add(&self.at.counters.abandoned, 1);
                tracing::info!(object = attempt.attempt.key, "attempt abandoned; its object is condemned");
                Ok(())
            }
            Err(AttemptError::Lost) => Ok(()),
            Err(AttemptError::NotDone(error)) => Err(refuse(ErrorKind::Unavailable, error)),
            Err(AttemptError::Unknown(error)) => Err(refuse(ErrorKind::Unknown, error)),
            Err(AttemptError::Busy(record)) => {
                let why = format_args!("{} is settling it", record.attempt.owner);
                Err(Error::of_ledger(ErrorKind::Busy, "abandon attempt to settle", self.ledger, why))
            }
        }
    }

    /// Does a step under its span, with the observer asked before and after.
    pub(crate) async fn step<T>(&self, step: Step, work: impl Future<Output = Result<T>>) -> Result<T> {
        let halted = |when: &str| {
            let why = format_args!("halted {when} {}", step.name());
            Err(Error::of_ledger(ErrorKind::Halted, "offload", self.ledger, why))
        };
        if self.at.observer.before(self.ledger, step).await == Verdict::Halt {
            return halted("before");
        }
        let began = self.at.clock.now();
        let span = tracing::debug_span!("step", step = step.name());
        let done = work.instrument(span).await.inspect_err(|error| {
            self.at.metrics.step_failed(step);
            tracing::debug!(step = step.name(), error = error as &dyn StdError, "step failed");
        })?;
        self.at.metrics.step_done(step, self.at.clock.now() - began);
        if self.at.observer.after(self.ledger, step).await == Verdict::Halt {
            return halted("after");
        }
        Ok(done)
    }
}
