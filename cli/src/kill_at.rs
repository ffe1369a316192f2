//! `--kill-at WHEN:STEP[:N]`: the process kills itself with SIGKILL at a step of the offload protocol.
//!
//! Made for the crash tests, which must not wait for luck to meet a step: the flag is hidden, and without it every step goes on.

use std::fmt;
use std::future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use ledger::LedgerId;
use offloader::{NoObserver, Step, StepObserver, Verdict};

/// The side of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum When {
    /// Before anything of the step was done.
    Before,
    /// After the step succeeded and before the job goes on.
    After,
}

impl When {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Before, Self::After];

    /// The word in front of the step's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// A moment of the offload protocol: the side of a step, and which time it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KillAt {
    /// The side of the step.
    pub when: When,
    /// The step.
    pub step: Step,
    /// Which time: 1 is the first.
    pub nth: u64,
}

impl FromStr for KillAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split(':');
        let when = words.next().and_then(|word| When::ALL.into_iter().find(|when| when.name() == word));
        let step = words.next().and_then(|word| Step::ALL.into_iter().find(|step| step.name() == word));
        let nth = words.next().map_or(Some(1), |word| word.parse().ok().filter(|nth| *nth > 0));
        match (when, step, nth, words.next()) {
            (Some(when), Some(step), Some(nth), None) => Ok(Self { when, step, nth }),
            _ => {
                let steps: Vec<&str> = Step::ALL.iter().map(|step| step.name()).collect();
                Err(format!(
                    "write it as before:STEP or after:STEP, or with :N for the nth time; steps are {}",
                    steps.join(", ")
                ))
            }
        }
    }
}

impl fmt::Display for KillAt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.when.name(), self.step.name(), self.nth)
    }
}

/// The observer to build an offloader with: one that kills this process at that moment, or one that sees nothing.
pub fn observer(kill_at: Option<KillAt>) -> Arc<dyn StepObserver> {
    match kill_at {
        Some(moment) => Arc::new(Killer { moment, reached: AtomicU64::new(0) }),
        None => Arc::new(NoObserver),
    }
}

/// Kills this process with SIGKILL once `done` has reached `limit`; for crash tests of what works through many keys.
pub(crate) fn kill_after(limit: Option<u64>, done: u64) {
    if limit.is_some_and(|limit| done >= limit) {
        let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        tracing::error!(?killed, done, "still alive after SIGKILL to itself");
    }
}

struct Killer {
    moment: KillAt,
    reached: AtomicU64,
}

impl Killer {
    /// Whether this is the moment; counts the times the step is reached.
    fn is_due(&self, when: When, step: Step) -> bool {
        (when, step) == (self.moment.when, self.moment.step)
            && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == self.moment.nth
    }

    async fn look(&self, when: When, step: Step) -> Verdict {
        if self.is_due(when, step) {
            let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            tracing::error!(?killed, moment = %self.moment, "still alive after SIGKILL to itself");
            future::pending::<()>().await;
        }
        Verdict::Go
    }
}

#[async_trait]
impl StepObserver for Killer {
    async fn before(&self, _: LedgerId, step: Step) -> Verdict {
        self.look(When::Before, step).await
    }

    async fn after(&self, _: LedgerId, step: Step) -> Verdict {
        self.look(When::After, step).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_is_named_and_read_back() {
        for when in When::ALL {
            for step in Step::ALL {
                for nth in [1, 2, 17] {
                    let moment = KillAt { when, step, nth };
                    assert_eq!(moment.to_string().parse(), Ok(moment));
                }
                let short = format!("{}:{}", when.name(), step.name());
                assert_eq!(short.parse(), Ok(KillAt { when, step, nth: 1 }));
            }
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_names() {
        for text in [
            "",
            "before",
            "commit",
            "before:",
            "during:commit",
            "before:Commit",
            "before:commit:0",
            "before:commit:x",
            "before:commit:1:2",
        ] {
            let refused = text.parse::<KillAt>().unwrap_err();
            assert!(refused.contains("before:STEP") && refused.contains("read_back"), "{text}: {refused}");
        }
    }

    #[test]
    fn the_nth_time_alone_is_due() {
        let moment = KillAt { when: When::After, step: Step::Upload, nth: 2 };
        let killer = Killer { moment, reached: AtomicU64::new(0) };
        let seen = [When::Before, When::After, When::After, When::After].map(|when| killer.is_due(when, Step::Upload));
        assert_eq!(seen, [false, false, true, false]);
        assert!(!killer.is_due(When::After, Step::Commit));
    }
}
