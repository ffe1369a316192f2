//! The connections of a client: one lazily opened per bookie and lane, found by bookie id through the registrations.
//!
//! Recovery has its own lane. The wire cannot tell the answer of a fencing read from that of a plain read of the same entry,
//! and a denial counts for a recovery only if it fenced; on a lane of their own all reads fence. It also keeps a recovery from
//! waiting behind the very writer it shuts out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::net::Connector;
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::BookieId;
use metadata::Bookies;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::ClientConfig;
use crate::request::{Answer, Loss, Request};
use crate::session::Session;

/// The first wait after a failed connection attempt; doubles up to the maximum.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Normal,
    Recovery,
}

/// The way to one bookie. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Channel {
    queue: mpsc::UnboundedSender<Request>,
}

impl Channel {
    /// Sends a request; it is answered in any case. The queue is not bounded here: adds hold permits of the client's budget,
    /// and readers bound what they ask.
    pub(crate) fn send(&self, request: Request) {
        if let Err(mpsc::error::SendError(request)) = self.queue.send(request) {
            request.sink.answer(Answer::NotSent(Loss::connection("the client is stopping")));
        }
    }
}

/// All connections of a client.
pub(crate) struct Pool {
    connector: Arc<dyn Connector>,
    bookies: Bookies,
    config: ClientConfig,
    rng: Rng,
    tasks: TaskTree,
    channels: Mutex<BTreeMap<(BookieId, Lane), Channel>>,
}

impl Pool {
    pub(crate) fn new(
        connector: Arc<dyn Connector>,
        bookies: Bookies,
        config: ClientConfig,
        rng: Rng,
        tasks: TaskTree,
    ) -> Self {
        Self { connector, bookies, config, rng, tasks, channels: Mutex::default() }
    }

    /// The way to a bookie; nothing is dialled before the first request.
    pub(crate) fn channel(&self, bookie: &BookieId, lane: Lane) -> Channel {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(&(bookie.clone(), lane)) {
            return channel.clone();
        }
        let (queue, requests) = mpsc::unbounded_channel();
        let driver = Driver {
            bookie: bookie.clone(),
            connector: Arc::clone(&self.connector),
            bookies: self.bookies.clone(),
            config: self.config.clone(),
            rng: self.rng.fork(),
            tasks: self.tasks.clone(),
            address: None,
            failures: 0,
        };
        self.tasks.spawn("bookie-connection", driver.run(requests));
        let channel = Channel { queue };
        channels.insert((bookie.clone(), lane), channel.clone());
        channel
    }
}

/// Owns the connection of one channel.
struct Driver {
    bookie: BookieId,
    connector: Arc<dyn Connector>,
    bookies: Bookies,
    config: ClientConfig,
    rng: Rng,
    tasks: TaskTree,
    /// Where the bookie was last found, for when the registrations cannot be read.
    address: Option<String>,
    failures: u32,
}

impl Driver {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Request>) {
        let stop = self.tasks.token().clone();
        let mut refused: Option<(Loss, Instant)> = None;
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                request = queue.recv() => match request {
                    Some(request) => request,
                    None => return,
                },
            };
            if let Some((loss, _)) = refused.as_ref().filter(|(_, until)| Instant::now() < *until) {
                first.sink.answer(Answer::NotSent(loss.clone()));
                continue;
            }
            let connected = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                connected = tokio::time::timeout(self.config.connect_timeout.duration(), self.connect()) => connected,
            };
            let stream = match connected.unwrap_or_else(|_| Err(Loss::timeout())) {
                Ok(stream) => stream,
                Err(loss) => {
                    tracing::debug!(bookie = %self.bookie, cause = %loss.detail, "cannot connect");
                    let pause = self.backoff();
                    first.sink.answer(Answer::NotSent(loss.clone()));
                    while let Ok(request) = queue.try_recv() {
                        request.sink.answer(Answer::NotSent(loss.clone()));
                    }
                    refused = Some((loss, Instant::now() + pause));
                    continue;
                }
            };
            refused = None;
            let check_interval = self.config.check_interval();
            let session = Session::new(&self.bookie, self.config.frame_bytes_max.as_usize(), check_interval);
            let ended = session.run(stream, first, &mut queue, &stop).await;
            let Some(loss) = ended.loss else { return };
            tracing::debug!(bookie = %self.bookie, cause = %loss.detail, "connection ended");
            if ended.was_answered {
                self.failures = 0;
            } else {
                // Who is not let in may learn it from the end of a connection alone, as of a client's certificate in TLS 1.3. To try
                // again at once would cost both sides a handshake for each request.
                refused = Some((loss, Instant::now() + self.backoff()));
            }
        }
        // Stopping: what still comes is answered, by the drop of each request, until the last sender has gone.
        queue.close();
    }

    async fn connect(&mut self) -> Result<common::net::BoxStream, Loss> {
        if ledger::is_cold(&self.bookie) {
            return Err(Loss::connection("a cold id has no bookie behind it"));
        }
        match self.bookies.get(&self.bookie).await {
            Ok(Some((info, _))) => self.address = Some(info.address),
            Ok(None) if self.address.is_none() => return Err(Loss::connection("the bookie is not registered")),
            Err(error) if self.address.is_none() => {
                return Err(Loss::connection(format!("look up the bookie's address: {error}")));
            }
            // It may well be where it was.
            Ok(None) | Err(_) => {}
        }
        let address = self.address.as_deref().unwrap_or_default();
        self.connector.connect(address).await.map_err(|error| Loss::connection(error.to_string()))
    }

    fn backoff(&mut self) -> Duration {
        let pause = BACKOFF_MIN.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_MAX);
        self.failures += 1;
        // Up to a quarter less, so that clients do not come back in step.
        pause.mul_f64(1.0 - self.rng.fraction() / 4.0)
    }
}
