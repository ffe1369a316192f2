//! The suite on a real etcd, and what only a server can show. Needs the program `etcd`; skipped with a line that says so without.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::sync::Arc;

use faults::Etcd;
use metadata::{EtcdStore, MetadataStore, suite};

/// Records that this lane could not run here, for the closing summary of the test command.
fn skipped() -> bool {
    if Etcd::is_installed() {
        return false;
    }
    let line = "SKIPPED lane=etcd reason=the program etcd is not on the search path";
    println!("{line}");
    if let Some(path) = std::env::var_os("THERMOCLINE_SKIPS") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
    true
}

async fn open(uri: &str) -> Arc<dyn MetadataStore> {
    Arc::new(EtcdStore::open(uri).await.unwrap())
}

/// Every store of the suite gets its own root, and the roots are neighbours by their names.
async fn suite_on(etcd: &Etcd) {
    let count = Cell::new(0);
    suite::run(async || {
        count.set(count.get() + 1);
        open(&etcd.uri(&format!("/suite/{}", count.get()))).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance() {
    if skipped() {
        return;
    }
    suite_on(&Etcd::start().await.unwrap()).await;
}
