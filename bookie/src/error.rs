use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a failure of the storage node means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A setting is wrong; nothing was touched.
    Config,
    /// The directory, the cookie and the configured identity do not belong together; nothing was touched.
    Identity,
    /// Stored bytes are not what was written. Nothing was truncated or removed.
    Damaged,
    /// The disk refused an operation.
    Disk,
    /// The index refused an operation.
    Index,
    /// The index was not written because its file system has no space; nothing is wrong with it, and it goes on when there is.
    IndexFull,
    /// Metadata could not be reached or refused an operation.
    Metadata,
    /// The journal failed earlier and will not be written again by this process.
    JournalFailed,
    /// The bookie is stopping.
    Stopped,
}

/// A failure of the storage node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// See [`ErrorKind::Config`].
    #[error("check bookie configuration: {0}")]
    Config(String),
    /// See [`ErrorKind::Identity`].
    #[error("check bookie identity: {0}")]
    Identity(String),
    /// See [`ErrorKind::Damaged`].
    #[error("read {path}: {what} at offset {offset}", path = path.display())]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// See [`ErrorKind::Disk`].
    #[error("{action} {path}", path = path.display())]
    Disk {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// See [`ErrorKind::Index`].
    #[error("{action} the bookie index")]
    Index {
        /// What was tried, as a verb.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// See [`ErrorKind::IndexFull`].
    #[error("{action} the bookie index: no space left")]
    IndexFull {
        /// What was tried, as a verb.
        action: &'static str,
        /// What the file system said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// See [`ErrorKind::Metadata`].
    #[error("{action} in metadata")]
    Metadata {
        /// What was tried, as a verb.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// See [`ErrorKind::JournalFailed`]; carries the first reason.
    #[error("write the journal: it failed earlier: {0}")]
    JournalFailed(String),
    /// See [`ErrorKind::Stopped`].
    #[error("use the bookie: it is stopping")]
    Stopped,
    /// A failure that several waited for, as each of them is told.
    #[error(transparent)]
    Shared(Arc<Error>),
}

impl Error {
    /// The class of the failure, to decide by.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(_) => ErrorKind::Config,
            Self::Identity(_) => ErrorKind::Identity,
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::Disk { .. } => ErrorKind::Disk,
            Self::Index { .. } => ErrorKind::Index,
            Self::IndexFull { .. } => ErrorKind::IndexFull,
            Self::Metadata { .. } => ErrorKind::Metadata,
            Self::JournalFailed(_) => ErrorKind::JournalFailed,
            Self::Stopped => ErrorKind::Stopped,
            Self::Shared(error) => error.kind(),
        }
    }

    pub(crate) fn disk(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Disk { action, path, source }
    }

    pub(crate) fn index(action: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Index { action, source: source.into() }
    }

    pub(crate) fn index_full(
        action: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::IndexFull { action, source: source.into() }
    }

    /// Whether it will pass when there is space.
    pub(crate) fn is_index_full(&self) -> bool {
        self.kind() == ErrorKind::IndexFull
    }

    pub(crate) fn metadata(action: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Metadata { action, source: source.into() }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), offset, what: what.into() }
    }
}
