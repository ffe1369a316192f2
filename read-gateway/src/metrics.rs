//! What a gateway counts.

use std::sync::Arc;
use std::time::Duration;

use common::labels;
use common::metrics::{By, Counter, Def, Gauge, Histogram, Set};

use crate::error::{Error, ErrorKind};
use crate::route::Source;

const ENTRIES: Def =
    Def::new("thermocline_gateway_served_entries", "Entries sent to readers, by the tier they came from.");
const BYTES: Def =
    Def::new("thermocline_gateway_served_bytes", "Payload bytes sent to readers, by the tier they came from.");
const STREAMS: Def = Def::new("thermocline_gateway_open_streams", "Streams that are open, by kind.");
const READS: Def = Def::new("thermocline_gateway_reads", "Reads (ReadEntries calls) that ended, by how they ended.");
const BATCH_SECONDS: Def = Def::new(
    "thermocline_gateway_batch_seconds",
    "Time to get one batch of entries from a tier, the wait for memory included.",
);
const MISSES: Def = Def::new(
    "thermocline_gateway_tier_misses",
    "Batches that a tier did not serve, after which metadata was read again and the other tier tried.",
);
const BLOCK_HITS: Def = Def::new(
    "thermocline_gateway_block_lookups",
    "Row groups asked for: found in memory, joined to a fetch under way, or missing and fetched.",
);
const FETCHES: Def =
    Def::new("thermocline_gateway_row_group_fetches", "Row groups that were fetched, by how that ended.");
const FETCH_SECONDS: Def = Def::new(
    "thermocline_gateway_row_group_fetch_seconds",
    "Time to fetch and decode one row group, the wait for memory included.",
);
const FETCHED_BYTES: Def =
    Def::new("thermocline_gateway_row_group_fetched_bytes", "Encoded bytes of row groups that were fetched.");
const CACHED_BYTES: Def = Def::new("thermocline_gateway_cached_block_bytes", "Memory of row groups that are kept.");
const EMPTIED: Def = Def::new(
    "thermocline_gateway_cache_emptied",
    "Times the cache of row groups was emptied because a fetch found no memory otherwise.",
);
const OPENED: Def = Def::new("thermocline_gateway_objects_opened", "Objects whose footer was read from the store.");
const WRITERS: Def = Def::new("thermocline_gateway_live_writers", "Ledgers that have their writer in this gateway.");

labels! {
    /// A tier.
    enum Tier("tier") {
        Hot = "hot",
        Cold = "cold",
    }
}

labels! {
    /// A kind of stream.
    pub(crate) enum Stream("kind") {
        /// `ReadEntries`.
        Read = "read",
        /// `Append`.
        Append = "append",
    }
}

labels! {
    enum ReadEnd("outcome") {
        Done = "done",
        Refused = "refused",
        Damaged = "damaged",
        Exhausted = "no-memory",
        Timeout = "timeout",
        Unknown = "unknown",
        Failed = "failed",
        Gone = "reader-gone",
    }
}

labels! {
    /// How a row group was looked up.
    pub(crate) enum Lookup("result") {
        /// It was in memory.
        Hit = "hit",
        /// It was being fetched.
        Joined = "joined",
        /// It had to be fetched.
        Miss = "miss",
    }
}

labels! {
    enum Fetch("outcome") {
        Done = "done",
        Failed = "failed",
    }
}

impl From<Source> for Tier {
    fn from(source: Source) -> Self {
        match source {
            Source::Hot => Self::Hot,
            Source::Cold => Self::Cold,
        }
    }
}

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    own: Arc<Own>,
}

#[derive(Debug)]
struct Own {
    entries: By<Tier, Counter>,
    bytes: By<Tier, Counter>,
    streams: By<Stream, Gauge>,
    reads: By<ReadEnd, Counter>,
    batch_seconds: By<Tier, Histogram>,
    misses: By<Tier, Counter>,
    lookups: By<Lookup, Counter>,
    fetches: By<Fetch, Counter>,
    fetch_seconds: Histogram,
    fetched_bytes: Counter,
    emptied: Counter,
    opened: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let own = Own {
            entries: By::default(),
            bytes: By::default(),
            streams: By::default(),
            reads: By::default(),
            batch_seconds: By::new(Histogram::seconds),
            misses: By::default(),
            lookups: By::default(),
            fetches: By::default(),
            fetch_seconds: Histogram::seconds(),
            fetched_bytes: Counter::default(),
            emptied: Counter::default(),
            opened: Counter::default(),
        };
        Self { own: Arc::new(own) }
    }

    pub(crate) fn served(&self, source: Source, entries: usize, bytes: u64, latency: Duration) {
        self.own.entries.of(source.into()).add(entries as u64);
        self.own.bytes.of(source.into()).add(bytes);
        self.own.batch_seconds.of(source.into()).took(latency);
    }

    /// Counts a stream as open for as long as the guard lives.
    pub(crate) fn stream(&self, kind: Stream) -> common::metrics::Held {
        self.own.streams.of(kind).hold()
    }

    /// A read ended; `None`: its reader went away.
    pub(crate) fn read_ended(&self, result: Option<&Result<(), Error>>) {
        let end = match result {
            None => ReadEnd::Gone,
            Some(Ok(())) => ReadEnd::Done,
            Some(Err(error)) => match error.kind() {
                ErrorKind::Damaged => ReadEnd::Damaged,
                ErrorKind::Exhausted => ReadEnd::Exhausted,
                ErrorKind::Timeout => ReadEnd::Timeout,
                ErrorKind::Unknown => ReadEnd::Unknown,
                ErrorKind::Unavailable | ErrorKind::Internal => ReadEnd::Failed,
                ErrorKind::NotFound
                | ErrorKind::OutOfRange
                | ErrorKind::Precondition
                | ErrorKind::Denied
                | ErrorKind::Fenced
                | ErrorKind::Invalid
                | ErrorKind::Unsupported => ReadEnd::Refused,
            },
        };
        self.own.reads.of(end).inc();
    }

    pub(crate) fn missed(&self, source: Source) {
        self.own.misses.of(source.into()).inc();
    }

    pub(crate) fn looked_up(&self, lookup: Lookup) {
        self.own.lookups.of(lookup).inc();
    }

    /// A row group was fetched, so many encoded bytes, or was not.
    pub(crate) fn fetched(&self, bytes: Option<u64>, latency: Duration) {
        self.own.fetches.of(if bytes.is_some() { Fetch::Done } else { Fetch::Failed }).inc();
        self.own.fetched_bytes.add(bytes.unwrap_or(0));
        self.own.fetch_seconds.took(latency);
    }

    pub(crate) fn cache_emptied(&self) {
        self.own.emptied.inc();
    }

    pub(crate) fn object_opened(&self) {
        self.own.opened.inc();
    }

    /// All metrics; what is kept elsewhere is asked for with `cached_bytes` and `live_writers`.
    pub(crate) fn shown(
        &self,
        cached_bytes: impl Fn() -> Option<f64> + Send + Sync + 'static,
        live_writers: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) -> Set {
        let own = &self.own;
        let mut set = Set::new();
        set.counters(ENTRIES, &own.entries);
        set.counters(BYTES, &own.bytes);
        set.gauges(STREAMS, &own.streams);
        set.counters(READS, &own.reads);
        set.histograms(BATCH_SECONDS, &own.batch_seconds);
        set.counters(MISSES, &own.misses);
        set.counters(BLOCK_HITS, &own.lookups);
        set.counters(FETCHES, &own.fetches);
        set.histogram(FETCH_SECONDS, &own.fetch_seconds);
        set.counter(FETCHED_BYTES, &own.fetched_bytes);
        set.counter(EMPTIED, &own.emptied);
        set.counter(OPENED, &own.opened);
        set.computed(CACHED_BYTES, cached_bytes);
        set.computed(WRITERS, live_writers);
        set
    }
}
