//! Who holds which key until when. Pure: time is passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Key, LeaseId};

/// The leases of one process, in memory: they die with it.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    next: u64,
    leases: BTreeMap<LeaseId, Lease>,
    holders: BTreeMap<Key, LeaseId>,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    deadline: Instant,
    keys: BTreeSet<Key>,
}

impl Leases {
    pub(crate) fn grant(&mut self, ttl: Duration, now: Instant) -> LeaseId {
        self.next += 1;
        let id = LeaseId::new(self.next);
        self.leases.insert(id, Lease { ttl, deadline: now + ttl, keys: BTreeSet::new() });
        id
    }

    /// Pushes the deadline out; false when the lease is gone, its deadline having passed included.
    pub(crate) fn keep_alive(&mut self, id: LeaseId, now: Instant) -> bool {
        match self.leases.get_mut(&id) {
            Some(lease) if now < lease.deadline => {
                lease.deadline = now + lease.ttl;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_alive(&self, id: LeaseId, now: Instant) -> bool {
        self.leases.get(&id).is_some_and(|lease| now < lease.deadline)
    }

    /// Forgets the lease and gives the keys that die with it; `None` when it is gone already.
    pub(crate) fn remove(&mut self, id: LeaseId) -> Option<Vec<Key>> {
        let lease = self.leases.remove(&id)?;
        for key in &lease.keys {
            self.holders.remove(key);
        }
        Some(lease.keys.into_iter().collect())
    }

    /// The leases whose deadline has passed.
    pub(crate) fn due(&self, now: Instant) -> Vec<LeaseId> {
        self.leases.iter().filter(|(_, lease)| lease.deadline <= now).map(|(id, _)| *id).collect()
    }

    /// When the next lease ends if nobody keeps it.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.leases.values().map(|lease| lease.deadline).min()
    }

    /// Follows a write: the key belongs to `lease` now, or to none.
    pub(crate) fn bind(&mut self, key: &Key, lease: Option<LeaseId>) {
        if let Some(old) = self.holders.remove(key)
            && let Some(lease) = self.leases.get_mut(&old)
        {
            lease.keys.remove(key);
        }
        if let Some(id) = lease
            && let Some(lease) = self.leases.get_mut(&id)
        {
            lease.keys.insert(key.clone());
            self.holders.insert(key.clone(), id);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_rebound_key_does_not_die_with_the_old_lease() {
        let now = Instant::now();
        let ttl = Duration::from_secs(5);
        let mut leases = Leases::default();
        let (first, second) = (leases.grant(ttl, now), leases.grant(ttl * 2, now));
        let (a, b) = (Key::new("/a").unwrap(), Key::new("/b").unwrap());
        leases.bind(&a, Some(first));
        leases.bind(&b, Some(first));
        leases.bind(&a, Some(second));
        assert_eq!(leases.holders[&a], second);
        assert_eq!(leases.due(now + ttl), [first]);
        assert_eq!(leases.remove(first).unwrap(), [b]);
        assert!(leases.remove(first).is_none());
        assert_eq!(leases.next_deadline(), Some(now + ttl * 2));
        leases.bind(&a, None);
        assert!(leases.remove(second).unwrap().is_empty());
    }

    #[test]
    fn keeping_alive_works_until_the_deadline_only() {
        let now = Instant::now();
        let ttl = Duration::from_secs(5);
        let mut leases = Leases::default();
        let lease = leases.grant(ttl, now);
        assert!(leases.keep_alive(lease, now + ttl / 2));
        assert!(leases.is_alive(lease, now + ttl));
        assert!(!leases.keep_alive(lease, now + ttl * 2), "an overdue lease is gone even before anyone swept it");
        assert!(!leases.is_alive(lease, now + ttl * 2));
    }
}
