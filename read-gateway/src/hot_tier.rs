//! Entries from the bookies.

use std::ops::Range;

use async_trait::async_trait;
use futures::future::FutureExt as _;
use futures::stream::{BoxStream, StreamExt as _};
use ledger::{Entry, EntryId, LedgerId, LedgerMetadata};

use crate::batch::{Batch, Filled, Fit, Served};
use crate::error::{Error, ErrorKind, Result};
use crate::route::Source;

/// Checked entries in order.
pub(crate) type EntryStream = BoxStream<'static, Result<Entry>>;

/// What a read needs from the bookies. Its second implementation, in tests, is a tier in memory.
#[async_trait]
pub(crate) trait HotTier: Send + Sync + 'static {
    /// Entries of a ledger that are confirmed or lie before its end, digest-checked, in order. The stream may read ahead within
    /// its own budget, MUST end with the range or with an error, and MUST NOT leave out an entry.
    async fn read(&self, ledger: LedgerId, metadata: &LedgerMetadata, entries: Range<EntryId>) -> Result<EntryStream>;

    /// The last confirmed entry of a ledger that is not closed.
    async fn last_confirmed(&self, ledger: LedgerId, metadata: &LedgerMetadata) -> Result<Option<EntryId>>;
}

/// A stream of hot entries and the one that did not fit into the last batch.
pub(crate) struct HotRead {
    ledger: LedgerId,
    stream: EntryStream,
    next: EntryId,
    end: EntryId,
    peeked: Option<Entry>,
}

impl HotRead {
    pub(crate) fn new(ledger: LedgerId, stream: EntryStream, entries: Range<EntryId>) -> Self {
        Self { ledger, stream, next: entries.start, end: entries.end, peeked: None }
    }

    /// Adds entries to an empty batch: waits for the first, then takes what is there. After an error, or when it was dropped half
    /// way, start over with a new stream.
    pub(crate) async fn fill(&mut self, batch: &mut Batch) -> Result<Filled> {
        while self.next < self.end {
            let entry = match self.peeked.take() {
                Some(entry) => entry,
                None => {
                    let next = if batch.is_empty() {
                        self.stream.next().await
                    } else {
                        let Some(next) = self.stream.next().now_or_never() else { break };
                        next
                    };
                    match next {
                        Some(Ok(entry)) if entry.header.entry == self.next => entry,
                        // What is good is served first; without its stream the next batch starts over and meets the error.
                        _ if !batch.is_empty() => {
                            self.end = self.next;
                            break;
                        }
                        Some(Ok(entry)) => {
                            return Err(self.broken(&format!("entry {} came instead", entry.header.entry)));
                        }
                        Some(Err(error)) => return Err(error),
                        None => return Err(self.broken("the bookies' answers ended there")),
                    }
                }
            };
            let bytes = entry.payload.len() as u64;
            match batch.fit(bytes) {
                Fit::Yes => {}
                Fit::Full => {
                    self.peeked = Some(entry);
                    break;
                }
                Fit::NeedsRoom => {
                    self.peeked = Some(entry);
                    return Ok(Filled::NeedsRoom(bytes));
                }
            }
            batch.push(Served {
                entry: entry.header.entry,
                last_confirmed: entry.header.last_confirmed,
                length: entry.header.length,
                payload: entry.payload,
                source: Source::Hot,
            });
            self.next = self.next.next();
        }
        if batch.is_empty() { Err(self.broken("nothing came")) } else { Ok(Filled::Some) }
    }

    /// Whether it has nothing more to give.
    pub(crate) fn is_over(&self) -> bool {
        self.next >= self.end
    }

    fn broken(&self, what: &str) -> Error {
        let message = format!("read entry {} of ledger {}: {what}", self.next, self.ledger);
        Error::new(ErrorKind::Unavailable, message)
    }
}
