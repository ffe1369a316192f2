use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use common::blocking::run_blocking;
use rustix::fs::{FallocateFlags, OFlags};

use super::{AlignedBuffer, BLOCK_BYTES, Disk, DiskFile, FileFacts};

/// Real files. Writes go around the page cache (`O_DIRECT`) where the file system allows it, which is several times faster for
/// preallocated files on cloud volumes; else through it, with the same promises.
#[derive(Clone, Debug)]
pub struct LocalDisk {
    direct: bool,
}

impl LocalDisk {
    /// Finds out by a probe file whether direct writes work in `dir`, which is created when missing. The probe file is removed.
    ///
    /// # Errors
    /// When the directory cannot be created or written.
    pub async fn open(dir: &Path) -> io::Result<Self> {
        let dir = dir.to_path_buf();
        blocking(move || {
            fs::create_dir_all(&dir)?;
            Ok(Self { direct: probe_direct(&dir)? })
        })
        .await
    }

    /// A disk that always writes through the page cache.
    pub fn buffered() -> Self {
        Self { direct: false }
    }

    /// Whether writes go around the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

#[async_trait]
impl Disk for LocalDisk {
    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = dir.to_path_buf();
        blocking(move || {
            fs::create_dir_all(&dir)?;
            sync_dir(&dir)?;
            dir.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_dir)
        })
        .await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let dir = dir.to_path_buf();
        blocking(move || {
            let mut names = Vec::new();
            for item in fs::read_dir(&dir)? {
                names.push(item?.file_name().to_string_lossy().into_owned());
            }
            names.sort_unstable();
            Ok(names)
        })
        .await
    }

    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        let path = path.to_path_buf();
        blocking(move || {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let bytes = file.metadata()?.len();
            if bytes > bytes_max as u64 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("it has {bytes} bytes, more than {bytes_max}"),
                ));
            }
            let mut content = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
            file.read_exact_at(&mut content, 0)?;
            Ok(Some(content))
        })
        .await
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let (path, content) = (path.to_path_buf(), content.to_vec());
        blocking(move || {
            let mut temporary = path.clone().into_os_string();
            temporary.push(".tmp");
            let temporary = PathBuf::from(temporary);
            let file = File::create(&temporary)?;
            file.write_all_at(&content, 0)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            path.parent().map_or(Ok(()), sync_dir)
        })
        .await
    }

    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let (path, direct) = (path.to_path_buf(), self.direct);
        blocking(move || {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            let reserved = match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes),
                other => other.map_err(io::Error::from),
            };
            // The new length is metadata that `fdatasync` of later writes would have to flush anyway: once, here.
            if let Err(error) = reserved.and_then(|()| file.sync_all()) {
                // Our own empty file of this very call: nothing else can know it.
                let _ = fs::remove_file(&path);
                return Err(error);
            }
            // Read-ahead would cache blocks that are not written yet.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
            let direct = if direct { Some(open_direct(&path)?) } else { None };
            Ok(LocalFile::shared(file, direct))
        })
        .await
    }

    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let path = path.to_path_buf();
        blocking(move || {
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            Ok(LocalFile::shared(file, None))
        })
        .await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_path_buf();
        blocking(move || fs::remove_file(path)).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = dir.to_path_buf();
        blocking(move || sync_dir(&dir)).await
    }

    async fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let dir = dir.to_path_buf();
        blocking(move || {
            let facts = rustix::fs::statvfs(&dir)?;
            Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
        })
        .await
    }

    async fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        let dir = dir.to_path_buf();
        blocking(move || {
            let facts = rustix::fs::statvfs(&dir)?;
            Ok(facts.f_blocks.saturating_mul(facts.f_frsize))
        })
        .await
    }
}

struct LocalFile {
    file: File,
    direct: Option<File>,
    /// Set once when the file system refuses a direct write after all.
    direct_refused: AtomicBool,
    /// Taken for a write through the page cache and its sync; set when one failed. The kernel tells such a failure once, to
    /// whoever syncs first, and takes the pages for clean then.
    cache_failed: Mutex<bool>,
}

impl LocalFile {
    fn shared(file: File, direct: Option<File>) -> Arc<dyn DiskFile> {
        Arc::new(Handle(Arc::new(Self {
            file,
            direct,
            direct_refused: AtomicBool::new(false),
            cache_failed: Mutex::new(false),
        })))
    }

    fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.direct_refused.load(Ordering::Relaxed)
    }

    fn write(&self, offset: u64, content: &[u8], sync: bool) -> io::Result<()> {
        if let Some(direct) = self.direct.as_ref().filter(|_| self.is_direct()) {
            match direct.write_all_at(content, offset) {
                // Refused for its form, so surely not done: the page cache takes it.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                    self.direct_refused.store(true, Ordering::Relaxed);
                }
                Ok(()) if sync => return self.file.sync_data(),
                other => return other,
            }
        }
        self.write_cached(offset, content, sync)
    }

    fn write_cached(&self, offset: u64, content: &[u8], sync: bool) -> io::Result<()> {
        self.through_cache(|file| {
            file.write_all_at(content, offset)?;
            if sync { file.sync_data() } else { Ok(()) }
        })
    }

    /// Whatever goes through the page cache: the kernel tells of a page that it could not write once, to whoever syncs first, so after a
    /// failure no sync of this file may succeed.
    fn through_cache(&self, work: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let mut failed = self.cache_failed.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(io::Error::other("an earlier write of this file failed"));
        }
        let done = work(&self.file);
        *failed = done.is_err();
        done
    }

    fn read(&self, range: &Range<u64>) -> io::Result<Bytes> {
        let bytes = usize::try_from(range.end.saturating_sub(range.start)).map_err(io::Error::other)?;
        let mut content = vec![0; bytes];
        self.file.read_exact_at(&mut content, range.start)?;
        Ok(Bytes::from(content))
    }
}

struct Handle(Arc<LocalFile>);

#[async_trait]
impl DiskFile for Handle {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        let file = self.0.clone();
        run_blocking("disk-write", move || {
            let result = file.write(offset, buffer.as_ref(), sync);
            (buffer, result)
        })
        .await
    }

    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>> {
        let file = self.0.clone();
        run_blocking("disk-read", move || ranges.iter().map(|range| file.read(range)).collect()).await
    }

    async fn sync(&self) -> io::Result<()> {
        let file = self.0.clone();
        blocking(move || file.through_cache(File::sync_all)).await
    }

    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        let file = self.0.clone();
        blocking(move || {
            file.through_cache(|file| {
                file.set_len(bytes)?;
                file.sync_all()
            })
        })
        .await
    }

    fn overlaps(&self) -> bool {
        self.0.is_direct()
    }

    async fn facts(&self) -> io::Result<FileFacts> {
        let file = self.0.clone();
        blocking(move || {
            let facts = file.file.metadata()?;
            Ok(FileFacts { bytes: facts.len(), allocated_bytes: facts.blocks().saturating_mul(512) })
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    run_blocking("disk", work).await
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn open_direct(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    OpenOptions::new().write(true).custom_flags(flags).open(path)
}

fn probe_direct(dir: &Path) -> io::Result<bool> {
    let path = dir.join(format!(".probe-{}", std::process::id()));
    match File::create(&path) {
        Ok(_) => {}
        // What is stored is served all the same, and the page cache takes every write.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!(dir = %dir.display(), "no space to find out whether direct writes work: the page cache is used until the next start");
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    let direct = open_direct(&path).and_then(|file| file.write_all_at(AlignedBuffer::zeroed(BLOCK_BYTES).as_ref(), 0));
    fs::remove_file(&path)?;
    Ok(match direct {
        Ok(()) => true,
        // It took the form of the write, and had no space for it.
        Err(error) => error.kind() == io::ErrorKind::StorageFull,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conforms_direct_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let disk = LocalDisk::open(dir.path()).await.unwrap();
        super::super::suite::run(&disk, &dir.path().join("a")).await;
        super::super::suite::run(&LocalDisk::buffered(), &dir.path().join("b")).await;
        assert_eq!(disk.list(dir.path()).await.unwrap(), ["a", "b"], "the probe file is gone");
    }
}
