//! What a recovering client decides: how it takes an open ledger from its writer and finds its end.
//!
//! # Order
//!
//! 1. Metadata `OPEN` → `IN_RECOVERY`; recoveries may run beside each other, a ledger that somebody closed is done.
//! 2. Every member of the last ensemble is fenced by a read of its last entry. This goes on as soon as the members that
//!    answered *cover* the ensemble: in no write set are enough silent ones left to confirm an add of the old writer.
//! 3. Entries above the highest confirmed one are read, one after the other. These reads fence as well, because a member left
//!    out in step 2 may be the one that says "no such entry" now and would take the old writer's late add afterwards.
//!    *Found*: one valid body. *Not written*: `Qw - Qa + 1` members deny it. Anything else is not known and fails the recovery:
//!    an error, a silence or a damaged body is never a denial.
//! 4. Found entries are added again to their whole write set, sealed with the confirmed end that step 2 found, and confirmed
//!    in order. Not with the end reached since: what is added again is final only once the ledger is closed. A recovery beside
//!    this one may close earlier, and readers would have seen a confirmed end that then goes back.
//! 5. At the first entry that was not written the end is known. Metadata becomes `CLOSED`, only if it still is `IN_RECOVERY`;
//!    somebody else's close is accepted as it is.
//!
//! All decisions use the metadata seen in step 1. A failed recovery leaves the ledger `IN_RECOVERY`, and another may follow:
//! nothing it did can change an outcome, since fences stay and re-added entries are the writer's own.
//!
//! The machine does no I/O and has no clock; every request is answered once by the connections.

use std::collections::VecDeque;

use bytes::Bytes;
use ledger::{EntryId, LedgerMetadata, LedgerState};

use crate::error::Error;
use crate::geometry::{Geometry, IndexSet};
use crate::lac::{LacAnswer, LacRead, LacStep};
use crate::read::{EntryRead, Problem, ReadStep, ReplicaAnswer};
use crate::writer::AddAnswer;

/// How often metadata is read again and written again before giving up; each round means that somebody else wrote.
const METADATA_ROUNDS_MAX: u32 = 16;

/// Entries read or being added at one time.
const ENTRIES_IN_FLIGHT_MAX: usize = 16;

/// Payload bytes read or being added at one time, by the size of the last entry seen; one entry may always be under way.
pub(crate) const BYTES_IN_FLIGHT_MAX: u64 = 4 * 1024 * 1024;

/// How a member answered a recovery read.
#[derive(Debug, Clone)]
pub(crate) enum RecoveryRead {
    /// A body with a valid digest.
    Found {
        payload: Bytes,
        length: u64,
    },
    Absent,
    Problem(Problem),
}

#[derive(Debug, Clone)]
pub(crate) enum RecoveryEvent {
    Start,
    /// The metadata asked for was written.
    Written,
    /// It was not, because the store holds this.
    Conflict(Option<LedgerMetadata>),
    /// Whether it was written is not known.
    WriteUnknown,
    /// The answer to `ReadMetadata`.
    MetadataRead(Option<LedgerMetadata>),
    LacAnswered {
        index: usize,
        answer: LacAnswer,
    },
    ReadAnswered {
        entry: EntryId,
        index: usize,
        answer: RecoveryRead,
    },
    AddAnswered {
        entry: EntryId,
        index: usize,
        answer: AddAnswer,
    },
}

#[derive(Debug)]
pub(crate) enum RecoveryAction {
    /// Write this if the store still holds the version that was seen last.
    WriteMetadata(Box<LedgerMetadata>),
    ReadMetadata,
    /// Fence these members of the last ensemble and read their last entry.
    FenceAndReadLast {
        to: IndexSet,
    },
    /// Fence these members of the entry's ensemble and read it.
    FenceAndRead {
        entry: EntryId,
        to: IndexSet,
    },
    /// Seal the entry anew and add it to these members, past the fence.
    AddAgain {
        entry: EntryId,
        last_confirmed: Option<EntryId>,
        length: u64,
        payload: Bytes,
        to: IndexSet,
    },
    /// The ledger is closed; this is its metadata.
    Done(Box<LedgerMetadata>),
    Failed(RecoveryFailure),
}

#[derive(Debug)]
pub(crate) enum RecoveryFailure {
    NoSuchLedger,
    Unauthorized,
    /// Too few members of the last ensemble could be fenced.
    NotCovered(Problem),
    /// Whether the entry was written cannot be told.
    EntryUnknown {
        entry: EntryId,
        problem: Problem,
    },
    /// Too few members take the entry.
    QuorumUnreachable {
        entry: EntryId,
        acked: u32,
    },
    /// A member refused a recovery add as fenced, which it does only for deleted ledgers.
    Deleted {
        entry: EntryId,
    },
    /// The last confirmed entry, which must exist, could not be read.
    EndUnreadable {
        entry: EntryId,
        problem: Option<Problem>,
    },
    /// Others changed the metadata again and again.
    Contention,
    /// Somebody changed what must not change during a recovery.
    MetadataChanged(&'static str),
    /// The ledger crate refuses the transition.
    Transition(ledger::Error),
}

#[derive(Debug)]
pub(crate) struct RecoveryMachine {
    geometry: Geometry,
    /// As seen last; since fencing began only a close that conflicts replaces it.
    metadata: LedgerMetadata,
    phase: Phase,
    rounds: u32,
    /// Members of the last segment, in which all entries read lie, that left a read unanswered: others are asked first.
    silent: IndexSet,
    /// What the ensemble said is confirmed.
    confirmed_before: Option<EntryId>,
    /// The end reached here: what was confirmed before, then each entry added again.
    last_confirmed: Option<EntryId>,
    /// User bytes up to `last_confirmed`; known only when that entry was seen.
    length: Option<u64>,
    /// The next entry to read; `None` past the last possible id.
    next_read: Option<EntryId>,
    /// Entries being read, consecutive ids.
    reads: VecDeque<Reading>,
    /// Entries being added, consecutive ids, all below those being read.
    adds: VecDeque<Adding>,
    end_found: bool,
    last_payload_bytes: Option<u64>,
}

#[derive(Debug)]
enum Phase {
    Begin,
    Marking,
    Fencing(LacRead),
    Recovering,
    ReadingEnd(EntryRead),
    Closing,
    Over,
}

#[derive(Debug)]
struct Reading {
    entry: EntryId,
    waiting: IndexSet,
    /// Members of the write set not asked yet.
    unasked: IndexSet,
    denied: u32,
    found: Option<(Bytes, u64)>,
    first_problem: Option<Problem>,
}

#[derive(Debug)]
struct Adding {
    entry: EntryId,
    length: u64,
    acked: IndexSet,
    waiting: IndexSet,
}

enum Verdict {
    Wait,
    AskMore,
    Found,
    NotWritten,
    Unknown(Problem),
}

impl Reading {
    fn verdict(&self, geometry: Geometry) -> Verdict {
        if self.found.is_some() {
            Verdict::Found
        } else if self.denied >= geometry.negatives_needed() {
            Verdict::NotWritten
        } else if !self.unasked.is_empty() && self.waiting.is_empty() {
            Verdict::AskMore
        } else if self.waiting.is_empty() {
            Verdict::Unknown(self.first_problem.unwrap_or(Problem::Unknown))
        } else {
            Verdict::Wait
        }
    }
}

impl RecoveryMachine {
    /// # Errors
    /// When the ensemble is larger than this client handles.
    pub(crate) fn new(metadata: LedgerMetadata) -> Result<Self, Error> {
        Ok(Self {
            geometry: Geometry::new(metadata.quorums())?,
            metadata,
            phase: Phase::Begin,
            rounds: 0,
            silent: IndexSet::EMPTY,
            confirmed_before: None,
            last_confirmed: None,
            length: None,
            next_read: None,
            reads: VecDeque::new(),
            adds: VecDeque::new(),
            end_found: false,
            last_payload_bytes: None,
        })
    }

    /// The metadata whose ensembles the indices of all actions mean.
    pub(crate) fn metadata(&self) -> &LedgerMetadata {
        &self.metadata
    }

    pub(crate) fn on(&mut self, event: RecoveryEvent, actions: &mut Vec<RecoveryAction>) {
        match event {
            RecoveryEvent::Start => {
                if matches!(self.phase, Phase::Begin) {
                    let found = self.metadata.clone();
                    self.phase = Phase::Marking;
                    self.look(Some(found), actions);
                }
            }
            RecoveryEvent::Written => self.on_written(actions),
            RecoveryEvent::WriteUnknown => {
                if matches!(self.phase, Phase::Marking | Phase::Closing) {
                    actions.push(RecoveryAction::ReadMetadata);
                }
            }
            RecoveryEvent::Conflict(found) | RecoveryEvent::MetadataRead(found) => self.look(found, actions),
            RecoveryEvent::LacAnswered { index, answer } => self.on_lac(index, answer, actions),
            RecoveryEvent::ReadAnswered { entry, index, answer } => {
                if matches!(self.phase, Phase::ReadingEnd(_)) {
                    self.on_end_read(entry, index, answer, actions);
                } else {
                    self.on_read(entry, index, answer, actions);
                }
            }
            RecoveryEvent::AddAnswered { entry, index, answer } => self.on_added(entry, index, answer, actions),
        }
    }

    // Metadata.

    fn on_written(&mut self, actions: &mut Vec<RecoveryAction>) {
        let written = match self.phase {
            Phase::Marking => self.metadata.in_recovery(),
            Phase::Closing => self.metadata.closed(self.last_confirmed, self.length.unwrap_or(0)),
            _ => return,
        };
        match written {
            Ok(metadata) => self.look(Some(metadata), actions),
            Err(error) => self.fail(RecoveryFailure::Transition(error), actions),
        }
    }

    /// Goes on from what the store holds.
    fn look(&mut self, found: Option<LedgerMetadata>, actions: &mut Vec<RecoveryAction>) {
        let is_closing = match self.phase {
            Phase::Marking => false,
            Phase::Closing => true,
            _ => return,
        };
        let Some(found) = found else {
            self.fail(RecoveryFailure::NoSuchLedger, actions);
            return;
        };
        match (found.state(), is_closing) {
            (LedgerState::Closed { .. }, _) => {
                self.phase = Phase::Over;
                actions.push(RecoveryAction::Done(Box::new(found)));
            }
            (LedgerState::InRecovery, false) => {
                self.metadata = found;
                self.begin_fencing(actions);
            }
            (LedgerState::Open, false) => {
                self.metadata = found;
                self.write(self.metadata.in_recovery(), actions);
            }
            (LedgerState::InRecovery, true) if found.last_segment() == self.metadata.last_segment() => {
                self.metadata = found;
                self.write_closed(actions);
            }
            (LedgerState::InRecovery, true) => {
                self.fail(RecoveryFailure::MetadataChanged("another last segment appeared"), actions);
            }
            (LedgerState::Open, true) => self.fail(RecoveryFailure::MetadataChanged("it is open again"), actions),
        }
    }

    fn write(&mut self, next: Result<LedgerMetadata, ledger::Error>, actions: &mut Vec<RecoveryAction>) {
        self.rounds += 1;
        match next {
            _ if self.rounds > METADATA_ROUNDS_MAX => self.fail(RecoveryFailure::Contention, actions),
            Ok(next) => actions.push(RecoveryAction::WriteMetadata(Box::new(next))),
            Err(error) => self.fail(RecoveryFailure::Transition(error), actions),
        }
    }

    fn write_closed(&mut self, actions: &mut Vec<RecoveryAction>) {
        self.phase = Phase::Closing;
        self.write(self.metadata.closed(self.last_confirmed, self.length.unwrap_or(0)), actions);
    }

    // Fencing.

    fn begin_fencing(&mut self, actions: &mut Vec<RecoveryAction>) {
        let start = self.metadata.last_segment().first_entry;
        self.phase = Phase::Fencing(LacRead::new(self.geometry, start));
        actions.push(RecoveryAction::FenceAndReadLast { to: self.geometry.all() });
    }

    fn on_lac(&mut self, index: usize, answer: LacAnswer, actions: &mut Vec<RecoveryAction>) {
        let Phase::Fencing(lac) = &mut self.phase else { return };
        match lac.on(index, answer) {
            LacStep::Wait => {}
            LacStep::Unauthorized => self.fail(RecoveryFailure::Unauthorized, actions),
            LacStep::NotCovered(problem) => self.fail(RecoveryFailure::NotCovered(problem), actions),
            LacStep::Covered(last_confirmed) => {
                self.phase = Phase::Recovering;
                self.confirmed_before = last_confirmed;
                self.last_confirmed = last_confirmed;
                self.next_read = match last_confirmed {
                    Some(entry) => entry.checked_add(1),
                    None => Some(EntryId::ZERO),
                };
                self.go_on(actions);
            }
        }
    }

    // Entries.

    fn on_read(&mut self, entry: EntryId, index: usize, answer: RecoveryRead, actions: &mut Vec<RecoveryAction>) {
        if !matches!(self.phase, Phase::Recovering) {
            return;
        }
        let Some(reading) = self.reads.iter_mut().find(|reading| reading.entry == entry) else { return };
        if !reading.waiting.remove(index) {
            return;
        }
        match answer {
            RecoveryRead::Found { payload, length } => {
                self.last_payload_bytes = Some(payload.len() as u64);
                reading.found.get_or_insert((payload, length));
            }
            RecoveryRead::Absent => reading.denied += 1,
            RecoveryRead::Problem(Problem::Unauthorized) => {
                self.fail(RecoveryFailure::Unauthorized, actions);
                return;
            }
            RecoveryRead::Problem(problem) => {
                if let Problem::TimedOut | Problem::Disconnected = problem {
                    self.silent.insert(index);
                }
                reading.first_problem.get_or_insert(problem);
            }
        }
        self.go_on(actions);
    }

    fn on_added(&mut self, entry: EntryId, index: usize, answer: AddAnswer, actions: &mut Vec<RecoveryAction>) {
        if !matches!(self.phase, Phase::Recovering) {
            return;
        }
        let Some(adding) = self.adds.iter_mut().find(|adding| adding.entry == entry) else { return };
        if !adding.waiting.remove(index) {
            return;
        }
        match answer {
            AddAnswer::Stored => {
                adding.acked.insert(index);
            }
            AddAnswer::Fenced => {
                self.fail(RecoveryFailure::Deleted { entry }, actions);
                return;
            }
            AddAnswer::Unauthorized => {
                self.fail(RecoveryFailure::Unauthorized, actions);
                return;
            }
            AddAnswer::NotStored | AddAnswer::Unknown => {}
        }
        let acked = adding.acked.len();
        if acked + adding.waiting.len() < self.geometry.ack() {
            self.fail(RecoveryFailure::QuorumUnreachable { entry, acked }, actions);
            return;
        }
        self.go_on(actions);
    }

    /// Does everything that the answers so far allow, in entry order.
    fn go_on(&mut self, actions: &mut Vec<RecoveryAction>) {
        while let Some(front) = self.adds.front().filter(|adding| adding.acked.len() >= self.geometry.ack()) {
            self.last_confirmed = Some(front.entry);
            self.length = Some(front.length);
            self.adds.pop_front();
        }
        while let Some(front) = self.reads.front_mut() {
            match front.verdict(self.geometry) {
                Verdict::Wait | Verdict::AskMore => break,
                Verdict::Found => {
                    if let Some(Reading { entry, found: Some((payload, length)), .. }) = self.reads.pop_front() {
                        self.add_again(entry, payload, length, actions);
                    }
                }
                Verdict::NotWritten => {
                    self.end_found = true;
                    // Read ahead of the end: whatever is there was never confirmed.
                    self.reads.clear();
                }
                Verdict::Unknown(problem) => {
                    let entry = front.entry;
                    self.fail(RecoveryFailure::EntryUnknown { entry, problem }, actions);
                    return;
                }
            }
        }
        for reading in &mut self.reads {
            if matches!(reading.verdict(self.geometry), Verdict::AskMore) {
                let to = std::mem::take(&mut reading.unasked);
                reading.waiting = to;
                actions.push(RecoveryAction::FenceAndRead { entry: reading.entry, to });
            }
        }
        self.read_ahead(actions);
        if self.end_found && self.adds.is_empty() {
            self.finish(actions);
        }
    }

    fn read_ahead(&mut self, actions: &mut Vec<RecoveryAction>) {
        while !self.end_found && self.may_read_ahead() {
            let Some(entry) = self.next_read else {
                // No id is left, so nothing more can have been written.
                self.end_found = self.reads.is_empty();
                return;
            };
            self.next_read = entry.checked_add(1);
            let all = self.geometry.write_set(entry);
            let answering = self.geometry.in_order(entry).find(|index| !self.silent.contains(*index));
            let first = answering.or_else(|| self.geometry.in_order(entry).next());
            let first: IndexSet = first.into_iter().collect();
            self.reads.push_back(Reading {
                entry,
                waiting: first,
                unasked: all.without(first),
                denied: 0,
                found: None,
                first_problem: None,
            });
            actions.push(RecoveryAction::FenceAndRead { entry, to: first });
        }
    }

    fn may_read_ahead(&self) -> bool {
        let in_flight = self.reads.len() + self.adds.len();
        match self.last_payload_bytes {
            _ if in_flight == 0 => true,
            None => false,
            Some(bytes) => {
                in_flight < ENTRIES_IN_FLIGHT_MAX && (in_flight as u64 + 1).saturating_mul(bytes) <= BYTES_IN_FLIGHT_MAX
            }
        }
    }

    fn add_again(&mut self, entry: EntryId, payload: Bytes, length: u64, actions: &mut Vec<RecoveryAction>) {
        let to = self.geometry.write_set(entry);
        self.adds.push_back(Adding { entry, length, acked: IndexSet::EMPTY, waiting: to });
        let last_confirmed = self.confirmed_before;
        actions.push(RecoveryAction::AddAgain { entry, last_confirmed, length, payload, to });
    }

    // The end.

    fn finish(&mut self, actions: &mut Vec<RecoveryAction>) {
        match self.last_confirmed {
            Some(entry) if self.length.is_none() => {
                // Nothing was recovered. The length of the ledger is what its last entry says; the entries behind the answers of
                // the fencing round may lie beyond the end.
                let mut search = EntryRead::new(self.geometry, entry, self.geometry.all());
                let step = search.start(IndexSet::EMPTY);
                self.phase = Phase::ReadingEnd(search);
                self.on_end_step(entry, step, actions);
            }
            _ => self.write_closed(actions),
        }
    }

    fn on_end_read(&mut self, entry: EntryId, index: usize, answer: RecoveryRead, actions: &mut Vec<RecoveryAction>) {
        let Phase::ReadingEnd(search) = &mut self.phase else { return };
        if search.entry() != entry || search.asked() != Some(index) {
            return;
        }
        let answer = match answer {
            RecoveryRead::Found { length, .. } => {
                self.length = Some(length);
                ReplicaAnswer::Found
            }
            RecoveryRead::Absent => ReplicaAnswer::Absent,
            RecoveryRead::Problem(problem) => ReplicaAnswer::Problem(problem),
        };
        let step = search.on(index, answer, IndexSet::EMPTY);
        self.on_end_step(entry, step, actions);
    }

    fn on_end_step(&mut self, entry: EntryId, step: ReadStep, actions: &mut Vec<RecoveryAction>) {
        let problem = match step {
            ReadStep::Ignore => return,
            ReadStep::Ask(index) => {
                actions.push(RecoveryAction::FenceAndRead { entry, to: [index].into_iter().collect() });
                return;
            }
            ReadStep::Found => {
                self.write_closed(actions);
                return;
            }
            ReadStep::Failed(problem) => Some(problem),
            ReadStep::Denied { .. } | ReadStep::NotHot => None,
        };
        self.fail(RecoveryFailure::EndUnreadable { entry, problem }, actions);
    }

    fn fail(&mut self, failure: RecoveryFailure, actions: &mut Vec<RecoveryAction>) {
        self.phase = Phase::Over;
        self.reads.clear();
        self.adds.clear();
        actions.push(RecoveryAction::Failed(failure));
    }
}

#[cfg(test)]
mod tests;
