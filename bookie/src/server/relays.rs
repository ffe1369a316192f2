//! What a connection asks of ledgers that moved away, on its way through the relay.
//!
//! # Bounds
//! What waits for a turn is a few hundred bytes a request, of which a connection has a bounded number. One task of the connection takes
//! turns for it, so all connections are served in their order, however much one of them asks; and none is under way for a
//! peer that does not take its answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, join_all};
use ledger::LedgerId;
use proto::{PollTarget, ReadTarget, Reply, ReplyTo, Status};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::batch::{BatchJob, Fill};
use super::polls::PollJob;
use super::reads::{ReadJob, Reads};
use crate::ledger_state::Tombstone;
use crate::metrics::ReadEnd;
use crate::relay::decide::Want;
use crate::relay::{Outcome, Relay, Relayed, Wanted};
use crate::store::{Fetched, LedgerSlot};
use crate::wakeups::Wakeups;

/// Entries of a batch that are asked for besides the first.
const FOLLOWERS_MAX: usize = 15;
/// How long a batch waits for those once it has its first entry.
const FOLLOWERS_TIME: Duration = Duration::from_millis(500);
/// Bytes that a batch may come to, as far as its first entry tells.
const BATCH_BYTES_MAX: u64 = 256 << 10;

/// A request for the relay.
pub(super) enum RelayJob {
    /// It holds the turn of its entry.
    Read(ReadJob),
    Poll(PollJob),
    Batch(BatchJob, LedgerId),
}

impl RelayJob {
    fn ledger(&self) -> LedgerId {
        match self {
            Self::Read(job) => job.ledger(),
            Self::Poll(job) => job.ledger,
            Self::Batch(_, ledger) => *ledger,
        }
    }

    fn received(&self) -> Instant {
        match self {
            Self::Read(job) => job.received(),
            Self::Poll(job) => job.received,
            Self::Batch(job, _) => job.received,
        }
    }
}

/// The requests of a connection that wait for a turn.
pub(super) struct Relays {
    queue: Mutex<Queue>,
    /// Those of the connection that may be under way.
    turns: Arc<Semaphore>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<RelayJob>,
    /// Whether a task takes turns for them.
    driven: bool,
}

impl Relays {
    pub(super) fn new(turns: usize) -> Self {
        Self { queue: Mutex::default(), turns: Arc::new(Semaphore::new(turns)) }
    }

    /// Whether nobody takes turns yet.
    fn push(&self, job: RelayJob) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.waiting.push_back(job);
        !std::mem::replace(&mut queue.driven, true)
    }

    fn pop(&self) -> Option<RelayJob> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let job = queue.waiting.pop_front();
        queue.driven = job.is_some();
        job
    }
}

/// Turns of the connection and of the bookie.
type Turn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Reads {
    /// Whether the present members of a ledger are to be asked for what this bookie cannot tell.
    pub(super) fn is_for_relay(&self, to: &ReplyTo, slot: &LedgerSlot, status: Status) -> bool {
        self.server.relay.is_some()
            && status == Status::UnknownLedgerState
            && !to.is_relayed()
            && slot.lock().tombstone == Some(Tombstone::Gone)
    }

    /// Hands a request over to the relay, which answers it.
    pub(super) fn hand_over(&self, job: RelayJob) {
        if self.relays.push(job)
            && let Some(reads) = self.me.upgrade()
        {
            self.server.tasks.spawn("relay", drive(reads));
        }
    }

    /// Waits for the peer to take answers, and for a turn; `None` when the connection is lost.
    async fn relay_turn(&self, relay: &Relay) -> Option<Turn> {
        if !self.outbox.wait_for_room_to_answer().await {
            return None;
        }
        // The semaphores are never closed.
        let own = self.relays.turns.clone().acquire_owned().await.ok()?;
        let turn = relay.turns.clone().acquire_owned().await.ok()?;
        Some((own, turn))
    }

    /// Answers a request that got no turn.
    async fn refuse_relay(&self, job: RelayJob, status: Status) {
        match job {
            RelayJob::Read(job) => self.finish(job, Err(status), None),
            RelayJob::Poll(PollJob { to, .. }) => self.put_failure(&to, status),
            RelayJob::Batch(job, _) => self.put_failure(&job.to, status),
        }
    }

    fn put_failure(&self, to: &ReplyTo, status: Status) {
        self.put(to, &Reply::Failed(status), None, &mut Wakeups::default());
    }

    /// Serves a request, and gives its turn back once the members have answered.
    async fn serve_relay(&self, relay: &Relay, job: RelayJob, turn: Turn) {
        match job {
            RelayJob::Read(job) => self.relay_read(relay, job, turn).await,
            RelayJob::Poll(job) => self.relay_poll(relay, job).await,
            RelayJob::Batch(job, ledger) => self.relay_batch(relay, job, ledger).await,
        }
    }

    /// Asks the members for as long as there is time and someone to tell.
    async fn ask_members(&self, relay: &Relay, wanted: &Wanted) -> Outcome {
        tokio::select! {
            outcome = relay.read(wanted) => outcome,
            () = self.outbox.lost() => Outcome::Failed(Status::Io),
        }
    }

    async fn relay_read(&self, relay: &Relay, mut job: ReadJob, turn: Turn) {
        let wanted = Wanted {
            ledger: job.ledger(),
            want: Want::Read(job.target()),
            fence: job.shown_key(),
            until: relay.until(job.received()),
        };
        job.came_from(ReadEnd::Relayed);
        let (answer, permit) = match self.ask_members(relay, &wanted).await {
            Outcome::Found(Relayed { entry, body, last, permit }) => {
                (Ok(Fetched { entry, body, last_confirmed: last }), Some(permit))
            }
            Outcome::Beyond(_) => (Err(Status::NoEntry), None),
            Outcome::Failed(status) => (Err(status), None),
        };
        drop(turn);
        self.finish(job, answer, permit);
    }

    /// All of a closed ledger is confirmed, so there is nothing to wait for.
    async fn relay_poll(&self, relay: &Relay, job: PollJob) {
        let want = match job.target {
            PollTarget::Read(target) => Want::Read(target),
            PollTarget::Next => Want::After(job.previous),
        };
        let wanted = Wanted { ledger: job.ledger, want, fence: None, until: relay.until(job.received) };
        let outcome = self.ask_members(relay, &wanted).await;
        let (metrics, latency) = (&self.server.store.metrics, self.server.store.clock.now() - job.received);
        let (reply, permit) = match (outcome, job.target) {
            (Outcome::Found(Relayed { entry, body, last, permit }), target) => {
                metrics.read_found(ReadEnd::Relayed, body.len(), latency);
                let reply = match target {
                    PollTarget::Read(_) => Reply::Read { body, max_lac: last },
                    PollTarget::Next => Reply::Next { max_lac: last, entry: Some((entry, body)), confirmed_ms: None },
                };
                (reply, Some(permit))
            }
            (Outcome::Beyond(last), PollTarget::Next) => {
                (Reply::Next { max_lac: last, entry: None, confirmed_ms: None }, None)
            }
            (Outcome::Beyond(_), PollTarget::Read(_)) => (Reply::Failed(Status::NoEntry), None),
            (Outcome::Failed(status), _) => (Reply::Failed(status), None),
        };
        if let Reply::Failed(status) = &reply {
            metrics.read_not_found(*status, latency);
        }
        self.put(&job.to, &reply, permit, &mut Wakeups::default());
    }

    /// Answers a batch with its first entry, and with some behind it where turns are free: callers ask again for the rest.
    async fn relay_batch(&self, relay: &Relay, job: BatchJob, ledger: LedgerId) {
        let until = relay.until(job.received);
        let wanted = |entry, fence, until| {
            let want = Want::Read(ReadTarget::Entry(entry));
            Wanted { ledger, want, fence, until }
        };
        let metrics = &self.server.store.metrics;
        let mut fill = Fill::new(job.count_max, job.bytes_max, self.server.store.config.frame_bytes_max.bytes());
        let first = match self.ask_members(relay, &wanted(job.start, job.fence.flatten(), until)).await {
            Outcome::Found(first) if fill.take(first.body.len() as u64) => Ok(first),
            // The few bytes that this reply has more than a plain one are too many: the entry can be read alone.
            Outcome::Found(_) => Err(Status::BadRequest),
            Outcome::Beyond(_) => Err(Status::NoEntry),
            Outcome::Failed(status) => Err(status),
        };
        let latency = || self.server.store.clock.now() - job.received;
        let Relayed { body, last, mut permit, .. } = match first {
            Ok(first) => first,
            Err(status) => {
                metrics.read_not_found(status, latency());
                return self.put_failure(&job.to, status);
            }
        };
        let more = fill.more_like(body.len() as u64, BATCH_BYTES_MAX).min(FOLLOWERS_MAX);
        let more = more.min(relay.turns.available_permits());
        let turns = relay.turns.clone().try_acquire_many_owned(u32::try_from(more).unwrap_or(0)).ok();
        let until = until.min(Instant::now() + FOLLOWERS_TIME);
        let followers: Vec<Wanted> = (1..=more as u64)
            .filter_map(|place| job.start.checked_add(place).filter(|entry| Some(*entry) <= last))
            .map(|entry| wanted(entry, None, until))
            .take_while(|_| turns.is_some())
            .collect();
        let found = join_all(followers.iter().map(|wanted| self.ask_members(relay, wanted))).await;
        drop(turns);
        let mut entries = vec![body];
        for outcome in found {
            match outcome {
                Outcome::Found(next) if fill.take(next.body.len() as u64) => {
                    permit.merge(next.permit);
                    entries.push(next.body);
                }
                _ => break,
            }
        }
        for entry in &entries {
            metrics.read_found(ReadEnd::Relayed, entry.len(), latency());
        }
        self.put(&job.to, &Reply::Batch { entries }, Some(permit), &mut Wakeups::default());
    }
}

/// Answers a request that got no turn, beside those that still may: what waited for it may wait long for the peer.
fn refuse(reads: &Arc<Reads>, job: RelayJob, status: Status) {
    let refusing = reads.clone();
    reads.server.tasks.spawn("relay", async move { refusing.refuse_relay(job, status).await });
}

/// Takes turns for the requests of a connection, and has them served, until none is left.
// Boxed, because what serves a request may hand over the next one, which starts this anew.
fn drive(reads: Arc<Reads>) -> BoxFuture<'static, ()> {
    async move {
        let Some(relay) = reads.server.relay.clone() else { return };
        while let Some(job) = reads.relays.pop() {
            let (until, ledger) = (relay.until(job.received()), job.ledger());
            match tokio::time::timeout_at(until, reads.relay_turn(&relay)).await {
                Ok(Some(turn)) => {
                    let (serving, relay) = (reads.clone(), relay.clone());
                    reads.server.tasks.spawn("relayed read", async move {
                        serving.serve_relay(&relay, job, turn).await;
                    });
                }
                Ok(None) => refuse(&reads, job, Status::Io),
                Err(_) => refuse(&reads, job, relay.had_no_turn(ledger)),
            }
        }
    }
    .boxed()
}
