//! One request, from what it asks to what it is told.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ledger::{EntryId, LedgerId, MasterKey, shard_of};
use proto::{
    AvailabilityWriter, BATCH_ENTRY_HEAD_BYTES, BATCH_HEAD_BYTES, FRAME_BYTES_MAX_DEFAULT, PollTarget, ReadTarget,
    Reply, Request, Status,
};
use tokio::time::Instant;

use super::Front;
use crate::cold_tier::bodies::{Access, Ask, ColdLedger, Memory};
use crate::cold_tier::share::SharePermit;
use crate::error::{Error, ErrorKind, Result};

/// The first pause before a request is tried again, and the longest: each is twice the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// The most that a batch may be: what clients accept in one frame.
const BATCH_BYTES_MAX: u64 = FRAME_BYTES_MAX_DEFAULT as u64;

/// A reply, and the memory it is charged to.
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) permit: Option<SharePermit>,
}

impl Answer {
    fn free(reply: Reply) -> Self {
        Self { reply, permit: None }
    }
}

/// A request, how a read of one entry is expected to go on, and the memory of whoever asks.
#[derive(Clone, Copy)]
struct Call<'a> {
    request: &'a Request,
    access: Access,
    memory: &'a Memory,
}

/// What an error is called on the wire.
fn word(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::NotFound => Status::NoLedger,
        ErrorKind::OutOfRange => Status::NoEntry,
        ErrorKind::Denied => Status::Unauthorized,
        // Erased entries are gone as damaged ones are.
        ErrorKind::Damaged | ErrorKind::Precondition => Status::Io,
        ErrorKind::Invalid => Status::BadRequest,
        // Nothing is known of the entry: another gateway, or this one later, may serve it.
        ErrorKind::Fenced
        | ErrorKind::Unavailable
        | ErrorKind::Exhausted
        | ErrorKind::Timeout
        | ErrorKind::Unknown
        | ErrorKind::Unsupported
        | ErrorKind::Internal => Status::TooManyRequests,
    }
}

/// What to do about an error of a ledger whose metadata was read by a hint, or by proof.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Tell,
    /// Read the metadata by proof and try again at once: it may have moved on, or the ledger be gone.
    Prove,
    /// Wait a little and try again.
    Wait,
}

fn next(error: &Error, proven: bool) -> Next {
    match word(error) {
        Status::TooManyRequests => Next::Wait,
        Status::Io if !proven => Next::Prove,
        _ => Next::Tell,
    }
}

impl Front {
    /// Answers a request that was received then within the front's deadline, whatever happens: one that has waited for its turn has
    /// the less time, since its peer counts from when it asked. `access` says how a read of one entry is expected to go on.
    pub(super) async fn answer(&self, request: Request, access: Access, received: Instant, memory: &Memory) -> Answer {
        let Some(ledger) = request.ledger() else { return Answer::free(about_the_bookie(&request)) };
        if !self.shards.contains(shard_of(ledger)) {
            self.metrics.foreign_shard();
        }
        let answer = match &request {
            // Nothing is ever acknowledged here, so everything that was is durable.
            Request::ForceLedger { .. } => Ok(Answer::free(Reply::Forced)),
            Request::Add { .. } | Request::WriteLac { .. } => Ok(Answer::free(Reply::Failed(Status::ReadOnly))),
            // The protocol tells both as "no entry", which is what a reply with neither part becomes.
            Request::ReadLac { .. } => match self.in_time(ledger, &request, access, received, memory).await {
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange) => {
                    Ok(Answer::free(Reply::Lac { explicit: None, last_entry: None }))
                }
                answer => answer,
            },
            _ => self.in_time(ledger, &request, access, received, memory).await,
        };
        answer.unwrap_or_else(|error| {
            let status = word(&error);
            if status == Status::Io {
                tracing::error!(ledger_id = %ledger, error = error.chain(), "a cold ledger is damaged");
            } else {
                tracing::debug!(ledger_id = %ledger, ?status, error = error.chain(), "a request of a cold ledger was refused");
            }
            Answer::free(Reply::Failed(status))
        })
    }

    /// Tries until there is an answer, the time is over, or the gateway stops.
    async fn in_time(
        &self,
        ledger: LedgerId,
        request: &Request,
        access: Access,
        received: Instant,
        memory: &Memory,
    ) -> Result<Answer> {
        let mut last = None;
        let until = received + self.deadline;
        let call = Call { request, access, memory };
        let ended = tokio::select! {
            ended = tokio::time::timeout_at(until, self.tries(ledger, call, &mut last)) => ended,
            () = self.tasks.stopping() => return Err(Error::stopping()),
        };
        ended.unwrap_or_else(|_| {
            let message = format!("serve ledger {ledger}: not within {:?}", self.deadline);
            Err(match last {
                Some(cause) => Error::because(ErrorKind::Timeout, message, cause),
                None => Error::new(ErrorKind::Timeout, message),
            })
        })
    }

    async fn tries(&self, ledger: LedgerId, call: Call<'_>, last: &mut Option<Error>) -> Result<Answer> {
        let mut pause = PAUSE_FIRST;
        let mut proven = false;
        loop {
            let known = if proven { self.known.prove(ledger).await } else { self.known.get(ledger).await };
            let is_known = known.is_ok();
            let error = match known {
                Ok(known) => match self.serve(&known, call).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            match next(&error, proven) {
                Next::Tell => return Err(error),
                Next::Prove => proven = true,
                Next::Wait => {
                    *last = Some(error);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    // A store that is away, or memory that is used up, says nothing against what is known of the ledger.
                    proven = !is_known;
                }
            }
        }
    }

    /// One try.
    async fn serve(&self, ledger: &Arc<ColdLedger>, call: Call<'_>) -> Result<Answer> {
        match call.request {
            Request::Read { target, fence, master_key, .. } => {
                if *fence {
                    check_key(ledger, master_key.as_ref())?;
                }
                self.read(ledger, *target, call).await
            }
            // All of a closed ledger is confirmed, so there is nothing to wait for.
            Request::LongPoll { target: PollTarget::Read(target), .. } => self.read(ledger, *target, call).await,
            Request::LongPoll { target: PollTarget::Next, previous, .. } => {
                let next = previous.map_or(EntryId::ZERO, EntryId::next);
                let next = ledger.last.filter(|last| next <= *last).map(|_| next);
                let (entry, permit) = match next {
                    Some(next) => {
                        let (body, permit) = self.body(ledger, next, call.access, call.memory).await?;
                        (Some((next, body)), Some(permit))
                    }
                    None => (None, None),
                };
                Ok(Answer { reply: Reply::Next { max_lac: ledger.last, entry, confirmed_ms: None }, permit })
            }
            Request::BatchRead { start, count_max, bytes_max, fence, master_key, .. } => {
                if *fence {
                    check_key(ledger, master_key.as_ref())?;
                }
                self.batch(ledger, *start, *count_max, *bytes_max, call.memory).await
            }
            Request::ReadLac { .. } => {
                let (body, permit) = self.last_body(ledger, call.memory).await?;
                Ok(Answer { reply: Reply::Lac { explicit: None, last_entry: Some(body) }, permit: Some(permit) })
            }
            Request::ListEntries { .. } => {
                let mut entries = AvailabilityWriter::default();
                if let Some(last) = ledger.last {
                    entries.push_run(EntryId::ZERO, last);
                }
                Ok(Answer::free(Reply::Entries(entries.finish())))
            }
            Request::Add { .. }
            | Request::WriteLac { .. }
            | Request::ForceLedger { .. }
            | Request::BookieInfo { .. } => {
                let message = format!("serve ledger {}: the request is not about what is stored", ledger.id);
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    async fn read(&self, ledger: &Arc<ColdLedger>, target: ReadTarget, call: Call<'_>) -> Result<Answer> {
        let (body, permit) = match target {
            ReadTarget::Last => self.last_body(ledger, call.memory).await?,
            ReadTarget::Entry(entry) => self.body(ledger, entry, call.access, call.memory).await?,
        };
        Ok(Answer { reply: Reply::Read { body, max_lac: ledger.last }, permit: Some(permit) })
    }

    /// Entries from `start` on, as many as fit into one reply and lie in one row group: fewer than asked for is an answer too.
    async fn batch(
        &self,
        ledger: &Arc<ColdLedger>,
        start: EntryId,
        count_max: Option<u32>,
        bytes_max: u64,
        memory: &Memory,
    ) -> Result<Answer> {
        if count_max == Some(1) {
            let (body, permit) = self.body(ledger, start, Access::Point, memory).await?;
            return Ok(Answer { reply: Reply::Batch { entries: vec![body] }, permit: Some(permit) });
        }
        if ledger.last.is_none_or(|last| start > last) {
            return Err(past_the_end(ledger));
        }
        let head = BATCH_HEAD_BYTES as u64;
        let ask = Ask {
            first: start,
            count: count_max.map_or(u64::MAX, u64::from),
            bytes: bytes_max.min(BATCH_BYTES_MAX).saturating_sub(head),
            overhead: BATCH_ENTRY_HEAD_BYTES as u64,
            access: Access::Scan,
        };
        let found = self.tiers.cold.bodies(ledger, ask, memory).await?;
        if found.bodies.first().is_some_and(|first| first.len() as u64 > BATCH_BYTES_MAX - ask.overhead - head) {
            // The few bytes that this reply has more than a plain one are too many: the entry can be read alone.
            let message = format!("read entry {start} of ledger {}: it is too long for a batch", ledger.id);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Answer { reply: Reply::Batch { entries: found.bodies }, permit: Some(found.permit) })
    }

    async fn last_body(&self, ledger: &Arc<ColdLedger>, memory: &Memory) -> Result<(Bytes, SharePermit)> {
        let last = ledger.last.ok_or_else(|| past_the_end(ledger))?;
        self.body(ledger, last, Access::End, memory).await
    }

    async fn body(
        &self,
        ledger: &Arc<ColdLedger>,
        entry: EntryId,
        access: Access,
        memory: &Memory,
    ) -> Result<(Bytes, SharePermit)> {
        if ledger.last.is_none_or(|last| entry > last) {
            return Err(past_the_end(ledger));
        }
        let is_end = entry == EntryId::ZERO || ledger.last == Some(entry);
        let access = if is_end { Access::End } else { access };
        let mut bodies = self.tiers.cold.bodies(ledger, Ask::one(entry, access), memory).await?;
        let body = bodies.bodies.pop().ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("read entry {entry} of ledger {}: nothing came", ledger.id))
        })?;
        Ok((body, bodies.permit))
    }
}

/// What is asked of a bookie and not of a ledger. There is no disk here, and nothing may be written.
fn about_the_bookie(request: &Request) -> Reply {
    match request {
        Request::BookieInfo { total, free } => {
            Reply::BookieInfo { total_bytes: total.then_some(0), free_bytes: free.then_some(0) }
        }
        _ => Reply::Failed(Status::BadRequest),
    }
}

fn past_the_end(ledger: &ColdLedger) -> Error {
    Error::new(ErrorKind::OutOfRange, format!("ledger {} is closed and ends before", ledger.id))
}

/// Lets fence whoever shows the ledger's key. Where the metadata has no password, nobody can be told apart, and a fence of a closed
/// ledger changes nothing.
fn check_key(ledger: &ColdLedger, shown: Option<&MasterKey>) -> Result<()> {
    let fits = match (&ledger.master_key, shown) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(key), Some(shown)) => key.ct_eq(shown),
    };
    if fits {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Denied, format!("the key is not that of ledger {}", ledger.id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_over_later_is_never_told_as_absent_or_damaged() {
        let of = |kind| {
            let error = Error::new(kind, "x");
            (word(&error), next(&error, false), next(&error, true))
        };
        for kind in [
            ErrorKind::Unavailable,
            ErrorKind::Exhausted,
            ErrorKind::Timeout,
            ErrorKind::Unknown,
            ErrorKind::Unsupported,
            ErrorKind::Internal,
            ErrorKind::Fenced,
        ] {
            assert_eq!(of(kind), (Status::TooManyRequests, Next::Wait, Next::Wait), "{kind:?}");
        }
        // Damage is told after metadata was read by proof: the ledger may be gone, and its object with it.
        assert_eq!(of(ErrorKind::Damaged), (Status::Io, Next::Prove, Next::Tell));
        assert_eq!(of(ErrorKind::NotFound), (Status::NoLedger, Next::Tell, Next::Tell));
        assert_eq!(of(ErrorKind::OutOfRange), (Status::NoEntry, Next::Tell, Next::Tell));
        assert_eq!(of(ErrorKind::Denied), (Status::Unauthorized, Next::Tell, Next::Tell));
    }
}
