use std::sync::Arc;

use proto::Status;
use tokio::time::Instant;

use super::queue::LateAnswer;
use super::{Class, Pending, Work};
use crate::disk::{AlignedBuffer, BLOCK_BYTES};
use crate::format::{GROUP_HEADER_BYTES, GroupWriter, Place, Record, RecordKind, SegmentHeader};
use crate::metrics::Metrics;
use crate::store::{Durable, LedgerSlot, OpenSegment, Store};
use crate::wakeups::Wakeups;

/// The space a batch needs in a segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    pub(super) records: u64,
    pub(super) entries: u64,
    /// Whether there is anything but keys and fences.
    pub(super) is_ordinary: bool,
    bytes: u64,
}

impl Demand {
    /// The space for what is of this class or outlasts it.
    pub(super) fn of(batch: &[Pending], class: Class) -> Self {
        let mut demand = Self::default();
        for pending in batch.iter().filter(|pending| pending.slot.is_some() && pending.class() >= class) {
            demand.records += 1;
            demand.bytes += pending.bytes();
            demand.entries += u64::from(pending.is_entry());
            demand.is_ordinary |= pending.class() < Class::Control;
        }
        demand
    }

    /// Bytes of the group, padding included.
    pub(super) fn group_bytes(&self) -> u64 {
        (GROUP_HEADER_BYTES as u64 + self.bytes).next_multiple_of(BLOCK_BYTES as u64)
    }
}

/// A batch on its way through the journal.
pub(super) struct Group {
    batch: Vec<Pending>,
    /// Those to write, as places in the batch, the records of a ledger side by side and in the order they were admitted.
    order: Vec<u32>,
    /// Whether each of the batch is written.
    written: Vec<bool>,
    entries: u64,
    bytes: usize,
}

impl Group {
    pub(super) fn new(batch: Vec<Pending>, accept: impl Fn(&Pending) -> bool) -> Self {
        let written: Vec<bool> = batch.iter().map(|pending| pending.slot.is_some() && accept(pending)).collect();
        let mut order: Vec<u32> = (0_u32..).zip(&written).filter(|(_, written)| **written).map(|(at, _)| at).collect();
        // Stable: a key stays before the entries it came with, a fence behind the adds it waits for.
        order.sort_by_key(|at| batch[*at as usize].slot.as_ref().map(|slot| slot.id()));
        let mut group = Self { batch, order, written, entries: 0, bytes: GROUP_HEADER_BYTES };
        let (mut entries, mut bytes) = (0, 0);
        for (_, _, record) in group.records() {
            entries += u64::from(record.kind.is_entry());
            bytes += Record::encoded_bytes(record.body.len());
        }
        (group.entries, group.bytes) = (entries, group.bytes + bytes);
        group
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether someone asks that everything before is on stable storage.
    pub(super) fn has_barrier(&self) -> bool {
        self.batch.iter().any(Pending::is_barrier)
    }

    /// The answers to what was received before then and is not answered yet.
    pub(super) fn answer_late(&mut self, received_before: Instant) -> impl Iterator<Item = LateAnswer> {
        self.batch.iter_mut().filter_map(move |pending| pending.answer_late(received_before))
    }

    /// How many records are written.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    fn records(&self) -> impl Iterator<Item = (&Pending, &Arc<LedgerSlot>, Record<'_>)> {
        self.order.iter().filter_map(|at| {
            let pending = &self.batch[*at as usize];
            let (slot, Work::Record { kind, entry, body, .. }) = (pending.slot.as_ref()?, &pending.work) else {
                return None;
            };
            Some((pending, slot, Record { kind: *kind, ledger: slot.id(), entry: *entry, body }))
        })
    }

    /// How many of them are entries.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of the group without padding.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes to write at `start`, in a buffer of [`Group::bytes`], and where each record will lie.
    pub(super) fn encode(
        &self,
        segment: &SegmentHeader,
        start: u64,
        (sequence, unsettled): (u64, u32),
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Vec<Place>) {
        let mut writer = GroupWriter::in_buffer(buffer);
        let start = u32::try_from(start).expect("a segment is at most 2 GiB, or as long as one frame");
        let mut places = Vec::with_capacity(self.len());
        places.extend(self.records().map(|(_, _, record)| {
            let place = writer.push(&record);
            Place { offset: start + place.offset, bytes: place.bytes }
        }));
        (writer.finish(segment, sequence, unsettled), places)
    }

    /// Makes the written records visible.
    pub(super) fn publish(&self, store: &Store, segment: &OpenSegment, end: u64, sequence: u64, places: &[Place]) {
        let last_confirmed = |pending: &Pending| match &pending.work {
            Work::Record { last_confirmed, .. } => *last_confirmed,
            Work::Marker(_) | Work::Turn | Work::Barrier => None,
        };
        let mut records: Vec<Durable<'_>> = Vec::with_capacity(self.len());
        records.extend(self.records().zip(places).map(|((pending, slot, record), place)| Durable {
            kind: record.kind,
            slot,
            entry: record.entry,
            last_confirmed: last_confirmed(pending),
            body: record.body,
            place: *place,
        }));
        store.publish(segment, end, sequence, &records, store.clock.wall_ms());
    }

    /// Answers everything of the batch in the order it was queued. With a `failure` nothing counts as written.
    pub(super) fn complete(self, failure: Option<Status>, store: &Store, wakeups: &mut Wakeups) {
        let mut tally = Tally::new(&store.metrics, store.clock.now());
        for (pending, written) in self.batch.into_iter().zip(self.written) {
            let result = match (&pending.work, failure) {
                (Work::Marker(status), _) => Err(*status),
                (Work::Turn | Work::Barrier, failure) => failure.map_or(Ok(()), Err),
                (Work::Record { .. }, Some(status)) => Err(status),
                (Work::Record { .. }, None) if written => Ok(()),
                (Work::Record { .. }, None) if pending.class() < Class::Control => Err(Status::ReadOnly),
                (Work::Record { .. }, None) => Err(Status::Io),
            };
            if let (Some(slot), Work::Record { kind, .. }, Err(_)) = (&pending.slot, &pending.work, result) {
                slot.lock().on_failed(*kind == RecordKind::MasterKey, *kind == RecordKind::Fence);
            }
            // An entry that was answered late was counted then.
            if pending.done.is_some() || !pending.is_entry() {
                tally.count(&pending, result);
            }
            if let Some(done) = pending.done {
                done(result, wakeups);
            }
            drop(pending.permit);
        }
        tally.finish();
    }
}

/// Counts what a group answered, entries together where they came in together.
struct Tally<'a> {
    metrics: &'a Metrics,
    now: Instant,
    entries: u64,
    bytes: u64,
    /// Entries received at one moment.
    run: Option<(Instant, u64)>,
}

impl<'a> Tally<'a> {
    fn new(metrics: &'a Metrics, now: Instant) -> Self {
        Self { metrics, now, entries: 0, bytes: 0, run: None }
    }

    fn count(&mut self, pending: &Pending, result: Result<(), Status>) {
        match (&pending.work, result) {
            (Work::Record { kind, body, .. }, Ok(())) if kind.is_entry() => {
                self.entries += 1;
                self.bytes += body.len() as u64;
                self.count_latency(pending.received);
            }
            (Work::Record { kind: RecordKind::Fence, .. }, Ok(())) => self.metrics.fenced(),
            (Work::Record { kind, .. }, Err(status)) if kind.is_entry() => self.metrics.add_refused(status),
            (Work::Marker(status), _) => self.metrics.add_refused(*status),
            (Work::Record { .. } | Work::Turn | Work::Barrier, _) => {}
        }
    }

    fn count_latency(&mut self, received: Instant) {
        match &mut self.run {
            Some((since, entries)) if *since == received => *entries += 1,
            _ => {
                self.finish_run();
                self.run = Some((received, 1));
            }
        }
    }

    fn finish_run(&mut self) {
        if let Some((since, entries)) = self.run.take() {
            self.metrics.add_took(self.now - since, entries);
        }
    }

    fn finish(mut self) {
        self.finish_run();
        self.metrics.added(self.entries, self.bytes);
    }
}
