//! The storage node: keeps entries of ledgers on local disk and serves them over the BookKeeper wire.
//!
//! # The journal is the store
//! Entries are written once, to journal segments, and served from there until their segment is dropped; see
//! `docs/decisions/0003-journal-is-the-store.md`. `docs/formats/journal.md` and `docs/formats/segment-index.md` give the bytes.
//!
//! # Layout
//! `<dir>/VERSION` and `<dir>/journal/VERSION`: the cookie. `<dir>/journal/<id>.seg`: segments. `<dir>/index/`: the index.
//! `<dir>/UNPROVEN`: a run that did not sync its journal has not ended in order; see `limbo.rs`.
//! `<dir>/READONLY`: an administrator wants the bookie to take no entries; see `held.rs`.
//!
//! # Promises
//! * An add is acknowledged after its group is synced. A failed write or sync ends writing until a restart.
//! * A fence is acknowledged, positively or not, after it is synced; no normal add is acknowledged after that, ever.
//! * "No entry" is said only of a ledger whose records are all here and readable. Damage is an I/O error, a dropped ledger is
//!   unknown, and so is what a bookie may have lost that did not sync its journal.
//! * Every request is answered by a deadline of its own, as unknown where the disk or the index did not answer by then.
//! * Nothing is dropped without a durable tombstone, and no tombstone is written without a proof from metadata.
//!
//! * What is asked of a ledger that moved away is asked of its present members; what they do not answer is unknown.
//!
//! The bookie knows no object store.

mod bookie;
mod collector;
mod config;
pub mod disk;
mod error;
pub mod format;
mod held;
mod identity;
pub mod index;
mod inspect;
mod journal;
mod ledger_state;
mod limbo;
mod metrics;
mod rebuild;
mod registration;
mod relay;
mod server;
mod stall;
mod store;
mod wakeups;
mod wipe;

pub use bookie::{Bookie, BookieParts, BookieStats};
pub use collector::CollectReport;
pub use config::{BookieConfig, SyncMode};
pub use disk::{Disk, LocalDisk, MemoryDisk};
pub use error::{Error, ErrorKind};
pub use held::{READ_ONLY_REASON_BYTES_MAX, begin_read_only, end_read_only};
pub use identity::{cookie_of, known_id};
pub use inspect::{Inspection, LedgerSeen, RecordSeen, SegmentCheck};
pub use rebuild::{Rebuilt, rebuild_index};
pub use stall::{Stall, StallCause, Stalls};
pub use store::BookieState;
pub use wipe::{Wipe, Wiped};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
