//! What one host may take of what all share: greetings under way, and lines of the log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::net::peer_host;
use tokio::time::Instant;

/// Warnings in [`WARNINGS_PERIOD`]; more are only counted.
const WARNINGS_MAX: u32 = 20;
const WARNINGS_PERIOD: Duration = Duration::from_secs(10);

type Counts = Mutex<HashMap<String, usize>>;

/// The greetings of each host that has some.
pub(crate) struct Crowds {
    max: usize,
    counts: Arc<Counts>,
}

/// A greeting that is counted for its host.
pub(crate) struct Counted {
    host: String,
    counts: Arc<Counts>,
}

impl Crowds {
    /// So many of one host at a time.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, counts: Arc::default() }
    }

    /// Counts a greeting of a peer; `None` when its host has too many, which matters where it is `crowded`.
    pub(crate) fn enter(&self, peer: &str, crowded: bool) -> Option<Counted> {
        let host = peer_host(peer);
        let mut counts = lock(&self.counts);
        let count = counts.entry(host.clone()).or_default();
        if crowded && *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Counted { host, counts: Arc::clone(&self.counts) })
    }
}

fn lock(counts: &Counts) -> MutexGuard<'_, HashMap<String, usize>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        let Entry::Occupied(mut count) = counts.entry(std::mem::take(&mut self.host)) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// Keeps strangers from filling the log.
pub(crate) struct Warnings(Mutex<Period>);

struct Period {
    began: Instant,
    told: u32,
    left_out: u64,
}

impl Warnings {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Period { began: Instant::now(), told: 0, left_out: 0 }))
    }

    /// Whether to tell one more, and how many were not told since the last one that was.
    pub(crate) fn next(&self) -> Option<u64> {
        let mut period = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if period.began.elapsed() >= WARNINGS_PERIOD {
            (period.began, period.told) = (Instant::now(), 0);
        }
        if period.told >= WARNINGS_MAX {
            period.left_out += 1;
            return None;
        }
        period.told += 1;
        Some(std::mem::take(&mut period.left_out))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_so_many_and_no_more() {
        let crowds = Crowds::new(2);
        let one = crowds.enter("10.0.0.1:1", true).unwrap();
        let _two = crowds.enter("10.0.0.1:2", true).unwrap();
        assert!(crowds.enter("10.0.0.1:3", true).is_none());
        assert!(crowds.enter("10.0.0.1:3", false).is_some(), "there is place enough");
        let other = crowds.enter("10.0.0.2:1", true).unwrap();
        drop(one);
        assert!(crowds.enter("10.0.0.1:3", true).is_some());
        drop(other);
        assert_eq!(lock(&crowds.counts).len(), 1, "who has none is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn warnings_are_few_and_what_is_left_out_is_said() {
        let warnings = Warnings::new();
        for _ in 0..WARNINGS_MAX {
            assert_eq!(warnings.next(), Some(0));
        }
        assert_eq!((warnings.next(), warnings.next()), (None, None));
        tokio::time::sleep(WARNINGS_PERIOD).await;
        assert_eq!((warnings.next(), warnings.next()), (Some(2), Some(0)));
    }
}
