//! The read gateway: every entry of every ledger, from whichever tier holds it, over gRPC.
//!
//! # Overview
//! - [`LedgersService`] implements `thermocline.v1.Ledgers`. For the write calls it is the ledgers' single writer on the callers'
//!   behalf; each live writer is kept by the gateway that created the ledger.
//! - A read is a session: one task that pulls batches of entries and sends them as the caller grants credit. [`route`] decides by
//!   metadata which tier a batch comes from; it is a pure function.
//! - The hot tier is read through `client`; the cold tier by row groups, which live in the [`BlockTable`].
//!
//! # Consistency
//! Every entry's digest is checked against the ledger's metadata on both tiers before it is served. An entry that is missing within a
//! closed ledger is damage, never "no such entry"; past the end of a closed ledger it is out of range; a ledger is told not to
//! exist only by a quorum read of the metadata.
//!
//! # Retries
//! A tier that fails for a batch is a miss: metadata is read again by quorum and the other tier is tried, at most twice. Neither
//! tier is asked again for what it has already sent.
//!
//! # Memory
//! Row groups, open objects and send buffers are taken from separate budgets before they are allocated. A session holds no row
//! group while it waits for anything, so none of the budgets can wait for itself.
//!
//! # Cancellation and stop
//! A caller that goes away ends its session at the next await; a row group under way is still fetched and kept. Stopping refuses new
//! calls and ends sessions; live writers are closed by [`LedgersService::close_writers`].

mod answers;
mod batch;
mod blocks;
mod client_tier;
mod cold_tier;
mod config;
mod credit;
mod describe;
mod error;
mod flights;
mod front;
mod hot_tier;
mod metrics;
mod objects;
mod ownership;
mod quiet;
mod reading;
mod registration;
mod route;
mod service;
mod session;
mod writers;

#[cfg(test)]
mod testing;

pub use blocks::{Block, BlockTable, HeldRow, MokaBlocks};
pub use config::{GatewayConfig, InvalidConfig};
pub use error::{Error, ErrorKind};
pub use objects::{ObjectCache, OpenObject};
pub use ownership::Shards;
pub use registration::Registration;
pub use route::{Refusal, Shape, Source, Step, Wanted, route};
pub use service::{GatewayParts, LedgersService};
