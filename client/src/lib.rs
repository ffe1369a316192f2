//! The client of the hot tier: writes, reads and recovers ledgers over BookKeeper's wire protocol.
//!
//! # Layout
//!
//! What must be right is pure and has no I/O, no clock and no tasks: `writer` (who gets an entry, when it is confirmed),
//! `closing` (how a writer fixes the end), `recovery` (how another client finds it), `read` and `lac` (what answers of
//! replicas mean). They take events and give actions; `sim` runs them against model bookies with lost, late and repeated
//! messages. Around them stands a thin shell: `LedgerWriter` and its owner task, `LedgerReader` and its window, `recover`, and
//! the connections (`pool`, `session`).
//!
//! # Consistency
//!
//! - An entry is confirmed when `Qa` members of its write set acknowledged it and everything before it is confirmed.
//! - A denial ("no such entry") counts only from a bookie that says so itself; errors, silence and damaged bodies mean that
//!   nothing is known, and nothing is ever concluded from them.
//! - Every request has a deadline and every promise resolves. An append that failed says whether its entry may turn up later
//!   ([`Error::may_have_happened`]).
//!
//! # Not here
//!
//! Ensembles are not changed yet: a member that fails gets nothing more from that writer, which goes on while every write set
//! still has an ack quorum and otherwise ends with `QuorumUnreachable`. Everything travels in version 2 frames; the confirmed end
//! is read as the last entry's, so no version 3 connection is needed.
//!
//! # Crash
//!
//! A client that dies leaves its ledgers open; opening one with [`OpenMode::Recover`] closes it behind the last entry that
//! may have been confirmed. A recovery that dies leaves it in recovery, and the next one goes on.

mod client;
mod close;
mod closing;
mod config;
mod error;
mod geometry;
mod lac;
mod ledger_reader;
mod ledger_writer;
mod metrics;
mod outgoing;
mod pool;
mod read;
mod recover;
mod recovery;
mod request;
mod session;
mod shared;
#[cfg(test)]
mod sim;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod writer;

pub use client::{Client, ClientParts, CreateOptions, OpenMode, Opened};
pub use config::ClientConfig;
pub use error::{Error, ErrorKind};
pub use ledger_reader::LedgerReader;
pub use ledger_writer::{Append, LedgerWriter};
pub use shared::ReadEntry;
