use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use common::blocking::run_blocking;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBRecoveryMode, Direction, IteratorMode, LogLevel, Options, WriteBatch, WriteOptions,
};

use super::{Index, Write};
use crate::error::Error;

const WRITE_BUFFER_BYTES: usize = 2 << 20;
const BLOCK_CACHE_BYTES: usize = 4 << 20;
/// Keeps the index from using up the process's descriptors, which the segments and the sockets need too.
const OPEN_FILES_MAX: i32 = 64;

/// Free space below which a database that could not be opened for writing is not tried again.
const OPEN_BYTES_MIN: u64 = 4 << 20;

/// The index in RocksDB, with little memory: it is small beside the segments, and it is read only where they miss.
///
/// # Missing space
/// RocksDB stops writing, keeps what it has readable, looks every five seconds whether there is space, and then goes on in a new
/// log; until then each write fails for want of space. A database that has no space even to be opened is opened for reading, and
/// for writing as soon as a write finds that there is some.
#[derive(Clone)]
pub struct RocksIndex {
    shared: Arc<Shared>,
}

struct Shared {
    dir: PathBuf,
    /// Locked as long as this lives: one owner, whichever way the database is open.
    _owner: File,
    open: RwLock<Open>,
}

struct Open {
    db: DB,
    writable: bool,
}

impl RocksIndex {
    /// Opens the index in `dir`, creating it when the directory is empty.
    ///
    /// # Errors
    /// When somebody else has it open, or its files are damaged.
    pub async fn open(dir: &Path) -> Result<Self, Error> {
        let dir = dir.to_path_buf();
        let shared = run_blocking("index-open", move || Shared::open(dir)).await?;
        Ok(Self { shared: Arc::new(shared) })
    }

    async fn hop<T: Send + 'static>(
        &self,
        action: &'static str,
        work: impl FnOnce(&DB) -> Result<T, rocksdb::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.shared.clone();
        run_blocking("index", move || {
            let open = shared.open.read().unwrap_or_else(PoisonError::into_inner);
            work(&open.db).map_err(|error| failure(action, error))
        })
        .await
    }
}

impl Shared {
    fn open(dir: PathBuf) -> Result<Self, Error> {
        let io = |error: std::io::Error| Error::index("open", error);
        std::fs::create_dir_all(&dir).map_err(io)?;
        let owner = File::open(&dir).map_err(io)?;
        rustix::fs::flock(&owner, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| Error::index("open", format!("{}: in use elsewhere: {error}", dir.display())))?;
        let options = options().map_err(|error| Error::index("open", error))?;
        let open = match DB::open(&options, &dir) {
            Ok(db) => Open { db, writable: true },
            // Of a directory without a database there is nothing to read.
            Err(error) if is_full(&error) && dir.join("CURRENT").exists() => {
                tracing::warn!(dir = %dir.display(), %error, "the index has no space to be opened for writing");
                let db = DB::open_for_read_only(&options, &dir, false).map_err(|error| Error::index("open", error))?;
                Open { db, writable: false }
            }
            Err(error) => return Err(failure("open", error)),
        };
        Ok(Self { dir, _owner: owner, open: RwLock::new(open) })
    }

    /// Opens the database for writing, if it is not.
    fn make_writable(&self) -> Result<(), Error> {
        if self.open.read().unwrap_or_else(PoisonError::into_inner).writable {
            return Ok(());
        }
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.writable {
            return Ok(());
        }
        let facts = rustix::fs::statvfs(&self.dir).map_err(|error| Error::index("ask for the space of", error))?;
        let free = facts.f_bavail.saturating_mul(facts.f_frsize);
        if free < OPEN_BYTES_MIN {
            return Err(Error::index_full("write", format!("{}: {free} bytes are free", self.dir.display())));
        }
        let options = options().map_err(|error| Error::index("open", error))?;
        let db = DB::open(&options, &self.dir).map_err(|error| failure("open", error))?;
        *open = Open { db, writable: true };
        Ok(())
    }
}

fn failure(action: &'static str, error: rocksdb::Error) -> Error {
    if is_full(&error) { Error::index_full(action, error) } else { Error::index(action, error) }
}

/// The binding passes the sub-code on as text only.
fn is_full(error: &rocksdb::Error) -> bool {
    let text = error.to_string();
    ["No space left on device", "Disk quota exceeded"].iter().any(|full| text.contains(full))
}

fn options() -> Result<Options, rocksdb::Error> {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(BLOCK_CACHE_BYTES));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    // Preallocation would make a tiny index occupy megabytes; the binding has no setter for it.
    let mut options = Options::default().get_options_from_string("allow_fallocate=false")?;
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_max_open_files(OPEN_FILES_MAX);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_max_manifest_file_size(1 << 20);
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES as u64);
    options.set_max_background_jobs(2);
    options.set_paranoid_checks(true);
    options.set_manifest_preallocation_size(4096);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    // Every batch was synced before it counted: only an unsynced tail may be torn.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    Ok(options)
}

#[async_trait]
impl Index for RocksIndex {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let key = key.to_vec();
        self.hop("read", move |db| db.get(key)).await
    }

    async fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let (prefix, after) = (prefix.to_vec(), after.map(<[u8]>::to_vec));
        self.hop("scan", move |db| {
            let start = after.as_deref().unwrap_or(&prefix);
            let mut rows = Vec::new();
            for row in db.iterator(IteratorMode::From(start, Direction::Forward)) {
                let (key, value) = row?;
                if !key.starts_with(&prefix) || rows.len() >= limit {
                    break;
                }
                if after.as_deref() != Some(&*key) {
                    rows.push((key.into_vec(), value.into_vec()));
                }
            }
            Ok(rows)
        })
        .await
    }

    async fn write(&self, batch: Vec<Write>) -> Result<(), Error> {
        let shared = self.shared.clone();
        run_blocking("index", move || {
            shared.make_writable()?;
            let mut writes = WriteBatch::default();
            for change in batch {
                match change {
                    Write::Put(key, value) => writes.put(key, value),
                    Write::Delete(key) => writes.delete(key),
                }
            }
            let mut durable = WriteOptions::default();
            durable.set_sync(true);
            // A stalled background job must show as an error, never as a write that hangs.
            durable.set_no_slowdown(false);
            let open = shared.open.read().unwrap_or_else(PoisonError::into_inner);
            open.db.write_opt(writes, &durable).map_err(|error| failure("write", error))
        })
        .await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conforms_and_keeps_its_rows() {
        let dir = tempfile::tempdir().unwrap();
        let index = RocksIndex::open(dir.path()).await.unwrap();
        super::super::suite::run(&index).await;
        index.write(vec![Write::Put(b"kept".to_vec(), b"1".to_vec())]).await.unwrap();
        assert!(RocksIndex::open(dir.path()).await.is_err(), "two owners");
        drop(index);
        let index = RocksIndex::open(dir.path()).await.unwrap();
        assert_eq!(index.get(b"kept").await.unwrap().unwrap(), b"1");
    }
}
