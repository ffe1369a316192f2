//! The parts that several roles are composed of.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientConfig, ClientParts};
use cold::{ColdStore, StoreOptions};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::metrics::Shelf;
use common::net::Connector;
use common::rng::Rng;
use common::shutdown::TaskTree;
use metadata::{Cluster, ErrorKind, InstanceId, MetadataStore, MeteredStore};
use tokio::time::Instant;
use url::Url;

use crate::fault::chain;
use crate::{Fault, output};

/// How long a role waits at its start for a metadata store that does not answer: one that is started together with it.
const METADATA_DEADLINE: Duration = Duration::from_secs(20);
const METADATA_RETRY: Duration = Duration::from_millis(500);
/// The client cannot get on with less: appends of the largest entries, reads ahead, a recovery.
const CLIENT_BYTES_MIN: u64 = 48 << 20;

/// Opens the cluster's metadata, makes the cluster when there is none, and returns its identity. Calls are counted in `metrics`.
///
/// # Errors
/// One sentence: what `uri` should be, who else has it open, or that it does not answer.
pub(crate) async fn metadata(
    uri: &str,
    rng: &Rng,
    metrics: &Shelf,
) -> Result<(Arc<dyn MetadataStore>, InstanceId), Fault> {
    let shown = metadata::shown(uri);
    let deadline = Instant::now() + METADATA_DEADLINE;
    let mut last: Option<metadata::Error> = None;
    loop {
        let error = match tokio::time::timeout_at(deadline, try_metadata(uri, rng)).await {
            Ok(Ok((store, instance))) => {
                let metered = MeteredStore::new(store);
                metrics.add(metered.metrics());
                return Ok((Arc::new(metered), instance));
            }
            // What is in this process' own directory does not come by waiting.
            Ok(Err(error)) if error.kind() == ErrorKind::Unavailable && !uri.starts_with("embedded:") => error,
            Ok(Err(error)) => return Err(unusable(&shown, &error)),
            Err(_) => last.take().unwrap_or_else(|| metadata::Error::new(ErrorKind::Unavailable, "no answer")),
        };
        if Instant::now() + METADATA_RETRY >= deadline {
            let cause = chain(&error);
            return Err(Fault::failed(format!(
                "metadata {shown}: no answer within {} s ({cause}). Does it run there? Name another with --metadata",
                METADATA_DEADLINE.as_secs()
            )));
        }
        if last.is_none() {
            tracing::warn!(
                uri = shown,
                error = chain(&error),
                "metadata does not answer; waiting for it up to {METADATA_DEADLINE:?}"
            );
        }
        last = Some(error);
        tokio::time::sleep(METADATA_RETRY).await;
    }
}

async fn try_metadata(uri: &str, rng: &Rng) -> Result<(Arc<dyn MetadataStore>, InstanceId), metadata::Error> {
    let store = metadata::open(uri).await?;
    let instance = Cluster::init_or_open(store.as_ref(), rng).await?;
    Ok((store, instance))
}

fn unusable(uri: &str, error: &metadata::Error) -> Fault {
    let cause = chain(error);
    match error.kind() {
        ErrorKind::InUse => Fault::usage(format!(
            "metadata {uri}: {cause}. Embedded metadata is for one process, a standalone node: roles that share a cluster need etcd, --metadata etcd://HOST:PORT"
        )),
        ErrorKind::Unsupported | ErrorKind::Invalid => Fault::usage(format!("metadata {uri}: {cause}")),
        ErrorKind::Damaged => Fault::failed(format!(
            "metadata {uri}: {cause}. What was begun there says `thermocline cluster show --metadata {uri}`"
        )),
        _ => Fault::failed(format!("metadata {uri}: {cause}")),
    }
}

/// Opens the object store and proves that it takes and gives an object. Requests are counted in `metrics`.
///
/// # Errors
/// What the store refuses, and what to do.
pub(crate) async fn cold(url: &Url, rng: &Rng, metrics: &Shelf) -> Result<ColdStore, Fault> {
    let cold = ColdStore::open(url, StoreOptions::default(), rng.clone()).map_err(super::usage)?;
    metrics.add(cold.metrics());
    cold.check().await.map_err(super::usage)?;
    Ok(cold)
}

/// Reads the object store's URL of a role, which has no default: all roles of a cluster must name the same.
pub(crate) fn cold_url(cold: &str) -> Result<Url, Fault> {
    if cold.is_empty() {
        return Err(Fault::usage(
            "name the cluster's object store with --cold: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or file:///path for a folder that all roles reach",
        ));
    }
    crate::settings::parse_cold(cold)
}

/// What a client is composed of beside its configuration.
pub(crate) struct ClientOf<'a> {
    pub(crate) metadata: Arc<dyn MetadataStore>,
    pub(crate) clock: &'a Clock,
    pub(crate) rng: &'a Rng,
    pub(crate) budget: &'a ByteBudget,
    /// The client's part of the budget.
    pub(crate) bytes: u64,
    pub(crate) tasks: TaskTree,
    /// Where what it does is counted.
    pub(crate) metrics: &'a Shelf,
    /// The way to bookies.
    pub(crate) connector: Arc<dyn Connector>,
}

/// The replicating client.
pub(crate) fn client(of: ClientOf<'_>, config: ClientConfig) -> Client {
    let parts = ClientParts {
        metadata: of.metadata,
        connector: of.connector,
        clock: of.clock.clone(),
        rng: of.rng.clone(),
        budget: of.budget.child("client", of.bytes),
        tasks: of.tasks,
    };
    let client = Client::new(parts, config);
    of.metrics.add(client.metrics());
    client
}

/// What `memory_max` leaves the client once the other parts have theirs, so that the parts together are not more than the whole.
/// None can then wait for memory that another holds while it waits for the first.
///
/// # Errors
/// The sum that would be needed; `lower` names the sections whose sizes may be lowered instead.
pub(crate) fn client_bytes(memory_max: u64, others: u64, lower: &str) -> Result<u64, Fault> {
    match memory_max.checked_sub(others) {
        Some(client) if client >= CLIENT_BYTES_MIN => Ok(client),
        _ => {
            let (all, needed) = (output::bytes(memory_max), output::bytes(others + CLIENT_BYTES_MIN));
            Err(Fault::usage(format!(
                "memory_max is {all}, but the parts of the roles come to {needed}: raise it, or lower the sizes of {lower} that `thermocline config show` lists"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_store_must_be_named() {
        assert!(cold_url("").unwrap_err().to_string().contains("--cold"));
        assert_eq!(cold_url("file:///data/cold").unwrap().path(), "/data/cold");
    }

    #[test]
    fn the_client_gets_what_the_others_leave() {
        assert_eq!(client_bytes(256 << 20, 176 << 20, "gateway").unwrap(), 80 << 20);
        let fault = client_bytes(200 << 20, 176 << 20, "gateway").unwrap_err();
        assert!(
            fault.to_string().contains("memory_max is 200.0 MiB, but the parts of the roles come to 224.0 MiB"),
            "{fault}"
        );
        assert_eq!(fault.exit_code(), 2);
    }
}
