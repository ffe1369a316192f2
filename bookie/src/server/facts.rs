//! What is told about a bookie and the whole of a ledger: GET_BOOKIE_INFO and GET_LIST_OF_ENTRIES_OF_LEDGER.

use std::time::Duration;

use proto::{Reply, ReplyTo, Status};
use tokio::time::Instant;

use super::reads::Reads;
use crate::store::LedgerSlot;
use crate::wakeups::Wakeups;

/// What a reply may have beside the list it carries, in bytes.
const LIST_HEAD_BYTES: usize = 64;
/// How long a list may take at least: whoever repairs ledgers asks for it and is in no hurry, and a long one is many reads.
const LIST_TIME: Duration = Duration::from_secs(30);

impl Reads {
    /// Answers which entries of a ledger are here.
    pub(super) async fn serve_list(&self, to: ReplyTo, slot: &LedgerSlot, received: Instant) {
        let store = &self.server.store;
        let list = async {
            // The semaphore is never closed.
            let _list = self.server.lists.acquire().await.ok();
            let bytes_max = store.config.frame_bytes_max.as_usize().saturating_sub(LIST_HEAD_BYTES);
            let list = store.list_entries(slot, &self.server.disk_reads, bytes_max).await?;
            let permit = self.server.reads.acquire(list.len() as u64).await;
            Ok((list, permit))
        };
        let until = self.server.until(received).max(received + LIST_TIME);
        let (reply, permit) = match self.server.by(until, list).await {
            Ok((list, permit)) => (Reply::Entries(list), Some(permit)),
            Err(status) => (Reply::Failed(status), None),
        };
        self.put(&to, &reply, permit, &mut Wakeups::default());
    }

    /// Answers what was asked about the disks.
    pub(super) async fn serve_info(&self, to: ReplyTo, total: bool, free: bool, until: Instant) {
        let ask = async {
            self.server.store.disk_space().await.map_err(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "bookie info");
                Status::Io
            })
        };
        let reply = match self.server.by(until, ask).await {
            Ok((total_bytes, free_bytes)) => {
                Reply::BookieInfo { total_bytes: total.then_some(total_bytes), free_bytes: free.then_some(free_bytes) }
            }
            Err(status) => Reply::Failed(status),
        };
        self.put(&to, &reply, None, &mut Wakeups::default());
    }
}
