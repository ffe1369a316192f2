use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use common::budget::BytePermit;
use ledger::{LedgerId, MasterKey};
use proto::{ReadTarget, Reply, ReplyTo, Status};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;

use super::Server;
use super::outbox::Outbox;
use super::relays::{RelayJob, Relays};
use super::step::Step;
use crate::metrics::ReadEnd;
use crate::store::{Fetched, LedgerSlot, Located, Spot, is_absent};
use crate::wakeups::Wakeups;

/// Batches of one connection that may be under way; others wait for their turn.
const BATCHES_MAX: usize = 2;
/// Tasks of one connection that have a turn or wait for one; more stop the reading of its socket, so that whoever asks for more than the disk
/// gives is slowed down before its requests' time begins.
const PLACES: usize = 16;
/// The part of all long polls that may wait on one connection.
const POLLS_PART: usize = 4;
/// Bytes that one batch reads from the disk before it hands them on.
pub(super) const STEP_BYTES: u64 = 1 << 20;

/// A request that ends in a read.
#[derive(Debug)]
pub(super) struct ReadJob {
    to: ReplyTo,
    ledger: LedgerId,
    target: ReadTarget,
    kind: Kind,
    slot: Option<Arc<LedgerSlot>>,
    received: Instant,
    /// Where the entry comes from.
    pub(super) end: ReadEnd,
}

#[derive(Clone, Debug)]
enum Kind {
    Plain,
    Fence(Option<MasterKey>),
    /// The fence is durable.
    Fenced(Option<MasterKey>),
    Lac,
}

type Key = (LedgerId, ReadTarget, bool);

impl ReadJob {
    /// A read without a fence.
    pub(super) fn read(to: ReplyTo, ledger: LedgerId, target: ReadTarget, received: Instant) -> Self {
        Self { to, ledger, target, kind: Kind::Plain, slot: None, received, end: ReadEnd::Buffer }
    }

    /// A read that fences first, with the key that was shown.
    pub(super) fn fencing(
        to: ReplyTo,
        ledger: LedgerId,
        target: ReadTarget,
        key: Option<MasterKey>,
        received: Instant,
    ) -> Self {
        Self { kind: Kind::Fence(key), ..Self::read(to, ledger, target, received) }
    }

    /// A read of the explicit last-add-confirmed and the last entry.
    pub(super) fn last_confirmed(to: ReplyTo, ledger: LedgerId, received: Instant) -> Self {
        Self { kind: Kind::Lac, ..Self::read(to, ledger, ReadTarget::Last, received) }
    }

    pub(super) fn ledger(&self) -> LedgerId {
        self.ledger
    }

    pub(super) fn target(&self) -> ReadTarget {
        self.target
    }

    pub(super) fn received(&self) -> Instant {
        self.received
    }

    /// The key of a fence that is durable when the entry is read.
    pub(super) fn shown_key(&self) -> Option<MasterKey> {
        match self.kind {
            Kind::Fence(key) | Kind::Fenced(key) => key,
            Kind::Plain | Kind::Lac => None,
        }
    }

    pub(super) fn came_from(&mut self, end: ReadEnd) {
        self.end = end;
    }

    pub(super) fn with_slot(mut self, slot: Arc<LedgerSlot>) -> Self {
        self.slot = Some(slot);
        self
    }

    fn key(&self) -> Key {
        (self.ledger, self.target, matches!(self.kind, Kind::Lac))
    }

    /// Whether the journal must be waited for. A recovering client fences with every read; only the first one costs.
    pub(super) fn needs_fence(&self, slot: &LedgerSlot) -> bool {
        let Kind::Fence(key) = &self.kind else { return false };
        !key.as_ref().is_some_and(|key| slot.lock().is_fenced_with(key))
    }

    fn reply(&self, answer: Result<Fetched, Status>) -> Reply {
        match (&self.kind, answer) {
            (Kind::Lac, answer) => {
                let (explicit, dropped) = self.slot.as_ref().map_or((None, false), |slot| {
                    let state = slot.lock();
                    (state.explicit_lac.clone(), state.tombstone.is_some())
                });
                match answer {
                    Ok(found) => Reply::Lac { explicit, last_entry: Some(found.body) },
                    Err(Status::NoEntry) => Reply::Lac { explicit, last_entry: None },
                    // The protocol tells "no entry" for a ledger that was never here, but one that was dropped was.
                    Err(Status::NoLedger) if !dropped => Reply::Lac { explicit, last_entry: None },
                    Err(status) => Reply::Failed(status),
                }
            }
            (_, Ok(found)) => Reply::Read { body: found.body, max_lac: found.last_confirmed },
            (_, Err(status)) => Reply::Failed(status),
        }
    }
}

/// The reads of one connection.
pub(super) struct Reads {
    pub(super) server: Arc<Server>,
    pub(super) outbox: Arc<Outbox>,
    /// Reads under way, and those of the same entry that wait for them.
    turns: Mutex<HashMap<Key, VecDeque<ReadJob>>>,
    batches: Arc<Semaphore>,
    places: Arc<Semaphore>,
    /// Long polls that may wait.
    pub(super) polls: Semaphore,
    /// Those that wait for the relay.
    pub(super) relays: Relays,
    /// Itself, for the tasks it starts.
    pub(super) me: Weak<Self>,
    /// Whether the connection takes no more requests: nobody waits any longer.
    pub(super) ended: watch::Sender<bool>,
}

impl Reads {
    pub(super) fn new(server: Arc<Server>, outbox: Arc<Outbox>) -> Arc<Self> {
        let polls = (server.store.config.long_polls_max / POLLS_PART).max(1);
        let relays = Relays::new(server.relay.as_deref());
        Arc::new_cyclic(|me| Self {
            server,
            outbox,
            turns: Mutex::default(),
            batches: Arc::new(Semaphore::new(BATCHES_MAX)),
            places: Arc::new(Semaphore::new(PLACES)),
            polls: Semaphore::new(polls),
            relays,
            me: me.clone(),
            ended: watch::Sender::new(false),
        })
    }

    /// Ends all waits; what waited is answered from the present state.
    pub(super) fn end_waits(&self) {
        self.ended.send_replace(true);
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<Key, VecDeque<ReadJob>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a read in. It comes back when it may go on; else it waits for one of the same entry and is served after that.
    pub(super) fn take_turn(&self, job: ReadJob) -> Option<ReadJob> {
        self.outbox.open_read();
        let mut turns = self.turns();
        match turns.get_mut(&job.key()) {
            Some(waiting) => {
                waiting.push_back(job);
                None
            }
            None => {
                turns.insert(job.key(), VecDeque::new());
                Some(job)
            }
        }
    }

    /// The next read that waited for one of the same entry; without one its turn ends.
    fn next_turn(&self, key: &Key) -> Option<ReadJob> {
        let mut turns = self.turns();
        let next = turns.get_mut(key)?.pop_front();
        if next.is_none() {
            turns.remove(key);
        }
        next
    }

    /// A place to wait for a turn in, which comes by a deadline: that of who has one. `None` only when the connection is gone. Cancel-safe.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().acquire_owned().await.ok()
    }

    /// Room for another batch; `None` only when the connection is gone. Cancel-safe.
    pub(super) async fn batch_turn(&self) -> Option<OwnedSemaphorePermit> {
        self.batches.clone().acquire_owned().await.ok()
    }

    /// Answers a read that did not have to wait, from the reader of the connection, before anyone else can wait for it.
    pub(super) fn finish_now(
        &self,
        job: ReadJob,
        answer: Result<Fetched, Status>,
        permit: Option<BytePermit>,
        wakeups: &mut Wakeups,
    ) {
        self.answer(&job, answer, permit, wakeups);
        self.turns().remove(&job.key());
    }

    fn answer(
        &self,
        job: &ReadJob,
        answer: Result<Fetched, Status>,
        permits: impl IntoIterator<Item = BytePermit>,
        wakeups: &mut Wakeups,
    ) {
        let metrics = &self.server.store.metrics;
        let latency = self.server.store.clock.now() - job.received;
        match &answer {
            Ok(found) => metrics.read_found(job.end, found.body.len(), latency),
            Err(status) => metrics.read_not_found(*status, latency),
        }
        self.put(&job.to, &job.reply(answer), permits, wakeups);
    }

    /// Puts the answer to an open read down.
    pub(super) fn put(
        &self,
        to: &ReplyTo,
        reply: &Reply,
        permits: impl IntoIterator<Item = BytePermit>,
        wakeups: &mut Wakeups,
    ) {
        self.outbox.put(to, reply, permits);
        self.outbox.close_read();
        wakeups.add(&self.outbox);
    }

    /// Serves reads of a ledger for which the index must be asked.
    pub(super) async fn serve_unloaded(&self, ledger: LedgerId, jobs: Vec<ReadJob>) {
        let Some(until) = jobs.iter().map(|job| self.server.until(job.received)).min() else { return };
        let slot = match self.server.by(until, self.server.load(ledger)).await {
            Ok(slot) => slot,
            Err(status) => return jobs.into_iter().for_each(|job| self.finish(job, Err(status), None)),
        };
        let jobs = jobs.into_iter().map(|job| job.with_slot(slot.clone()));
        let (fences, batch): (Vec<_>, Vec<_>) = jobs.partition(|job| job.needs_fence(&slot));
        for job in fences {
            self.spawn_for(async move |reads| reads.serve_fence(job).await);
        }
        let Some(target) = batch.first().map(|job| job.target) else { return };
        let prepared = async {
            self.server.store.prepare(&slot, target).await;
            Ok(())
        };
        match self.server.by(until, prepared).await {
            Ok(()) => self.serve_batch(batch).await,
            Err(status) => batch.into_iter().for_each(|job| self.finish(job, Err(status), None)),
        }
    }

    /// Starts a task of this connection.
    fn spawn_for<F: Future<Output = ()> + Send + 'static>(&self, serve: impl FnOnce(Arc<Self>) -> F) {
        if let Some(reads) = self.me.upgrade() {
            self.server.tasks.spawn("read", serve(reads));
        }
    }

    /// Serves a fencing read to its end. Only what follows the fence takes turns.
    pub(super) async fn serve_fence(&self, mut job: ReadJob) {
        let until = self.server.until(job.received);
        // Whether a fence that is not durable in time is so later is unknown; nothing was told that it changes.
        match self.server.by(until, self.fence(&mut job)).await {
            Ok(()) => self.serve_in_turn(job).await,
            Err(status) => self.finish(job, Err(status), None),
        }
    }

    /// Fences as the read asks for. Nothing is told, not even that an entry is missing, before the fence is durable. Cancel-safe: the
    /// fence may happen.
    async fn fence(&self, job: &mut ReadJob) -> Result<(), Status> {
        if let (Kind::Fence(key), Some(slot)) = (&job.kind, &job.slot) {
            self.server.store.fence(slot, key.as_ref()).await?;
            job.kind = Kind::Fenced(*key);
        }
        Ok(())
    }

    /// Serves a read to its end, fence included, in a turn of the connection.
    async fn serve_in_turn(&self, mut job: ReadJob) {
        let until = self.server.until(job.received);
        let read = async {
            let _turn = self.batch_turn().await.ok_or(Status::Io)?;
            self.read_one(&mut job).await
        };
        let (answer, permit) = match self.server.by(until, read).await {
            Ok((found, permit)) => (Ok(found), Some(permit)),
            Err(status) => (Err(status), None),
        };
        let status = answer.as_ref().err().copied();
        if let Some(job) = self.keep_or_relay(job, status) {
            self.finish(job, answer, permit);
        }
    }

    /// Gives a read to the relay, if its members are to be asked for what this bookie cannot tell; else it comes back.
    pub(super) fn keep_or_relay(&self, job: ReadJob, status: Option<Status>) -> Option<ReadJob> {
        let relayed = match (&job.slot, status) {
            (Some(slot), Some(status)) => self.is_for_relay(&job.to, slot, status),
            _ => false,
        };
        if relayed {
            self.hand_over(RelayJob::Read(job));
            return None;
        }
        Some(job)
    }

    pub(super) fn answer_one(&self, job: &ReadJob, answer: Result<(Fetched, BytePermit), Status>) {
        let (answer, permit) = match answer {
            Ok((found, permit)) => (Ok(found), Some(permit)),
            Err(status) => (Err(status), None),
        };
        self.answer(job, answer, permit, &mut Wakeups::default());
    }

    /// Reads what a job asks for, fence included. The caller holds a turn. Cancel-safe.
    pub(super) async fn read_one(&self, job: &mut ReadJob) -> Result<(Fetched, BytePermit), Status> {
        let slot = match &job.slot {
            Some(slot) => slot.clone(),
            None => self.server.load(job.ledger).await?,
        };
        job.slot = Some(slot.clone());
        self.fence(job).await?;
        // What came before this read may be on its way to the disk: an entry that is there in a moment is not told as absent.
        let queued = slot.has_queued();
        let located = match self.server.store.locate(&slot, job.target).await {
            Err(status) if queued && is_absent(status) => {
                self.server.store.queued_before().await?;
                self.server.store.locate(&slot, job.target).await?
            }
            located => located?,
        };
        match located {
            Located::Here(found) => {
                let permit = self.admit(found.body.len() as u64).await?;
                Ok((found, permit))
            }
            Located::There(spot) => {
                job.end = ReadEnd::Segment;
                let permit = self.admit(spot.bytes()).await?;
                self.fetch_one(spot, permit).await
            }
        }
    }

    /// Memory for an answer, as soon as the peer takes some. Cancel-safe.
    pub(super) async fn admit(&self, bytes: u64) -> Result<BytePermit, Status> {
        // Before the budget, which others would wait for behind a peer that takes nothing.
        if !self.outbox.wait_for_room_to_answer().await {
            return Err(Status::Io);
        }
        Ok(self.server.reads.acquire(bytes).await)
    }

    /// Reads entries from the disk into memory that `permit` covers. Cancel-safe: the read goes on in a task of its own, which holds the
    /// turn and the permit to its end.
    pub(super) async fn fetch(
        &self,
        spots: Vec<Spot>,
        permit: BytePermit,
    ) -> Result<(Vec<Result<Fetched, Status>>, BytePermit), Status> {
        // The semaphore is never closed.
        let turn = self.server.disk_reads.clone().acquire_owned().await.map_err(|_| Status::Io)?;
        let (store, (told, answers)) = (self.server.store.clone(), oneshot::channel());
        self.server.tasks.spawn("fetch", async move {
            let answers = store.fetch(&spots).await;
            drop(turn);
            // Nobody may wait any more.
            let _ = told.send((answers, permit));
        });
        answers.await.map_err(|_| Status::Io)
    }

    /// As [`Reads::fetch`].
    pub(super) async fn fetch_one(&self, spot: Spot, permit: BytePermit) -> Result<(Fetched, BytePermit), Status> {
        let (mut found, permit) = self.fetch(vec![spot], permit).await?;
        Ok((found.pop().unwrap_or(Err(Status::Io))?, permit))
    }

    /// Serves reads of ledgers in memory together: a step at a time, so that what is in memory is bounded by the step and the read
    /// budget.
    pub(super) async fn serve_batch(&self, batch: Vec<ReadJob>) {
        let Some(until) = batch.iter().map(|job| self.server.until(job.received)).min() else { return };
        let _turn = match self.server.by(until, async { self.batch_turn().await.ok_or(Status::Io) }).await {
            Ok(turn) => turn,
            Err(status) => return batch.into_iter().for_each(|job| self.finish(job, Err(status), None)),
        };
        let (mut jobs, mut again) = (batch, false);
        loop {
            let (mut step, mut queued) = (Step::default(), Vec::new());
            for job in jobs {
                let Some(slot) = job.slot.clone() else { continue };
                let may_come = !again && slot.has_queued();
                match self.server.by(until, self.server.store.locate(&slot, job.target)).await {
                    // As in [`Reads::read_one`], for all of them at once.
                    Err(status) if may_come && is_absent(status) => queued.push(job),
                    located => self.settle(job, located, &mut step, until).await,
                }
                if step.bytes >= STEP_BYTES {
                    self.run(std::mem::take(&mut step), until).await;
                }
            }
            self.run(step, until).await;
            if queued.is_empty() {
                return;
            }
            if let Err(status) = self.server.by(until, self.server.store.queued_before()).await {
                return queued.into_iter().for_each(|job| self.finish(job, Err(status), None));
            }
            (jobs, again) = (queued, true);
        }
    }

    /// Answers a read that was in memory or has nothing to read, and puts others into `step`.
    async fn settle(&self, job: ReadJob, located: Result<Located, Status>, step: &mut Step, until: Instant) {
        match located {
            Ok(Located::Here(found)) => match self.server.by(until, self.admit(found.body.len() as u64)).await {
                Ok(permit) => self.finish(job, Ok(found), Some(permit)),
                Err(status) => self.finish(job, Err(status), None),
            },
            Ok(Located::There(spot)) => step.push(job, spot),
            Err(status) => {
                if let Some(job) = self.keep_or_relay(job, Some(status)) {
                    self.finish(job, Err(status), None);
                }
            }
        }
    }

    async fn run(&self, step: Step, until: Instant) {
        if step.jobs.is_empty() {
            return;
        }
        let Step { jobs, spots, bytes } = step;
        let parts: Vec<u64> = spots.iter().map(Spot::bytes).collect();
        let fetch = async {
            let permit = self.admit(bytes).await?;
            self.fetch(spots, permit).await
        };
        match self.server.by(until, fetch).await {
            Ok((answers, mut permit)) => {
                for ((job, bytes), answer) in jobs.into_iter().zip(parts).zip(answers) {
                    let part = permit.split(bytes);
                    self.finish(job, answer, Some(part));
                }
            }
            Err(status) => jobs.into_iter().for_each(|job| self.finish(job, Err(status), None)),
        }
    }

    /// Answers a read that holds the turn of its entry, and has those served that wait for it: beside others, because each of them has
    /// time of its own.
    pub(super) fn finish(
        &self,
        job: ReadJob,
        answer: Result<Fetched, Status>,
        permits: impl IntoIterator<Item = BytePermit>,
    ) {
        self.answer(&job, answer, permits, &mut Wakeups::default());
        if let Some(next) = self.next_turn(&job.key()) {
            self.spawn_for(async move |reads| reads.serve_in_turn(next).await);
        }
    }
}
