//! Places for connections: so many may be open, and a newcomer takes the place of the one that has been idle longest.
//!
//! Peers that are gone without a word and clients that ask for nothing would else fill the places for ever. Whoever is
//! disconnected while idle is still answered what had arrived by then, and has lost at most a request that was on its way: clients
//! connect again when they have something to ask.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// See the module.
pub(super) struct Places {
    limit: usize,
    began: Instant,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    seats: BTreeMap<u64, Arc<Seat>>,
}

struct Seat {
    /// Since when it is idle, in milliseconds since the places began, and [`BUSY`] while it is not.
    idle: AtomicU64,
    gone: CancellationToken,
}

const BUSY: u64 = u64::MAX;

/// The place of one connection, free again when it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    seat: Arc<Seat>,
}

/// How a newcomer got a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taking {
    /// There was one.
    Free,
    /// An idle connection had to go.
    Evicted,
}

impl Places {
    /// So many, at least one.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, began: Instant::now(), taken: Mutex::default() })
    }

    /// A place for a newcomer, which begins idle; `None` while all are taken by connections that have something to do. Whoever has
    /// to go is told by [`Place::evicted`], and may be open for a moment more.
    pub(super) fn take(self: &Arc<Self>) -> Option<(Place, Taking)> {
        let mut taken = self.lock();
        let mut taking = Taking::Free;
        if taken.seats.len() >= self.limit {
            let idle = taken.seats.iter().map(|(number, seat)| (seat.idle.load(Ordering::Relaxed), *number));
            // Of those that are idle equally long the one that came first.
            let (_, number) = idle.filter(|(since, _)| *since != BUSY).min()?;
            taken.seats.remove(&number)?.gone.cancel();
            taking = Taking::Evicted;
        }
        let number = taken.next;
        taken.next += 1;
        let seat = Arc::new(Seat { idle: AtomicU64::new(self.now()), gone: CancellationToken::new() });
        taken.seats.insert(number, Arc::clone(&seat));
        drop(taken);
        Some((Place { places: Arc::clone(self), number, seat }, taking))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(BUSY - 1)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Says whether the connection has anything to do; costs little when that did not change.
    pub(super) fn set_idle(&self, idle: bool) {
        let was_idle = self.seat.idle.load(Ordering::Relaxed) != BUSY;
        if was_idle != idle {
            self.seat.idle.store(if idle { self.places.now() } else { BUSY }, Ordering::Relaxed);
        }
    }

    /// Cancelled when the place is another's.
    pub(super) fn evicted(&self) -> &CancellationToken {
        &self.seat.gone
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().seats.remove(&self.number);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_goes_and_nobody_who_is_busy() {
        let places = Places::new(2);
        let (first, _) = places.take().unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (second, taking) = places.take().unwrap();
        assert_eq!(taking, Taking::Free);
        // The first was busy meanwhile, so the second is idle longer.
        first.set_idle(false);
        tokio::time::sleep(Duration::from_secs(1)).await;
        first.set_idle(true);
        first.set_idle(true);
        let (third, taking) = places.take().unwrap();
        assert_eq!(taking, Taking::Evicted);
        assert!(second.evicted().is_cancelled() && !first.evicted().is_cancelled());
        first.set_idle(false);
        third.set_idle(false);
        assert!(places.take().is_none());
        // Its end frees no place that is another's by now.
        drop(second);
        assert!(places.take().is_none());
        drop(third);
        assert_eq!(places.take().unwrap().1, Taking::Free);
    }
}
