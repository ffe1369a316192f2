//! The hot tier through the replicating client.

use std::ops::Range;

use async_trait::async_trait;
use client::{Client, LedgerReader, OpenMode, Opened};
use futures::stream::StreamExt as _;
use ledger::{EntryId, LedgerId, LedgerMetadata};

use crate::error::{Error, ErrorKind, Result};
use crate::hot_tier::{EntryStream, HotTier};
use crate::writers::Writers;

/// Reads through a [`Client`]. What is confirmed of a ledger whose writer lives here is known without asking the bookies.
pub(crate) struct ClientTier {
    client: Client,
    writers: Writers,
}

impl ClientTier {
    pub(crate) fn new(client: Client, writers: Writers) -> Self {
        Self { client, writers }
    }

    async fn open(&self, ledger: LedgerId, metadata: &LedgerMetadata) -> Result<LedgerReader> {
        let password = metadata.password();
        let opened = match self.writers.get(ledger) {
            // Its writer knows more than the bookies have been told.
            Some(live) => self.client.open_confirmed(ledger, password, live.writer.last_confirmed()).await?,
            None => self.client.open(ledger, OpenMode::ReadOnly, password).await?,
        };
        match opened {
            Opened::Hot(reader) => Ok(reader),
            Opened::Cold(_) => {
                let message = format!("read ledger {ledger}: it was released from the bookies just now");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }
}

#[async_trait]
impl HotTier for ClientTier {
    async fn read(&self, ledger: LedgerId, metadata: &LedgerMetadata, entries: Range<EntryId>) -> Result<EntryStream> {
        let reader = self.open(ledger, metadata).await?;
        Ok(reader.read(entries).map(|read| read.map(|read| read.entry).map_err(Error::from)).boxed())
    }

    async fn last_confirmed(&self, ledger: LedgerId, metadata: &LedgerMetadata) -> Result<Option<EntryId>> {
        if let Some(live) = self.writers.get(ledger) {
            return Ok(live.writer.last_confirmed());
        }
        Ok(self.open(ledger, metadata).await?.last_confirmed().await?)
    }
}
