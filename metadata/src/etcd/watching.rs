//! A watch: one stream of etcd, followed by a task that belongs to the [`WatchStream`] and ends with it.
//!
//! Consistency: etcd confirms the watch together with the revision it begins behind, and only then the caller has it. The task
//! remembers up to which revision it has told everything. After a lost connection it asks any member for what came since.
//! Retries: without end, with growing waits, while the caller holds the stream. Loss: when etcd has compacted what is missing, or
//! cancels the watch for any other reason, the caller is told [`crate::WatchEvent::Lost`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use common::retry::{Backoff, RetryPolicy};
use etcd_client::{EventType, WatchOptions, WatchResponse};
use futures::Stream;
use tokio::task::AbortHandle;

use super::Shared;
use super::fault::Failure;
use super::links::From;
use super::names::Span;
use crate::watch::Relay;
use crate::{Error, Key, LedgerLayout, Version, WatchEvent, WatchStream};

/// The longest message of a watch. etcd cuts them into pieces of about 2 MiB, except that one event is never cut.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// How a watch that asks for the past begins.
enum Begun {
    Open {
        stream: Box<etcd_client::WatchStream>,
        /// Everything up to here was before the watch.
        revision: i64,
    },
    /// What it asked for is gone.
    Compacted,
}

pub(super) async fn start(shared: &Arc<Shared>, prefix: &Key) -> Result<WatchStream, Error> {
    let layout = shared.layout_for([prefix]).await?;
    let span = shared.names.watched(prefix, layout);
    let what = format!("watch metadata below {prefix}");
    let (stream, revision) = match begin(shared, &what, &span, None).await.map_err(|failure| failure.error)? {
        Begun::Open { stream, revision } => (stream, revision),
        Begun::Compacted => {
            return Err(Error::new(
                crate::ErrorKind::Unavailable,
                format!("{what}: etcd says that the present is compacted"),
            ));
        }
    };
    shared.learn(revision);
    let (relay, events) = Relay::new(prefix.clone());
    let follower = Follower {
        shared: Arc::clone(shared),
        what,
        span,
        layout,
        relay,
        next: revision + 1,
        backoff: reconnects().backoff(),
    };
    let task = tokio::spawn(follower.run(stream)).abort_handle();
    Ok(WatchStream::new(Followed { events: Box::pin(events), task }))
}

fn reconnects() -> RetryPolicy {
    RetryPolicy { max: Duration::from_secs(2), ..RetryPolicy::default() }
}

async fn begin(shared: &Shared, what: &str, span: &Span, since: Option<i64>) -> Result<Begun, Failure> {
    let call = |client: etcd_client::Client| async move {
        let mut options = WatchOptions::new().with_range(span.end.clone()).with_progress_notify().with_fragment();
        if let Some(since) = since {
            options = options.with_start_revision(since);
        }
        let mut watches = client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut stream = watches.watch(span.from.clone(), Some(options)).await?;
        match stream.message().await? {
            Some(first) if first.compact_revision() != 0 => Ok(Begun::Compacted),
            Some(first) if first.canceled() => Err(etcd_client::Error::WatchError(first.cancel_reason().to_owned())),
            Some(first) if first.created() => {
                let revision = first.header().map_or(0, etcd_client::ResponseHeader::revision);
                Ok(Begun::Open { stream: Box::new(stream), revision })
            }
            _ => Err(etcd_client::Error::WatchError("etcd did not confirm the watch".into())),
        }
    };
    shared.links.repeatable(what, From::Led, call).await
}

struct Follower {
    shared: Arc<Shared>,
    what: String,
    span: Span,
    layout: LedgerLayout,
    /// Dropped at the end, which tells the caller that events are lost.
    relay: Relay,
    /// The first revision that may not have been told in full.
    next: i64,
    backoff: Backoff,
}

impl Follower {
    async fn run(mut self, mut stream: Box<etcd_client::WatchStream>) {
        loop {
            let why = loop {
                match stream.message().await {
                    Ok(Some(response)) if response.compact_revision() != 0 => return self.lost("compacted"),
                    Ok(Some(response)) if response.canceled() => return self.lost(response.cancel_reason()),
                    Ok(Some(response)) => self.take_in(&response),
                    Ok(None) => break "the stream ended".to_owned(),
                    Err(error) => break super::fault::reason(&error),
                }
            };
            tracing::debug!(what = %self.what, %why, revision = self.next, "watch lost its connection");
            stream = loop {
                let wait = self.backoff.next_wait(&self.shared.rng);
                tokio::time::sleep(wait).await;
                match begin(&self.shared, &self.what, &self.span, Some(self.next)).await {
                    Ok(Begun::Open { stream, .. }) => break stream,
                    Ok(Begun::Compacted) => return self.lost("compacted"),
                    Err(failure) if !failure.is_passing() => return self.lost(&failure.error.to_string()),
                    Err(failure) => tracing::debug!(error = %failure.error, "watch is not back yet"),
                }
            };
        }
    }

    /// Ends the task, which drops the relay: the caller is told.
    fn lost(&self, why: &str) {
        tracing::debug!(what = %self.what, why, "watch lost events");
    }

    fn take_in(&mut self, response: &WatchResponse) {
        self.backoff = reconnects().backoff();
        let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
        let last = response.events().iter().filter_map(|event| event.kv()).map(|row| row.mod_revision()).max();
        // A revision may come in several messages, so the last one is asked for again; telling it twice does no harm. A message
        // without events says that everything up to its revision was told.
        self.next = self.next.max(last.unwrap_or(revision + 1));
        self.shared.learn(last.unwrap_or(revision));
        let changes: Vec<_> = response.events().iter().filter_map(|event| self.change(event)).collect();
        self.relay.publish(&changes);
    }

    fn change(&self, event: &etcd_client::Event) -> Option<(Key, Option<Version>)> {
        let row = event.kv()?;
        let state = match event.event_type() {
            EventType::Put => Some(Version::new(row.mod_revision().cast_unsigned())),
            EventType::Delete => None,
        };
        Some((self.shared.names.key(row.key(), self.layout)?, state))
    }
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
