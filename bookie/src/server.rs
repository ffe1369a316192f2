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
//! # Bounds
//! A reader stops reading its socket while its peer does not take answers, while too many of its requests are open, and while
//! the add budget is spent (for a short time; then adds are refused as too many). A peer that takes nothing for
//! `write_timeout` is disconnected. Connections beyond `connections_max` are closed at once.

mod batch;
mod connection;
mod facts;
mod outbox;
mod polls;
mod reads;
mod relays;

use std::fmt;
use std::sync::Arc;

use common::budget::ByteBudget;
use common::net::Listener;
use common::shutdown::TaskTree;
use tokio::sync::Semaphore;

use crate::relay::Relay;
use crate::store::Store;

/// Lists of entries that are made at the same time.
const LISTS_MAX: usize = 4;

/// What connections share.
pub(crate) struct Server {
    pub(crate) store: Arc<Store>,
    pub(crate) adds: ByteBudget,
    pub(crate) reads: ByteBudget,
    /// Batches of reads at the disk.
    pub(crate) disk_reads: Semaphore,
    /// Lists of entries that are made, each of which may take megabytes until it is encoded.
    pub(crate) lists: Semaphore,
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
            disk_reads: Semaphore::new(config.read_concurrency),
            lists: Semaphore::new(LISTS_MAX),
            connections: Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS))),
            polls: Semaphore::new(config.long_polls_max.min(Semaphore::MAX_PERMITS)),
            relay: relay.map(Arc::new),
            store,
            tasks,
        }
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
