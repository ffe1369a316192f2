use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ledger::LedgerId;

use crate::error::Error;
use crate::index::rows::{self, LedgerSet, TombstoneKind};
use crate::index::{Index, Write};
use crate::ledger_state::Tombstone;

/// Which ledgers were dropped, for ever. The same sets stand in the index, but for chunks that wait to be written there: nothing
/// may be dropped, and no recovery add admitted, on the word of those.
pub(crate) struct Tombstones {
    sets: Mutex<Sets>,
    /// Held from a change in memory until the index has it.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Sets {
    deleted: LedgerSet,
    gone: LedgerSet,
    revived: LedgerSet,
    /// A ledger of each chunk that the index does not have as it is here.
    unwritten: BTreeMap<u64, LedgerId>,
}

impl Sets {
    fn of(&self, ledger: LedgerId) -> Option<Tombstone> {
        if self.deleted.contains(ledger) {
            Some(Tombstone::Deleted)
        } else if self.revived.contains(ledger) {
            Some(Tombstone::Revived)
        } else if self.gone.contains(ledger) {
            Some(Tombstone::Gone)
        } else {
            None
        }
    }
}

impl Tombstones {
    pub(crate) async fn load(index: &dyn Index) -> Result<Self, Error> {
        let sets = Sets {
            deleted: rows::tombstones(index, TombstoneKind::Deleted).await?,
            gone: rows::tombstones(index, TombstoneKind::Gone).await?,
            revived: rows::tombstones(index, TombstoneKind::Revived).await?,
            unwritten: BTreeMap::new(),
        };
        Ok(Self { sets: Mutex::new(sets), writing: tokio::sync::Mutex::default() })
    }

    pub(crate) fn of(&self, ledger: LedgerId) -> Option<Tombstone> {
        self.lock().of(ledger)
    }

    /// How many ledgers have one.
    pub(crate) fn count(&self) -> u64 {
        let sets = self.lock();
        sets.deleted.len() + sets.gone.len() + sets.revived.len()
    }

    /// Whoever changes tombstones holds this from [`Tombstones::set`] until the index was written: a change is of a whole chunk,
    /// so of two that overtake each other on their way to the index the later one would be lost there.
    pub(crate) async fn one_writer(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    /// Sets the tombstone of a ledger in memory; see [`Tombstones::one_writer`].
    pub(crate) fn set(&self, ledger: LedgerId, tombstone: Tombstone) {
        let mut sets = self.lock();
        sets.deleted.remove(ledger);
        sets.gone.remove(ledger);
        sets.revived.remove(ledger);
        match tombstone {
            Tombstone::Deleted => sets.deleted.insert(ledger),
            Tombstone::Gone => sets.gone.insert(ledger),
            Tombstone::Revived => sets.revived.insert(ledger),
        }
        sets.unwritten.insert(rows::chunk_of(ledger), ledger);
    }

    /// The changes that bring the index to what is here; see [`Tombstones::one_writer`].
    pub(crate) fn unwritten(&self) -> Vec<Write> {
        let sets = self.lock();
        let chunk = |kind, ledger| match kind {
            TombstoneKind::Deleted => sets.deleted.put_chunk(kind, ledger),
            TombstoneKind::Gone => sets.gone.put_chunk(kind, ledger),
            TombstoneKind::Revived => sets.revived.put_chunk(kind, ledger),
        };
        sets.unwritten.values().flat_map(|ledger| TombstoneKind::ALL.map(|kind| chunk(kind, *ledger))).collect()
    }

    /// The index has all changes that [`Tombstones::unwritten`] gave.
    pub(crate) fn written(&self) {
        self.lock().unwritten.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
