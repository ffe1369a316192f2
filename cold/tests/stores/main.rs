//! The cold store on every kind of store this machine has, and on an S3 whose requests fail.
#![allow(clippy::unwrap_used, missing_docs)]

mod s3;

use std::cell::Cell;

use cold::{ColdStore, StoreOptions, suite};
use common::rng::Rng;
use url::Url;

fn open(url: &str) -> ColdStore {
    ColdStore::open(&Url::parse(url).unwrap(), StoreOptions::default(), Rng::seeded(1)).unwrap()
}

#[tokio::test]
async fn memory() {
    suite::run(async || open("memory:///")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let count = Cell::new(0);
    suite::run(async || {
        count.set(count.get() + 1);
        open(&format!("file://{}/{}", dir.path().display(), count.get()))
    })
    .await;
}
