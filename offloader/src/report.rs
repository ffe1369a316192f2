use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ledger::{ColdRecord, LedgerId, Tier};

use crate::plan::Plan;

/// What a job did, and where the ledger is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffloadReport {
    /// The ledger.
    pub ledger: LedgerId,
    /// The tiers that have it now.
    pub tier: Tier,
    /// Whether this job wrote and committed the object.
    pub uploaded: bool,
    /// Whether this job released it.
    pub released: bool,
    /// Its object.
    pub cold: Option<ColdRecord>,
    /// Between the two steps of its release: until when bookies stay, wall-clock milliseconds since 1970.
    pub partly_released_until_ms: Option<u64>,
    /// Why the job ended there.
    pub end: Plan,
    /// How long it took.
    pub elapsed: Duration,
}

/// What the offloader has done since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Ledgers settled.
    pub settled: u64,
    /// Ledgers released.
    pub released: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Attempts marked abandoned.
    pub abandoned: u64,
    /// Ledgers whose sealed length is not the sum of their payloads.
    pub length_differs: u64,
    /// Payload bytes settled.
    pub payload_bytes: u64,
    /// Object bytes written and committed.
    pub object_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) settled: AtomicU64,
    pub(crate) released: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) abandoned: AtomicU64,
    pub(crate) length_differs: AtomicU64,
    pub(crate) payload_bytes: AtomicU64,
    pub(crate) object_bytes: AtomicU64,
    /// Jobs between claim and commit.
    pub(crate) running: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn tallies(&self) -> Tallies {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Tallies {
            settled: read(&self.settled),
            released: read(&self.released),
            failed: read(&self.failed),
            abandoned: read(&self.abandoned),
            length_differs: read(&self.length_differs),
            payload_bytes: read(&self.payload_bytes),
            object_bytes: read(&self.object_bytes),
        }
    }

    /// Counts a job as running until the guard is dropped.
    pub(crate) fn run(&self) -> RunGuard<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        RunGuard(&self.running)
    }
}

pub(crate) struct RunGuard<'a>(&'a AtomicU64);

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
