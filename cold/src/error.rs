//! The one error of this crate: a kind to decide by, a sentence that names the object, and its cause.

use std::error::Error as StdError;

/// What a caller decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store has no such object. Of an object that a ledger names this is a loss, never "no such entry".
    NotFound,
    /// The object is there but its bytes are not what was written: too short, changed, or a row missing.
    Damaged,
    /// The object is of a format version, or uses a feature, this reader does not know.
    Unsupported,
    /// The store did not answer or asked to come back later; nothing is known about the object.
    Transient,
    /// A write may or may not have happened.
    Unknown,
    /// A write was refused because the key is taken by another object.
    AlreadyExists,
    /// The store refused our credentials or rights.
    Denied,
    /// The settings cannot work: bad URL, no such bucket or directory.
    Config,
    /// The caller broke the rules of the format (ids out of order, another ledger's row, an oversized row).
    Invalid,
}

/// An error of the cold tier.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// Bytes of `object` are not what they must be.
    pub(crate) fn damaged(object: &str, what: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Damaged, format!("read object {object}: {what}"))
    }

    pub(crate) fn invalid(what: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Invalid, format!("write object: {what}"))
    }

    /// What to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anyone doing anything.
    pub fn is_transient(&self) -> bool {
        self.kind == ErrorKind::Transient
    }
}

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;
