//! Byte budgets: memory is admitted before it queues, and the permit rides with the bytes until they are gone.
//!
//! A budget has a limit and a first-come-first-served queue; a permit gives its bytes back when it is dropped. A child has its
//! own, smaller limit and is charged to its parent as well, so parts share one total without one part eating it all.
//!
//! # Order
//!
//! A request is admitted by the child first, then by the parent, and so on up. Every request climbs in this one direction and
//! a holder of the parent never waits for the child inside a request, so requests cannot wait for each other in a ring. While
//! it waits for the parent a request keeps its place in the child: later requests of the same child wait behind it.
//!
//! A task that holds a permit and waits for a second one of the same tree can still deadlock with others of its kind: ask once
//! for the sum, or use `try_acquire` for the second.
//!
//! # Large requests
//!
//! A request over the whole limit is charged the limit: it waits until it is alone, then runs. So nothing is ever too large to
//! be served, and what is counted never exceeds the limit.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// A named limit on bytes held at one time. Cheap to clone; clones are the same budget.
#[derive(Clone)]
pub struct ByteBudget {
    node: Arc<Node>,
}

struct Node {
    name: &'static str,
    limit: u64,
    parent: Option<Arc<Node>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: u64,
    peak: u64,
    /// How many requests ever had to wait.
    waits: u64,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    bytes: u64,
    admit: oneshot::Sender<Charge>,
}

/// Bytes charged to one node; given back on drop.
struct Charge {
    node: Arc<Node>,
    bytes: u64,
}

impl ByteBudget {
    /// A budget of `limit_bytes` (at least 1).
    pub fn new(name: &'static str, limit_bytes: u64) -> Self {
        Self::with_parent(name, limit_bytes, None)
    }

    /// A part of this budget with its own limit (cut down to this one's); what it admits is charged to this budget too.
    pub fn child(&self, name: &'static str, limit_bytes: u64) -> Self {
        // No larger than the parent: then a request is charged the same at every level.
        Self::with_parent(name, limit_bytes.min(self.node.limit), Some(Arc::clone(&self.node)))
    }

    fn with_parent(name: &'static str, limit: u64, parent: Option<Arc<Node>>) -> Self {
        let node = Node { name, limit: limit.max(1), parent, state: Mutex::default() };
        Self { node: Arc::new(node) }
    }

    /// Waits until `bytes` are admitted, first come first served; a request over the limit is charged the limit.
    ///
    /// Cancel-safe: a dropped request loses its place and gives back whatever it had.
    pub async fn acquire(&self, bytes: u64) -> BytePermit {
        let bytes = bytes.min(self.node.limit);
        let mut permit = BytePermit { charges: Vec::with_capacity(2), bytes };
        let mut next = Some(&self.node);
        while let Some(node) = next {
            permit.charges.push(Node::acquire(node, bytes).await);
            next = node.parent.as_ref();
        }
        permit
    }

    /// Admits `bytes` now or not at all. It does not overtake: `None` as well while others wait.
    pub fn try_acquire(&self, bytes: u64) -> Option<BytePermit> {
        let bytes = bytes.min(self.node.limit);
        let mut permit = BytePermit { charges: Vec::with_capacity(2), bytes };
        let mut next = Some(&self.node);
        while let Some(node) = next {
            permit.charges.push(Node::try_acquire(node, bytes)?);
            next = node.parent.as_ref();
        }
        Some(permit)
    }

    /// Bytes admitted now, children's included.
    pub fn used_bytes(&self) -> u64 {
        self.node.lock().used
    }

    /// The limit.
    pub fn limit_bytes(&self) -> u64 {
        self.node.limit
    }

    /// The most bytes ever admitted at one time.
    pub fn peak_bytes(&self) -> u64 {
        self.node.lock().peak
    }

    /// How many requests wait in this budget's queue now.
    pub fn waiting(&self) -> usize {
        let mut state = self.node.lock();
        state.waiting.retain(|waiter| !waiter.admit.is_closed());
        state.waiting.len()
    }

    /// How many requests ever had to wait in this budget's queue.
    pub fn waits(&self) -> u64 {
        self.node.lock().waits
    }

    /// The name given at creation.
    pub fn name(&self) -> &'static str {
        self.node.name
    }
}

impl fmt::Debug for ByteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.used_bytes();
        write!(f, "ByteBudget({} {used}/{})", self.node.name, self.node.limit)
    }
}

impl Node {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn acquire(node: &Arc<Self>, bytes: u64) -> Charge {
        let wait = {
            let mut state = node.lock();
            if let Some(charge) = state.admit_now(node, bytes) {
                return charge;
            }
            let (admit, wait) = oneshot::channel();
            state.waiting.push_back(Waiter { bytes, admit });
            state.waits += 1;
            wait
        };
        // When this request is dropped while it waits, its place must not hold up those behind it.
        let mut place = Place { node, wait };
        match (&mut place.wait).await {
            Ok(charge) => charge,
            Err(_) => {
                unreachable!("a waiter stays in its node's queue until it is admitted, and the node outlives it here")
            }
        }
    }

    fn try_acquire(node: &Arc<Self>, bytes: u64) -> Option<Charge> {
        node.lock().admit_now(node, bytes)
    }

    fn release(self: &Arc<Self>, bytes: u64) {
        let mut state = self.lock();
        state.used = state.used.saturating_sub(bytes);
        state.admit_waiting(self);
    }
}

impl State {
    fn admit_now(&mut self, node: &Arc<Node>, bytes: u64) -> Option<Charge> {
        self.admit_waiting(node);
        (self.waiting.is_empty() && self.fits(node, bytes)).then(|| self.charge(node, bytes))
    }

    /// Admits from the front of the queue for as long as the front fits; forgets those that were given up.
    fn admit_waiting(&mut self, node: &Arc<Node>) {
        while let Some(front) = self.waiting.front() {
            let given_up = front.admit.is_closed();
            if !given_up && !self.fits(node, front.bytes) {
                return;
            }
            let Some(waiter) = self.waiting.pop_front() else { return };
            if given_up {
                continue;
            }
            let charge = self.charge(node, waiter.bytes);
            if let Err(mut charge) = waiter.admit.send(charge) {
                // Given up a moment ago. Undone by hand: the charge's own drop would take the lock that is held here.
                self.used -= std::mem::take(&mut charge.bytes);
            }
        }
    }

    fn fits(&self, node: &Node, bytes: u64) -> bool {
        bytes <= node.limit - self.used
    }

    fn charge(&mut self, node: &Arc<Node>, bytes: u64) -> Charge {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        Charge { node: Arc::clone(node), bytes }
    }
}

/// A request's place in the queue.
struct Place<'a> {
    node: &'a Arc<Node>,
    wait: oneshot::Receiver<Charge>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Closing first makes the queue see this place as given up. A charge that was already sent is dropped with the
        // receiver and gives its bytes back itself.
        self.wait.close();
        self.node.lock().admit_waiting(self.node);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.node.release(self.bytes);
        }
    }
}

/// Bytes admitted by a [`ByteBudget`]; they are given back when the permit is dropped.
#[must_use = "the bytes are given back as soon as the permit is dropped"]
pub struct BytePermit {
    /// Child first. Each is charged `bytes`.
    charges: Vec<Charge>,
    bytes: u64,
}

impl BytePermit {
    /// The bytes this permit holds (a request over the limit holds the limit).
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in another permit of the same budget.
    ///
    /// # Panics
    ///
    /// When `other` is of another budget: their bytes cannot be counted in one number.
    pub fn merge(&mut self, other: BytePermit) {
        assert!(self.try_merge(other).is_ok(), "merge permits of one budget only");
    }

    /// Takes in another permit of the same budget.
    ///
    /// # Errors
    ///
    /// One of another budget comes back: their bytes cannot be counted in one number.
    pub fn try_merge(&mut self, mut other: BytePermit) -> Result<(), BytePermit> {
        let same = self.charges.len() == other.charges.len()
            && self.charges.iter().zip(&other.charges).all(|(mine, theirs)| Arc::ptr_eq(&mine.node, &theirs.node));
        if !same {
            return Err(other);
        }
        for (mine, theirs) in self.charges.iter_mut().zip(&mut other.charges) {
            mine.bytes += std::mem::take(&mut theirs.bytes);
        }
        self.bytes += std::mem::take(&mut other.bytes);
        Ok(())
    }

    /// Moves up to `bytes` of this permit into a new one.
    pub fn split(&mut self, bytes: u64) -> BytePermit {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let move_part = |charge: &mut Charge| {
            charge.bytes -= bytes;
            Charge { node: Arc::clone(&charge.node), bytes }
        };
        BytePermit { charges: self.charges.iter_mut().map(move_part).collect(), bytes }
    }

    /// Gives back all but `bytes`; nothing happens when it holds fewer.
    pub fn shrink_to(&mut self, bytes: u64) {
        let surplus = self.bytes.saturating_sub(bytes);
        drop(self.split(surplus));
    }
}

impl Drop for BytePermit {
    fn drop(&mut self) {
        // Parent first, the reverse of admission: then a child's next request finds room above it as well.
        while let Some(charge) = self.charges.pop() {
            drop(charge);
        }
    }
}

impl fmt::Debug for BytePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.charges.first().map_or("", |charge| charge.node.name);
        write!(f, "BytePermit({name} {})", self.bytes)
    }
}

#[cfg(test)]
mod tests;
