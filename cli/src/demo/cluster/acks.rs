//! What was acknowledged to the writers, entry by entry: the log that everything read back is compared with.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use crate::Fault;

/// One acknowledged entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ack {
    pub(super) bytes: u64,
    pub(super) sha: [u8; 32],
}

impl Ack {
    pub(super) fn of(payload: &[u8]) -> Self {
        Self { bytes: payload.len() as u64, sha: Sha256::digest(payload).into() }
    }
}

/// A ledger as its writer knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) ledger: u64,
    /// Entries `0..acknowledged` were acknowledged.
    pub(super) acknowledged: u64,
    /// The entries of the closed ledger, those that were never acknowledged included; `None` while it is open.
    pub(super) closed_at: Option<u64>,
}

struct Written {
    acks: Vec<Ack>,
    closed_at: Option<u64>,
}

/// The log: in memory for comparing, in a file for looking.
pub(super) struct AckLog {
    ledgers: Mutex<BTreeMap<u64, Written>>,
    file: Mutex<BufWriter<File>>,
}

impl AckLog {
    pub(super) fn create(path: &Path) -> Result<Self, Fault> {
        let file = File::create(path).map_err(|error| Fault::failed(format!("{}: {error}", path.display())))?;
        Ok(Self { ledgers: Mutex::default(), file: Mutex::new(BufWriter::new(file)) })
    }

    fn ledgers(&self) -> MutexGuard<'_, BTreeMap<u64, Written>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ledger was created.
    pub(super) fn begin(&self, ledger: u64) {
        self.ledgers().insert(ledger, Written { acks: Vec::new(), closed_at: None });
    }

    /// The next entries of a ledger were acknowledged.
    pub(super) fn acknowledge(&self, ledger: u64, acks: &[Ack]) -> Result<(), Fault> {
        let mut ledgers = self.ledgers();
        let Some(written) = ledgers.get_mut(&ledger) else { return Ok(()) };
        let first = written.acks.len() as u64;
        written.acks.extend_from_slice(acks);
        drop(ledgers);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        for (entry, ack) in (first..).zip(acks) {
            let sha: String = ack.sha.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(file, "{ledger} {entry} {} {sha}", ack.bytes)
                .map_err(|error| Fault::failed(format!("write the acknowledgement log: {error}")))?;
        }
        Ok(())
    }

    /// A ledger was closed with so many entries.
    pub(super) fn close(&self, ledger: u64, entries: u64) {
        if let Some(written) = self.ledgers().get_mut(&ledger) {
            written.closed_at = Some(entries);
        }
    }

    /// Writes the file out.
    pub(super) fn flush(&self) -> Result<(), Fault> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.flush().map_err(|error| Fault::failed(format!("write the acknowledgement log: {error}")))
    }

    /// Every ledger, in the order of ids.
    pub(super) fn known(&self) -> Vec<Known> {
        let known = |(&ledger, written): (&u64, &Written)| Known {
            ledger,
            acknowledged: written.acks.len() as u64,
            closed_at: written.closed_at,
        };
        self.ledgers().iter().map(known).collect()
    }

    /// Entries acknowledged, and their bytes.
    pub(super) fn totals(&self) -> (u64, u64) {
        let ledgers = self.ledgers();
        let acks = || ledgers.values().flat_map(|written| &written.acks);
        (acks().count() as u64, acks().map(|ack| ack.bytes).sum())
    }

    /// Compares an entry with what was acknowledged; one that never was may be anything.
    pub(super) fn compare(&self, ledger: u64, entry: u64, payload: &[u8]) -> Result<(), String> {
        let expected = {
            let ledgers = self.ledgers();
            let place = usize::try_from(entry).unwrap_or(usize::MAX);
            ledgers.get(&ledger).and_then(|written| written.acks.get(place)).copied()
        };
        match expected {
            Some(expected) if expected != Ack::of(payload) => Err(format!(
                "entry {entry} of ledger {ledger} came back with {} other bytes than the {} acknowledged",
                payload.len(),
                expected.bytes
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_is_compared_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acknowledged.log");
        let log = AckLog::create(&path).unwrap();
        log.begin(7);
        log.acknowledge(7, &[Ack::of(b"a"), Ack::of(b"bc")]).unwrap();
        log.close(7, 3);
        assert_eq!(log.known(), [Known { ledger: 7, acknowledged: 2, closed_at: Some(3) }]);
        assert_eq!(log.totals(), (2, 3));
        log.compare(7, 1, b"bc").unwrap();
        log.compare(7, 2, b"never acknowledged").unwrap();
        assert!(log.compare(7, 0, b"b").unwrap_err().contains("entry 0 of ledger 7"));
        log.flush().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("7 0 1 ca978112ca1bbdca"), "{text}");
    }
}
