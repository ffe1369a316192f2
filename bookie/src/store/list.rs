use bytes::Bytes;
use futures::FutureExt as _;
use ledger::EntryId;
use proto::{AvailabilityWriter, Status};
use roaring::RoaringTreemap;
use tokio::sync::Semaphore;

use super::{LedgerSlot, Store};
use crate::error::Error;
use crate::ledger_state::Absence;

/// Rows copied from an unsealed segment while its lock is held, and entries handled before other tasks get their turn.
const ROWS: usize = 4096;

impl Absence {
    /// The word for the caller.
    pub(crate) fn status(self) -> Status {
        match self {
            Self::NoLedger => Status::NoLedger,
            Self::Unknown => Status::UnknownLedgerState,
        }
    }
}

impl Store {
    /// Whether what is here of a ledger is all there ever was, so that it may be told as such; else why not.
    pub(crate) fn is_whole(&self, slot: &LedgerSlot) -> Result<(), Absence> {
        // Limbo before the ledger's state, as whoever searches does.
        let unproven = self.limbo.covers(slot.id());
        let state = slot.lock();
        // A tombstone is never lost: a deleted ledger is deleted.
        if unproven && state.tombstone.is_none() { Err(Absence::Unknown) } else { state.is_whole() }
    }

    /// The entries of a ledger that are here, encoded; an error where that is not for sure all that should be here. An encoding
    /// of more than `bytes_max` cannot be sent and is an error too. Each segment is read in a turn of its own of `turns`. Cancel-safe.
    pub(crate) async fn list_entries(
        &self,
        slot: &LedgerSlot,
        turns: &Semaphore,
        bytes_max: usize,
    ) -> Result<Bytes, Status> {
        self.is_whole(slot).map_err(Absence::status)?;
        let held = self.held_entries(slot, turns).await.map_err(|error| {
            tracing::error!(ledger = %slot.id(), error = &error as &dyn std::error::Error, "list entries");
            Status::Io
        })?;
        // After the search: a segment that was dropped meanwhile left a tombstone.
        self.is_whole(slot).map_err(Absence::status)?;
        let mut list = AvailabilityWriter::default();
        for (number, entry) in held.iter().filter_map(EntryId::new).enumerate() {
            if number % ROWS == 0 {
                tokio::task::yield_now().await;
            }
            list.push(entry);
            if list.encoded_bytes() > bytes_max {
                tracing::warn!(ledger = %slot.id(), entries = held.len(), "the list of entries does not fit a frame");
                return Err(Status::Io);
            }
        }
        Ok(list.finish())
    }

    /// Entries of all segments, each once, however many segments hold it. Neighbours cost a bit each in memory.
    pub(crate) async fn held_entries(&self, slot: &LedgerSlot, turns: &Semaphore) -> Result<RoaringTreemap, Error> {
        let mut held = RoaringTreemap::new();
        let mut rows = Vec::with_capacity(ROWS);
        // The unsealed first: one that is sealed meanwhile is then found in one of two places.
        for segment in self.unsealed() {
            let mut from = 0;
            loop {
                let copied = segment.copy_rows(slot.id(), from, ROWS, &mut rows);
                held.extend(rows.drain(..).map(|row| row.entry.get()));
                from += copied;
                if copied == 0 {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        for row in self.ledger_segments(slot).await?.iter() {
            let Some((first, last)) = row.entries else { continue };
            // The semaphore is never closed.
            let _turn = turns.acquire().await.ok();
            let Some(file) = self.sealed.open(row.segment).await? else { continue };
            let found = |entry: EntryId| {
                held.insert(entry.get());
            };
            self.sealed.collect(&file, slot.id(), first..=last, found).await?;
        }
        Ok(held)
    }

    /// Size of the store and what may still be added to it, in bytes: what the file system has, within the bookie's budget. Cancel-safe.
    pub(crate) async fn disk_space(&self) -> Result<(u64, u64), Error> {
        let config = &self.config;
        let ask = || {
            let (disk, dir) = (self.disk.clone(), self.journal_dir.clone());
            async move {
                let total = disk.total_bytes(&dir).await.map_err(Error::disk("ask for the size of", &dir))?;
                let free = disk.free_bytes(&dir).await.map_err(Error::disk("ask for the free space of", &dir))?;
                Ok((total, free))
            }
            .boxed()
        };
        let (total, free) = self.space_loads.get((), || None, ask).await?;
        let allocated = self.allocated_bytes.load(std::sync::atomic::Ordering::Relaxed);
        let budget = config.disk_bytes_max.bytes();
        let total = total.min(budget);
        let usable = free.saturating_sub(config.disk_free_bytes_min.bytes()).min(budget.saturating_sub(allocated));
        Ok((total, usable.min(total)))
    }
}
