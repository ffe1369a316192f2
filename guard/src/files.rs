//! Something made from files, and made anew when they change.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use common::blocking::run_blocking;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::is_unset;
use crate::error::Error;
use crate::metrics::Metrics;

/// How often the files are looked at, at most.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// A longer file is refused.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A file with its place in messages; no path means that it is not configured.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) what: &'static str,
    pub(crate) path: PathBuf,
}

impl Named {
    pub(crate) fn new(what: &'static str, path: &Path) -> Self {
        Self { what, path: path.to_owned() }
    }
}

/// What was in a file. Not shown by `Debug`: it may be a secret.
pub(crate) struct Content {
    pub(crate) named: Named,
    pub(crate) bytes: Vec<u8>,
}

impl Content {
    /// `None` for a file that is not configured.
    pub(crate) fn given(&self) -> Option<&Self> {
        (!is_unset(&self.named.path)).then_some(self)
    }

    pub(crate) fn error(&self, cause: impl ToString) -> Error {
        Error::file(self.named.what, &self.named.path, cause)
    }
}

type Make<T> = Box<dyn Fn(&[Content]) -> Result<T, Error> + Send + Sync>;

/// What was made from files that may change.
pub(crate) struct Reloaded<T> {
    files: Vec<Named>,
    make: Make<T>,
    current: RwLock<Arc<T>>,
    looked: Mutex<Looked>,
    metrics: Metrics,
}

struct Looked {
    at: Instant,
    /// Of what was last tried, usable or not, so that the same trouble is told once.
    fingerprint: Fingerprint,
}

/// Of the files' content, or why it could not be read.
#[derive(PartialEq, Eq)]
enum Fingerprint {
    Content([u8; 32]),
    Unread(String),
}

impl<T: Send + Sync> Reloaded<T> {
    /// Reads the files and makes what they are for; `make` is given what is in them, in their order.
    ///
    /// # Errors
    /// A file that cannot be read; what `make` says.
    pub(crate) async fn open(files: Vec<Named>, metrics: Metrics, make: Make<T>) -> Result<Self, Error> {
        let contents = read(files.clone()).await?;
        let current = RwLock::new(Arc::new(make(&contents)?));
        let fingerprint = Fingerprint::Content(fingerprint(&contents));
        let looked = Mutex::new(Looked { at: Instant::now(), fingerprint });
        Ok(Self { files, make, current, looked, metrics })
    }

    /// What is to be used now. Looks at the files if that was not done for a while; while one caller looks, the others are not kept
    /// waiting.
    pub(crate) async fn current(&self) -> Arc<T> {
        if let Ok(mut looked) = self.looked.try_lock()
            && looked.at.elapsed() >= LOOK_INTERVAL
        {
            looked.at = Instant::now();
            self.look(&mut looked.fingerprint).await;
        }
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn look(&self, seen: &mut Fingerprint) {
        let read = read(self.files.clone()).await;
        let now = match &read {
            Ok(contents) => Fingerprint::Content(fingerprint(contents)),
            Err(error) => Fingerprint::Unread(error.to_string()),
        };
        if now == *seen {
            return;
        }
        *seen = now;
        match read.and_then(|contents| (self.make)(&contents)) {
            Ok(made) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(made);
                self.metrics.reloaded();
                tracing::info!("changed certificates or tokens count for new connections from now on");
            }
            Err(error) => {
                self.metrics.reload_failed();
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "certificates or tokens have changed and cannot be used; those from before still count"
                );
            }
        }
    }
}

async fn read(files: Vec<Named>) -> Result<Vec<Content>, Error> {
    run_blocking("read certificates and tokens", move || files.into_iter().map(read_one).collect()).await
}

fn read_one(named: Named) -> Result<Content, Error> {
    if is_unset(&named.path) {
        return Ok(Content { named, bytes: Vec::new() });
    }
    let bytes = (|| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(&named.path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    })()
    .map_err(|error| Error::file(named.what, &named.path, error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::file(named.what, &named.path, "longer than 4 MiB"));
    }
    Ok(Content { named, bytes })
}

fn fingerprint(contents: &[Content]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for content in contents {
        hash.update((content.bytes.len() as u64).to_be_bytes());
        hash.update(&content.bytes);
    }
    hash.finalize().into()
}
