use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ledger::{EntryId, LedgerId};

use super::table::LedgerSlot;
use crate::disk::{BLOCK_BYTES, DiskFile};
use crate::format::{EntryRow, Place, SegmentHeader, SegmentId};
use crate::journal::Class;

/// A segment that is not sealed: being written, waiting to be sealed, or replayed. Its index is in memory.
pub(crate) struct OpenSegment {
    pub(crate) header: SegmentHeader,
    pub(crate) path: Arc<Path>,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Bytes reserved for it.
    pub(crate) capacity: u64,
    /// The least class it was made for: one made for keys and fences alone takes no entries.
    pub(crate) class: Class,
    index: RwLock<OpenIndex>,
}

pub(crate) struct OpenIndex {
    ledgers: HashMap<LedgerId, OpenLedger>,
    /// Distinct entries.
    pub(crate) entries: u64,
    /// Where the next group goes; a multiple of the block size.
    pub(crate) end: u64,
    /// Sequence of the last group.
    pub(crate) last_sequence: u64,
}

struct OpenLedger {
    slot: Arc<LedgerSlot>,
    /// Sorted by entry, distinct.
    rows: Vec<(u64, Place)>,
    recovery_ms: u64,
}

/// What sealing needs to know of a ledger beside its rows.
pub(crate) struct OpenLedgerFacts {
    pub(crate) slot: Arc<LedgerSlot>,
    pub(crate) entries: Option<(EntryId, EntryId)>,
    pub(crate) count: u64,
    pub(crate) recovery_ms: u64,
}

impl OpenIndex {
    fn ledger(&mut self, slot: &Arc<LedgerSlot>) -> &mut OpenLedger {
        let new = || OpenLedger { slot: slot.clone(), rows: Vec::new(), recovery_ms: 0 };
        self.ledgers.entry(slot.id()).or_insert_with(new)
    }

    /// Notes that the segment holds something of a ledger, and its entries, if any; a later entry replaces an earlier one of the
    /// same id. `recovery_ms` is 0 for normal adds.
    pub(crate) fn insert(
        &mut self,
        slot: &Arc<LedgerSlot>,
        rows: impl IntoIterator<Item = (EntryId, Place)>,
        recovery_ms: u64,
    ) {
        let ledger = self.ledger(slot);
        ledger.recovery_ms = ledger.recovery_ms.max(recovery_ms);
        let before = ledger.rows.len();
        for (entry, place) in rows {
            let entry = entry.get();
            match ledger.rows.last() {
                Some((last, _)) if *last >= entry => match ledger.rows.binary_search_by_key(&entry, |row| row.0) {
                    Ok(found) => ledger.rows[found].1 = place,
                    Err(found) => ledger.rows.insert(found, (entry, place)),
                },
                _ => ledger.rows.push((entry, place)),
            }
        }
        let added = ledger.rows.len() - before;
        self.entries += added as u64;
    }

    /// Ledgers with anything in the segment.
    pub(crate) fn ledgers(&self) -> u64 {
        self.ledgers.len() as u64
    }
}

impl OpenSegment {
    pub(crate) fn new(
        header: SegmentHeader,
        path: PathBuf,
        file: Arc<dyn DiskFile>,
        capacity: u64,
        class: Class,
    ) -> Self {
        let index = OpenIndex { ledgers: HashMap::new(), entries: 0, end: BLOCK_BYTES as u64, last_sequence: 0 };
        Self { header, path: path.into(), file, capacity, class, index: RwLock::new(index) }
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.header.id
    }

    pub(crate) fn index(&self) -> RwLockReadGuard<'_, OpenIndex> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, OpenIndex> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where an entry lies, when this segment has it.
    pub(crate) fn find(&self, ledger: LedgerId, entry: EntryId) -> Option<Place> {
        let index = self.index();
        let rows = &index.ledgers.get(&ledger)?.rows;
        let found = rows.binary_search_by_key(&entry.get(), |row| row.0).ok()?;
        Some(rows[found].1)
    }

    /// The ledgers with anything in the segment, sorted.
    pub(crate) fn ledger_ids(&self) -> Vec<LedgerId> {
        let mut ids: Vec<LedgerId> = self.index().ledgers.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Appends rows of a ledger to `out`, beginning with its row number `from`, at most `count`; returns how many.
    pub(crate) fn copy_rows(&self, ledger: LedgerId, from: usize, count: usize, out: &mut Vec<EntryRow>) -> usize {
        let index = self.index();
        let Some(held) = index.ledgers.get(&ledger) else { return 0 };
        let rows = held.rows.iter().skip(from).take(count);
        let before = out.len();
        out.extend(
            rows.filter_map(|(entry, place)| Some(EntryRow { ledger, entry: EntryId::new(*entry)?, place: *place })),
        );
        out.len() - before
    }

    /// What the segment holds of a ledger.
    pub(crate) fn facts(&self, ledger: LedgerId) -> Option<OpenLedgerFacts> {
        let index = self.index();
        let held = index.ledgers.get(&ledger)?;
        let id = |row: Option<&(u64, Place)>| row.and_then(|(entry, _)| EntryId::new(*entry));
        Some(OpenLedgerFacts {
            slot: held.slot.clone(),
            entries: id(held.rows.first()).zip(id(held.rows.last())),
            count: held.rows.len() as u64,
            recovery_ms: held.recovery_ms,
        })
    }
}
