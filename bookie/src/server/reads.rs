use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::budget::BytePermit;
use ledger::{LedgerId, MasterKey};
use proto::{ReadTarget, Reply, ReplyTo, Request, Status};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::Server;
use super::outbox::Outbox;
use crate::ledger_state::{Durability, Tombstone};
use crate::metrics::ReadEnd;
use crate::store::{Fetched, LedgerSlot, Located, Spot};
use crate::wakeups::Wakeups;

/// Batches of one connection that may be under way; more stop the reading of its socket.
const BATCHES_MAX: usize = 2;
/// Bytes that one batch reads from the disk before it hands them to the socket.
const STEP_BYTES: u64 = 1 << 20;

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
    end: ReadEnd,
}

#[derive(Clone, Debug)]
enum Kind {
    Plain,
    Fence(Option<MasterKey>),
    Lac,
}

type Key = (LedgerId, ReadTarget, bool);

impl ReadJob {
    /// The read that a request asks for.
    pub(super) fn new(to: ReplyTo, request: &Request, received: Instant) -> Self {
        let (target, kind) = match request {
            Request::Read { target, fence: true, master_key, .. } => (*target, Kind::Fence(*master_key)),
            Request::Read { target, .. } => (*target, Kind::Plain),
            Request::Add { entry, .. } => (ReadTarget::Entry(*entry), Kind::Plain),
            Request::ReadLac { .. } => (ReadTarget::Last, Kind::Lac),
        };
        Self { to, ledger: request.ledger(), target, kind, slot: None, received, end: ReadEnd::Buffer }
    }

    pub(super) fn ledger(&self) -> LedgerId {
        self.ledger
    }

    pub(super) fn target(&self) -> ReadTarget {
        self.target
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
        let state = slot.lock();
        let fenced = state.fenced && state.fence_durability == Durability::Yes;
        !(fenced && key.is_some() && state.master_key == *key)
    }

    fn reply(&self, answer: Result<Fetched, Status>) -> Reply {
        match (&self.kind, answer) {
            (Kind::Lac, Ok(found)) => Reply::Lac { explicit: None, last_entry: Some(found.body) },
            (Kind::Lac, Err(status)) => {
                // The protocol tells "no entry" for a ledger that was never here, but a deleted one was.
                let dropped = self.slot.as_ref().is_some_and(|slot| slot.lock().tombstone == Some(Tombstone::Deleted));
                match status {
                    Status::NoEntry => Reply::Lac { explicit: None, last_entry: None },
                    Status::NoLedger if !dropped => Reply::Lac { explicit: None, last_entry: None },
                    status => Reply::Failed(status),
                }
            }
            (_, Ok(found)) => Reply::Read { body: found.body, max_lac: found.last_confirmed },
            (_, Err(status)) => Reply::Failed(status),
        }
    }
}

/// The reads of one connection.
pub(super) struct Reads {
    server: Arc<Server>,
    outbox: Arc<Outbox>,
    /// Reads under way, and those of the same entry that wait for them.
    turns: Mutex<HashMap<Key, VecDeque<ReadJob>>>,
    batches: Arc<Semaphore>,
}

impl Reads {
    pub(super) fn new(server: Arc<Server>, outbox: Arc<Outbox>) -> Self {
        Self { server, outbox, turns: Mutex::default(), batches: Arc::new(Semaphore::new(BATCHES_MAX)) }
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

    fn next_turn(&self, key: &Key) -> Option<ReadJob> {
        let mut turns = self.turns();
        let next = turns.get_mut(key)?.pop_front();
        if next.is_none() {
            turns.remove(key);
        }
        next
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
        permit: Option<BytePermit>,
        wakeups: &mut Wakeups,
    ) {
        let metrics = &self.server.store.metrics;
        let latency = self.server.store.clock.now() - job.received;
        match &answer {
            Ok(found) => metrics.read_found(job.end, found.body.len(), latency),
            Err(status) => metrics.read_not_found(*status, latency),
        }
        self.outbox.put(&job.to, &job.reply(answer), permit);
        self.outbox.close_read();
        wakeups.add(&self.outbox);
    }

    /// Serves a read to its end, fence included, and those that waited for it.
    pub(super) async fn serve(&self, job: ReadJob, slot: Arc<LedgerSlot>) {
        let key = job.key();
        let mut next = Some(job.with_slot(slot));
        while let Some(job) = next {
            self.serve_one(job).await;
            next = self.next_turn(&key);
        }
    }

    async fn serve_one(&self, mut job: ReadJob) {
        let (answer, permit) = match self.read_one(&mut job).await {
            Ok((found, permit)) => (Ok(found), Some(permit)),
            Err(status) => (Err(status), None),
        };
        self.answer(&job, answer, permit, &mut Wakeups::default());
    }

    async fn read_one(&self, job: &mut ReadJob) -> Result<(Fetched, BytePermit), Status> {
        let store = &self.server.store;
        let slot = match &job.slot {
            Some(slot) => slot.clone(),
            None => store.slot(job.ledger).await.map_err(|_| Status::Io)?,
        };
        job.slot = Some(slot.clone());
        if let Kind::Fence(key) = &job.kind {
            // Nothing is told, not even that an entry is missing, before the fence is durable.
            store.fence(&slot, key.as_ref()).await?;
        }
        match store.locate(&slot, job.target).await? {
            Located::Here(found) => {
                let permit = self.server.reads.acquire(found.body.len() as u64).await;
                Ok((found, permit))
            }
            Located::There(spot) => {
                job.end = ReadEnd::Segment;
                let permit = self.server.reads.acquire(spot.bytes()).await;
                let found = self.fetch(std::slice::from_ref(&spot)).await.pop().unwrap_or(Err(Status::Io))?;
                Ok((found, permit))
            }
        }
    }

    async fn fetch(&self, spots: &[Spot]) -> Vec<Result<Fetched, Status>> {
        // The semaphore is never closed.
        let _turn = self.server.disk_reads.acquire().await.ok();
        self.server.store.fetch(spots).await
    }

    /// Serves plain reads together: a step at a time, so that what is in memory is bounded by the step and the read budget.
    pub(super) async fn serve_batch(&self, batch: Vec<ReadJob>) {
        let mut step = Step::default();
        for job in batch {
            let Some(slot) = job.slot.clone() else { continue };
            match self.server.store.locate(&slot, job.target).await {
                Ok(Located::Here(found)) => {
                    let permit = self.server.reads.acquire(found.body.len() as u64).await;
                    self.finish(job, Ok(found), Some(permit)).await;
                }
                Ok(Located::There(spot)) => step.push(job, spot),
                Err(status) => self.finish(job, Err(status), None).await,
            }
            if step.bytes >= STEP_BYTES {
                self.run(std::mem::take(&mut step)).await;
            }
        }
        self.run(step).await;
    }

    async fn run(&self, step: Step) {
        if step.jobs.is_empty() || !self.outbox.wait_for_room_to_answer().await {
            for job in step.jobs {
                self.finish(job, Err(Status::Io), None).await;
            }
            return;
        }
        let mut permit = self.server.reads.acquire(step.bytes).await;
        let answers = self.fetch(&step.spots).await;
        for ((job, spot), answer) in step.jobs.iter().zip(&step.spots).zip(answers) {
            let part = permit.split(spot.bytes());
            self.answer(job, answer, Some(part), &mut Wakeups::default());
        }
        // Those that waited ask the budget again, which nobody may do while holding a part of it.
        drop(permit);
        for job in &step.jobs {
            self.serve_waiting(&job.key()).await;
        }
    }

    async fn finish(&self, job: ReadJob, answer: Result<Fetched, Status>, permit: Option<BytePermit>) {
        self.answer(&job, answer, permit, &mut Wakeups::default());
        self.serve_waiting(&job.key()).await;
    }

    /// Serves the reads that waited for one that is answered.
    async fn serve_waiting(&self, key: &Key) {
        while let Some(next) = self.next_turn(key) {
            self.serve_one(next).await;
        }
    }
}

/// Reads that go to the disk together.
#[derive(Default)]
struct Step {
    jobs: Vec<ReadJob>,
    spots: Vec<Spot>,
    bytes: u64,
}

impl Step {
    fn push(&mut self, mut job: ReadJob, spot: Spot) {
        job.end = ReadEnd::Segment;
        self.bytes += spot.bytes();
        self.jobs.push(job);
        self.spots.push(spot);
    }
}
