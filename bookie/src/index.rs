//! The index: where sealed entries are, what is known of each ledger, and which ledgers were dropped.
//!
//! [`Index`] is a small ordered map of bytes with atomic synced batches; [`RocksIndex`] keeps it on disk, [`MemoryIndex`] in
//! memory for tests, [`FileIndex`] in files of a [`crate::Disk`], which may be a simulated one. [`rows`] gives keys and values their meaning. Everything but the tombstones follows from the segments.

mod file;
mod memory;
mod rocks;
pub(crate) mod rows;
pub mod suite;

use async_trait::async_trait;

use crate::error::Error;

pub use file::FileIndex;
pub use memory::MemoryIndex;
pub use rocks::RocksIndex;

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets a key.
    Put(Vec<u8>, Vec<u8>),
    /// Removes a key; it need not exist.
    Delete(Vec<u8>),
}

/// An ordered map of bytes.
///
/// Implementations MUST do blocking work on threads of their own. After an error of [`Index::write`] the batch may or may not
/// have happened; it MUST NOT have happened in part. Missing space is [`Error::IndexFull`]; a write after there is space again MUST
/// work without anything being opened anew.
#[async_trait]
pub trait Index: Send + Sync + 'static {
    /// The value of a key.
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// Keys with this prefix and their values, in order, after the key `after`, at most `limit`.
    async fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error>;

    /// Applies all changes or none, in order, and returns when a power cut cannot undo them.
    async fn write(&self, batch: Vec<Write>) -> Result<(), Error>;
}
