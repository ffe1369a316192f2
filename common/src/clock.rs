//! Time, passed in as an argument.
//!
//! Intervals and deadlines use [`Clock::now`], which is tokio's clock, so that paused and simulated time work. The wall clock
//! is only for what people and records see ([`Clock::wall_ms`]); it may jump, and nothing decides an interval by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A source of time. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock {
    wall: Wall,
}

#[derive(Clone, Debug)]
enum Wall {
    System,
    Manual(Arc<AtomicU64>),
    Following { start: Instant, wall_ms: u64 },
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self { wall: Wall::System }
    }

    /// A wall clock that stands still at `wall_ms` (milliseconds since 1970) until the handle moves it.
    pub fn manual(wall_ms: u64) -> (Self, ManualClock) {
        let cell = Arc::new(AtomicU64::new(wall_ms));
        let clock = Self { wall: Wall::Manual(Arc::clone(&cell)) };
        (clock, ManualClock { wall_ms: cell })
    }

    /// A wall clock that starts at `wall_ms` and then moves with tokio's clock, for simulations and paused time.
    pub fn following(wall_ms: u64) -> Self {
        Self { wall: Wall::Following { start: Instant::now(), wall_ms } }
    }

    /// The monotonic time, for intervals and deadlines.
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// The wall-clock time in milliseconds since 1970-01-01 UTC; 0 when the machine's clock is set before that.
    pub fn wall_ms(&self) -> u64 {
        match &self.wall {
            // The one allowed use: everyone else is given a `Clock`.
            #[allow(clippy::disallowed_methods)]
            Wall::System => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, whole_ms),
            Wall::Manual(cell) => cell.load(Ordering::Relaxed),
            Wall::Following { start, wall_ms } => wall_ms.saturating_add(whole_ms(start.elapsed())),
        }
    }
}

/// Moves the wall time of a [`Clock::manual`].
#[derive(Clone, Debug)]
pub struct ManualClock {
    wall_ms: Arc<AtomicU64>,
}

impl ManualClock {
    /// Sets the wall time, in milliseconds since 1970; it may go backwards, as real clocks do.
    pub fn set(&self, wall_ms: u64) {
        self.wall_ms.store(wall_ms, Ordering::Relaxed);
    }

    /// Moves the wall time forward.
    pub fn advance(&self, by: Duration) {
        self.wall_ms.fetch_add(whole_ms(by), Ordering::Relaxed);
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_time_moves_only_when_told() {
        let (clock, hand) = Clock::manual(1_000);
        assert_eq!(clock.wall_ms(), 1_000);
        hand.advance(Duration::from_secs(2));
        assert_eq!(clock.clone().wall_ms(), 3_000);
        hand.set(5);
        assert_eq!(clock.wall_ms(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn following_time_moves_with_tokio() {
        let clock = Clock::following(10);
        let before = clock.now();
        tokio::time::advance(Duration::from_millis(90)).await;
        assert_eq!(clock.wall_ms(), 100);
        assert_eq!(clock.now() - before, Duration::from_millis(90));
    }

    #[test]
    fn the_system_clock_is_past_2020() {
        assert!(Clock::system().wall_ms() > 1_577_836_800_000);
    }
}
