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
}

fn hot(ledger: LedgerId, opened: Opened) -> Result<LedgerReader> {
    match opened {
        Opened::Hot(reader) => Ok(reader),
        Opened::Cold(_) => {
            let message = format!("read ledger {ledger}: it was released from the bookies just now");
            Err(Error::new(ErrorKind::Unavailable, message))
        }
    }
}

#[async_trait]
impl HotTier for ClientTier {
    async fn read(&self, ledger: LedgerId, metadata: &LedgerMetadata, entries: Range<EntryId>) -> Result<EntryStream> {
        // The caller has found out that these are confirmed. Asking the bookies again may bring less: others may answer first.
        let confirmed = entries.end.prev();
        let reader = hot(ledger, self.client.open_confirmed(ledger, metadata.password(), confirmed).await?)?;
        Ok(reader.read(entries).map(|read| read.map(|read| read.entry).map_err(Error::from)).boxed())
    }

    async fn last_confirmed(&self, ledger: LedgerId, metadata: &LedgerMetadata) -> Result<Option<EntryId>> {
        if let Some(live) = self.writers.get(ledger) {
            return Ok(live.writer.last_confirmed());
        }
        let reader = hot(ledger, self.client.open(ledger, OpenMode::ReadOnly, metadata.password()).await?)?;
        Ok(reader.last_confirmed().await?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use client::CreateOptions;
    use common::net::MemoryNetwork;
    use common::shutdown::TaskTree;
    use ledger::{DigestType, Password, Quorums};
    use metadata::{MemoryStore, MetadataStore};

    use super::*;
    use crate::testing::bookie::{bookies, client};

    #[tokio::test]
    async fn what_is_known_to_be_confirmed_is_read_though_the_bookies_were_not_told() {
        let network = MemoryNetwork::new();
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let tasks = TaskTree::root("test");
        bookies(&network, &store, &tasks).await;
        let options = CreateOptions {
            quorums: Quorums::new(3, 3, 2).unwrap(),
            digest: DigestType::Crc32c,
            password: Password::empty(),
            custom: Vec::new(),
        };
        let writer = client(&network, &store, &tasks, 1).create(options).await.unwrap();
        for _ in 0..10 {
            writer.append(Bytes::from("payload")).await.unwrap().await.unwrap();
        }
        let tier = ClientTier::new(client(&network, &store, &tasks, 2), Writers::new(1));
        let told = tier.last_confirmed(writer.id(), writer.metadata()).await.unwrap();
        assert_eq!(told.map(EntryId::get), Some(8), "bookies learn of a confirmation with the next entry");
        let all = EntryId::ZERO..EntryId::new(10u64).unwrap();
        let read: Vec<_> = tier.read(writer.id(), writer.metadata(), all).await.unwrap().collect().await;
        assert_eq!(read.iter().filter(|entry| entry.is_ok()).count(), 10, "{:?}", read.last());
    }
}
