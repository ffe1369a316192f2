use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Index, Write};
use crate::disk::{AlignedBuffer, BLOCK_BYTES, Disk, DiskFile, read_one};
use crate::error::Error;

/// Length, sequence and checksum of a batch.
const HEAD_BYTES: usize = 20;
/// Reserved for a log, so that usual ones never grow.
const RESERVED_BYTES: u64 = 1 << 20;
const DELETE: u32 = u32::MAX;

/// An index whose content is in memory, and in a log on a [`Disk`]: it loses at a power cut what the disk loses, which is nothing that
/// was synced. For simulations; it reads its whole log at every start.
///
/// The log is a file `index-<number>.log` of batches, each in blocks of its own: length (4 bytes), number of the batch (8),
/// zeros (4), CRC32C of all of it with this field as zeros (4), then changes: length of the key (4), length of the value or all ones
/// for a removal (4), key, value. Its first batch is everything there was at the start.
pub struct FileIndex {
    rows: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    log: tokio::sync::Mutex<Log>,
}

struct Log {
    file: Arc<dyn DiskFile>,
    end: u64,
    batches: u64,
    failed: bool,
}

impl FileIndex {
    /// Opens the index in `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// When the disk fails, or no log that was once complete is.
    pub async fn open(disk: &dyn Disk, dir: &Path) -> Result<Self, Error> {
        disk.create_dir(dir).await.map_err(Error::disk("create", dir))?;
        let names = disk.list(dir).await.map_err(Error::disk("list", dir))?;
        let mut logs: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
        logs.sort_unstable();
        let (mut rows, mut found) = (BTreeMap::new(), false);
        for number in logs.iter().rev() {
            let path = path_of(dir, *number);
            if let Some(read) = read(disk, &path).await.map_err(Error::disk("read", &path))? {
                (rows, found) = (read, true);
                break;
            }
        }
        // A first log that was cut short in its making says that there was nothing yet.
        if !found && logs.len() > 1 {
            return Err(Error::damaged(dir, 0, "no log of the index is whole"));
        }
        let path = path_of(dir, logs.last().map_or(0, |last| last + 1));
        let file = disk.create(&path, RESERVED_BYTES).await.map_err(Error::disk("create", &path))?;
        let mut log = Log { file, end: 0, batches: 0, failed: false };
        let all: Vec<Write> = rows.iter().map(|(key, value)| Write::Put(key.clone(), value.clone())).collect();
        log.append(&all).await.map_err(Error::disk("write", &path))?;
        disk.sync_dir(dir).await.map_err(Error::disk("sync", dir))?;
        for number in logs {
            let old = path_of(dir, number);
            disk.remove(&old).await.map_err(Error::disk("remove", &old))?;
        }
        disk.sync_dir(dir).await.map_err(Error::disk("sync", dir))?;
        Ok(Self { rows: Mutex::new(rows), log: tokio::sync::Mutex::new(log) })
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    async fn append(&mut self, batch: &[Write]) -> io::Result<()> {
        let bytes = encode(self.batches, batch);
        let written = self.file.write(self.end, AlignedBuffer::copy_of(&bytes), true).await.1;
        if written.is_ok() {
            self.end += (bytes.len() as u64).next_multiple_of(BLOCK_BYTES as u64);
            self.batches += 1;
        }
        written
    }
}

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("index-{number:08}.log"))
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("index-")?.strip_suffix(".log")?.parse().ok()
}

/// What a log says; `None` when its first batch was never complete.
async fn read(disk: &dyn Disk, path: &Path) -> io::Result<Option<BTreeMap<Vec<u8>, Vec<u8>>>> {
    let file = disk.open(path).await?;
    let bytes = file.facts().await?.bytes;
    let content = read_one(&*file, 0..bytes).await?;
    let (mut rows, mut at, mut batches) = (BTreeMap::new(), 0, 0);
    while let Some((changes, length)) = decode(content.get(at..).unwrap_or_default(), batches) {
        apply(&mut rows, changes);
        at += length.next_multiple_of(BLOCK_BYTES);
        batches += 1;
    }
    Ok((batches > 0).then_some(rows))
}

fn apply(rows: &mut BTreeMap<Vec<u8>, Vec<u8>>, changes: Vec<Write>) {
    for change in changes {
        match change {
            Write::Put(key, value) => rows.insert(key, value),
            Write::Delete(key) => rows.remove(&key),
        };
    }
}

fn encode(number: u64, batch: &[Write]) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    for change in batch {
        let (key, value) = match change {
            Write::Put(key, value) => (key, Some(value)),
            Write::Delete(key) => (key, None),
        };
        bytes.extend((key.len() as u32).to_le_bytes());
        bytes.extend(value.map_or(DELETE, |value| value.len() as u32).to_le_bytes());
        bytes.extend(key);
        bytes.extend(value.into_iter().flatten());
    }
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..12].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8], number: u64) -> Option<(Vec<Write>, usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let length = word(0)? as usize;
    let mut whole = bytes.get(..length).filter(|_| length >= HEAD_BYTES)?.to_vec();
    whole[16..20].fill(0);
    let is_next = u64::from_le_bytes(bytes[4..12].try_into().ok()?) == number;
    if !is_next || crc32c::crc32c(&whole) != word(16)? {
        return None;
    }
    let (mut changes, mut at) = (Vec::new(), HEAD_BYTES);
    while at < length {
        let (key_bytes, value_bytes) = (word(at)? as usize, word(at + 4)?);
        let key = bytes.get(at + 8..at + 8 + key_bytes)?.to_vec();
        at += 8 + key_bytes;
        if value_bytes == DELETE {
            changes.push(Write::Delete(key));
        } else {
            changes.push(Write::Put(key, bytes.get(at..at + value_bytes as usize)?.to_vec()));
            at += value_bytes as usize;
        }
    }
    Some((changes, length))
}

#[async_trait]
impl Index for FileIndex {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.rows().get(key).cloned())
    }

    async fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let start = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let rows = self.rows();
        let found = rows.range::<[u8], _>((start, Bound::Unbounded)).take_while(|(key, _)| key.starts_with(prefix));
        Ok(found.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    async fn write(&self, batch: Vec<Write>) -> Result<(), Error> {
        let mut log = self.log.lock().await;
        if log.failed {
            return Err(Error::index("write", "an earlier write failed, so what the log holds is unknown"));
        }
        match log.append(&batch).await {
            Ok(()) => {
                apply(&mut self.rows(), batch);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(Error::index_full("write", error)),
            Err(error) => {
                log.failed = true;
                Err(Error::index("write", error))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use common::rng::Rng;

    use super::*;
    use crate::disk::{DiskFault, FaultyDisk, MemoryDisk};

    #[tokio::test]
    async fn conforms() {
        let disk = MemoryDisk::new();
        super::super::suite::run(&FileIndex::open(&disk, Path::new("/i")).await.unwrap()).await;
    }

    fn put(key: u64, value: u64) -> Write {
        Write::Put(key.to_be_bytes().to_vec(), vec![value as u8; (value * 400) as usize])
    }

    /// Cuts at every call of a life, and of the one after it.
    #[tokio::test(start_paused = true)]
    async fn a_cut_takes_a_batch_whole_or_not_at_all() {
        let dir = Path::new("/i");
        let faults = [DiskFault::CutBefore, DiskFault::CutWithin, DiskFault::CutAfter];
        for seed in 0..90 {
            let (mut disk, mut told, mut tried) = (MemoryDisk::new(), BTreeMap::new(), None);
            for life in 0..3 {
                let faulty = FaultyDisk::new(&disk, Rng::seeded(seed * 10 + life));
                faulty.plan((seed + 7 * life) % 30, faults[(seed % 3) as usize]);
                if let Ok(index) = FileIndex::open(&faulty, dir).await {
                    let found = index.scan(b"", None, 1000).await.unwrap();
                    let found: BTreeMap<_, _> = found.into_iter().collect();
                    let mut with_last = told.clone();
                    apply(&mut with_last, tried.take().unwrap_or_default());
                    assert!(found == told || found == with_last, "seed {seed}, life {life}");
                    told = found;
                    for number in 0..20 {
                        let batch = vec![
                            put(number, life),
                            put(100 + number, life + 1),
                            Write::Delete(number.to_be_bytes().to_vec()),
                        ];
                        if index.write(batch.clone()).await.is_err() {
                            tried = Some(batch);
                            break;
                        }
                        apply(&mut told, batch);
                    }
                }
                disk = faulty.cut();
            }
        }
    }
}
