//! What only this process knows: its bookies' disk use and its budgets.

use std::sync::Arc;

use async_trait::async_trait;
use bookie::Bookie;
use common::budget::ByteBudget;
use ledger::BookieId;
use offloader::StatusSource;
use tokio::sync::Mutex;

/// The node's bookies; one that was stopped leaves its place empty.
pub(super) type SharedBookies = Arc<Mutex<Vec<Option<Bookie>>>>;

pub(super) struct NodeStatus {
    bookies: SharedBookies,
    budgets: Vec<ByteBudget>,
}

impl NodeStatus {
    pub(super) fn new(bookies: SharedBookies, budgets: Vec<ByteBudget>) -> Self {
        Self { bookies, budgets }
    }
}

#[async_trait]
impl StatusSource for NodeStatus {
    async fn disk_bytes(&self, bookie: &BookieId) -> Option<u64> {
        let bookies = self.bookies.lock().await;
        bookies.iter().flatten().find(|running| running.id() == bookie).map(|running| running.stats().allocated_bytes)
    }

    fn budgets(&self) -> Vec<ByteBudget> {
        self.budgets.clone()
    }
}
