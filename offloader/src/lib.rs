//! The tiering worker: settles closed ledgers into the cold store and releases them from the bookies.
//!
//! ## Overview
//! [`plan`] decides what a ledger needs, from values only. A job carries it out, step by step ([`Step`]). [`Offloader`] scans the
//! ledgers for work, takes single orders ([`Offloader::offload_now`]), and sees to it that a ledger has one job at a time.
//! [`TieringService`] is its gRPC front.
//!
//! ## Protocol
//! 1. *Claim*: an attempt record with a fresh uuid, in one transaction. An earlier attempt, our own or a dead owner's, is marked
//!    abandoned in the same transaction. **The attempt is the fence**: without it nothing can be committed.
//! 2. *Upload*: all entries `0..=last` in order, the writer's digest of each one checked, encoded and sent with bounded memory.
//! 3. *Read back*: the object is read from the store past every cache and compared with what was written.
//! 4. *Commit*: one transaction [attempt mine, ledger record in the version read, still closed at the same end]: the record gains
//!    the cold record, the catalog entry appears, the attempt ends. A record changed meanwhile is taken anew and committed again,
//!    never uploaded again.
//! 5. *Release*, once the hot retention is over: size and footer of the object are read past every cache, first and last entry
//!    through each of its cold ids over BookKeeper's protocol and compared; then one compare-and-swap on exactly the version that was proved puts cold ids in the
//!    place of all members.
//!
//! ## Consistency
//! A ledger is never without a tier that has all of it: its record names an object only after the object was read back, and drops
//! the bookies only after gateways served that object under each of its cold ids. Nothing is deleted here, least of all in an error path: an attempt
//! that ends without a commit is marked abandoned, which condemns its object for the sweeper.
//!
//! A ledger without entries needs no object. It stays as it is, named by its bookies, and counts as hot: "nothing to offload".
//! Ledgers whose metadata does not say how digests are made (formats 1 and 2 of old clients), and those with DUMMY digests, stay
//! hot too: no single replica can be trusted to be what was written.
//!
//! ## Crash
//! At every point either the ledger's record names the object, or an attempt does. An attempt of a process that is gone is taken
//! over by the next one: if it was committed there is none; else it is abandoned and the ledger settled anew under another uuid.
//!
//! ## Cancellation
//! Jobs run in tasks of their own; a caller that goes away stops nothing. A job stopped half-way is a crash of that job.

mod client_source;
mod config;
mod error;
mod job;
mod metrics;
mod observe;
mod offloader;
mod owner;
pub mod plan;
mod release;
mod report;
mod scan;
mod seen;
mod service;
mod settle;
mod source;
mod waiting;
mod wire_probe;

pub use client_source::ClientSource;
pub use config::OffloaderConfig;
pub use error::{Error, ErrorKind, Result};
pub use observe::{NoObserver, Step, StepObserver, Verdict};
pub use offloader::{Offloader, OffloaderParts};
pub use release::{ReleaseProbe, Served};
pub use report::{OffloadReport, Tallies};
pub use service::{StatusSource, TieringService};
pub use source::{EntrySource, EntryStream};
pub use wire_probe::WireProbe;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
