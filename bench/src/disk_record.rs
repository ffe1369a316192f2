//! A disk that notes every group of the journal that is written to it: what the raw run repeats.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use bookie::Disk;
use bookie::disk::{AlignedBuffer, DiskFile, FileFacts};
use bytes::Bytes;

use crate::timing::now;

/// What a group of the journal begins with; the other writes to a segment are its header and its index.
const GROUP_MAGIC: &[u8] = b"TCGR";

/// One group as the journal wrote it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupWrite {
    /// Which file, counted in the order they were created.
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// Whether the write was synced.
    pub(crate) sync: bool,
    /// When it was handed to the disk, and when it was durable.
    pub(crate) begun: Instant,
    pub(crate) done: Instant,
}

/// What was written so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// Groups in the order they became durable.
    pub(crate) groups: Vec<GroupWrite>,
    /// The reserved length of each file.
    pub(crate) files: Vec<u64>,
    /// Bytes of all other writes.
    pub(crate) other_bytes: u64,
}

/// A [`Disk`] with a notebook. Clones write into the same.
#[derive(Clone)]
pub(crate) struct RecordingDisk {
    disk: Arc<dyn Disk>,
    written: Arc<Mutex<Written>>,
}

impl RecordingDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, written: Arc::default() }
    }

    /// What was written so far.
    pub(crate) fn written(&self) -> Written {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Disk for RecordingDisk {
    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir).await
    }

    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        self.disk.read_file(path, bytes_max).await
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.disk.write_file(path, content).await
    }

    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.disk.create(path, bytes).await?;
        let number = {
            let mut written = self.lock();
            written.files.push(bytes);
            written.files.len() - 1
        };
        Ok(Arc::new(RecordingFile { inner, number, written: self.written.clone() }))
    }

    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(path).await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir).await
    }

    async fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.disk.free_bytes(dir).await
    }

    async fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.disk.total_bytes(dir).await
    }
}

struct RecordingFile {
    inner: Arc<dyn DiskFile>,
    number: usize,
    written: Arc<Mutex<Written>>,
}

#[async_trait]
impl DiskFile for RecordingFile {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        let (bytes, is_group) = (buffer.len(), buffer.as_ref().starts_with(GROUP_MAGIC));
        let begun = now();
        let (buffer, result) = self.inner.write(offset, buffer, sync).await;
        let done = now();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if is_group {
            written.groups.push(GroupWrite { file: self.number, offset, bytes, sync, begun, done });
        } else {
            written.other_bytes += bytes as u64;
        }
        drop(written);
        (buffer, result)
    }

    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>> {
        self.inner.read(ranges).await
    }

    async fn sync(&self) -> io::Result<()> {
        self.inner.sync().await
    }

    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_len(bytes).await
    }

    fn overlaps(&self) -> bool {
        self.inner.overlaps()
    }

    async fn facts(&self) -> io::Result<FileFacts> {
        self.inner.facts().await
    }
}
