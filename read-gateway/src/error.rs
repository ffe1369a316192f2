//! The one error of this crate, and its only translation to gRPC codes.

use std::fmt;
use std::sync::Arc;

use tonic::{Code, Status};

/// What a caller decides by; each is one gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The ledger does not exist, proved by a quorum read.
    NotFound,
    /// Past the end of a closed ledger, or past what is confirmed of an open one.
    OutOfRange,
    /// Not possible in this state of the ledger; the message says what to do.
    Precondition,
    /// The password is not the ledger's.
    Denied,
    /// Another client took the ledger from its writer.
    Fenced,
    /// A stored copy is missing or not what was written.
    Damaged,
    /// A tier or the metadata did not answer; the same call may succeed later.
    Unavailable,
    /// Over a limit; the same call may succeed later.
    Exhausted,
    /// The caller or a tier took too long.
    Timeout,
    /// A write may or may not have happened.
    Unknown,
    /// The request makes no sense.
    Invalid,
    /// What the ledger or the request needs is not known to this release.
    Unsupported,
    /// A bug here.
    Internal,
}

/// An error of the gateway. Cheap to clone, because one failed fetch may answer many readers.
#[derive(Debug, Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of this crate's calls.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { inner: Arc::new(Inner { kind, message: message.into(), source: None }) }
    }

    pub(crate) fn because(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { inner: Arc::new(Inner { kind, message: message.into(), source: Some(source.into()) }) }
    }

    pub(crate) fn stopping() -> Self {
        Self::new(ErrorKind::Unavailable, "the gateway is stopping; ask another one, or this one later")
    }

    /// What to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether another tier, or newer metadata, may serve what this one did not.
    pub(crate) fn is_miss(&self) -> bool {
        match self.kind() {
            ErrorKind::Damaged
            | ErrorKind::Unavailable
            | ErrorKind::Timeout
            | ErrorKind::Unknown
            | ErrorKind::Unsupported => true,
            ErrorKind::NotFound
            | ErrorKind::OutOfRange
            | ErrorKind::Precondition
            | ErrorKind::Denied
            | ErrorKind::Fenced
            | ErrorKind::Exhausted
            | ErrorKind::Invalid
            | ErrorKind::Internal => false,
        }
    }

    /// The message with all its causes.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.inner.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let part = error.to_string();
            // Some errors repeat their cause in their own text.
            if !text.contains(&part) {
                text.push_str(": ");
                text.push_str(&part);
            }
            cause = error.source();
        }
        text
    }

    /// What the caller is told.
    pub(crate) fn to_status(&self) -> Status {
        let code = match self.kind() {
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::OutOfRange => Code::OutOfRange,
            ErrorKind::Precondition => Code::FailedPrecondition,
            ErrorKind::Denied => Code::PermissionDenied,
            ErrorKind::Fenced => Code::Aborted,
            ErrorKind::Damaged => Code::DataLoss,
            ErrorKind::Unavailable => Code::Unavailable,
            ErrorKind::Exhausted => Code::ResourceExhausted,
            ErrorKind::Timeout => Code::DeadlineExceeded,
            ErrorKind::Unknown => Code::Unknown,
            ErrorKind::Invalid => Code::InvalidArgument,
            ErrorKind::Unsupported => Code::Unimplemented,
            ErrorKind::Internal => Code::Internal,
        };
        Status::new(code, self.chain())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        error.to_status()
    }
}

impl From<cold::Error> for Error {
    fn from(error: cold::Error) -> Self {
        use cold::ErrorKind as Cold;
        let kind = match error.kind() {
            // Of an object that a ledger names, absence is a loss.
            Cold::NotFound | Cold::Damaged => ErrorKind::Damaged,
            Cold::Unsupported => ErrorKind::Unsupported,
            Cold::Invalid => ErrorKind::Internal,
            // Credentials and settings of the store are the operator's trouble, not a wrong password of the caller.
            _ => ErrorKind::Unavailable,
        };
        Self::because(kind, error.to_string(), error)
    }
}

impl From<metadata::Error> for Error {
    fn from(error: metadata::Error) -> Self {
        use metadata::ErrorKind as Meta;
        let kind = match error.kind() {
            Meta::Damaged => ErrorKind::Damaged,
            Meta::Unsupported => ErrorKind::Unsupported,
            Meta::Invalid => ErrorKind::Internal,
            _ => ErrorKind::Unavailable,
        };
        Self::because(kind, error.to_string(), error)
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        use client::ErrorKind as Hot;
        let kind = match error.kind() {
            Hot::Fenced => ErrorKind::Fenced,
            Hot::NoSuchLedger => ErrorKind::NotFound,
            Hot::Unauthorized => ErrorKind::Denied,
            Hot::Closed => ErrorKind::Precondition,
            Hot::Damaged => ErrorKind::Damaged,
            Hot::Timeout => ErrorKind::Timeout,
            Hot::Unknown => ErrorKind::Unknown,
            Hot::Unsupported => ErrorKind::Unsupported,
            // Too busy is unavailable: another tier may serve it, unlike with our own lack of memory. Ranges are checked against metadata before bookies are asked, so a bookie that has no such entry is a bookie that
            // lost it, or metadata that moved on: nothing is known.
            _ => ErrorKind::Unavailable,
        };
        Self::because(kind, error.to_string(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_carries_the_whole_chain_once() {
        let inner = Error::new(ErrorKind::Damaged, "read object a/b: it has 3 bytes");
        let outer = Error::because(ErrorKind::Unavailable, "read entry 7 of ledger 9", inner);
        let status = outer.to_status();
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), "read entry 7 of ledger 9: read object a/b: it has 3 bytes");
    }
}
