//! What clients were told, and the judge of it. The numbers are those of the invariants in `docs/ARCHITECTURE.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ledger::{EntryId, LedgerId, LedgerMetadata, LedgerState};

use crate::trace::Trace;

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub invariant: u8,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.text)
    }
}

/// How much happened: a run that did nothing proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub ledgers: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub closed: u64,
    pub recoveries: u64,
    pub reads: u64,
    /// Ledgers of which an audit read something, and the entries.
    pub audits: u64,
    pub audited: u64,
    pub deleted: u64,
    pub crashes: u64,
    pub faults: u64,
    pub probes: u64,
    /// Ledgers whose object was found whole when their record began to name it.
    pub settled: u64,
    pub released: u64,
    /// Entries read through the gateway, by tier.
    pub gateway_hot: u64,
    pub gateway_cold: u64,
    /// Messages of the network that never arrived.
    pub lost: u64,
    /// Answers of metadata that were lost, of commits that were done and of ones that were not.
    pub unknown_applied: u64,
    pub unknown_not_applied: u64,
    /// Requests to the object store that failed, or whose answers were lost.
    pub object_faults: u64,
    /// Kills of the offloader while an attempt was open.
    pub attempts_cut: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.ledgers += other.ledgers;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.closed += other.closed;
        self.recoveries += other.recoveries;
        self.reads += other.reads;
        self.audits += other.audits;
        self.audited += other.audited;
        self.deleted += other.deleted;
        self.crashes += other.crashes;
        self.faults += other.faults;
        self.probes += other.probes;
        self.settled += other.settled;
        self.released += other.released;
        self.gateway_hot += other.gateway_hot;
        self.gateway_cold += other.gateway_cold;
        self.lost += other.lost;
        self.unknown_applied += other.unknown_applied;
        self.unknown_not_applied += other.unknown_not_applied;
        self.object_faults += other.object_faults;
        self.attempts_cut += other.attempts_cut;
    }
}

/// What is known of one ledger.
#[derive(Clone, Debug, Default)]
pub struct LedgerHistory {
    pub ack_quorum: u32,
    /// As it was created; the keys and members of its writer are in it.
    pub metadata: Option<LedgerMetadata>,
    /// Payloads in the order of ids. The last one may not have been given its id: its writer may have died over it.
    pub sent: Vec<Bytes>,
    /// Entries whose append was acknowledged.
    pub acknowledged: BTreeSet<EntryId>,
    /// Entries of which the writer was told that they were surely not written.
    refused: BTreeSet<EntryId>,
    /// The end, once anybody was told it.
    pub end: Option<Option<EntryId>>,
    /// The highest end that anybody was told to be confirmed.
    pub confirmed: Option<EntryId>,
    /// The writer has begun to close it, so that it may be closed without a fence.
    pub closing: bool,
    /// Somebody has begun to delete it: from here on nothing is promised.
    pub deleted: bool,
    /// Its record names no bookie any more. Bookies drop it in their own time, and those who opened it before have to look again.
    pub released: bool,
}

#[derive(Default)]
struct State {
    ledgers: BTreeMap<LedgerId, LedgerHistory>,
    violations: Vec<Violation>,
    counts: Counts,
}

/// The history of one run. Clones are the same history.
#[derive(Clone)]
pub struct History {
    trace: Trace,
    state: Arc<Mutex<State>>,
}

impl History {
    pub fn new(trace: &Trace) -> Self {
        Self { trace: trace.clone(), state: Arc::default() }
    }

    /// Notes what must never happen.
    pub fn violation(&self, invariant: u8, text: String) {
        let violation = Violation { invariant, text };
        self.trace.note(format_args!("VIOLATION {violation}"));
        self.lock().violations.push(violation);
    }

    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Whether nothing has happened that must not.
    pub fn is_clean(&self) -> bool {
        self.lock().violations.is_empty()
    }

    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    pub fn count(&self, what: impl FnOnce(&mut Counts)) {
        what(&mut self.lock().counts);
    }

    /// All ledgers that were created, in the order of ids.
    pub fn ledgers(&self) -> Vec<LedgerId> {
        self.lock().ledgers.keys().copied().collect()
    }

    pub fn of(&self, ledger: LedgerId) -> LedgerHistory {
        self.lock().ledgers.get(&ledger).cloned().unwrap_or_default()
    }

    pub fn created(&self, ledger: LedgerId, metadata: &LedgerMetadata) {
        let quorums = metadata.quorums();
        self.trace.note(format_args!("ledger {ledger} created: {quorums:?}"));
        let mut state = self.lock();
        state.counts.ledgers += 1;
        let history =
            LedgerHistory { ack_quorum: quorums.ack(), metadata: Some(metadata.clone()), ..LedgerHistory::default() };
        let is_new = state.ledgers.insert(ledger, history).is_none();
        drop(state);
        if !is_new {
            self.violation(2, format!("ledger {ledger} was created twice"));
        }
    }

    /// An append is about to begin: whatever becomes of its writer, bookies may come to hold it.
    pub fn appends(&self, ledger: LedgerId, payload: Bytes) {
        self.with(ledger, |history| history.sent.push(payload));
    }

    /// The append that was begun last got its id.
    pub fn appended(&self, ledger: LedgerId, entry: EntryId) {
        let expected = self.with(ledger, |history| history.sent.len() as u64 - 1);
        if expected != entry.get() {
            self.violation(2, format!("append {expected} of ledger {ledger} got id {entry}"));
        }
    }

    /// An append was acknowledged.
    pub fn acknowledged(&self, ledger: LedgerId, entry: EntryId) {
        self.count(|counts| counts.acknowledged += 1);
        let end = self.with(ledger, |history| {
            history.acknowledged.insert(entry);
            history.end
        });
        if let Some(end) = end
            && Some(entry) > end
        {
            let text = format!("entry {entry} of ledger {ledger} was acknowledged, and its end is {end:?}");
            self.violation(5, text);
        }
    }

    /// An append failed. `maybe`: it may be stored all the same.
    pub fn failed(&self, ledger: LedgerId, entry: EntryId, maybe: bool) {
        self.count(|counts| counts.refused += 1);
        let end = self.with(ledger, |history| {
            if !maybe {
                history.refused.insert(entry);
            }
            history.end
        });
        if !maybe && end.is_some_and(|end| Some(entry) <= end) {
            let text =
                format!("entry {entry} of ledger {ledger} is within its end {end:?}, and was told to be not written");
            self.violation(8, text);
        }
    }

    /// Somebody was told how far the ledger is confirmed.
    pub fn confirmed(&self, ledger: LedgerId, confirmed: Option<EntryId>, who: &str) {
        let (end, sent) = self.with(ledger, |history| {
            history.confirmed = history.confirmed.max(confirmed);
            (history.end, history.sent.len() as u64)
        });
        if confirmed.is_some_and(|confirmed| confirmed.get() >= sent) {
            self.violation(
                2,
                format!("{who}: ledger {ledger} is confirmed to {confirmed:?}, but {sent} entries exist"),
            );
        }
        if let Some(end) = end
            && confirmed > end
        {
            self.violation(2, format!("{who}: ledger {ledger} is confirmed to {confirmed:?}, and its end is {end:?}"));
        }
    }

    /// Somebody was told that the ledger is closed.
    pub fn closed(&self, ledger: LedgerId, metadata: &LedgerMetadata, who: &str) {
        let LedgerState::Closed { last_entry, length } = metadata.state() else {
            return self.violation(2, format!("{who}: ledger {ledger} should be closed, it is {:?}", metadata.state()));
        };
        self.count(|counts| counts.closed += 1);
        self.trace.note(format_args!("{who}: ledger {ledger} is closed at {last_entry:?}"));
        self.ends_at(ledger, last_entry, length, who);
    }

    /// The record of a ledger is seen to be closed.
    pub fn sealed(&self, ledger: LedgerId, metadata: &LedgerMetadata, who: &str) {
        if let LedgerState::Closed { last_entry, length } = metadata.state()
            && self.knows(ledger)
        {
            self.ends_at(ledger, last_entry, length, who);
        }
    }

    /// Whether its writer lived to know that it exists.
    pub fn knows(&self, ledger: LedgerId) -> bool {
        self.lock().ledgers.contains_key(&ledger)
    }

    fn ends_at(&self, ledger: LedgerId, last_entry: Option<EntryId>, length: u64, who: &str) {
        let before = self.with(ledger, |history| {
            let before = history.clone();
            history.end.get_or_insert(last_entry);
            before
        });
        let known = before.end.unwrap_or(last_entry);
        if known != last_entry {
            self.violation(2, format!("{who}: the end of ledger {ledger} was {known:?} and now is {last_entry:?}"));
        }
        if let Some(lost) = before.acknowledged.last().filter(|entry| Some(**entry) > last_entry) {
            let text = format!("{who}: ledger {ledger} ends at {last_entry:?}, and entry {lost} was acknowledged");
            self.violation(1, text);
        }
        if before.confirmed > last_entry {
            let text =
                format!("{who}: ledger {ledger} ends at {last_entry:?}, and was confirmed to {:?}", before.confirmed);
            self.violation(2, text);
        }
        if let Some(entry) = before.refused.first().filter(|entry| Some(**entry) <= last_entry) {
            let text =
                format!("{who}: ledger {ledger} ends at {last_entry:?}, and entry {entry} was told to be not written");
            self.violation(8, text);
        }
        let entries = last_entry.map_or(0, |last| last.get() + 1);
        let sent: u64 = before.sent.iter().zip(0..entries).map(|(payload, _)| payload.len() as u64).sum();
        if entries > before.sent.len() as u64 || sent != length {
            let text = format!("{who}: ledger {ledger} ends at {last_entry:?} with {length} bytes, {sent} were sent");
            self.violation(2, text);
        }
    }

    /// Somebody read an entry.
    pub fn read(&self, ledger: LedgerId, entry: EntryId, payload: &Bytes, who: &str) {
        self.count(|counts| counts.reads += 1);
        let sent = self.with(ledger, |history| history.sent.get(entry.get() as usize).cloned());
        // What was sent is known, so that any two readers who see it see the same.
        if sent.as_ref() != Some(payload) {
            let sent = sent.map(|sent| sent.len());
            let text = format!(
                "{who}: entry {entry} of ledger {ledger} reads as {} bytes, {sent:?} other ones were sent",
                payload.len()
            );
            self.violation(6, text);
        }
    }

    /// Somebody begins to close or to delete it.
    pub fn mark(&self, ledger: LedgerId, mark: impl FnOnce(&mut LedgerHistory)) {
        self.with(ledger, mark);
    }

    fn with<T>(&self, ledger: LedgerId, change: impl FnOnce(&mut LedgerHistory) -> T) -> T {
        change(self.lock().ledgers.entry(ledger).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
