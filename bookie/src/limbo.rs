//! What may be missing here without anyone being able to tell from what is here.
//!
//! A bookie that does not sync its journal (`sync = "never"`) may lose what it acknowledged, fences and whole ledgers included,
//! when its machine loses power. Its next start finds the mark of such a run (`mark.rs`), and from then on nothing that is missing
//! may be told as absent, nor may an add of a writer be taken to a ledger that was fenced before, until that is known again:
//!
//! 1. *Everything is unproven.* The bookie is read-only. What is here is served; what is not is unknown.
//! 2. Metadata has told which ledgers name this bookie: those are *in limbo*, the others never were here, or not any more. Each is fenced,
//!    durably, since a lost fence leaves no trace. Then adds to new ledgers are taken.
//! 3. A ledger in limbo that is closed is compared with what metadata says should be here; what is missing is fetched from its other members
//!    (`integrity.rs`). Once all of it is durable here, the ledger is out of limbo. One that is open waits until somebody closes it.
//!
//! The same is done after an index was rebuilt from segments and something of it was lost (`rebuild.rs`).
//!
//! The mark stays until no ledger is in limbo, so a crash at any moment starts this over. Source: sections 4.7 and 5 of the protocol
//! notes on limbo and the data-integrity check (BP-46 of BookKeeper).

mod integrity;
mod mark;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use ledger::LedgerId;

pub(crate) use integrity::Integrity;
pub(crate) use mark::{MARK_FILE, Mark, put_mark};

use crate::index::rows::LedgerSet;

/// Which ledgers are in limbo. The owner of that fact.
#[derive(Debug)]
pub(crate) struct Limbo {
    /// The fast answer where nothing is, which is nearly always.
    anything: AtomicBool,
    unproven: RwLock<Unproven>,
}

#[derive(Debug)]
enum Unproven {
    /// Metadata has not told yet which ledgers name this bookie.
    Everything,
    Ledgers(LedgerSet),
}

impl Limbo {
    /// With `everything` unproven, or nothing.
    pub(crate) fn new(everything: bool) -> Self {
        let unproven = if everything { Unproven::Everything } else { Unproven::Ledgers(LedgerSet::default()) };
        Self { anything: AtomicBool::new(everything), unproven: RwLock::new(unproven) }
    }

    /// Whether what is missing of a ledger is unknown. Whoever searches the ledger asks this *before* the search: what is fetched
    /// becomes visible before the ledger is out of limbo.
    pub(crate) fn covers(&self, ledger: LedgerId) -> bool {
        self.anything.load(Ordering::Acquire)
            && match &*self.unproven.read().unwrap_or_else(PoisonError::into_inner) {
                Unproven::Everything => true,
                Unproven::Ledgers(ledgers) => ledgers.contains(ledger),
            }
    }

    /// Whether everything is unproven, so that no add may be taken.
    pub(crate) fn is_everything(&self) -> bool {
        self.anything.load(Ordering::Acquire)
            && matches!(&*self.unproven.read().unwrap_or_else(PoisonError::into_inner), Unproven::Everything)
    }

    /// Whether any ledger is in limbo.
    pub(crate) fn is_empty(&self) -> bool {
        !self.anything.load(Ordering::Acquire)
    }

    /// How many ledgers are known to be in limbo.
    pub(crate) fn count(&self) -> u64 {
        match &*self.unproven.read().unwrap_or_else(PoisonError::into_inner) {
            Unproven::Everything => 0,
            Unproven::Ledgers(ledgers) => ledgers.len(),
        }
    }

    /// Those that are known, in the order of ids, behind one of them, and no more than `limit`.
    pub(crate) fn page(&self, after: Option<LedgerId>, limit: usize) -> Vec<LedgerId> {
        match &*self.unproven.read().unwrap_or_else(PoisonError::into_inner) {
            Unproven::Everything => Vec::new(),
            Unproven::Ledgers(ledgers) => ledgers.behind(after).take(limit).collect(),
        }
    }

    /// Only these are unproven. They MUST be fenced for good.
    pub(crate) fn narrow(&self, ledgers: LedgerSet) {
        let mut unproven = self.unproven.write().unwrap_or_else(PoisonError::into_inner);
        self.anything.store(ledgers.len() > 0, Ordering::Release);
        *unproven = Unproven::Ledgers(ledgers);
    }

    /// All that should be here of a ledger is here, durable and visible.
    pub(crate) fn prove(&self, ledger: LedgerId) {
        let mut unproven = self.unproven.write().unwrap_or_else(PoisonError::into_inner);
        if let Unproven::Ledgers(ledgers) = &mut *unproven {
            ledgers.remove(ledger);
            self.anything.store(ledgers.len() > 0, Ordering::Release);
        }
    }
}
