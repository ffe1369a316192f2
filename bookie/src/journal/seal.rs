use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::describe;
use super::maker::{MakeError, SegmentMaker};
use crate::disk::{AlignedBuffer, BLOCK_BYTES};
use crate::error::Error;
use crate::format::{
    Directory, ENTRY_BLOCK_ROWS, EntryRow, LEDGER_BLOCK_ROWS, LedgerRow, SealedLayout, Trailer, encode_entry_block,
    encode_ledger_block,
};
use crate::index::Write;
use crate::index::rows::{self, LedgerSegment, SegmentRow};
use crate::store::{OpenSegment, Store};

/// Index bytes written to the segment at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Index rows written to the index at a time; only the last batch makes the segment count as sealed.
const BATCH_ROWS: usize = 2_000;

/// How often a segment that waits for space in the index is tried again.
const SPACE_CHECK: Duration = Duration::from_secs(1);

/// A full segment to be sealed.
pub(crate) struct SealJob(pub(crate) Arc<OpenSegment>);

/// Seals full segments, in order, and prepares spare ones, beside the writer.
pub(crate) struct Sealer {
    pub(crate) store: Arc<Store>,
    pub(crate) maker: Arc<SegmentMaker>,
    pub(crate) jobs: mpsc::Receiver<SealJob>,
    /// What replay left, to be sealed before all else.
    pub(crate) replayed: Vec<Arc<OpenSegment>>,
    /// A segment was left unsealed, so that none behind it may be sealed any more: the index says of all before the newest sealed
    /// one that they are sealed.
    pub(crate) ended: bool,
}

impl Sealer {
    /// Works until the writer is gone and its last segment is sealed.
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let replayed = std::mem::take(&mut self.replayed);
        for (behind, segment) in (0..replayed.len()).rev().zip(&replayed) {
            self.seal(segment, behind == 0).await;
        }
        loop {
            tokio::select! {
                biased;
                job = self.jobs.recv() => match job {
                    Some(SealJob(segment)) => self.seal(&segment, true).await,
                    None => return Ok(()),
                },
                () = self.maker.spare_wanted() => self.prepare_spare().await,
            }
        }
    }

    /// Seals the next segment, waiting for space in the index as long as the bookie runs. After a failure, or a stop while it
    /// waits, this segment and all that follow stay as they are and are replayed at the next start. With `last` no other that replay
    /// left waits behind it.
    async fn seal(&mut self, segment: &OpenSegment, last: bool) {
        loop {
            self.ended |= self.store.condition.failure().is_some();
            if self.ended {
                break;
            }
            match seal(&self.store, segment).await {
                Ok(()) => {
                    self.store.seal_waits.send_if_modified(|waits| std::mem::replace(waits, *waits && !last) && last);
                    break;
                }
                // Nothing was lost: the segment is served as it is, and its index is written again from the start.
                Err(error) if error.is_index_full() => {
                    self.store.seal_waits.send_replace(true);
                    self.ended = self.jobs.is_closed();
                    if !self.ended {
                        tokio::time::sleep(SPACE_CHECK).await;
                    }
                }
                Err(error) => {
                    self.store.condition.fail(format!("seal {}: {}", segment.path.display(), describe(&error)));
                    self.ended = true;
                }
            }
        }
        self.store.table.trim(self.store.sealed_through());
    }

    async fn prepare_spare(&self) {
        // A failure has ended writing and is in the log.
        if let Err(MakeError::NoSpace(reason)) = self.maker.prepare_spare().await {
            tracing::warn!(reason, "no space for a spare segment");
        }
    }
}

/// Appends the index of a segment to it, cuts it to its length, and enters it into the index. The segment is no longer written.
pub(crate) async fn seal(store: &Store, segment: &OpenSegment) -> Result<(), Error> {
    let (groups_end, last_sequence) = {
        let index = segment.index();
        (index.end, index.last_sequence)
    };
    let ledgers = segment.ledger_ids();
    let mut sink = Sink { segment, offset: groups_end, buffer: Vec::with_capacity(CHUNK_BYTES) };
    let (mut directory, mut entries) = (Directory::default(), 0);
    let mut block: Vec<EntryRow> = Vec::with_capacity(ENTRY_BLOCK_ROWS);
    for ledger in &ledgers {
        let mut from = 0;
        loop {
            let copied = segment.copy_rows(*ledger, from, ENTRY_BLOCK_ROWS - block.len(), &mut block);
            from += copied;
            entries += copied as u64;
            if block.len() == ENTRY_BLOCK_ROWS {
                sink.put_entries(&mut directory, &mut block).await?;
            } else if copied == 0 {
                break;
            }
        }
    }
    if !block.is_empty() {
        sink.put_entries(&mut directory, &mut block).await?;
    }
    let mut batch = Vec::new();
    let rows_held = store.ledger_rows.lock().await;
    for chunk in ledgers.chunks(LEDGER_BLOCK_ROWS) {
        let mut rows = Vec::with_capacity(chunk.len());
        for ledger in chunk {
            let Some(facts) = segment.facts(*ledger) else { continue };
            let state = facts.slot.lock().row();
            rows.push(LedgerRow {
                ledger: *ledger,
                entries: facts.entries,
                count: facts.count,
                recovery_ms: facts.recovery_ms,
                max_entry: state.max_entry,
                last_confirmed: state.last_confirmed,
                master_key: state.master_key,
                fenced: state.fenced,
            });
            batch.push(rows::put_ledger(*ledger, &state));
            let span = LedgerSegment { segment: segment.id(), entries: facts.entries };
            batch.push(rows::put_ledger_segment(*ledger, &span));
        }
        sink.put(&encode_ledger_block(&rows)).await?;
    }
    let layout = SealedLayout { groups_end, entries, ledgers: ledgers.len() as u64 };
    sink.put(&directory.encode()).await?;
    sink.finish(&Trailer { segment: segment.header, last_sequence, layout }).await?;
    let file_bytes = layout.file_bytes();
    segment.file.set_len(file_bytes).await.map_err(Error::disk("cut", &segment.path))?;
    let row = SegmentRow { id: segment.id(), file_bytes, entries, dropping: false };
    enter(store, &row, last_sequence, batch).await?;
    drop(rows_held);

    store.sealed.insert(row);
    for ledger in &ledgers {
        if let Some(facts) = segment.facts(*ledger) {
            let mut state = facts.slot.lock();
            state.forget_segments();
            if !std::mem::replace(&mut state.indexed, true) {
                store.indexed_ledgers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    store.set_sealed_through(segment.id());
    store.remove_unsealed(segment.id());
    let freed = segment.capacity.saturating_sub(file_bytes);
    store.allocated_bytes.fetch_sub(freed, Ordering::Relaxed);
    tracing::debug!(segment = %segment.id(), entries, ledgers = ledgers.len(), bytes = file_bytes, "segment sealed");
    Ok(())
}

/// Enters a sealed segment into the index; only with the last of its rows it counts as sealed.
pub(crate) async fn enter(store: &Store, row: &SegmentRow, last_sequence: u64, batch: Vec<Write>) -> Result<(), Error> {
    let mut rest = batch.into_iter();
    loop {
        let mut part: Vec<Write> = rest.by_ref().take(BATCH_ROWS).collect();
        let last = rest.len() == 0;
        if last {
            part.push(rows::put_segment(row));
            part.push(rows::put_sealed(row.id, last_sequence));
        }
        store.write_index(part).await?;
        if last {
            return Ok(());
        }
    }
}

/// Collects the parts of the index into aligned writes.
struct Sink<'a> {
    segment: &'a OpenSegment,
    offset: u64,
    buffer: Vec<u8>,
}

impl Sink<'_> {
    async fn put_entries(&mut self, directory: &mut Directory, block: &mut Vec<EntryRow>) -> Result<(), Error> {
        if let Some(first) = block.first() {
            directory.push(first);
        }
        let bytes = encode_entry_block(block);
        block.clear();
        self.put(&bytes).await
    }

    async fn put(&mut self, part: &[u8]) -> Result<(), Error> {
        self.buffer.extend_from_slice(part);
        if self.buffer.len() >= CHUNK_BYTES {
            let whole = self.buffer.len() / BLOCK_BYTES * BLOCK_BYTES;
            let rest = self.buffer.split_off(whole);
            self.write(false).await?;
            self.buffer = rest;
        }
        Ok(())
    }

    async fn finish(mut self, trailer: &Trailer) -> Result<(), Error> {
        let padded = self.buffer.len().next_multiple_of(BLOCK_BYTES);
        self.buffer.resize(padded, 0);
        self.buffer.extend_from_slice(&trailer.encode());
        let end = self.offset + self.buffer.len() as u64;
        assert_eq!(end, trailer.layout.file_bytes(), "the parts of a sealed segment fill it as its layout says");
        self.write(true).await
    }

    async fn write(&mut self, sync: bool) -> Result<(), Error> {
        let buffer = AlignedBuffer::copy_of(&self.buffer);
        let bytes = buffer.len() as u64;
        let (_, result) = self.segment.file.write(self.offset, buffer, sync).await;
        result.map_err(Error::disk("write", &self.segment.path))?;
        self.offset += bytes;
        self.buffer.clear();
        Ok(())
    }
}
