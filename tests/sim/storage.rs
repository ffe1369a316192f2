//! A disk and an index that take time, and a disk that is caught half-way by a power cut.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bookie::disk::{AlignedBuffer, BLOCK_BYTES, Disk, DiskFile, FileFacts};
use bookie::index::{Index, MemoryIndex, Write};
use bookie::{Error, MemoryDisk};
use bytes::Bytes;
use common::rng::Rng;

/// Takes up to three milliseconds, and rarely as long as a busy disk.
pub async fn disk_pause(rng: &Rng) {
    let micros = if rng.below(100) == 0 { rng.below(250_000) } else { rng.below(3_000) };
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

/// How the disk treats the bookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honesty {
    /// What is said to be synced is.
    Honest,
    /// Journal groups are said to be synced and are not: for the tests of the checker itself.
    Lies,
}

/// A [`MemoryDisk`] whose operations take time. A synced write reaches the platter block by block, in any order, so that a
/// power cut in the middle of it leaves some blocks of it and not others.
pub struct SimDisk {
    pub inner: MemoryDisk,
    pub rng: Rng,
    pub honesty: Honesty,
}

impl SimDisk {
    fn file(&self, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { inner, rng: self.rng.clone(), honesty: self.honesty })
    }
}

#[async_trait]
impl Disk for SimDisk {
    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        disk_pause(&self.rng).await;
        self.inner.create_dir(dir).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        disk_pause(&self.rng).await;
        self.inner.list(dir).await
    }

    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        disk_pause(&self.rng).await;
        self.inner.read_file(path, bytes_max).await
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        disk_pause(&self.rng).await;
        self.inner.write_file(path, content).await?;
        disk_pause(&self.rng).await;
        Ok(())
    }

    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        disk_pause(&self.rng).await;
        Ok(self.file(self.inner.create(path, bytes).await?))
    }

    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        disk_pause(&self.rng).await;
        Ok(self.file(self.inner.open(path).await?))
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        disk_pause(&self.rng).await;
        self.inner.remove(path).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        disk_pause(&self.rng).await;
        self.inner.sync_dir(dir).await?;
        disk_pause(&self.rng).await;
        Ok(())
    }

    async fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.inner.free_bytes(dir).await
    }
}

struct SimFile {
    inner: Arc<dyn DiskFile>,
    rng: Rng,
    honesty: Honesty,
}

impl SimFile {
    /// Makes some blocks of a write durable, in an order of chance.
    async fn write_in_part(&self, offset: u64, content: &[u8]) -> io::Result<()> {
        let blocks = content.len() / BLOCK_BYTES;
        for _ in 0..self.rng.below(blocks as u64 + 1) {
            let at = usize::try_from(self.rng.below(blocks as u64)).map_err(io::Error::other)? * BLOCK_BYTES;
            let block = AlignedBuffer::copy_of(&content[at..at + BLOCK_BYTES]);
            self.inner.write(offset + at as u64, block, true).await.1?;
        }
        Ok(())
    }
}

#[async_trait]
impl DiskFile for SimFile {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        let lies = self.honesty == Honesty::Lies && offset > 0;
        if sync
            && !lies
            && let Err(error) = self.write_in_part(offset, buffer.as_ref()).await
        {
            return (buffer, Err(error));
        }
        disk_pause(&self.rng).await;
        let written = self.inner.write(offset, buffer, sync && !lies).await;
        // Durable, but nobody knows yet.
        disk_pause(&self.rng).await;
        written
    }

    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>> {
        disk_pause(&self.rng).await;
        self.inner.read(ranges).await
    }

    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        disk_pause(&self.rng).await;
        self.inner.set_len(bytes).await?;
        disk_pause(&self.rng).await;
        Ok(())
    }

    async fn facts(&self) -> io::Result<FileFacts> {
        self.inner.facts().await
    }
}

/// A [`MemoryIndex`] whose operations take time; a power cut comes before or after a batch, never within.
pub struct SimIndex {
    pub inner: MemoryIndex,
    pub rng: Rng,
}

#[async_trait]
impl Index for SimIndex {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        disk_pause(&self.rng).await;
        self.inner.get(key).await
    }

    async fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        disk_pause(&self.rng).await;
        self.inner.scan(prefix, after, limit).await
    }

    async fn write(&self, batch: Vec<Write>) -> Result<(), Error> {
        disk_pause(&self.rng).await;
        self.inner.write(batch).await?;
        disk_pause(&self.rng).await;
        Ok(())
    }
}
