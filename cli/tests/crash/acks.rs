//! The acknowledgement log: every promise that a positive reply made, on disk before the next append is sent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use common::rng::Rng;
use sha2::{Digest as _, Sha256};

use crate::eventually;

/// What was promised of one ledger.
#[derive(Debug, Clone, Default)]
pub struct Promises {
    /// SHA-256 and length of each acknowledged entry; the place is the entry id.
    pub acked: Vec<([u8; 32], usize)>,
    /// The highest last confirmed entry ever seen.
    pub confirmed: Option<u64>,
    /// The end that was seen when it was closed: last entry and length.
    pub closed: Option<(Option<u64>, u64)>,
    /// The object named when it was first seen settled.
    pub object: Option<String>,
    /// Its deletion was asked for, and may have happened.
    pub deleted: bool,
}

impl Promises {
    /// The end a close may not go below: one past everything acknowledged or seen confirmed.
    pub fn least_end(&self) -> u64 {
        (self.acked.len() as u64).max(self.confirmed.map_or(0, |last| last + 1))
    }
}

/// The log; clones are the same one.
#[derive(Clone)]
pub struct AckLog {
    seed: u64,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    file: File,
    ledgers: BTreeMap<u64, Promises>,
}

impl AckLog {
    pub fn create(path: &Path, seed: u64) -> Self {
        let inner = Inner { file: File::create_new(path).unwrap(), ledgers: BTreeMap::new() };
        Self { seed, inner: Arc::new(Mutex::new(inner)) }
    }

    /// The payload that entry `entry` of a ledger gets, acknowledged or not: empty, tiny, lines, or large.
    pub fn payload(&self, ledger: u64, entry: u64) -> Bytes {
        let rng = Rng::seeded(
            self.seed ^ ledger.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ entry.wrapping_mul(0xD1B5_4A32_D192_ED03),
        );
        let bytes = match rng.below(64) {
            0 => 0,
            1 => 1,
            2 => 4_000 + rng.below(20_000),
            _ => 20 + rng.below(600),
        };
        let mut payload = vec![0; bytes as usize];
        rng.fill(&mut payload);
        Bytes::from(payload)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All ledgers with their promises.
    pub fn ledgers(&self) -> BTreeMap<u64, Promises> {
        self.lock().ledgers.clone()
    }

    /// Entries acknowledged so far, in all ledgers.
    pub fn acknowledged(&self) -> u64 {
        self.lock().ledgers.values().map(|promises| promises.acked.len() as u64).sum()
    }

    /// Waits until more entries are acknowledged than `before`: those who serve take work.
    pub async fn more_than(&self, before: u64) {
        eventually("more entries are acknowledged", async || self.acknowledged() > before).await;
    }

    pub fn created(&self, ledger: u64) {
        let mut inner = self.lock();
        let old = inner.ledgers.insert(ledger, Promises::default());
        assert!(old.is_none(), "ledger id {ledger} was given twice");
        inner.note(&format!("created {ledger}\n"));
    }

    /// Entries `first..first + count` are acknowledged.
    pub fn acked(&self, ledger: u64, first: u64, count: u64) {
        let mut lines = String::new();
        let digests: Vec<([u8; 32], usize)> = (first..first + count)
            .map(|entry| {
                let payload = self.payload(ledger, entry);
                let digest: [u8; 32] = Sha256::digest(&payload).into();
                let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                let _ = writeln!(lines, "acked {ledger} {entry} {} {hex}", payload.len());
                (digest, payload.len())
            })
            .collect();
        let mut inner = self.lock();
        inner.note(&lines);
        let promises = inner.ledgers.get_mut(&ledger).unwrap();
        assert_eq!(promises.acked.len() as u64, first, "ledger {ledger}: acknowledgements out of order");
        promises.acked.extend(digests);
    }

    /// A last confirmed entry was seen; `live` when the ledger's writer is the one who said so.
    pub fn confirmed(&self, ledger: u64, last: Option<u64>, live: bool) {
        let mut inner = self.lock();
        inner.note(&format!("confirmed {ledger} {last:?}\n"));
        let promises = inner.ledgers.get_mut(&ledger).unwrap();
        if live {
            assert!(
                last >= promises.confirmed,
                "ledger {ledger}: last confirmed went from {:?} to {last:?}",
                promises.confirmed
            );
        }
        promises.confirmed = promises.confirmed.max(last);
    }

    /// The ledger was seen closed: at the same end as ever before, and not below anything promised.
    pub fn closed(&self, ledger: u64, last: Option<u64>, length: u64) {
        let mut inner = self.lock();
        inner.note(&format!("closed {ledger} {last:?} {length}\n"));
        let promises = inner.ledgers.get_mut(&ledger).unwrap();
        let end = last.map_or(0, |last| last + 1);
        assert!(
            end >= promises.least_end(),
            "ledger {ledger} is closed at {end}, below {}: {promises:?}",
            promises.least_end()
        );
        let before = *promises.closed.get_or_insert((last, length));
        assert_eq!(before, (last, length), "ledger {ledger}: its end changed");
    }

    /// The ledger was seen to name an object: the same as ever before.
    pub fn settled(&self, ledger: u64, object: &str) {
        let mut inner = self.lock();
        inner.note(&format!("settled {ledger} {object}\n"));
        let promises = inner.ledgers.get_mut(&ledger).unwrap();
        let before = promises.object.get_or_insert_with(|| object.to_owned());
        assert_eq!(before, object, "ledger {ledger}: it names another object than before");
    }

    /// A deletion is about to be asked for.
    pub fn deleted(&self, ledger: u64) {
        let mut inner = self.lock();
        inner.note(&format!("deleted {ledger}\n"));
        inner.ledgers.get_mut(&ledger).unwrap().deleted = true;
    }
}

impl Inner {
    fn note(&mut self, lines: &str) {
        // One write, unbuffered: with its return it has left this process.
        self.file.write_all(lines.as_bytes()).unwrap();
    }
}

/// A judge that lets everything pass proves nothing.
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use proto::v1::Entry;

    use super::*;
    use crate::sweep::compare;

    type Breach = fn(&AckLog);

    /// A log of one ledger with five acknowledged entries that was closed at its end.
    fn log(dir: &Path) -> AckLog {
        let log = AckLog::create(&dir.join("acks"), 7);
        log.created(1);
        log.acked(1, 0, 3);
        log.acked(1, 3, 2);
        log.confirmed(1, Some(4), true);
        log
    }

    #[test]
    fn what_breaks_a_promise_is_a_violation() {
        let violations: [(&str, Breach); 8] = [
            ("an acknowledgement out of order", |log| log.acked(1, 6, 1)),
            ("an id given twice", |log| log.created(1)),
            ("a last confirmed entry that went back", |log| log.confirmed(1, Some(3), true)),
            ("an end below what was acknowledged", |log| log.closed(1, Some(3), 0)),
            ("an end below what was confirmed", |log| {
                log.confirmed(1, Some(9), false);
                log.closed(1, Some(8), 0);
            }),
            ("an end that changed", |log| {
                log.closed(1, Some(6), 10);
                log.closed(1, Some(7), 10);
            }),
            ("a length that changed", |log| {
                log.closed(1, Some(6), 10);
                log.closed(1, Some(6), 11);
            }),
            ("a second object", |log| {
                log.settled(1, "a");
                log.settled(1, "b");
            }),
        ];
        for (what, breach) in violations {
            let dir = tempfile::tempdir().unwrap();
            let log = log(dir.path());
            assert!(catch_unwind(AssertUnwindSafe(|| breach(&log))).is_err(), "{what} passes");
        }
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        log.closed(1, Some(6), 10);
        log.closed(1, Some(6), 10);
        log.settled(1, "a");
        log.settled(1, "a");
        assert_eq!(std::fs::read_to_string(dir.path().join("acks")).unwrap().matches("acked 1 ").count(), 5);
    }

    #[test]
    fn missing_swapped_and_altered_entries_are_violations() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        let entry = |id| Entry { entry_id: id, payload: log.payload(1, id), ..Entry::default() };
        let good: Vec<Entry> = (0..5).map(entry).collect();
        compare("a test", &log, 1, 0, 5, &good);
        let altered = |place: usize, payload: Bytes| {
            let mut bad = good.clone();
            bad[place].payload = payload;
            bad
        };
        let mut swapped = good.clone();
        swapped.swap(1, 2);
        let bad = [good[..4].to_vec(), swapped, altered(2, Bytes::new()), altered(4, log.payload(1, 3))];
        for bad in bad {
            let judged = catch_unwind(AssertUnwindSafe(|| compare("a test", &log, 1, 0, 5, &bad)));
            assert!(judged.is_err(), "{bad:?} passes");
        }
    }
}
