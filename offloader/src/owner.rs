//! The name under which this process makes attempts, and the lease that shows that it lives.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::rng::Rng;
use common::shutdown::TaskTree;
use metadata::{Attempts, Error, LeaseId, MetadataStore};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// The owner of this process' attempts. A name is never used again once its lease was lost: others may have taken over what it
/// had begun.
pub(crate) struct Owner {
    store: Arc<dyn MetadataStore>,
    attempts: Attempts,
    rng: Rng,
    ttl: Duration,
    held: Mutex<Option<Held>>,
    registering: AsyncMutex<()>,
}

#[derive(Clone)]
struct Held {
    name: Arc<str>,
    lease: LeaseId,
    /// Until then the lease lives for sure.
    until: Instant,
}

impl Owner {
    pub(crate) fn new(store: Arc<dyn MetadataStore>, rng: Rng, ttl: Duration) -> Self {
        let attempts = Attempts::new(Arc::clone(&store));
        Self { store, attempts, rng, ttl, held: Mutex::new(None), registering: AsyncMutex::new(()) }
    }

    /// The name to make attempts under; registers one when there is none whose lease lives.
    ///
    /// # Errors
    /// Those of the metadata store.
    pub(crate) async fn name(&self) -> Result<Arc<str>, Error> {
        if let Some(name) = self.living() {
            return Ok(name);
        }
        let _one_at_a_time = self.registering.lock().await;
        if let Some(name) = self.living() {
            return Ok(name);
        }
        let asked = Instant::now();
        let lease = self.store.grant_lease(self.ttl).await?;
        let name: Arc<str> = format!("offloader-{}", self.rng.uuid()).into();
        self.attempts.register_owner(&name, lease).await?;
        self.set(Some(Held { name: Arc::clone(&name), lease, until: asked + self.ttl }));
        Ok(name)
    }

    /// Keeps the lease alive until the tree stops, then ends it, so that the next process need not wait.
    pub(crate) async fn keep_alive(&self, tasks: TaskTree) {
        let mut tick = tokio::time::interval(self.ttl / 3);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while tasks.token().run_until_cancelled(tick.tick()).await.is_some() {
            let Some(held) = self.get() else { continue };
            let asked = Instant::now();
            match tokio::time::timeout(self.ttl, self.store.keep_alive(held.lease)).await {
                Ok(Ok(())) => self.replace(&held, Some(Held { until: asked + self.ttl, ..held.clone() })),
                Ok(Err(error)) if error.kind() == metadata::ErrorKind::LeaseGone => {
                    tracing::warn!(owner = %held.name, "offloader lease lost; attempts under it may be taken over");
                    self.replace(&held, None);
                }
                Ok(Err(error)) => tracing::warn!(error = &error as &dyn std::error::Error, "keep offloader lease"),
                Err(_) => tracing::warn!("keep offloader lease: no answer in time"),
            }
        }
        if let Some(held) = self.get()
            && let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(5), self.store.revoke(held.lease)).await
        {
            tracing::debug!(error = &error as &dyn std::error::Error, "end offloader lease");
        }
    }

    /// Whether `owner` is the name held now.
    pub(crate) fn is_me(&self, owner: &str) -> bool {
        self.get().is_some_and(|held| *held.name == *owner)
    }

    fn living(&self) -> Option<Arc<str>> {
        self.get().filter(|held| Instant::now() < held.until).map(|held| held.name)
    }

    fn get(&self) -> Option<Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, held: Option<Held>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    /// Puts `new` in the place of `old`, unless another name has been registered meanwhile: an answer may come that late.
    fn replace(&self, old: &Held, new: Option<Held>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_ref().is_some_and(|held| held.name == old.name) {
            *held = new;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use metadata::MemoryStore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_for_an_old_lease_does_not_take_the_new_name_away() {
        let ttl = Duration::from_secs(30);
        let owner = Owner::new(Arc::new(MemoryStore::new()), Rng::seeded(1), ttl);
        let old = owner.name().await.unwrap();
        let asked_for = owner.get().unwrap();
        tokio::time::sleep(ttl).await;
        let new = owner.name().await.unwrap();
        assert_ne!(old, new, "the old lease may have run out");
        owner.replace(&asked_for, Some(Held { until: Instant::now() + ttl, ..asked_for.clone() }));
        owner.replace(&asked_for, None);
        assert!(owner.is_me(&new) && !owner.is_me(&old));
        assert_eq!(owner.name().await.unwrap(), new);
    }
}
