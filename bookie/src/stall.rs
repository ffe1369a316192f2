//! What the disk and the index have been asked and have not answered yet: how much, and for how long.
//!
//! Whatever goes to them passes [`WatchedDisk`] or [`WatchedIndex`], which keep a note of it from its beginning to its end. An operation
//! that runs longer than [`STALL_AFTER`] is a stall. One look a moment ([`Watcher`]) tells the log, and turns the bookie read-only while
//! its journal is what stalls; health and metrics look for themselves. A stall ends by itself, with the operation.

mod watched;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use common::labels;
use common::metrics::{By, Counter};
use tokio::time::Instant;

pub(crate) use watched::{WatchedDisk, WatchedIndex};

/// How long an operation may take before it counts as stalled: far beyond what a slow disk needs, and within what people wait before they
/// look for a cause.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(5);
/// How often the log repeats that something stalls.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

labels! {
    /// What an operation waits for.
    #[derive(PartialOrd, Ord)]
    pub enum StallCause("cause") {
        /// The index.
        Index = "index",
        /// The disk, for a write or a sync of the journal.
        Journal = "journal",
        /// The disk, for a read.
        Read = "read",
    }
}

impl fmt::Display for StallCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Index => "the index",
            Self::Journal => "the journal's disk",
            Self::Read => "the disk that is read from",
        })
    }
}

/// Operations that take longer than they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// What they wait for.
    pub cause: StallCause,
    /// How many there are.
    pub operations: u64,
    /// How long the oldest has been waiting.
    pub age: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cause, seconds) = (self.cause, self.age.as_secs());
        write!(f, "{cause} has not answered for {seconds} s ({} operations wait)", self.operations)
    }
}

/// The operations of one bookie that are under way. Cheap to clone; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    running: Arc<Mutex<Running>>,
    /// Operations that failed for another reason than missing space or a missing name.
    errors: Arc<By<StallCause, Counter>>,
}

#[derive(Debug, Default)]
struct Running {
    next: u64,
    /// Of each cause when its operations began, oldest first.
    begun: BTreeMap<StallCause, BTreeMap<u64, Instant>>,
}

/// An operation, until it is dropped.
#[derive(Debug)]
pub(crate) struct Operation {
    stalls: Stalls,
    cause: StallCause,
    id: u64,
}

impl Stalls {
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an operation until what is returned is dropped.
    pub(crate) fn begin(&self, cause: StallCause) -> Operation {
        let mut running = self.lock();
        running.next += 1;
        let id = running.next;
        running.begun.entry(cause).or_default().insert(id, Instant::now());
        Operation { stalls: self.clone(), cause, id }
    }

    /// Does an operation, noted.
    async fn watch<T>(&self, cause: StallCause, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let _noted = self.begin(cause);
        let answer = work.await;
        self.note(cause, &answer);
        answer
    }

    /// Counts an answer that says of the device that something is wrong with it.
    fn note<T>(&self, cause: StallCause, answer: &io::Result<T>) {
        use io::ErrorKind as Kind;
        let Err(error) = answer else { return };
        // Of names, of space, and of the length of a file: who asked knows what to make of those.
        let ordinary = [
            Kind::NotFound,
            Kind::AlreadyExists,
            Kind::StorageFull,
            Kind::QuotaExceeded,
            Kind::FileTooLarge,
            Kind::InvalidData,
            Kind::UnexpectedEof,
        ];
        if !ordinary.contains(&error.kind()) {
            self.failed(cause);
        }
    }

    fn failed(&self, cause: StallCause) {
        self.errors.of(cause).inc();
    }

    /// Operations that failed, as a sign of a device that fails.
    pub(crate) fn errors(&self) -> &By<StallCause, Counter> {
        &self.errors
    }

    /// Lets the time of all that is under way begin now: the process did not run meanwhile, so nothing could be seen to end.
    pub(crate) fn begin_anew(&self) {
        let now = Instant::now();
        self.lock().begun.values_mut().flat_map(BTreeMap::values_mut).for_each(|begun| *begun = now);
    }

    /// What stalls now, each cause once.
    pub fn now(&self) -> Vec<Stall> {
        let now = Instant::now();
        let running = self.lock();
        let stalled = |(cause, begun): (&StallCause, &BTreeMap<u64, Instant>)| {
            let mut ages = begun.values().map(|begun| now - *begun).take_while(|age| *age >= STALL_AFTER);
            let age = ages.next()?;
            Some(Stall { cause: *cause, operations: 1 + ages.count() as u64, age })
        };
        running.begun.iter().filter_map(stalled).collect()
    }

    /// What stalls now for one cause.
    pub(crate) fn of(&self, cause: StallCause) -> Option<Stall> {
        self.now().into_iter().find(|stall| stall.cause == cause)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(begun) = self.stalls.lock().begun.get_mut(&self.cause) {
            begun.remove(&self.id);
        }
    }
}

/// What follows from one look after another.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    told: Option<Instant>,
    looked: Option<Instant>,
    /// When the journal was last seen to stall.
    journal: Option<Instant>,
}

/// What a look changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The log is to be told of the stall.
    pub(crate) tell: bool,
    /// The log is to be told that it is over.
    pub(crate) over: bool,
    /// The journal is not to be relied on. It is once it has moved on for as long as a stall takes to be one, so that a disk which
    /// stalls again and again does not turn the bookie with each.
    pub(crate) journal_stalls: bool,
}

impl Watcher {
    /// Whether the process stood still since the last look, which should have been a moment ago: it was suspended, or its machine.
    pub(crate) fn stood_still(&mut self, now: Instant) -> bool {
        self.looked.replace(now).is_some_and(|looked| now - looked >= STALL_AFTER / 2)
    }

    pub(crate) fn look(&mut self, stalls: &[Stall], now: Instant) -> Verdict {
        if stalls.iter().any(|stall| stall.cause == StallCause::Journal) {
            self.journal = Some(now);
        }
        let journal_stalls = self.journal.is_some_and(|seen| now - seen < STALL_AFTER);
        let tell = !stalls.is_empty() && self.told.is_none_or(|told| now - told >= COMPLAINT_INTERVAL);
        let over = stalls.is_empty() && self.told.is_some();
        if tell {
            self.told = Some(now);
        }
        if over {
            self.told = None;
        }
        Verdict { tell, over, journal_stalls }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: u64) -> Instant {
        // Any moment will do.
        static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *BEGIN.get_or_init(Instant::now) + Duration::from_secs(second)
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_stalls_after_its_time_and_until_its_end() {
        let stalls = Stalls::default();
        let first = stalls.begin(StallCause::Index);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let second = stalls.begin(StallCause::Index);
        let _read = stalls.begin(StallCause::Read);
        assert_eq!(stalls.now(), []);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(stalls.now(), [Stall { cause: StallCause::Index, operations: 1, age: Duration::from_secs(5) }]);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(stalls.of(StallCause::Index).map(|stall| (stall.operations, stall.age.as_secs())), Some((2, 8)));
        drop(first);
        assert_eq!(stalls.of(StallCause::Index).map(|stall| (stall.operations, stall.age.as_secs())), Some((1, 5)));
        drop(second);
        assert_eq!(stalls.of(StallCause::Index), None);
        let told = stalls.now()[0].to_string();
        assert_eq!(told, "the disk that is read from has not answered for 5 s (1 operations wait)");
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_process_stood_still_is_nobodys_stall() {
        let (stalls, mut watcher) = (Stalls::default(), Watcher::default());
        let _write = stalls.begin(StallCause::Journal);
        assert!(!watcher.stood_still(Instant::now()));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!watcher.stood_still(Instant::now()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(stalls.of(StallCause::Journal).is_some());
        assert!(watcher.stood_still(Instant::now()));
        stalls.begin_anew();
        assert_eq!(stalls.now(), []);
        tokio::time::sleep(STALL_AFTER).await;
        assert_eq!(stalls.of(StallCause::Journal).map(|stall| stall.age), Some(STALL_AFTER), "one that goes on is one");
    }

    #[test]
    fn errors_of_a_device_are_counted_and_those_of_names_and_space_are_not() {
        let stalls = Stalls::default();
        let causes = [StallCause::Index, StallCause::Journal, StallCause::Read];
        let count = |stalls: &Stalls| causes.map(|cause| stalls.errors().of(cause).get());
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::StorageFull, io::ErrorKind::UnexpectedEof] {
            stalls.note::<()>(StallCause::Read, &Err(kind.into()));
        }
        stalls.note(StallCause::Read, &Ok(()));
        assert_eq!(count(&stalls), [0, 0, 0]);
        stalls.note::<()>(StallCause::Journal, &Err(io::Error::other("EIO")));
        stalls.note::<()>(StallCause::Read, &Err(io::Error::from_raw_os_error(5)));
        stalls.failed(StallCause::Index);
        assert_eq!(count(&stalls), [1, 1, 1]);
    }

    #[test]
    fn the_log_is_told_now_and_then_and_the_journal_must_move_for_a_while() {
        let stall = |cause| Stall { cause, operations: 1, age: STALL_AFTER };
        let (index, journal) = ([stall(StallCause::Index)], [stall(StallCause::Journal)]);
        let mut watcher = Watcher::default();
        assert_eq!(watcher.look(&[], second(0)), Verdict::default());
        assert_eq!(watcher.look(&index, second(1)), Verdict { tell: true, ..Verdict::default() });
        assert_eq!(watcher.look(&index, second(60)), Verdict::default(), "told a moment ago");
        assert_eq!(watcher.look(&journal, second(61)), Verdict { tell: true, over: false, journal_stalls: true });
        assert_eq!(watcher.look(&[], second(62)), Verdict { tell: false, over: true, journal_stalls: true });
        assert_eq!(watcher.look(&[], second(65)), Verdict { journal_stalls: true, ..Verdict::default() });
        assert_eq!(watcher.look(&[], second(66)), Verdict::default(), "it has moved on for a while");
    }
}
