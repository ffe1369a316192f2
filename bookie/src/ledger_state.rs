//! What the bookie knows of one ledger, and the decisions that follow from it: values in, values out, no I/O.
//!
//! The owner keeps one lock around a [`LedgerState`] from the decision until the records are queued, so that the order of
//! admission is the order of the journal. That is the whole of fencing: an add admitted before the fence is in the journal before
//! it, and durable when the fence is.

use bytes::Bytes;
use ledger::{EntryId, LedgerId, MasterKey};

use crate::format::{LedgerRow, SegmentId};
use crate::index::rows::{LedgerSegment, LedgerStateRow};

/// How far a record that must outlive the process has come. Only moves forward, except that a failed write starts over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Durability {
    #[default]
    No,
    Queued,
    Yes,
}

/// Why the bookie dropped the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tombstone {
    /// Metadata proved that the ledger does not exist any more.
    Deleted,
    /// Metadata proved that the ledger is closed and lives elsewhere.
    Gone,
    /// It was gone, and recovery or repair brought entries back: what is here is served, what is missing is unknown.
    Revived,
}

/// Why a request is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Unauthorized,
    Fenced,
    NoLedger,
    /// The tombstone must first be changed durably; then the same request succeeds.
    NeedsRevival,
}

/// Why nothing can be told of all entries of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// It was never here, or is deleted.
    NoLedger,
    /// It was dropped: what is here may be less than what was.
    Unknown,
}

/// What admits an add: records to queue before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// The key is not durable yet and must be journaled first.
    pub(crate) write_key: bool,
    /// A fence must be journaled, and its durability awaited.
    pub(crate) write_fence: bool,
}

/// The state of one ledger.
#[derive(Debug, Default)]
pub(crate) struct LedgerState {
    /// Something about the ledger was ever stored here.
    pub(crate) exists: bool,
    /// The index has a row of it.
    pub(crate) indexed: bool,
    pub(crate) master_key: Option<MasterKey>,
    pub(crate) key_durability: Durability,
    pub(crate) fenced: bool,
    pub(crate) fence_durability: Durability,
    pub(crate) tombstone: Option<Tombstone>,
    /// Highest durable entry.
    pub(crate) max_entry: Option<EntryId>,
    /// Highest last-add-confirmed of any durable entry, and of the explicit ones.
    pub(crate) last_confirmed: Option<EntryId>,
    /// The durable explicit last-add-confirmed, as it was written. Of several the highest stays, so that nobody sees it go back.
    pub(crate) explicit_lac: Option<Bytes>,
    /// Wall time of the last admitted recovery add, in milliseconds; 0 for none.
    pub(crate) recovery_ms: u64,
    /// Records admitted whose fate is open.
    pub(crate) pending: u32,
    /// Newest segment that holds records of the ledger.
    pub(crate) touched: Option<SegmentId>,
    /// The ledger's sealed segments, once they were needed.
    pub(crate) segments: Option<std::sync::Arc<[LedgerSegment]>>,
    /// Counts changes of the sealed segments, so that a slow reader does not store an old list.
    pub(crate) segments_epoch: u64,
}

impl LedgerState {
    /// The state after a restart.
    pub(crate) fn restored(row: Option<&LedgerStateRow>, tombstone: Option<Tombstone>) -> Self {
        let Some(row) = row else { return Self { tombstone, exists: tombstone.is_some(), ..Self::default() } };
        let known = |known: bool| if known { Durability::Yes } else { Durability::No };
        Self {
            exists: true,
            indexed: true,
            master_key: row.master_key,
            key_durability: known(row.master_key.is_some()),
            fenced: row.fenced,
            fence_durability: known(row.fenced),
            tombstone,
            max_entry: row.max_entry,
            last_confirmed: row.last_confirmed,
            explicit_lac: row.explicit_lac.clone(),
            recovery_ms: row.recovery_ms,
            ..Self::default()
        }
    }

    /// The state as the index keeps it.
    pub(crate) fn row(&self) -> LedgerStateRow {
        LedgerStateRow {
            master_key: self.master_key,
            fenced: self.fenced,
            max_entry: self.max_entry,
            last_confirmed: self.last_confirmed,
            explicit_lac: self.explicit_lac.clone(),
            recovery_ms: self.recovery_ms,
        }
    }

    /// Whether what is here is all there ever was, so that it may be told as such; else why not.
    pub(crate) fn is_whole(&self) -> Result<(), Absence> {
        match self.tombstone {
            Some(Tombstone::Deleted) => Err(Absence::NoLedger),
            Some(Tombstone::Gone | Tombstone::Revived) => Err(Absence::Unknown),
            None if !self.exists => Err(Absence::NoLedger),
            None => Ok(()),
        }
    }

    /// Whether the fence is on stable storage.
    pub(crate) fn is_fenced_for_good(&self) -> bool {
        self.fenced && self.fence_durability == Durability::Yes
    }

    /// Whether a fence with this key would write nothing.
    pub(crate) fn is_fenced_with(&self, key: &MasterKey) -> bool {
        self.is_fenced_for_good() && self.master_key.as_ref() == Some(key) && self.key_durability == Durability::Yes
    }

    /// Whether someone who knows of `previous` and of a fence, or of none, has waited long enough.
    pub(crate) fn has_news(&self, previous: Option<EntryId>, knows_fence: bool) -> bool {
        self.last_confirmed > previous || self.is_whole().is_err() || (self.is_fenced_for_good() && !knows_fence)
    }

    /// A key of all zeros stands for "not known yet", in what is stored and in what tools send.
    fn known_key(&self) -> Option<&MasterKey> {
        self.master_key.as_ref().filter(|key| !key.is_empty())
    }

    fn check_key(&self, presented: &MasterKey) -> Result<(), Refusal> {
        match self.known_key() {
            Some(known) if known != presented => Err(Refusal::Unauthorized),
            _ => Ok(()),
        }
    }

    fn learn_key(&mut self, presented: &MasterKey) -> bool {
        if self.known_key().is_none() && self.master_key.as_ref() != Some(presented) {
            self.master_key = Some(*presented);
            self.key_durability = Durability::No;
        }
        self.exists = true;
        let write = self.key_durability == Durability::No;
        if write {
            self.key_durability = Durability::Queued;
        }
        write
    }

    /// Decides on an add. On success its records MUST be queued before the lock is released.
    pub(crate) fn admit_add(&mut self, key: &MasterKey, recovery: bool, now_ms: u64) -> Result<Admission, Refusal> {
        match self.tombstone {
            Some(Tombstone::Deleted) => return Err(Refusal::Fenced),
            Some(Tombstone::Gone | Tombstone::Revived) if !recovery => return Err(Refusal::Fenced),
            _ => {}
        }
        self.check_key(key)?;
        if self.fenced && !recovery {
            return Err(Refusal::Fenced);
        }
        if self.tombstone == Some(Tombstone::Gone) {
            return Err(Refusal::NeedsRevival);
        }
        if recovery {
            self.recovery_ms = self.recovery_ms.max(now_ms).max(1);
        }
        Ok(Admission { write_key: self.learn_key(key), write_fence: false })
    }

    /// Decides on a fence. On success its records MUST be queued before the lock is released, and the answer waits for them.
    pub(crate) fn admit_fence(&mut self, key: Option<&MasterKey>) -> Result<Admission, Refusal> {
        let key = key.ok_or(Refusal::Unauthorized)?;
        if self.tombstone == Some(Tombstone::Deleted) {
            return Err(Refusal::NoLedger);
        }
        self.check_key(key)?;
        // Of a gone ledger too: its tombstone may not be durable yet, and adds from before it may still be on their way.
        self.learn_key(key);
        // One that is on its way already is written again: the answer waits for what it brings itself.
        let write_key = self.key_durability != Durability::Yes;
        self.fenced = true;
        let write_fence = self.fence_durability != Durability::Yes;
        if write_fence {
            self.fence_durability = Durability::Queued;
        }
        Ok(Admission { write_key, write_fence })
    }

    /// A fence that nobody asked for, of a ledger that may be unknown here. Its record MUST be queued before the lock is released.
    pub(crate) fn admit_own_fence(&mut self) -> Admission {
        self.exists = true;
        self.fenced = true;
        self.fence_durability = Durability::Queued;
        Admission { write_key: false, write_fence: true }
    }

    /// Decides on an explicit last-add-confirmed, which no fence stops. On success its records MUST be queued before the lock is
    /// released.
    pub(crate) fn admit_write_lac(&mut self, key: &MasterKey) -> Result<Admission, Refusal> {
        match self.tombstone {
            Some(Tombstone::Deleted) => return Err(Refusal::NoLedger),
            // It is closed and lives elsewhere: whoever still writes it must stop.
            Some(Tombstone::Gone | Tombstone::Revived) => return Err(Refusal::Fenced),
            None => {}
        }
        self.check_key(key)?;
        Ok(Admission { write_key: self.learn_key(key), write_fence: false })
    }

    /// Whether the state can be forgotten and read again from the index.
    pub(crate) fn is_clean(&self, sealed_through: SegmentId) -> bool {
        self.pending == 0
            && self.touched.is_none_or(|touched| touched <= sealed_through)
            && self.key_durability != Durability::Queued
            && self.fence_durability != Durability::Queued
    }

    pub(crate) fn on_entry(&mut self, segment: SegmentId, entry: EntryId, last_confirmed: Option<EntryId>) {
        self.on_record(segment);
        self.max_entry = self.max_entry.max(Some(entry));
        self.last_confirmed = self.last_confirmed.max(last_confirmed);
    }

    /// A durable key: the one that was admitted, or one that replay found.
    pub(crate) fn on_key(&mut self, segment: SegmentId, key: &[u8]) {
        self.on_record(segment);
        let Some(key) = MasterKey::from_slice(key) else { return };
        if self.known_key().is_none() {
            self.master_key = Some(key);
        }
        if self.master_key == Some(key) {
            self.key_durability = Durability::Yes;
        }
    }

    /// A durable explicit last-add-confirmed.
    pub(crate) fn on_explicit_lac(&mut self, segment: SegmentId, body: &[u8]) {
        self.on_record(segment);
        let Some(confirmed) = confirmed_in(body) else { return };
        self.last_confirmed = self.last_confirmed.max(confirmed);
        if self.explicit_lac.as_deref().and_then(confirmed_in) <= Some(confirmed) {
            self.explicit_lac = Some(Bytes::copy_from_slice(body));
        }
    }

    /// What the index of a sealed segment says of the ledger.
    pub(crate) fn on_sealed(&mut self, segment: SegmentId, row: &LedgerRow) {
        self.on_record(segment);
        self.max_entry = self.max_entry.max(row.max_entry);
        self.last_confirmed = self.last_confirmed.max(row.last_confirmed);
        self.recovery_ms = self.recovery_ms.max(row.recovery_ms);
        if self.known_key().is_none() && row.master_key.is_some() {
            (self.master_key, self.key_durability) = (row.master_key, Durability::Yes);
        }
        if row.fenced {
            (self.fenced, self.fence_durability) = (true, Durability::Yes);
        }
    }

    pub(crate) fn on_other(&mut self, segment: SegmentId) {
        self.on_record(segment);
    }

    pub(crate) fn on_fence(&mut self, segment: SegmentId) {
        self.on_record(segment);
        self.fenced = true;
        self.fence_durability = Durability::Yes;
    }

    fn on_record(&mut self, segment: SegmentId) {
        self.exists = true;
        self.touched = self.touched.max(Some(segment));
        self.pending = self.pending.saturating_sub(1);
    }

    /// The record was not written. What it would have made durable must be queued again by the next request.
    pub(crate) fn on_failed(&mut self, was_key: bool, was_fence: bool) {
        self.pending = self.pending.saturating_sub(1);
        if was_key && self.key_durability == Durability::Queued {
            self.key_durability = Durability::No;
        }
        if was_fence && self.fence_durability == Durability::Queued {
            self.fence_durability = Durability::No;
        }
    }

    pub(crate) fn forget_segments(&mut self) {
        self.segments = None;
        self.segments_epoch += 1;
    }
}

/// The last-add-confirmed in the body of an explicit one: the second of its two ids.
fn confirmed_in(body: &[u8]) -> Option<Option<EntryId>> {
    let bytes = body.get(8..16)?.try_into().ok()?;
    EntryId::option_from_i64(i64::from_be_bytes(bytes))
}

/// A ledger that the collector may drop from a segment, as metadata proved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) ledger: LedgerId,
    pub(crate) tombstone: Tombstone,
    /// The last entry of a ledger that is closed and lives elsewhere.
    pub(crate) last: Option<EntryId>,
}

#[cfg(test)]
mod tests;
