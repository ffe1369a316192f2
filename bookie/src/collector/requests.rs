//! Asks for the release of what keeps the oldest segments: in metadata, where offloaders look.
//!
//! A bookie that has space enough asks for nothing, and settled ledgers stay on it for as long as offloaders let them. One that is
//! getting short of it asks for the ledgers of as many of its oldest segments as would have to go: space comes back a segment at a
//! time. What becomes of a request is not waited for; the collector finds what was released like everything else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ledger::LedgerId;
use metadata::ReleaseRequests;

use super::{Collector, needs_verdict};

/// What segments have of the disk.
#[derive(Clone, Copy, Debug)]
struct Space {
    allocated: u64,
    /// The setting `disk_bytes_max`.
    most: u64,
    /// Free on the file system.
    free: u64,
    /// Of that, what is left to others.
    kept: u64,
}

impl Space {
    /// Bytes of the oldest segments that should go, so that segments have no more than `percent` of what they may have. Pure.
    fn surplus(&self, percent: u64) -> u64 {
        let reachable = self.allocated.saturating_add(self.free.saturating_sub(self.kept));
        let share = u128::from(self.most.min(reachable)) * u128::from(percent) / 100;
        self.allocated.saturating_sub(u64::try_from(share).unwrap_or(u64::MAX))
    }
}

/// The ledgers to ask for: those of the oldest segments, until these have `surplus` bytes, at most [`ReleaseRequests::LEDGERS_MAX`].
struct Wish {
    /// What is still wanted.
    surplus: u64,
    ledgers: BTreeSet<LedgerId>,
}

impl Wish {
    fn is_complete(&self) -> bool {
        self.surplus == 0 || self.ledgers.len() == ReleaseRequests::LEDGERS_MAX
    }

    /// Adds a segment, the next oldest.
    fn add(&mut self, bytes: u64, ledgers: impl IntoIterator<Item = LedgerId>) {
        let room = ReleaseRequests::LEDGERS_MAX - self.ledgers.len();
        let new: Vec<LedgerId> =
            ledgers.into_iter().filter(|ledger| !self.ledgers.contains(ledger)).take(room).collect();
        self.ledgers.extend(new);
        self.surplus = self.surplus.saturating_sub(bytes);
    }
}

impl Collector {
    /// Looks what to ask for now; whoever keeps the registration tells it.
    pub(super) async fn ask_for_releases(&self) {
        let store = &self.store;
        // Without an answer the last request stands.
        let Ok(free) = store.disk.free_bytes(&store.journal_dir).await else { return };
        let space = Space {
            allocated: store.allocated_bytes.load(Ordering::Relaxed),
            most: store.config.disk_bytes_max.bytes(),
            free,
            kept: store.config.disk_free_bytes_min.bytes(),
        };
        let surplus = space.surplus(store.config.release_request_percent);
        let mut wish = Wish { surplus, ledgers: BTreeSet::new() };
        for row in store.sealed.rows() {
            if wish.is_complete() {
                break;
            }
            if let Some(ledgers) = self.ledgers_of(row.id).await {
                wish.add(
                    row.file_bytes,
                    ledgers.into_iter().filter(|ledger| needs_verdict(store.tombstones.of(*ledger))),
                );
            }
        }
        let ledgers: Arc<[LedgerId]> = wish.ledgers.into_iter().collect();
        store.release_requests.send_if_modified(|asked| {
            let is_new = *asked != ledgers;
            if is_new {
                tracing::debug!(ledgers = ledgers.len(), surplus, "asks for releases");
                *asked = ledgers;
            }
            is_new
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ledgers(ids: impl IntoIterator<Item = u64>) -> Vec<LedgerId> {
        ids.into_iter().map(|id| LedgerId::new(id).unwrap()).collect()
    }

    #[test]
    fn the_surplus_is_what_segments_have_beyond_their_share() {
        for (allocated, most, free, kept, percent, surplus) in [
            (40, 100, 1000, 0, 50, 0),
            (50, 100, 1000, 0, 50, 0),
            (70, 100, 1000, 0, 50, 20),
            // The file system is the limit: of 90 that could be had.
            (70, 1000, 30, 10, 50, 25),
            (70, 1000, 5, 10, 50, 35),
            (70, 100, 1000, 0, 100, 0),
            (0, 100, 0, 10, 50, 0),
            (u64::MAX, u64::MAX, u64::MAX, 0, 50, u64::MAX / 2 + 1),
        ] {
            let space = Space { allocated, most, free, kept };
            assert_eq!(space.surplus(percent), surplus, "{space:?}");
        }
    }

    #[test]
    fn the_oldest_segments_are_asked_for_until_their_bytes_are_enough() {
        let mut wish = Wish { surplus: 150, ledgers: BTreeSet::new() };
        wish.add(100, ledgers([5, 3]));
        assert!(!wish.is_complete());
        wish.add(100, ledgers([3, 9]));
        assert!(wish.is_complete());
        assert_eq!(wish.ledgers.into_iter().collect::<Vec<_>>(), ledgers([3, 5, 9]));

        let mut wish = Wish { surplus: u64::MAX, ledgers: BTreeSet::new() };
        wish.add(1, ledgers(0..1000));
        wish.add(1, ledgers(0..5000));
        assert!(wish.is_complete() && wish.ledgers.len() == ReleaseRequests::LEDGERS_MAX);
    }
}
