//! A metadata store whose calls are counted and timed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::labels;
use common::metrics::{By, Counter, Def, Histogram, Set};
use futures::StreamExt as _;
use tokio::time::Instant;

use crate::{
    CommitError, Committed, Error, ErrorKind, GivenIds, Key, LeaseId, LedgerLayout, MetadataStore, Transaction,
    Versioned, WatchEvent, WatchStream,
};

const OPERATIONS: Def = Def::new(
    "thermocline_metadata_operations",
    "Calls of the metadata store that ended. Of writes: done, conflict (surely not done, the state was another), not-done (surely), unknown (perhaps done).",
);
const SECONDS: Def = Def::new("thermocline_metadata_operation_seconds", "Time of a call of the metadata store.");
const WATCHES_LOST: Def = Def::new(
    "thermocline_metadata_watches_lost",
    "Watches that ended because events were lost; the watcher then lists anew.",
);
const LEASES_LOST: Def = Def::new(
    "thermocline_metadata_leases_lost",
    "Leases found to have ended when they were to be kept alive: registrations and attempts under them are gone.",
);

labels! {
    enum Operation("operation") {
        Get = "get",
        GetQuorum = "get-quorum",
        Commit = "commit",
        List = "list",
        Watch = "watch",
        GrantLease = "grant-lease",
        KeepAlive = "keep-alive",
        Revoke = "revoke",
        AllocateLedgerId = "allocate-ledger-id",
    }
}

labels! {
    enum Outcome("outcome") {
        Done = "done",
        Conflict = "conflict",
        NotDone = "not-done",
        Unknown = "unknown",
        Failed = "failed",
    }
}

#[derive(Debug, Clone)]
struct Metrics {
    operations: By<(Operation, Outcome), Counter>,
    seconds: By<Operation, Histogram>,
    watches_lost: Counter,
    leases_lost: Counter,
}

impl Metrics {
    fn ended(&self, operation: Operation, outcome: Outcome, latency: Duration) {
        self.operations.of((operation, outcome)).inc();
        self.seconds.of(operation).took(latency);
    }

    /// Counts a call that is no commit.
    fn count<T>(&self, operation: Operation, since: Instant, answer: Result<T, Error>) -> Result<T, Error> {
        let outcome = if answer.is_ok() { Outcome::Done } else { Outcome::Failed };
        self.ended(operation, outcome, since.elapsed());
        answer
    }
}

/// Counts and times what another store does, and changes nothing about it.
pub struct MeteredStore {
    inner: Arc<dyn MetadataStore>,
    metrics: Metrics,
}

impl MeteredStore {
    /// Puts a meter before `inner`.
    pub fn new(inner: Arc<dyn MetadataStore>) -> Self {
        let metrics = Metrics {
            operations: By::default(),
            seconds: By::new(Histogram::seconds),
            watches_lost: Counter::default(),
            leases_lost: Counter::default(),
        };
        Self { inner, metrics }
    }

    /// Its metrics.
    pub fn metrics(&self) -> Set {
        let own = &self.metrics;
        let mut set = Set::new();
        set.counters(OPERATIONS, &own.operations);
        set.histograms(SECONDS, &own.seconds);
        set.counter(WATCHES_LOST, &own.watches_lost);
        set.counter(LEASES_LOST, &own.leases_lost);
        set
    }
}

#[async_trait]
impl MetadataStore for MeteredStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let since = Instant::now();
        self.metrics.count(Operation::Get, since, self.inner.get(key).await)
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let since = Instant::now();
        self.metrics.count(Operation::GetQuorum, since, self.inner.get_quorum(key).await)
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        let since = Instant::now();
        let answer = self.inner.commit(transaction).await;
        let outcome = match &answer {
            Ok(_) => Outcome::Done,
            Err(CommitError::Conflict { .. }) => Outcome::Conflict,
            Err(CommitError::NotDone(_)) => Outcome::NotDone,
            Err(CommitError::Unknown(_)) => Outcome::Unknown,
        };
        self.metrics.ended(Operation::Commit, outcome, since.elapsed());
        answer
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        let since = Instant::now();
        self.metrics.count(Operation::List, since, self.inner.list(prefix, after, limit).await)
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        let since = Instant::now();
        let events = self.metrics.count(Operation::Watch, since, self.inner.watch(prefix).await)?;
        let lost = self.metrics.watches_lost.clone();
        Ok(WatchStream::new(events.inspect(move |event| {
            if *event == WatchEvent::Lost {
                lost.inc();
            }
        })))
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        let since = Instant::now();
        self.metrics.count(Operation::GrantLease, since, self.inner.grant_lease(ttl).await)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let since = Instant::now();
        let answer = self.inner.keep_alive(lease).await;
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::LeaseGone) {
            self.metrics.leases_lost.inc();
        }
        self.metrics.count(Operation::KeepAlive, since, answer)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let since = Instant::now();
        self.metrics.count(Operation::Revoke, since, self.inner.revoke(lease).await)
    }

    fn layouts(&self) -> &[LedgerLayout] {
        self.inner.layouts()
    }

    async fn given_ids(&self) -> Result<GivenIds, Error> {
        self.inner.given_ids().await
    }

    async fn mark_cluster(&self) -> Result<(), Error> {
        self.inner.mark_cluster().await
    }

    async fn skip_ids(&self, given: &GivenIds) -> Result<(), Error> {
        self.inner.skip_ids(given).await
    }

    fn clients_resolve_by_registration(&self) -> bool {
        self.inner.clients_resolve_by_registration()
    }

    async fn allocate_ledger_id(&self) -> Result<u64, Error> {
        let since = Instant::now();
        self.metrics.count(Operation::AllocateLedgerId, since, self.inner.allocate_ledger_id().await)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Expect, MemoryStore};

    #[tokio::test]
    async fn tells_conflicts_from_deeds() {
        let store = MeteredStore::new(Arc::new(MemoryStore::new()));
        let key = Key::new("/a").unwrap();
        store.create(&key, Bytes::from_static(b"1")).await.unwrap();
        store.create(&key, Bytes::from_static(b"2")).await.unwrap_err();
        store.delete_if(&key, Expect::Any).await.unwrap();
        store.keep_alive(LeaseId::new(77)).await.unwrap_err();
        let count = |operation, outcome| store.metrics.operations.of((operation, outcome)).get();
        assert_eq!(count(Operation::Commit, Outcome::Done), 2);
        assert_eq!(count(Operation::Commit, Outcome::Conflict), 1);
        assert_eq!(count(Operation::KeepAlive, Outcome::Failed), 1);
        assert_eq!(store.metrics.leases_lost.get(), 1);
        assert_eq!(store.metrics.seconds.of(Operation::Commit).count(), 3);
    }
}
