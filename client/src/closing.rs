//! How a writer fixes the end of its ledger.
//!
//! The closed state replaces `OPEN` only. A ledger somebody closed with the same end is closed as this writer wanted; one that
//! is in recovery belongs to the recovering client. An outcome that is not known is resolved by reading: writes are
//! conditional on the version seen, so an earlier attempt that arrives late either is the change or fails.

use ledger::{EntryId, LedgerMetadata, LedgerState};

/// How often metadata is read again and written again before giving up; each round means that somebody else wrote.
const ROUNDS_MAX: u32 = 16;

#[derive(Debug)]
pub(crate) enum CloseStep {
    /// Write this if the store still holds the version that was seen last.
    Write(Box<LedgerMetadata>),
    Read,
    Done(Box<LedgerMetadata>),
    Failed(CloseFailure),
}

#[derive(Debug)]
pub(crate) enum CloseFailure {
    NoSuchLedger,
    /// Another client recovers the ledger.
    InRecovery,
    /// Another client closed it with this end.
    ClosedAt(Option<EntryId>),
    /// Another client changed its ensembles.
    SegmentsChanged,
    Contention,
    Transition(ledger::Error),
}

#[derive(Debug)]
pub(crate) struct CloseMachine {
    /// As seen last.
    metadata: LedgerMetadata,
    last_entry: Option<EntryId>,
    length: u64,
    rounds: u32,
}

impl CloseMachine {
    /// `metadata`: open, as the writer knows it.
    pub(crate) fn new(metadata: LedgerMetadata, last_entry: Option<EntryId>, length: u64) -> Self {
        Self { metadata, last_entry, length, rounds: 0 }
    }

    pub(crate) fn start(&mut self) -> CloseStep {
        self.write()
    }

    pub(crate) fn on_written(&mut self) -> CloseStep {
        match self.metadata.closed(self.last_entry, self.length) {
            Ok(closed) => CloseStep::Done(Box::new(closed)),
            Err(error) => CloseStep::Failed(CloseFailure::Transition(error)),
        }
    }

    pub(crate) fn on_unknown(&mut self) -> CloseStep {
        CloseStep::Read
    }

    /// Goes on from what the store holds: after a conflict, or after a read.
    pub(crate) fn on_found(&mut self, found: Option<LedgerMetadata>) -> CloseStep {
        let Some(found) = found else { return CloseStep::Failed(CloseFailure::NoSuchLedger) };
        match found.state() {
            LedgerState::Closed { last_entry, length } if (last_entry, length) == (self.last_entry, self.length) => {
                CloseStep::Done(Box::new(found))
            }
            LedgerState::Closed { last_entry, .. } => CloseStep::Failed(CloseFailure::ClosedAt(last_entry)),
            LedgerState::InRecovery => CloseStep::Failed(CloseFailure::InRecovery),
            LedgerState::Open if found.segments() != self.metadata.segments() => {
                CloseStep::Failed(CloseFailure::SegmentsChanged)
            }
            LedgerState::Open => {
                self.metadata = found;
                self.write()
            }
        }
    }

    fn write(&mut self) -> CloseStep {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return CloseStep::Failed(CloseFailure::Contention);
        }
        match self.metadata.closed(self.last_entry, self.length) {
            Ok(closed) => CloseStep::Write(Box::new(closed)),
            Err(error) => CloseStep::Failed(CloseFailure::Transition(error)),
        }
    }
}
