//! BATCH_READ: consecutive entries in one reply.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use common::budget::BytePermit;
use ledger::{EntryId, MasterKey};
use proto::{BATCH_ENTRY_HEAD_BYTES, BATCH_HEAD_BYTES, ReadTarget, Reply, ReplyTo, Status};
use tokio::time::Instant;

use super::reads::{Reads, STEP_BYTES};
use super::relays::RelayJob;
use crate::metrics::ReadEnd;
use crate::store::{Fetched, LedgerSlot, Located, Spot};
use crate::wakeups::Wakeups;

/// Most entries of one reply: bounds what is known of a batch before the budget admits it. A caller asks again for the rest.
const ENTRIES_MAX: u32 = 4096;
/// Entries looked up before other tasks get their turn.
const LOOK_UPS: usize = 256;

/// A request for consecutive entries.
pub(super) struct BatchJob {
    pub(super) to: ReplyTo,
    pub(super) start: EntryId,
    pub(super) count_max: Option<u32>,
    pub(super) bytes_max: u64,
    /// Set when the ledger is to be fenced first, with the key that was shown.
    pub(super) fence: Option<Option<MasterKey>>,
    pub(super) received: Instant,
}

/// How much of a batch fits its reply.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    bytes: u64,
    entries: u32,
    count_max: u32,
    /// What the caller asked for; the first entry may exceed it.
    bytes_max: u64,
    /// What a frame can carry.
    frame_bytes_max: u64,
}

impl Fill {
    pub(super) fn new(count_max: Option<u32>, bytes_max: u64, frame_bytes_max: u64) -> Self {
        let count_max = count_max.map_or(ENTRIES_MAX, |count| count.min(ENTRIES_MAX));
        Self { bytes: BATCH_HEAD_BYTES as u64, entries: 0, count_max, bytes_max, frame_bytes_max }
    }

    /// Takes an entry in, if it still fits.
    pub(super) fn take(&mut self, body_bytes: u64) -> bool {
        let bytes = self.bytes + BATCH_ENTRY_HEAD_BYTES as u64 + body_bytes;
        let limit = if self.entries == 0 { u64::MAX } else { self.bytes_max };
        let fits = bytes <= limit.min(self.frame_bytes_max) && !self.is_complete();
        if fits {
            (self.bytes, self.entries) = (bytes, self.entries + 1);
        }
        fits
    }

    /// How many more entries of such a size fit, while the reply is no longer than `reply_bytes_max`.
    pub(super) fn more_like(&self, body_bytes: u64, reply_bytes_max: u64) -> usize {
        let limit = reply_bytes_max.min(self.bytes_max).min(self.frame_bytes_max);
        let fit = limit.saturating_sub(self.bytes) / (BATCH_ENTRY_HEAD_BYTES as u64 + body_bytes);
        usize::try_from(fit.min(u64::from(self.count_max - self.entries))).unwrap_or(usize::MAX)
    }

    fn is_complete(&self) -> bool {
        self.entries >= self.count_max
    }
}

/// What will be answered: for each entry where it lies on the disk, or nothing when it was in memory. Holds no bodies, so that
/// nothing is kept before the budget admits it.
struct Plan {
    spots: Vec<Option<Spot>>,
    /// Of the reply.
    bytes: u64,
}

impl Plan {
    /// Most that the largest step brings into memory beside the reply.
    fn step_bytes(&self) -> u64 {
        let (mut rest, mut most) = (&self.spots[..], 0);
        while !rest.is_empty() {
            let (count, bytes) = first_step(rest);
            (rest, most) = (&rest[count.max(1)..], most.max(bytes));
        }
        most
    }
}

/// How many entries are read from the disk together, and what that brings into memory at most; none when the first was in memory.
fn first_step(spots: &[Option<Spot>]) -> (usize, u64) {
    let (mut bytes, mut before) = (0, None);
    for (at, spot) in spots.iter().enumerate() {
        let Some(spot) = spot else { return (at, bytes) };
        let more = spot.bytes_behind(before);
        if at > 0 && bytes + more > STEP_BYTES {
            return (at, bytes);
        }
        (bytes, before) = (bytes + more, Some(spot));
    }
    (spots.len(), bytes)
}

/// Bodies of a reply, copied together, so that what they were read with can go.
struct Bodies {
    buffer: BytesMut,
    found: Vec<(Bytes, ReadEnd)>,
}

impl Bodies {
    fn push(&mut self, body: &[u8], end: ReadEnd) {
        self.buffer.extend_from_slice(body);
        self.found.push((self.buffer.split().freeze(), end));
    }
}

impl Reads {
    /// Serves a batch to its end, fence included.
    pub(super) async fn serve_run(&self, job: BatchJob, slot: Arc<LedgerSlot>) {
        let answer = self.read_run(&job, &slot).await;
        let (metrics, clock) = (&self.server.store.metrics, &self.server.store.clock);
        let latency = clock.now() - job.received;
        let (reply, permit) = match answer {
            Err(status) if self.is_for_relay(&job.to, &slot, status) => {
                return self.hand_over(RelayJob::Batch(job, slot.id()));
            }
            Ok((found, permit)) => {
                for (body, end) in &found {
                    metrics.read_found(*end, body.len(), latency);
                }
                (Reply::Batch { entries: found.into_iter().map(|(body, _)| body).collect() }, Some(permit))
            }
            Err(status) => {
                metrics.read_not_found(status, latency);
                (Reply::Failed(status), None)
            }
        };
        self.put(&job.to, &reply, permit, &mut Wakeups::default());
    }

    async fn read_run(
        &self,
        job: &BatchJob,
        slot: &Arc<LedgerSlot>,
    ) -> Result<(Vec<(Bytes, ReadEnd)>, BytePermit), Status> {
        let until = self.server.until(job.received);
        if let Some(key) = &job.fence {
            // Nothing is told, not even that an entry is missing, before the fence is durable.
            self.server.by(until, self.server.store.fence(slot, key.as_ref())).await?;
        }
        let fill = Fill::new(job.count_max, job.bytes_max, self.server.store.config.frame_bytes_max.bytes());
        let plan = self.plan_run(job, slot, fill.clone()).await?;
        let bytes = plan.bytes;
        let mut permit = self.server.by(until, self.admit(bytes + plan.step_bytes())).await?;
        let found = self.fetch_run(job, slot, plan, fill, &mut permit).await?;
        permit.shrink_to(bytes);
        Ok((found, permit))
    }

    /// Finds the entries that belong to the answer. Only the first one's failure is told; a later one ends the batch, and so does half of
    /// the time: the rest is for bringing them into memory.
    async fn plan_run(&self, job: &BatchJob, slot: &LedgerSlot, mut fill: Fill) -> Result<Plan, Status> {
        let (mut spots, mut next) = (Vec::new(), Some(job.start));
        let (until, half) = (self.server.until(job.received), self.server.store.config.read_deadline.duration() / 2);
        while let Some(entry) = next.filter(|_| !fill.is_complete()) {
            let until = if spots.is_empty() { until } else { until - half };
            let locate = self.server.store.locate(slot, ReadTarget::Entry(entry));
            let located = match self.server.by(until, locate).await {
                Ok(located) => located,
                Err(status) if spots.is_empty() => return Err(status),
                Err(_) => break,
            };
            if !fill.take(located.body_bytes()) {
                if spots.is_empty() {
                    // The 12 bytes that this reply has more than the add are too many: the entry can be read alone.
                    return Err(Status::BadRequest);
                }
                break;
            }
            spots.push(match located {
                Located::There(spot) => Some(spot),
                Located::Here(_) => None,
            });
            next = entry.checked_add(1);
            if spots.len() % LOOK_UPS == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(Plan { spots, bytes: fill.bytes })
    }

    /// Brings the entries into memory, a step at a time, up to the first that fails, does not come in time, or does not fit any more.
    /// `permit` covers them and the largest step; a step that does not come in time keeps its part of it.
    async fn fetch_run(
        &self,
        job: &BatchJob,
        slot: &LedgerSlot,
        plan: Plan,
        mut fill: Fill,
        permit: &mut BytePermit,
    ) -> Result<Vec<(Bytes, ReadEnd)>, Status> {
        let until = self.server.until(job.received);
        let capacity = usize::try_from(plan.bytes).map_err(|_| Status::BadRequest)?;
        let mut bodies =
            Bodies { buffer: BytesMut::with_capacity(capacity), found: Vec::with_capacity(plan.spots.len()) };
        let mut planned = plan.spots.into_iter();
        while !planned.as_slice().is_empty() {
            let (count, bytes) = first_step(planned.as_slice());
            let answers = if count == 0 {
                planned.next();
                let entry = job.start.checked_add(bodies.found.len() as u64).ok_or(Status::NoEntry)?;
                if bodies.found.len() % LOOK_UPS == LOOK_UPS - 1 {
                    tokio::task::yield_now().await;
                }
                vec![self.server.by(until, self.fetch_from_memory(slot, entry, permit)).await]
            } else {
                let step: Vec<Spot> = planned.by_ref().take(count).flatten().collect();
                match self.server.by(until, self.fetch(step, permit.split(bytes))).await {
                    Ok((answers, part)) => {
                        permit.merge(part);
                        answers.into_iter().map(|answer| answer.map(|found| (found, ReadEnd::Segment))).collect()
                    }
                    Err(status) => vec![Err(status)],
                }
            };
            for answer in answers {
                match answer {
                    // One that was added again meanwhile may be longer than planned.
                    Ok((entry, end)) if fill.take(entry.body.len() as u64) => bodies.push(&entry.body, end),
                    Ok(_) if bodies.found.is_empty() => return Err(Status::BadRequest),
                    Err(status) if bodies.found.is_empty() => return Err(status),
                    Ok(_) | Err(_) => return Ok(bodies.found),
                }
            }
        }
        Ok(bodies.found)
    }

    /// An entry that was in memory a moment ago.
    async fn fetch_from_memory(
        &self,
        slot: &LedgerSlot,
        entry: EntryId,
        permit: &mut BytePermit,
    ) -> Result<(Fetched, ReadEnd), Status> {
        match self.server.store.locate(slot, ReadTarget::Entry(entry)).await? {
            Located::Here(found) => Ok((found, ReadEnd::Buffer)),
            Located::There(spot) => {
                let part = permit.split(spot.bytes());
                let (found, part) = self.fetch_one(spot, part).await?;
                permit.merge(part);
                Ok((found, ReadEnd::Segment))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_stops_where_the_protocol_says() {
        let mut fill = Fill::new(None, 36 + 14 + 24, 1000);
        assert!(fill.take(10) && fill.take(20), "exactly what was asked for");
        assert!(!fill.take(0), "the length word of an empty entry is too much");
        assert_eq!((fill.bytes, fill.entries), (74, 2));

        let mut fill = Fill::new(None, 0, 1000);
        assert!(fill.take(960), "the first one comes whatever was asked for");
        assert!(!fill.take(1));
        assert!(!Fill::new(None, u64::MAX, 1000).take(961), "a frame is never over its limit");

        let mut fill = Fill::new(Some(2), u64::MAX, 1000);
        assert!(fill.take(1) && !fill.is_complete() && fill.take(1));
        assert!(fill.is_complete() && !fill.take(1));
        assert_eq!(fill.more_like(1, u64::MAX), 0, "none more than were asked for");

        let mut fill = Fill::new(None, 36 + 14 + 30, 1000);
        assert!(fill.take(10));
        assert_eq!((fill.more_like(10, u64::MAX), fill.more_like(10, 36 + 14 + 27)), (2, 1));
        assert_eq!(fill.more_like(10, 0), 0);
    }
}
