//! Benchmarks that tell a figure together with what the machine itself could do.
//!
//! # What a figure is
//! A [`Row`] holds a value, the machine's *limit* for the same work and their ratio. The limit is never a number from elsewhere: the run's own
//! pattern is done again, raw, on the same directory, store or loopback, right after the product did it. Product and raw runs alternate, the
//! row is the median pair, and the spread of the pairs is told. A ratio above [`RATIO_MAX`] means that the bench is wrong, not that the product
//! is fast: [`Row::fault`] says so and the command fails.
//!
//! # Layout
//! - [`append`], [`catchup`], [`cold_read`], [`offload`]: one bench each, from a [`Plan`] to rows. They block: call them on a thread where that is allowed.
//! - `node`, `disk_record`, `gateway`: the product under test, in threads of its own, with every write of its journal noted.
//! - `load`, `content`: who asks, and what entries carry. `raw_disk`, `raw_net`, `raw_pages`: the same work done raw.
//! - [`Machine`], [`report`]: where it ran; rows to documents.
//!
//! # What shares the machine
//! Load generator and product run in one process, so they share its cores, as they would on a small machine. Their processor time is told
//! apart by the names of their threads ([`cpu`]).
//!
//! The micro-benchmarks of hot pure code (`cargo bench -p bench`) use [`PAYLOAD_BYTES`] and [`payload`] only.

pub mod append;
mod beside;
pub mod bookie_node;
pub mod catchup;
pub mod cold_read;
mod content;
pub mod cpu;
mod disk_record;
mod gateway;
mod load;
mod machine;
mod node;
pub mod offload;
mod plan;
mod raw_disk;
mod raw_files;
mod raw_net;
mod raw_pages;
mod reader;
pub mod report;
mod restart;
mod row;
mod timing;

use common::rng::Rng;

pub use machine::{Machine, commit, load_average};
pub use plan::{Error, Plan, Progress, Result, Scale};
pub use row::{Better, Fact, RATIO_MAX, Row, Target};

/// The payload sizes measured by the micro-benchmarks, in bytes: a short log line, a usual one, a batch.
pub const PAYLOAD_BYTES: [usize; 3] = [100, 1 << 10, 64 << 10];

/// A payload that does not compress to nothing; the same for the same size.
pub fn payload(bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; bytes];
    Rng::seeded(bytes as u64).fill(&mut payload);
    payload
}
