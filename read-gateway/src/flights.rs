//! One piece of work under way for each key, however many wait for it.
//!
//! The work runs in a task of its own: whoever waits may go away, or not be polled for a while, and holds up nobody. Its end answers
//! all who wait, error or not, and is not kept here.
//!
//! Work that nobody waits for goes on, except where it asks for memory by [`Wanted::room`]: there it ends, so that what was given up
//! does not stand in line before what is not.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::budget::{ByteBudget, BytePermit};
use common::shutdown::TaskTree;
use futures::FutureExt as _;
use futures::future::Shared;
use tokio::sync::{oneshot, watch};

use crate::error::{Error, ErrorKind, Result};

/// The end of a piece of work, for any number of waiters.
type Flight<V> = Shared<oneshot::Receiver<Result<V>>>;

/// A piece of work that is under way. Each of those who wait for it holds a receiver of `waiters`.
struct UnderWay<V> {
    flight: Flight<V>,
    waiters: Arc<watch::Sender<()>>,
}

type Table<K, V> = Arc<Mutex<HashMap<K, UnderWay<V>>>>;

/// See the module. Cheap to clone; clones are the same.
pub(crate) struct Flights<K, V> {
    name: &'static str,
    tasks: TaskTree,
    under_way: Table<K, V>,
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
    /// is the end. Whoever asks after an error begins anew. The work is told whether it is still waited for. Cancel-safe.
    ///
    /// # Errors
    /// Those of the work; `Unavailable` when the gateway stops.
    pub(crate) fn join_or_begin<W>(
        &self,
        key: K,
        work: impl FnOnce(Wanted<K, V>) -> W,
    ) -> (Boarding, impl Future<Output = Result<V>> + Send + 'static)
    where
        W: Future<Output = Result<V>> + Send + 'static,
    {
        let (boarding, flight, waits) = self.board(key, work);
        let ended = async move {
            let ended = flight.await.unwrap_or_else(|_| Err(Error::stopping()));
            drop(waits);
            ended
        };
        (boarding, ended)
    }

    fn board<W>(&self, key: K, work: impl FnOnce(Wanted<K, V>) -> W) -> (Boarding, Flight<V>, watch::Receiver<()>)
    where
        W: Future<Output = Result<V>> + Send + 'static,
    {
        let (answer, flight) = oneshot::channel();
        let flight = flight.shared();
        let (waiters, waits) = watch::channel(());
        let waiters = Arc::new(waiters);
        match lock(&self.under_way).entry(key) {
            Entry::Occupied(found) => {
                let found = found.get();
                return (Boarding::Joined, found.flight.clone(), found.waiters.subscribe());
            }
            Entry::Vacant(place) => {
                place.insert(UnderWay { flight: flight.clone(), waiters: Arc::clone(&waiters) });
            }
        }
        let wanted = Wanted { under_way: Arc::clone(&self.under_way), key, waiters };
        let landing = Landing(wanted.clone());
        let (tasks, work) = (self.tasks.clone(), work(wanted));
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
        (Boarding::Began, flight, waits)
    }
}

fn lock<K, V>(under_way: &Mutex<HashMap<K, UnderWay<V>>>) -> MutexGuard<'_, HashMap<K, UnderWay<V>>> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of a piece of work: whether anybody waits for it.
pub(crate) struct Wanted<K, V> {
    under_way: Table<K, V>,
    key: K,
    waiters: Arc<watch::Sender<()>>,
}

impl<K: Copy, V> Clone for Wanted<K, V> {
    fn clone(&self) -> Self {
        Self { under_way: Arc::clone(&self.under_way), key: self.key, waiters: Arc::clone(&self.waiters) }
    }
}

impl<K: Eq + Hash, V> Wanted<K, V> {
    /// Room in a budget, for as long as anybody waits for the work. Cancel-safe.
    ///
    /// # Errors
    /// When nobody does any more: the work is off the list then, must end, and will not be heard.
    pub(crate) async fn room(&self, budget: &ByteBudget, bytes: u64) -> Result<BytePermit> {
        let mut room = std::pin::pin!(budget.acquire(bytes));
        loop {
            let permit = tokio::select! {
                biased;
                () = self.waiters.closed() => None,
                permit = &mut room => Some(permit),
            };
            match permit {
                Some(permit) => return Ok(permit),
                None if self.leave() => {
                    return Err(Error::new(ErrorKind::Unavailable, "wait for memory: nobody waits for it any more"));
                }
                // Somebody has come in between.
                None => {}
            }
        }
    }

    /// Takes the work off the list if nobody waits for it: who comes later begins it anew.
    fn leave(&self) -> bool {
        let mut under_way = lock(&self.under_way);
        let is_left = self.waiters.is_closed();
        if is_left {
            self.remove_from(&mut under_way);
        }
        is_left
    }

    fn remove_from(&self, under_way: &mut HashMap<K, UnderWay<V>>) {
        // Work that was left may have a successor of the same key.
        if under_way.get(&self.key).is_some_and(|found| Arc::ptr_eq(&found.waiters, &self.waiters)) {
            under_way.remove(&self.key);
        }
    }
}

/// Takes work off the list of what is under way, however it ends.
struct Landing<K: Eq + Hash, V>(Wanted<K, V>);

impl<K: Eq + Hash, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        self.0.remove_from(&mut lock(&self.0.under_way));
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
            move |_| async move {
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
        let failing = |_| async { Err(Error::new(ErrorKind::Damaged, "x")) };
        let waits = [flights.join_or_begin(1, failing).1, flights.join_or_begin(1, failing).1];
        for wait in waits {
            assert_eq!(wait.await.unwrap_err().kind(), ErrorKind::Damaged);
        }
        let (_, endless) = flights.join_or_begin(2, |_| std::future::pending());
        tasks.ask_to_stop();
        endless.await.unwrap_err();
        tasks.stop(std::time::Duration::from_secs(5)).await.unwrap();
        flights.join_or_begin(3, |_| std::future::pending()).1.await.unwrap_err();
        assert!(!flights.contains(&3));
    }
    #[tokio::test]
    async fn work_that_nobody_waits_for_stands_in_no_line_for_memory() {
        let flights = Flights::<u8, u64>::new("work", TaskTree::root("test"));
        let budget = ByteBudget::new("memory", 10);
        let held = budget.acquire(10).await;
        let work = |wanted: Wanted<u8, u64>| {
            let budget = budget.clone();
            async move { Ok(wanted.room(&budget, 4).await?.bytes()) }
        };
        let settle = || async {
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
        };
        let (first, joined) = (flights.join_or_begin(1, work).1, flights.join_or_begin(1, work));
        assert_eq!(joined.0, Boarding::Joined);
        settle().await;
        drop(first);
        settle().await;
        assert_eq!(budget.waiting(), 1, "one still waits");
        drop(joined);
        settle().await;
        assert_eq!((budget.waiting(), flights.contains(&1)), (0, false));
        let (boarding, again) = flights.join_or_begin(1, work);
        assert_eq!(boarding, Boarding::Began);
        drop(held);
        assert_eq!(again.await.unwrap(), 4);
        assert!(!flights.contains(&1));
    }

    #[tokio::test]
    async fn who_joins_work_that_was_just_left_is_served() {
        let flights = Flights::<u8, u64>::new("work", TaskTree::root("test"));
        let budget = ByteBudget::new("memory", 10);
        let held = budget.acquire(10).await;
        let work = |wanted: Wanted<u8, u64>| {
            let budget = budget.clone();
            async move { Ok(wanted.room(&budget, 4).await?.bytes()) }
        };
        let left = flights.join_or_begin(1, work).1;
        tokio::task::yield_now().await;
        // Without a turn of the work in between: it finds a waiter when it looks.
        drop(left);
        let (boarding, joined) = flights.join_or_begin(1, work);
        assert_eq!(boarding, Boarding::Joined);
        drop(held);
        assert_eq!(joined.await.unwrap(), 4);
    }
}
