use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use common::budget::BytePermit;
use ledger::EntryId;
use proto::Status;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::format::{Record, RecordKind};
use crate::metrics::Metrics;
use crate::store::LedgerSlot;
use crate::wakeups::Wakeups;

/// Called exactly once with the outcome of a request. MUST NOT take the lock of a ledger.
pub(crate) type Completion = Box<dyn FnOnce(Result<(), Status>, &mut Wakeups) + Send + Sync>;

/// What a queued request asks of the journal.
pub(crate) enum Work {
    /// Make a record durable.
    Record { kind: RecordKind, entry: EntryId, body: Bytes, last_confirmed: Option<EntryId> },
    /// Write nothing; answer with this once everything queued before is answered.
    Marker(Status),
    /// Write nothing; answer once everything queued before is answered.
    Turn,
    /// Write nothing; answer once everything acknowledged before is on stable storage, whatever the sync mode.
    Barrier,
}

/// What may still be written when space is short. Later ones outlast earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Entries of writers, and explicit last-add-confirmed.
    Normal,
    /// Entries of high priority: those of recovery and repair.
    Priority,
    /// Keys and fences.
    Control,
}

/// A request in the queue.
pub(crate) struct Pending {
    pub(crate) work: Work,
    /// The ledger; `None` for markers.
    pub(crate) slot: Option<Arc<LedgerSlot>>,
    pub(crate) done: Option<Completion>,
    /// Bytes of the add budget, given back when the last holder is answered.
    pub(crate) permit: Option<Arc<BytePermit>>,
    /// When the request came in.
    pub(crate) received: Instant,
    /// Whether it may use the space that is kept for such entries.
    pub(crate) high_priority: bool,
}

impl Pending {
    /// A record about the ledger, not an entry.
    pub(crate) fn control(slot: &Arc<LedgerSlot>, kind: RecordKind, body: Bytes, done: Option<Completion>) -> Self {
        let work = Work::Record { kind, entry: EntryId::ZERO, body, last_confirmed: None };
        Self { slot: Some(slot.clone()), ..Self::nothing(work, done) }
    }

    /// A request that writes nothing.
    pub(crate) fn nothing(work: Work, done: Option<Completion>) -> Self {
        Self { work, slot: None, done, permit: None, received: Instant::now(), high_priority: false }
    }

    /// See [`Class`].
    pub(crate) fn class(&self) -> Class {
        match &self.work {
            Work::Record { kind: RecordKind::MasterKey | RecordKind::Fence, .. } => Class::Control,
            _ if self.high_priority => Class::Priority,
            _ => Class::Normal,
        }
    }

    /// Whether it is answered once everything before it is on stable storage.
    pub(crate) fn is_barrier(&self) -> bool {
        matches!(self.work, Work::Barrier)
    }

    /// What answers it, if its time is over and nothing has answered it. It may be written all the same: its bytes, its permit and the state
    /// of its ledger stay as they are.
    pub(super) fn answer_late(&mut self, received_before: Instant) -> Option<LateAnswer> {
        if self.received > received_before {
            return None;
        }
        let status = match self.work {
            Work::Marker(status) => status,
            // Whether it happens is unknown.
            Work::Record { .. } | Work::Turn | Work::Barrier => Status::Io,
        };
        let done = self.done.take()?;
        Some(LateAnswer { done, status, is_add: self.is_entry() || matches!(self.work, Work::Marker(_)) })
    }

    /// Bytes its record takes in a group.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.work {
            Work::Record { body, .. } => Record::encoded_bytes(body.len()) as u64,
            Work::Marker(_) | Work::Turn | Work::Barrier => 0,
        }
    }

    pub(crate) fn is_entry(&self) -> bool {
        matches!(&self.work, Work::Record { kind, .. } if kind.is_entry())
    }
}

/// The answer to a request that the journal did not come to in time.
pub(super) struct LateAnswer {
    done: Completion,
    status: Status,
    is_add: bool,
}

impl LateAnswer {
    pub(super) fn give(self, metrics: &Metrics, wakeups: &mut Wakeups) {
        if self.is_add {
            metrics.add_refused(self.status);
        }
        (self.done)(Err(self.status), wakeups);
    }
}

/// Records on their way to the journal. Its length is bounded by the add budget and by what a connection may have open.
pub(crate) struct JournalQueue {
    state: Mutex<State>,
    ready: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Pending>,
    /// Bytes of their records.
    bytes: u64,
    /// What the journal waits for.
    enough: u64,
    closed: bool,
}

impl State {
    fn has_enough(&self) -> bool {
        !self.waiting.is_empty() && (self.bytes >= self.enough || self.closed)
    }

    fn take_some(&mut self, bytes_max: u64) -> Vec<Pending> {
        let mut bytes = 0;
        let fitting = self.waiting.iter().take_while(|pending| {
            bytes += pending.bytes();
            bytes <= bytes_max
        });
        let count = fitting.count().max(1);
        let taken: Vec<Pending> = self.waiting.drain(..count).collect();
        self.bytes -= taken.iter().map(Pending::bytes).sum::<u64>();
        taken
    }
}

impl JournalQueue {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), ready: Notify::new() }
    }

    /// Appends, in order and side by side. After [`JournalQueue::close`] they are dropped, and their callers with them.
    pub(crate) fn push(&self, items: impl Iterator<Item = Pending>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let had_enough = state.has_enough();
        for item in items {
            state.bytes += item.bytes();
            state.waiting.push_back(item);
        }
        let has_enough = state.has_enough();
        drop(state);
        if has_enough && !had_enough {
            self.ready.notify_one();
        }
    }

    /// Takes what waits, up to `bytes_max` but at least one, once that has `enough` bytes or the queue is closed; waits for the
    /// first in any case. `None` once closed and empty. Cancel-safe.
    pub(crate) async fn take(&self, bytes_max: u64, enough: u64) -> Option<Vec<Pending>> {
        loop {
            {
                let mut state = self.lock();
                state.enough = enough;
                if state.has_enough() {
                    return Some(state.take_some(bytes_max));
                }
                if state.closed {
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }

    /// The answers to what waits and was received before then.
    pub(super) fn answer_late(&self, received_before: Instant) -> Vec<LateAnswer> {
        self.lock().waiting.iter_mut().filter_map(|pending| pending.answer_late(received_before)).collect()
    }

    /// Takes nothing more in; what waits is still handed out.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
