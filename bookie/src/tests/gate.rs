//! A disk whose journal groups become durable when, and in the order in which, a test says so.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::disk::{AlignedBuffer, BLOCK_BYTES, DiskFile, FileFacts};
use crate::format::{GroupHead, SegmentHeader, decode_group};
use crate::{Disk, MemoryDisk};

/// A [`MemoryDisk`] behind a gate.
#[derive(Clone)]
pub(super) struct GatedDisk {
    disk: MemoryDisk,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Of each group in the order they came: its entries, once it is durable.
    durable: Vec<Option<u64>>,
    peak: usize,
}

/// A group that is at the disk and not durable.
struct Waiting {
    number: usize,
    path: PathBuf,
    offset: u64,
    content: Vec<u8>,
    told: oneshot::Sender<io::Result<()>>,
}

impl GatedDisk {
    pub(super) fn new(disk: &MemoryDisk) -> Self {
        Self { disk: disk.clone(), state: Arc::default() }
    }

    /// How many groups are at the disk.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting.len()
    }

    /// The most there ever were.
    pub(super) fn peak(&self) -> usize {
        self.state.lock().unwrap().peak
    }

    /// Entries of the groups before the first that is not durable.
    pub(super) fn settled_entries(&self) -> u64 {
        self.state.lock().unwrap().durable.iter().map_while(|entries| *entries).sum()
    }

    /// Makes one of the groups that wait durable, and tells so.
    pub(super) async fn finish(&self, at: usize) {
        let group = self.state.lock().unwrap().waiting.remove(at);
        let file = self.disk.open(&group.path).await.unwrap();
        file.write(group.offset, AlignedBuffer::copy_of(&group.content), true).await.1.unwrap();
        let entries = entries_of(&group.content);
        self.state.lock().unwrap().durable[group.number] = Some(entries);
        let _ = group.told.send(Ok(()));
    }

    /// Makes one of them fail.
    pub(super) fn fail(&self, at: usize, reason: &str) {
        let group = self.state.lock().unwrap().waiting.remove(at);
        let _ = group.told.send(Err(io::Error::other(reason.to_owned())));
    }

    /// The disk after a power cut: of what waits, the blocks that `stays` picks came to the disk all the same.
    pub(super) fn crash(&self, mut stays: impl FnMut() -> bool) -> MemoryDisk {
        let after = self.disk.crash();
        for group in &self.state.lock().unwrap().waiting {
            after.damage(&group.path, |file| {
                let start = group.offset as usize;
                let blocks = file[start..start + group.content.len()].chunks_mut(BLOCK_BYTES);
                for (block, content) in blocks.zip(group.content.chunks(BLOCK_BYTES)) {
                    if stays() {
                        block.copy_from_slice(content);
                    }
                }
            });
        }
        after
    }
}

/// Entries in a group, as it stands at the beginning of `content`.
fn entries_of(content: &[u8]) -> u64 {
    let number = |at: usize| u64::from_be_bytes(content[at..at + 8].try_into().unwrap());
    let segment = SegmentHeader { id: crate::format::SegmentId::new(number(8)), nonce: number(16) };
    let head = GroupHead::peek(content, &segment, content.len() as u64).unwrap();
    let records = decode_group(&head, &content[..head.bytes as usize]).unwrap();
    records.iter().filter(|(record, _)| record.kind.is_entry()).count() as u64
}

#[async_trait]
impl Disk for GatedDisk {
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
        Ok(Arc::new(GatedFile { inner, path: path.to_owned(), state: self.state.clone() }))
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

struct GatedFile {
    inner: Arc<dyn DiskFile>,
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[async_trait]
impl DiskFile for GatedFile {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        if !buffer.as_ref().starts_with(b"TCGR") {
            return self.inner.write(offset, buffer, sync).await;
        }
        let (told, outcome) = oneshot::channel();
        {
            let mut state = self.state.lock().unwrap();
            let (number, content) = (state.durable.len(), buffer.as_ref().to_vec());
            state.durable.push(None);
            state.waiting.push(Waiting { number, path: self.path.clone(), offset, content, told });
            state.peak = state.peak.max(state.waiting.len());
        }
        let result = outcome.await.unwrap_or_else(|_| Err(io::Error::other("the test is over")));
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
        true
    }

    async fn facts(&self) -> io::Result<FileFacts> {
        self.inner.facts().await
    }
}
