//! One read of a range of entries, from whichever tier has them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use common::budget::{ByteBudget, BytePermit};
use ledger::{EntryId, LedgerId, Password};
use metadata::{LedgerRecord, Ledgers};
use proto::v1;
use tokio::time::Instant;

use crate::batch::{Batch, Filled, Room};
use crate::cold_tier::ColdTier;
use crate::error::{Error, ErrorKind, Result};
use crate::hot_tier::{HotRead, HotTier};
use crate::metrics::Metrics;
use crate::objects::no_room;
use crate::route::{Refusal, Shape, Situation, Source, Step, Wanted, route};

/// Everything a read needs; shared by all reads of a gateway.
pub(crate) struct Tiers {
    pub(crate) ledgers: Ledgers,
    pub(crate) hot: Arc<dyn HotTier>,
    pub(crate) cold: ColdTier,
    pub(crate) send_budget: ByteBudget,
    pub(crate) read_timeout: Duration,
    pub(crate) memory_timeout: Duration,
    pub(crate) metrics: Metrics,
}

impl Tiers {
    /// A ledger's record.
    ///
    /// # Errors
    /// `NotFound` only with a proof.
    pub(crate) async fn record(&self, ledger: LedgerId) -> Result<LedgerRecord> {
        match self.ledgers.get(ledger).await? {
            Some(record) => Ok(record),
            None => self.proven_record(ledger).await,
        }
    }

    /// A ledger's record, by quorum.
    pub(crate) async fn proven_record(&self, ledger: LedgerId) -> Result<LedgerRecord> {
        let found = self.ledgers.get_quorum(ledger).await?;
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("ledger {ledger} does not exist")))
    }

    /// The entry after the last one that may be read.
    async fn readable_end(&self, ledger: LedgerId, record: &LedgerRecord) -> Result<EntryId> {
        let last = if record.metadata.is_closed() {
            record.metadata.last_entry()
        } else {
            self.hot.last_confirmed(ledger, &record.metadata).await?
        };
        Ok(last.map_or(EntryId::ZERO, EntryId::next))
    }
}

/// Reads an id from a message.
pub(crate) fn ledger_id(id: u64) -> Result<LedgerId> {
    LedgerId::new(id).ok_or_else(|| Error::new(ErrorKind::Invalid, format!("ledger id {id} is above {}", i64::MAX)))
}

fn entry_id(id: u64) -> Result<EntryId> {
    EntryId::new(id).ok_or_else(|| Error::new(ErrorKind::Invalid, format!("entry id {id} is above {}", i64::MAX)))
}

/// Lets in whoever knows the ledger's password; a ledger without one is open to all.
pub(crate) fn check_password(ledger: LedgerId, record: &LedgerRecord, shown: &[u8]) -> Result<()> {
    let shown = Password::new(shown.to_vec());
    match record.metadata.password() {
        Some(password) if !password.is_empty() && !password.ct_eq(&shown) => {
            Err(Error::new(ErrorKind::Denied, format!("the password is not that of ledger {ledger}")))
        }
        _ => Ok(()),
    }
}

/// A batch and the permit for its bytes.
pub(crate) struct Permitted {
    pub(crate) batch: Batch,
    pub(crate) permit: BytePermit,
}

/// A read under way.
pub(crate) struct Reading {
    tiers: Arc<Tiers>,
    ledger: LedgerId,
    record: LedgerRecord,
    /// What is left to read.
    left: Range<EntryId>,
    wanted: Wanted,
    shape: Shape,
    proven: Option<Source>,
    hot: Option<HotRead>,
}

impl Reading {
    /// Checks a request against the ledger.
    pub(crate) async fn open(tiers: Arc<Tiers>, start: &v1::ReadStart) -> Result<Self> {
        let ledger = ledger_id(start.ledger_id)?;
        let first = entry_id(start.first_entry_id)?;
        let end = start.end_entry_id.map(entry_id).transpose()?;
        if let Some(end) = end
            && end < first
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("read entries {first}..{end}: the end is before the start"),
            ));
        }
        if start.follow {
            return Err(Error::new(ErrorKind::Unsupported, "following the tail of an open ledger is not served yet"));
        }
        let wanted = match v1::Tier::try_from(start.tier) {
            Ok(v1::Tier::Unspecified) => Wanted::Any,
            Ok(v1::Tier::Hot) => Wanted::Only(Source::Hot),
            Ok(v1::Tier::Cold) => Wanted::Only(Source::Cold),
            Err(_) => return Err(Error::new(ErrorKind::Invalid, format!("there is no tier number {}", start.tier))),
        };
        let mut record = tiers.record(ledger).await?;
        check_password(ledger, &record, &start.password)?;
        let mut readable = tiers.readable_end(ledger, &record).await?;
        if first.max(end.unwrap_or(first)) > readable && !record.metadata.is_closed() {
            // The record was a hint: the ledger may have been closed since.
            record = tiers.proven_record(ledger).await?;
            readable = tiers.readable_end(ledger, &record).await?;
        }
        let end = end.unwrap_or(first.max(readable));
        if end > readable || first > readable {
            return Err(out_of_range(ledger, &record, first..end, readable));
        }
        let shape = if end.since(first) == 1 { Shape::Point } else { Shape::Scan };
        Ok(Self { tiers, ledger, record, left: first..end, wanted, shape, proven: None, hot: None })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left.start >= self.left.end
    }

    /// Lets go of everything that takes memory; the next batch gets it again.
    pub(crate) fn release(&mut self) {
        self.hot = None;
    }

    /// The next batch, with at least one entry; `is_done` is false. Cancel-safe.
    ///
    /// # Errors
    /// The error of the first tier that missed, once there is nothing left to try.
    pub(crate) async fn next_batch(&mut self, credit_bytes: u64) -> Result<Permitted> {
        let mut misses: Vec<(Source, Error)> = Vec::new();
        let mut changed = false;
        loop {
            let sources: Vec<Source> = misses.iter().map(|(source, _)| *source).collect();
            let step = route(Situation {
                tier: self.record.metadata.tier(),
                wanted: self.wanted,
                shape: self.shape,
                proven: self.proven,
                misses: &sources,
                changed,
            });
            let source = match step {
                Step::Read(source) => source,
                Step::Refuse(refusal) => return Err(refused(self.ledger, refusal)),
                Step::GiveUp => return Err(self.all_missed(misses)),
            };
            let began = Instant::now();
            match self.batch_from(source, credit_bytes).await {
                Ok(permitted) => {
                    let batch = &permitted.batch;
                    self.tiers.metrics.served(source, batch.entries(), batch.bytes(), began.elapsed());
                    if !misses.is_empty() {
                        self.proven = Some(source);
                    }
                    if let Some(end) = permitted.batch.end() {
                        self.left.start = end;
                    }
                    return Ok(permitted);
                }
                Err(error) => {
                    self.hot = None;
                    if !error.is_miss() {
                        return Err(error);
                    }
                    tracing::info!(
                        ledger_id = %self.ledger, entry_id = %self.left.start, tier = ?source, error = %error.chain(),
                        "a tier did not serve a read"
                    );
                    self.tiers.metrics.missed(source);
                    misses.push((source, error));
                    let newest = self.tiers.proven_record(self.ledger).await?;
                    changed = newest.version != self.record.version;
                    self.record = newest;
                }
            }
        }
    }

    /// One batch from one tier, in room that was taken from the budget first.
    async fn batch_from(&mut self, source: Source, credit_bytes: u64) -> Result<Permitted> {
        let budget = self.tiers.send_budget.clone();
        let mut wanted_bytes = proto::GRPC_BATCH_BYTES as u64;
        loop {
            let permit = tokio::time::timeout(self.tiers.memory_timeout, budget.acquire(wanted_bytes));
            let mut permit = permit.await.map_err(|_| no_room(&budget))?;
            // What exceeds the whole budget is charged the whole budget, and is let through.
            let held_bytes = if permit.bytes() < wanted_bytes { wanted_bytes } else { permit.bytes() };
            let mut batch = Batch::new(Room { credit_bytes, held_bytes });
            let filled = tokio::time::timeout(self.tiers.read_timeout, self.fill(source, &mut batch)).await;
            match filled.map_err(|_| self.too_slow(source))?? {
                Filled::Some => {
                    permit.shrink_to(batch.bytes());
                    return Ok(Permitted { batch, permit });
                }
                // Released before more is asked for: nobody waits for memory with memory in hand.
                Filled::NeedsRoom(bytes) => wanted_bytes = bytes,
            }
        }
    }

    async fn fill(&mut self, source: Source, batch: &mut Batch) -> Result<Filled> {
        if source == Source::Cold {
            self.hot = None;
            let metadata = &self.record.metadata;
            return self.tiers.cold.fill(self.ledger, metadata, self.left.clone(), self.shape, batch).await;
        }
        // Taken out and put back: a read that is dropped half way leaves no stream in an unknown place.
        let mut hot = match self.hot.take().filter(|hot| !hot.is_over()) {
            Some(hot) => hot,
            None => {
                let stream = self.tiers.hot.read(self.ledger, &self.record.metadata, self.left.clone()).await?;
                HotRead::new(self.ledger, stream, self.left.clone())
            }
        };
        let filled = hot.fill(batch).await?;
        self.hot = Some(hot);
        Ok(filled)
    }

    fn too_slow(&self, source: Source) -> Error {
        let (ledger, entry, limit) = (self.ledger, self.left.start, self.tiers.read_timeout);
        let tier = if source == Source::Hot { "bookies" } else { "object store" };
        let message = format!("read entry {entry} of ledger {ledger}: the {tier} did not answer within {limit:?}");
        Error::new(ErrorKind::Timeout, message)
    }

    /// One error for all misses: the first cause, and whether a later try may help.
    fn all_missed(&self, misses: Vec<(Source, Error)>) -> Error {
        let message = format!("read entry {} of ledger {}", self.left.start, self.ledger);
        let mut misses = misses.into_iter().map(|(_, error)| error);
        let Some(first) = misses.next() else { return Error::new(ErrorKind::Internal, message) };
        let others: Vec<Error> = misses.collect();
        // Damage on one tier is no loss as long as the other one may have the entry.
        let hopeful = others.iter().find(|error| error.kind() != first.kind() && error.kind() != ErrorKind::Damaged);
        let kind = hopeful.map_or(first.kind(), Error::kind);
        match others.last() {
            None => Error::because(kind, message, first),
            Some(last) => {
                Error::because(kind, format!("{message}: then the other tier: {}: first", last.chain()), first)
            }
        }
    }
}

fn refused(ledger: LedgerId, refusal: Refusal) -> Error {
    let message = match refusal {
        Refusal::NotSettled => {
            format!("ledger {ledger} has no cold copy yet: offload it first, or read it from any tier")
        }
        Refusal::Released => {
            format!("ledger {ledger} was released from the bookies: read it from any tier, or from the cold one")
        }
    };
    Error::new(ErrorKind::Precondition, message)
}

fn out_of_range(ledger: LedgerId, record: &LedgerRecord, asked: Range<EntryId>, readable: EntryId) -> Error {
    let asked = format!("read entries {}..{} of ledger {ledger}", asked.start, asked.end);
    let message = match (record.metadata.is_closed(), readable.prev()) {
        (true, Some(last)) => format!("{asked}: it ends with entry {last}"),
        (true, None) => format!("{asked}: it is closed without any entry"),
        (false, Some(last)) => format!("{asked}: it is open and confirmed up to entry {last}"),
        (false, None) => format!("{asked}: it is open and no entry is confirmed yet"),
    };
    Error::new(ErrorKind::OutOfRange, message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
