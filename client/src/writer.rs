//! What a writer decides: which members an entry goes to, when it is confirmed, and when nothing can be confirmed any more.
//!
//! # Rules
//!
//! - An entry goes to the members of its write set that have not failed before. It is complete once `Qa` distinct members
//!   have acknowledged it, and entries are confirmed strictly in order, from the head of the queue only.
//! - A member that refuses or loses an add has failed for this writer: nothing more is sent to it. What was sent to it before
//!   still counts when it is acknowledged after all, because no other bookie ever takes its place in this writer's ensemble.
//! - An answer that says *fenced* or *unauthorized* ends the writer at once, whatever else is acknowledged. So does an entry
//!   that can no longer reach `Qa`: every answer is in or sure to be missing, and too few are acknowledgements.
//! - Once the writer has ended or begun to close nothing is confirmed, however many acknowledgements arrive. This is what
//!   makes the closed end final: the last confirmed entry is fixed before the metadata is written.
//!
//! The machine does no I/O and has no clock: deadlines belong to the connections, which answer every request once.

use std::collections::VecDeque;

use ledger::EntryId;

use crate::geometry::{Geometry, IndexSet};

/// How a member answered an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddAnswer {
    /// Stored durably.
    Stored,
    /// The ledger is fenced on this bookie.
    Fenced,
    /// The master key is not the ledger's.
    Unauthorized,
    /// Surely not stored.
    NotStored,
    /// Perhaps stored: an I/O error, or no answer at all.
    Unknown,
}

/// Why a writer confirms nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriterEnd {
    Fenced,
    Unauthorized,
    /// `entry` has `acked` acknowledgements and no further one can come.
    QuorumUnreachable {
        entry: EntryId,
        acked: u32,
    },
    /// No further entry id or length exists.
    Full,
    /// Its owner closes it.
    Closing,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum WriterEvent {
    /// The user appends a payload; it gets the next id. To be given only while [`WriterMachine::end`] is `None`.
    Append { payload_bytes: u64 },
    /// Member `index` answered the add of `entry`.
    Answered { index: usize, entry: EntryId, answer: AddAnswer },
    /// The user closes the ledger.
    Close,
    /// The attempt to write the closed state is over. `closed`: the store holds CLOSED with this writer's end.
    CloseOver { closed: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriterAction {
    /// Seal and send the entry just appended.
    Send { entry: EntryId, last_confirmed: Option<EntryId>, length: u64, to: IndexSet },
    /// Tell the user that the entry is confirmed. In id order, each once.
    Confirm { entry: EntryId },
    /// Tell the user that the entry was not confirmed. In id order, each once, after every confirmation.
    Fail { entry: EntryId, may_be_stored: bool },
    /// The writer has ended. Comes before the `Fail`s it causes.
    End(WriterEnd),
    /// Write CLOSED with this end.
    WriteClosed { last_entry: Option<EntryId>, length: u64 },
}

#[derive(Debug)]
pub(crate) struct WriterMachine {
    geometry: Geometry,
    /// The id the next append gets; `None` when ids ran out.
    next: Option<EntryId>,
    /// User bytes of all entries that were given an id.
    length: u64,
    last_confirmed: Option<EntryId>,
    /// User bytes of the entries up to `last_confirmed`.
    confirmed_length: u64,
    /// Entries not confirmed yet; consecutive ids, the first is `last_confirmed + 1`.
    pending: VecDeque<Pending>,
    failed: IndexSet,
    end: Option<WriterEnd>,
}

#[derive(Debug)]
struct Pending {
    entry: EntryId,
    /// User bytes of the ledger up to and including this entry.
    length: u64,
    acked: IndexSet,
    waiting: IndexSet,
    /// A member may have stored it without having said so.
    doubtful: bool,
}

impl Pending {
    fn may_be_stored(&self) -> bool {
        self.doubtful || !self.acked.is_empty() || !self.waiting.is_empty()
    }
}

impl WriterMachine {
    /// The writer of a ledger that was just created: it has no entries.
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            next: Some(EntryId::ZERO),
            length: 0,
            last_confirmed: None,
            confirmed_length: 0,
            pending: VecDeque::new(),
            failed: IndexSet::EMPTY,
            end: None,
        }
    }

    pub(crate) fn last_confirmed(&self) -> Option<EntryId> {
        self.last_confirmed
    }

    /// Why nothing is confirmed any more, once that is so.
    #[cfg(test)]
    pub(crate) fn end(&self) -> Option<WriterEnd> {
        self.end
    }

    /// Members that get nothing more.
    pub(crate) fn failed(&self) -> IndexSet {
        self.failed
    }

    pub(crate) fn on(&mut self, event: WriterEvent, actions: &mut Vec<WriterAction>) {
        match event {
            WriterEvent::Append { payload_bytes } => self.on_append(payload_bytes, actions),
            WriterEvent::Answered { index, entry, answer } => self.on_answer(index, entry, answer, actions),
            WriterEvent::Close => self.on_close(actions),
            WriterEvent::CloseOver { closed } => self.fail_pending(closed, actions),
        }
    }

    fn on_append(&mut self, payload_bytes: u64, actions: &mut Vec<WriterAction>) {
        debug_assert!(self.end.is_none(), "the shell refuses appends to a writer that has ended");
        let length = self.length.checked_add(payload_bytes).filter(|length| i64::try_from(*length).is_ok());
        let (Some(entry), Some(length)) = (self.next, length) else {
            self.stop(WriterEnd::Full, actions);
            return;
        };
        self.next = entry.checked_add(1);
        self.length = length;
        let to = self.geometry.write_set(entry).without(self.failed);
        let can_complete = to.len() >= self.geometry.ack();
        let waiting = if can_complete { to } else { IndexSet::EMPTY };
        self.pending.push_back(Pending { entry, length, acked: IndexSet::EMPTY, waiting, doubtful: false });
        if can_complete {
            actions.push(WriterAction::Send { entry, last_confirmed: self.last_confirmed, length, to });
        } else {
            // Never sent, so surely not stored.
            self.stop(WriterEnd::QuorumUnreachable { entry, acked: 0 }, actions);
        }
    }

    fn on_answer(&mut self, index: usize, entry: EntryId, answer: AddAnswer, actions: &mut Vec<WriterAction>) {
        match answer {
            AddAnswer::Stored => {}
            AddAnswer::Fenced => self.stop(WriterEnd::Fenced, actions),
            AddAnswer::Unauthorized => self.stop(WriterEnd::Unauthorized, actions),
            AddAnswer::NotStored | AddAnswer::Unknown => {
                self.failed.insert(index);
            }
        }
        // Entries already confirmed or failed are not in the queue; their late answers end here.
        let Some(head) = self.pending.front().map(|head| head.entry) else { return };
        if entry < head {
            return;
        }
        let Ok(place) = usize::try_from(entry.since(head)) else { return };
        let Some(pending) = self.pending.get_mut(place) else { return };
        if !pending.waiting.remove(index) {
            return;
        }
        match answer {
            AddAnswer::Stored => {
                pending.acked.insert(index);
            }
            AddAnswer::Unknown => pending.doubtful = true,
            AddAnswer::Fenced | AddAnswer::Unauthorized | AddAnswer::NotStored => {}
        }
        let acked = pending.acked.len();
        if acked + pending.waiting.len() < self.geometry.ack() {
            self.stop(WriterEnd::QuorumUnreachable { entry, acked }, actions);
        } else if place == 0 {
            self.confirm_from_head(actions);
        }
    }

    fn confirm_from_head(&mut self, actions: &mut Vec<WriterAction>) {
        if self.end.is_some() {
            return;
        }
        while let Some(head) = self.pending.front() {
            if head.acked.len() < self.geometry.ack() {
                return;
            }
            let (entry, length) = (head.entry, head.length);
            self.last_confirmed = Some(entry);
            self.confirmed_length = length;
            self.pending.pop_front();
            actions.push(WriterAction::Confirm { entry });
        }
    }

    fn on_close(&mut self, actions: &mut Vec<WriterAction>) {
        match self.end {
            // Another client owns the end of the ledger now.
            Some(WriterEnd::Fenced | WriterEnd::Unauthorized | WriterEnd::Closing) => return,
            Some(WriterEnd::QuorumUnreachable { .. } | WriterEnd::Full) => {}
            None => actions.push(WriterAction::End(WriterEnd::Closing)),
        }
        self.end = Some(WriterEnd::Closing);
        actions.push(WriterAction::WriteClosed { last_entry: self.last_confirmed, length: self.confirmed_length });
    }

    fn stop(&mut self, end: WriterEnd, actions: &mut Vec<WriterAction>) {
        // The first cause stays. While the closed state is being written its outcome decides what happens to the rest.
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        actions.push(WriterAction::End(end));
        self.fail_pending(false, actions);
    }

    /// `absent`: the closed end excludes them, wherever they were stored.
    fn fail_pending(&mut self, absent: bool, actions: &mut Vec<WriterAction>) {
        for pending in self.pending.drain(..) {
            actions
                .push(WriterAction::Fail { entry: pending.entry, may_be_stored: !absent && pending.may_be_stored() });
        }
    }
}

#[cfg(test)]
mod tests;
