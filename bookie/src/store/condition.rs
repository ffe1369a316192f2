use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

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
    failure: OnceLock<String>,
    state: watch::Sender<BookieState>,
}

impl Condition {
    pub(crate) fn new() -> Self {
        Self {
            writable: AtomicBool::new(true),
            priority: AtomicBool::new(true),
            failure: OnceLock::new(),
            state: watch::Sender::new(BookieState::Writable),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Whether an add may be queued; whether there is space for it the journal decides.
    pub(crate) fn takes(&self, high_priority: bool) -> bool {
        self.is_writable() || (high_priority && self.priority.load(Ordering::Acquire) && self.failure.get().is_none())
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

    /// Refuses adds until [`Condition::writable_again`].
    pub(crate) fn read_only(&self, reason: String) {
        if self.failure().is_none() && self.is_writable() {
            tracing::warn!(reason, "the bookie is read-only");
            self.take_priority();
            self.set(BookieState::ReadOnly { reason, for_good: false });
        }
    }

    pub(crate) fn writable_again(&self) {
        if self.failure().is_none() && !self.is_writable() {
            tracing::info!("the bookie is writable again");
            self.set(BookieState::Writable);
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
