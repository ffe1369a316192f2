//! Watches: at least once, coalesced by key, honest about loss.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use futures::Stream;
use futures::stream::BoxStream;

use crate::{Key, Version};

/// How many changed keys one watcher may fall behind before it is told that it lost events.
const BACKLOG_KEYS_MAX: usize = 65_536;

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The key was written; by now it may hold a later version or be gone.
    Put {
        /// The key.
        key: Key,
        /// The version it got.
        version: Version,
    },
    /// The key was removed; by now it may exist again.
    Delete {
        /// The key.
        key: Key,
    },
    /// Events were lost and the stream ends: watch again, then list.
    Lost,
}

/// The events under a prefix. Ends only after [`WatchEvent::Lost`].
pub struct WatchStream(BoxStream<'static, WatchEvent>);

impl WatchStream {
    /// For drivers: wraps a stream that keeps the rules of [`crate::MetadataStore::watch`].
    pub fn new(events: impl Stream<Item = WatchEvent> + Send + 'static) -> Self {
        Self(Box::pin(events))
    }

    /// The next event; `None` after [`WatchEvent::Lost`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        futures::StreamExt::next(&mut self.0).await
    }
}

impl Stream for WatchStream {
    type Item = WatchEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for WatchStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchStream")
    }
}

/// Hands the changes of one store to its watchers. Publishing never waits: each watcher holds at most one pending event a
/// key, and one that falls too far behind loses its backlog and is told so.
#[derive(Debug)]
pub(crate) struct Hub {
    backlog_keys_max: usize,
    watchers: Mutex<Vec<(Key, Weak<Mutex<Backlog>>)>>,
}

#[derive(Debug, Default)]
struct Backlog {
    /// Keys in the order in which their oldest untold change came.
    order: VecDeque<Key>,
    /// The newest state of each: `Some` = written.
    pending: HashMap<Key, Option<Version>>,
    lost: bool,
    ended: bool,
    waker: Option<Waker>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics while holding the lock; should it ever, the plain data inside is still whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Hub {
    fn default() -> Self {
        Self { backlog_keys_max: BACKLOG_KEYS_MAX, watchers: Mutex::default() }
    }
}

impl Hub {
    pub(crate) fn watch(&self, prefix: &Key) -> WatchStream {
        let backlog = Arc::new(Mutex::new(Backlog::default()));
        let mut watchers = locked(&self.watchers);
        // Also here: a store that is only watched never publishes.
        watchers.retain(|(_, watcher)| watcher.strong_count() > 0);
        watchers.push((prefix.clone(), Arc::downgrade(&backlog)));
        WatchStream::new(Events(backlog))
    }

    /// Called in commit order, before the commit is answered.
    pub(crate) fn publish(&self, changes: &[(Key, Option<Version>)]) {
        locked(&self.watchers).retain(|(prefix, watcher)| {
            let Some(watcher) = watcher.upgrade() else { return false };
            locked(&watcher).take_in(prefix, changes, self.backlog_keys_max);
            true
        });
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        for (_, watcher) in locked(&self.watchers).drain(..) {
            if let Some(watcher) = watcher.upgrade() {
                let mut backlog = locked(&watcher);
                backlog.lost = true;
                backlog.wake();
            }
        }
    }
}

/// The backlog of one watcher, for a driver whose changes come from a server: a task of its own fills it.
#[derive(Debug)]
pub(crate) struct Relay {
    prefix: Key,
    backlog: Arc<Mutex<Backlog>>,
}

impl Relay {
    /// The end that is filled, and the stream of what it tells about `prefix`.
    pub(crate) fn new(prefix: Key) -> (Self, impl Stream<Item = WatchEvent> + Send + 'static) {
        let backlog = Arc::new(Mutex::new(Backlog::default()));
        (Self { prefix, backlog: Arc::clone(&backlog) }, Events(backlog))
    }

    /// Tells changes, in the order in which they came; keys outside of the prefix are left out.
    pub(crate) fn publish(&self, changes: &[(Key, Option<Version>)]) {
        locked(&self.backlog).take_in(&self.prefix, changes, BACKLOG_KEYS_MAX);
    }
}

/// Nobody fills it any more: what is told already stays told, then the watcher learns that the rest is lost.
impl Drop for Relay {
    fn drop(&mut self) {
        let mut backlog = locked(&self.backlog);
        backlog.lost = true;
        backlog.wake();
    }
}

impl Backlog {
    fn take_in(&mut self, prefix: &Key, changes: &[(Key, Option<Version>)], keys_max: usize) {
        for (key, state) in changes {
            if key == prefix || key.below(prefix).is_some() {
                self.push(key, *state, keys_max);
            }
        }
        self.wake();
    }

    fn push(&mut self, key: &Key, state: Option<Version>, keys_max: usize) {
        if self.lost {
            return;
        }
        if self.pending.insert(key.clone(), state).is_none() {
            self.order.push_back(key.clone());
        }
        if self.order.len() > keys_max {
            self.order = VecDeque::new();
            self.pending = HashMap::new();
            self.lost = true;
        }
    }

    fn wake(&mut self) {
        if (self.lost || !self.order.is_empty())
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    fn pop(&mut self) -> Option<WatchEvent> {
        let key = self.order.pop_front()?;
        Some(match self.pending.remove(&key).flatten() {
            Some(version) => WatchEvent::Put { key, version },
            None => WatchEvent::Delete { key },
        })
    }
}

struct Events(Arc<Mutex<Backlog>>);

impl Stream for Events {
    type Item = WatchEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        let mut backlog = locked(&self.0);
        if let Some(event) = backlog.pop() {
            return Poll::Ready(Some(event));
        }
        if backlog.ended {
            return Poll::Ready(None);
        }
        if backlog.lost {
            backlog.ended = true;
            return Poll::Ready(Some(WatchEvent::Lost));
        }
        backlog.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    fn put(name: &str, revision: u64) -> (Key, Option<Version>) {
        (key(name), Some(Version::new(revision)))
    }

    #[tokio::test]
    async fn coalesces_to_the_last_state_of_each_key() {
        let hub = Hub::default();
        let mut watch = hub.watch(&key("/a"));
        hub.publish(&[put("/a/x", 1), put("/ab", 1)]);
        hub.publish(&[put("/a/y", 2)]);
        hub.publish(&[(key("/a/x"), None)]);
        assert_eq!(watch.next().await, Some(WatchEvent::Delete { key: key("/a/x") }));
        assert_eq!(watch.next().await, Some(WatchEvent::Put { key: key("/a/y"), version: Version::new(2) }));
        drop(hub);
        assert_eq!(watch.next().await, Some(WatchEvent::Lost));
        assert_eq!(watch.next().await, None);
    }

    #[tokio::test]
    async fn a_watcher_too_far_behind_is_told() {
        let hub = Hub { backlog_keys_max: 2, watchers: Mutex::default() };
        let mut watch = hub.watch(&key("/a"));
        for index in 0..5 {
            hub.publish(&[put(&format!("/a/{index}"), index)]);
        }
        assert_eq!(watch.next().await, Some(WatchEvent::Lost));
        assert_eq!(watch.next().await, None);
    }

    #[tokio::test]
    async fn a_waiting_watcher_is_woken() {
        let hub = Hub::default();
        let mut watch = hub.watch(&key("/a"));
        let waiting = tokio::spawn(async move { watch.next().await });
        tokio::task::yield_now().await;
        hub.publish(&[put("/a/x", 1)]);
        assert!(matches!(waiting.await.unwrap(), Some(WatchEvent::Put { .. })));
    }
}
