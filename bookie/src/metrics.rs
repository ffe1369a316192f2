//! What a bookie counts. Adds are counted a group at a time, reads one by one; both cost a few atomic additions.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use common::labels;
use common::metrics::{By, Counter, Def, Gauge, Histogram, Set};
use proto::Status;

use crate::collector::CollectReport;
use crate::relay::Outcome;
use crate::stall::StallCause;
use crate::store::{BookieState, Store};

const ADDS: Def = Def::new("thermocline_bookie_adds", "Entries that were made durable and acknowledged.");
const ADD_BYTES: Def =
    Def::new("thermocline_bookie_add_bytes", "Bytes of acknowledged entries, their headers and digests included.");
const ADD_SECONDS: Def = Def::new(
    "thermocline_bookie_add_seconds",
    "Time of an acknowledged add from the decoding of its request to its answer: queue, write and sync.",
);
const ADDS_REFUSED: Def = Def::new("thermocline_bookie_adds_refused", "Adds that were not acknowledged, by reason.");
const FENCES: Def = Def::new("thermocline_bookie_fences", "Fences that were made durable.");
const READS: Def = Def::new(
    "thermocline_bookie_reads",
    "Reads answered: from the write buffer, from a journal segment, by another member of a ledger that moved away, as absent (no such entry or ledger), or failed.",
);
const READ_BYTES: Def =
    Def::new("thermocline_bookie_read_bytes", "Bytes of entries that were read, their headers and digests included.");
const READ_SECONDS: Def =
    Def::new("thermocline_bookie_read_seconds", "Time of a read from the decoding of its request to its answer.");
const SYNC_SECONDS: Def = Def::new(
    "thermocline_bookie_journal_sync_seconds",
    "Time to write one group to the journal and sync it; what every add of the group waits for.",
);
const GROUP_BYTES: Def =
    Def::new("thermocline_bookie_journal_group_bytes", "Size of a journal group as written, padding included.");
const GROUP_RECORDS: Def = Def::new(
    "thermocline_bookie_journal_group_records",
    "Records (entries, keys, fences) that one group made durable with one sync.",
);
const SEGMENTS: Def = Def::new("thermocline_bookie_segments", "Journal segments, sealed or not, without spare ones.");
const ALLOCATED: Def = Def::new("thermocline_bookie_allocated_bytes", "Bytes that journal segments occupy or reserve.");
const ALLOCATED_MAX: Def =
    Def::new("thermocline_bookie_allocated_max_bytes", "Most that segments may occupy: the setting disk_bytes_max.");
const FREE: Def = Def::new(
    "thermocline_bookie_disk_free_bytes",
    "Bytes free on the file system of the journal, as looked up within the last seconds.",
);
const STORED: Def = Def::new("thermocline_bookie_stored_entries", "Entries in all segments.");
const LEDGERS: Def = Def::new("thermocline_bookie_ledgers", "Ledgers with something stored; approximate.");
const TOMBSTONES: Def = Def::new("thermocline_bookie_tombstones", "Ledgers that were dropped.");
const LIMBO: Def = Def::new(
    "thermocline_bookie_limbo_ledgers",
    "Ledgers of which entries may be missing here after a stop without order: what is missing of them is unknown, not absent.",
);
const RESTORED: Def = Def::new(
    "thermocline_bookie_restored_entries",
    "Entries that were missing after such a stop and were fetched from other members.",
);
const STATE: Def = Def::new(
    "thermocline_bookie_state",
    "1 for the state the bookie is in: writable, read-only (until there is space again, a stalled journal moves, or an administrator says so), failed (read-only until a restart), limbo (read-only until it knows which ledgers may have lost entries here).",
);
const DISK_ERRORS: Def = Def::new(
    "thermocline_bookie_disk_errors",
    "Operations of the index, the journal or for a read of the disk that failed for another reason than missing space: a device that fails.",
);
const STALLED: Def = Def::new(
    "thermocline_bookie_stalled_operations",
    "Operations of the index, the journal or for a read of the disk that take longer than 5 seconds.",
);
const STALL_SECONDS: Def = Def::new(
    "thermocline_bookie_stall_seconds",
    "How long the oldest of the stalled operations has been under way; 0 when nothing stalls.",
);
const CONNECTIONS: Def = Def::new("thermocline_bookie_connections", "Connections that are open.");
const ACCEPTED: Def = Def::new("thermocline_bookie_connections_accepted", "Connections that were taken in.");
const REFUSED: Def = Def::new(
    "thermocline_bookie_connections_refused",
    "Connections that were closed at once because the setting connections_max was reached.",
);
const LONG_POLLS: Def =
    Def::new("thermocline_bookie_long_polls", "Reads that wait for a higher last-add-confirmed of their ledger.");
const RELAYED: Def = Def::new(
    "thermocline_bookie_relayed_reads",
    "Reads of ledgers that moved away, by what their present members made of them; unanswered: too many requests, or unknown, was told.",
);
const RELAY_SECONDS: Def = Def::new(
    "thermocline_bookie_relay_seconds",
    "Time of a relayed read from its turn to the answer of a member, or to the end of its time.",
);
const RELAYS: Def =
    Def::new("thermocline_bookie_relays", "Reads of ledgers that moved away which are under way to their members.");
const RELAY_CONNECTIONS: Def =
    Def::new("thermocline_bookie_relay_connections", "Connections to members of ledgers that moved away.");
const COLLECTIONS: Def = Def::new("thermocline_bookie_collector_runs", "Runs of the collector, by how they ended.");
const DROPPED: Def = Def::new(
    "thermocline_bookie_collector_ledgers_dropped",
    "Ledgers of which metadata proved that this copy may go: deleted, or living elsewhere.",
);
const UNANSWERED: Def = Def::new(
    "thermocline_bookie_collector_ledgers_kept_without_answer",
    "Ledgers that were kept because metadata gave no answer about them; counted again at each run.",
);
const HELD_BACK: Def = Def::new(
    "thermocline_bookie_collector_ledgers_held_back",
    "Ledgers that live elsewhere and were kept, because another process held their lock or because they are marked as lacking \
     replicas; counted again at each run.",
);
const RELEASE_REQUESTS: Def = Def::new(
    "thermocline_bookie_release_requests",
    "Ledgers that the bookie asks offloaders to release, since they keep its oldest segments and space gets short.",
);
const RECLAIMED: Def = Def::new("thermocline_bookie_collector_segments_removed", "Segments that were removed.");
const FREED: Def = Def::new("thermocline_bookie_collector_freed_bytes", "Bytes given back by removed segments.");

labels! {
    /// Why an add was not acknowledged.
    enum Reason("reason") {
        BadRequest = "bad-request",
        Fenced = "fenced",
        Io = "io",
        NoLedger = "no-ledger",
        ReadOnly = "read-only",
        TooMany = "too-many-requests",
        Unauthorized = "unauthorized",
    }
}

labels! {
    /// How a read was answered.
    pub(crate) enum ReadEnd("result") {
        /// From the write buffer, or what else was in memory.
        Buffer = "buffer",
        /// From a segment.
        Segment = "segment",
        /// From another member of a ledger that moved away.
        Relayed = "relayed",
        /// There is no such entry or ledger.
        Absent = "absent",
        /// Without an answer about the entry.
        Failed = "failed",
    }
}

labels! {
    enum RelayEnd("outcome") {
        Found = "found",
        Absent = "absent",
        Damaged = "damaged",
        Denied = "denied",
        Unanswered = "unanswered",
    }
}

impl From<&Outcome> for RelayEnd {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Found(_) => Self::Found,
            Outcome::Beyond(_) | Outcome::Failed(Status::NoEntry | Status::NoLedger) => Self::Absent,
            Outcome::Failed(Status::Io) => Self::Damaged,
            Outcome::Failed(Status::Unauthorized) => Self::Denied,
            Outcome::Failed(_) => Self::Unanswered,
        }
    }
}

labels! {
    enum Run("outcome") {
        Done = "done",
        Failed = "failed",
    }
}

labels! {
    /// Why a ledger that lives elsewhere was kept.
    enum HeldBack("why") {
        Locked = "locked",
        Marked = "marked",
    }
}

labels! {
    enum Dropped("why") {
        Deleted = "deleted",
        Elsewhere = "elsewhere",
    }
}

labels! {
    enum State("state") {
        Writable = "writable",
        ReadOnly = "read-only",
        Failed = "failed",
        Limbo = "limbo",
    }
}

impl From<Status> for Reason {
    fn from(status: Status) -> Self {
        match status {
            Status::Fenced => Self::Fenced,
            Status::NoLedger => Self::NoLedger,
            Status::ReadOnly => Self::ReadOnly,
            Status::TooManyRequests => Self::TooMany,
            Status::Unauthorized => Self::Unauthorized,
            Status::BadRequest | Status::BadVersion => Self::BadRequest,
            Status::Ok | Status::NoEntry | Status::Io | Status::UnknownLedgerState => Self::Io,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Metrics {
    adds: Counter,
    add_bytes: Counter,
    add_seconds: Histogram,
    adds_refused: By<Reason, Counter>,
    fences: Counter,
    reads: By<ReadEnd, Counter>,
    read_bytes: Counter,
    read_seconds: Histogram,
    sync_seconds: Histogram,
    group_bytes: Histogram,
    group_records: Histogram,
    free_bytes: Gauge,
    /// Connections that are open.
    pub(crate) connections: Gauge,
    accepted: Counter,
    refused: Counter,
    /// Reads that wait.
    pub(crate) long_polls: Gauge,
    relayed: By<RelayEnd, Counter>,
    relay_seconds: Histogram,
    /// Reads that other members are asked for.
    pub(crate) relays: Gauge,
    /// Connections to them.
    pub(crate) relay_connections: Gauge,
    collections: By<Run, Counter>,
    dropped: By<Dropped, Counter>,
    unanswered: Counter,
    held_back: By<HeldBack, Counter>,
    reclaimed: Counter,
    freed: Counter,
    restored: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            adds: Counter::default(),
            add_bytes: Counter::default(),
            add_seconds: Histogram::seconds(),
            adds_refused: By::default(),
            fences: Counter::default(),
            reads: By::default(),
            read_bytes: Counter::default(),
            read_seconds: Histogram::seconds(),
            sync_seconds: Histogram::seconds(),
            group_bytes: Histogram::bytes(),
            group_records: Histogram::items(),
            free_bytes: Gauge::default(),
            connections: Gauge::default(),
            accepted: Counter::default(),
            refused: Counter::default(),
            long_polls: Gauge::default(),
            relayed: By::default(),
            relay_seconds: Histogram::seconds(),
            relays: Gauge::default(),
            relay_connections: Gauge::default(),
            collections: By::default(),
            dropped: By::default(),
            unanswered: Counter::default(),
            held_back: By::default(),
            reclaimed: Counter::default(),
            freed: Counter::default(),
            restored: Counter::default(),
        }
    }

    /// Entries of one group were acknowledged.
    pub(crate) fn added(&self, entries: u64, bytes: u64) {
        self.adds.add(entries);
        self.add_bytes.add(bytes);
    }

    /// So many of them were received together, so long ago.
    pub(crate) fn add_took(&self, latency: Duration, entries: u64) {
        self.add_seconds.took_each(latency, entries);
    }

    pub(crate) fn add_refused(&self, status: Status) {
        self.adds_refused.of(status.into()).inc();
    }

    pub(crate) fn fenced(&self) {
        self.fences.inc();
    }

    pub(crate) fn read_found(&self, end: ReadEnd, bytes: usize, latency: Duration) {
        self.reads.of(end).inc();
        self.read_bytes.add(bytes as u64);
        self.read_seconds.took(latency);
    }

    pub(crate) fn read_not_found(&self, status: Status, latency: Duration) {
        let end = match status {
            Status::NoEntry | Status::NoLedger => ReadEnd::Absent,
            _ => ReadEnd::Failed,
        };
        self.reads.of(end).inc();
        self.read_seconds.took(latency);
    }

    pub(crate) fn group_written(&self, records: usize, bytes: usize, latency: Duration) {
        self.sync_seconds.took(latency);
        self.group_bytes.observe(bytes as u64);
        self.group_records.observe(records as u64);
    }

    pub(crate) fn disk_free(&self, bytes: u64) {
        self.free_bytes.set(bytes);
    }

    pub(crate) fn connected(&self) {
        self.accepted.inc();
    }

    pub(crate) fn connection_refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn relayed(&self, outcome: &Outcome, latency: Duration) {
        self.relayed.of(outcome.into()).inc();
        self.relay_seconds.took(latency);
    }

    pub(crate) fn collected(&self, report: Option<&CollectReport>) {
        self.collections.of(if report.is_some() { Run::Done } else { Run::Failed }).inc();
        if let Some(report) = report {
            self.dropped.of(Dropped::Deleted).add(report.ledgers_deleted);
            self.dropped.of(Dropped::Elsewhere).add(report.ledgers_gone);
            self.unanswered.add(report.ledgers_unknown);
            self.held_back.of(HeldBack::Locked).add(report.ledgers_locked);
            self.held_back.of(HeldBack::Marked).add(report.ledgers_marked);
            self.reclaimed.add(report.segments_removed);
            self.freed.add(report.bytes_freed);
        }
    }

    /// An entry that was missing was fetched.
    pub(crate) fn restored(&self) {
        self.restored.inc();
    }

    #[cfg(test)]
    pub(crate) fn held_back(&self) -> (u64, u64) {
        (self.held_back.of(HeldBack::Locked).get(), self.held_back.of(HeldBack::Marked).get())
    }

    /// All metrics of a store. They keep nothing of it alive.
    pub(crate) fn shown(store: &Arc<Store>) -> Set {
        let own = &store.metrics;
        let mut set = Set::new();
        set.counter(ADDS, &own.adds);
        set.counter(ADD_BYTES, &own.add_bytes);
        set.histogram(ADD_SECONDS, &own.add_seconds);
        set.counters(ADDS_REFUSED, &own.adds_refused);
        set.counter(FENCES, &own.fences);
        set.counters(READS, &own.reads);
        set.counter(READ_BYTES, &own.read_bytes);
        set.histogram(READ_SECONDS, &own.read_seconds);
        set.histogram(SYNC_SECONDS, &own.sync_seconds);
        set.histogram(GROUP_BYTES, &own.group_bytes);
        set.histogram(GROUP_RECORDS, &own.group_records);
        set.gauge(FREE, &own.free_bytes);
        set.gauge(CONNECTIONS, &own.connections);
        set.counter(ACCEPTED, &own.accepted);
        set.counter(REFUSED, &own.refused);
        set.gauge(LONG_POLLS, &own.long_polls);
        set.counters(RELAYED, &own.relayed);
        set.histogram(RELAY_SECONDS, &own.relay_seconds);
        set.gauge(RELAYS, &own.relays);
        set.gauge(RELAY_CONNECTIONS, &own.relay_connections);
        set.counters(COLLECTIONS, &own.collections);
        set.counters(DROPPED, &own.dropped);
        set.counter(UNANSWERED, &own.unanswered);
        set.counters(HELD_BACK, &own.held_back);
        set.counter(RECLAIMED, &own.reclaimed);
        set.counter(FREED, &own.freed);
        set.counter(RESTORED, &own.restored);

        let mut look = |def, value: fn(&Store) -> u64| {
            let store = Arc::downgrade(store);
            set.computed(def, move || Weak::upgrade(&store).map(|store| value(&store) as f64));
        };
        look(SEGMENTS, |store| store.sealed.count().0 + store.unsealed().len() as u64);
        look(ALLOCATED, |store| store.allocated_bytes.load(Ordering::Relaxed));
        look(ALLOCATED_MAX, |store| store.config.disk_bytes_max.bytes());
        look(STORED, |store| store.entries());
        look(LEDGERS, |store| store.ledgers());
        look(TOMBSTONES, |store| store.tombstones.count());
        look(RELEASE_REQUESTS, |store| store.release_requests.borrow().len() as u64);
        look(LIMBO, |store| store.limbo.count());
        let watched = Arc::downgrade(store);
        set.computed_by(STATE, move |state: State| {
            let store = watched.upgrade()?;
            let now = match store.condition.state() {
                BookieState::ReadOnly { for_good: false, .. } if store.limbo.is_everything() => State::Limbo,
                BookieState::Writable => State::Writable,
                BookieState::ReadOnly { for_good: false, .. } => State::ReadOnly,
                BookieState::ReadOnly { for_good: true, .. } => State::Failed,
            };
            Some(f64::from(now == state))
        });
        set.counters(DISK_ERRORS, store.stalls.errors());
        let watched = Arc::downgrade(store);
        let stalled = move |cause| watched.upgrade().map(|store| store.stalls.of(cause));
        let seconds = stalled.clone();
        set.computed_by(STALLED, move |cause: StallCause| {
            Some(stalled(cause)?.map_or(0.0, |stall| stall.operations as f64))
        });
        set.computed_by(STALL_SECONDS, move |cause: StallCause| {
            Some(seconds(cause)?.map_or(0.0, |stall| stall.age.as_secs_f64()))
        });
        set
    }
}
