//! The BookKeeper wire: connections in, requests to the store, answers out.
//!
//! # Layout
//! Each connection has a reading and a writing half. The reader decodes everything one read from the socket brought (a
//! burst), takes the bytes of its adds from a budget once, and hands adds to the store; the journal answers them into the
//! connection's [`outbox::Outbox`]. Reads that memory can answer are answered in place; the others of a burst go to the disk as
//! one task. The writer sends all answers that wait with one write.
//!
//! # Order
//! Adds of a connection are answered in the order they came, refused ones included. Of reads only those of the same entry are
//! kept in order: clients of version 2 cannot tell them apart.
//!
//! Reads of ledgers that moved away are answered by their present members; see `relays.rs`.
//!
//! Long polls wait without any of this and keep no order; see `polls.rs`.
//!
//! # Deadlines
//! Everything that asks the index or the disk is answered within `read_deadline` of its arrival, waits for turns and memory
//! included: with *too many requests* when there is no better answer by then. What was asked of them goes on in a task of its own and
//! keeps its turn to its end, so that an index or a disk that does not answer holds a bounded number of threads; whoever comes
//! meanwhile waits for a turn until its own deadline. A connection's reader never waits for the index: reads load their
//! ledger in their task, adds in the connection's [`lane::Lane`].
//!
//! # Bounds
//! A reader stops reading its socket while its peer does not take answers, while too many of its requests are open or wait for turns, and while
//! the add budget is spent (for a short time; then adds are refused as too many). A peer that takes nothing for
//! `write_timeout` is disconnected. Connections beyond `connections_max` are closed at once.

mod batch;
mod connection;
mod facts;
mod lane;
mod outbox;
mod polls;
mod reads;
mod relays;
mod step;
mod task;

use std::fmt;
use std::sync::Arc;

use common::budget::ByteBudget;
use common::net::Listener;
use common::shutdown::TaskTree;
use ledger::LedgerId;
use proto::{ReadTarget, Status};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::relay::Relay;
use crate::store::{LedgerSlot, Loads, Store};

/// Lists of entries that are made at the same time.
const LISTS_MAX: usize = 4;

/// Ledgers that are revived at the same time; the index is written for one after the other.
const REVIVALS_MAX: usize = 4;

/// What connections share.
pub(crate) struct Server {
    pub(crate) store: Arc<Store>,
    pub(crate) adds: ByteBudget,
    pub(crate) reads: ByteBudget,
    /// Batches of reads at the disk.
    pub(crate) disk_reads: Arc<Semaphore>,
    /// Lists of entries that are made, each of which may take megabytes until it is encoded.
    pub(crate) lists: Semaphore,
    /// Ledgers that are being revived.
    revivals: Loads<LedgerId, Result<(), Status>>,
    /// Connections.
    connections: Arc<Semaphore>,
    /// Long polls that wait.
    pub(crate) polls: Semaphore,
    /// `None`: what moved away is unknown here.
    pub(crate) relay: Option<Arc<Relay>>,
    pub(crate) tasks: TaskTree,
}

impl Server {
    pub(crate) fn new(store: Arc<Store>, relay: Option<Relay>, budget: &ByteBudget, tasks: TaskTree) -> Self {
        let config = &store.config;
        Self {
            adds: budget.child("bookie-adds", config.add_bytes_max.bytes()),
            reads: budget.child("bookie-reads", config.read_bytes_max.bytes()),
            disk_reads: Arc::new(Semaphore::new(config.read_concurrency)),
            revivals: Loads::new("revive ledger", &Arc::new(Semaphore::new(REVIVALS_MAX)), &tasks),
            lists: Semaphore::new(LISTS_MAX),
            connections: Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS))),
            polls: Semaphore::new(config.long_polls_max.min(Semaphore::MAX_PERMITS)),
            relay: relay.map(Arc::new),
            store,
            tasks,
        }
    }

    /// When a request that was received then must have its answer.
    fn until(&self, received: Instant) -> Instant {
        received + self.store.config.read_deadline.duration()
    }

    /// The outcome of work that may take until then; afterwards it is unknown, and told as too many requests. The work is dropped, so it
    /// MUST be cancel-safe.
    async fn by<T>(&self, until: Instant, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        tokio::time::timeout_at(until, work).await.unwrap_or(Err(Status::TooManyRequests))
    }

    /// A ledger, with what it takes to look for an entry of it: whoever holds a turn does not wait for the index where that can be helped,
    /// so that others of its connection, which need no index, have turns. Cancel-safe.
    async fn load_for(&self, ledger: LedgerId, target: ReadTarget) -> Result<Arc<LedgerSlot>, Status> {
        let slot = self.load(ledger).await?;
        self.store.prepare(&slot, target).await;
        Ok(slot)
    }

    /// A ledger, in memory or not. Cancel-safe.
    async fn load(&self, ledger: LedgerId) -> Result<Arc<LedgerSlot>, Status> {
        self.store.slot(ledger).await.map_err(|error| {
            tracing::error!(%ledger, error = &error as &dyn std::error::Error, "load ledger");
            Status::Io
        })
    }
}

/// No more connections will come, though nobody asked to stop.
#[derive(Debug)]
pub(crate) struct AcceptError(std::io::Error);

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accept connections: {}", self.0)
    }
}

/// Takes connections in until the server stops.
pub(crate) async fn accept(server: Arc<Server>, mut listener: Box<dyn Listener>) -> Result<(), AcceptError> {
    loop {
        tokio::select! {
            biased;
            () = server.tasks.stopping() => return Ok(()),
            accepted = listener.accept() => {
                let (stream, peer) = accepted.map_err(AcceptError)?;
                // Those that are open are kept, idle ones too: a newcomer tries again, and holds nothing here meanwhile.
                let Ok(place) = server.connections.clone().try_acquire_owned() else {
                    server.store.metrics.connection_refused();
                    tracing::debug!(peer, "connection refused: connections_max are open");
                    continue;
                };
                let serving = server.clone();
                server.tasks.spawn("connection", async move {
                    connection::serve(serving, stream, peer).await;
                    drop(place);
                });
            }
        }
    }
}
