//! What an offloader counts.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use common::labels;
use common::metrics::{By, Counter, Def, Gauge, Histogram, Label, Set};
use ledger::{LedgerMetadata, Tier};
use tokio::time::Instant;

use crate::error::ErrorKind;
use crate::observe::Step;
use crate::offloader::Inner;
use crate::{OffloadReport, Result};

const JOBS: Def = Def::new(
    "thermocline_offloader_jobs",
    "Jobs that ended: settled a ledger, released it, did both, found nothing to do, were left to another offloader, wait for a gateway, failed, or were stopped.",
);
const RUNNING: Def = Def::new("thermocline_offloader_jobs_settling", "Jobs between claim and commit.");
const STEP_SECONDS: Def = Def::new("thermocline_offloader_step_seconds", "Time of a step of a job that was done.");
const STEPS_FAILED: Def = Def::new("thermocline_offloader_steps_failed", "Steps of jobs that failed.");
const READ_ENTRIES: Def =
    Def::new("thermocline_offloader_read_entries", "Entries read from bookies to be settled, failed jobs included.");
const READ_BYTES: Def = Def::new(
    "thermocline_offloader_read_bytes",
    "Payload bytes read from bookies to be settled, failed jobs included.",
);
const SETTLED_BYTES: Def =
    Def::new("thermocline_offloader_settled_payload_bytes", "Payload bytes of ledgers that were settled.");
const OBJECT_BYTES: Def =
    Def::new("thermocline_offloader_settled_object_bytes", "Bytes of objects that were committed.");
const ABANDONED: Def = Def::new(
    "thermocline_offloader_attempts_abandoned",
    "Attempts marked as never to be committed; their objects, if any, stay in the store.",
);
const TAKEN_OVER: Def = Def::new(
    "thermocline_offloader_attempts_taken_over",
    "Attempts of an offloader that was gone, abandoned in favour of a new one.",
);
const LENGTH_DIFFERS: Def = Def::new(
    "thermocline_offloader_length_differs",
    "Settled ledgers whose sealed length is not the sum of their payloads.",
);
const LEDGERS: Def = Def::new(
    "thermocline_offloader_ledgers",
    "Ledgers by state, at the end of the last pass over all of them: open, hot (closed, only on bookies), settled (also in the store), released (only in the store).",
);
const OLDEST: Def = Def::new(
    "thermocline_offloader_oldest_unsettled_seconds",
    "For how long this offloader has seen the ledger closed that waits longest to be settled; 0 when none waits. Counted anew after a restart.",
);
const REQUESTED: Def = Def::new(
    "thermocline_offloader_requested_ledgers",
    "Ledgers that bookies that are short of space ask to be released, as last looked up.",
);
const SCANS: Def = Def::new("thermocline_offloader_scans", "Passes over all ledgers, by how they ended.");

labels! {
    enum JobEnd("outcome") {
        Settled = "settled",
        Released = "released",
        Both = "settled-and-released",
        Nothing = "nothing",
        Busy = "left-to-another",
        Waiting = "waiting",
        Failed = "failed",
        Stopped = "stopped",
    }
}

labels! {
    enum State("state") {
        Open = "open",
        Hot = "hot",
        Settled = "settled",
        Released = "released",
    }
}

labels! {
    enum ScanEnd("outcome") {
        Done = "done",
        Failed = "failed",
    }
}

impl Label for Step {
    const NAME: &'static str = "step";
    const ALL: &'static [Self] = &Step::ALL;

    fn text(self) -> &'static str {
        self.name()
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Metrics {
    jobs: By<JobEnd, Counter>,
    step_seconds: By<Step, Histogram>,
    steps_failed: By<Step, Counter>,
    read_entries: Counter,
    read_bytes: Counter,
    taken_over: Counter,
    ledgers: By<State, Gauge>,
    requested: Gauge,
    scans: By<ScanEnd, Counter>,
    /// Since when the ledger is closed that waits longest.
    oldest: Arc<Mutex<Option<Instant>>>,
}

/// What a pass over all ledgers finds.
#[derive(Debug, Default)]
pub(crate) struct Census {
    counts: [u64; 4],
    oldest: Option<Instant>,
}

impl Census {
    /// Counts a ledger, that has waited to be settled since `waiting` if it does.
    pub(crate) fn count(&mut self, metadata: &LedgerMetadata, waiting: Option<Instant>) {
        let state = match (metadata.is_closed(), metadata.tier()) {
            (false, _) => State::Open,
            (true, Tier::Hot) => State::Hot,
            (true, Tier::Settled) => State::Settled,
            (true, Tier::Released) => State::Released,
        };
        self.counts[state.index()] += 1;
        self.oldest = match (self.oldest, waiting) {
            (Some(oldest), Some(waiting)) => Some(oldest.min(waiting)),
            (oldest, waiting) => oldest.or(waiting),
        };
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            jobs: By::default(),
            step_seconds: By::new(Histogram::seconds),
            steps_failed: By::default(),
            read_entries: Counter::default(),
            read_bytes: Counter::default(),
            taken_over: Counter::default(),
            ledgers: By::default(),
            requested: Gauge::default(),
            scans: By::default(),
            oldest: Arc::default(),
        }
    }

    pub(crate) fn job_ended(&self, result: &Result<OffloadReport>) {
        let end = match result {
            Ok(report) => match (report.uploaded, report.released) {
                (true, true) => JobEnd::Both,
                (true, false) => JobEnd::Settled,
                (false, true) => JobEnd::Released,
                (false, false) => JobEnd::Nothing,
            },
            Err(error) => match error.kind() {
                ErrorKind::Busy => JobEnd::Busy,
                ErrorKind::Waiting => JobEnd::Waiting,
                ErrorKind::Stopped => JobEnd::Stopped,
                _ => JobEnd::Failed,
            },
        };
        self.jobs.of(end).inc();
    }

    pub(crate) fn step_done(&self, step: Step, latency: Duration) {
        self.step_seconds.of(step).took(latency);
    }

    pub(crate) fn step_failed(&self, step: Step) {
        self.steps_failed.of(step).inc();
    }

    pub(crate) fn entries_read(&self, entries: usize, payload_bytes: u64) {
        self.read_entries.add(entries as u64);
        self.read_bytes.add(payload_bytes);
    }

    pub(crate) fn taken_over(&self) {
        self.taken_over.inc();
    }

    /// So many ledgers are asked for.
    pub(crate) fn requested(&self, ledgers: usize) {
        self.requested.set(ledgers as u64);
    }

    /// A pass over all ledgers ended; without a census it failed, and what was known stays.
    pub(crate) fn scanned(&self, census: Option<&Census>) {
        self.scans.of(if census.is_some() { ScanEnd::Done } else { ScanEnd::Failed }).inc();
        if let Some(census) = census {
            for (state, count) in State::ALL.iter().zip(census.counts) {
                self.ledgers.of(*state).set(count);
            }
            *self.oldest.lock().unwrap_or_else(PoisonError::into_inner) = census.oldest;
        }
    }

    /// All metrics of an offloader. They keep nothing of it alive.
    pub(crate) fn shown(inner: &Arc<Inner>) -> Set {
        let own = &inner.metrics;
        let mut set = Set::new();
        set.counters(JOBS, &own.jobs);
        set.histograms(STEP_SECONDS, &own.step_seconds);
        set.counters(STEPS_FAILED, &own.steps_failed);
        set.counter(READ_ENTRIES, &own.read_entries);
        set.counter(READ_BYTES, &own.read_bytes);
        set.counter(TAKEN_OVER, &own.taken_over);
        set.gauges(LEDGERS, &own.ledgers);
        set.gauge(REQUESTED, &own.requested);
        set.counters(SCANS, &own.scans);
        let oldest = Arc::clone(&own.oldest);
        set.computed(OLDEST, move || {
            let oldest = *oldest.lock().unwrap_or_else(PoisonError::into_inner);
            Some(oldest.map_or(0.0, |since| since.elapsed().as_secs_f64()))
        });
        let mut tally = |def, value: fn(&Inner) -> u64| {
            let inner = Arc::downgrade(inner);
            set.computed_counter(def, move || Weak::upgrade(&inner).map(|inner| value(&inner) as f64));
        };
        tally(SETTLED_BYTES, |inner| inner.counters.tallies().payload_bytes);
        tally(OBJECT_BYTES, |inner| inner.counters.tallies().object_bytes);
        tally(ABANDONED, |inner| inner.counters.tallies().abandoned);
        tally(LENGTH_DIFFERS, |inner| inner.counters.tallies().length_differs);
        let running = Arc::downgrade(inner);
        set.computed(RUNNING, move || {
            Some(running.upgrade()?.counters.running.load(std::sync::atomic::Ordering::Relaxed) as f64)
        });
        set
    }
}
