//! The journal: one writer that makes queued records durable, a group at a time, and answers in order.
//!
//! # Order
//! Records are queued under the lock of their ledger, so the queue holds them in the order they were admitted. The writer takes
//! everything that waits (up to a limit), writes it as one group with one sync, makes it visible, then answers. One group is in
//! flight: whatever follows a valid group on the disk was written after that group was durable.
//!
//! # Failures
//! A failed write or sync says nothing certain about the disk, so it ends writing for good (`Condition::fail`): the records of
//! the group and all later ones are answered with an I/O error and never acknowledged. Missing space is different: segments are
//! reserved before they are used, so it shows before anything is written; entries are refused as read-only, those of recovery and
//! repair go on in the space that is kept for them, and keys and fences in what every segment keeps back, then in small segments
//! of their own ([`Class`]). An index without space is the same: a
//! new segment cannot be named in it, full ones wait to be sealed and are served as they are.
//!
//! # Crash
//! A group may be torn, and is then cut off at the next start: nothing in it was acknowledged. A spare segment that was never
//! opened for writing is removed.

mod group;
mod maker;
mod queue;
mod replay;
mod seal;

use std::sync::Arc;

use tokio::sync::mpsc;

pub(crate) use maker::SegmentMaker;
pub(crate) use queue::{Class, Completion, JournalQueue, Pending, Work};
pub(crate) use replay::{Replayed, replay};
pub(crate) use seal::{SealJob, Sealer};

use crate::config::{
    CONTROL_RESERVE_BYTES_MAX, CONTROL_SEGMENT_BYTES, CONTROL_SEGMENT_BYTES_MIN, SEGMENT_ENTRIES_MAX, SyncMode,
    room_needed,
};
use crate::disk::BLOCK_BYTES;
use crate::error::Error;
use crate::index::rows;
use crate::store::{OpenSegment, Store};
use crate::wakeups::Wakeups;
use group::{Demand, Group};
use maker::MakeError;

/// Full segments that may wait to be sealed before the writer waits for the sealer: bounds the memory of their indexes.
pub(crate) const SEAL_QUEUE: usize = 1;

/// The one task that writes the journal.
pub(crate) struct JournalWriter {
    store: Arc<Store>,
    maker: Arc<SegmentMaker>,
    seal: mpsc::Sender<SealJob>,
    current: Option<Arc<OpenSegment>>,
    /// A full segment that the sealer had no place for.
    full: Option<Arc<OpenSegment>>,
    sequence: u64,
    spare_asked: bool,
}

/// Why a group has no place.
enum NoRoom {
    /// No space, for now.
    Space(String),
    /// The disk or the index failed.
    Failed(String),
}

impl JournalWriter {
    /// A writer that goes on after the group with sequence `last_sequence`.
    pub(crate) fn new(
        store: Arc<Store>,
        maker: Arc<SegmentMaker>,
        seal: mpsc::Sender<SealJob>,
        last_sequence: u64,
    ) -> Self {
        Self { store, maker, seal, current: None, full: None, sequence: last_sequence, spare_asked: false }
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
        while let Some(batch) = store.queue.take(limit).await {
            if store.condition.failure().is_some() {
                Group::new(batch, |_| true).fail(&store);
            } else {
                self.commit(batch).await;
            }
        }
        if let Some(full) = self.full.take() {
            // A sealer that waits for space has no place, and the segment is replayed at the next start.
            let _ = self.seal.try_send(SealJob(full));
        }
        Ok(())
    }

    async fn commit(&mut self, batch: Vec<Pending>) {
        let written = match self.make_room_for(&batch).await {
            Ok(written) => written,
            Err(reason) => return self.fail(Group::new(batch, |_| true), reason),
        };
        let group = Group::new(batch, |pending| written.is_some_and(|least| pending.class() >= least));
        if let Err(reason) = self.write(&group).await {
            return self.fail(group, reason);
        }
        group.answer(&self.store);
    }

    /// Writes a group and makes it visible; without records nothing is written. Barriers in it hold afterwards.
    async fn write(&mut self, group: &Group) -> Result<(), String> {
        if let Some(segment) = self.current.clone().filter(|_| !group.is_empty()) {
            let (start, sequence) = (segment.index().end, self.sequence + 1);
            let (buffer, bytes, places) = group.encode(&segment.header, start, sequence);
            let end = start + buffer.len() as u64;
            let sync = self.store.config.sync == SyncMode::Always;
            let began = self.store.clock.now();
            let (buffer, result) = segment.file.write(start, buffer, sync).await;
            result.map_err(|error| format!("write {}: {error}", segment.path.display()))?;
            self.store.metrics.group_written(group.len(), buffer.len(), self.store.clock.now() - began);
            self.sequence = sequence;
            if let Ok(start) = u32::try_from(start) {
                self.store.keep_recent(segment.id(), start, buffer, bytes);
            }
            group.publish(&self.store, &segment, end, sequence, &places);
            if !self.spare_asked && end > segment.capacity / 2 && segment.class == Class::Normal {
                self.spare_asked = true;
                self.maker.want_spare();
            }
        }
        if group.has_barrier() && self.store.config.sync == SyncMode::Never {
            // Sealed segments were synced when they were sealed.
            for segment in self.store.unsealed() {
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

    fn fits(&self, demand: &Demand) -> bool {
        let Some(segment) = &self.current else { return false };
        if segment.class == Class::Control && demand.is_ordinary {
            return false;
        }
        let index = segment.index();
        let entries = index.entries + demand.entries;
        let reserve = if demand.is_ordinary { (segment.capacity / 16).min(CONTROL_RESERVE_BYTES_MAX) } else { 0 };
        let end = index.end + demand.group_bytes() + reserve;
        entries <= SEGMENT_ENTRIES_MAX.max(demand.entries)
            && end + room_needed(entries, index.ledgers() + demand.records) <= segment.capacity
    }

    /// Bytes of a segment that certainly has room for the demand.
    fn segment_bytes(demand: &Demand) -> u64 {
        let needed = BLOCK_BYTES as u64 + demand.group_bytes() + room_needed(demand.entries, demand.records);
        let reserve = BLOCK_BYTES as u64 + (needed / 8).min(CONTROL_RESERVE_BYTES_MAX);
        (needed + reserve).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Makes room for as much of a batch as there is space for. The least class that is written; `None` when nothing is.
    ///
    /// # Errors
    /// When the disk or the index failed.
    async fn make_room_for(&mut self, batch: &[Pending]) -> Result<Option<Class>, String> {
        for class in [Class::Normal, Class::Priority, Class::Control] {
            match self.make_room(&Demand::of(batch, class), class).await {
                Ok(()) => return Ok(Some(class)),
                Err(NoRoom::Failed(reason)) => return Err(reason),
                Err(NoRoom::Space(reason)) => match class {
                    Class::Normal => self.store.condition.read_only(reason),
                    Class::Priority => self.store.condition.refuse_priority(),
                    Class::Control => {}
                },
            }
        }
        Ok(None)
    }

    async fn make_room(&mut self, demand: &Demand, class: Class) -> Result<(), NoRoom> {
        let config = &self.store.config;
        let needed = Self::segment_bytes(demand);
        let bytes = match class {
            _ if demand.records == 0 => return Ok(()),
            Class::Normal => config.segment_bytes.bytes(),
            Class::Priority => config.priority_segment_bytes(),
            Class::Control => return self.make_control_room(demand, needed).await,
        };
        // Twice at most: a spare segment comes first and may be too small for a very long entry.
        while !self.fits(demand) {
            self.roll(bytes.max(needed), class).await?;
        }
        Ok(())
    }

    async fn make_control_room(&mut self, demand: &Demand, needed: u64) -> Result<(), NoRoom> {
        if self.fits(demand) {
            return Ok(());
        }
        match self.roll(CONTROL_SEGMENT_BYTES.max(needed), Class::Control).await {
            Err(NoRoom::Space(_)) => self.roll(CONTROL_SEGMENT_BYTES_MIN.max(needed), Class::Control).await,
            other => other,
        }
    }

    /// Hands the current segment to the sealer and opens the next.
    async fn roll(&mut self, bytes: u64, class: Class) -> Result<(), NoRoom> {
        self.hand_over().await?;
        let next = match self.maker.next(bytes, class).await {
            Ok(next) => next,
            Err(MakeError::NoSpace(reason)) => return Err(NoRoom::Space(reason)),
            Err(MakeError::Failed(error)) => return Err(NoRoom::Failed(describe(&error))),
        };
        // From here on a start without this file is refused.
        if let Err(error) = self.store.write_index(vec![rows::put_opened(next.id())]).await {
            let reason = describe(&error);
            if !error.is_index_full() {
                return Err(NoRoom::Failed(reason));
            }
            // Its id is used up, so that the next segment must be this one.
            self.maker.put_back(next).await;
            return Err(NoRoom::Space(reason));
        }
        let next = Arc::new(next);
        next.index_mut().last_sequence = self.sequence;
        self.store.add_unsealed(next.clone());
        self.spare_asked = false;
        self.full = self.current.replace(next);
        // What it has no place for now is the next roll's affair.
        let _ = self.hand_over().await;
        Ok(())
    }

    /// Gives the sealer a full segment that waits. A sealer that is busy is waited for, one that waits for space is not.
    async fn hand_over(&mut self) -> Result<(), NoRoom> {
        let Some(full) = &self.full else { return Ok(()) };
        let mut waits = self.store.seal_waits.subscribe();
        tokio::select! {
            biased;
            place = self.seal.reserve() => {
                // The sealer ends after the writer; if it is gone it has failed and said so.
                if let Ok(place) = place {
                    place.send(SealJob(full.clone()));
                }
                self.full = None;
                Ok(())
            }
            // The sender lives in the store, which this task holds.
            _ = waits.wait_for(|waits| *waits) => {
                Err(NoRoom::Space("full segments wait for space in the index".to_owned()))
            }
        }
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
