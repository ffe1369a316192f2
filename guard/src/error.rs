use std::path::{Path, PathBuf};

/// What is configured cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings that do not fit each other.
    #[error("{0}")]
    Config(String),
    /// A file that cannot be read, or does not hold what it must.
    #[error("{what} {}: {cause}", .path.display())]
    File {
        /// What the file should be.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// What is wrong. Never what is in it.
        cause: String,
    },
    /// Certificate and key, or certificate authorities, that TLS refuses.
    #[error("set up TLS with {}: {cause}", .path.display())]
    Tls {
        /// The certificate's path.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

impl Error {
    pub(crate) fn file(what: &'static str, path: &Path, cause: impl ToString) -> Self {
        Self::File { what, path: path.to_owned(), cause: cause.to_string() }
    }

    pub(crate) fn tls(path: &Path, cause: impl ToString) -> Self {
        Self::Tls { path: path.to_owned(), cause: cause.to_string() }
    }
}
