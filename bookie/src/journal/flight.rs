//! Groups on their way: to the disk, then to those who wait for their answers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::group::Group;
use super::queue::LateAnswer;
use crate::config::SyncMode;
use crate::disk::AlignedBuffer;
use crate::format::Place;
use crate::store::{OpenSegment, Store};

/// Where a group lies.
pub(super) struct Berth {
    pub(super) segment: Arc<OpenSegment>,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) sequence: u64,
    /// Bytes before the padding.
    pub(super) bytes: usize,
    /// Of each record.
    pub(super) places: Vec<Place>,
}

/// A group on its way.
pub(super) struct Flight {
    pub(super) group: Group,
    /// `None` when the group has nothing to write: it is answered in its turn.
    pub(super) berth: Option<Berth>,
    stage: Stage,
}

enum Stage {
    /// Its bytes wait for their turn at the disk.
    Waiting(AlignedBuffer),
    AtDisk(Instant, BoxFuture<'static, (AlignedBuffer, io::Result<()>)>),
    /// Durable, and what came back until somebody took it; or there was nothing to write.
    Done(Option<Durable>),
    Failed(String),
}

/// What came back from the disk.
pub(super) struct Durable {
    pub(super) buffer: AlignedBuffer,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
}

impl Flight {
    /// A group with its bytes for the disk.
    pub(super) fn of_bytes(group: Group, berth: Berth, buffer: AlignedBuffer) -> Self {
        Self { group, berth: Some(berth), stage: Stage::Waiting(buffer) }
    }

    /// A group without anything to write.
    pub(super) fn of_nothing(group: Group) -> Self {
        Self { group, berth: None, stage: Stage::Done(None) }
    }

    /// What came back from the disk, once.
    pub(super) fn take_durable(&mut self) -> Option<Durable> {
        match &mut self.stage {
            Stage::Done(durable) => durable.take(),
            Stage::Waiting(_) | Stage::AtDisk(..) | Stage::Failed(_) => None,
        }
    }

    /// Hands the bytes to the disk, if they wait for that.
    fn launch(&mut self, store: &Store) {
        let Some(berth) = &self.berth else { return };
        match std::mem::replace(&mut self.stage, Stage::Done(None)) {
            Stage::Waiting(buffer) => {
                let (file, start) = (berth.segment.file.clone(), berth.start);
                let sync = store.config.sync == SyncMode::Always;
                let write = async move { file.write(start, buffer, sync).await }.boxed();
                self.stage = Stage::AtDisk(store.clock.now(), write);
                // Starts it, so that the disk works while this task does something else; how it ends is asked again.
                let _ = self.poll(&mut Context::from_waker(Waker::noop()), store);
            }
            other => self.stage = other,
        }
    }

    /// Whether it is durable.
    fn poll(&mut self, context: &mut Context<'_>, store: &Store) -> Poll<Result<(), String>> {
        if let Stage::AtDisk(begun, write) = &mut self.stage
            && let Poll::Ready((buffer, result)) = write.poll_unpin(context)
        {
            let durable = Durable { buffer, begun: *begun, ended: store.clock.now() };
            let path = self.berth.as_ref().map(|berth| berth.segment.path.display());
            self.stage = match (result, path) {
                (Ok(()), _) => Stage::Done(Some(durable)),
                (Err(error), Some(path)) => Stage::Failed(format!("write {path}: {error}")),
                (Err(error), None) => Stage::Failed(error.to_string()),
            };
        }
        match &self.stage {
            Stage::Waiting(_) | Stage::AtDisk(..) => Poll::Pending,
            Stage::Done(_) => Poll::Ready(Ok(())),
            Stage::Failed(reason) => Poll::Ready(Err(reason.clone())),
        }
    }
}

/// The groups on their way, oldest first: a few at the disk, and at most one behind them that waits for its turn.
pub(super) struct Flights {
    store: Arc<Store>,
    queue: VecDeque<Flight>,
    at_disk_max: usize,
}

impl Flights {
    pub(super) fn new(store: Arc<Store>, at_disk_max: usize) -> Self {
        Self { store, queue: VecDeque::new(), at_disk_max }
    }

    /// How many groups may be at the disk at the same time from now on.
    pub(super) fn set_at_disk_max(&mut self, groups: usize) {
        self.at_disk_max = groups;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether another group would have to wait for its turn at the disk.
    pub(super) fn is_full(&self) -> bool {
        self.unanswered() >= self.at_disk_max
    }

    /// Whether a group waits for its turn at the disk.
    pub(super) fn has_waiting(&self) -> bool {
        matches!(self.queue.back(), Some(Flight { stage: Stage::Waiting(_), .. }))
    }

    /// Entries and records of groups that are not yet visible.
    pub(super) fn unpublished(&self) -> (u64, u64) {
        let groups = self.queue.iter().map(|flight| &flight.group);
        groups.fold((0, 0), |(entries, records), group| (entries + group.entries(), records + group.len() as u64))
    }

    /// Groups before the next one to come that may not be durable when it goes to the disk.
    pub(super) fn unsettled(&self) -> u32 {
        let most = self.unanswered().min(self.at_disk_max.saturating_sub(1));
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Sends a group on its way: to the disk at once when it has room for it, else as soon as it has.
    pub(super) fn push(&mut self, flight: Flight) {
        debug_assert!(!self.has_waiting(), "one group waits at most");
        self.queue.push_back(flight);
        self.launch();
    }

    /// Groups with bytes of their own that are launched and whose turn to be answered has not come.
    fn unanswered(&self) -> usize {
        let launched = |flight: &&Flight| flight.berth.is_some() && !matches!(flight.stage, Stage::Waiting(_));
        self.queue.iter().filter(launched).count()
    }

    fn launch(&mut self) {
        if !self.is_full()
            && let Some(flight) = self.queue.back_mut()
        {
            flight.launch(&self.store);
        }
    }

    /// The oldest group, once it is durable, and with that everything that was answered before it. The next one in the queue is
    /// launched first. Cancel-safe.
    ///
    /// # Errors
    /// As soon as any group could not be written: nothing that is still here may count as durable then, because a disk that
    /// failed one may have lost another without saying so to its face.
    pub(super) async fn landed(&mut self) -> Result<Flight, String> {
        poll_fn(|context| {
            for flight in &mut self.queue {
                if let Poll::Ready(Err(reason)) = flight.poll(context, &self.store) {
                    return Poll::Ready(Err(reason));
                }
            }
            let is_done = matches!(self.queue.front(), Some(Flight { stage: Stage::Done(_), .. }));
            let landed = if is_done { self.queue.pop_front() } else { None };
            landed.map_or(Poll::Pending, |flight| {
                self.launch();
                Poll::Ready(Ok(flight))
            })
        })
        .await
    }

    /// The answers to what was received before then and is not answered yet.
    pub(super) fn answer_late(&mut self, received_before: Instant) -> impl Iterator<Item = LateAnswer> {
        self.queue.iter_mut().flat_map(move |flight| flight.group.answer_late(received_before))
    }

    /// Gives up on all, oldest first.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = Group> {
        self.queue.drain(..).map(|flight| flight.group)
    }
}
