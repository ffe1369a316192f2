use std::path::PathBuf;
use std::sync::Arc;

use common::rng::Rng;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use url::Url;

use super::local::LocalRoot;
use super::{ColdStore, StoreOptions, cloud};
use crate::error::{Error, ErrorKind, Result};

/// The forms of URL there are, for messages.
const FORMS: &str = "file:///directory, s3://bucket/path, gs://bucket/path or az://container/path";

impl ColdStore {
    /// Opens the store at a URL: `file:///directory` (made if missing, everything synced), `s3://bucket/path`, `gs://bucket/path`,
    /// `az://container/path`, or `memory://` for tests. Credentials of cloud stores come from the environment variables their
    /// own tools use, or from [`StoreOptions::cloud`]. An `s3` URL may say more after a `?`: `endpoint`, `region`,
    /// `allow_http=true` (plain HTTP to another machine), `addressing=path` or `host`, `checksum=sha256`, `crc64nvme` or `none`;
    /// never a secret. No request is made; [`ColdStore::check`] makes some.
    ///
    /// # Errors
    /// `Config` or `Denied` with a sentence that says what to do.
    pub fn open(url: &Url, options: StoreOptions, rng: Rng) -> Result<Self> {
        let name = without_secrets(url);
        match url.scheme() {
            "file" => open_directory(url, &name, options, rng),
            "memory" => Ok(Self::assemble(Arc::new(InMemory::new()), Path::default(), name, None, options, rng)),
            "s3" | "gs" | "az" => {
                let store = cloud::open(url, &name, &options)?;
                let prefix = Path::from_url_path(url.path()).map_err(|error| {
                    Error::with_source(
                        ErrorKind::Config,
                        format!("open object store {name}: its path is malformed"),
                        error,
                    )
                })?;
                Ok(Self::assemble(store, prefix, name, None, options, rng))
            }
            other => Err(config(&name, format_args!("scheme {other:?} is not known; write it as {FORMS}"))),
        }
    }
}

fn open_directory(url: &Url, name: &str, options: StoreOptions, rng: Rng) -> Result<ColdStore> {
    let path: PathBuf = url
        .to_file_path()
        .map_err(|()| config(name, "it names no directory of this machine; write it as file:///absolute/directory"))?;
    let refuse = |error: std::io::Error| {
        let shown = path.display();
        let (kind, hint) = match error.kind() {
            std::io::ErrorKind::PermissionDenied => (
                ErrorKind::Denied,
                format!("this process may not create {shown}; create it and give it to the user that runs this"),
            ),
            std::io::ErrorKind::NotADirectory | std::io::ErrorKind::AlreadyExists => {
                (ErrorKind::Config, format!("{shown}, or something above it, is a file; choose a directory"))
            }
            _ => (ErrorKind::Config, format!("{shown} cannot be used as a directory")),
        };
        Error::with_source(kind, format!("open object store {name}: {hint}"), error)
    };
    let local = LocalRoot::create(&path).map_err(refuse)?;
    let store = LocalFileSystem::new_with_prefix(local.root())
        .map_err(|error| {
            Error::with_source(
                ErrorKind::Config,
                format!("open object store {name}: the directory cannot be used"),
                error,
            )
        })?
        .with_fsync(true);
    Ok(ColdStore::assemble(Arc::new(store), Path::default(), name.to_owned(), Some(local), options, rng))
}

pub(super) fn config(name: &str, what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Config, format!("open object store {name}: {what}"))
}

/// The URL without user, password and query, which may hold secrets.
fn without_secrets(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // Both fail for URLs that cannot have them, which then have none.
    let _ = shown.set_password(None);
    let _ = shown.set_username("");
    shown.to_string()
}
