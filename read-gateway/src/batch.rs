//! Entries on their way into one message.

use bytes::Bytes;
use ledger::EntryId;
use proto::GRPC_BATCH_BYTES;
use proto::v1;

use crate::route::Source;

/// Entries in one message at most. Empty entries weigh nothing as payload, and yet take room in a message.
const ENTRIES_MAX: usize = 8_192;

/// An entry whose digest was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) entry: EntryId,
    pub(crate) last_confirmed: Option<EntryId>,
    pub(crate) length: u64,
    pub(crate) payload: Bytes,
    pub(crate) source: Source,
}

impl Served {
    fn into_message(self) -> v1::Entry {
        let tier = match self.source {
            Source::Hot => v1::Tier::Hot,
            Source::Cold => v1::Tier::Cold,
        };
        v1::Entry {
            entry_id: self.entry.get(),
            payload: self.payload,
            last_confirmed: self.last_confirmed.map(EntryId::get),
            length: self.length,
            tier: tier.into(),
        }
    }
}

/// What a batch may hold, in payload bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// What the reader may still be sent. The last entry may exceed it.
    pub(crate) credit_bytes: u64,
    /// What has been taken from the budget. Nothing may exceed it, except what exceeds the whole budget.
    pub(crate) held_bytes: u64,
}

/// Whether the next entry belongs into the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Add it.
    Yes,
    /// It belongs into the next message.
    Full,
    /// It is the first, and needs more room than was taken from the budget.
    NeedsRoom,
}

/// A batch under construction.
#[derive(Debug)]
pub(crate) struct Batch {
    room: Room,
    bytes: u64,
    entries: Vec<Served>,
}

impl Batch {
    pub(crate) fn new(room: Room) -> Self {
        Self { room, bytes: 0, entries: Vec::new() }
    }

    pub(crate) fn fit(&self, payload_bytes: u64) -> Fit {
        if self.entries.is_empty() {
            return if payload_bytes <= self.room.held_bytes { Fit::Yes } else { Fit::NeedsRoom };
        }
        let bytes = self.bytes.saturating_add(payload_bytes);
        let fits = self.bytes < self.room.credit_bytes
            && bytes <= self.room.held_bytes.min(GRPC_BATCH_BYTES as u64)
            && self.entries.len() < ENTRIES_MAX;
        if fits { Fit::Yes } else { Fit::Full }
    }

    pub(crate) fn push(&mut self, served: Served) {
        self.bytes += served.payload.len() as u64;
        self.entries.push(served);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries so far.
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Payload bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The entry after the last one, if there is one.
    pub(crate) fn end(&self) -> Option<EntryId> {
        self.entries.last().map(|served| served.entry.next())
    }

    pub(crate) fn into_message(self) -> v1::ReadEntriesResponse {
        v1::ReadEntriesResponse { entries: self.entries.into_iter().map(Served::into_message).collect() }
    }
}

/// How a tier filled a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// At least one entry was added.
    Some,
    /// The next entry has this many payload bytes, and needs more room than the batch has.
    NeedsRoom(u64),
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn served(id: u64, bytes: usize) -> Served {
        let entry = EntryId::new(id).unwrap();
        Served { entry, last_confirmed: None, length: 0, payload: vec![0; bytes].into(), source: Source::Cold }
    }

    #[test]
    fn credit_is_exceeded_by_one_entry_at_most() {
        let mut batch = Batch::new(Room { credit_bytes: 10, held_bytes: 1_000 });
        for id in 0..3 {
            assert_eq!(batch.fit(4), Fit::Yes, "{id}");
            batch.push(served(id, 4));
        }
        assert_eq!((batch.bytes(), batch.fit(0)), (12, Fit::Full));
    }

    #[test]
    fn a_large_entry_travels_alone_in_room_of_its_own() {
        let mut batch = Batch::new(Room { credit_bytes: 1, held_bytes: 100 });
        assert_eq!(batch.fit(101), Fit::NeedsRoom);
        batch.push(served(0, 50));
        assert_eq!(batch.fit(101), Fit::Full);
        let large = GRPC_BATCH_BYTES * 3;
        let mut batch = Batch::new(Room { credit_bytes: u64::MAX, held_bytes: large as u64 });
        assert_eq!(batch.fit(large as u64), Fit::Yes);
        batch.push(served(0, large));
        assert_eq!(batch.fit(1), Fit::Full);
    }

    #[test]
    fn empty_entries_fill_a_batch_too() {
        let mut batch = Batch::new(Room { credit_bytes: 1, held_bytes: 1 });
        let mut id = 0;
        while batch.fit(0) == Fit::Yes {
            batch.push(served(id, 0));
            id += 1;
        }
        assert_eq!(id, ENTRIES_MAX as u64);
        assert_eq!(batch.end().unwrap().get(), id);
    }
}
