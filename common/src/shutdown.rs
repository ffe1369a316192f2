//! An orderly end: every task has a name and a place in a tree, and whoever stops a tree waits for all of it.
//!
//! Stopping is asking: [`TaskTree::stop`] cancels the token, tasks see it (refuse new work, drain, flush, close) and return.
//! A *critical* task is one without which the process is no use; when it fails or panics the whole tree is asked to stop, and
//! its cause is kept for the exit message. Nothing is ever aborted: a task that does not end in time is named in [`StopError`].

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// A node in the tree of tasks. Cheap to clone; clones are the same node.
#[derive(Clone)]
pub struct TaskTree {
    node: Arc<Node>,
}

struct Node {
    /// Names from the root, joined with `/`.
    path: String,
    token: CancellationToken,
    parent: Option<Arc<Node>>,
    root: Arc<Root>,
    running: Mutex<Running>,
    /// The number of tasks of this subtree.
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Running {
    tasks: BTreeMap<u64, Arc<str>>,
    next: u64,
    /// Set once `stop` has seen the subtree empty: nothing begins after that.
    closed: bool,
}

struct Root {
    token: CancellationToken,
    failure: watch::Sender<Option<String>>,
}

/// Tasks that did not end within the deadline of [`TaskTree::stop`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stop {tree}: still running after {waited:?}: {}", .running.join(", "))]
pub struct StopError {
    /// The tree that was stopped.
    pub tree: String,
    /// How long was waited.
    pub waited: Duration,
    /// Who still runs, as paths in the tree; many of one name are one item with their number.
    pub running: Vec<String>,
}

impl TaskTree {
    /// A new tree.
    pub fn root(name: &str) -> Self {
        let token = CancellationToken::new();
        let root = Arc::new(Root { token: token.clone(), failure: watch::Sender::new(None) });
        Self { node: Arc::new(Node::new(name.to_owned(), token, None, root)) }
    }

    /// A subtree: it stops with this one, and may be stopped alone.
    pub fn child(&self, name: &str) -> Self {
        let path = format!("{}/{name}", self.node.path);
        let token = self.node.token.child_token();
        let node = Node::new(path, token, Some(Arc::clone(&self.node)), Arc::clone(&self.node.root));
        Self { node: Arc::new(node) }
    }

    /// Names from the root, joined with `/`.
    pub fn path(&self) -> &str {
        &self.node.path
    }

    /// Cancelled when this tree is asked to stop.
    pub fn token(&self) -> &CancellationToken {
        &self.node.token
    }

    /// Whether this tree was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.node.token.is_cancelled()
    }

    /// Resolves when this tree is asked to stop. Cancel-safe.
    pub async fn stopping(&self) {
        self.node.token.cancelled().await;
    }

    /// Asks this tree to stop, without waiting.
    pub fn ask_to_stop(&self) {
        self.node.token.cancel();
    }

    /// Starts a task whose end means nothing to the others; a panic in it is logged.
    ///
    /// After [`stop`](Self::stop) has succeeded nothing starts any more: the task is dropped unrun.
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(entered) = self.enter(name) else { return };
        let run = async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                tracing::error!(task = %entered.name, "task panicked: {}", panic_text(panic.as_ref()));
            }
            drop(entered);
        };
        tokio::spawn(run.instrument(tracing::info_span!("task", name)));
    }

    /// Starts a task the process cannot do without. Its error or panic becomes the tree's [`failure`](Self::failure) (the
    /// first one is kept) and stops the root; `Ok` is a quiet end.
    ///
    /// After [`stop`](Self::stop) has succeeded nothing starts any more: the task is dropped unrun.
    pub fn spawn_critical<F, E>(&self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        let Some(entered) = self.enter(name) else { return };
        let root = Arc::clone(&self.node.root);
        let run = async move {
            let cause = match AssertUnwindSafe(task).catch_unwind().await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(panic) => Some(format!("panicked: {}", panic_text(panic.as_ref()))),
            };
            if let Some(cause) = cause {
                root.fail(format!("{}: {cause}", entered.name));
            }
            drop(entered);
        };
        tokio::spawn(run.instrument(tracing::info_span!("task", name)));
    }

    /// Asks this subtree to stop and waits until all its tasks have ended. Cancel-safe; may be called again.
    ///
    /// # Errors
    ///
    /// [`StopError`] names those that still run after `deadline`; they go on and are not aborted.
    pub async fn stop(&self, deadline: Duration) -> Result<(), StopError> {
        self.node.token.cancel();
        let mut count = self.node.count.subscribe();
        let drained = async {
            loop {
                // The sender lives in the node that `self` holds, so waiting cannot fail.
                let _ = count.wait_for(|count| *count == 0).await;
                let mut running = self.node.lock();
                if running.tasks.is_empty() {
                    running.closed = true;
                    return;
                }
            }
        };
        if tokio::time::timeout(deadline, drained).await.is_ok() {
            return Ok(());
        }
        Err(StopError { tree: self.node.path.clone(), waited: deadline, running: grouped(&self.running()) })
    }

    /// The paths of the tasks of this subtree that run now, oldest first.
    pub fn running(&self) -> Vec<String> {
        self.node.lock().tasks.values().map(|name| name.to_string()).collect()
    }

    /// Why a critical task of the whole tree died, if one did.
    pub fn failure(&self) -> Option<String> {
        self.node.root.failure.borrow().clone()
    }

    /// Resolves with the cause when a critical task of the whole tree dies; never, if none does. Cancel-safe.
    pub async fn failed(&self) -> String {
        let mut failure = self.node.root.failure.subscribe();
        match failure.wait_for(Option::is_some).await.map(|cause| cause.clone()) {
            Ok(Some(cause)) => cause,
            // The sender lives in the root that `self` holds.
            _ => std::future::pending().await,
        }
    }

    fn enter(&self, name: &str) -> Option<Entered> {
        let name: Arc<str> = format!("{}/{name}", self.node.path).into();
        let mut entered = Entered { name, places: Vec::with_capacity(3) };
        let mut next = Some(&self.node);
        while let Some(node) = next {
            let Some(id) = node.add(&entered.name) else {
                tracing::debug!(task = %entered.name, "not started: {} has stopped", node.path);
                return None;
            };
            entered.places.push((Arc::clone(node), id));
            next = node.parent.as_ref();
        }
        Some(entered)
    }
}

impl fmt::Debug for TaskTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskTree").field("path", &self.node.path).field("running", &self.running()).finish()
    }
}

impl Node {
    fn new(path: String, token: CancellationToken, parent: Option<Arc<Node>>, root: Arc<Root>) -> Self {
        Self { path, token, parent, root, running: Mutex::default(), count: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: &Arc<str>) -> Option<u64> {
        let mut running = self.lock();
        if running.closed {
            return None;
        }
        let id = running.next;
        running.next += 1;
        running.tasks.insert(id, Arc::clone(name));
        self.count.send_replace(running.tasks.len());
        Some(id)
    }

    fn remove(&self, id: u64) {
        let mut running = self.lock();
        running.tasks.remove(&id);
        self.count.send_replace(running.tasks.len());
    }
}

impl Root {
    fn fail(&self, cause: String) {
        let first = self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| cause.clone());
            first
        });
        if first {
            tracing::error!("critical task failed, stopping: {cause}");
        } else {
            tracing::warn!("critical task failed while stopping: {cause}");
        }
        self.token.cancel();
    }
}

/// A task's entry in its node and all nodes above; taken out on drop, also when the runtime drops the task.
struct Entered {
    name: Arc<str>,
    places: Vec<(Arc<Node>, u64)>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        for (node, id) in &self.places {
            node.remove(*id);
        }
    }
}

/// A server may have a thousand connections of one name.
fn grouped(names: &[String]) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let item =
        |(name, count): (&str, usize)| if count == 1 { name.to_owned() } else { format!("{name} ({count} times)") };
    counts.into_iter().map(item).collect()
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests;
