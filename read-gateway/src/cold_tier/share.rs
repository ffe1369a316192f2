//! Memory for replies of which one peer may hold a part: a peer that takes nothing must leave room for others.
//!
//! A part is a budget of its own that is asked first. A request larger than a part waits until it is the only one there, and is charged
//! in full where it counts: so a peer holds no more than its part or one reply, whichever is more.

use std::sync::Arc;

use common::budget::{ByteBudget, BytePermit};

/// A budget, and the parts that one peer may hold of it. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// The smallest first.
    parts: Arc<[ByteBudget]>,
    budget: ByteBudget,
}

/// Bytes of a share, given back when it is dropped.
#[derive(Debug)]
#[must_use = "the bytes are given back as soon as the permit is dropped"]
pub(crate) struct SharePermit {
    // Given back first: then the next of the same peer finds room behind its part as well.
    bytes: BytePermit,
    parts: Vec<BytePermit>,
}

impl Share {
    /// What is left of `budget` within `parts`, the smallest first.
    pub(crate) fn new(budget: ByteBudget, parts: impl Into<Arc<[ByteBudget]>>) -> Self {
        Self { parts: parts.into(), budget }
    }

    /// The whole of a budget.
    pub(crate) fn whole(budget: ByteBudget) -> Self {
        Self::new(budget, [])
    }

    /// This share within a part more.
    pub(crate) fn within(&self, part: &ByteBudget) -> Self {
        let parts: Vec<_> = std::iter::once(part).chain(&*self.parts).cloned().collect();
        Self::new(self.budget.clone(), parts)
    }

    /// Waits until `bytes` are admitted, as [`ByteBudget::acquire`] does. Cancel-safe.
    pub(crate) async fn acquire(&self, bytes: u64) -> SharePermit {
        // From the smallest to the whole, and nobody waits the other way round.
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in &*self.parts {
            parts.push(part.acquire(bytes).await);
        }
        SharePermit { bytes: self.budget.acquire(bytes).await, parts }
    }

    /// Admits `bytes` now or not at all, as [`ByteBudget::try_acquire`] does.
    pub(crate) fn try_acquire(&self, bytes: u64) -> Option<SharePermit> {
        let parts: Option<Vec<_>> = self.parts.iter().map(|part| part.try_acquire(bytes)).collect();
        let parts = parts?;
        Some(SharePermit { bytes: self.budget.try_acquire(bytes)?, parts })
    }

    /// The most that a permit is charged.
    fn limit_bytes(&self) -> u64 {
        self.budget.limit_bytes()
    }

    #[cfg(test)]
    pub(crate) fn used_bytes(&self) -> u64 {
        self.budget.used_bytes()
    }

    /// `room` cut down to `bytes`, or what is admitted now.
    pub(crate) fn take(&self, room: Option<SharePermit>, bytes: u64) -> Option<SharePermit> {
        match room.filter(|room| room.bytes.bytes() >= bytes.min(self.limit_bytes())) {
            Some(mut room) => {
                room.shrink_to(bytes);
                Some(room)
            }
            None => self.try_acquire(bytes),
        }
    }
}

impl SharePermit {
    /// Gives back all but `bytes`.
    fn shrink_to(&mut self, bytes: u64) {
        self.bytes.shrink_to(bytes);
        for part in &mut self.parts {
            part.shrink_to(bytes);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_holds_its_part_or_one_large_reply() {
        let (budget, host) = (ByteBudget::new("all", 100), ByteBudget::new("host", 25));
        let host = Share::new(budget.clone(), [host]);
        let connection = host.within(&ByteBudget::new("connection", 10));
        let small = [connection.try_acquire(6).unwrap(), connection.try_acquire(4).unwrap()];
        assert!(connection.try_acquire(1).is_none(), "its part is used up");
        let other = host.within(&ByteBudget::new("another connection", 10)).try_acquire(10).unwrap();
        assert!(host.try_acquire(6).is_none(), "that of the host too");
        drop((small, other));
        assert_eq!(budget.used_bytes(), 0);

        let large = connection.try_acquire(60).unwrap();
        assert_eq!(budget.used_bytes(), 60, "charged in full");
        assert!(connection.try_acquire(1).is_none() && host.try_acquire(1).is_none());
        let large = connection.take(Some(large), 5).unwrap();
        assert_eq!(budget.used_bytes(), 5);
        assert!(connection.try_acquire(5).is_some());
        drop(large);
    }
}
