//! The metadata store and the object store, measured through the interfaces the roles use.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use cold::{ColdStore, StoreOptions, StoreSpeed};
use common::clock::Clock;
use common::rng::Rng;
use metadata::{Expect, Key, MetadataStore, Transaction};
use url::Url;

use super::facts::{Latency, Metadata};
use crate::fault::chain;

const SAMPLES_MAX: usize = 200;
/// How long a key outlives a doctor that was killed.
const LEASE: Duration = Duration::from_secs(60);

/// Reads by quorum and commits of one small key of its own, one after the other, for about `time`.
pub(super) async fn metadata(uri: &str, time: Duration, clock: &Clock, rng: &Rng) -> Result<Metadata, String> {
    // The doctor makes no store: an empty one says nothing about the one that will be used.
    if let Some(dir) = uri.strip_prefix("embedded:")
        && !Path::new(dir).is_dir()
    {
        return Err(format!("{uri}: there is no such directory; a node makes it at its first start"));
    }
    let store = metadata::open(uri).await.map_err(|error| chain(&error))?;
    let key = Key::new(&format!("/thermocline/doctor/{}", rng.uuid())).map_err(|error| chain(&error))?;
    let lease = store.grant_lease(LEASE).await.map_err(|error| chain(&error))?;
    let measured = round_trips(&*store, &key, lease, time, clock).await;
    // Removes the key as well, whatever was found.
    let revoked = store.revoke(lease).await.map_err(|error| chain(&error));
    let measured = measured?;
    revoked.map(|()| measured)
}

async fn round_trips(
    store: &dyn MetadataStore,
    key: &Key,
    lease: metadata::LeaseId,
    time: Duration,
    clock: &Clock,
) -> Result<Metadata, String> {
    let (mut gets, mut commits) = (Vec::new(), Vec::new());
    let began = clock.now();
    while gets.is_empty() || (gets.len() < SAMPLES_MAX && clock.now() - began < time) {
        let before = clock.now();
        let put = Transaction::new().put_leased(key.clone(), Bytes::from_static(b"doctor"), Expect::Any, lease);
        store.commit(put).await.map_err(|error| chain(&error))?;
        commits.push(clock.now() - before);
        let before = clock.now();
        let found = store.get_quorum(key).await.map_err(|error| chain(&error))?;
        gets.push(clock.now() - before);
        if found.is_none() {
            return Err(format!("key {key} is not there right after it was written"));
        }
    }
    let none = || "no answer in time".to_owned();
    Ok(Metadata { get: Latency::of(gets).ok_or_else(none)?, commit: Latency::of(commits).ok_or_else(none)? })
}

/// A few small and four larger objects, written, read and removed.
pub(super) async fn cold(url: &Url, time: Duration, clock: &Clock, rng: &Rng) -> Result<StoreSpeed, String> {
    let store = ColdStore::open(url, StoreOptions::default(), rng.fork()).map_err(|error| chain(&error))?;
    store.measure(time, clock).await.map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn metadata_is_measured_and_left_as_it_was() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let uri = format!("embedded:{}", dir.path().display());
        let (clock, rng) = (Clock::system(), Rng::seeded(1));
        let measured = metadata(&uri, Duration::from_millis(50), &clock, &rng).await.unwrap();
        assert!(measured.get.samples > 0 && measured.commit.samples == measured.get.samples);
        let store = metadata::open(&uri).await.unwrap();
        let prefix = Key::new("/thermocline/doctor").unwrap();
        assert!(store.list(&prefix, None, 10).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn an_embedded_store_is_not_made() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let uri = format!("embedded:{}/none", dir.path().display());
        let told = metadata(&uri, Duration::from_millis(50), &Clock::system(), &Rng::seeded(1)).await.err().unwrap();
        assert!(told.contains("no such directory") && !dir.path().join("none").exists(), "{told}");
    }
}
