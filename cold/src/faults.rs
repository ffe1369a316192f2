//! An object store for tests: it counts what passes through it and fails where it is told to.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use common::rng::Rng;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::store::{ColdStore, StoreOptions};

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A read fails and says so.
    FailGet,
    /// A read gives this many bytes fewer and says nothing.
    CutGet(usize),
    /// A read gives one byte more than asked for and says nothing.
    LengthenGet,
    /// A bit of this byte of the answer is flipped.
    FlipGet(usize),
    /// A write does not happen, and says so.
    FailPut,
    /// A read is refused.
    DenyGet,
    /// A write is refused.
    DenyPut,
    /// A write finds that the bucket is missing.
    LoseBucket,
    /// A write, or the last step of an upload in parts, happens, and says it failed.
    LosePutReply,
}

impl Fault {
    fn is_of_get(self) -> bool {
        matches!(self, Self::FailGet | Self::DenyGet | Self::CutGet(_) | Self::LengthenGet | Self::FlipGet(_))
    }
}

/// What passed through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The ranges of the reads that were answered, in order.
    pub gets: Vec<Range<u64>>,
    /// Requests for size and tag only.
    pub heads: u64,
    /// Objects put in one request.
    pub puts: u64,
    /// Uploads in parts that were begun.
    pub multiparts: u64,
    /// Objects removed.
    pub deletes: u64,
}

impl Traffic {
    /// Bytes of all reads.
    pub fn get_bytes(&self) -> u64 {
        self.gets.iter().map(|range| range.end - range.start).sum()
    }
}

/// Counts what passes through to another store and makes the next requests fail as told. Cheap to clone; clones are one store.
#[derive(Clone)]
pub struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    traffic: Traffic,
    faults: VecDeque<Fault>,
}

impl FaultStore {
    /// A store that passes everything through.
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, state: Arc::default() }
    }

    /// A store in memory.
    pub fn in_memory() -> Self {
        Self::new(Arc::new(InMemory::new()))
    }

    /// A cold store over this store.
    pub fn cold_store(&self, options: StoreOptions, rng: Rng) -> ColdStore {
        ColdStore::new(Arc::new(self.clone()), options, rng)
    }

    /// Makes one later request fail; faults of reads and of writes are taken in the order they were given.
    pub fn inject(&self, fault: Fault) {
        self.with(|state| state.faults.push_back(fault));
    }

    /// How many injected faults have not befallen a request yet.
    pub fn outstanding(&self) -> usize {
        self.with(|state| state.faults.len())
    }

    /// What passed through since the last call.
    pub fn take_traffic(&self) -> Traffic {
        self.with(|state| std::mem::take(&mut state.traffic))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn next_fault(&self, fits: impl Fn(&Fault) -> bool) -> Option<Fault> {
        self.with(|state| {
            let place = state.faults.iter().position(fits)?;
            state.faults.remove(place)
        })
    }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultStore({})", self.inner)
    }
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn failure(fault: Fault, location: &Path) -> Error {
    let (path, source) = (location.to_string(), "injected".into());
    match fault {
        Fault::DenyGet | Fault::DenyPut => Error::PermissionDenied { path, source },
        Fault::LoseBucket => Error::NotFound { path, source },
        _ => Error::Generic { store: "FaultStore", source },
    }
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.with(|state| state.traffic.puts += 1);
        match self.next_fault(|fault| !fault.is_of_get()) {
            Some(Fault::LosePutReply) => {
                self.inner.put_opts(location, payload, opts).await?;
                Err(failure(Fault::LosePutReply, location))
            }
            Some(fault) => Err(failure(fault, location)),
            None => self.inner.put_opts(location, payload, opts).await,
        }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.with(|state| state.traffic.multiparts += 1);
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(FaultUpload { inner, store: self.clone(), location: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            self.with(|state| state.traffic.heads += 1);
            return self.inner.get_opts(location, options).await;
        }
        let fault = self.next_fault(|fault| fault.is_of_get());
        if let Some(fault @ (Fault::FailGet | Fault::DenyGet)) = fault {
            return Err(failure(fault, location));
        }
        let result = self.inner.get_opts(location, options).await?;
        self.with(|state| state.traffic.gets.push(result.range.clone()));
        let Some(fault) = fault else { return Ok(result) };
        let (meta, range, attributes, extensions) =
            (result.meta.clone(), result.range.clone(), result.attributes.clone(), result.extensions.clone());
        let mut bytes = BytesMut::from(result.bytes().await?);
        match fault {
            Fault::CutGet(count) => bytes.truncate(bytes.len().saturating_sub(count)),
            Fault::LengthenGet => bytes.extend_from_slice(&[0]),
            Fault::FlipGet(place) => {
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= 0x10;
                }
            }
            _ => {}
        }
        let payload = GetResultPayload::Stream(futures::stream::iter([Ok(Bytes::from(bytes))]).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let counted =
            self.inner.delete_stream(locations).inspect(move |_| store.with(|state| state.traffic.deletes += 1));
        counted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FaultUpload {
    inner: Box<dyn MultipartUpload>,
    store: FaultStore,
    location: Path,
}

#[async_trait]
impl MultipartUpload for FaultUpload {
    fn put_part(&mut self, data: PutPayload) -> object_store::UploadPart {
        if let Some(fault) = self.store.next_fault(|fault| *fault == Fault::FailPut) {
            let error = failure(fault, &self.location);
            return Box::pin(async { Err(error) });
        }
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        match self.store.next_fault(|fault| !fault.is_of_get()) {
            Some(Fault::LosePutReply) => {
                self.inner.complete().await?;
                Err(failure(Fault::LosePutReply, &self.location))
            }
            Some(fault) => Err(failure(fault, &self.location)),
            None => self.inner.complete().await,
        }
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
