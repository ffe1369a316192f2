//! The cold store: an object store with bounded retries, a limit of requests in flight, and answers that are checked.
//!
//! ## Consistency
//! Keys are made of a fresh uuid and written once: a write never replaces an object, and a key found taken after a lost answer is
//! ours. There is no delete here.
//!
//! ## Retries
//! Reads are retried while they fail transiently, within [`StoreOptions::retry`]; the cloud stores' own clients retry single
//! requests before that, within [`StoreOptions::request_deadline`]. A write that may have happened is looked up by its key.
//!
//! ## Cancellation
//! Reads may be dropped at any time. A dropped [`Upload`] leaves at most parts that were never joined to an object.

mod check;
mod cloud;
mod hint;
mod local;
mod measure;
mod open;
mod probe;
mod upload;

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::metrics::Set;
use common::retry::{RetryPolicy, retry};
use common::rng::Rng;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, ObjectStoreExt};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{Metrics, Operation};
use local::LocalRoot;

pub(crate) use check::PROBES;
pub use cloud::{AccessKey, ChecksumHeader, CloudOptions};
pub use measure::StoreSpeed;
pub use probe::{Capability, Finding, StoreReport};
pub use upload::{Upload, Uploaded};

/// How a store is used.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Which of the cluster's stores this is; goes into cold records.
    pub store_id: u32,
    /// Retries of reads that failed transiently.
    pub retry: RetryPolicy,
    /// The longest a request may take, the client's own retries included.
    pub request_deadline: Duration,
    /// Requests in flight at most.
    pub requests_in_flight: usize,
    /// Size of the parts of an upload; stores want at least 5 MiB.
    pub part_bytes: u64,
    /// Parts of one upload in flight at most.
    pub parts_in_flight: usize,
    /// The longest single range that is read.
    pub range_bytes_max: u64,
    /// How a cloud's store is reached.
    pub cloud: CloudOptions,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            store_id: 0,
            retry: RetryPolicy {
                initial: Duration::from_millis(100),
                factor: 2.0,
                max: Duration::from_secs(5),
                deadline: Duration::from_secs(30),
            },
            request_deadline: Duration::from_secs(60),
            requests_in_flight: 64,
            part_bytes: 8 << 20,
            parts_in_flight: 4,
            range_bytes_max: 256 << 20,
            cloud: CloudOptions::default(),
        }
    }
}

/// What a store says of an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// The object's key.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// The store's tag of its content, if it makes one.
    pub etag: Option<String>,
    /// When it was last written, in milliseconds since 1970, by the store's clock.
    pub modified_ms: i64,
}

/// A store of cold objects. Cheap to clone.
#[derive(Clone)]
pub struct ColdStore {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn ObjectStore>,
    /// Keys are below this path of the bucket.
    prefix: Path,
    /// As people wrote it, without secrets; for messages.
    name: String,
    /// A store in a local directory needs more syncs.
    local: Option<LocalRoot>,
    options: StoreOptions,
    requests: Semaphore,
    rng: Rng,
    metrics: Metrics,
}

impl ColdStore {
    /// A cold store over any object store.
    pub fn new(store: Arc<dyn ObjectStore>, options: StoreOptions, rng: Rng) -> Self {
        let name = store.to_string();
        Self::assemble(store, Path::default(), name, None, options, rng)
    }

    fn assemble(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        name: String,
        local: Option<LocalRoot>,
        options: StoreOptions,
        rng: Rng,
    ) -> Self {
        let requests = Semaphore::new(options.requests_in_flight.max(1));
        Self { inner: Arc::new(Inner { store, prefix, name, local, options, requests, rng, metrics: Metrics::new() }) }
    }

    /// Which of the cluster's stores this is.
    pub fn store_id(&self) -> u32 {
        self.inner.options.store_id
    }

    /// The store's name for people.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The store's metrics.
    pub fn metrics(&self) -> Set {
        self.inner.metrics.shown()
    }

    /// Size and tag of an object, asked of the store now.
    ///
    /// # Errors
    /// `NotFound` when the store does not have it, or what keeps the store from answering.
    pub async fn head(&self, key: &str) -> Result<ObjectFacts> {
        let path = self.path(key)?;
        let meta = self.retried(key, || self.request(key, "look up", self.inner.store.head(&path))).await?;
        Ok(facts(key, &meta))
    }

    /// Reads a range of an object. Exactly the range comes back: a shorter or longer answer, or an object of another size than
    /// `object_bytes`, is damage.
    ///
    /// # Errors
    /// `NotFound`, `Damaged`, or what keeps the store from answering.
    pub async fn get_range(&self, key: &str, range: Range<u64>, object_bytes: Option<u64>) -> Result<Bytes> {
        let bytes = range.end.saturating_sub(range.start);
        if bytes == 0 || bytes > self.inner.options.range_bytes_max {
            return Err(Error::new(ErrorKind::Invalid, format!("read object {key}: a range of {bytes} bytes")));
        }
        let path = self.path(key)?;
        self.retried(key, || self.request_range(key, &path, &range, object_bytes)).await
    }

    /// The objects below a prefix of keys (whole path segments), at most `limit`, ascending, beginning after `after`.
    ///
    /// # Errors
    /// What keeps the store from answering.
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<ObjectFacts>> {
        let below = self.path(prefix)?;
        let after = after.map(|after| self.path(after)).transpose()?;
        let listed = self.retried(prefix, || {
            let work = async {
                let stream = match &after {
                    Some(after) => self.inner.store.list_with_offset(Some(&below), after),
                    None => self.inner.store.list(Some(&below)),
                };
                // Stores may answer in any order; the lowest `limit` keys are kept, and no more than twice that in memory.
                let mut kept = Vec::new();
                let mut stream = stream;
                while let Some(meta) = stream.try_next().await? {
                    kept.push(meta);
                    if kept.len() >= limit.saturating_mul(2).max(1_024) {
                        lowest(&mut kept, limit);
                    }
                }
                lowest(&mut kept, limit);
                Ok(kept)
            };
            self.request(prefix, "list", work)
        });
        let listed = listed.await?;
        Ok(listed.iter().map(|meta| facts(&self.key(&meta.location), meta)).collect())
    }

    async fn request_range(
        &self,
        key: &str,
        path: &Path,
        range: &Range<u64>,
        object_bytes: Option<u64>,
    ) -> Result<Bytes> {
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let read = async {
            let result = self.inner.store.get_opts(path, options).await?;
            Ok(collect(result, range, object_bytes).await)
        };
        match self.request(key, "read", read).await {
            Ok(Ok(bytes)) => {
                self.inner.metrics.read(bytes.len() as u64);
                Ok(bytes)
            }
            Ok(Err(Answer::Differs(what))) => Err(Error::damaged(key, what)),
            Ok(Err(Answer::Failed(error))) => Err(store_error(key, "read", error)),
            // Stores refuse a range beyond the end in words of their own: the size tells damage from trouble.
            Err(error) if error.kind() == ErrorKind::Transient => {
                match self.request(key, "look up", self.inner.store.head(path)).await {
                    Ok(meta) if meta.size < range.end => Err(Error::damaged(
                        key,
                        format_args!("it has {} bytes, expected at least {}", meta.size, range.end),
                    )),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// One request: waits for its turn, and ends by its deadline.
    async fn request<T>(
        &self,
        key: &str,
        doing: &'static str,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        self.request_within(self.inner.options.request_deadline, key, doing, work).await
    }

    async fn request_within<T>(
        &self,
        deadline: Duration,
        key: &str,
        doing: &'static str,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let _turn = self
            .inner
            .requests
            .acquire()
            .await
            .map_err(|_| Error::new(ErrorKind::Transient, "the store is closing"))?;
        let metrics = &self.inner.metrics;
        let _under_way = metrics.in_flight.hold();
        let began = Instant::now();
        let done = match tokio::time::timeout(deadline, work).await {
            Ok(done) => done.map_err(|error| store_error(key, doing, error)),
            Err(_) => {
                let seconds = deadline.as_secs_f64();
                Err(Error::new(ErrorKind::Transient, format!("{doing} object {key}: no answer within {seconds} s")))
            }
        };
        metrics.ended(Operation::of(doing), done.as_ref().err().map(Error::kind), began.elapsed());
        done
    }

    /// Only for what is safe to repeat.
    async fn retried<T, F: Future<Output = Result<T>>>(&self, key: &str, op: impl FnMut() -> F) -> Result<T> {
        let never = CancellationToken::new();
        let again = |error: &Error| {
            if error.is_transient() {
                self.inner.metrics.retried();
                tracing::debug!(key, error = %error, "retry");
            }
            error.is_transient()
        };
        retry(&self.inner.options.retry, &self.inner.rng, &never, again, op).await
    }

    fn path(&self, key: &str) -> Result<Path> {
        let prefix = &self.inner.prefix;
        let full = if prefix.as_ref().is_empty() { key.to_owned() } else { format!("{prefix}/{key}") };
        Path::parse(&full)
            .map_err(|error| Error::with_source(ErrorKind::Invalid, format!("use object key {key:?}"), error))
    }

    fn key(&self, path: &Path) -> String {
        let prefix = self.inner.prefix.as_ref();
        let key = path.as_ref();
        key.strip_prefix(prefix).map_or(key, |key| key.trim_start_matches('/')).to_owned()
    }
}

impl std::fmt::Debug for ColdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ColdStore({})", self.inner.name)
    }
}

enum Answer {
    Differs(String),
    Failed(object_store::Error),
}

/// Takes the body of an answer, no more of it than was asked for.
async fn collect(
    result: GetResult,
    range: &Range<u64>,
    object_bytes: Option<u64>,
) -> std::result::Result<Bytes, Answer> {
    let wanted = range.end - range.start;
    if let Some(object_bytes) = object_bytes
        && result.meta.size != object_bytes
    {
        return Err(Answer::Differs(format!("it has {} bytes, expected {object_bytes}", result.meta.size)));
    }
    if result.range != *range {
        let found = &result.range;
        return Err(Answer::Differs(format!(
            "the store answered with bytes {}..{}, asked for {}..{}",
            found.start, found.end, range.start, range.end
        )));
    }
    let differs = |found: u64| Answer::Differs(format!("the store answered with {found} bytes, asked for {wanted}"));
    if let GetResultPayload::File(..) = result.payload {
        let bytes = result.bytes().await.map_err(Answer::Failed)?;
        return if bytes.len() as u64 == wanted { Ok(bytes) } else { Err(differs(bytes.len() as u64)) };
    }
    let mut stream = result.into_stream();
    let Some(first) = stream.next().await.transpose().map_err(Answer::Failed)? else { return Err(differs(0)) };
    let mut found = first.len() as u64;
    // An answer in one piece is handed on as it is.
    let mut whole = BytesMut::new();
    let mut only = Some(first);
    while let Some(next) = stream.next().await.transpose().map_err(Answer::Failed)? {
        found += next.len() as u64;
        if found > wanted {
            return Err(differs(found));
        }
        if let Some(first) = only.take() {
            whole.reserve(usize::try_from(wanted).unwrap_or(0));
            whole.extend_from_slice(&first);
        }
        whole.extend_from_slice(&next);
    }
    if found != wanted {
        return Err(differs(found));
    }
    Ok(only.unwrap_or_else(|| whole.freeze()))
}

fn lowest(metas: &mut Vec<object_store::ObjectMeta>, limit: usize) {
    metas.sort_by(|a, b| a.location.cmp(&b.location));
    metas.truncate(limit);
}

fn facts(key: &str, meta: &object_store::ObjectMeta) -> ObjectFacts {
    ObjectFacts {
        key: key.to_owned(),
        bytes: meta.size,
        etag: meta.e_tag.clone(),
        modified_ms: meta.last_modified.timestamp_millis(),
    }
}

/// What an error of the object store means to us.
fn store_error(key: &str, doing: &str, error: object_store::Error) -> Error {
    use object_store::Error as E;
    let hinted = hint::of(&error);
    let (kind, hint) = match &error {
        _ if let Some((kind, hint)) = &hinted => (*kind, hint.as_str()),
        E::NotFound { .. } => (ErrorKind::NotFound, "the store does not have it"),
        E::AlreadyExists { .. } | E::Precondition { .. } => (ErrorKind::AlreadyExists, "the key is taken"),
        E::PermissionDenied { .. } => {
            (ErrorKind::Denied, "permission denied; give these credentials the right to do so")
        }
        E::Unauthenticated { .. } => (ErrorKind::Denied, "the store does not know these credentials; check them"),
        E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::NotImplemented { .. }
        | E::UnknownConfigurationKey { .. } => (ErrorKind::Config, "the store cannot do this"),
        _ if is_denied(&error) => (ErrorKind::Denied, "permission denied; give this process the right to do so"),
        _ => (ErrorKind::Transient, "the store did not do it"),
    };
    Error::with_source(kind, format!("{doing} object {key}: {hint}"), error)
}

/// The local store reports refusals of the operating system inside of generic errors.
fn is_denied(error: &object_store::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
