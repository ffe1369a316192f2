//! Everything the bookie holds: the ledgers, the segments, and the rules between them.
//!
//! # Overview
//! [`Store`] is shared by connections, journal, sealer and collector. Adds and fences are decided under the lock of their ledger
//! and queued for the journal before it is released (`write.rs`); the journal makes them durable, then visible, then answers
//! (`publish`). Reads look at the segments newest first (`read.rs`).
//!
//! # Consistency
//! An entry is visible once it is durable. A segment is always found in one of two places: `unsealed`, or the sealed table and
//! the index. Readers take the unsealed list first; sealing fills the second place before it empties the first.

mod condition;
mod list;
mod loads;
mod open;
mod read;
mod recent;
mod sealed;
mod table;
mod tombstones;
mod write;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use common::clock::Clock;
use common::shutdown::TaskTree;
use futures::FutureExt as _;
use ledger::{EntryId, LedgerId};
use tokio::sync::{Semaphore, watch};

pub use condition::BookieState;
pub(crate) use condition::Condition;
pub(crate) use loads::Loads;
pub(crate) use open::OpenSegment;
pub(crate) use read::{Fetched, Located, Spot, is_absent};
pub(crate) use sealed::{SealedFile, SealedSegments};
pub(crate) use table::{LedgerSlot, LedgerTable};
pub(crate) use tombstones::Tombstones;
pub(crate) use write::Add;

use crate::config::BookieConfig;
use crate::disk::{AlignedBuffer, Disk};
use crate::error::Error;
use crate::format::{Place, RecordKind, SegmentId};
use crate::index::rows::LedgerSegment;
use crate::index::{Index, Write, rows};
use crate::journal::JournalQueue;
use crate::ledger_state::LedgerState;
use crate::limbo::Limbo;
use crate::metrics::Metrics;
use crate::stall::{Stalls, WatchedDisk, WatchedIndex};
use recent::RecentGroups;

/// Reads of the index for requests that may be under way, and reads of what leads to an entry on the disk. More would gain nothing
/// where the disk is slow; where it does not answer at all this many threads wait for it.
const LOADS_MAX: usize = 32;

/// See the module.
pub(crate) struct Store {
    pub(crate) config: BookieConfig,
    pub(crate) journal_dir: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) condition: Condition,
    pub(crate) queue: JournalQueue,
    pub(crate) table: Arc<LedgerTable>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) limbo: Limbo,
    pub(crate) sealed: SealedSegments,
    /// Oldest first.
    unsealed: RwLock<Vec<Arc<OpenSegment>>>,
    recent: RecentGroups,
    sealed_through: Arc<AtomicU64>,
    /// What is under way at the disk and the index.
    pub(crate) stalls: Stalls,
    ledger_loads: Loads<LedgerId, Arc<LedgerSlot>>,
    /// Of a ledger whose sealed segments have changed so many times.
    segments_loads: Loads<(LedgerId, u64), Arc<[LedgerSegment]>>,
    /// Size of the file system of the journal, and what is free of it, in bytes.
    space_loads: Loads<(), (u64, u64)>,
    /// Bytes reserved by unsealed segments and the spare one, and occupied by sealed ones.
    pub(crate) allocated_bytes: AtomicU64,
    pub(crate) spare_segments: AtomicU64,
    /// Held from the look at ledgers for their rows until the index has those, so that none is overwritten with less.
    pub(crate) ledger_rows: tokio::sync::Mutex<()>,
    /// Ledgers the index knows.
    pub(crate) indexed_ledgers: AtomicU64,
    /// Whether a full segment waits for space in the index.
    pub(crate) seal_waits: watch::Sender<bool>,
    /// What the bookie asks to be released, see `collector::requests`.
    pub(crate) release_requests: watch::Sender<Arc<[LedgerId]>>,
}

/// A durable record on its way to being visible.
pub(crate) struct Durable<'a> {
    pub(crate) kind: RecordKind,
    pub(crate) slot: &'a Arc<LedgerSlot>,
    pub(crate) entry: EntryId,
    pub(crate) last_confirmed: Option<EntryId>,
    pub(crate) body: &'a [u8],
    /// Relative to the segment.
    pub(crate) place: Place,
}

impl Store {
    pub(crate) fn new(
        config: BookieConfig,
        journal_dir: PathBuf,
        disk: Arc<dyn Disk>,
        index: Arc<dyn Index>,
        clock: Clock,
        (tombstones, limbo): (Tombstones, Limbo),
        tasks: &TaskTree,
    ) -> Self {
        let stalls = Stalls::default();
        let (disk, index) = (WatchedDisk::wrap(disk, &stalls), WatchedIndex::wrap(index, &stalls));
        let turns = || Arc::new(Semaphore::new(LOADS_MAX));
        let (index_turns, disk_turns) = (turns(), turns());
        Self {
            metrics: Metrics::new(),
            condition: Condition::new(),
            queue: JournalQueue::new(),
            table: Arc::new(LedgerTable::new()),
            tombstones: Arc::new(tombstones),
            limbo,
            sealed: SealedSegments::new(
                disk.clone(),
                &journal_dir,
                config.index_cache_bytes.bytes(),
                (&disk_turns, tasks),
            ),
            ledger_loads: Loads::new("load ledger", &index_turns, tasks),
            segments_loads: Loads::new("load segments", &index_turns, tasks),
            space_loads: Loads::new("ask for space", &disk_turns, tasks),
            stalls,
            unsealed: RwLock::default(),
            recent: RecentGroups::new(config.write_buffer_bytes.bytes()),
            sealed_through: Arc::default(),
            allocated_bytes: AtomicU64::new(0),
            spare_segments: AtomicU64::new(0),
            ledger_rows: tokio::sync::Mutex::default(),
            indexed_ledgers: AtomicU64::new(0),
            seal_waits: watch::Sender::new(false),
            release_requests: watch::Sender::new(Arc::default()),
            config,
            journal_dir,
            disk,
            index,
            clock,
        }
    }

    /// Writes to the index. Missing space turns the bookie read-only, and is the caller's to make good later; what any other
    /// failure means is the caller's too.
    pub(crate) async fn write_index(&self, batch: Vec<Write>) -> Result<(), Error> {
        let written = self.index.write(batch).await;
        if let Err(error) = &written
            && error.is_index_full()
        {
            self.condition.read_only(crate::journal::describe(error));
        }
        written
    }

    /// Writes the tombstones that the index does not have yet. Without space they stay in memory, and nothing may be done on
    /// their word; any other failure ends writing, since what the index says is unknown then. `_held` is
    /// [`Tombstones::one_writer`].
    pub(crate) async fn write_tombstones(&self, _held: &tokio::sync::MutexGuard<'_, ()>) -> Result<(), Error> {
        let changes = self.tombstones.unwritten();
        if changes.is_empty() {
            return Ok(());
        }
        let written = self.write_index(changes).await;
        match &written {
            Ok(()) => self.tombstones.written(),
            Err(error) if error.is_index_full() => {}
            Err(error) => self.condition.fail(format!("write tombstones: {}", crate::journal::describe(error))),
        }
        written
    }

    /// Whether the index takes writes: tombstones that wait for it, and its own identity again, which never changes.
    pub(crate) async fn index_takes_writes(&self) -> bool {
        let probe = async {
            let held = self.tombstones.one_writer().await;
            self.write_tombstones(&held).await?;
            let identity = rows::identity(&*self.index).await?;
            self.write_index(identity.iter().map(|identity| rows::put_identity(identity)).collect()).await
        };
        match probe.await {
            Ok(()) => true,
            Err(error) => {
                if !error.is_index_full() {
                    self.condition.fail(crate::journal::describe(&error));
                }
                false
            }
        }
    }

    /// The newest segment that is sealed and indexed, with all before it.
    pub(crate) fn sealed_through(&self) -> SegmentId {
        SegmentId::new(self.sealed_through.load(Ordering::Acquire))
    }

    pub(crate) fn set_sealed_through(&self, segment: SegmentId) {
        self.sealed_through.store(segment.get(), Ordering::Release);
    }

    /// The segments that are not sealed, oldest first.
    pub(crate) fn unsealed(&self) -> Vec<Arc<OpenSegment>> {
        self.unsealed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn add_unsealed(&self, segment: Arc<OpenSegment>) {
        self.unsealed.write().unwrap_or_else(PoisonError::into_inner).push(segment);
    }

    pub(crate) fn remove_unsealed(&self, id: SegmentId) {
        self.unsealed.write().unwrap_or_else(PoisonError::into_inner).retain(|segment| segment.id() != id);
    }

    /// Entries in all segments; one that was added again later counts once a segment.
    pub(crate) fn entries(&self) -> u64 {
        self.sealed.count().1 + self.unsealed().iter().map(|segment| segment.index().entries).sum::<u64>()
    }

    /// Ledgers with something stored; approximate while segments are being sealed.
    pub(crate) fn ledgers(&self) -> u64 {
        let unknown = self.table.count(|state| state.exists && !state.indexed && state.tombstone.is_none());
        self.indexed_ledgers.load(Ordering::Relaxed) + unknown
    }

    /// The ledger, when it is in memory: the fast way for adds.
    pub(crate) fn cached(&self, ledger: LedgerId) -> Option<Arc<LedgerSlot>> {
        self.table.get(ledger)
    }

    /// The ledger; one the bookie does not know is made, in memory only, until something is stored of it. Cancel-safe.
    pub(crate) async fn slot(&self, ledger: LedgerId) -> Result<Arc<LedgerSlot>, Error> {
        if let Some(slot) = self.table.get(ledger) {
            return Ok(slot);
        }
        let load = || {
            let (index, table) = (self.index.clone(), self.table.clone());
            let (tombstones, sealed_through) = (self.tombstones.clone(), self.sealed_through.clone());
            async move {
                let row = rows::ledger_state(&*index, ledger).await?;
                let state = LedgerState::restored(row.as_ref(), tombstones.of(ledger));
                Ok(table.insert(ledger, state, SegmentId::new(sealed_through.load(Ordering::Acquire))))
            }
            .boxed()
        };
        self.ledger_loads.get(ledger, || self.table.get(ledger), load).await
    }

    /// Takes in what metadata proved of closed ledgers, each with its last entry: all of them is confirmed, and told so as long as the
    /// bookie knows of them, also after they were loaded again.
    ///
    /// # Errors
    /// As [`Store::write_index`]; nothing else is told then than before.
    pub(crate) async fn confirm_ends(&self, ends: &[(LedgerId, Option<EntryId>)]) -> Result<(), Error> {
        let is_news = |(ledger, end): &&(LedgerId, Option<EntryId>)| {
            self.cached(*ledger).is_none_or(|slot| slot.lock().last_confirmed < *end)
        };
        let ends: Vec<_> = ends.iter().filter(is_news).collect();
        if ends.is_empty() {
            return Ok(());
        }
        let _one = self.ledger_rows.lock().await;
        let (mut changes, mut confirmed) = (Vec::new(), Vec::new());
        for (ledger, end) in ends {
            let slot = self.slot(*ledger).await?;
            if slot.lock().last_confirmed >= *end {
                continue;
            }
            // The row, not the state, which may have what is not durable yet. One without a row gets it when it is sealed.
            if let Some(row) = rows::ledger_state(&*self.index, *ledger).await? {
                let row = rows::LedgerStateRow { last_confirmed: row.last_confirmed.max(*end), ..row };
                changes.push(rows::put_ledger(*ledger, &row));
            }
            confirmed.push((slot, *end));
        }
        if !changes.is_empty() {
            self.write_index(changes).await?;
        }
        for (slot, end) in confirmed {
            {
                let mut state = slot.lock();
                state.last_confirmed = state.last_confirmed.max(end);
            }
            slot.tell_news();
        }
        Ok(())
    }

    /// Makes a durable group visible. `records` are those of the group, the ones of a ledger side by side; `end` is where the
    /// next group goes.
    pub(crate) fn publish(&self, segment: &OpenSegment, end: u64, sequence: u64, records: &[Durable<'_>], now_ms: u64) {
        let mut index = segment.index_mut();
        for run in records.chunk_by(|a, b| Arc::ptr_eq(a.slot, b.slot)) {
            let slot = run[0].slot;
            let recovery = run.iter().any(|record| record.kind == RecordKind::RecoveryEntry);
            let rows = run.iter().filter(|record| record.kind.is_entry()).map(|record| (record.entry, record.place));
            index.insert(slot, rows, if recovery { now_ms } else { 0 });
        }
        index.end = end;
        index.last_sequence = sequence;
        drop(index);
        for run in records.chunk_by(|a, b| Arc::ptr_eq(a.slot, b.slot)) {
            let slot = run[0].slot;
            let mut state = slot.lock();
            let (confirmed, fenced) = (state.last_confirmed, state.is_fenced_for_good());
            if run.iter().any(|record| record.kind == RecordKind::RecoveryEntry) {
                state.recovery_ms = state.recovery_ms.max(now_ms).max(1);
            }
            for record in run {
                match record.kind {
                    RecordKind::Entry | RecordKind::RecoveryEntry => {
                        state.on_entry(segment.id(), record.entry, record.last_confirmed);
                    }
                    RecordKind::Fence => state.on_fence(segment.id()),
                    RecordKind::MasterKey => state.on_key(segment.id(), record.body),
                    RecordKind::ExplicitLac => state.on_explicit_lac(segment.id(), record.body),
                    RecordKind::Tombstone => state.on_other(segment.id()),
                }
            }
            let has_news = state.last_confirmed > confirmed || state.is_fenced_for_good() != fenced;
            drop(state);
            if has_news {
                slot.tell_news();
            }
        }
    }

    /// A buffer for a group of so many bytes, with any content.
    pub(crate) fn group_buffer(&self, bytes: usize) -> AlignedBuffer {
        self.recent.buffer(bytes)
    }

    /// Keeps a durable group in memory for readers of the tail.
    pub(crate) fn keep_recent(&self, segment: SegmentId, start: u32, buffer: AlignedBuffer, bytes: usize) {
        self.recent.push(segment, start, buffer, bytes);
    }
}
