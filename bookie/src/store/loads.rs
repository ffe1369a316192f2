use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::shutdown::TaskTree;
use futures::future::BoxFuture;
use tokio::sync::{Semaphore, watch};

use crate::error::Error;

/// Answers of disk and index that requests wait for: each is asked for once at a time, whoever wants it, by a task of its own.
///
/// A request may cease to wait whenever it likes. What it asked for goes on to its end and keeps its turn until then, so that a disk
/// that does not answer is asked for no more than there are turns, however many requests come and go.
pub(crate) struct Loads<K, T> {
    name: &'static str,
    running: Arc<Running<K, T>>,
    turns: Arc<Semaphore>,
    tasks: TaskTree,
}

type Answer<T> = Result<T, Arc<Error>>;
type Waiting<T> = watch::Receiver<Option<Answer<T>>>;
type Running<K, T> = Mutex<HashMap<K, Waiting<T>>>;

/// Takes a load off the list at its end, however it ends.
struct Listed<K: Eq + Hash, T> {
    running: Arc<Running<K, T>>,
    key: K,
}

impl<K: Eq + Hash, T> Drop for Listed<K, T> {
    fn drop(&mut self) {
        lock(&self.running).remove(&self.key);
    }
}

fn lock<K, T>(running: &Running<K, T>) -> MutexGuard<'_, HashMap<K, Waiting<T>>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, T> Loads<K, T>
where
    K: Copy + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Loads that share `turns` with others.
    pub(crate) fn new(name: &'static str, turns: &Arc<Semaphore>, tasks: &TaskTree) -> Self {
        Self { name, running: Arc::default(), turns: turns.clone(), tasks: tasks.clone() }
    }

    /// What `known` gives, or else what `work` does. No `work` for a key begins before an earlier one has ended; `known` is asked in
    /// between, so that what one leaves behind nobody loads again, and nothing that changed since is loaded over.
    ///
    /// Cancel-safe: `work` goes on.
    ///
    /// # Errors
    /// That of `work`, or that the bookie has stopped.
    pub(crate) async fn get(
        &self,
        key: K,
        known: impl Fn() -> Option<T>,
        work: impl FnOnce() -> BoxFuture<'static, Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut turn = None;
        let mut waiting = loop {
            let begun = {
                let mut running = lock(&self.running);
                if let Some(found) = known() {
                    return Ok(found);
                }
                if let Some(waiting) = running.get(&key) {
                    break waiting.clone();
                }
                turn.take().map(|turn| {
                    let (told, waiting) = watch::channel(None);
                    running.insert(key, waiting.clone());
                    (turn, Listed { running: self.running.clone(), key }, told, waiting)
                })
            };
            if let Some((turn, listed, told, waiting)) = begun {
                let work = work();
                // Not under the lock: what does not start any more is dropped.
                self.tasks.spawn(self.name, async move {
                    let answer = work.await.map_err(Arc::new);
                    // Before the answer: whoever has that and asks again is given what is true then.
                    drop(listed);
                    told.send_replace(Some(answer));
                    drop(turn);
                });
                break waiting;
            }
            turn = Some(self.turns.clone().acquire_owned().await.map_err(|_| Error::Stopped)?);
        };
        match waiting.wait_for(Option::is_some).await.map(|answer| answer.clone()) {
            Ok(Some(answer)) => answer.map_err(Error::Shared),
            _ => Err(Error::Stopped),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_loads_for_all_and_goes_on_when_nobody_waits() {
        let (turns, tasks) = (Arc::new(Semaphore::new(2)), TaskTree::root("test"));
        let loads: Arc<Loads<u32, u32>> = Arc::new(Loads::new("load", &turns, &tasks));
        let (begun, stored) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(HashMap::new())));
        let gate = Arc::new(Semaphore::new(0));
        let get = |key: u32| {
            let (loads, begun, stored, gate) = (loads.clone(), begun.clone(), stored.clone(), gate.clone());
            async move {
                let known = stored.clone();
                let work = move || {
                    async move {
                        begun.fetch_add(1, Ordering::SeqCst);
                        gate.acquire().await.unwrap().forget();
                        stored.lock().unwrap().insert(key, key * 10);
                        Ok(key * 10)
                    }
                    .boxed()
                };
                loads.get(key, || known.lock().unwrap().get(&key).copied(), work).await.unwrap()
            }
        };
        let late = |key| tokio::time::timeout(Duration::from_secs(1), get(key));
        for round in 0..50 {
            assert!(late(round % 5).await.is_err(), "nothing comes");
        }
        assert_eq!((begun.load(Ordering::SeqCst), turns.available_permits()), (2, 0), "no more than there are turns");
        gate.add_permits(2);
        assert_eq!((late(0).await.unwrap(), late(1).await.unwrap()), (0, 10));
        assert_eq!(
            (begun.load(Ordering::SeqCst), turns.available_permits()),
            (2, 2),
            "what nobody waited for is there"
        );
        let others: Vec<_> = (0..20).map(|_| tokio::spawn(get(7))).collect();
        gate.add_permits(1);
        for other in others {
            assert_eq!(other.await.unwrap(), 70);
        }
        assert_eq!(begun.load(Ordering::SeqCst), 3, "once for all");
        tasks.stop(Duration::from_secs(1)).await.unwrap();
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_and_not_kept() {
        let (turns, tasks) = (Arc::new(Semaphore::new(1)), TaskTree::root("test"));
        let loads: Loads<u32, u32> = Loads::new("load", &turns, &tasks);
        let fail = || async { Err(Error::JournalFailed("of old".to_owned())) }.boxed();
        assert_eq!(loads.get(1, || None, fail).await.unwrap_err().kind(), crate::ErrorKind::JournalFailed);
        assert_eq!(loads.get(1, || None, || async { Ok(5) }.boxed()).await.unwrap(), 5);
        tasks.stop(Duration::from_secs(1)).await.unwrap();
        let stopped = loads.get(1, || None, || async { Ok(5) }.boxed()).await.unwrap_err();
        assert_eq!(stopped.kind(), crate::ErrorKind::Stopped);
    }
}
