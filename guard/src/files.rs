//! Something made from files, and made anew when they change.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use common::blocking::run_blocking;
use common::clock::Clock;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::is_unset;
use crate::error::Error;
use crate::metrics::FileMetrics;
use crate::tls::Validity;

/// How often the files are looked at, at most.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// What the file of the certificate is called, at both ends.
pub(crate) const CERTIFICATE: &str = "certificate";
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

/// What is made of files, with the certificate among it.
pub(crate) trait Lasting: Send + Sync {
    /// When the certificate can be used; `None` without one.
    fn validity(&self) -> Option<Validity>;
}

type Make<T> = Box<dyn Fn(&[Content]) -> Result<T, Error> + Send + Sync>;

/// What was made from files that may change.
pub(crate) struct Reloaded<T> {
    files: Vec<Named>,
    make: Make<T>,
    current: RwLock<Arc<T>>,
    looked: Mutex<Looked>,
    clock: Clock,
    metrics: FileMetrics,
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

impl<T: Lasting> Reloaded<T> {
    /// Reads the files and makes what they are for; `make` is given what is in them, in their order. A certificate that is not
    /// valid now is taken all the same, with a warning: whoever starts with it has no better one.
    ///
    /// # Errors
    /// A file that cannot be read; what `make` says.
    pub(crate) async fn open(
        files: Vec<Named>,
        clock: &Clock,
        metrics: FileMetrics,
        make: Make<T>,
    ) -> Result<Self, Error> {
        let contents = read(files.clone()).await?;
        let made = make(&contents)?;
        if let Err(error) = in_time(&made, &contents, clock) {
            tracing::warn!(error = &error as &dyn std::error::Error, "who verifies certificates refuses this one");
        }
        metrics.certificate_ends(made.validity().map_or(0, |validity| validity.end));
        let current = RwLock::new(Arc::new(made));
        let fingerprint = Fingerprint::Content(fingerprint(&contents));
        let looked = Mutex::new(Looked { at: Instant::now(), fingerprint });
        Ok(Self { files, make, current, looked, clock: clock.clone(), metrics })
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
        let made = read.and_then(|contents| {
            let made = (self.make)(&contents)?;
            in_time(&made, &contents, &self.clock)?;
            Ok(made)
        });
        match made {
            Ok(made) => {
                self.metrics.certificate_ends(made.validity().map_or(0, |validity| validity.end));
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

/// Whether the certificate can be used now.
fn in_time(made: &impl Lasting, contents: &[Content], clock: &Clock) -> Result<(), Error> {
    let refused = made.validity().and_then(|validity| validity.refuses(clock.wall_ms() / 1000));
    let certificate = contents.iter().find(|content| content.named.what == CERTIFICATE);
    match refused.zip(certificate) {
        Some((cause, certificate)) => Err(certificate.error(format!("{cause}, by this machine's clock"))),
        None => Ok(()),
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
