use std::error::Error as StdError;
use std::fmt;

use ledger::LedgerId;

/// What a caller decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The ledger does not exist, by proof.
    NoSuchLedger,
    /// The ledger is open or in recovery; only closed ones are settled.
    NotClosed,
    /// The ledger can never be settled as it is; the text says why.
    Unsuitable,
    /// Another offloader is at it, or changes come faster than they can be followed: try again later.
    Busy,
    /// The cold store, the metadata store, the bookies or the gateway did not do it; trying again later may work.
    Unavailable,
    /// Nobody serves the ledger's cold ids, so it is not released yet. No failure: it is tried again by itself.
    Waiting,
    /// Whether the last step was done is not known; the next try finds out.
    Unknown,
    /// Bytes are not what they must be. The text names the ledger and the object.
    Damaged,
    /// A limit of time passed.
    Timeout,
    /// This process is stopping.
    Stopped,
    /// A [`crate::StepObserver`] ended the job, as a crash would.
    Halted,
    /// A setting cannot work, or the cold store refuses our rights.
    Config,
}

/// An error of the offloader; it names the ledger, and the object where there is one.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with no source.
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
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message and those of its causes, as one sentence.
    pub fn chain(&self) -> String {
        let mut out = self.message.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            out.push_str(": ");
            out.push_str(&error.to_string());
            cause = error.source();
        }
        out
    }

    pub(crate) fn of_ledger(kind: ErrorKind, doing: &str, ledger: LedgerId, why: impl fmt::Display) -> Self {
        Self::new(kind, format!("{doing} ledger {ledger}: {why}"))
    }

    pub(crate) fn metadata(doing: &str, ledger: LedgerId, error: metadata::Error) -> Self {
        let kind = match error.kind() {
            metadata::ErrorKind::Damaged => ErrorKind::Damaged,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, format!("{doing} ledger {ledger}")).caused_by(error)
    }

    pub(crate) fn cold(doing: &str, ledger: LedgerId, error: cold::Error) -> Self {
        let kind = match error.kind() {
            cold::ErrorKind::NotFound | cold::ErrorKind::Damaged | cold::ErrorKind::Unsupported => ErrorKind::Damaged,
            cold::ErrorKind::Unknown => ErrorKind::Unknown,
            cold::ErrorKind::Denied | cold::ErrorKind::Config => ErrorKind::Config,
            cold::ErrorKind::Invalid => ErrorKind::Unsuitable,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, format!("{doing} ledger {ledger}")).caused_by(error)
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
