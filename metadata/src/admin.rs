//! What an administrator does to a whole cluster: make it, count it, remove it, move it to another store.
//!
//! # Never half a cluster that looks whole
//! A cluster opens only where INSTANCEID **and** LAYOUT stand. Work that takes more than one transaction therefore begins by
//! putting a [`Marker`] in the transaction that takes INSTANCEID away ([`format`]) or that puts LAYOUT alone ([`copy`]), and ends
//! with one that sets things right and takes the marker away. In between a store has a LAYOUT and no INSTANCEID: every role
//! refuses it, [`state`] says what was begun, and the same command goes on.
//!
//! # Two at a time
//! Whoever begins or goes on writes a marker of its own, and every later transaction checks that it still stands: a second
//! administrator takes over, the first one stops at its next step.
//!
//! # Unknown outcomes
//! Every step may be repeated, so a commit whose outcome is unknown ends the run with an error; the next run finds what was done.

mod census;
pub mod copy;
mod format;
mod init;
mod kind;
mod live;
mod marker;
mod name;
mod walk;

use crate::{CommitError, Error, ErrorKind};

pub use census::{Census, LedgerCounts, Naming, census, ledgers_naming};
pub use format::{FormatOptions, format};
pub use init::{Identity, State, init, layout_name, state};
pub use kind::{Counts, Kind};
pub use live::{Live, live, live_sentence};
pub use marker::{Marker, Work};
pub use name::ClusterName;

/// Rows a page of a listing: bounds the memory of every walk.
const PAGE: usize = 256;
/// Keys one transaction changes.
const BATCH_KEYS: usize = 32;
/// Bytes of values after which a transaction is sent.
const BATCH_BYTES: usize = 256 << 10;

/// Told how many keys are done so far, whenever there are more.
pub type Told<'a> = &'a (dyn Fn(u64) + Sync);

fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Refused, text)
}

/// A failed step as an error: repeating the whole command is always right.
fn step_failed(what: &str, error: CommitError) -> Error {
    match error {
        CommitError::Conflict { .. } => refused(format!("{what}: someone else changes these keys; stop who does")),
        CommitError::NotDone(error) => {
            Error::new(error.kind(), format!("{what}: a step was not done")).caused_by(error)
        }
        CommitError::Unknown(error) => {
            Error::new(error.kind(), format!("{what}: it is unknown whether a step was done")).caused_by(error)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
