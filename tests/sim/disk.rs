//! The bookie's disk over the simulator's file system: what is not synced when a host crashes is gone, or half gone.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bookie::Error;
use bookie::disk::{AlignedBuffer, BLOCK_BYTES, Disk, DiskFile, FileFacts};
use bookie::index::{Index, MemoryIndex, Write};
use bytes::Bytes;
use common::rng::Rng;
use turmoil::fs::shim::std::fs::{self, File, OpenOptions};

/// What a disk says that was made to fail.
pub const DISK_FAILURE: &str = "simulated disk failure";

/// Room for everything that a run writes.
const FREE_BYTES: u64 = 64 << 30;

/// How the disk treats the bookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honesty {
    /// What is said to be synced is.
    Honest,
    /// `fdatasync` of journal writes says that it is done and does nothing: for the tests of the checker itself.
    NoFileSync,
    /// The directory of the journal is said to be synced and is not, once the bookie has run: for the same.
    NoDirSync,
}

/// Takes up to three milliseconds, and rarely as long as a busy disk.
pub async fn disk_pause(rng: &Rng) {
    let micros = if rng.below(100) == 0 { rng.below(250_000) } else { rng.below(3_000) };
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

/// The file system of the host that runs. Operations take time, before they are done and before that is told. A write is made of
/// single blocks, so that a crash in the middle of it leaves some of them and not others.
#[derive(Clone)]
pub struct SimDisk {
    pub rng: Rng,
    pub honesty: Honesty,
    /// Makes every sync fail.
    pub fails: Arc<AtomicBool>,
    /// Whether the bookie has started once: what tells whose directory it is lies there.
    pub has_run: Arc<AtomicBool>,
    open: OpenFiles,
}

/// What became of a file that is open and has lost its name: its content. The simulator forgets both together.
type Orphan = Arc<OnceLock<Bytes>>;
type OpenFiles = Arc<Mutex<Vec<(PathBuf, Weak<OnceLock<Bytes>>)>>>;

impl SimDisk {
    pub fn new(rng: Rng, honesty: Honesty, fails: Arc<AtomicBool>, has_run: Arc<AtomicBool>) -> Self {
        Self { rng, honesty, fails, has_run, open: OpenFiles::default() }
    }

    fn file(&self, path: &Path, file: File) -> Arc<dyn DiskFile> {
        let orphan = Orphan::default();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, orphan)| orphan.strong_count() > 0);
        open.push((path.to_owned(), Arc::downgrade(&orphan)));
        Arc::new(SimFile { file, disk: self.clone(), orphan })
    }

    fn check(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) { Err(io::Error::other(DISK_FAILURE)) } else { Ok(()) }
    }

    fn sync_entries(&self, dir: &Path) -> io::Result<()> {
        self.check()?;
        fs::sync_dir(dir)
    }
}

#[async_trait]
impl Disk for SimDisk {
    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        disk_pause(&self.rng).await;
        fs::create_dir_all(dir)?;
        self.sync_entries(dir)?;
        dir.parent().map_or(Ok(()), |parent| self.sync_entries(parent))
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        disk_pause(&self.rng).await;
        let mut names = Vec::new();
        for item in fs::read_dir(dir)? {
            names.push(item?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        disk_pause(&self.rng).await;
        match fs::read(path) {
            Ok(content) if content.len() > bytes_max => {
                let text = format!("it has {} bytes, more than {bytes_max}", content.len());
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        disk_pause(&self.rng).await;
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let file = File::create(&temporary)?;
        file.write_all_at(content, 0)?;
        self.check()?;
        file.sync_all()?;
        disk_pause(&self.rng).await;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |parent| self.sync_entries(parent))?;
        disk_pause(&self.rng).await;
        Ok(())
    }

    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        disk_pause(&self.rng).await;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        file.set_len(bytes)?;
        self.check()?;
        file.sync_all()?;
        Ok(self.file(path, file))
    }

    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        disk_pause(&self.rng).await;
        Ok(self.file(path, OpenOptions::new().read(true).write(true).open(path)?))
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        disk_pause(&self.rng).await;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, orphan) in open.extract_if(.., |(name, _)| name == path) {
            if let Some(orphan) = orphan.upgrade() {
                let _ = orphan.set(fs::read(path)?.into());
            }
        }
        fs::remove_file(path)
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        disk_pause(&self.rng).await;
        let lies = self.honesty == Honesty::NoDirSync && self.has_run.load(Ordering::Relaxed);
        if lies && dir.ends_with("journal") {
            self.check()?
        } else {
            self.sync_entries(dir)?
        }
        disk_pause(&self.rng).await;
        Ok(())
    }

    async fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(FREE_BYTES)
    }

    async fn total_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(FREE_BYTES)
    }
}

struct SimFile {
    file: File,
    disk: SimDisk,
    orphan: Orphan,
}

impl SimFile {
    async fn write_blocks(&self, offset: u64, content: &[u8], sync: bool) -> io::Result<()> {
        let mut blocks: Vec<(u64, &[u8])> = (offset..).step_by(BLOCK_BYTES).zip(content.chunks(BLOCK_BYTES)).collect();
        for place in (1..blocks.len()).rev() {
            blocks.swap(place, usize::try_from(self.disk.rng.below(place as u64 + 1)).map_err(io::Error::other)?);
        }
        for (at, block) in blocks {
            self.file.write_all_at(block, at)?;
        }
        if !sync {
            return Ok(());
        }
        disk_pause(&self.disk.rng).await;
        self.disk.check()?;
        // The first block is written with its file's making; what is tested is the sync of groups.
        if self.disk.honesty == Honesty::NoFileSync && offset > 0 { Ok(()) } else { self.file.sync_data() }
    }

    fn read_range(&self, range: &Range<u64>) -> io::Result<Bytes> {
        if let Some(content) = self.orphan.get() {
            let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
            let inside = range.filter(|(start, end)| start <= end && *end <= content.len());
            return inside.map(|(start, end)| content.slice(start..end)).ok_or(io::ErrorKind::UnexpectedEof.into());
        }
        let bytes = usize::try_from(range.end.saturating_sub(range.start)).map_err(io::Error::other)?;
        let mut content = vec![0; bytes];
        self.file.read_exact_at(&mut content, range.start)?;
        Ok(content.into())
    }
}

#[async_trait]
impl DiskFile for SimFile {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        disk_pause(&self.disk.rng).await;
        let written = self.write_blocks(offset, buffer.as_ref(), sync).await;
        // Durable, but nobody knows yet.
        disk_pause(&self.disk.rng).await;
        (buffer, written)
    }

    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>> {
        disk_pause(&self.disk.rng).await;
        ranges.iter().map(|range| self.read_range(range)).collect()
    }

    async fn sync(&self) -> io::Result<()> {
        disk_pause(&self.disk.rng).await;
        self.disk.check()?;
        if self.disk.honesty == Honesty::NoFileSync { Ok(()) } else { self.file.sync_data() }
    }

    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        disk_pause(&self.disk.rng).await;
        self.disk.check()?;
        self.file.set_len(bytes)?;
        self.file.sync_all()?;
        disk_pause(&self.disk.rng).await;
        Ok(())
    }

    fn overlaps(&self) -> bool {
        true
    }

    async fn facts(&self) -> io::Result<FileFacts> {
        let bytes = self.file.metadata()?.len();
        Ok(FileFacts { bytes, allocated_bytes: bytes })
    }
}

/// A [`MemoryIndex`] whose operations take time; a crash comes before or after a batch, never within.
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

#[test]
fn the_simulated_disk_conforms() {
    let mut simulation = turmoil::Builder::new().rng_seed(1).build();
    simulation.client("disk", async {
        let disk = SimDisk::new(Rng::seeded(1), Honesty::Honest, Arc::default(), Arc::default());
        bookie::disk::suite::run(&disk, Path::new("/suite")).await;
        Ok(())
    });
    simulation.run().unwrap();
}
