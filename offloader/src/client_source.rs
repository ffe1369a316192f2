use std::ops::Range;

use async_trait::async_trait;
use client::{Client, OpenMode, Opened};
use futures::StreamExt as _;
use ledger::{EntryId, LedgerId, LedgerMetadata};

use crate::error::{Error, ErrorKind, Result};
use crate::{EntrySource, EntryStream};

const DOING: &str = "read from bookies";

/// Entries from the bookies, through the replicating client: it reads ahead within its own budget, checks digests, and asks
/// another replica when one fails.
#[derive(Clone)]
pub struct ClientSource {
    client: Client,
}

impl ClientSource {
    /// Entries as `client` reads them.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

#[async_trait]
impl EntrySource for ClientSource {
    async fn read(&self, ledger: LedgerId, metadata: &LedgerMetadata, range: Range<EntryId>) -> Result<EntryStream> {
        // Opened without recovery: whether the ledger is closed was proved before, and nobody may be fenced by a reader.
        let opened = self.client.open(ledger, OpenMode::ReadOnly, metadata.password()).await;
        match opened.map_err(|error| failed(ledger, error))? {
            Opened::Hot(reader) => {
                let entries = reader.read(range);
                Ok(entries.map(move |read| read.map(|read| read.entry).map_err(|error| failed(ledger, error))).boxed())
            }
            Opened::Cold(_) => {
                Err(Error::of_ledger(ErrorKind::Unavailable, DOING, ledger, "all its members are in the cold tier"))
            }
        }
    }
}

fn failed(ledger: LedgerId, error: client::Error) -> Error {
    use client::ErrorKind as E;
    let kind = match error.kind() {
        E::NoSuchLedger => ErrorKind::NoSuchLedger,
        E::Unauthorized | E::Unsupported => ErrorKind::Unsuitable,
        E::Damaged | E::NoSuchEntry => ErrorKind::Damaged,
        E::Timeout => ErrorKind::Timeout,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{DOING} ledger {ledger}")).caused_by(error)
}
