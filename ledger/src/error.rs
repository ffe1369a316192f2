/// What went wrong with a value of this crate (entry bodies have [`crate::BodyError`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of value that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// An id does not have the form of its kind.
    Id,
    /// Quorum sizes that no ledger can have.
    Quorum,
    /// Ledger metadata that is malformed or breaks a rule of ledger metadata.
    Metadata,
    /// A change that the state of the ledger does not allow.
    Transition,
    /// A cold record that is malformed or of a version not known here.
    ColdRecord,
    /// A registration value that is malformed.
    ServiceInfo,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The kind of value that was refused.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}
