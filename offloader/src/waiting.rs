//! Releases that wait for the gateways: why, and for how long the policy leaves them alone.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What the releases of this offloader wait for, if they do.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    wait: Mutex<Option<Wait>>,
}

#[derive(Debug)]
struct Wait {
    until: Instant,
    why: String,
}

impl Waiting {
    /// Notes that a release found nobody to serve its ledger; the policy tries none before `pause` is over, so that the ledgers that
    /// are to be settled get their turn. Returns whether that is news.
    pub(crate) fn begin(&self, why: String, now: Instant, pause: Duration) -> bool {
        let mut wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        let news = wait.is_none();
        *wait = Some(Wait { until: now + pause, why });
        news
    }

    /// A ledger was served through its cold ids. Returns whether that is news.
    pub(crate) fn end(&self) -> bool {
        self.wait.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }

    /// What releases wait for; `None` when they do not.
    pub(crate) fn why(&self) -> Option<String> {
        self.wait.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|wait| wait.why.clone())
    }

    /// What releases by the policy wait for now.
    pub(crate) fn holds(&self, now: Instant) -> Option<String> {
        let wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        wait.as_ref().filter(|wait| now < wait.until).map(|wait| wait.why.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_held_for_a_while_and_the_reason_stays_until_it_is_over() {
        let (waiting, now) = (Waiting::default(), Instant::now());
        assert!(!waiting.end());
        assert!(waiting.begin("nobody".to_owned(), now, Duration::from_secs(10)));
        assert!(!waiting.begin("nobody at all".to_owned(), now, Duration::from_secs(10)));
        assert_eq!(waiting.holds(now + Duration::from_secs(9)).as_deref(), Some("nobody at all"));
        assert_eq!(waiting.holds(now + Duration::from_secs(10)), None, "one may try");
        assert!(waiting.why().is_some());
        assert!(waiting.end());
        assert_eq!(waiting.why(), None);
    }
}
