//! BookKeeper requests, typed: what is left once the wire forms of both versions are read.

use bytes::Bytes;
use ledger::{EntryId, LedgerId, MasterKey};

/// Smallest entry body a bookie accepts: ledger id, entry id and last-add-confirmed, the three fields it reads.
pub(crate) const BODY_BYTES_MIN: usize = 24;

/// Which entry a READ asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReadTarget {
    /// The entry with this id.
    Entry(EntryId),
    /// The entry with the highest id (`-1` on the wire).
    Last,
}

impl ReadTarget {
    /// The id as it goes over the wire.
    pub fn as_i64(self) -> i64 {
        match self {
            ReadTarget::Entry(entry) => entry.as_i64(),
            ReadTarget::Last => -1,
        }
    }

    /// Reads the wire form; `None` for ids below -1.
    pub fn from_i64(value: i64) -> Option<Self> {
        if value == -1 { Some(ReadTarget::Last) } else { EntryId::new(value).map(ReadTarget::Entry) }
    }
}

/// A request that a bookie serves, the same for both protocol versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Store an entry.
    Add {
        /// Ledger id, from the body.
        ledger: LedgerId,
        /// Entry id, from the body.
        entry: EntryId,
        /// The key the caller shows.
        master_key: MasterKey,
        /// The whole entry body, to be stored verbatim; at least 24 bytes. A slice of the received frame.
        body: Bytes,
        /// A recovering client writes this: the fence does not stop it.
        recovery: bool,
        /// Serve ahead of normal requests.
        high_priority: bool,
        /// The caller allows an acknowledgement before the entry is durable.
        deferred_sync: bool,
    },
    /// Return an entry.
    Read {
        /// Ledger to read.
        ledger: LedgerId,
        /// Entry to read.
        target: ReadTarget,
        /// Fence the ledger durably before reading. Then `master_key` is present.
        fence: bool,
        /// The key the caller shows.
        master_key: Option<MasterKey>,
        /// Serve ahead of normal requests.
        high_priority: bool,
    },
    /// Return the explicit last-add-confirmed and the last entry.
    ReadLac {
        /// Ledger to read.
        ledger: LedgerId,
    },
}

impl Request {
    /// The ledger the request is about.
    pub fn ledger(&self) -> LedgerId {
        match self {
            Request::Add { ledger, .. } | Request::Read { ledger, .. } | Request::ReadLac { ledger } => *ledger,
        }
    }
}
