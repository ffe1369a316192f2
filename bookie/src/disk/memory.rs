use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;

use super::{AlignedBuffer, Disk, DiskFile, FileFacts};

/// What a disk writes whole.
const SECTOR_BYTES: usize = 512;

/// A disk in memory that forgets at [`MemoryDisk::crash`] what was not synced, directory entries included, and fails on demand.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    shared: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    dirs: BTreeSet<PathBuf>,
    /// What a running process sees.
    files: BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    /// Directory entries a power cut would leave.
    durable: BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    capacity_bytes: Option<u64>,
    faults: Faults,
    reads: Arc<Reads>,
}

/// Bytes that reads gave out and that somebody still holds.
#[derive(Default)]
struct Reads {
    held: AtomicU64,
    peak: AtomicU64,
}

/// What one range of a read gave out.
struct ReadBuffer {
    bytes: Vec<u8>,
    reads: Arc<Reads>,
}

impl ReadBuffer {
    fn new(bytes: &[u8], reads: &Arc<Reads>) -> Self {
        let held = reads.held.fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64;
        reads.peak.fetch_max(held, Ordering::Relaxed);
        Self { bytes: bytes.to_vec(), reads: reads.clone() }
    }
}

impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        self.reads.held.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Faults {
    sync: Option<String>,
    write: Option<String>,
    read: Option<String>,
}

#[derive(Default)]
struct Content {
    current: Vec<u8>,
    durable: Vec<u8>,
    dirty: Vec<Range<usize>>,
}

impl Content {
    fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for range in std::mem::take(&mut self.dirty) {
            let range = range.start.min(self.current.len())..range.end.min(self.current.len());
            self.durable[range.clone()].copy_from_slice(&self.current[range]);
        }
    }

    fn sync_range(&mut self, range: Range<usize>) {
        let bytes = self.durable.len().max(range.end);
        self.durable.resize(bytes, 0);
        self.durable[range.clone()].copy_from_slice(&self.current[range.clone()]);
        self.dirty.retain(|dirty| *dirty != range);
    }

    /// What a power cut leaves, where `stays` says for each sector that was not synced whether it came to the disk all the same.
    fn after_power_cut(&self, stays: &mut impl FnMut() -> bool) -> Self {
        let mut left = self.durable.clone();
        for range in &self.dirty {
            let end = range.end.min(self.current.len());
            for start in (range.start..end).step_by(SECTOR_BYTES) {
                if stays() {
                    let sector = start..(start + SECTOR_BYTES).min(end);
                    left.resize(left.len().max(sector.end), 0);
                    left[sector.clone()].copy_from_slice(&self.current[sector]);
                }
            }
        }
        Self { current: left.clone(), durable: left, dirty: Vec::new() }
    }
}

impl MemoryDisk {
    /// An empty disk without a limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits what all files together may occupy, in bytes; `None` lifts the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        lock(&self.shared).capacity_bytes = bytes;
    }

    /// Makes every sync fail with this text, or work again.
    pub fn fail_syncs(&self, reason: Option<&str>) {
        lock(&self.shared).faults.sync = reason.map(str::to_owned);
    }

    /// Makes every write of file content fail with this text, or work again.
    pub fn fail_writes(&self, reason: Option<&str>) {
        lock(&self.shared).faults.write = reason.map(str::to_owned);
    }

    /// Makes every read of file content fail with this text, or work again.
    pub fn fail_reads(&self, reason: Option<&str>) {
        lock(&self.shared).faults.read = reason.map(str::to_owned);
    }

    /// The most bytes that reads of file content gave out and that were held at one time, whole buffers where only a part is
    /// in use.
    pub fn read_bytes_peak(&self) -> u64 {
        lock(&self.shared).reads.peak.load(Ordering::Relaxed)
    }

    /// A copy of the disk as a power cut at this moment would leave it.
    #[must_use]
    pub fn crash(&self) -> Self {
        self.crash_keeping(|| false)
    }

    /// As [`MemoryDisk::crash`], where `stays` is asked of each sector and each change of a directory that was not synced whether it came
    /// to the disk all the same.
    #[must_use]
    pub fn crash_keeping(&self, mut stays: impl FnMut() -> bool) -> Self {
        let state = lock(&self.shared);
        let mut survivors = BTreeMap::new();
        let paths: BTreeSet<&PathBuf> = state.durable.keys().chain(state.files.keys()).collect();
        for path in paths {
            let content = match (state.durable.get(path), state.files.get(path)) {
                (Some(_), Some(content)) => content,
                // Removed, or created.
                (Some(content), None) if !stays() => content,
                (None, Some(content)) if stays() => content,
                _ => continue,
            };
            let left = lock(content).after_power_cut(&mut stays);
            survivors.insert(path.clone(), Arc::new(Mutex::new(left)));
        }
        let state = State {
            dirs: state.dirs.clone(),
            files: survivors.clone(),
            durable: survivors,
            capacity_bytes: state.capacity_bytes,
            faults: Faults::default(),
            reads: Arc::default(),
        };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// Changes the stored bytes of a file behind the back of its users.
    ///
    /// # Panics
    /// When the file does not exist.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let state = lock(&self.shared);
        let mut content = lock(state.files.get(path).expect("the file to damage exists"));
        change(&mut content.current);
        content.durable = content.current.clone();
        content.dirty.clear();
    }

    /// The files there are, with their present content.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let state = lock(&self.shared);
        state.files.iter().map(|(path, content)| (path.clone(), lock(content).current.clone())).collect()
    }

    fn handle(&self, content: &Arc<Mutex<Content>>) -> Arc<dyn DiskFile> {
        Arc::new(Handle { disk: self.shared.clone(), content: content.clone() })
    }
}

impl State {
    fn used_bytes(&self) -> u64 {
        self.files.values().map(|content| lock(content).current.len() as u64).sum()
    }

    fn check_sync(&self) -> io::Result<()> {
        self.faults.sync.as_ref().map_or(Ok(()), |reason| Err(io::Error::other(reason.clone())))
    }
}

#[async_trait]
impl Disk for MemoryDisk {
    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = lock(&self.shared);
        for part in dir.ancestors().filter(|part| !part.as_os_str().is_empty()) {
            state.dirs.insert(part.to_path_buf());
        }
        Ok(())
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = lock(&self.shared);
        if !state.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let names: BTreeSet<String> = state
            .files
            .keys()
            .chain(&state.dirs)
            .filter(|path| path.parent() == Some(dir))
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        Ok(names.into_iter().collect())
    }

    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        let state = lock(&self.shared);
        match state.files.get(path).map(|content| lock(content).current.clone()) {
            Some(content) if content.len() > bytes_max => Err(io::ErrorKind::InvalidData.into()),
            other => Ok(other),
        }
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut state = lock(&self.shared);
        state.check_sync()?;
        let content = Content { current: content.to_vec(), durable: content.to_vec(), dirty: Vec::new() };
        let content = Arc::new(Mutex::new(content));
        state.files.insert(path.to_path_buf(), content.clone());
        state.durable.insert(path.to_path_buf(), content);
        Ok(())
    }

    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = lock(&self.shared);
        if state.files.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state.capacity_bytes.is_some_and(|capacity| state.used_bytes().saturating_add(bytes) > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let zeros = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        let content = Content { current: zeros.clone(), durable: zeros, dirty: Vec::new() };
        let content = Arc::new(Mutex::new(content));
        state.files.insert(path.to_path_buf(), content.clone());
        Ok(self.handle(&content))
    }

    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = lock(&self.shared);
        state.files.get(path).map(|content| self.handle(content)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        lock(&self.shared).files.remove(path).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = lock(&self.shared);
        state.check_sync()?;
        let State { files, durable, .. } = &mut *state;
        durable.retain(|path, _| path.parent() != Some(dir) || files.contains_key(path));
        for (path, content) in files.iter().filter(|(path, _)| path.parent() == Some(dir)) {
            durable.insert(path.clone(), content.clone());
        }
        Ok(())
    }

    async fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let state = lock(&self.shared);
        Ok(state.capacity_bytes.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used_bytes())))
    }

    async fn total_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(lock(&self.shared).capacity_bytes.unwrap_or(u64::MAX))
    }
}

struct Handle {
    disk: Arc<Mutex<State>>,
    content: Arc<Mutex<Content>>,
}

#[async_trait]
impl DiskFile for Handle {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        let result = (|| {
            let state = lock(&self.disk);
            if let Some(reason) = &state.faults.write {
                return Err(io::Error::other(reason.clone()));
            }
            let mut content = lock(&self.content);
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let end = start + buffer.len();
            if content.current.len() < end {
                content.current.resize(end, 0);
            }
            content.current[start..end].copy_from_slice(buffer.as_ref());
            content.dirty.push(start..end);
            if sync {
                state.check_sync()?;
                // Of other writes it says nothing.
                content.sync_range(start..end);
            }
            Ok(())
        })();
        (buffer, result)
    }

    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>> {
        let (fault, reads) = {
            let state = lock(&self.disk);
            (state.faults.read.clone(), state.reads.clone())
        };
        let content = lock(&self.content);
        ranges
            .into_iter()
            .map(|range| {
                if let Some(reason) = &fault {
                    return Err(io::Error::other(reason.clone()));
                }
                let (start, end) = (range.start as usize, range.end as usize);
                let part = content.current.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
                Ok(Bytes::from_owner(ReadBuffer::new(part, &reads)))
            })
            .collect()
    }

    async fn sync(&self) -> io::Result<()> {
        lock(&self.disk).check_sync()?;
        lock(&self.content).sync();
        Ok(())
    }

    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        lock(&self.disk).check_sync()?;
        let mut content = lock(&self.content);
        content.current.resize(usize::try_from(bytes).map_err(io::Error::other)?, 0);
        content.sync();
        Ok(())
    }

    fn overlaps(&self) -> bool {
        true
    }

    async fn facts(&self) -> io::Result<FileFacts> {
        let bytes = lock(&self.content).current.len() as u64;
        Ok(FileFacts { bytes, allocated_bytes: bytes })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::read_one;
    use super::*;

    #[tokio::test]
    async fn conforms() {
        super::super::suite::run(&MemoryDisk::new(), Path::new("/bookie/a")).await;
    }

    #[tokio::test]
    async fn a_crash_forgets_what_was_not_synced() {
        let (disk, dir) = (MemoryDisk::new(), Path::new("/d"));
        disk.create_dir(dir).await.unwrap();
        let file = disk.create(&dir.join("kept"), 8192).await.unwrap();
        disk.sync_dir(dir).await.unwrap();
        disk.create(&dir.join("lost"), 1).await.unwrap();
        file.write(0, AlignedBuffer::copy_of(&[1]), true).await.1.unwrap();
        file.write(4096, AlignedBuffer::copy_of(&[2]), false).await.1.unwrap();
        let after = disk.crash();
        assert_eq!(after.list(dir).await.unwrap(), ["kept"]);
        let file = after.open(&dir.join("kept")).await.unwrap();
        assert_eq!(read_one(&*file, 0..1).await.unwrap()[..], [1]);
        assert_eq!(read_one(&*file, 4096..4097).await.unwrap()[..], [0]);
        file.write(4096, AlignedBuffer::copy_of(&[2]), false).await.1.unwrap();
        file.sync().await.unwrap();
        let file = after.crash().open(&dir.join("kept")).await.unwrap();
        assert_eq!(read_one(&*file, 4096..4097).await.unwrap()[..], [2], "a sync covers what was written before");
    }
}
