use std::fmt;
use std::sync::Arc;

/// What went wrong, to decide by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody recovered the ledger: this writer can add nothing any more.
    Fenced,
    /// The metadata store proved that the ledger does not exist.
    NoSuchLedger,
    /// The entry is beyond the end of a closed ledger.
    NoSuchEntry,
    /// The entry is beyond what is known to be confirmed of a ledger that is still open; it may come to exist.
    NotConfirmed,
    /// The password is not the ledger's.
    Unauthorized,
    /// Fewer writable bookies are registered than the ensemble needs.
    NotEnoughBookies,
    /// Too many members of a write set failed for the ack quorum to be reached.
    QuorumUnreachable,
    /// Every replica is in the cold tier: ask a read gateway.
    Cold,
    /// Nothing is known: the operation may have happened or may still happen, or the answer could not be had.
    Unknown,
    /// The metadata store failed, or holds something that makes no sense.
    Metadata,
    /// No answer came in time. A write may have happened.
    Timeout,
    /// The writer or the client was closed.
    Closed,
    /// A bookie is over a limit; the same request may succeed later.
    TooManyRequests,
    /// Replicas answered, and what they hold cannot be the entry.
    Damaged,
    /// The ledger uses something this client does not handle.
    Unsupported,
}

/// An error of this crate. Cheap to clone, because one cause may end many pending appends.
#[derive(Debug, Clone)]
pub struct Error {
    inner: Arc<Inner>,
    may_have_happened: bool,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

#[derive(Debug)]
enum Source {
    Mine(Error),
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::build(kind, message.into(), None)
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self::build(kind, message.into(), Some(Source::Other(Box::new(source))))
    }

    pub(crate) fn because(kind: ErrorKind, message: impl Into<String>, cause: &Error) -> Self {
        Self::build(kind, message.into(), Some(Source::Mine(cause.clone())))
    }

    fn build(kind: ErrorKind, message: String, source: Option<Source>) -> Self {
        let may_have_happened = kind == ErrorKind::Unknown;
        Self { inner: Arc::new(Inner { kind, message, source }), may_have_happened }
    }

    #[must_use]
    pub(crate) fn indeterminate(mut self) -> Self {
        self.may_have_happened = true;
        self
    }

    /// What went wrong, to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the write that failed may have happened, or may still happen: an append whose entry can turn up in the ledger,
    /// a change of metadata that can turn up in the store. When this is false it surely did not.
    pub fn may_have_happened(&self) -> bool {
        self.may_have_happened
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.inner.source {
            Some(Source::Mine(error)) => Some(error),
            Some(Source::Other(error)) => Some(error.as_ref()),
            None => None,
        }
    }
}
