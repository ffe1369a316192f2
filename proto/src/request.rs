//! BookKeeper requests, typed: what is left once the wire forms of both versions are read.

use std::time::Duration;

use bytes::Bytes;
use ledger::{EntryId, LedgerId, MasterKey};

/// Smallest entry body a bookie accepts: ledger id, entry id and last-add-confirmed, the three fields it reads.
pub(crate) const BODY_BYTES_MIN: usize = 24;

/// Longest body of an explicit last-add-confirmed that is accepted. The protocol's have 16 bytes and a digest of at most 20;
/// bookies keep one for every ledger, so strangers must not choose its size.
pub const LAC_BODY_BYTES_MAX: usize = 128;

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

/// What a long poll wants once it has waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PollTarget {
    /// An entry, as a plain READ.
    Read(ReadTarget),
    /// The last-add-confirmed, and the entry behind `previous` if this bookie has it ("piggyback").
    Next,
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
        /// Serve ahead of normal requests, and on a read-only bookie too while there is space for such.
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
    /// Return consecutive entries (version 2 only).
    BatchRead {
        /// Ledger to read.
        ledger: LedgerId,
        /// First entry.
        start: EntryId,
        /// Most entries to return; `None` when only the bytes bound them.
        count_max: Option<u32>,
        /// Most bytes of the reply: head, request id, a length word before each entry, and the entries; the first entry is
        /// returned whatever its size.
        bytes_max: u64,
        /// Fence the ledger durably before reading. Then `master_key` is present.
        fence: bool,
        /// The key the caller shows.
        master_key: Option<MasterKey>,
        /// Serve ahead of normal requests.
        high_priority: bool,
    },
    /// Wait until the last-add-confirmed of the ledger is above `previous`, the ledger gets fenced, or the time is over; then
    /// answer from the state of that moment (version 3 only).
    LongPoll {
        /// Ledger to read.
        ledger: LedgerId,
        /// What to answer.
        target: PollTarget,
        /// The last-add-confirmed that the caller knows.
        previous: Option<EntryId>,
        /// How long to wait at most; `None` when not at all.
        patience: Option<Duration>,
    },
    /// Store the explicit last-add-confirmed (version 3 only).
    WriteLac {
        /// Ledger it is about.
        ledger: LedgerId,
        /// The last-add-confirmed in the body.
        lac: Option<EntryId>,
        /// The key the caller shows.
        master_key: MasterKey,
        /// The whole body, to be stored verbatim; 16 to [`LAC_BODY_BYTES_MAX`] bytes. A slice of the received frame.
        body: Bytes,
    },
    /// Return the explicit last-add-confirmed and the last entry.
    ReadLac {
        /// Ledger to read.
        ledger: LedgerId,
    },
    /// Answer once every add acknowledged before is on stable storage (version 3 only).
    ForceLedger {
        /// Ledger it is about.
        ledger: LedgerId,
    },
    /// Return the sizes of the disks (version 3 only).
    BookieInfo {
        /// Whether the whole size is asked for.
        total: bool,
        /// Whether the free space is asked for.
        free: bool,
    },
    /// Return which entries of a ledger are here (version 3 only).
    ListEntries {
        /// Ledger to list.
        ledger: LedgerId,
    },
}

impl Request {
    /// The ledger the request is about; `None` when it is about the bookie.
    pub fn ledger(&self) -> Option<LedgerId> {
        match self {
            Request::Add { ledger, .. }
            | Request::Read { ledger, .. }
            | Request::BatchRead { ledger, .. }
            | Request::LongPoll { ledger, .. }
            | Request::WriteLac { ledger, .. }
            | Request::ReadLac { ledger }
            | Request::ForceLedger { ledger }
            | Request::ListEntries { ledger } => Some(*ledger),
            Request::BookieInfo { .. } => None,
        }
    }
}
