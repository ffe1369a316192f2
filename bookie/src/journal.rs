//! The journal: one writer that makes queued records durable, a group at a time, and answers in order.
//!
//! # Order
//! Records are queued under the lock of their ledger, so the queue holds them in the order they were admitted. The writer takes
//! everything that waits (up to a limit), writes it as one group with one sync, makes it visible, then answers. A few groups are at
//! the disk at the same time; in whatever order they become durable, they are made visible and answered in their own: a group once
//! it and all before it are durable. While the disk has all it may have, the next group is gathered, and made ready once it is
//! full; when there is room again it goes to the disk first, and then what is durable is made visible and answered.
//!
//! Each group says how many of those before it may not be durable yet (`GroupHead::settled_through`). After a burst, when the
//! journal rests, and at an orderly stop, a group without records says that they all are. All groups of a segment are durable before the next is opened.
//!
//! # Stalls
//! A disk that does not answer is waited for. What waits longer than [`ANSWER_AFTER`] is answered with an I/O error all the same, which says that it
//! may be written: it is, in its turn, and then visible. Its memory is given back only then, so the add budget bounds what waits.
//!
//! # Failures
//! A failed write or sync says nothing certain about the disk, so it ends writing for good (`Condition::fail`): all records that
//! are not answered yet, and all later ones, are answered with an I/O error and never acknowledged. Missing space is different: segments are
//! reserved before they are used, so it shows before anything is written; entries are refused as read-only, those of recovery and
//! repair go on in the space that is kept for them, and keys and fences in what every segment keeps back, then in small segments
//! of their own ([`Class`]). An index without space is the same: a
//! new segment cannot be named in it, full ones wait to be sealed and are served as they are.
//!
//! # Crash
//! Groups may be torn or missing while some behind them are whole. The next start cuts the journal at the first that is not whole,
//! provided that each whole one behind it says that it may not have been durable: then nothing from there on was acknowledged.
//! Otherwise the start is refused (`replay.rs`). A spare segment that was never opened for writing is removed.

mod flight;
mod group;
mod maker;
mod queue;
mod replay;
mod room;
mod seal;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

pub(crate) use maker::SegmentMaker;
pub(crate) use queue::{Class, Completion, JournalQueue, Pending, Work};
pub(crate) use replay::{Replayed, Reread, Tail, Visited, begins_with_a_group, replay, reread, walk};
pub(crate) use seal::{SealJob, Sealer, enter, seal};

use crate::config::SyncMode;
use crate::disk::BLOCK_BYTES;
use crate::error::Error;
use crate::store::{OpenSegment, Store};
use crate::wakeups::Wakeups;
use flight::{Berth, Flight, Flights};
use group::{Demand, Group};
use room::NoRoom;

/// Full segments that may wait to be sealed before the writer waits for the sealer: bounds the memory of their indexes.
pub(crate) const SEAL_QUEUE: usize = 1;
/// What must wait for the journal before a group goes to the disk beside another: smaller ones would cost more syncs, wake-ups and
/// padding than their head start is worth.
const OVERLAP_BYTES_MIN: u64 = 64 << 10;
/// How long the journal rests before it notes that its last groups are durable.
const SETTLE_AFTER: Duration = Duration::from_millis(50);

/// When a request is answered that the journal has not come to: later than clients wait by themselves.
const ANSWER_AFTER: Duration = Duration::from_secs(30);
/// How often it is looked for such requests while the journal waits.
const LATE_CHECK: Duration = Duration::from_millis(500);

/// The one task that writes the journal.
pub(crate) struct JournalWriter {
    store: Arc<Store>,
    maker: Arc<SegmentMaker>,
    seal: mpsc::Sender<SealJob>,
    current: Option<Arc<OpenSegment>>,
    /// Where the next group goes in it.
    end: u64,
    flights: Flights,
    /// What is on its way to a group.
    next: Vec<Pending>,
    /// A full segment that the sealer had no place for.
    full: Option<Arc<OpenSegment>>,
    /// Of the last group that was sent on its way.
    sequence: u64,
    /// Whether no group on the disk says of all before the last that they are durable.
    unsettled: bool,
    /// Whether the last group has records.
    unclosed: bool,
    spare_asked: bool,
}

impl JournalWriter {
    /// A writer that goes on after the group with sequence `last_sequence`.
    pub(crate) fn new(
        store: Arc<Store>,
        maker: Arc<SegmentMaker>,
        seal: mpsc::Sender<SealJob>,
        last_sequence: u64,
    ) -> Self {
        let flights = Flights::new(store.clone(), 1);
        let (current, full, end, next) = (None, None, BLOCK_BYTES as u64, Vec::new());
        let (sequence, unsettled, unclosed, spare_asked) = (last_sequence, false, false, false);
        Self { store, maker, seal, current, end, flights, next, full, sequence, unsettled, unclosed, spare_asked }
    }

    /// Opens the first segment, or goes read-only when there is no space for it.
    pub(crate) async fn open_first(&mut self) -> Result<(), Error> {
        match self.roll(self.store.config.segment_bytes.bytes(), Class::Normal).await {
            Ok(()) => Ok(()),
            Err(NoRoom::Space(reason)) => {
                self.store.condition.read_only(reason);
                Ok(())
            }
            Err(NoRoom::Failed(reason)) => Err(Error::JournalFailed(reason)),
        }
    }

    /// Writes until the queue is closed and empty.
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let limit = self.store.config.group_bytes();
        let store = self.store.clone();
        loop {
            // While the disk has enough to do, what comes goes on gathering until it fills a group.
            let enough = match () {
                () if self.flights.is_full() => limit,
                () if self.flights.is_empty() => 0,
                () => OVERLAP_BYTES_MIN.min(limit),
            };
            let may_take = !self.flights.has_waiting();
            let may_settle = self.unsettled && self.flights.is_empty();
            tokio::select! {
                biased;
                landed = self.flights.landed() => self.land(landed).await,
                batch = store.queue.take(limit, enough), if may_take => match batch {
                    Some(batch) => self.send_off(batch).await,
                    None => break,
                },
                () = tokio::time::sleep(SETTLE_AFTER), if may_settle => self.settle(),
                () = tokio::time::sleep(LATE_CHECK), if !self.flights.is_empty() => self.answer_late(),
            }
        }
        // A failure has answered all.
        // Behind the last records too: without it damage there would pass for what a crash tore.
        if self.drain().await.is_ok() && (self.unsettled || self.unclosed) {
            self.settle();
            let _ = self.drain().await;
        }
        if let Some(full) = self.full.take() {
            // A sealer that waits for space has no place, and the segment is replayed at the next start.
            let _ = self.seal.try_send(SealJob(full));
        }
        Ok(())
    }

    /// Makes a group of a batch and sends it on its way.
    async fn send_off(&mut self, batch: Vec<Pending>) {
        self.next = batch;
        let written = match self.store.condition.failure() {
            Some(reason) => Err(reason.to_owned()),
            None => self.make_room_for_next().await,
        };
        let least = match written {
            Ok(least) => least,
            Err(reason) => {
                // In order: those before it are answered first.
                let _ = self.drain().await;
                let group = Group::new(std::mem::take(&mut self.next), |_| true);
                return self.fail(group, reason);
            }
        };
        let group =
            Group::new(std::mem::take(&mut self.next), |pending| least.is_some_and(|least| pending.class() >= least));
        match self.current.clone().filter(|_| !group.is_empty()) {
            Some(segment) => self.write(group, segment),
            None => self.flights.push(Flight::of_nothing(group)),
        }
    }

    /// Sends a group on its way to its place.
    fn write(&mut self, group: Group, segment: Arc<OpenSegment>) {
        self.flights.set_at_disk_max(if segment.file.overlaps() { self.store.config.journal_writes } else { 1 });
        let (start, sequence, unsettled) = (self.end, self.sequence + 1, self.flights.unsettled());
        let buffer = self.store.group_buffer(group.bytes());
        let (buffer, places) = group.encode(&segment.header, start, (sequence, unsettled), buffer);
        (self.end, self.sequence, self.unsettled) = (start + buffer.len() as u64, sequence, unsettled > 0);
        self.unclosed = !group.is_empty();
        let berth = Berth { segment, start, end: self.end, sequence, bytes: group.bytes(), places };
        self.flights.push(Flight::of_bytes(group, berth, buffer));
    }

    /// Writes a group without records, which says of those before it that they are durable: a start after that knows that one of
    /// them that is missing was damaged.
    fn settle(&mut self) {
        self.unsettled = false;
        let group = Group::new(Vec::new(), |_| true);
        let may_write = self.store.condition.failure().is_none() && self.fits(&Demand::default());
        if let Some(segment) = self.current.clone().filter(|_| may_write) {
            self.write(group, segment);
        }
    }

    /// Answers the group whose turn has come, or nobody any more.
    async fn land(&mut self, landed: Result<Flight, String>) {
        let (reason, group) = match landed {
            Ok(mut flight) => {
                self.publish(&mut flight);
                match Self::hold_barrier(&self.store, &flight.group).await {
                    Ok(()) => return flight.group.answer(&self.store),
                    Err(reason) => (reason, Some(flight.group)),
                }
            }
            Err(reason) => (reason, None),
        };
        self.store.condition.fail(reason);
        for group in group.into_iter().chain(self.flights.give_up()) {
            group.fail(&self.store);
        }
    }

    /// Answers all groups that are on their way.
    ///
    /// # Errors
    /// When the journal has failed, now or before.
    async fn drain(&mut self) -> Result<(), String> {
        while !self.flights.is_empty() {
            tokio::select! {
                biased;
                landed = self.flights.landed() => self.land(landed).await,
                () = tokio::time::sleep(LATE_CHECK) => self.answer_late(),
            }
        }
        self.store.condition.failure().map_or(Ok(()), |reason| Err(reason.to_owned()))
    }

    /// Does work that may take as long as the disk or the index likes, and answers those whose time is over meanwhile.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(LATE_CHECK) => self.answer_late(),
            }
        }
    }

    /// Answers, in their order, all whose time is over, as unknown.
    fn answer_late(&mut self) {
        let Some(before) = self.store.clock.now().checked_sub(ANSWER_AFTER) else { return };
        let mut wakeups = Wakeups::default();
        let next = self.next.iter_mut().filter_map(|pending| pending.answer_late(before));
        for late in self.flights.answer_late(before).chain(next).chain(self.store.queue.answer_late(before)) {
            late.give(&self.store.metrics, &mut wakeups);
        }
        wakeups.flush();
    }

    /// Makes a durable group visible.
    fn publish(&mut self, flight: &mut Flight) {
        let (durable, group) = (flight.take_durable(), &flight.group);
        let (Some(durable), Some(berth)) = (durable, &flight.berth) else { return };
        let (store, segment) = (&self.store, &berth.segment);
        store.metrics.group_written(group.len(), durable.buffer.len(), durable.ended - durable.begun);
        if let Ok(start) = u32::try_from(berth.start) {
            store.keep_recent(segment.id(), start, durable.buffer, berth.bytes);
        }
        group.publish(store, segment, berth.end, berth.sequence, &berth.places);
        if !self.spare_asked && berth.end > segment.capacity / 2 && segment.class == Class::Normal {
            self.spare_asked = true;
            self.maker.want_spare();
        }
    }

    /// Brings everything published to stable storage, if the group asks for it and the sync mode has not done so already.
    async fn hold_barrier(store: &Store, group: &Group) -> Result<(), String> {
        if group.has_barrier() && store.config.sync == SyncMode::Never {
            // Sealed segments were synced when they were sealed.
            for segment in store.unsealed() {
                let synced = segment.file.sync().await;
                synced.map_err(|error| format!("sync {}: {error}", segment.path.display()))?;
            }
        }
        Ok(())
    }

    fn fail(&self, group: Group, reason: String) {
        self.store.condition.fail(reason);
        group.fail(&self.store);
    }
}

/// An error with its causes in one line.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

impl Group {
    /// Answers all with an I/O error: whether they are on the disk is unknown.
    fn fail(self, store: &Store) {
        self.finish(Some(proto::Status::Io), store);
    }

    /// Answers all: what was written, and what had no place.
    fn answer(self, store: &Store) {
        self.finish(None, store);
    }

    fn finish(self, failure: Option<proto::Status>, store: &Store) {
        let mut wakeups = Wakeups::default();
        self.complete(failure, store, &mut wakeups);
        wakeups.flush();
    }
}
