//! The suite itself: a store that breaks one rule must not pass.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::{FutureExt, StreamExt};

use super::*;
use crate::{Committed, Error, MemoryStore, Op};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    /// The wrapper itself is innocent.
    None,
    /// Conditions of puts are not looked at.
    BlindPuts,
    /// Operations are done one by one until one fails.
    HalfTransactions,
    /// Every 40th commit is told as done, but is not.
    LostWrites,
    /// Versions begin anew after a removal.
    ReturningVersions,
    /// Absence is taken for any version.
    AbsenceIsNoConflict,
    /// The first key after the start of a page is left out, if there is a start.
    LeakyPages,
    /// The start of a page is on it again.
    RepeatingPages,
    /// The prefix is not taken as a whole segment.
    LooseWatches,
    /// Every third event is kept back.
    LossyWatches,
    /// Leases end, their keys do not.
    UndyingKeys,
    /// A dead lease can still be kept alive.
    UndeadLeases,
    /// The same key twice is let through.
    DoubleKeys,
    /// Conflicts are told as unknown.
    Timid,
}

struct Sabotaged {
    inner: MemoryStore,
    kind: Sabotage,
    commits: AtomicU64,
}

impl Sabotaged {
    fn is(&self, kind: Sabotage) -> bool {
        self.kind == kind
    }

    async fn each_alone(&self, transaction: &Transaction) -> Result<Committed, CommitError> {
        let mut versions = Vec::new();
        for (index, op) in transaction.ops().iter().enumerate() {
            match self.inner.commit(Transaction::new().with(op.clone())).await {
                Ok(done) => versions.extend(done.versions),
                Err(CommitError::Conflict { found, .. }) => return Err(CommitError::Conflict { op: index, found }),
                Err(other) => return Err(other),
            }
        }
        Ok(Committed { versions })
    }

    /// The transaction with the sabotage in it.
    async fn changed(&self, transaction: &Transaction) -> Transaction {
        let mut changed = Transaction::new();
        for op in transaction.ops() {
            let mut op = op.clone();
            if let Op::Put { key, expect, lease, .. } = &mut op {
                if self.is(Sabotage::BlindPuts) {
                    *expect = Expect::Any;
                }
                if self.is(Sabotage::UndyingKeys) {
                    *lease = None;
                }
                if self.is(Sabotage::AbsenceIsNoConflict)
                    && matches!(expect, Expect::At(_) | Expect::Present)
                    && self.inner.get(key).await.unwrap().is_none()
                {
                    *expect = Expect::Absent;
                }
            }
            changed = changed.with(op);
        }
        changed
    }
}

#[async_trait]
impl MetadataStore for Sabotaged {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.get_quorum(key).await
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.inner.get_quorum(key).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        let number = self.commits.fetch_add(1, Ordering::SeqCst);
        transaction.validate().or_else(|error| match self.is(Sabotage::DoubleKeys) {
            true => Ok(()),
            false => Err(CommitError::NotDone(error)),
        })?;
        let transaction = self.changed(&transaction).await;
        if self.is(Sabotage::HalfTransactions) || self.is(Sabotage::DoubleKeys) {
            return self.each_alone(&transaction).await;
        }
        if self.is(Sabotage::LostWrites) && number % 40 == 39 {
            return Ok(Committed { versions: vec![Some(Version::new(number)); transaction.ops().len()] });
        }
        match self.inner.commit(transaction).await {
            Err(CommitError::Conflict { .. }) if self.is(Sabotage::Timid) => {
                Err(CommitError::Unknown(Error::new(ErrorKind::Unavailable, "who knows")))
            }
            Ok(mut done) if self.is(Sabotage::ReturningVersions) => {
                // As if each key counted for itself: the second incarnation has the version of the first.
                for version in &mut done.versions {
                    *version = version.map(|_| Version::new(1));
                }
                Ok(done)
            }
            other => other,
        }
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        if after.is_some() && self.is(Sabotage::LeakyPages) {
            let mut rows = self.inner.list(prefix, after, limit + 1).await?;
            rows.drain(..rows.len().min(1));
            return Ok(rows);
        }
        let mut rows = self.inner.list(prefix, after, limit).await?;
        if let Some(after) = after
            && self.is(Sabotage::RepeatingPages)
            && let Some(found) = self.inner.get(after).await?
            && !rows.is_empty()
        {
            rows.insert(0, (after.clone(), found));
            rows.truncate(limit);
        }
        Ok(rows)
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        if self.is(Sabotage::LooseWatches) {
            // Tells changes of neighbours whose names merely begin alike.
            let parent = prefix.as_str().rsplit_once('/').map(|(parent, _)| key(parent)).unwrap();
            let prefix = prefix.clone();
            let alike = move |event: &WatchEvent| match event {
                WatchEvent::Put { key, .. } | WatchEvent::Delete { key } => key.as_str().starts_with(prefix.as_str()),
                WatchEvent::Lost => true,
            };
            let all = self.inner.watch(&parent).await?;
            return Ok(WatchStream::new(all.filter(move |event| std::future::ready(alike(event)))));
        }
        let events = self.inner.watch(prefix).await?;
        if self.is(Sabotage::LossyWatches) {
            let kept = events.enumerate().filter(|(index, _)| std::future::ready(index % 3 != 2));
            return Ok(WatchStream::new(kept.map(|(_, event)| event)));
        }
        Ok(events)
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        self.inner.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let kept = self.inner.keep_alive(lease).await;
        if self.is(Sabotage::UndeadLeases) { Ok(()) } else { kept }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.inner.revoke(lease).await
    }
}

async fn passes(kind: Sabotage) -> bool {
    let checked =
        run(async || Arc::new(Sabotaged { inner: MemoryStore::new(), kind, commits: AtomicU64::new(0) }) as Store);
    AssertUnwindSafe(checked).catch_unwind().await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn every_broken_rule_is_noticed() {
    assert!(passes(Sabotage::None).await);
    for kind in [
        Sabotage::BlindPuts,
        Sabotage::HalfTransactions,
        Sabotage::LostWrites,
        Sabotage::ReturningVersions,
        Sabotage::AbsenceIsNoConflict,
        Sabotage::LeakyPages,
        Sabotage::RepeatingPages,
        Sabotage::LooseWatches,
        Sabotage::LossyWatches,
        Sabotage::UndyingKeys,
        Sabotage::UndeadLeases,
        Sabotage::DoubleKeys,
        Sabotage::Timid,
    ] {
        assert!(!passes(kind).await, "a store with {kind:?} passes the suite");
    }
}
