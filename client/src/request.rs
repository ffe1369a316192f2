//! Requests to bookies and the answers that owners of requests get: exactly one for each, whatever happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use common::budget::{ByteBudget, BytePermit};
use ledger::{EntryId, LedgerId, MasterKey};
use proto::{ReadTarget, Status};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::read::Problem;
use crate::writer::AddAnswer;

/// What a bookie is asked.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Add { ledger: LedgerId, entry: EntryId, master_key: MasterKey, body: Bytes, recovery: bool },
    Read { ledger: LedgerId, target: ReadTarget, fence: Option<MasterKey> },
}

/// A request on its way.
pub(crate) struct Request {
    pub(crate) ask: Ask,
    pub(crate) deadline: Instant,
    pub(crate) sink: Sink,
}

/// Why no answer of the bookie came.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    pub(crate) is_timeout: bool,
    pub(crate) detail: Arc<str>,
}

impl Loss {
    pub(crate) fn timeout() -> Self {
        Self { is_timeout: true, detail: Arc::from("no answer in time") }
    }

    pub(crate) fn connection(detail: impl Into<Arc<str>>) -> Self {
        Self { is_timeout: false, detail: detail.into() }
    }
}

/// How a request ended.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Added,
    /// A body as the bookie sent it, unchecked.
    Body(Bytes),
    Refused(Status),
    /// The bookie never got it.
    NotSent(Loss),
    /// The bookie may have got it.
    Lost(Loss),
    /// A body of so many bytes came, larger than was expected, and was dropped because there is no room for it now.
    NoRoom(u64),
}

/// What a read costs beside the body.
pub(crate) const READ_OVERHEAD_BYTES: u64 = 256;

/// Decides whether bodies that readers have asked for may stay in memory.
pub(crate) struct Room {
    pub(crate) budget: ByteBudget,
    /// The entry whose turn it is; it always has room.
    pub(crate) head: AtomicU64,
}

/// What a read is charged; rides with the request and then with the body.
pub(crate) struct ReadCharge {
    pub(crate) room: Arc<Room>,
    pub(crate) permit: BytePermit,
}

impl ReadCharge {
    /// Makes the charge that of a body that has come; false when it must go.
    fn settle(&mut self, entry: ReadTarget, body_bytes: u64) -> bool {
        let cost = body_bytes + READ_OVERHEAD_BYTES;
        let missing = cost.saturating_sub(self.permit.bytes());
        if missing == 0 {
            self.permit.shrink_to(cost);
            return true;
        }
        if let Some(more) = self.room.budget.try_acquire(missing) {
            self.permit.merge(more);
            return true;
        }
        let head = self.room.head.load(Ordering::Acquire);
        matches!(entry, ReadTarget::Entry(entry) if entry.get() <= head)
    }
}

impl std::fmt::Debug for ReadCharge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.permit.fmt(f)
    }
}

impl Answer {
    pub(crate) fn to_add_answer(&self) -> AddAnswer {
        match self {
            Self::Added => AddAnswer::Stored,
            Self::Refused(Status::Fenced) => AddAnswer::Fenced,
            Self::Refused(Status::Unauthorized) => AddAnswer::Unauthorized,
            Self::NotSent(_) | Self::Refused(Status::ReadOnly | Status::TooManyRequests | Status::BadVersion) => {
                AddAnswer::NotStored
            }
            Self::Body(_) | Self::Refused(_) | Self::Lost(_) | Self::NoRoom(_) => AddAnswer::Unknown,
        }
    }

    /// For a read that brought no body: `None` is the bookie's word that it never had the entry.
    pub(crate) fn to_problem(&self) -> Option<Problem> {
        Some(match self {
            Self::Refused(Status::NoEntry | Status::NoLedger) => return None,
            Self::Refused(Status::Unauthorized) => Problem::Unauthorized,
            Self::Refused(Status::TooManyRequests) => Problem::TooManyRequests,
            Self::Added | Self::Body(_) | Self::Refused(_) | Self::NoRoom(_) => Problem::Unknown,
            Self::NotSent(loss) | Self::Lost(loss) if loss.is_timeout => Problem::TimedOut,
            Self::NotSent(_) | Self::Lost(_) => Problem::Disconnected,
        })
    }

    /// For people; empty for an add that went well.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Added | Self::Body(_) | Self::NoRoom(_) => String::new(),
            Self::Refused(status) => format!("answered {status:?}"),
            Self::NotSent(loss) | Self::Lost(loss) => loss.detail.to_string(),
        }
    }
}

/// An answer as its owner gets it.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The member of the ensemble that was asked.
    pub(crate) index: usize,
    pub(crate) is_add: bool,
    pub(crate) target: ReadTarget,
    pub(crate) answer: Answer,
    pub(crate) charge: Option<ReadCharge>,
}

/// Where the answer goes. The queue is unbounded but never longer than what its owner has asked.
pub(crate) struct Sink {
    replies: mpsc::UnboundedSender<Reply>,
    index: usize,
    is_add: bool,
    target: ReadTarget,
    charge: Option<ReadCharge>,
    is_answered: bool,
}

impl Sink {
    pub(crate) fn add(replies: &mpsc::UnboundedSender<Reply>, index: usize, entry: EntryId) -> Self {
        let target = ReadTarget::Entry(entry);
        Self { replies: replies.clone(), index, is_add: true, target, charge: None, is_answered: false }
    }

    pub(crate) fn read(replies: &mpsc::UnboundedSender<Reply>, index: usize, target: ReadTarget) -> Self {
        Self { replies: replies.clone(), index, is_add: false, target, charge: None, is_answered: false }
    }

    /// A read whose body must find room.
    pub(crate) fn charged(mut self, charge: Option<ReadCharge>) -> Self {
        self.charge = charge;
        self
    }

    pub(crate) fn answer(mut self, answer: Answer) {
        self.send(answer);
    }

    fn send(&mut self, answer: Answer) {
        self.is_answered = true;
        let mut charge = self.charge.take();
        let answer = match (answer, &mut charge) {
            (Answer::Body(body), Some(charge)) => {
                let body_bytes = body.len() as u64;
                if charge.settle(self.target, body_bytes) { Answer::Body(body) } else { Answer::NoRoom(body_bytes) }
            }
            (answer, _) => answer,
        };
        let reply = Reply { index: self.index, is_add: self.is_add, target: self.target, answer, charge };
        // An owner that is gone wants no answer.
        let _ = self.replies.send(reply);
    }
}

impl Drop for Sink {
    /// A request that is dropped anywhere on its way is answered too.
    fn drop(&mut self) {
        if !self.is_answered {
            self.send(Answer::Lost(Loss::connection("the client is stopping")));
        }
    }
}
