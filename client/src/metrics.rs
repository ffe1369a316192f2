//! What a client counts.

use std::time::Duration;

use common::labels;
use common::metrics::{By, Counter, Def, Histogram, Set};

use crate::error::{Error, ErrorKind};

const APPENDS: Def = Def::new("thermocline_client_appends", "Entries that were confirmed: durable at an ack quorum.");
const APPEND_BYTES: Def = Def::new("thermocline_client_append_bytes", "Payload bytes of confirmed entries, once each.");
const APPEND_SECONDS: Def = Def::new(
    "thermocline_client_append_seconds",
    "Time from sending an entry to its ensemble until it was confirmed, in order; waiting for memory is not part of it.",
);
const APPENDS_FAILED: Def = Def::new(
    "thermocline_client_appends_failed",
    "Entries that were sent and not confirmed, by whether they may be stored all the same.",
);
const MEMBERS_FAILED: Def = Def::new(
    "thermocline_client_members_failed",
    "Members of ensembles that failed a writer, which goes on without them while its quorums last.",
);
const WRITERS_ENDED: Def =
    Def::new("thermocline_client_writers_ended", "Writers that ended other than by closing their ledger, by cause.");
const RECOVERIES: Def = Def::new(
    "thermocline_client_recoveries",
    "Recoveries of ledgers whose writer was gone, by how they ended; a failed one is safe to try again.",
);
const RECOVERY_SECONDS: Def = Def::new("thermocline_client_recovery_seconds", "Time of a recovery.");
const READS: Def = Def::new("thermocline_client_read_entries", "Entries that were read from bookies and checked.");
const READ_BYTES: Def = Def::new(
    "thermocline_client_read_bytes",
    "Bytes of entries that were read from bookies, their headers and digests included.",
);
const READ_RETRIES: Def = Def::new(
    "thermocline_client_read_retries",
    "Reads of an entry that went on to another member, because the one before failed or did not have it.",
);
const DAMAGED: Def = Def::new(
    "thermocline_client_damaged_replicas",
    "Bodies that came from a bookie and were not the writer's, by their digest.",
);

labels! {
    enum Stored("may_be_stored") {
        Yes = "yes",
        No = "no",
    }
}

labels! {
    enum Cause("cause") {
        Fenced = "fenced",
        Quorum = "quorum-unreachable",
        Other = "other",
    }
}

labels! {
    enum Outcome("outcome") {
        Done = "done",
        Failed = "failed",
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Metrics {
    appends: Counter,
    append_bytes: Counter,
    append_seconds: Histogram,
    appends_failed: By<Stored, Counter>,
    members_failed: Counter,
    writers_ended: By<Cause, Counter>,
    recoveries: By<Outcome, Counter>,
    recovery_seconds: Histogram,
    reads: Counter,
    read_bytes: Counter,
    read_retries: Counter,
    damaged: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            appends: Counter::default(),
            append_bytes: Counter::default(),
            append_seconds: Histogram::seconds(),
            appends_failed: By::default(),
            members_failed: Counter::default(),
            writers_ended: By::default(),
            recoveries: By::default(),
            recovery_seconds: Histogram::seconds(),
            reads: Counter::default(),
            read_bytes: Counter::default(),
            read_retries: Counter::default(),
            damaged: Counter::default(),
        }
    }

    pub(crate) fn confirmed(&self, payload_bytes: u64, latency: Duration) {
        self.appends.inc();
        self.append_bytes.add(payload_bytes);
        self.append_seconds.took(latency);
    }

    pub(crate) fn append_failed(&self, may_be_stored: bool) {
        self.appends_failed.of(if may_be_stored { Stored::Yes } else { Stored::No }).inc();
    }

    pub(crate) fn member_failed(&self) {
        self.members_failed.inc();
    }

    pub(crate) fn writer_ended(&self, error: &Error) {
        let cause = match error.kind() {
            ErrorKind::Fenced => Cause::Fenced,
            ErrorKind::QuorumUnreachable => Cause::Quorum,
            _ => Cause::Other,
        };
        self.writers_ended.of(cause).inc();
    }

    pub(crate) fn recovered(&self, is_done: bool, latency: Duration) {
        self.recoveries.of(if is_done { Outcome::Done } else { Outcome::Failed }).inc();
        self.recovery_seconds.took(latency);
    }

    pub(crate) fn read(&self, body_bytes: usize) {
        self.reads.inc();
        self.read_bytes.add(body_bytes as u64);
    }

    pub(crate) fn read_retried(&self) {
        self.read_retries.inc();
    }

    pub(crate) fn damaged(&self) {
        self.damaged.inc();
    }

    pub(crate) fn shown(&self) -> Set {
        let mut set = Set::new();
        set.counter(APPENDS, &self.appends);
        set.counter(APPEND_BYTES, &self.append_bytes);
        set.histogram(APPEND_SECONDS, &self.append_seconds);
        set.counters(APPENDS_FAILED, &self.appends_failed);
        set.counter(MEMBERS_FAILED, &self.members_failed);
        set.counters(WRITERS_ENDED, &self.writers_ended);
        set.counters(RECOVERIES, &self.recoveries);
        set.histogram(RECOVERY_SECONDS, &self.recovery_seconds);
        set.counter(READS, &self.reads);
        set.counter(READ_BYTES, &self.read_bytes);
        set.counter(READ_RETRIES, &self.read_retries);
        set.counter(DAMAGED, &self.damaged);
        set
    }
}
