use std::ops::Range;

use async_trait::async_trait;
use futures::stream::BoxStream;
use ledger::{Entry, EntryId, LedgerId, LedgerMetadata};

use crate::error::Result;

/// Entries of a ledger, in order.
pub type EntryStream = BoxStream<'static, Result<Entry>>;

/// Where the entries of a closed ledger come from: the bookies.
#[async_trait]
pub trait EntrySource: Send + Sync + 'static {
    /// Streams the entries of `range` in order, without gaps, whose digests the source has checked (the offloader checks them
    /// again). MUST hold a bounded number of bytes; MUST end with an error rather than skip an entry. `metadata` is what the
    /// caller knows of the ledger. Dropping the stream stops the reading.
    ///
    /// # Errors
    /// When reading cannot begin.
    async fn read(&self, ledger: LedgerId, metadata: &LedgerMetadata, range: Range<EntryId>) -> Result<EntryStream>;
}
