//! What a connection asks of ledgers that moved away, on its way through the relay.
//!
//! # Bounds
//! What waits for a turn is a few hundred bytes a request, of which a connection has a bounded number. One task of the connection takes
//! turns for it, so all connections are served in their order, however much one of them asks; and none is under way for a
//! peer that does not take its answers. What a connection's answers take until its peer has them is a part of the relay's memory,
//! too: an answer that finds no room in that is let go, and asked for again, in line, once there is room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::budget::{ByteBudget, BytePermit};
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
use crate::relay::{Outcome, Relay, Relayed, Turn, Wanted};
use crate::store::{Fetched, LedgerSlot};
use crate::wakeups::Wakeups;

/// Entries of a batch that are asked for besides the first.
const FOLLOWERS_MAX: usize = 15;
/// How long a batch waits for those once it has its first entry.
const FOLLOWERS_TIME: Duration = Duration::from_millis(500);
/// Bytes that a batch may come to, as far as its first entry tells.
const BATCH_BYTES_MAX: u64 = 256 << 10;

/// Memory without which a connection asks nothing.
const ROOM_BYTES_MIN: u64 = 1 << 10;

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

/// A request that waits for a turn.
struct Waiting {
    job: RelayJob,
    /// What its answer takes, once that is known.
    bytes: Option<u64>,
}

/// The requests of a connection that wait for a turn.
pub(super) struct Relays {
    queue: Mutex<Queue>,
    /// Those of the connection that may be under way.
    turns: Arc<Semaphore>,
    /// What answers take that its peer has not taken yet: the connection's part of what the relay's memory counts.
    memory: ByteBudget,
    /// What the last answer took: the next one is asked for where there is room for as much.
    likely_bytes: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a task takes turns for them.
    driven: bool,
}

/// What a request has while members are asked for it.
struct Leave {
    _own: OwnedSemaphorePermit,
    turn: Turn,
    /// The connection's memory for the answer.
    room: BytePermit,
}

impl Leave {
    /// Gives the turns back.
    fn into_room(self) -> BytePermit {
        self.room
    }
}

/// The connection has no room for an answer that takes so much, which was let go.
struct NoRoom(u64);

impl Relays {
    pub(super) fn new(relay: Option<&Relay>) -> Self {
        let (turns, bytes) = relay.map_or((0, 1), |relay| (relay.connection_turns(), relay.connection_bytes()));
        Self {
            queue: Mutex::default(),
            turns: Arc::new(Semaphore::new(turns)),
            memory: ByteBudget::new("bookie-relay-connection", bytes),
            likely_bytes: AtomicU64::new(0),
        }
    }

    /// Whether nobody takes turns yet. What was asked for before goes first.
    fn push(&self, job: RelayJob, bytes: Option<u64>) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = Waiting { job, bytes };
        match bytes {
            Some(_) => queue.waiting.push_front(waiting),
            None => queue.waiting.push_back(waiting),
        }
        !std::mem::replace(&mut queue.driven, true)
    }

    fn pop(&self) -> Option<Waiting> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = queue.waiting.pop_front();
        queue.driven = waiting.is_some();
        waiting
    }

    fn likely_bytes(&self) -> u64 {
        self.likely_bytes.load(Ordering::Relaxed).max(ROOM_BYTES_MIN)
    }

    /// Makes `room` what an answer of so many bytes takes. One that is larger than all of the connection's memory takes all of it.
    fn fit(&self, room: &mut BytePermit, bytes: u64) -> Result<(), NoRoom> {
        self.likely_bytes.store(bytes, Ordering::Relaxed);
        let bytes = bytes.min(self.memory.limit_bytes());
        if let Some(more) = bytes.checked_sub(room.bytes()).filter(|more| *more > 0) {
            room.merge(self.memory.try_acquire(more).ok_or(NoRoom(bytes))?);
        }
        room.shrink_to(bytes);
        Ok(())
    }
}

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
        self.hand_in(job, None);
    }

    /// Has a request wait for a turn, and for room for its answer if that is known.
    fn hand_in(&self, job: RelayJob, bytes: Option<u64>) {
        if self.relays.push(job, bytes)
            && let Some(reads) = self.me.upgrade()
        {
            self.server.tasks.spawn("relay", drive(reads));
        }
    }

    /// Waits for the peer to take answers, and for a turn; `None` when the connection is lost.
    async fn relay_turn(&self, relay: &Relay, bytes: Option<u64>) -> Option<Leave> {
        if !self.outbox.wait_for_room_to_answer().await {
            return None;
        }
        let room = tokio::select! {
            room = self.relays.memory.acquire(bytes.unwrap_or_else(|| self.relays.likely_bytes())) => room,
            () = self.outbox.lost() => return None,
        };
        // The semaphore is never closed.
        let own = self.relays.turns.clone().acquire_owned().await.ok()?;
        Some(Leave { _own: own, turn: relay.turn().await, room })
    }

    /// What one more question needs that can be asked for again, for an answer of so many bytes; `None` where it would be at the
    /// cost of others.
    fn spare_leave(&self, relay: &Relay, bytes: u64) -> Option<Leave> {
        let own = self.relays.turns.clone().try_acquire_owned().ok()?;
        let room = self.relays.memory.try_acquire(bytes)?;
        Some(Leave { _own: own, turn: relay.spare_turn()?, room })
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
    async fn serve_relay(&self, relay: &Relay, job: RelayJob, leave: Leave) {
        let again = match job {
            RelayJob::Read(job) => self.relay_read(relay, job, leave).await,
            RelayJob::Poll(job) => self.relay_poll(relay, job, leave).await,
            RelayJob::Batch(job, ledger) => self.relay_batch(relay, job, ledger, leave).await,
        };
        if let Err((job, NoRoom(bytes))) = again {
            self.hand_in(job, Some(bytes));
        }
    }

    /// Asks the members for as long as there is time and someone to tell. An answer has its room when it comes back.
    async fn ask_members(&self, relay: &Relay, wanted: &Wanted, leave: &mut Leave) -> Result<Outcome, NoRoom> {
        let outcome = tokio::select! {
            outcome = relay.read(wanted, &mut leave.turn) => outcome,
            () = self.outbox.lost() => Outcome::Failed(Status::Io),
        };
        if let Outcome::Found(found) = &outcome {
            self.relays.fit(&mut leave.room, found.permit.bytes())?;
        }
        Ok(outcome)
    }

    async fn relay_read(&self, relay: &Relay, mut job: ReadJob, mut leave: Leave) -> Result<(), (RelayJob, NoRoom)> {
        let wanted = Wanted {
            ledger: job.ledger(),
            want: Want::Read(job.target()),
            fence: job.shown_key(),
            until: relay.until(job.received()),
            once: false,
        };
        job.came_from(ReadEnd::Relayed);
        let outcome = match self.ask_members(relay, &wanted, &mut leave).await {
            Ok(outcome) => outcome,
            Err(no_room) => return Err((RelayJob::Read(job), no_room)),
        };
        // Others need not wait for what is left, which may take as long as the peer likes: those that waited for this one.
        let room = leave.into_room();
        match outcome {
            Outcome::Found(Relayed { entry, body, last, permit }) => {
                self.finish(job, Ok(Fetched { entry, body, last_confirmed: last }), [permit, room]);
            }
            Outcome::Beyond(_) => self.finish(job, Err(Status::NoEntry), None),
            Outcome::Failed(status) => self.finish(job, Err(status), None),
        }
        Ok(())
    }

    /// All of a closed ledger is confirmed, so there is nothing to wait for; but what is behind its end is told when the poll's time
    /// is over, as by a bookie that has the ledger: readers ask again at once.
    async fn relay_poll(&self, relay: &Relay, job: PollJob, mut leave: Leave) -> Result<(), (RelayJob, NoRoom)> {
        let want = match job.target {
            PollTarget::Read(target) => Want::Read(target),
            PollTarget::Next => Want::After(job.previous),
        };
        let until = relay.until(job.received);
        let wanted = Wanted { ledger: job.ledger, want, fence: None, until, once: false };
        let outcome = match self.ask_members(relay, &wanted, &mut leave).await {
            Ok(outcome) => outcome,
            Err(no_room) => return Err((RelayJob::Poll(job), no_room)),
        };
        let room = leave.into_room();
        let (metrics, latency) = (&self.server.store.metrics, self.server.store.clock.now() - job.received);
        let (reply, permits) = match (outcome, job.target) {
            (Outcome::Found(Relayed { entry, body, last, permit }), target) => {
                metrics.read_found(ReadEnd::Relayed, body.len(), latency);
                let reply = match target {
                    PollTarget::Read(_) => Reply::Read { body, max_lac: last },
                    PollTarget::Next => Reply::Next { max_lac: last, entry: Some((entry, body)), confirmed_ms: None },
                };
                (reply, Some([permit, room]))
            }
            (Outcome::Beyond(last), target) => {
                drop(room);
                self.wait_in_vain(&job).await;
                let reply = match target {
                    PollTarget::Read(_) => Reply::Failed(Status::NoEntry),
                    PollTarget::Next => Reply::Next { max_lac: last, entry: None, confirmed_ms: None },
                };
                (reply, None)
            }
            (Outcome::Failed(status), _) => (Reply::Failed(status), None),
        };
        if let Reply::Failed(status) = &reply {
            metrics.read_not_found(*status, latency);
        }
        self.put(&job.to, &reply, permits.into_iter().flatten(), &mut Wakeups::default());
        Ok(())
    }

    /// Answers a batch with its first entry, and with some behind it where turns are free: callers ask again for the rest.
    async fn relay_batch(
        &self,
        relay: &Relay,
        job: BatchJob,
        ledger: LedgerId,
        mut leave: Leave,
    ) -> Result<(), (RelayJob, NoRoom)> {
        let wanted = Wanted {
            ledger,
            want: Want::Read(ReadTarget::Entry(job.start)),
            fence: job.fence.flatten(),
            until: relay.until(job.received),
            once: false,
        };
        let metrics = &self.server.store.metrics;
        let mut fill = Fill::new(job.count_max, job.bytes_max, self.server.store.config.frame_bytes_max.bytes());
        let first = match self.ask_members(relay, &wanted, &mut leave).await {
            Err(no_room) => return Err((RelayJob::Batch(job, ledger), no_room)),
            Ok(Outcome::Found(first)) if fill.take(first.body.len() as u64) => Ok(first),
            // The few bytes that this reply has more than a plain one are too many: the entry can be read alone.
            Ok(Outcome::Found(_)) => Err(Status::BadRequest),
            Ok(Outcome::Beyond(_)) => Err(Status::NoEntry),
            Ok(Outcome::Failed(status)) => Err(status),
        };
        let room = leave.into_room();
        let latency = || self.server.store.clock.now() - job.received;
        let first = match first {
            Ok(first) => first,
            Err(status) => {
                metrics.read_not_found(status, latency());
                self.put_failure(&job.to, status);
                return Ok(());
            }
        };
        let more = fill.more_like(first.body.len() as u64, BATCH_BYTES_MAX).min(FOLLOWERS_MAX);
        let followers = self.followers(relay, &wanted, more, &first).await;
        let (mut entries, mut permits) = (vec![first.body], vec![first.permit, room]);
        for (next, room) in followers {
            if !fill.take(next.body.len() as u64) {
                break;
            }
            permits.extend([next.permit, room]);
            entries.push(next.body);
        }
        for entry in &entries {
            metrics.read_found(ReadEnd::Relayed, entry.len(), latency());
        }
        self.put(&job.to, &Reply::Batch { entries }, permits, &mut Wakeups::default());
        Ok(())
    }

    /// The entries behind the first of a batch, up to the first that is not there soon: `more` at most, and as many as the connection
    /// has turns and memory for while others have enough.
    async fn followers(
        &self,
        relay: &Relay,
        wanted: &Wanted,
        more: usize,
        first: &Relayed,
    ) -> Vec<(Relayed, BytePermit)> {
        let until = wanted.until.min(Instant::now() + FOLLOWERS_TIME);
        let asked = (1..=more as u64).map_while(|place| {
            let entry = first.entry.checked_add(place).filter(|entry| Some(*entry) <= first.last)?;
            let leave = self.spare_leave(relay, first.permit.bytes())?;
            let want = Want::Read(ReadTarget::Entry(entry));
            Some((Wanted { want, fence: None, until, once: true, ..wanted.clone() }, leave))
        });
        let ask = async |(wanted, mut leave): (Wanted, Leave)| match self.ask_members(relay, &wanted, &mut leave).await
        {
            Ok(Outcome::Found(found)) => Some((found, leave.room)),
            Ok(_) | Err(NoRoom(_)) => None,
        };
        join_all(asked.map(ask)).await.into_iter().map_while(|found| found).collect()
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
        while let Some(Waiting { job, bytes }) = reads.relays.pop() {
            let (until, ledger) = (relay.until(job.received()), job.ledger());
            match tokio::time::timeout_at(until, reads.relay_turn(&relay, bytes)).await {
                Ok(Some(leave)) => {
                    let (serving, relay) = (reads.clone(), relay.clone());
                    reads.server.tasks.spawn("relayed read", async move {
                        serving.serve_relay(&relay, job, leave).await;
                    });
                }
                Ok(None) => refuse(&reads, job, Status::Io),
                Err(_) => refuse(&reads, job, relay.had_no_turn(ledger)),
            }
        }
    }
    .boxed()
}
