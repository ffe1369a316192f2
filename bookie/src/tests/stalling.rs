//! An index and a disk that a test holds up.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::shutdown::TaskTree;
use tokio::sync::watch;

use super::support::*;
use crate::disk::{AlignedBuffer, DiskFile, FileFacts};
use crate::index::{Index, MemoryIndex, Write};
use crate::{Bookie, Disk, Error, MemoryDisk};

/// Holds up what passes while it is closed.
#[derive(Clone)]
pub(super) struct Gate(Arc<GateState>);

struct GateState {
    closed: watch::Sender<bool>,
    waiting: AtomicUsize,
    peak: AtomicUsize,
}

impl Gate {
    fn new() -> Self {
        let closed = watch::Sender::new(false);
        Self(Arc::new(GateState { closed, waiting: AtomicUsize::new(0), peak: AtomicUsize::new(0) }))
    }

    pub(super) fn close(&self) {
        self.0.closed.send_replace(true);
    }

    pub(super) fn open(&self) {
        self.0.closed.send_replace(false);
    }

    /// The most that ever waited at one time.
    pub(super) fn peak(&self) -> usize {
        self.0.peak.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        let waiting = self.0.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        if *self.0.closed.borrow() {
            self.0.peak.fetch_max(waiting, Ordering::SeqCst);
        }
        let _ = self.0.closed.subscribe().wait_for(|closed| !closed).await;
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An index that stalls for all ledgers, or for ledger 1.
struct StallingIndex {
    inner: MemoryIndex,
    all: Gate,
    first: Gate,
}

impl StallingIndex {
    async fn pass(&self, key: &[u8]) {
        if key.get(1..9) == Some(&1_u64.to_be_bytes()) {
            self.first.pass().await;
        }
        self.all.pass().await;
    }
}

#[async_trait]
impl Index for StallingIndex {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.pass(key).await;
        self.inner.get(key).await
    }

    async fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.pass(prefix).await;
        self.inner.scan(prefix, after, limit).await
    }

    async fn write(&self, batch: Vec<Write>) -> Result<(), Error> {
        self.all.pass().await;
        self.inner.write(batch).await
    }
}

/// A disk that stalls for reads, or for writes, or takes its time for these.
#[derive(Clone)]
struct StallingDisk {
    inner: MemoryDisk,
    reads: Gate,
    writes: Gate,
    write_time: Duration,
}

struct StallingFile {
    inner: Arc<dyn DiskFile>,
    disk: StallingDisk,
}

impl StallingDisk {
    fn file(&self, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(StallingFile { inner, disk: self.clone() })
    }
}

#[async_trait]
impl Disk for StallingDisk {
    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir(dir).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir).await
    }

    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        self.inner.read_file(path, bytes_max).await
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.inner.write_file(path, content).await
    }

    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.create(path, bytes).await.map(|file| self.file(file))
    }

    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.open(path).await.map(|file| self.file(file))
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir).await
    }

    async fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.inner.free_bytes(dir).await
    }

    async fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.reads.pass().await;
        self.inner.total_bytes(dir).await
    }
}

#[async_trait]
impl DiskFile for StallingFile {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        self.disk.writes.pass().await;
        tokio::time::sleep(self.disk.write_time).await;
        self.inner.write(offset, buffer, sync).await
    }

    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>> {
        self.disk.reads.pass().await;
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

/// What can be held up.
pub(super) struct Gates {
    /// The index for ledger 1.
    pub(super) first: Gate,
    pub(super) index: Gate,
    pub(super) reads: Gate,
    pub(super) writes: Gate,
}

/// Starts a bookie whose index and disk can be held up, and whose writes take so long.
pub(super) async fn start(world: &World, write_time: Duration) -> (Running, Gates) {
    let gates = Gates { first: Gate::new(), index: Gate::new(), reads: Gate::new(), writes: Gate::new() };
    let index = StallingIndex { inner: world.index.clone(), all: gates.index.clone(), first: gates.first.clone() };
    let (reads, writes) = (gates.reads.clone(), gates.writes.clone());
    let disk = StallingDisk { inner: world.disk.clone(), reads, writes, write_time };
    let tasks = TaskTree::root("test");
    let parts = crate::BookieParts { disk: Arc::new(disk), ..world.parts(&tasks) };
    let bookie = Bookie::start_with_index(world.config.clone(), parts, Arc::new(index)).await.unwrap();
    (Running::of(bookie, tasks, world), gates)
}
