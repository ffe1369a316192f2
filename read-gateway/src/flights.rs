//! One piece of work under way for each key, however many wait for it.
//!
//! The work runs in a task of its own: whoever waits may go away, or not be polled for a while, and holds up nobody. Its end answers
//! all who wait, error or not, and is not kept here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::shutdown::TaskTree;
use futures::FutureExt as _;
use futures::future::Shared;
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// The end of a piece of work, for any number of waiters.
type Flight<V> = Shared<oneshot::Receiver<Result<V>>>;

/// See the module. Cheap to clone; clones are the same.
pub(crate) struct Flights<K, V> {
    name: &'static str,
    tasks: TaskTree,
    under_way: Arc<Mutex<HashMap<K, Flight<V>>>>,
}

impl<K, V> Clone for Flights<K, V> {
    fn clone(&self) -> Self {
        Self { name: self.name, tasks: self.tasks.clone(), under_way: Arc::clone(&self.under_way) }
    }
}

/// How a call got its flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boarding {
    /// It was under way.
    Joined,
    /// The call began it.
    Began,
}

impl<K, V> Flights<K, V>
where
    K: Copy + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// No work yet; each piece will be a task of `tasks` with this name.
    pub(crate) fn new(name: &'static str, tasks: TaskTree) -> Self {
        Self { name, tasks, under_way: Arc::default() }
    }

    /// Whether there is work under way for a key.
    pub(crate) fn contains(&self, key: &K) -> bool {
        lock(&self.under_way).contains_key(key)
    }

    /// Joins the work that is under way for `key`, or begins it. It has begun when this returns; only what is waited for afterwards
    /// is the end. Whoever asks after an error begins anew. Cancel-safe.
    ///
    /// # Errors
    /// Those of the work; `Unavailable` when the gateway stops.
    pub(crate) fn join_or_begin<W>(
        &self,
        key: K,
        work: impl FnOnce() -> W,
    ) -> (Boarding, impl Future<Output = Result<V>> + Send + 'static)
    where
        W: Future<Output = Result<V>> + Send + 'static,
    {
        let (boarding, flight) = self.board(key, work);
        (boarding, async move { flight.await.unwrap_or_else(|_| Err(Error::stopping())) })
    }

    fn board<W>(&self, key: K, work: impl FnOnce() -> W) -> (Boarding, Flight<V>)
    where
        W: Future<Output = Result<V>> + Send + 'static,
    {
        let (answer, flight) = oneshot::channel();
        let flight = flight.shared();
        match lock(&self.under_way).entry(key) {
            Entry::Occupied(under_way) => return (Boarding::Joined, under_way.get().clone()),
            Entry::Vacant(place) => drop(place.insert(flight.clone())),
        }
        let landing = Landing { under_way: Arc::clone(&self.under_way), key };
        let (tasks, work) = (self.tasks.clone(), work());
        let run = async move {
            let ended = tokio::select! {
                ended = work => ended,
                () = tasks.stopping() => Err(Error::stopping()),
            };
            // Off the list before the answer: whoever asks after an error begins anew.
            drop(landing);
            let _ = answer.send(ended);
        };
        // A tree that has stopped drops the task unrun; then so are `landing` and `answer`, which tells the waiters.
        self.tasks.spawn(self.name, run);
        (Boarding::Began, flight)
    }
}

fn lock<K, V>(under_way: &Mutex<HashMap<K, Flight<V>>>) -> MutexGuard<'_, HashMap<K, Flight<V>>> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes work off the list of what is under way, however it ends.
struct Landing<K: Eq + Hash, V> {
    under_way: Arc<Mutex<HashMap<K, Flight<V>>>>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        lock(&self.under_way).remove(&self.key);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use super::*;
    use crate::error::ErrorKind;

    #[tokio::test]
    async fn a_waiter_that_is_not_polled_or_goes_away_holds_up_nobody() {
        let flights = Flights::<u8, usize>::new("work", TaskTree::root("test"));
        let begun = Arc::new(AtomicUsize::new(0));
        let begin = || {
            let begun = Arc::clone(&begun);
            move || async move {
                tokio::task::yield_now().await;
                Ok(begun.fetch_add(1, Ordering::SeqCst))
            }
        };
        let (boarding, waits) = flights.join_or_begin(1, begin());
        assert_eq!(boarding, Boarding::Began);
        // Polled once, and then never again while others wait.
        let mut frozen = Box::pin(waits);
        assert!(frozen.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(flights.join_or_begin(1, begin()));
        let (boarding, waits) = flights.join_or_begin(1, begin());
        assert_eq!((boarding, waits.await.unwrap()), (Boarding::Joined, 0));
        assert!(!flights.contains(&1));
        assert_eq!(frozen.await.unwrap(), 0);
        assert_eq!(flights.join_or_begin(1, begin()).1.await.unwrap(), 1, "nothing is kept");
    }

    #[tokio::test]
    async fn a_stop_and_an_error_answer_all_who_wait() {
        let tasks = TaskTree::root("test");
        let flights = Flights::<u8, ()>::new("work", tasks.clone());
        let failing = || async { Err(Error::new(ErrorKind::Damaged, "x")) };
        let waits = [flights.join_or_begin(1, failing).1, flights.join_or_begin(1, failing).1];
        for wait in waits {
            assert_eq!(wait.await.unwrap_err().kind(), ErrorKind::Damaged);
        }
        let (_, endless) = flights.join_or_begin(2, std::future::pending);
        tasks.ask_to_stop();
        endless.await.unwrap_err();
        tasks.stop(std::time::Duration::from_secs(5)).await.unwrap();
        flights.join_or_begin(3, std::future::pending).1.await.unwrap_err();
        assert!(!flights.contains(&3));
    }
}
