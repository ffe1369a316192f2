use super::reads::ReadJob;
use crate::metrics::ReadEnd;
use crate::store::Spot;

/// Reads that go to the disk together.
#[derive(Default)]
pub(super) struct Step {
    pub(super) jobs: Vec<ReadJob>,
    pub(super) spots: Vec<Spot>,
    pub(super) bytes: u64,
}

impl Step {
    pub(super) fn push(&mut self, mut job: ReadJob, spot: Spot) {
        job.end = ReadEnd::Segment;
        self.bytes += spot.bytes_behind(self.spots.last());
        self.jobs.push(job);
        self.spots.push(spot);
    }
}
