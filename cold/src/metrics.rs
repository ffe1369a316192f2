//! What the cold store counts: each request by what it was for and how it ended.

use std::time::Duration;

use common::labels;
use common::metrics::{By, Counter, Def, Gauge, Histogram, Set};

use crate::error::ErrorKind;

const REQUESTS: Def = Def::new(
    "thermocline_cold_requests",
    "Requests to the object store that ended, by what they were for and how they ended. Retries inside the store's own client are not seen here.",
);
const SECONDS: Def = Def::new(
    "thermocline_cold_request_seconds",
    "Time of a request to the object store until the answer began, retries inside the store's own client included.",
);
const READ_BYTES: Def = Def::new("thermocline_cold_read_bytes", "Bytes of objects that were read.");
const WRITTEN_BYTES: Def = Def::new(
    "thermocline_cold_written_bytes",
    "Bytes of objects that the store took, parts of objects that were never finished included.",
);
const RETRIES: Def =
    Def::new("thermocline_cold_retries", "Requests that were made again after a failure that may pass.");
const IN_FLIGHT: Def = Def::new("thermocline_cold_requests_in_flight", "Requests to the object store under way.");

labels! {
    /// What a request is for.
    pub(crate) enum Operation("operation") {
        Get = "get",
        Head = "head",
        List = "list",
        Put = "put",
        BeginUpload = "begin-upload",
        PutPart = "put-part",
        JoinParts = "join-parts",
        AbortUpload = "abort-upload",
        Delete = "delete",
        Other = "other",
    }
}

labels! {
    enum Outcome("outcome") {
        Done = "done",
        NotFound = "not-found",
        Taken = "taken",
        Denied = "denied",
        Failed = "failed",
    }
}

impl Operation {
    /// From the words that error messages use.
    pub(crate) fn of(doing: &str) -> Self {
        match doing {
            "read" => Self::Get,
            "look up" => Self::Head,
            "list" => Self::List,
            "write" => Self::Put,
            "begin to upload" => Self::BeginUpload,
            "upload a part of" => Self::PutPart,
            "join the parts of" => Self::JoinParts,
            "stop uploading" => Self::AbortUpload,
            "remove" => Self::Delete,
            _ => Self::Other,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: By<(Operation, Outcome), Counter>,
    seconds: By<Operation, Histogram>,
    read_bytes: Counter,
    written_bytes: Counter,
    retries: Counter,
    /// Requests under way.
    pub(crate) in_flight: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            requests: By::default(),
            seconds: By::new(Histogram::seconds),
            read_bytes: Counter::default(),
            written_bytes: Counter::default(),
            retries: Counter::default(),
            in_flight: Gauge::default(),
        }
    }

    /// A request ended; `failure` is how, when not well.
    pub(crate) fn ended(&self, operation: Operation, failure: Option<ErrorKind>, latency: Duration) {
        let outcome = match failure {
            None => Outcome::Done,
            Some(ErrorKind::NotFound) => Outcome::NotFound,
            Some(ErrorKind::AlreadyExists) => Outcome::Taken,
            Some(ErrorKind::Denied) => Outcome::Denied,
            Some(_) => Outcome::Failed,
        };
        self.requests.of((operation, outcome)).inc();
        self.seconds.of(operation).took(latency);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.read_bytes.add(bytes);
    }

    pub(crate) fn written(&self, bytes: u64) {
        self.written_bytes.add(bytes);
    }

    pub(crate) fn retried(&self) {
        self.retries.inc();
    }

    pub(crate) fn shown(&self) -> Set {
        let mut set = Set::new();
        set.counters(REQUESTS, &self.requests);
        set.histograms(SECONDS, &self.seconds);
        set.counter(READ_BYTES, &self.read_bytes);
        set.counter(WRITTEN_BYTES, &self.written_bytes);
        set.counter(RETRIES, &self.retries);
        set.gauge(IN_FLIGHT, &self.in_flight);
        set
    }
}
