use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use common::shutdown::TaskTree;
use futures::FutureExt as _;
use ledger::{EntryId, LedgerId};
use tokio::sync::Semaphore;

use super::loads::Loads;
use crate::disk::{BLOCK_BYTES, Disk, DiskFile, read_one};
use crate::error::Error;
use crate::format::{Damage, Directory, EntryBlock, LedgerRow, Place, SegmentId, Trailer};
use crate::index::rows::SegmentRow;

/// Sealed segments kept open: their directories are in memory, and each takes a descriptor.
const OPEN_FILES_MAX: usize = 64;

/// The sealed segments: which there are, and the few that are open.
pub(crate) struct SealedSegments {
    shared: Arc<Shared>,
    opens: Loads<SegmentId, Option<Arc<SealedFile>>>,
    block_loads: Loads<(SegmentId, u32), EntryBlock>,
}

struct Shared {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    state: Mutex<State>,
    blocks: Mutex<BlockCache>,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<SegmentId, SegmentRow>,
    open: BTreeMap<SegmentId, (Arc<SealedFile>, u64)>,
    uses: u64,
}

/// An open sealed segment.
pub(crate) struct SealedFile {
    pub(crate) id: SegmentId,
    pub(crate) path: Arc<Path>,
    pub(crate) file: Arc<dyn DiskFile>,
    trailer: Trailer,
    directory: Directory,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocks(&self) -> MutexGuard<'_, BlockCache> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, id: SegmentId) -> PathBuf {
        self.dir.join(id.file_name())
    }

    fn contains(&self, id: SegmentId) -> bool {
        self.lock().rows.contains_key(&id)
    }

    /// The segment, when it is open.
    fn find_open(&self, id: SegmentId) -> Option<Arc<SealedFile>> {
        let mut state = self.lock();
        state.uses += 1;
        let uses = state.uses;
        let (file, used) = state.open.get_mut(&id)?;
        *used = uses;
        Some(file.clone())
    }

    async fn open(&self, id: SegmentId) -> Result<Option<Arc<SealedFile>>, Error> {
        let Some(file_bytes) = self.lock().rows.get(&id).map(|row| row.file_bytes) else { return Ok(None) };
        let path = self.path(id);
        let opened = match self.disk.open(&path).await {
            Ok(file) => SealedFile::read(id, path, file, file_bytes).await,
            Err(source) => Err(Error::Disk { action: "open", path, source }),
        };
        let opened = match opened {
            Ok(opened) => Arc::new(opened),
            // Removed between the look into the table and the open.
            Err(_) if !self.contains(id) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut state = self.lock();
        if !state.rows.contains_key(&id) {
            return Ok(None);
        }
        let uses = state.uses;
        state.open.insert(id, (opened.clone(), uses));
        if state.open.len() > OPEN_FILES_MAX {
            let oldest = state.open.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id);
            oldest.map(|oldest| state.open.remove(&oldest));
        }
        Ok(Some(opened))
    }
}

impl SealedSegments {
    /// What it reads takes one of `turns` while it is read, by a task of its own.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        dir: &Path,
        cache_bytes: u64,
        (turns, tasks): (&Arc<Semaphore>, &TaskTree),
    ) -> Self {
        let blocks = BlockCache { bytes_max: cache_bytes, ..BlockCache::default() };
        let shared = Shared { disk, dir: dir.to_path_buf(), state: Mutex::default(), blocks: Mutex::new(blocks) };
        Self {
            shared: Arc::new(shared),
            opens: Loads::new("open segment", turns, tasks),
            block_loads: Loads::new("read index block", turns, tasks),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    pub(crate) fn path(&self, id: SegmentId) -> PathBuf {
        self.shared.path(id)
    }

    pub(crate) fn insert(&self, row: SegmentRow) {
        self.lock().rows.insert(row.id, row);
    }

    pub(crate) fn remove(&self, id: SegmentId) {
        let mut state = self.lock();
        state.rows.remove(&id);
        state.open.remove(&id);
        drop(state);
        self.shared.blocks().forget(id);
    }

    /// All rows, oldest first.
    pub(crate) fn rows(&self) -> Vec<SegmentRow> {
        self.lock().rows.values().copied().collect()
    }

    /// Segments, and entries in them.
    pub(crate) fn count(&self) -> (u64, u64) {
        let state = self.lock();
        (state.rows.len() as u64, state.rows.values().map(|row| row.entries).sum())
    }

    /// Opens a sealed segment by its trailer; `None` when there is no such segment (any more). Cancel-safe.
    pub(crate) async fn open(&self, id: SegmentId) -> Result<Option<Arc<SealedFile>>, Error> {
        if let Some(file) = self.shared.find_open(id) {
            return Ok(Some(file));
        }
        let open = || {
            let shared = self.shared.clone();
            async move { shared.open(id).await }.boxed()
        };
        self.opens.get(id, || self.shared.find_open(id).map(Some), open).await
    }

    /// Where an entry lies in a sealed segment, when that has it. Cancel-safe.
    pub(crate) async fn find(
        &self,
        file: &Arc<SealedFile>,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Result<Option<Place>, Error> {
        let Some(number) = file.directory.block_of(ledger, entry) else { return Ok(None) };
        let cached = self.shared.blocks().get(file.id, number);
        if let Some(block) = cached {
            return Ok(block.find(ledger, entry));
        }
        let block = self.block(file, number).await?;
        self.shared.blocks().insert(file.id, number, &block);
        Ok(block.find(ledger, entry))
    }

    /// Hands over the entries of a ledger that a sealed segment has within a range, ascending. Cancel-safe.
    pub(crate) async fn collect(
        &self,
        file: &Arc<SealedFile>,
        ledger: LedgerId,
        entries: RangeInclusive<EntryId>,
        mut found: impl FnMut(EntryId),
    ) -> Result<(), Error> {
        // The range may begin in the middle of a block, or before the first.
        let first = file.directory.block_of(ledger, *entries.start()).unwrap_or(0);
        let last = file.directory.block_of(ledger, *entries.end());
        for number in first..last.map_or(first, |last| last + 1) {
            // Blocks that are not in memory stay out of it: who reads single entries needs others.
            let block = self.block(file, number).await?;
            block.entries_of(ledger).filter(|entry| entries.contains(entry)).for_each(&mut found);
        }
        Ok(())
    }

    async fn block(&self, file: &Arc<SealedFile>, number: u32) -> Result<EntryBlock, Error> {
        let cached = || self.shared.blocks().get(file.id, number);
        if let Some(block) = cached() {
            return Ok(block);
        }
        let read = || {
            let file = file.clone();
            async move { file.entry_block(number).await }.boxed()
        };
        self.block_loads.get((file.id, number), cached, read).await
    }
}

impl SealedFile {
    /// Reads trailer and directory.
    async fn read(id: SegmentId, path: PathBuf, file: Arc<dyn DiskFile>, file_bytes: u64) -> Result<Self, Error> {
        let facts = file.facts().await.map_err(Error::disk("read", &path))?;
        if facts.bytes != file_bytes {
            let what = format!("the index says it has {file_bytes} bytes, it has {}", facts.bytes);
            return Err(Error::damaged(&path, facts.bytes, what));
        }
        let at = file_bytes.saturating_sub(BLOCK_BYTES as u64);
        let block = read_one(&*file, at..file_bytes).await.map_err(Error::disk("read", &path))?;
        let trailer = Trailer::decode(&block, file_bytes).map_err(|damage| at_offset(&path, at, damage))?;
        if trailer.segment.id != id {
            return Err(Error::damaged(&path, at, format!("it is segment {}", trailer.segment.id)));
        }
        let range = trailer.layout.directory();
        let block = read_one(&*file, range.clone()).await.map_err(Error::disk("read", &path))?;
        let directory = Directory::decode(&block).map_err(|damage| at_offset(&path, range.start, damage))?;
        Ok(Self { id, path: path.into(), file, trailer, directory })
    }

    /// As [`SealedFile::read`], with all blocks of the index checked, and the ledgers.
    pub(crate) async fn read_whole(
        id: SegmentId,
        path: PathBuf,
        file: Arc<dyn DiskFile>,
        file_bytes: u64,
    ) -> Result<(Self, Vec<LedgerRow>), Error> {
        let sealed = Self::read(id, path, file, file_bytes).await?;
        for block in 0..sealed.trailer.layout.entry_blocks() {
            sealed.entry_block(block).await?;
        }
        let (mut ledgers, mut block) = (Vec::new(), 0);
        while let Some(rows) = sealed.ledgers(block).await? {
            ledgers.extend(rows);
            block += 1;
        }
        Ok((sealed, ledgers))
    }

    /// What its last block says.
    pub(crate) fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    /// An entry block, counted from 0, checked. An error for one that is not there.
    pub(crate) async fn entry_block(&self, number: u32) -> Result<EntryBlock, Error> {
        let range = self.trailer.layout.entry_block(number);
        let range =
            range.ok_or_else(|| Error::damaged(&self.path, 0, "the directory names a block that is not there"))?;
        let block: Bytes = read_one(&*self.file, range.clone()).await.map_err(Error::disk("read", &self.path))?;
        EntryBlock::decode(block).map_err(|damage| at_offset(&self.path, range.start, damage))
    }

    /// The ledgers of a ledger block, counted from 0; `None` after the last.
    pub(crate) async fn ledgers(&self, number: u32) -> Result<Option<Vec<LedgerRow>>, Error> {
        let Some(range) = self.trailer.layout.ledger_block(number) else { return Ok(None) };
        let block = read_one(&*self.file, range.clone()).await.map_err(Error::disk("read", &self.path))?;
        LedgerRow::decode_block(&block).map(Some).map_err(|damage| at_offset(&self.path, range.start, damage))
    }
}

fn at_offset(path: &Path, offset: u64, damage: Damage) -> Error {
    Error::damaged(path, offset, damage.0)
}

/// Index blocks in memory, the oldest dropped first.
#[derive(Default)]
struct BlockCache {
    bytes_max: u64,
    bytes: u64,
    blocks: HashMap<(SegmentId, u32), EntryBlock>,
    order: VecDeque<(SegmentId, u32)>,
}

impl BlockCache {
    fn get(&self, segment: SegmentId, number: u32) -> Option<EntryBlock> {
        self.blocks.get(&(segment, number)).cloned()
    }

    fn insert(&mut self, segment: SegmentId, number: u32, block: &EntryBlock) {
        let key = (segment, number);
        if self.blocks.contains_key(&key) {
            return;
        }
        self.bytes += block.memory_bytes() as u64;
        self.blocks.insert(key, block.clone());
        self.order.push_back(key);
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(block) = self.blocks.remove(&oldest) {
                self.bytes -= block.memory_bytes() as u64;
            }
        }
    }

    fn forget(&mut self, segment: SegmentId) {
        let Self { blocks, bytes, .. } = self;
        blocks.retain(|key, block| {
            let keep = key.0 != segment;
            if !keep {
                *bytes -= block.memory_bytes() as u64;
            }
            keep
        });
        self.order.retain(|key| key.0 != segment);
    }
}
