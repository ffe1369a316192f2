//! Since when ledgers have been seen closed or settled, and which of them failed lately. In memory only: after a restart times
//! count anew, which errs towards keeping entries hot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ledger::LedgerId;
use tokio::time::Instant;

/// The most ledgers remembered, about 20 MiB. More than these wait their turn: the lowest ids are settled and released first.
const LEDGERS_MAX: usize = 256 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Seen {
    ledgers: Mutex<BTreeMap<LedgerId, Sight>>,
}

/// What is remembered of a ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) closed_since: Option<Instant>,
    pub(crate) settled_since: Option<Instant>,
    pub(crate) failures: u32,
    pub(crate) not_before: Option<Instant>,
}

/// The ledgers that bookies ask to be released.
#[derive(Debug, Default)]
pub(crate) struct Requested(Mutex<Arc<BTreeSet<LedgerId>>>);

impl Requested {
    pub(crate) fn set(&self, ledgers: BTreeSet<LedgerId>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(ledgers);
    }

    pub(crate) fn all(&self) -> Arc<BTreeSet<LedgerId>> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn has(&self, ledger: LedgerId) -> bool {
        self.all().contains(&ledger)
    }
}

impl Seen {
    /// Notes a closed ledger; `None` when too many others are noted already.
    pub(crate) fn note(&self, ledger: LedgerId, settled: bool, now: Instant) -> Option<Sight> {
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        if !ledgers.contains_key(&ledger) && ledgers.len() >= LEDGERS_MAX {
            return None;
        }
        let sight = ledgers.entry(ledger).or_default();
        sight.closed_since.get_or_insert(now);
        if settled {
            sight.settled_since.get_or_insert(now);
        }
        Some(*sight)
    }

    pub(crate) fn get(&self, ledger: LedgerId) -> Sight {
        let ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        ledgers.get(&ledger).copied().unwrap_or_default()
    }

    /// Notes that a job failed: the next one waits for `first` doubled with each failure, at most `longest`.
    pub(crate) fn failed(&self, ledger: LedgerId, now: Instant, first: Duration, longest: Duration) {
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sight) = ledgers.get_mut(&ledger) {
            let pause = first.saturating_mul(1 << sight.failures.min(16)).min(longest);
            sight.failures = sight.failures.saturating_add(1);
            sight.not_before = Some(now + pause);
        }
    }

    pub(crate) fn succeeded(&self, ledger: LedgerId) {
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sight) = ledgers.get_mut(&ledger) {
            (sight.failures, sight.not_before) = (0, None);
        }
    }

    pub(crate) fn forget(&self, ledger: LedgerId) {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner).remove(&ledger);
    }

    /// Forgets ledgers from `from` up to `to` that are not in `listed`: they are deleted.
    pub(crate) fn keep_only(&self, from: Option<LedgerId>, to: Option<LedgerId>, listed: &[LedgerId]) {
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        ledgers.retain(|id, _| {
            let inside = from.is_none_or(|from| *id > from) && to.is_none_or(|to| *id <= to);
            !inside || listed.binary_search(id).is_ok()
        });
    }
}
