//! The store of a standalone node: RocksDB in a directory of one process.
//!
//! Layout: `k<key>` → a row (format byte, lease or 0, revision, value); `l<key>` → nothing, for keys that die with the process;
//! `m/format` → the format byte; `m/revision` → the highest revision. Numbers are big-endian.
//! Consistency: a commit is one write batch, its revision included, written to the log and synced before it is answered.
//! Missing space: a commit that found none is unknown; when RocksDB takes writes again, the stored revision says whether it
//! happened.
//! Crash: leased keys of the dead process are removed when the directory is opened again. A torn tail of the log was never
//! answered and is cut; damage before it refuses to open, because commits behind it would be lost silently.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use common::blocking::run_blocking;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBRecoveryMode, Direction, IteratorMode, LogLevel, Options, ReadOptions, WriteBatch,
    WriteOptions,
};
use tokio::time::Instant;

use crate::decide::Write;
use crate::engine::{LocalStore, Page, Rows, row, subtree};
use crate::{Error, ErrorKind, Key, LeaseId, Versioned};

const FORMAT: u8 = 1;
const FORMAT_KEY: &[u8] = b"m/format";
const REVISION_KEY: &[u8] = b"m/revision";
const ROW_HEADER_BYTES: usize = 17;

/// How long opening waits for a store of this same process that is just being dropped.
const HANDOVER_DEADLINE: Duration = Duration::from_secs(2);
const HANDOVER_POLL: Duration = Duration::from_millis(10);

/// A store in a directory, for one process at a time.
pub type EmbeddedStore = LocalStore<DiskRows>;

impl EmbeddedStore {
    /// Opens the directory, making it when it is missing.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] when another process has it open, [`ErrorKind::Damaged`] when its files are not whole,
    /// [`ErrorKind::Unsupported`] when a later release wrote them, [`ErrorKind::Invalid`] when it holds other things, else [`ErrorKind::Unavailable`].
    pub async fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(dir.as_ref(), write_synced).await
    }

    pub(crate) async fn open_with(dir: &Path, writer: Writer) -> Result<Self, Error> {
        let give_up = Instant::now() + HANDOVER_DEADLINE;
        loop {
            let dir = dir.to_path_buf();
            let opened = run_blocking("open metadata", move || DiskRows::open(dir, writer)).await;
            match opened {
                Err(OpenFault::OwnLock(_)) if Instant::now() < give_up => tokio::time::sleep(HANDOVER_POLL).await,
                Err(OpenFault::OwnLock(error) | OpenFault::Other(error)) => return Err(error),
                Ok((rows, revision)) => return Ok(Self::over(rows, revision)),
            }
        }
    }
}

/// The write call, apart so that tests can stand a failing disk in its place.
pub(crate) type Writer = fn(&DB, WriteBatch) -> Result<(), String>;

fn write_synced(db: &DB, batch: WriteBatch) -> Result<(), String> {
    let mut options = WriteOptions::default();
    options.set_sync(true);
    db.write_opt(batch, &options).map_err(rocksdb::Error::into_string)
}

enum OpenFault {
    /// This process itself still has the directory open.
    OwnLock(Error),
    Other(Error),
}

impl From<Error> for OpenFault {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Rows in RocksDB.
pub struct DiskRows {
    db: DB,
    dir: PathBuf,
    writer: Writer,
}

impl DiskRows {
    fn open(dir: PathBuf, writer: Writer) -> Result<(Self, u64), OpenFault> {
        make_dir(&dir).map_err(|error| Error::new(ErrorKind::Unavailable, at("make", &dir)).caused_by(error))?;
        check_dir(&dir)?;
        let db = DB::open(&options()?, &dir).map_err(|error| open_fault(&dir, error))?;
        let rows = Self { db, dir, writer };
        let revision = rows.begin()?;
        Ok((rows, revision))
    }

    /// Checks the format and removes what died with the last process.
    fn begin(&self) -> Result<u64, Error> {
        let mut batch = WriteBatch::default();
        match self.read(FORMAT_KEY)?.as_deref() {
            Some([FORMAT]) => {}
            Some(other) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{}: its format is {other:?}, this release reads {FORMAT}", at("open", &self.dir)),
                ));
            }
            None => batch.put(FORMAT_KEY, [FORMAT]),
        }
        let mut revision = self.revision()?;
        let mut orphans = 0_u64;
        for item in self.db.iterator(IteratorMode::From(b"l", Direction::Forward)) {
            let (name, _) = item.map_err(|error| self.failed("list", error))?;
            let Some(key) = name.strip_prefix(b"l") else { break };
            batch.delete([b"k", key].concat());
            batch.delete(&name);
            orphans += 1;
        }
        if orphans > 0 {
            revision += 1;
            batch.put(REVISION_KEY, revision.to_be_bytes());
            tracing::debug!(orphans, "removed the leased keys of the last process");
        }
        if !batch.is_empty() {
            self.write(batch)?;
        }
        Ok(revision)
    }

    fn revision(&self) -> Result<u64, Error> {
        let Some(bytes) = self.read(REVISION_KEY)? else { return Ok(0) };
        let bytes = bytes.as_slice().try_into().map_err(|_| self.damaged("its revision is not 8 bytes".into()))?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn read(&self, name: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.db.get(name).map_err(|error| self.failed("read", error))
    }

    fn write(&self, batch: WriteBatch) -> Result<(), Error> {
        (self.writer)(&self.db, batch)
            .map_err(|error| Error::new(ErrorKind::Unavailable, at("write", &self.dir)).caused_by(error))
    }

    fn failed(&self, verb: &str, error: rocksdb::Error) -> Error {
        let kind = match error.kind() {
            rocksdb::ErrorKind::Corruption => ErrorKind::Damaged,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, at(verb, &self.dir)).caused_by(error.into_string())
    }

    fn damaged(&self, fault: String) -> Error {
        Error::new(ErrorKind::Damaged, format!("{}: {fault}", at("read", &self.dir)))
    }

    fn decode(&self, key: &str, bytes: Vec<u8>) -> Result<Versioned, Error> {
        let bytes = Bytes::from(bytes);
        let number = |from: usize| Some(u64::from_be_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        match (bytes.first(), number(1), number(9)) {
            (Some(&FORMAT), Some(lease), Some(revision)) => {
                let lease = (lease != 0).then_some(LeaseId::new(lease));
                Ok(row(bytes.slice(ROW_HEADER_BYTES..), revision, lease))
            }
            (Some(&FORMAT) | None, _, _) => Err(self.damaged(format!("the row of {key} is too short"))),
            (Some(other), _, _) => {
                Err(self.damaged(format!("the row of {key} has format {other}, this release reads {FORMAT}")))
            }
        }
    }
}

impl Rows for DiskRows {
    const BLOCKING: bool = true;

    fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.read(&row_name(key.as_str()))?.map(|bytes| self.decode(key.as_str(), bytes)).transpose()
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        let (first, end) = subtree(prefix);
        let start = match after {
            Some(after) if after.as_str() >= end.as_str() => return Ok(Vec::new()),
            // The smallest name above `after`: keys hold no control characters.
            Some(after) if after.as_str() >= first.as_str() => row_name(&format!("{after}\0")),
            _ => row_name(&first),
        };
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(row_name(&end));
        let mut page = Page::default();
        for item in self.db.iterator_opt(IteratorMode::From(&start, Direction::Forward), options) {
            let (name, bytes) = item.map_err(|error| self.failed("list", error))?;
            let name = std::str::from_utf8(name.get(1..).unwrap_or_default())
                .map_err(|_| self.damaged("a key is not text".into()))?;
            let value = self.decode(name, bytes.into_vec())?;
            if !page.push(Key::new(name)?, value, limit) {
                break;
            }
        }
        Ok(page.rows)
    }

    fn apply(&self, revision: u64, writes: &[Write]) -> Result<(), Error> {
        let mut batch = WriteBatch::default();
        for write in writes {
            let name = row_name(write.key.as_str());
            let lease_name = [b"l", write.key.as_str().as_bytes()].concat();
            let lease = write.value.as_ref().and_then(|(_, lease)| *lease);
            match lease {
                Some(_) => batch.put(lease_name, b""),
                None => batch.delete(lease_name),
            }
            match &write.value {
                Some((value, _)) => {
                    let mut bytes = Vec::with_capacity(ROW_HEADER_BYTES + value.len());
                    bytes.push(FORMAT);
                    bytes.extend_from_slice(&lease.map_or(0, LeaseId::raw).to_be_bytes());
                    bytes.extend_from_slice(&revision.to_be_bytes());
                    bytes.extend_from_slice(value);
                    batch.put(name, bytes);
                }
                None => batch.delete(name),
            }
        }
        batch.put(REVISION_KEY, revision.to_be_bytes());
        self.write(batch)
    }

    fn is_full(&self, error: &Error) -> bool {
        // The binding passes the sub-code on as text only.
        let text = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        ["No space left on device", "Disk quota exceeded"].iter().any(|full| text.contains(full))
    }

    /// RocksDB looks every few seconds for space, and takes writes again only after it has left the log of the failed one behind:
    /// a write that goes through is the proof that what can be read now is what a restart finds.
    fn go_on(&self) -> Result<u64, Error> {
        let mut probe = WriteBatch::default();
        probe.put(FORMAT_KEY, [FORMAT]);
        self.write(probe)?;
        self.revision()
    }
}

fn row_name(key: &str) -> Vec<u8> {
    [b"k", key.as_bytes()].concat()
}

fn at(verb: &str, dir: &Path) -> String {
    format!("{verb} metadata directory {}", dir.display())
}

/// Makes the directory and syncs its parent, so that a crash cannot take it away again.
fn make_dir(dir: &Path) -> std::io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(dir)?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// Refuses a directory in which the database would begin anew although there is something: its own data without the file that
/// names it, or files of someone else. What a crash leaves of the very first start is neither.
fn check_dir(dir: &Path) -> Result<(), Error> {
    let unreadable = |error| Error::new(ErrorKind::Unavailable, at("list", dir)).caused_by(error);
    let mut foreign = None;
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
        if name == "CURRENT" {
            return Ok(());
        }
        let is_data = name.ends_with(".sst") || name.ends_with(".log");
        if is_data {
            foreign = Some((ErrorKind::Damaged, "it has data but no file CURRENT".to_owned()));
        }
        let begins = ["LOCK", "LOG", "MANIFEST-", "IDENTITY", "OPTIONS-", "lost+found"];
        if !is_data && !name.ends_with(".dbtmp") && !begins.iter().any(|begin| name.starts_with(begin)) {
            let fault = format!("it holds {name:?} and no metadata; give the metadata a directory of its own");
            foreign.get_or_insert((ErrorKind::Invalid, fault));
        }
    }
    match foreign {
        None => Ok(()),
        Some((kind, fault)) => Err(Error::new(kind, format!("{}: {fault}", at("open", dir)))),
    }
}

/// Small in memory and on disk: a node's metadata is a few MiB, and it shares its memory budget with everything else.
fn options() -> Result<Options, Error> {
    let mut options = Options::default()
        .get_options_from_string("allow_fallocate=false")
        .map_err(|error| Error::new(ErrorKind::Unavailable, "set database options").caused_by(error.into_string()))?;
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(4 << 20));
    options.set_block_based_table_factory(&blocks);
    options.create_if_missing(true);
    options.set_write_buffer_size(2 << 20);
    options.set_max_total_wal_size(8 << 20);
    options.set_max_manifest_file_size(1 << 20);
    options.set_manifest_preallocation_size(4096);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    options.set_max_open_files(64);
    // The default would cut the log at the first damaged record and silently lose the commits behind it.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    Ok(options)
}

fn open_fault(dir: &Path, error: rocksdb::Error) -> OpenFault {
    let corrupt = error.kind() == rocksdb::ErrorKind::Corruption;
    let text = error.into_string();
    let fault =
        |kind, message: &str| Error::new(kind, format!("{}: {message}", at("open", dir))).caused_by(text.clone());
    if text.contains("lock hold by current process") {
        OpenFault::OwnLock(fault(ErrorKind::InUse, "this process has this metadata directory open already"))
    } else if text.contains("/LOCK") && text.to_ascii_lowercase().contains("lock file") {
        fault(ErrorKind::InUse, "another process has this metadata directory open").into()
    } else if corrupt {
        fault(ErrorKind::Damaged, "its files are damaged").into()
    } else {
        fault(ErrorKind::Unavailable, "the database does not open").into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
