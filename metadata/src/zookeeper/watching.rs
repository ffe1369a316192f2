//! A watch: recursive watches of ZooKeeper, followed by a task that belongs to the [`WatchStream`] and ends with it.
//!
//! Consistency: ZooKeeper confirms a watch before the caller has it, on the session that reads hints, so *watch, then list* misses
//! nothing. An event names only a znode; its version is read afterwards on the same session, which shows at least what the event
//! told of. Loss: a connection that was lost may have taken events with it (ZOOKEEPER-4698), so the caller is told
//! [`crate::WatchEvent::Lost`] then, and begins again.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use futures::future::{FutureExt, select_all, try_join_all};
use tokio::task::AbortHandle;
use zookeeper_client::{AddWatchMode, Client, Error as ClientError, EventType, PersistentWatcher, WatchedEvent};

use super::links::CALL_DEADLINE;
use super::names::Names;
use super::{Shared, request};
use crate::watch::Relay;
use crate::{Error, Key, LedgerLayout, Version, WatchEvent, WatchStream};

/// How many znodes are asked for at once.
const ASKED_AT_ONCE: usize = 256;

pub(super) async fn start(shared: &Arc<Shared>, prefix: &Key) -> Result<WatchStream, Error> {
    let layout = shared.layout_for([prefix]).await?;
    let paths = shared.names.watched(prefix, layout)?;
    let begin = |client: Client| {
        let paths = paths.clone();
        async move {
            let watches = paths.iter().map(|path| client.watch(path, AddWatchMode::PersistentRecursive));
            let watchers = try_join_all(watches).await?;
            Ok((client, watchers))
        }
    };
    let (client, watchers) = shared
        .links
        .repeatable(&format!("watch metadata below {prefix}"), begin)
        .await
        .map_err(|failure| failure.error)?;
    let (relay, events) = Relay::new(prefix.clone());
    let follower = Follower { client, watchers, names: shared.names.clone(), layout, relay };
    let task = tokio::spawn(follower.run()).abort_handle();
    Ok(WatchStream::new(Followed { events: Box::pin(events), task }))
}

struct Follower {
    client: Client,
    watchers: Vec<PersistentWatcher>,
    names: Names,
    layout: LedgerLayout,
    /// Dropped at the end, which tells the caller that events are lost.
    relay: Relay,
}

/// The last that was told of a znode: whether it was written.
type Told = BTreeMap<String, bool>;

impl Follower {
    async fn run(mut self) {
        loop {
            let mut told = Told::new();
            let event = select_all(self.watchers.iter_mut().map(|watcher| Box::pin(watcher.changed()))).await.0;
            if !note(&mut told, event) {
                return;
            }
            for watcher in &mut self.watchers {
                while let Some(event) = watcher.changed().now_or_never() {
                    if !note(&mut told, event) {
                        return;
                    }
                }
            }
            match tokio::time::timeout(CALL_DEADLINE, self.changes(told)).await {
                Ok(Ok(changes)) => self.relay.publish(&changes),
                Ok(Err(error)) => return tracing::debug!(%error, "watch lost events"),
                Err(_) => return tracing::debug!("watch lost events: ZooKeeper does not answer"),
            }
        }
    }

    /// What became of the keys; what is no key is left out.
    async fn changes(&self, told: Told) -> Result<Vec<(Key, Option<Version>)>, ClientError> {
        let keys: Vec<_> = told
            .into_iter()
            .filter_map(|(path, written)| Some((self.names.key(&path, self.layout)?, path, written)))
            .collect();
        let mut changes = Vec::with_capacity(keys.len());
        for some in keys.chunks(ASKED_AT_ONCE) {
            let asked = some.iter().map(|(key, path, written)| async move {
                let stat = if *written { self.client.check_stat(path).await? } else { None };
                Ok::<_, ClientError>((key.clone(), stat.as_ref().map(request::version)))
            });
            changes.extend(try_join_all(asked).await?);
        }
        Ok(changes)
    }
}

/// Takes in an event; false when others may be lost.
fn note(told: &mut Told, event: WatchedEvent) -> bool {
    match event.event_type {
        EventType::Session => {
            tracing::debug!(state = %event.session_state, "watch lost its connection");
            return false;
        }
        EventType::NodeCreated | EventType::NodeDataChanged => drop(told.insert(event.path, true)),
        EventType::NodeDeleted => drop(told.insert(event.path, false)),
        EventType::NodeChildrenChanged => {}
    }
    true
}

/// Events, and the task that brings them.
struct Followed {
    events: Pin<Box<dyn Stream<Item = WatchEvent> + Send>>,
    task: AbortHandle,
}

impl Stream for Followed {
    type Item = WatchEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        self.events.as_mut().poll_next(cx)
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}
