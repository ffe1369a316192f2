use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::rng::Rng;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use super::local::LocalRoot;
use super::{ColdStore, StoreOptions};
use crate::error::{Error, ErrorKind, Result};

/// The forms of URL there are, for messages.
const FORMS: &str = "file:///directory, s3://bucket/path, gs://bucket/path or az://container/path";

impl ColdStore {
    /// Opens the store at a URL: `file:///directory` (made if missing, everything synced), `s3://bucket/path`, `gs://bucket/path`,
    /// `az://container/path`, or `memory://` for tests. Credentials of cloud stores come from the environment variables their
    /// own tools use. No request is made; [`ColdStore::check`] makes some.
    ///
    /// # Errors
    /// `Config` or `Denied` with a sentence that says what to do.
    pub fn open(url: &Url, options: StoreOptions, rng: Rng) -> Result<Self> {
        let name = without_secrets(url);
        match url.scheme() {
            "file" => open_directory(url, &name, options, rng),
            "memory" => Ok(Self::assemble(Arc::new(InMemory::new()), Path::default(), name, None, options, rng)),
            "s3" | "gs" | "az" => {
                let store = open_cloud(url, &name, &options)?;
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

fn open_cloud(url: &Url, name: &str, options: &StoreOptions) -> Result<Arc<dyn ObjectStore>> {
    if url.host_str().is_none_or(str::is_empty) {
        let form = if url.scheme() == "az" { "az://container/path" } else { "scheme://bucket/path" };
        return Err(config(name, format_args!("it names no bucket; write it as {form}")));
    }
    // The client's own retries end before our deadline of the request, so that its error is the one people see.
    let retry_timeout = options.request_deadline / 2;
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: 5,
        retry_timeout,
    };
    let client = ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(5))
        .with_read_timeout(Duration::from_secs(15))
        .with_timeout(retry_timeout);
    // The path is ours to add to keys; the clients refuse some URLs that have one.
    let bucket = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
    let built: object_store::Result<Arc<dyn ObjectStore>> = match url.scheme() {
        "s3" => {
            let client = if std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true") {
                client.with_allow_http(true)
            } else {
                client
            };
            AmazonS3Builder::from_env()
                .with_url(bucket)
                .with_retry(retry)
                .with_client_options(client)
                .build()
                .map(|s| Arc::new(s) as _)
        }
        "gs" => GoogleCloudStorageBuilder::from_env()
            .with_url(bucket)
            .with_retry(retry)
            .with_client_options(client)
            .build()
            .map(|s| Arc::new(s) as _),
        _ => {
            let client = if std::env::var("AZURE_ALLOW_HTTP").is_ok_and(|value| value == "true") {
                client.with_allow_http(true)
            } else {
                client
            };
            MicrosoftAzureBuilder::from_env()
                .with_url(bucket)
                .with_retry(retry)
                .with_client_options(client)
                .build()
                .map(|s| Arc::new(s) as _)
        }
    };
    built.map_err(|error| {
        let hint = match url.scheme() {
            "s3" => "set AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT for stores other than AWS",
            "gs" => "set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
            _ => "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        };
        Error::with_source(ErrorKind::Config, format!("open object store {name}: the settings are not complete; {hint}"), error)
    })
}

fn config(name: &str, what: impl std::fmt::Display) -> Error {
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
