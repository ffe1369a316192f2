//! The handle of a ledger being read, and the window of reads under way.
//!
//! A read stream asks for entries ahead of its consumer, each from the first member of its write set that is not suspected to
//! be down, and hands them out in order. It has no task: it moves when it is polled. What it has asked for is bounded by
//! entries and by bytes: each read is charged to the stream's part of the client's read budget, at first by the mean size of
//! the entries seen, then by what really came. A body that turns out to be larger and finds no room is dropped as it arrives
//! and asked for again later, except that of the head, which always has room. Only the head may wait for the budget, so
//! streams cannot wait for each other in a ring.
//!
//! When no replica gives an entry, the metadata is read again, once for that entry: members change when a closed ledger is
//! repaired or released. What is left then is judged by the ledger's end: an entry below it that every replica denies is
//! damage, and an error is never told as absence.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::budget::BytePermit;
use futures::Stream;
use ledger::{EntryId, LedgerId, LedgerMetadata, LedgerState};
use proto::ReadTarget;
use tokio::sync::mpsc;

use crate::error::{Error, ErrorKind};
use crate::geometry::{Geometry, IndexSet};
use crate::pool::{Channel, Lane};
use crate::read::{EntryRead, Problem, ReadStep, ReplicaAnswer};
use crate::request::{Answer, Ask, READ_OVERHEAD_BYTES, ReadCharge, Reply, Request, Room, Sink};
use crate::shared::{Core, Keys, ReadEntry, hot_members, problem_error};

/// Assumed of entries while nothing is known.
const FIRST_GUESS_BYTES: u64 = 16 * 1024;

/// A ledger open for reading. Cheap to clone.
#[derive(Clone)]
pub struct LedgerReader {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    ledger: LedgerId,
    keys: Keys,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    metadata: Arc<LedgerMetadata>,
    /// The highest end known to be confirmed; never goes back.
    last_confirmed: Option<EntryId>,
    /// The mean body, once something is known.
    mean_bytes: Option<u64>,
}

impl LedgerReader {
    pub(crate) fn new(
        core: &Arc<Core>,
        ledger: LedgerId,
        metadata: LedgerMetadata,
        keys: Keys,
        last_confirmed: Option<EntryId>,
    ) -> Self {
        let mean_bytes = match metadata.state() {
            LedgerState::Closed { last_entry: Some(last), length } => Some(length / (last.get() + 1) + 64),
            _ => None,
        };
        let state = Mutex::new(State { metadata: Arc::new(metadata), last_confirmed, mean_bytes });
        Self { inner: Arc::new(Inner { core: Arc::clone(core), ledger, keys, state }) }
    }

    /// The ledger's id.
    pub fn id(&self) -> LedgerId {
        self.inner.ledger
    }

    /// The metadata as this reader knows it.
    pub fn metadata(&self) -> Arc<LedgerMetadata> {
        Arc::clone(&self.inner.lock().metadata)
    }

    /// How far the ledger is confirmed: its end when it is closed, else what its last ensemble says now. Never goes back.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// When too few members answer, or the metadata cannot be read.
    pub async fn last_confirmed(&self) -> Result<Option<EntryId>, Error> {
        self.inner.last_confirmed().await
    }

    /// Reads the entries of a half-open range in order, asking ahead. Every entry is checked against its digest, and another
    /// replica is tried when one fails. Ends after the range, or after the first error: `NoSuchEntry` beyond the end of a closed
    /// ledger, `NotConfirmed` beyond what is confirmed of an open one, `Damaged` for an entry that should be there and that
    /// every replica denies or holds damaged, `Cold` when its replicas are in the cold tier, else what went wrong.
    ///
    /// Dropping the stream gives up the reads under way.
    pub fn read(&self, range: Range<EntryId>) -> impl Stream<Item = Result<ReadEntry, Error>> + Send + use<> {
        let run = Run::new(Arc::clone(&self.inner), range);
        futures::stream::unfold(Some(run), |run| async move {
            let mut run = run?;
            match run.next().await {
                Some(Ok(entry)) => Some((Ok(entry), Some(run))),
                Some(Err(error)) => Some((Err(error), None)),
                None => None,
            }
        })
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn last_confirmed(&self) -> Result<Option<EntryId>, Error> {
        let known = self.lock().clone();
        if known.metadata.is_closed() {
            return Ok(known.metadata.last_entry());
        }
        // The ledger may have been closed meanwhile; its end says more than its members.
        let metadata = self.refresh().await?;
        if metadata.is_closed() {
            return Ok(metadata.last_entry());
        }
        let found = self.core.read_last_confirmed(self.ledger, &metadata, &self.keys).await?;
        let mut state = self.lock();
        state.last_confirmed = state.last_confirmed.max(found);
        Ok(state.last_confirmed)
    }

    /// Reads the metadata as a proof and keeps it.
    async fn refresh(&self) -> Result<Arc<LedgerMetadata>, Error> {
        let Some(record) = self.core.read_record(self.ledger).await? else {
            return Err(Error::new(ErrorKind::NoSuchLedger, format!("read ledger {}: it was deleted", self.ledger)));
        };
        let metadata = Arc::new(record.metadata);
        let mut state = self.lock();
        state.last_confirmed = state.last_confirmed.max(metadata.last_entry());
        state.metadata = Arc::clone(&metadata);
        Ok(metadata)
    }
}

/// An entry under way.
struct Slot {
    search: EntryRead,
    /// The ensemble that the search's indices mean.
    members: Arc<Members>,
    found: Option<ReadEntry>,
    /// How the search ended without the entry.
    failed: Option<ReadStep>,
    is_second_try: bool,
    /// Rides with the request while one is under way, and stays here with the body.
    charge: Option<ReadCharge>,
}

/// The members of a segment and the ways to them.
struct Members {
    first_entry: EntryId,
    ensemble: Vec<ledger::BookieId>,
    hot: IndexSet,
    channels: Vec<Option<Channel>>,
}

/// One pass over a range.
struct Run {
    inner: Arc<Inner>,
    geometry: Option<Geometry>,
    /// The next entry to hand out.
    head: EntryId,
    end: EntryId,
    /// Entries from `head` on that were asked for.
    window: VecDeque<Slot>,
    members: Option<Arc<Members>>,
    suspects: IndexSet,
    room: Arc<Room>,
    replies: mpsc::UnboundedSender<Reply>,
    answers: mpsc::UnboundedReceiver<Reply>,
}

impl Run {
    fn new(inner: Arc<Inner>, range: Range<EntryId>) -> Self {
        let geometry = Geometry::new(inner.lock().metadata.quorums()).ok();
        let (replies, answers) = mpsc::unbounded_channel();
        let core = &inner.core;
        let budget = core.read_budget.child("read-stream", core.config.read_window_bytes.bytes());
        let room = Arc::new(Room { budget, head: AtomicU64::new(range.start.get()) });
        Self {
            inner,
            geometry,
            head: range.start,
            end: range.end,
            window: VecDeque::new(),
            members: None,
            suspects: IndexSet::EMPTY,
            room,
            replies,
            answers,
        }
    }

    async fn next(&mut self) -> Option<Result<ReadEntry, Error>> {
        if self.head >= self.end {
            return None;
        }
        loop {
            if let Err(error) = self.ask_ahead().await {
                return Some(Err(error));
            }
            if let Some(head) = self.window.front_mut() {
                if let Some(found) = head.found.take() {
                    self.window.pop_front();
                    self.head = self.head.next();
                    self.room.head.store(self.head.get(), Ordering::Release);
                    return Some(Ok(found));
                }
                if let Some(step) = head.failed.take() {
                    if let Err(error) = self.on_head_failed(step).await {
                        return Some(Err(error));
                    }
                    continue;
                }
            }
            // `replies` lives in `self`, so the queue never ends, and every read is answered by its deadline.
            if let Some(reply) = self.answers.recv().await {
                self.on_reply(reply);
            }
            while let Ok(reply) = self.answers.try_recv() {
                self.on_reply(reply);
            }
        }
    }

    /// Fills the window. The error is that of the head; further entries are not asked for before their turn.
    async fn ask_ahead(&mut self) -> Result<(), Error> {
        let entries_max = self.inner.core.config.read_window_entries.max(1);
        loop {
            let in_window = self.window.len();
            let Some(entry) = self.head.checked_add(in_window as u64).filter(|entry| *entry < self.end) else {
                return Ok(());
            };
            let state = self.inner.lock().clone();
            let cost = state.mean_bytes.unwrap_or(FIRST_GUESS_BYTES) + READ_OVERHEAD_BYTES;
            if in_window >= entries_max {
                return Ok(());
            }
            if Some(entry) > state.last_confirmed {
                if in_window > 0 {
                    return Ok(());
                }
                self.check_end(entry).await?;
                continue;
            }
            let permit = match self.room.budget.try_acquire(cost) {
                Some(permit) => permit,
                None if in_window > 0 => return Ok(()),
                None => self.wait_for_room(entry, cost).await?,
            };
            let charge = ReadCharge { room: Arc::clone(&self.room), permit };
            let slot = self.start(entry, &state.metadata, Some(charge), false)?;
            self.window.push_back(slot);
        }
    }

    /// Waits for room for the head, while nothing else is asked for.
    async fn wait_for_room(&mut self, entry: EntryId, cost: u64) -> Result<BytePermit, Error> {
        let deadline = self.inner.core.clock.now() + self.inner.core.config.read_timeout.duration();
        loop {
            tokio::select! {
                biased;
                permit = self.room.budget.acquire(cost) => return Ok(permit),
                // Left over from entries that lost their place in the window; its charge goes with it.
                Some(_) = self.answers.recv() => {}
                () = tokio::time::sleep_until(deadline) => {
                    let ledger = self.inner.ledger;
                    let message = format!("read entry {entry} of ledger {ledger}: the read budget is used up");
                    return Err(Error::new(ErrorKind::TooManyRequests, message));
                }
            }
        }
    }

    /// Whether an entry beyond the known end exists by now.
    async fn check_end(&self, entry: EntryId) -> Result<(), Error> {
        let last = self.inner.last_confirmed().await?;
        if Some(entry) <= last {
            return Ok(());
        }
        let ledger = self.inner.ledger;
        let end = last.map_or_else(|| "is empty".to_owned(), |last| format!("ends at {last}"));
        if self.inner.lock().metadata.is_closed() {
            let message = format!("read entry {entry} of ledger {ledger}: the ledger is closed and {end}");
            return Err(Error::new(ErrorKind::NoSuchEntry, message));
        }
        let message = format!("read entry {entry} of ledger {ledger}: it is not confirmed, what is confirmed {end}");
        Err(Error::new(ErrorKind::NotConfirmed, message))
    }

    fn start(
        &mut self,
        entry: EntryId,
        metadata: &LedgerMetadata,
        charge: Option<ReadCharge>,
        is_second_try: bool,
    ) -> Result<Slot, Error> {
        let geometry = match self.geometry {
            Some(geometry) => geometry,
            None => Geometry::new(metadata.quorums())?,
        };
        let members = self.members_for(entry, metadata);
        let mut search = EntryRead::new(geometry, entry, members.hot);
        let step = search.start(self.suspects);
        let mut slot = Slot { search, members, found: None, failed: None, is_second_try, charge };
        self.on_step(&mut slot, step);
        Ok(slot)
    }

    fn members_for(&mut self, entry: EntryId, metadata: &LedgerMetadata) -> Arc<Members> {
        let segment = metadata.segment_for(entry);
        let known = self.members.as_ref();
        if let Some(known) =
            known.filter(|known| known.first_entry == segment.first_entry && known.ensemble == segment.ensemble)
        {
            return Arc::clone(known);
        }
        let hot = hot_members(&segment.ensemble);
        let channel = |(index, bookie)| hot.contains(index).then(|| self.inner.core.pool.channel(bookie, Lane::Normal));
        let members = Arc::new(Members {
            first_entry: segment.first_entry,
            ensemble: segment.ensemble.clone(),
            hot,
            channels: segment.ensemble.iter().enumerate().map(channel).collect(),
        });
        // Suspicion is by index.
        self.suspects = IndexSet::EMPTY;
        self.members = Some(Arc::clone(&members));
        members
    }

    fn on_step(&self, slot: &mut Slot, step: ReadStep) {
        match step {
            ReadStep::Ask(index) => {
                let target = ReadTarget::Entry(slot.search.entry());
                let ask = Ask::Read { ledger: self.inner.ledger, target, fence: None };
                let sink = Sink::read(&self.replies, index, target).charged(slot.charge.take());
                let deadline = self.inner.core.clock.now() + self.inner.core.config.read_timeout.duration();
                if let Some(Some(channel)) = slot.members.channels.get(index) {
                    channel.send(Request { ask, deadline, sink });
                }
            }
            ReadStep::Found | ReadStep::Ignore => {}
            failed => slot.failed = Some(failed),
        }
    }

    fn on_reply(&mut self, reply: Reply) {
        let Reply { index, target: ReadTarget::Entry(entry), answer, charge, .. } = reply else { return };
        if entry < self.head {
            return;
        }
        let Ok(place) = usize::try_from(entry.since(self.head)) else { return };
        let Some(slot) = self.window.get_mut(place).filter(|slot| slot.search.asked() == Some(index)) else {
            return;
        };
        slot.charge = charge;
        let answer = match answer {
            Answer::Body(body) => match self.inner.keys.digester.open(self.inner.ledger, Some(entry), &body) {
                Ok(opened) => {
                    learn_size(&self.inner, body.len() as u64);
                    self.inner.core.metrics.read(body.len());
                    slot.found = Some(ReadEntry { entry: opened, body });
                    ReplicaAnswer::Found
                }
                Err(error) => {
                    self.inner.core.metrics.damaged();
                    let bookie = &slot.members.ensemble[index];
                    tracing::warn!(ledger_id = %self.inner.ledger, entry_id = %entry, %bookie, "damaged replica: {error}");
                    ReplicaAnswer::Problem(Problem::Damaged)
                }
            },
            Answer::NoRoom(body_bytes) => {
                learn_size(&self.inner, body_bytes);
                self.on_no_room(place);
                return;
            }
            answer => answer.to_problem().map_or(ReplicaAnswer::Absent, ReplicaAnswer::Problem),
        };
        let is_current = self.members.as_ref().is_some_and(|current| Arc::ptr_eq(current, &slot.members));
        match answer {
            ReplicaAnswer::Found if is_current => {
                self.suspects.remove(index);
            }
            ReplicaAnswer::Problem(Problem::TimedOut | Problem::Disconnected) if is_current => {
                self.suspects.insert(index);
            }
            _ => {}
        }
        let step = slot.search.on(index, answer, self.suspects);
        if let ReadStep::Found | ReadStep::Ignore = step {
            return;
        }
        if let ReadStep::Ask(_) = step {
            self.inner.core.metrics.read_retried();
        }
        // The slot leaves the window for a moment, so that the rest of `self` can be used.
        if let Some(mut slot) = self.window.remove(place) {
            self.on_step(&mut slot, step);
            self.window.insert(place, slot);
        }
    }

    /// The body of the slot at `place` was dropped on arrival. It is asked for again in its turn, and so are those behind it:
    /// what they hold is better used for the ones before.
    fn on_no_room(&mut self, place: usize) {
        self.window.truncate(place.max(1));
        if place > 0 {
            return;
        }
        // It has become the head meanwhile, and the head needs no room.
        if let Some(mut slot) = self.window.pop_front() {
            slot.search = EntryRead::new(slot.search.geometry(), slot.search.entry(), slot.members.hot);
            let step = slot.search.start(self.suspects);
            self.on_step(&mut slot, step);
            self.window.push_front(slot);
        }
    }

    /// No replica gave the entry at the head.
    async fn on_head_failed(&mut self, step: ReadStep) -> Result<(), Error> {
        let entry = self.head;
        let is_second_try = self.window.front().is_none_or(|slot| slot.is_second_try);
        if !is_second_try {
            let metadata = self.inner.refresh().await?;
            let before = self.window.front().map(|slot| Arc::clone(&slot.members));
            let is_changed = before.is_none_or(|before| before.ensemble != metadata.ensemble_of(entry));
            if is_changed {
                // The old slot's permit goes with it; the one entry at the head is always allowed.
                self.window.pop_front();
                let slot = self.start(entry, &metadata, None, true)?;
                self.window.push_front(slot);
                return Ok(());
            }
        }
        let message = format!("read entry {entry} of ledger {}", self.inner.ledger);
        Err(match step {
            ReadStep::Failed(problem) => problem_error(problem, message),
            ReadStep::NotHot => Error::new(ErrorKind::Cold, format!("{message}: its replicas are in the cold tier")),
            ReadStep::Denied { all: false } => {
                Error::new(ErrorKind::Cold, format!("{message}: the hot replicas lack it, others are in the cold tier"))
            }
            _ => Error::new(ErrorKind::Damaged, format!("{message}: it is confirmed, and every replica denies it")),
        })
    }
}

/// Keeps the estimate of the next entries' size near what comes.
fn learn_size(inner: &Inner, bytes: u64) {
    let mut state = inner.lock();
    state.mean_bytes = Some(match state.mean_bytes {
        // Quick to grow, slow to shrink: a guess that is too low makes bodies arrive that have no room.
        Some(mean) if bytes > mean => mean + (bytes - mean) / 2,
        Some(mean) => mean - (mean - bytes) / 32,
        None => bytes,
    });
}
