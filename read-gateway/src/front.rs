//! BookKeeper's protocol for cold ids: unmodified clients read released ledgers from here as from any bookie.
//!
//! # What is served
//! Reads of closed ledgers that have an object, whatever the shard: by entry, in batches, of the last entry, with a fence, and what
//! else clients and auditors ask a bookie about a ledger. A fence of a closed ledger changes nothing; only the key is checked. What
//! would write is refused as by a read-only bookie. Entries come from the cold tier alone: this front never asks a bookie, so nothing
//! can go round in circles.
//!
//! # Error words
//! Clients act on them: some skip data, some rewind cursors, auditors replicate anew. So "too many requests" is what is told of
//! everything that may be over later (the store, metadata, memory, a stop, a ledger that is not here yet), and only after most of the
//! client's own patience was used to try again. "I/O error" means damage. "No entry" is told beyond the end of a closed ledger, "no
//! ledger" after a proof by metadata, and never otherwise.
//!
//! # Bounds
//! Connections are bounded: at the limit a newcomer takes the place of the one that has been idle longest. So are the requests of a
//! connection and what its peer does not take. Replies are charged to the budget of the
//! gateway's messages before they are copied, and those of one connection and of all connections of one host to a fair part of it
//! each, so that a peer that takes nothing leaves room for others. The first and the last entry of a ledger have memory of their own: auditors judge ledgers by them, and
//! must not find those of a busy gateway missing.

mod connection;
mod hosts;
mod known;
mod metrics;
mod places;
mod serve;
mod strides;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use common::budget::ByteBudget;
use common::metrics::Set;
use common::net::Listener;
use common::shutdown::TaskTree;

use self::hosts::{Host, Hosts};
use self::known::KnownLedgers;
use self::metrics::Metrics;
use self::places::{Places, Taking};
use crate::cold_tier::bodies::{EndsMemory, Memory};
use crate::cold_tier::share::Share;
use crate::config::GatewayConfig;
use crate::ownership::Shards;
use crate::reading::Tiers;

/// The part of the memory for replies that one connection may hold beside one reply, as one of so many.
const CONNECTION_PARTS: u64 = 8;
/// That of all connections of one host.
const HOST_PARTS: u64 = 4;
/// That of one host in the memory for replies of ends, which few need at one time.
const END_PARTS: u64 = 8;

/// What connections share.
pub(crate) struct Front {
    tiers: Arc<Tiers>,
    known: KnownLedgers,
    ends: EndsMemory,
    hosts: Hosts,
    shards: Shards,
    /// How long a request is tried.
    deadline: Duration,
    places: Arc<Places>,
    metrics: Metrics,
    tasks: TaskTree,
}

impl Front {
    /// A front over `tiers`, with memory for the ends of ledgers taken from `ends`.
    pub(crate) fn new(tiers: Arc<Tiers>, ends: &ByteBudget, config: &GatewayConfig, tasks: TaskTree) -> Self {
        let quarter = ends.limit_bytes() / 4;
        let ends = EndsMemory {
            indexes: ends.child("gateway end indexes", quarter),
            reads: ends.child("gateway end reads", ends.limit_bytes() - 2 * quarter),
            replies: Share::whole(ends.child("gateway end replies", quarter)),
        };
        let hosts = Hosts::new(tiers.send_budget.limit_bytes() / HOST_PARTS, quarter / END_PARTS);
        Self {
            known: KnownLedgers::new(Arc::clone(&tiers)),
            tiers,
            ends,
            hosts,
            shards: Shards::default(),
            deadline: config.bookkeeper_deadline.duration(),
            places: Places::new(config.bookkeeper_connections_max),
            metrics: Metrics::new(),
            tasks,
        }
    }

    /// The memory of one connection of a host: what its peer does not take must leave room for what others do.
    fn memory(&self, host: &Host) -> Memory {
        let all = &self.tiers.send_budget;
        let part = ByteBudget::new("gateway messages of a connection", all.limit_bytes() / CONNECTION_PARTS);
        let replies = Share::new(all.clone(), [part, host.replies.clone()]);
        let end_replies = self.ends.replies.within(&host.end_replies);
        Memory { replies, ends: EndsMemory { replies: end_replies, ..self.ends.clone() } }
    }

    /// The shards that this gateway owns, to be told by its registration.
    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    pub(crate) fn metrics(&self) -> Set {
        self.metrics.shown(&self.shards)
    }
}

/// No more connections will come, though nobody asked to stop.
#[derive(Debug)]
pub(crate) struct AcceptError(std::io::Error);

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accept connections of BookKeeper's clients: {}", self.0)
    }
}

/// Takes connections in until the gateway stops.
pub(crate) async fn accept(front: Arc<Front>, mut listener: Box<dyn Listener>) -> Result<(), AcceptError> {
    loop {
        tokio::select! {
            biased;
            () = front.tasks.stopping() => return Ok(()),
            accepted = listener.accept() => {
                let (stream, peer) = accepted.map_err(AcceptError)?;
                // While nobody is idle the connection is closed at once: its peer tries again, and holds nothing here meanwhile.
                let Some((place, taking)) = front.places.take() else {
                    front.metrics.connection_refused();
                    continue;
                };
                if taking == Taking::Evicted {
                    front.metrics.connection_evicted();
                }
                let serving = Arc::clone(&front);
                front.tasks.spawn("bookkeeper connection", connection::serve(serving, stream, peer, place));
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
