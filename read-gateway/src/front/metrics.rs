//! What the front counts.

use std::time::Duration;

use common::labels;
use common::metrics::{By, Counter, Def, Gauge, Held, Histogram, Set};
use proto::{Reply, Request, Status};

use crate::ownership::Shards;

const CONNECTIONS: Def =
    Def::new("thermocline_gateway_bookkeeper_connections", "Connections of BookKeeper's protocol that are open.");
const REFUSED: Def = Def::new(
    "thermocline_gateway_bookkeeper_refused_connections",
    "Connections of BookKeeper's protocol that were closed at once because too many are open, none of them idle.",
);
const EVICTED: Def = Def::new(
    "thermocline_gateway_bookkeeper_evicted_connections",
    "Connections of BookKeeper's protocol that were closed, idle longest of all, in favour of a new one.",
);
const REQUESTS: Def = Def::new(
    "thermocline_gateway_bookkeeper_requests",
    "Requests of BookKeeper's clients for cold ids, by kind and by what they were told.",
);
const SECONDS: Def = Def::new(
    "thermocline_gateway_bookkeeper_request_seconds",
    "Time from a request of a BookKeeper client to its answer, tries and waits included.",
);
const BYTES: Def =
    Def::new("thermocline_gateway_bookkeeper_served_bytes", "Bytes of replies sent to BookKeeper's clients.");
const FOREIGN: Def = Def::new(
    "thermocline_gateway_foreign_shard_requests",
    "Requests for ledgers of shards that another gateway owns, or none; they are served all the same.",
);
const OWNED: Def = Def::new("thermocline_gateway_owned_shards", "Shards of cold ids that this gateway owns.");
const MOVED: Def = Def::new(
    "thermocline_gateway_cold_ids_registered",
    "Registrations of cold ids that this gateway made, or moved from another address to its own.",
);

labels! {
    /// What a client asked for.
    pub(super) enum Asked("operation") {
        Add = "add",
        Read = "read",
        Fence = "fence",
        Batch = "batch-read",
        Poll = "long-poll",
        ReadLac = "read-lac",
        WriteLac = "write-lac",
        Force = "force",
        Info = "info",
        List = "list",
    }
}

impl From<&Request> for Asked {
    fn from(request: &Request) -> Self {
        match request {
            Request::Add { .. } => Self::Add,
            Request::Read { fence: true, .. } | Request::BatchRead { fence: true, .. } => Self::Fence,
            Request::Read { .. } => Self::Read,
            Request::BatchRead { .. } => Self::Batch,
            Request::LongPoll { .. } => Self::Poll,
            Request::ReadLac { .. } => Self::ReadLac,
            Request::WriteLac { .. } => Self::WriteLac,
            Request::ForceLedger { .. } => Self::Force,
            Request::BookieInfo { .. } => Self::Info,
            Request::ListEntries { .. } => Self::List,
        }
    }
}

labels! {
    enum Told("outcome") {
        Done = "done",
        NoEntry = "no-entry",
        NoLedger = "no-ledger",
        Unauthorized = "unauthorized",
        ReadOnly = "read-only",
        Later = "too-many-requests",
        Damaged = "io-error",
        Refused = "refused",
    }
}

impl From<&Reply> for Told {
    fn from(reply: &Reply) -> Self {
        match reply {
            Reply::Failed(Status::NoEntry) | Reply::Lac { explicit: None, last_entry: None } => Self::NoEntry,
            Reply::Failed(Status::NoLedger) => Self::NoLedger,
            Reply::Failed(Status::Unauthorized) => Self::Unauthorized,
            Reply::Failed(Status::ReadOnly) => Self::ReadOnly,
            Reply::Failed(Status::TooManyRequests) => Self::Later,
            Reply::Failed(Status::Io) => Self::Damaged,
            Reply::Failed(_) => Self::Refused,
            _ => Self::Done,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Metrics {
    connections: Gauge,
    refused: Counter,
    pub(super) evicted: Counter,
    requests: By<(Asked, Told), Counter>,
    seconds: Histogram,
    bytes: Counter,
    pub(super) foreign: Counter,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            connections: Gauge::default(),
            refused: Counter::default(),
            evicted: Counter::default(),
            requests: By::default(),
            seconds: Histogram::seconds(),
            bytes: Counter::default(),
            foreign: Counter::default(),
        }
    }

    /// Counts a connection as open for as long as the guard lives.
    pub(super) fn connection(&self) -> Held {
        self.connections.hold()
    }

    pub(super) fn connection_refused(&self) {
        self.refused.inc();
    }

    pub(super) fn connection_evicted(&self) {
        self.evicted.inc();
    }

    pub(super) fn answered(&self, asked: Asked, reply: &Reply, bytes: usize, latency: Duration) {
        self.requests.of((asked, reply.into())).inc();
        self.bytes.add(bytes as u64);
        self.seconds.took(latency);
    }

    pub(super) fn foreign_shard(&self) {
        self.foreign.inc();
    }

    pub(super) fn shown(&self, shards: &Shards) -> Set {
        let owned = shards.clone();
        let mut set = Set::new();
        set.gauge(CONNECTIONS, &self.connections);
        set.counter(REFUSED, &self.refused);
        set.counter(EVICTED, &self.evicted);
        set.counters(REQUESTS, &self.requests);
        set.histogram(SECONDS, &self.seconds);
        set.counter(BYTES, &self.bytes);
        set.counter(FOREIGN, &self.foreign);
        set.computed(OWNED, move || Some(owned.len() as f64));
        set.counter(MOVED, shards.moved());
        set
    }
}
