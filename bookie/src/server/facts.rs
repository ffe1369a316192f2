//! What is told about a bookie and the whole of a ledger: GET_BOOKIE_INFO and GET_LIST_OF_ENTRIES_OF_LEDGER.

use proto::{Reply, ReplyTo, Status};

use super::reads::Reads;
use crate::store::LedgerSlot;
use crate::wakeups::Wakeups;

/// What a reply may have beside the list it carries, in bytes.
const LIST_HEAD_BYTES: usize = 64;

impl Reads {
    /// Answers which entries of a ledger are here.
    pub(super) async fn serve_list(&self, to: ReplyTo, slot: &LedgerSlot) {
        let store = &self.server.store;
        // The semaphore is never closed.
        let _list = self.server.lists.acquire().await.ok();
        let bytes_max = store.config.frame_bytes_max.as_usize().saturating_sub(LIST_HEAD_BYTES);
        let (reply, permit) = match store.list_entries(slot, &self.server.disk_reads, bytes_max).await {
            Ok(list) => {
                let permit = self.server.reads.acquire(list.len() as u64).await;
                (Reply::Entries(list), Some(permit))
            }
            Err(status) => (Reply::Failed(status), None),
        };
        self.put(&to, &reply, permit, &mut Wakeups::default());
    }

    /// Answers what was asked about the disks.
    pub(super) async fn serve_info(&self, to: ReplyTo, total: bool, free: bool) {
        let reply = match self.server.store.disk_space().await {
            Ok((total_bytes, free_bytes)) => {
                Reply::BookieInfo { total_bytes: total.then_some(total_bytes), free_bytes: free.then_some(free_bytes) }
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "bookie info");
                Reply::Failed(Status::Io)
            }
        };
        self.put(&to, &reply, None, &mut Wakeups::default());
    }
}
