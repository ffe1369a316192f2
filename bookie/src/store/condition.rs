use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;

/// Whether the bookie takes adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BookieState {
    /// Adds are taken.
    Writable,
    /// Adds are refused; everything stored is served.
    ReadOnly {
        /// Why, as a sentence for people.
        reason: String,
        /// Whether only a restart ends it.
        for_good: bool,
    },
}

/// The state of the bookie, with a fast answer for the add path.
#[derive(Debug)]
pub(crate) struct Condition {
    writable: AtomicBool,
    /// Whether entries of high priority are taken while others are not.
    priority: AtomicBool,
    /// Whether nothing at all is taken, whatever its priority.
    limbo: AtomicBool,
    failure: OnceLock<String>,
    /// What keeps it from taking adds for now.
    obstacles: Mutex<Obstacles>,
    state: watch::Sender<BookieState>,
}

#[derive(Debug, Default)]
struct Obstacles {
    /// Which ledgers may have lost entries here is not known yet.
    limbo: Option<String>,
    /// An administrator wants it so.
    held: Option<String>,
    /// There is no space.
    space: Option<String>,
    /// The journal does not move.
    stall: Option<String>,
}

impl Obstacles {
    fn state(&self) -> BookieState {
        let reason = [&self.limbo, &self.held, &self.space, &self.stall].into_iter().flatten().next();
        reason.map_or(BookieState::Writable, |reason| BookieState::ReadOnly { reason: reason.clone(), for_good: false })
    }
}

impl Condition {
    pub(crate) fn new() -> Self {
        Self {
            writable: AtomicBool::new(true),
            priority: AtomicBool::new(true),
            limbo: AtomicBool::new(false),
            failure: OnceLock::new(),
            obstacles: Mutex::default(),
            state: watch::Sender::new(BookieState::Writable),
        }
    }

    fn obstacles(&self) -> MutexGuard<'_, Obstacles> {
        self.obstacles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is for want of space that adds are refused.
    pub(crate) fn lacks_space(&self) -> bool {
        self.failure().is_none() && self.obstacles().space.is_some()
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Whether an add may be queued; whether there is space for it the journal decides.
    pub(crate) fn takes(&self, high_priority: bool) -> bool {
        let by_priority = || high_priority && self.priority.load(Ordering::Acquire) && self.failure.get().is_none();
        self.is_writable() || (by_priority() && !self.limbo.load(Ordering::Acquire))
    }

    /// Refuses adds of high priority too, while the bookie is read-only.
    pub(crate) fn refuse_priority(&self) {
        self.priority.store(false, Ordering::Release);
    }

    /// There is space for adds of high priority.
    pub(crate) fn take_priority(&self) {
        self.priority.store(true, Ordering::Release);
    }

    /// Why the journal must not be written any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(crate) fn state(&self) -> BookieState {
        self.state.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<BookieState> {
        self.state.subscribe()
    }

    /// Ends writing for good. The first reason is kept.
    pub(crate) fn fail(&self, reason: String) {
        if self.failure.set(reason.clone()).is_ok() {
            tracing::error!(reason, "the bookie stops writing and is read-only until it is restarted");
            self.set(BookieState::ReadOnly { reason, for_good: true });
        }
    }

    /// Refuses adds for want of space until [`Condition::writable_again`].
    pub(crate) fn read_only(&self, reason: String) {
        let mut obstacles = self.obstacles();
        if self.failure().is_none() && obstacles.space.is_none() {
            tracing::warn!(reason, "the bookie is read-only");
            self.take_priority();
            obstacles.space = Some(reason);
            self.set(obstacles.state());
        }
    }

    /// There is space again.
    pub(crate) fn writable_again(&self) {
        let mut obstacles = self.obstacles();
        if obstacles.space.take().is_some() && self.failure().is_none() {
            tracing::info!("the bookie has space again");
            self.take_priority();
            self.set(obstacles.state());
        }
    }

    /// An administrator wants the bookie read-only, or does not any more. Adds of high priority are taken, as where space is short.
    pub(crate) fn hold(&self, reason: Option<String>) {
        let mut obstacles = self.obstacles();
        if obstacles.held != reason && self.failure().is_none() {
            match &reason {
                Some(reason) => tracing::warn!(reason, "the bookie is read-only"),
                None => tracing::info!("the administrator's word is taken back"),
            }
            obstacles.held = reason;
            self.set(obstacles.state());
        }
    }

    /// Refuses all adds until [`Condition::limbo_is_listed`]: any of them may be to a ledger that was fenced before.
    pub(crate) fn enter_limbo(&self, reason: String) {
        let mut obstacles = self.obstacles();
        tracing::warn!(reason, "the bookie is read-only");
        self.limbo.store(true, Ordering::Release);
        obstacles.limbo = Some(reason);
        self.set(obstacles.state());
    }

    /// It is known which ledgers may have lost entries here, and they are fenced.
    pub(crate) fn limbo_is_listed(&self) {
        let mut obstacles = self.obstacles();
        self.limbo.store(false, Ordering::Release);
        if obstacles.limbo.take().is_some() && self.failure().is_none() {
            self.set(obstacles.state());
        }
    }

    /// The journal stalls, or does not any more. While it does, adds are refused at once, except those of high priority: whoever sends
    /// them is sent to another bookie sooner than its patience ends, and nothing is taken in that can only wait.
    pub(crate) fn journal_stalls(&self, reason: Option<String>) {
        let mut obstacles = self.obstacles();
        // How long it has been stalling is told by others.
        if obstacles.stall.is_some() != reason.is_some() && self.failure().is_none() {
            match &reason {
                Some(reason) => tracing::warn!(reason, "the bookie is read-only until its journal moves again"),
                None => tracing::info!("the journal moves again"),
            }
            obstacles.stall = reason;
            self.set(obstacles.state());
        }
    }

    fn set(&self, state: BookieState) {
        self.state.send_modify(|current| {
            // A failure that came between the check and this lock stays.
            if matches!(current, BookieState::ReadOnly { for_good: true, .. }) {
                return;
            }
            self.writable.store(state == BookieState::Writable, Ordering::Release);
            *current = state;
        });
    }
}
