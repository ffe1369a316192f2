use std::sync::Arc;

use bytes::Bytes;
use common::budget::BytePermit;
use ledger::{EntryId, MasterKey};
use proto::Status;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{LedgerSlot, Store};
use crate::format::RecordKind;
use crate::journal::{Completion, Pending, Work};
use crate::ledger_state::{Admission, LedgerState, Refusal, Tombstone};
use crate::wakeups::Wakeups;

/// An entry to store.
pub(crate) struct Add {
    pub(crate) entry: EntryId,
    pub(crate) last_confirmed: Option<EntryId>,
    pub(crate) master_key: MasterKey,
    pub(crate) body: Bytes,
    pub(crate) recovery: bool,
    pub(crate) high_priority: bool,
    /// Covers the body until the commit; shared by the adds that were received together.
    pub(crate) permit: Option<Arc<BytePermit>>,
    /// When its request came in.
    pub(crate) received: Instant,
}

impl Refusal {
    /// The word for the caller.
    pub(crate) fn status(self) -> Status {
        match self {
            Self::Unauthorized => Status::Unauthorized,
            Self::Fenced => Status::Fenced,
            Self::NoLedger => Status::NoLedger,
            // Only said when the revival itself failed.
            Self::NeedsRevival => Status::Io,
        }
    }
}

impl Store {
    /// Decides on an add and queues it. Every call ends in exactly one call of `done`: at once when the add is refused and
    /// `in_order` is not set, else by the journal, after everything that was queued before.
    ///
    /// An add that must first revive a gone ledger comes back; see [`Store::revive`].
    pub(crate) fn add(
        &self,
        slot: &Arc<LedgerSlot>,
        add: Add,
        done: Completion,
        in_order: bool,
    ) -> Result<(), (Add, Completion)> {
        if !self.condition.takes(add.high_priority) {
            self.refuse(self.why_not_writable(), done, in_order);
            return Ok(());
        }
        let mut state = slot.lock();
        match state.admit_add(&add.master_key, add.recovery, self.clock.wall_ms()) {
            Ok(admission) => {
                let kind = if add.recovery { RecordKind::RecoveryEntry } else { RecordKind::Entry };
                let work = Work::Record { kind, entry: add.entry, body: add.body, last_confirmed: add.last_confirmed };
                let record = Pending {
                    work,
                    slot: Some(slot.clone()),
                    done: Some(done),
                    permit: add.permit,
                    received: add.received,
                    high_priority: add.high_priority,
                };
                self.queue_records(slot, &mut state, admission, Some(record));
                Ok(())
            }
            Err(Refusal::NeedsRevival) => Err((add, done)),
            Err(refusal) => {
                drop(state);
                self.refuse(refusal.status(), done, in_order);
                Ok(())
            }
        }
    }

    /// After a failed write nothing is known about the disk; without space the refusal is certain.
    fn why_not_writable(&self) -> Status {
        if self.condition.failure().is_some() { Status::Io } else { Status::ReadOnly }
    }

    /// Decides on an explicit last-add-confirmed and queues it. Every call ends in exactly one call of `done`: at once when it is
    /// refused, else by the journal. `permit` covers the body until the commit.
    pub(crate) fn write_lac(
        &self,
        slot: &Arc<LedgerSlot>,
        key: &MasterKey,
        body: Bytes,
        permit: Option<Arc<BytePermit>>,
        done: Completion,
    ) {
        if !self.condition.is_writable() {
            return done(Err(self.why_not_writable()), &mut Wakeups::default());
        }
        let mut state = slot.lock();
        match state.admit_write_lac(key) {
            Ok(admission) => {
                let record = Pending::control(slot, RecordKind::ExplicitLac, body, Some(done));
                self.queue_records(slot, &mut state, admission, Some(Pending { permit, ..record }));
            }
            Err(refusal) => {
                drop(state);
                done(Err(refusal.status()), &mut Wakeups::default());
            }
        }
    }

    /// Calls `done` once everything acknowledged before is on stable storage, whatever the sync mode.
    pub(crate) fn force(&self, done: Completion) {
        self.queue.push(std::iter::once(Pending::nothing(Work::Barrier, Some(done))));
    }

    /// Waits until all that is queued for the journal now is answered: what was admitted before is visible then, or refused. Cancel-safe.
    ///
    /// # Errors
    /// When the journal has failed, or the bookie stops: what becomes of it is unknown.
    pub(crate) async fn queued_before(&self) -> Result<(), Status> {
        let (sender, receiver) = oneshot::channel();
        // A receiver that is gone has nobody left to tell.
        let done: Completion = Box::new(move |result, _| {
            let _ = sender.send(result);
        });
        self.queue.push(std::iter::once(Pending::nothing(Work::Turn, Some(done))));
        receiver.await.unwrap_or(Err(Status::Io))
    }

    /// Answers a request with a refusal, now or after what is queued.
    pub(crate) fn refuse(&self, status: Status, done: Completion, in_order: bool) {
        if in_order {
            self.queue.push(std::iter::once(Pending::nothing(Work::Marker(status), Some(done))));
        } else {
            self.metrics.add_refused(status);
            done(Err(status), &mut Wakeups::default());
        }
    }

    /// Fences a ledger. Returns once the fence and the key that was shown are durable, by when every add admitted earlier is
    /// durable and visible too, or refused. Not cancel-safe: the fence may happen.
    pub(crate) async fn fence(&self, slot: &Arc<LedgerSlot>, key: Option<&MasterKey>) -> Result<(), Status> {
        let receiver = {
            let mut state = slot.lock();
            let admission = state.admit_fence(key).map_err(Refusal::status)?;
            if !admission.write_fence && !admission.write_key {
                return Ok(());
            }
            let (sender, receiver) = oneshot::channel();
            // A receiver that is gone has nobody left to tell.
            let done: Completion = Box::new(move |result, _| {
                let _ = sender.send(result);
            });
            if admission.write_fence {
                let record = Pending::control(slot, RecordKind::Fence, Bytes::new(), Some(done));
                self.queue_records(slot, &mut state, admission, Some(record));
            } else {
                let record = key_record(slot, &state, Some(done));
                self.queue_records(slot, &mut state, Admission { write_key: false, ..admission }, Some(record));
            }
            receiver
        };
        receiver.await.unwrap_or(Err(Status::Io))
    }

    /// Queues a fence that no caller asked for.
    pub(crate) fn queue_fence(&self, slot: &Arc<LedgerSlot>, done: Completion) {
        let mut state = slot.lock();
        let admission = state.admit_own_fence();
        let record = Pending::control(slot, RecordKind::Fence, Bytes::new(), Some(done));
        self.queue_records(slot, &mut state, admission, Some(record));
    }

    fn queue_records(
        &self,
        slot: &Arc<LedgerSlot>,
        state: &mut LedgerState,
        admission: Admission,
        record: Option<Pending>,
    ) {
        let key = admission.write_key.then(|| key_record(slot, state, None));
        state.pending += u32::from(key.is_some()) + u32::from(record.is_some());
        self.queue.push(key.into_iter().chain(record));
    }

    /// Turns a *gone* ledger into a *revived* one, durably, so that recovery adds to it are protected from the collector.
    pub(crate) async fn revive(&self, slot: &Arc<LedgerSlot>) -> Result<(), Status> {
        let one_writer = self.tombstones.one_writer().await;
        {
            let mut state = slot.lock();
            if state.tombstone != Some(Tombstone::Gone) {
                return Ok(());
            }
            // Counts from now, so that a collector that looks at the same time lets it alone.
            state.recovery_ms = state.recovery_ms.max(self.clock.wall_ms()).max(1);
            self.tombstones.set(slot.id(), Tombstone::Revived);
        }
        let written = self.write_tombstones(&one_writer).await;
        let mut state = slot.lock();
        match written {
            Ok(()) => {
                if state.tombstone == Some(Tombstone::Gone) {
                    state.tombstone = Some(Tombstone::Revived);
                }
                Ok(())
            }
            // It stays gone. Whatever of this the index took is overwritten before anything is dropped.
            Err(error) if error.is_index_full() => {
                self.tombstones.set(slot.id(), Tombstone::Gone);
                Err(Status::ReadOnly)
            }
            // Writing has ended: what the index says now is unknown, and it must never say less than was acted upon.
            Err(_) => Err(Status::Io),
        }
    }
}

fn key_record(slot: &Arc<LedgerSlot>, state: &LedgerState, done: Option<Completion>) -> Pending {
    let key = state.master_key.unwrap_or(MasterKey::EMPTY);
    Pending::control(slot, RecordKind::MasterKey, Bytes::copy_from_slice(key.as_bytes()), done)
}
