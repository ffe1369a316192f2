//! A store that misbehaves on order, for tests: what happened and what is reported need not agree.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use common::rng::Rng;

use crate::{
    CommitError, Committed, Error, ErrorKind, Key, LeaseId, LedgerLayout, MetadataStore, Transaction, Versioned,
    WatchStream,
};

/// One fault: what happens, and what the caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A commit is not done and says so.
    FailBefore,
    /// A commit is done, but its answer is lost: told as unknown.
    AppliedUnknown,
    /// A commit is not done, and that answer is lost: told as unknown.
    NotAppliedUnknown,
    /// A read or listing fails.
    FailRead,
    /// A commit is done and told truly, after this time.
    Delay(Duration),
}

/// How often faults come unordered, each in 1000 calls of its kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// [`FaultKind::FailBefore`].
    pub fail_before: u64,
    /// [`FaultKind::AppliedUnknown`].
    pub applied_unknown: u64,
    /// [`FaultKind::NotAppliedUnknown`].
    pub not_applied_unknown: u64,
    /// [`FaultKind::FailRead`].
    pub fail_read: u64,
    /// [`FaultKind::Delay`], up to `delay_max`.
    pub delay: u64,
    /// The longest delay.
    pub delay_max: Duration,
}

/// How many answers of commits were lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultHits {
    /// Of commits that were done. One that the store refused is not among them.
    pub applied_unknown: u64,
    /// Of commits that were not done.
    pub not_applied_unknown: u64,
}

/// Wraps a store with faults: ordered ones first, then by chance from a seed.
pub struct FaultyStore {
    inner: Arc<dyn MetadataStore>,
    rng: Rng,
    rates: FaultRates,
    ordered: Mutex<VecDeque<(Option<Key>, FaultKind)>>,
    hits: Mutex<FaultHits>,
    /// What is told in the place of what the store inside says.
    resolve_by_registration: Mutex<Option<bool>>,
}

impl FaultyStore {
    /// Faults by chance at `rates`, repeatable by the seed of `rng`.
    #[must_use]
    pub fn new(inner: Arc<dyn MetadataStore>, rng: Rng, rates: FaultRates) -> Self {
        let (ordered, hits, resolve_by_registration) = Default::default();
        Self { inner, rng, rates, ordered, hits, resolve_by_registration }
    }

    /// Only ordered faults.
    #[must_use]
    pub fn scripted(inner: Arc<dyn MetadataStore>) -> Self {
        Self::new(inner, Rng::seeded(0), FaultRates::default())
    }

    /// The next call that `kind` can befall gets it. Ordered faults befall calls in the order they were ordered.
    pub fn fail_next(&self, kind: FaultKind) {
        self.order(None, kind);
    }

    /// As [`FaultyStore::fail_next`], for the next such call that touches `prefix` or a key below it.
    pub fn fail_next_on(&self, prefix: &Key, kind: FaultKind) {
        self.order(Some(prefix.clone()), kind);
    }

    /// From now on [`MetadataStore::clients_resolve_by_registration`] says this.
    pub fn set_clients_resolve_by_registration(&self, yes: bool) {
        *self.resolve_by_registration.lock().unwrap_or_else(PoisonError::into_inner) = Some(yes);
    }

    /// How many ordered faults have not befallen a call yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// How many faults of unknown outcome have befallen a commit.
    #[must_use]
    pub fn hits(&self) -> FaultHits {
        *self.hits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hit(&self, count: impl FnOnce(&mut FaultHits)) {
        count(&mut self.hits.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn order(&self, prefix: Option<Key>, kind: FaultKind) {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner).push_back((prefix, kind));
    }

    fn take(&self, read: bool, touches: impl Fn(&Key) -> bool) -> Option<FaultKind> {
        let mut ordered = self.ordered.lock().unwrap_or_else(PoisonError::into_inner);
        let found = ordered
            .iter()
            .position(|(prefix, kind)| (*kind == FaultKind::FailRead) == read && prefix.as_ref().is_none_or(&touches));
        found.and_then(|index| ordered.remove(index)).map(|(_, kind)| kind)
    }

    fn by_chance(&self, choices: &[(u64, FaultKind)]) -> Option<FaultKind> {
        if choices.iter().all(|(rate, _)| *rate == 0) {
            return None;
        }
        let mut draw = self.rng.below(1000);
        for (rate, kind) in choices {
            if draw < *rate {
                return Some(*kind);
            }
            draw -= rate;
        }
        None
    }

    fn chance_delay(&self) -> Duration {
        Duration::from_micros(self.rng.below(u64::try_from(self.rates.delay_max.as_micros()).unwrap_or(u64::MAX)))
    }

    fn check_read(&self, key: &Key) -> Result<(), Error> {
        let fault = self
            .take(true, |prefix| lies_in(key, prefix))
            .or_else(|| self.by_chance(&[(self.rates.fail_read, FaultKind::FailRead)]));
        match fault {
            Some(_) => Err(injected("read metadata")),
            None => Ok(()),
        }
    }
}

fn lies_in(key: &Key, prefix: &Key) -> bool {
    key == prefix || key.below(prefix).is_some()
}

fn injected(verb: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{verb}: injected fault"))
}

#[async_trait]
impl MetadataStore for FaultyStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.check_read(key)?;
        self.inner.get(key).await
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.check_read(key)?;
        self.inner.get_quorum(key).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        let rates = &self.rates;
        let fault =
            self.take(false, |prefix| transaction.ops().iter().any(|op| lies_in(op.key(), prefix))).or_else(|| {
                self.by_chance(&[
                    (rates.fail_before, FaultKind::FailBefore),
                    (rates.applied_unknown, FaultKind::AppliedUnknown),
                    (rates.not_applied_unknown, FaultKind::NotAppliedUnknown),
                    (rates.delay, FaultKind::Delay(self.chance_delay())),
                ])
            });
        match fault {
            Some(FaultKind::FailBefore) => Err(CommitError::NotDone(injected("commit metadata"))),
            Some(FaultKind::NotAppliedUnknown) => {
                self.hit(|hits| hits.not_applied_unknown += 1);
                Err(CommitError::Unknown(injected("commit metadata")))
            }
            Some(FaultKind::AppliedUnknown) => {
                // Even a refusal is told as unknown: the answer is lost, whatever it was.
                if self.inner.commit(transaction).await.is_ok() {
                    self.hit(|hits| hits.applied_unknown += 1);
                }
                Err(CommitError::Unknown(injected("commit metadata")))
            }
            Some(FaultKind::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                self.inner.commit(transaction).await
            }
            Some(FaultKind::FailRead) | None => self.inner.commit(transaction).await,
        }
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        self.check_read(prefix)?;
        self.inner.list(prefix, after, limit).await
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        self.inner.watch(prefix).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        self.inner.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        self.inner.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.inner.revoke(lease).await
    }

    // Ids are left to the default, a counter, so that faults befall it too.
    fn layouts(&self) -> &[LedgerLayout] {
        self.inner.layouts()
    }

    async fn mark_cluster(&self) -> Result<(), Error> {
        self.inner.mark_cluster().await
    }

    fn clients_resolve_by_registration(&self) -> bool {
        let said = *self.resolve_by_registration.lock().unwrap_or_else(PoisonError::into_inner);
        said.unwrap_or_else(|| self.inner.clients_resolve_by_registration())
    }
}
