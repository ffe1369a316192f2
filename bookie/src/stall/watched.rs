use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{StallCause, Stalls};
use crate::disk::{AlignedBuffer, Disk, DiskFile, FileFacts};
use crate::error::Error;
use crate::index::{Index, Write};

/// A disk whose operations are noted.
pub(crate) struct WatchedDisk {
    inner: Arc<dyn Disk>,
    stalls: Stalls,
}

impl WatchedDisk {
    pub(crate) fn wrap(inner: Arc<dyn Disk>, stalls: &Stalls) -> Arc<dyn Disk> {
        Arc::new(Self { inner, stalls: stalls.clone() })
    }

    fn file(&self, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(WatchedFile { inner, stalls: self.stalls.clone() })
    }
}

#[async_trait]
impl Disk for WatchedDisk {
    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.stalls.watch(StallCause::Journal, self.inner.create_dir(dir)).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.stalls.watch(StallCause::Read, self.inner.list(dir)).await
    }

    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        self.stalls.watch(StallCause::Read, self.inner.read_file(path, bytes_max)).await
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.stalls.watch(StallCause::Journal, self.inner.write_file(path, content)).await
    }

    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.stalls.watch(StallCause::Journal, self.inner.create(path, bytes)).await.map(|file| self.file(file))
    }

    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.stalls.watch(StallCause::Read, self.inner.open(path)).await.map(|file| self.file(file))
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.stalls.watch(StallCause::Journal, self.inner.remove(path)).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.stalls.watch(StallCause::Journal, self.inner.sync_dir(dir)).await
    }

    async fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.stalls.watch(StallCause::Read, self.inner.free_bytes(dir)).await
    }

    async fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.stalls.watch(StallCause::Read, self.inner.total_bytes(dir)).await
    }
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    stalls: Stalls,
}

#[async_trait]
impl DiskFile for WatchedFile {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        let _noted = self.stalls.begin(StallCause::Journal);
        let (buffer, written) = self.inner.write(offset, buffer, sync).await;
        self.stalls.note(StallCause::Journal, &written);
        (buffer, written)
    }

    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>> {
        let _noted = self.stalls.begin(StallCause::Read);
        let answers = self.inner.read(ranges).await;
        answers.iter().for_each(|answer| self.stalls.note(StallCause::Read, answer));
        answers
    }

    async fn sync(&self) -> io::Result<()> {
        self.stalls.watch(StallCause::Journal, self.inner.sync()).await
    }

    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.stalls.watch(StallCause::Journal, self.inner.set_len(bytes)).await
    }

    fn overlaps(&self) -> bool {
        self.inner.overlaps()
    }

    async fn facts(&self) -> io::Result<FileFacts> {
        self.stalls.watch(StallCause::Read, self.inner.facts()).await
    }
}

/// An index whose operations are noted.
pub(crate) struct WatchedIndex {
    inner: Arc<dyn Index>,
    stalls: Stalls,
}

impl WatchedIndex {
    pub(crate) fn wrap(inner: Arc<dyn Index>, stalls: &Stalls) -> Arc<dyn Index> {
        Arc::new(Self { inner, stalls: stalls.clone() })
    }
}

#[async_trait]
impl Index for WatchedIndex {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let _noted = self.stalls.begin(StallCause::Index);
        let answer = self.inner.get(key).await;
        if answer.as_ref().is_err_and(|error| !error.is_index_full()) {
            self.stalls.failed(StallCause::Index);
        }
        answer
    }

    async fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let _noted = self.stalls.begin(StallCause::Index);
        let answer = self.inner.scan(prefix, after, limit).await;
        if answer.as_ref().is_err_and(|error| !error.is_index_full()) {
            self.stalls.failed(StallCause::Index);
        }
        answer
    }

    async fn write(&self, batch: Vec<Write>) -> Result<(), Error> {
        let _noted = self.stalls.begin(StallCause::Index);
        let answer = self.inner.write(batch).await;
        if answer.as_ref().is_err_and(|error| !error.is_index_full()) {
            self.stalls.failed(StallCause::Index);
        }
        answer
    }
}
