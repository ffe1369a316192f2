//! The bookie's only way to files.
//!
//! [`Disk`] names files and directories, [`DiskFile`] reads and writes one. [`LocalDisk`] is real; [`MemoryDisk`] keeps what a
//! disk would keep after a power cut and injects faults, for tests.

mod aligned;
mod faulty;
mod local;
mod memory;
pub mod suite;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use aligned::{AlignedBuffer, BLOCK_BYTES};
pub use faulty::{DiskFault, FaultyDisk};
pub use local::LocalDisk;
pub use memory::MemoryDisk;

/// Size of a file as it is seen and as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes of the device that the file occupies.
    pub allocated_bytes: u64,
}

/// Directories and whole files.
///
/// Implementations MUST do blocking work on threads of their own, and MUST NOT report success of a `synced` operation before a
/// power cut cannot undo it. Methods are not cancel-safe: a dropped future may or may not have done its work.
#[async_trait]
pub trait Disk: Send + Sync + 'static {
    /// Creates a directory and its parents, and syncs the directory that holds it. It may exist already.
    async fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Names of the files and directories in `dir`, sorted. A directory that does not exist is an error.
    async fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// The content of a small file; `None` when it does not exist; an error when it is longer than `bytes_max`.
    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a small file so that after a power cut either the old or the new content is there, directory entry included.
    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()>;

    /// Creates a file that must not exist and reserves `bytes` for it, so that writes inside cannot run out of space where the
    /// file system can promise that. The directory entry is not durable before [`Disk::sync_dir`].
    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading, and for [`DiskFile::set_len`] and writes.
    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Removes a file. Not durable before [`Disk::sync_dir`].
    async fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes creations, renames and removals in `dir` durable.
    async fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Bytes that may still be written to the file system that holds `dir`.
    async fn free_bytes(&self, dir: &Path) -> io::Result<u64>;

    /// Size of the file system that holds `dir`, in bytes.
    async fn total_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// One open file.
#[async_trait]
pub trait DiskFile: Send + Sync + 'static {
    /// Writes the whole buffer at `offset`, which MUST be a multiple of [`BLOCK_BYTES`], and with `sync` waits until a power cut
    /// cannot undo it; one hop for both. The buffer comes back either way. After an error the range holds anything.
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>);

    /// Reads the ranges, one hop for all. A range that reaches beyond the end of the file is an error of that range.
    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>>;

    /// Waits until a power cut cannot undo anything that was written before the call.
    async fn sync(&self) -> io::Result<()>;

    /// Sets the length and syncs it.
    async fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Whether several writes with `sync` may be under way at the same time. Where not, they are correct but wait for each other.
    fn overlaps(&self) -> bool;

    /// Length and allocation.
    async fn facts(&self) -> io::Result<FileFacts>;
}

/// Reads one range; see [`DiskFile::read`].
pub(crate) async fn read_one(file: &dyn DiskFile, range: Range<u64>) -> io::Result<Bytes> {
    let mut answers = file.read(vec![range]).await;
    answers.pop().unwrap_or_else(|| Err(io::Error::other("the disk gave no answer")))
}
