//! Errors, and the three answers a write can have.

use std::error::Error as StdError;
use std::fmt;

use crate::Versioned;

/// What to decide by. People read the message and its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The store cannot be reached or did not answer in time; trying again later may work.
    Unavailable,
    /// The request breaks a rule of the interface; trying again cannot work.
    Invalid,
    /// The lease expired, was revoked, or never existed. Whatever it held is gone or is going.
    LeaseGone,
    /// A stored value cannot be understood: damaged, or written by a later release.
    Damaged,
    /// A write to the disk failed earlier, so this store takes no more writes and gives no more proofs until it is reopened.
    Poisoned,
    /// Another process or store has the directory open.
    InUse,
    /// The URI names no known driver, or the cluster is laid out in a way this release does not read.
    Unsupported,
    /// A condition of the request does not hold (a name is taken, an attempt was stolen): look at the current state.
    Refused,
}

/// A failure: a kind to decide by, a sentence for people, and a source chain.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with no source.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What to decide by.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Why [`crate::MetadataStore::commit`] gave no result. `Conflict` and `NotDone` are surely not done; `Unknown` may be.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The condition of operation number `op` did not hold; nothing was changed.
    #[error("operation {op} of the transaction met another version")]
    Conflict {
        /// Index into the transaction's operations.
        op: usize,
        /// What the key held when the transaction was decided. A driver that cannot tell reads it afterwards, so this is a
        /// hint as [`crate::MetadataStore::get`] is.
        found: Option<Versioned>,
    },
    /// Nothing was changed and nothing will be.
    #[error("the write was not done")]
    NotDone(#[source] Error),
    /// The write may have been done, or may still be: read the state back with a proof before deciding anything.
    #[error("it is unknown whether the write was done")]
    Unknown(#[source] Error),
}

/// As [`CommitError`], for the typed repositories: `T` is what was found instead.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<T: fmt::Debug> {
    /// Surely not done: the record is not what the caller expected.
    #[error("the record was changed by someone else")]
    Conflict(T),
    /// Surely not done.
    #[error("the write was not done")]
    NotDone(#[source] Error),
    /// Maybe done, and reading back did not settle it.
    #[error("it is unknown whether the write was done")]
    Unknown(#[source] Error),
}

impl<T: fmt::Debug> WriteError<T> {
    /// Whether the write surely did not happen.
    #[must_use]
    pub fn is_surely_not_done(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}
