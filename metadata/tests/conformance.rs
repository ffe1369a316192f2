//! The suite over both stores of this crate, and what only a store on disk can show.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use metadata::{EmbeddedStore, MemoryStore, MetadataStore, suite};

#[tokio::test(start_paused = true)]
async fn memory() {
    suite::run(async || Arc::new(MemoryStore::new()) as Arc<dyn MetadataStore>).await;
}

/// Real time and real parallelism.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_in_parallel() {
    suite::run(async || Arc::new(MemoryStore::new()) as Arc<dyn MetadataStore>).await;
}

#[tokio::test(start_paused = true)]
async fn embedded() {
    let dir = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    suite::run(async || {
        count.set(count.get() + 1);
        let store = EmbeddedStore::open(dir.path().join(count.get().to_string())).await.unwrap();
        Arc::new(store) as Arc<dyn MetadataStore>
    })
    .await;
}
