use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledger::LedgerId;
use tokio::sync::Notify;

use crate::format::SegmentId;
use crate::ledger_state::LedgerState;

const SHARDS: usize = 64;
/// Ledgers kept in memory although nothing of them is on its way to the disk, in all shards together.
const IDLE_LEDGERS_MAX: usize = 64 * 1024;

/// A ledger in memory. Its lock is held for decisions, never over I/O.
#[derive(Debug)]
pub(crate) struct LedgerSlot {
    id: LedgerId,
    state: Mutex<LedgerState>,
    /// Wakes those who wait for a last-add-confirmed, a fence, or the end of the ledger.
    news: Notify,
}

impl LedgerSlot {
    pub(crate) fn id(&self) -> LedgerId {
        self.id
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether records of the ledger are queued for the journal.
    pub(crate) fn has_queued(&self) -> bool {
        self.lock().pending > 0
    }

    /// Tells those who wait that the state changed in a way that may matter to them.
    pub(crate) fn tell_news(&self) {
        self.news.notify_waiters();
    }

    /// Waits for a state, which whoever brings it about must tell. Cancel-safe.
    pub(crate) async fn wait_until(&self, reached: impl Fn(&LedgerState) -> bool) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Before the look, so that nothing told after it is missed.
            news.as_mut().enable();
            if reached(&self.lock()) {
                return;
            }
            news.await;
        }
    }
}

/// The ledgers in memory: those with records in unsealed segments, those in use, and a bounded number of others.
#[derive(Debug)]
pub(crate) struct LedgerTable {
    shards: Vec<Shard>,
}

#[derive(Debug, Default)]
struct Shard {
    slots: Mutex<HashMap<LedgerId, Arc<LedgerSlot>>>,
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, HashMap<LedgerId, Arc<LedgerSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LedgerTable {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    fn shard(&self, ledger: LedgerId) -> &Shard {
        &self.shards[(ledger.get() % SHARDS as u64) as usize]
    }

    /// The ledger, when it is in memory.
    pub(crate) fn get(&self, ledger: LedgerId) -> Option<Arc<LedgerSlot>> {
        self.shard(ledger).lock().get(&ledger).cloned()
    }

    /// Takes a ledger in that was read from the index. Whoever does so MUST be the only one for this ledger from before the read on,
    /// and the ledger not in memory then: so no state comes back that was changed, stored and forgotten meanwhile.
    pub(crate) fn insert(&self, ledger: LedgerId, state: LedgerState, sealed_through: SegmentId) -> Arc<LedgerSlot> {
        let slot = Arc::new(LedgerSlot { id: ledger, state: Mutex::new(state), news: Notify::new() });
        let mut slots = self.shard(ledger).lock();
        if slots.len() >= IDLE_LEDGERS_MAX / SHARDS {
            forget_idle(&mut slots, sealed_through);
        }
        slots.insert(ledger, slot.clone());
        slot
    }

    /// Forgets ledgers whose state can be read again, where there are too many.
    pub(crate) fn trim(&self, sealed_through: SegmentId) {
        for shard in &self.shards {
            let mut slots = shard.lock();
            if slots.len() >= IDLE_LEDGERS_MAX / SHARDS {
                forget_idle(&mut slots, sealed_through);
            }
        }
    }

    /// Ledgers in memory that the index does not know yet.
    pub(crate) fn count(&self, mut wanted: impl FnMut(&LedgerState) -> bool) -> u64 {
        let in_shard = |shard: &Shard| shard.lock().values().filter(|slot| wanted(&slot.lock())).count() as u64;
        self.shards.iter().map(in_shard).sum()
    }
}

fn forget_idle(slots: &mut HashMap<LedgerId, Arc<LedgerSlot>>, sealed_through: SegmentId) {
    // Nobody can take a new handle while the shard is locked, so a count of one means that only the table holds it.
    slots.retain(|_, slot| Arc::strong_count(slot) > 1 || !slot.lock().is_clean(sealed_through));
}
