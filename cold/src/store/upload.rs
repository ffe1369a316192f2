//! Uploads: chunks in, parts out, a bounded number of them in flight, their bytes admitted by a budget.
//!
//! Parts are all of one size but the last, as some stores demand. What fits in one part is put in one request, which fails when the
//! key is taken. A larger object is looked up before its parts are joined; keys are unique, so one that is there was written by
//! this very upload or by a mix-up, and is never replaced.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use common::budget::{ByteBudget, BytePermit};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::task::JoinSet;

use super::{ColdStore, hint};
use crate::error::{Error, ErrorKind, Result};

/// How fast a store must be at least when it makes one object of the parts: 10 MB/s.
const JOIN_BYTES_PER_MS: u64 = 10_000;

/// How often a write is begun again that the store refused because of another one under way.
const CONFLICTS_MAX: usize = 4;

/// What was uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// The object's size.
    pub bytes: u64,
    /// The store's tag of its content, if it makes one.
    pub etag: Option<String>,
}

/// An upload in progress. Dropping it stops it; parts the store has by then are never seen as an object, and bucket rules for
/// unfinished uploads remove them. Nothing here deletes an object.
pub struct Upload {
    store: ColdStore,
    budget: ByteBudget,
    key: String,
    path: Path,
    multipart: Option<Box<dyn MultipartUpload>>,
    /// Bytes of the part being filled; its permit covers a whole part.
    filling: VecDeque<Bytes>,
    filling_bytes: u64,
    permit: Option<BytePermit>,
    /// Room for one part that stays with this upload, see [`Upload::keep`].
    kept: Option<Kept>,
    in_flight: JoinSet<Result<()>>,
    bytes: u64,
}

/// Room for one part while no part uses it.
#[derive(Clone)]
struct Kept(Arc<Mutex<Option<BytePermit>>>);

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Option<BytePermit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<BytePermit> {
        self.lock().take()
    }

    /// Takes a permit back, or drops it when there is one already.
    fn give(&self, permit: Option<BytePermit>) {
        let mut kept = self.lock();
        if kept.is_none() {
            *kept = permit;
        }
    }
}

impl ColdStore {
    /// The size of an upload's parts, which is what a part takes of the upload's budget.
    pub fn part_bytes(&self) -> u64 {
        self.inner.options.part_bytes.max(1)
    }

    /// Begins the upload of an object that must not exist yet. Bytes that wait for the store are admitted by `budget`, a part at a
    /// time.
    ///
    /// # Errors
    /// `Invalid` when the key is malformed. Nothing is asked of the store yet.
    pub fn upload(&self, key: &str, budget: &ByteBudget) -> Result<Upload> {
        Ok(Upload {
            store: self.clone(),
            budget: budget.clone(),
            key: key.to_owned(),
            path: self.path(key)?,
            multipart: None,
            filling: VecDeque::new(),
            filling_bytes: 0,
            permit: None,
            kept: None,
            in_flight: JoinSet::new(),
            bytes: 0,
        })
    }
}

impl Upload {
    /// Gives this upload room for one part, for as long as it lives: whoever holds other bytes of the same budget meanwhile must
    /// take both at once. The upload then never waits for the budget, only for its own parts, and takes more when there is more.
    #[must_use]
    pub fn keep(mut self, part: BytePermit) -> Self {
        self.kept = Some(Kept(Arc::new(Mutex::new(Some(part)))));
        self
    }

    /// Adds bytes. Waits while the budget or the number of parts in flight does not allow more.
    ///
    /// Not cancel-safe: an upload whose `write` was dropped must not be finished.
    ///
    /// # Errors
    /// The first error of a part; the upload must then be dropped or aborted.
    pub async fn write(&mut self, mut chunk: Bytes) -> Result<()> {
        let part_bytes = self.store.part_bytes();
        while !chunk.is_empty() {
            if self.filling_bytes == part_bytes {
                self.send_part().await?;
            }
            if self.permit.is_none() {
                self.permit = Some(self.part_room().await?);
            }
            let room = usize::try_from(part_bytes - self.filling_bytes).unwrap_or(usize::MAX);
            let piece = chunk.split_to(chunk.len().min(room));
            self.filling_bytes += piece.len() as u64;
            self.bytes += piece.len() as u64;
            self.filling.push_back(piece);
        }
        Ok(())
    }

    /// Ends the upload: when this returns, the object is in the store for good.
    ///
    /// # Errors
    /// `AlreadyExists` when another object has the key; `Unknown` when the object may or may not be there, and may still appear;
    /// otherwise it is surely not there.
    pub async fn finish(mut self) -> Result<Uploaded> {
        let done = if self.multipart.is_none() { self.put_whole().await } else { self.join_parts().await };
        let etag = done?;
        if let Some(local) = &self.store.inner.local {
            local.sync_above(self.path.as_ref()).await.map_err(|error| {
                Error::with_source(
                    ErrorKind::Unknown,
                    format!("write object {}: sync its directories", self.key),
                    error,
                )
            })?;
        }
        Ok(Uploaded { bytes: self.bytes, etag })
    }

    /// Stops the upload and asks the store to forget its parts. Never touches an object.
    ///
    /// # Errors
    /// What keeps the store from answering; the parts then stay until the bucket's rules remove them.
    pub async fn abort(mut self) -> Result<()> {
        self.in_flight.shutdown().await;
        match &mut self.multipart {
            Some(multipart) => self.store.request(&self.key, "stop uploading", multipart.abort()).await,
            None => Ok(()),
        }
    }

    /// Room for the next part. Nothing of this upload waits unfinished at this point but parts in flight, which end by themselves.
    async fn part_room(&mut self) -> Result<BytePermit> {
        let part_bytes = self.store.part_bytes();
        loop {
            let Some(kept) = &self.kept else { return Ok(self.budget.acquire(part_bytes).await) };
            if let Some(permit) = kept.take().or_else(|| self.budget.try_acquire(part_bytes)) {
                return Ok(permit);
            }
            // What was kept is with a part in flight.
            self.one_part_done().await?;
        }
    }

    async fn send_part(&mut self) -> Result<()> {
        while self.in_flight.len() >= self.store.inner.options.parts_in_flight.max(1) {
            self.one_part_done().await?;
        }
        if self.multipart.is_none() {
            let begin = self.store.inner.store.put_multipart(&self.path);
            let begun = self.store.request(&self.key, "begin to upload", begin).await;
            self.multipart = Some(begun.map_err(|error| nothing_there(&self.key, error))?);
        }
        let payload = self.take_payload();
        let permit = self.permit.take();
        let Some(multipart) = &mut self.multipart else { return Ok(()) };
        let bytes = payload.content_length() as u64;
        let part = multipart.put_part(payload);
        let (store, key, kept) = (self.store.clone(), self.key.clone(), self.kept.clone());
        self.in_flight.spawn(async move {
            let done = store.request(&key, "upload a part of", part).await;
            if done.is_ok() {
                store.inner.metrics.written(bytes);
            }
            match kept {
                Some(kept) => kept.give(permit),
                None => drop(permit),
            }
            done.map_err(|error| nothing_there(&key, error))
        });
        Ok(())
    }

    async fn one_part_done(&mut self) -> Result<()> {
        match self.in_flight.join_next().await {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(error)) => {
                Err(Error::with_source(ErrorKind::Transient, format!("upload a part of object {}", self.key), error))
            }
        }
    }

    fn take_payload(&mut self) -> PutPayload {
        self.filling_bytes = 0;
        self.filling.drain(..).collect()
    }

    async fn put_whole(&mut self) -> Result<Option<String>> {
        let payload = self.take_payload();
        let mut backoff = self.store.inner.options.retry.backoff();
        for _ in 0..CONFLICTS_MAX {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let put = self.store.inner.store.put_opts(&self.path, payload.clone(), options);
            let error = match self.store.request(&self.key, "write", put).await {
                Ok(put) => {
                    self.store.inner.metrics.written(self.bytes);
                    return Ok(put.e_tag);
                }
                Err(error) => error,
            };
            // A lost answer is retried by the client, which then finds the key taken: by us.
            match self.resolve(error).await? {
                Resolved::There(etag) => {
                    self.compare(&payload).await?;
                    return Ok(etag);
                }
                // Refused because of another write to the key that came to nothing: that was our own, given up by the client.
                Resolved::Conflict => tokio::time::sleep(backoff.next_wait(&self.store.inner.rng)).await,
            }
        }
        let what = format!("write object {}: the store says each time that another write is under way", self.key);
        Err(Error::new(ErrorKind::Unknown, what))
    }

    /// Whether the object that is there is what was to be written.
    async fn compare(&mut self, payload: &PutPayload) -> Result<()> {
        if self.bytes > 0 {
            let found = self.store.get_range(&self.key, 0..self.bytes, Some(self.bytes)).await?;
            if !payload.iter().flatten().eq(found.iter()) {
                return Err(taken(&self.key));
            }
        }
        Ok(())
    }

    async fn join_parts(&mut self) -> Result<Option<String>> {
        if self.filling_bytes > 0 {
            self.send_part().await?;
        }
        while !self.in_flight.is_empty() {
            self.one_part_done().await?;
        }
        match self.store.head(&self.key).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(taken(&self.key)),
        }
        let Some(multipart) = &mut self.multipart else { return Ok(None) };
        // A directory syncs the whole file now, a bucket may copy it: both take longer the larger it is.
        let deadline =
            self.store.inner.options.request_deadline + Duration::from_millis(self.bytes / JOIN_BYTES_PER_MS);
        match self.store.request_within(deadline, &self.key, "join the parts of", multipart.complete()).await {
            Ok(put) => Ok(put.e_tag),
            Err(error) => match self.resolve(error).await? {
                Resolved::There(etag) => Ok(etag),
                Resolved::Conflict => {
                    let what = format!("write object {}: another write to its key is under way", self.key);
                    Err(Error::new(ErrorKind::Unknown, what))
                }
            },
        }
    }

    /// After a write that failed: whether it happened all the same.
    async fn resolve(&mut self, error: Error) -> Result<Resolved> {
        if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Config | ErrorKind::Invalid) {
            return Err(error);
        }
        match self.store.head(&self.key).await {
            // The key is ours alone, so an object of our size is ours. Its content is still to be proved by reading it back.
            Ok(found) if found.bytes == self.bytes => Ok(Resolved::There(found.etag)),
            Ok(_) => Err(taken(&self.key)),
            // The store was asked again after its answer was lost, and knew nothing of the upload any more; nor is the object there.
            Err(absent) if error.kind() == ErrorKind::NotFound && absent.kind() == ErrorKind::NotFound => {
                Err(nothing_there(&self.key, error))
            }
            Err(absent) if error.kind() == ErrorKind::AlreadyExists && absent.kind() == ErrorKind::NotFound => {
                Ok(Resolved::Conflict)
            }
            Err(_) => {
                let what = format!("write object {}: it may or may not be there", self.key);
                Err(Error::with_source(ErrorKind::Unknown, what, error))
            }
        }
    }
}

/// What was found after a write that failed.
enum Resolved {
    /// An object of the right size, with its tag.
    There(Option<String>),
    /// The store refused the write because of another one, and there is no object.
    Conflict,
}

/// "Not found" of a write is about what it needs: the bucket, or the upload its parts belong to.
fn nothing_there(key: &str, error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    if hint::says(&error, "NoSuchUpload") {
        let what =
            format!("write object {key}: the store has forgotten the upload; a rule of the bucket may have ended it");
        return Error::with_source(ErrorKind::Transient, what, error);
    }
    let what = format!("write object {key}: the bucket is missing; create it, or correct the URL");
    Error::with_source(ErrorKind::Config, what, error)
}

fn taken(key: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("write object {key}: another object has this key, it is not replaced"))
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upload({} {})", self.key, self.bytes)
    }
}
