//! Entries from the object store.

pub(crate) mod bodies;
pub(crate) mod share;

use std::ops::Range;
use std::sync::Arc;

use bytes::BytesMut;
use cold::Row;
use common::shutdown::TaskTree;
use ledger::{ColdRecord, Digester, EntryId, LedgerId, LedgerMetadata};

use self::bodies::EndReads;
use crate::batch::{Batch, Filled, Fit, Served};
use crate::blocks::BlockTable;
use crate::error::{Error, ErrorKind, Result};
use crate::objects::{ObjectCache, OpenObject};
use crate::route::{Shape, Source};

/// Reads cold ledgers. It keeps nothing between batches: what it needs again is in the caches, and a reader that waits for
/// credit holds no memory.
pub(crate) struct ColdTier {
    objects: ObjectCache,
    blocks: Arc<dyn BlockTable>,
    ends: EndReads,
}

impl ColdTier {
    /// Its tasks run in `tasks`.
    pub(crate) fn new(objects: ObjectCache, blocks: Arc<dyn BlockTable>, tasks: TaskTree) -> Self {
        Self { objects, blocks, ends: EndReads::new("read end of ledger", tasks) }
    }

    /// Adds entries from the front of `entries`, which lies within the closed ledger, to an empty batch. Cancel-safe.
    pub(crate) async fn fill(
        &self,
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        entries: Range<EntryId>,
        shape: Shape,
        batch: &mut Batch,
    ) -> Result<Filled> {
        let object = self.open(ledger, metadata).await?;
        let reader = object.reader();
        let check = Check { ledger, key: reader.key(), digester: metadata.digester() };
        let first = entries.start;
        if shape == Shape::Point {
            let row = self.blocks.row(&object, first).await?.ok_or_else(|| check.missing(first))?;
            return check.fill(std::iter::once(Ok(Row::clone(&row))), entries, batch);
        }
        let Some(group) = reader.group_of(first) else { return Err(check.missing(first)) };
        let block = self.blocks.block(&object, group.index).await?;
        if entries.end > group.end {
            self.blocks.prefetch(&object, group.index + 1);
        }
        let part = first..entries.end.min(group.end);
        // From here on there is no await: the block is not held while anything is waited for.
        check.fill(block.rows(part.clone()).map(|row| row.map_err(Error::from)), part, batch)
    }

    async fn open(&self, ledger: LedgerId, metadata: &LedgerMetadata) -> Result<Arc<OpenObject>> {
        self.objects.open(ledger, &cold_record(ledger, metadata)?).await
    }
}

/// The cold record of a closed ledger, which must name an object and agree with the ledger's end.
fn cold_record(ledger: LedgerId, metadata: &LedgerMetadata) -> Result<ColdRecord> {
    let damaged = |what: String| Error::new(ErrorKind::Damaged, format!("read ledger {ledger}: {what}"));
    let record = ColdRecord::from_metadata(metadata)
        .map_err(|error| {
            Error::because(ErrorKind::Damaged, format!("read ledger {ledger}: read its cold record"), error)
        })?
        .ok_or_else(|| damaged("its metadata names no object".to_owned()))?;
    let expected = metadata.last_entry().map_or(0, |last| last.next().get());
    if record.entries != expected {
        let found = record.entries;
        return Err(damaged(format!("its cold record counts {found} entries, its metadata {expected}")));
    }
    Ok(record)
}

/// Holds rows to what the ledger says they must be.
struct Check<'a> {
    ledger: LedgerId,
    key: &'a str,
    digester: Option<Digester>,
}

impl Check<'_> {
    fn damaged(&self, entry: EntryId, what: &str) -> Error {
        let message = format!("read object {}: entry {entry} of ledger {} {what}", self.key, self.ledger);
        Error::new(ErrorKind::Damaged, message)
    }

    fn missing(&self, entry: EntryId) -> Error {
        self.damaged(entry, "is missing")
    }

    /// Copies checked rows into the batch. The copies keep no part of a block alive.
    fn fill(
        &self,
        rows: impl Iterator<Item = Result<Row>>,
        entries: Range<EntryId>,
        batch: &mut Batch,
    ) -> Result<Filled> {
        let mut expected = entries.start;
        let mut copies = BytesMut::new();
        for row in rows {
            let served = row.and_then(|row| self.checked(row, expected));
            let mut served = match served {
                Ok(served) => served,
                // What is good is served first; the next batch begins with the error.
                Err(_) if !batch.is_empty() => return Ok(Filled::Some),
                Err(error) => return Err(error),
            };
            let bytes = served.payload.len() as u64;
            match batch.fit(bytes) {
                Fit::Yes => {}
                Fit::Full => return Ok(Filled::Some),
                Fit::NeedsRoom => return Ok(Filled::NeedsRoom(bytes)),
            }
            copies.extend_from_slice(&served.payload);
            served.payload = copies.split().freeze();
            batch.push(served);
            expected = expected.next();
        }
        if batch.is_empty() { Err(self.missing(expected)) } else { Ok(Filled::Some) }
    }

    fn checked(&self, row: Row, expected: EntryId) -> Result<Served> {
        if row.entry != expected || row.ledger != self.ledger {
            return Err(self.missing(expected));
        }
        if row.redacted {
            let message =
                format!("read object {}: entry {expected} of ledger {} was erased on request", self.key, self.ledger);
            return Err(Error::new(ErrorKind::Precondition, message));
        }
        let Some(entry) = row.to_entry() else {
            return Err(self.damaged(expected, "was damaged on the bookies already and was kept as it was found"));
        };
        if self.digester.as_ref().is_some_and(|digester| !digester.verify_entry(&entry)) {
            return Err(self.damaged(expected, "does not match its writer's digest"));
        }
        Ok(Served {
            entry: expected,
            last_confirmed: entry.header.last_confirmed,
            length: entry.header.length,
            payload: entry.payload,
            source: Source::Cold,
        })
    }
}
