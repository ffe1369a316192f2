//! Whether a role lives and serves, as a closed set of conditions.
//!
//! The composition root says when the role is up and when it is asked to stop; what can change in between is looked at whenever
//! somebody asks, so that the answer is never older than the question.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bookie::{Bookie, BookieState, Stall};
use common::shutdown::TaskTree;
use serde::Serialize;

/// What a role is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It is being started and does not serve yet.
    Starting,
    /// It serves.
    Ready,
    /// It serves everything that is stored, and takes no entries.
    ReadOnly {
        /// Why, as sentences for people.
        reasons: Vec<String>,
    },
    /// It runs and has been waiting for its index or a disk for longer than it should: what needs that is answered as too many requests,
    /// by its deadline. It ends by itself.
    Stalled {
        /// For what and for how long, as sentences for people.
        reasons: Vec<String>,
    },
    /// It was asked to stop and takes nothing new.
    Stopping,
    /// A task it cannot do without has died; the process ends.
    Failed {
        /// Which, and of what.
        cause: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Serving,
    Stopping,
}

/// Gives a reason as long as there is one.
type Source = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The health of one process. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Health {
    inner: Arc<Inner>,
}

struct Inner {
    role: &'static str,
    tasks: TaskTree,
    phase: Mutex<Phase>,
    read_only: Mutex<Vec<Source>>,
    stalled: Mutex<Vec<Source>>,
}

impl Health {
    /// A role that is being started. It counts as failed once a critical task of `tasks` (its whole tree) has died.
    pub fn starting(role: &'static str, tasks: &TaskTree) -> Self {
        let inner = Inner {
            role,
            tasks: tasks.clone(),
            phase: Mutex::new(Phase::Starting),
            read_only: Mutex::default(),
            stalled: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The role's name: bookie, offloader, gateway, standalone.
    pub fn role(&self) -> &'static str {
        self.inner.role
    }

    /// The role serves from now on.
    pub fn ready(&self) {
        self.enter(Phase::Serving);
    }

    /// The role was asked to stop.
    pub fn stopping(&self) {
        self.enter(Phase::Stopping);
    }

    /// Counts the role as read-only whenever this bookie is, and as stalled whenever that is.
    pub fn watch_bookie(&self, bookie: &Bookie) {
        let (id, stalls) = (bookie.id().clone(), bookie.stalls());
        self.stalled_when(move || {
            let stalls: Vec<String> = stalls.now().iter().map(Stall::to_string).collect();
            (!stalls.is_empty()).then(|| format!("{id}: {}", stalls.join(", ")))
        });
        let (id, state) = (bookie.id().clone(), bookie.watch_state());
        self.read_only_when(move || match &*state.borrow() {
            BookieState::Writable => None,
            BookieState::ReadOnly { reason, for_good } => {
                let until = if *for_good { "; only a restart ends this" } else { "" };
                Some(format!("{id} takes no entries: {reason}{until}"))
            }
        });
    }

    /// Counts the role as read-only whenever `reason` gives one. It must be quick and keep nothing alive.
    pub fn read_only_when(&self, reason: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.inner.read_only.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(reason));
    }

    /// Counts the role as stalled whenever `reason` gives one. It must be quick and keep nothing alive.
    pub fn stalled_when(&self, reason: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.inner.stalled.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(reason));
    }

    /// What the role is doing now.
    pub fn condition(&self) -> Condition {
        let phase = *self.inner.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let reasons = |sources: &Mutex<Vec<Source>>| -> Vec<String> {
            let sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
            sources.iter().filter_map(|source| source()).collect()
        };
        judge(phase, self.inner.tasks.failure(), reasons(&self.inner.stalled), reasons(&self.inner.read_only))
    }

    fn enter(&self, phase: Phase) {
        *self.inner.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Health({} {:?})", self.inner.role, self.condition())
    }
}

/// The worst of what is known: a death before everything, an order to stop before what no longer matters.
fn judge(phase: Phase, failure: Option<String>, stalls: Vec<String>, reasons: Vec<String>) -> Condition {
    match (failure, phase) {
        (Some(cause), _) => Condition::Failed { cause },
        (None, Phase::Stopping) => Condition::Stopping,
        (None, Phase::Starting) => Condition::Starting,
        (None, Phase::Serving) if !stalls.is_empty() => Condition::Stalled { reasons: stalls },
        (None, Phase::Serving) if reasons.is_empty() => Condition::Ready,
        (None, Phase::Serving) => Condition::ReadOnly { reasons },
    }
}

impl Condition {
    /// All names, in order.
    pub const NAMES: [&str; 6] = ["starting", "ready", "read-only", "stalled", "stopping", "failed"];

    /// The condition in one word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::ReadOnly { .. } => "read-only",
            Self::Stalled { .. } => "stalled",
            Self::Stopping => "stopping",
            Self::Failed { .. } => "failed",
        }
    }

    /// Whether the process should be left alone; otherwise a restart is called for.
    pub fn is_alive(&self) -> bool {
        !matches!(self, Self::Failed { .. })
    }

    /// Whether it answers callers, which a role that stalls does with refusals at best. A read-only role does: its readers need it most when writing is not possible, so it is not
    /// taken out of service; that it takes no entries is for alerts.
    pub fn is_serving(&self) -> bool {
        matches!(self, Self::Ready | Self::ReadOnly { .. })
    }

    /// Why, as one sentence.
    pub fn why(&self) -> String {
        match self {
            Self::Starting => "the role is being started and does not serve yet".to_owned(),
            Self::Ready => "the role serves (metadata and the object store are not asked for this answer)".to_owned(),
            Self::ReadOnly { reasons } => {
                format!("what is stored is served, entries are not taken: {}", reasons.join("; "))
            }
            Self::Stalled { reasons } => {
                format!("requests that need it are refused when their time is over: {}", reasons.join("; "))
            }
            Self::Stopping => "the role was asked to stop and takes nothing new".to_owned(),
            Self::Failed { cause } => format!("a task that the role cannot do without has died: {cause}"),
        }
    }
}

/// The answer of `/healthz` and `/readyz`.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    role: &'static str,
    state: &'static str,
    ok: bool,
    why: String,
}

impl Answer {
    pub(crate) fn new(health: &Health, ok: impl Fn(&Condition) -> bool) -> Self {
        let condition = health.condition();
        Self { role: health.role(), state: condition.name(), ok: ok(&condition), why: condition.why() }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_told() {
        let reasons = || vec!["the disk is full".to_owned()];
        let stalls = || vec!["the index has not answered for 9 s".to_owned()];
        let cases = [
            (Phase::Starting, None, vec![], vec![], "starting", true, false),
            (Phase::Starting, None, stalls(), reasons(), "starting", true, false),
            (Phase::Serving, None, vec![], vec![], "ready", true, true),
            (Phase::Serving, None, vec![], reasons(), "read-only", true, true),
            (Phase::Serving, None, stalls(), reasons(), "stalled", true, false),
            (Phase::Stopping, None, stalls(), reasons(), "stopping", true, false),
            (Phase::Stopping, Some("journal: x"), vec![], vec![], "failed", false, false),
            (Phase::Serving, Some("journal: x"), stalls(), reasons(), "failed", false, false),
        ];
        for (phase, failure, stalls, reasons, name, alive, serving) in cases {
            let condition = judge(phase, failure.map(str::to_owned), stalls, reasons);
            assert_eq!((condition.name(), condition.is_alive(), condition.is_serving()), (name, alive, serving));
            assert!(Condition::NAMES.contains(&condition.name()));
        }
    }

    #[tokio::test]
    async fn a_dead_critical_task_is_told_with_its_cause() {
        let tasks = TaskTree::root("role");
        let health = Health::starting("bookie", &tasks);
        health.ready();
        assert_eq!(health.condition(), Condition::Ready);
        tasks.spawn_critical("journal", async { Err("no more disk") });
        tasks.failed().await;
        assert_eq!(health.condition(), Condition::Failed { cause: "role/journal: no more disk".to_owned() });
        assert!(health.condition().why().contains("no more disk"));
    }

    #[tokio::test]
    async fn read_only_comes_and_goes_with_its_reason() {
        let health = Health::starting("bookie", &TaskTree::root("role"));
        let reason = Arc::new(Mutex::new(Some("the disk is full".to_owned())));
        let told = reason.clone();
        health.read_only_when(move || told.lock().unwrap().clone());
        health.ready();
        assert!(health.condition().why().contains("the disk is full"));
        *reason.lock().unwrap() = None;
        assert_eq!(health.condition(), Condition::Ready);
    }

    #[tokio::test]
    async fn a_stall_is_told_with_its_cause_and_ends() {
        let health = Health::starting("bookie", &TaskTree::root("role"));
        let reason = Arc::new(Mutex::new(Some("the index has not answered for 9 s".to_owned())));
        let told = reason.clone();
        health.stalled_when(move || told.lock().unwrap().clone());
        health.ready();
        assert!(!health.condition().is_serving() && health.condition().is_alive());
        assert!(health.condition().why().contains("the index has not answered for 9 s"));
        *reason.lock().unwrap() = None;
        assert_eq!(health.condition(), Condition::Ready);
    }
}
