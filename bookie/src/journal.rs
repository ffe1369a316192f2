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
//! reserved before they are used, so it shows before anything is written; entries are refused as read-only, and keys and fences
//! go on in what every segment keeps back for them, then in small segments of their own. An index without space is the same: a
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
pub(crate) use queue::{Completion, JournalQueue, Pending, Work};
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
        match self.roll(self.store.config.segment_bytes.bytes(), false).await {
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
        let demand = Demand::of(&batch);
        let (entries_fit, controls_fit) = match self.make_room(&demand).await {
            Ok(()) => (true, true),
            Err(NoRoom::Failed(reason)) => return self.fail(Group::new(batch, |_| true), reason),
            Err(NoRoom::Space(reason)) => {
                self.store.condition.read_only(reason);
                match self.make_control_room(&demand.controls()).await {
                    Ok(()) => (false, true),
                    Err(NoRoom::Space(_)) => (false, false),
                    Err(NoRoom::Failed(reason)) => return self.fail(Group::new(batch, |_| true), reason),
                }
            }
        };
        let group = Group::new(batch, |pending| if pending.is_entry() { entries_fit } else { controls_fit });
        let Some(segment) = self.current.clone().filter(|_| !group.is_empty()) else {
            return group.refuse(&self.store);
        };
        let (start, sequence) = (segment.index().end, self.sequence + 1);
        let (buffer, bytes, places) = group.encode(&segment.header, start, sequence);
        let end = start + buffer.len() as u64;
        let sync = self.store.config.sync == SyncMode::Always;
        let began = self.store.clock.now();
        let (buffer, result) = segment.file.write(start, buffer, sync).await;
        if let Err(error) = result {
            return self.fail(group, format!("write {}: {error}", segment.path.display()));
        }
        self.store.metrics.group_written(group.len(), buffer.len(), self.store.clock.now() - began);
        self.sequence = sequence;
        if let Ok(start) = u32::try_from(start) {
            self.store.keep_recent(segment.id(), start, buffer, bytes);
        }
        group.publish(&self.store, &segment, end, sequence, &places);
        group.acknowledge(&self.store);
        if !self.spare_asked && end > segment.capacity / 2 && !segment.control {
            self.spare_asked = true;
            self.maker.want_spare();
        }
    }

    fn fail(&self, group: Group, reason: String) {
        self.store.condition.fail(reason);
        group.fail(&self.store);
    }

    fn fits(&self, demand: &Demand) -> bool {
        let Some(segment) = &self.current else { return false };
        if segment.control && demand.entries > 0 {
            return false;
        }
        let index = segment.index();
        let entries = index.entries + demand.entries;
        let reserve = if demand.entries > 0 { (segment.capacity / 16).min(CONTROL_RESERVE_BYTES_MAX) } else { 0 };
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

    async fn make_room(&mut self, demand: &Demand) -> Result<(), NoRoom> {
        // Twice at most: a spare segment comes first and may be too small for a very long entry.
        while !self.fits(demand) {
            let bytes = self.store.config.segment_bytes.bytes().max(Self::segment_bytes(demand));
            self.roll(bytes, false).await?;
        }
        Ok(())
    }

    async fn make_control_room(&mut self, demand: &Demand) -> Result<(), NoRoom> {
        if demand.records == 0 || self.fits(demand) {
            return Ok(());
        }
        let needed = Self::segment_bytes(demand);
        match self.roll(CONTROL_SEGMENT_BYTES.max(needed), true).await {
            Err(NoRoom::Space(_)) => self.roll(CONTROL_SEGMENT_BYTES_MIN.max(needed), true).await,
            other => other,
        }
    }

    /// Hands the current segment to the sealer and opens the next.
    async fn roll(&mut self, bytes: u64, control: bool) -> Result<(), NoRoom> {
        self.hand_over().await?;
        let next = match self.maker.next(bytes, control).await {
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

    /// Answers all that had no place.
    fn refuse(self, store: &Store) {
        self.finish(None, store);
    }

    fn acknowledge(self, store: &Store) {
        self.finish(None, store);
    }

    fn finish(self, failure: Option<proto::Status>, store: &Store) {
        let mut wakeups = Wakeups::default();
        self.complete(failure, store, &mut wakeups);
        wakeups.flush();
    }
}
