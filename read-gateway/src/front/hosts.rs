//! What connections of one host share.
//!
//! A client of cold ids has a connection to each of them: some hundred for one process. If it stands still, what they hold together
//! must leave room for other hosts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use common::budget::ByteBudget;
use common::net::peer_host;

type Known = Mutex<HashMap<String, Weak<Host>>>;

/// The hosts that have connections. Cheap to clone; clones are the same.
#[derive(Clone)]
pub(super) struct Hosts {
    known: Arc<Known>,
    replies_bytes: u64,
    end_replies_bytes: u64,
}

/// The parts of the replies' memory that one host may hold.
pub(super) struct Host {
    name: String,
    known: Arc<Known>,
    pub(super) replies: ByteBudget,
    pub(super) end_replies: ByteBudget,
}

impl Hosts {
    /// Each host may hold so many bytes of replies, and of those of the ends of ledgers.
    pub(super) fn new(replies_bytes: u64, end_replies_bytes: u64) -> Self {
        Self { known: Arc::default(), replies_bytes, end_replies_bytes }
    }

    /// That of a peer; it is known for as long as somebody has it.
    pub(super) fn of(&self, peer: &str) -> Arc<Host> {
        let name = &*peer_host(peer);
        let mut known = lock(&self.known);
        if let Some(host) = known.get(name).and_then(Weak::upgrade) {
            return host;
        }
        let host = Arc::new(Host {
            name: name.to_owned(),
            known: Arc::clone(&self.known),
            replies: ByteBudget::new("gateway messages of a host", self.replies_bytes),
            end_replies: ByteBudget::new("gateway end replies of a host", self.end_replies_bytes),
        });
        known.insert(name.to_owned(), Arc::downgrade(&host));
        host
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.known).len()
    }
}

fn lock(known: &Known) -> MutexGuard<'_, HashMap<String, Weak<Host>>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut known = lock(&self.known);
        // A new connection may have made a successor.
        if known.get(&self.name).is_some_and(|host| host.strong_count() == 0) {
            known.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_while_it_has_connections() {
        let hosts = Hosts::new(10, 10);
        let (one, two) = (hosts.of("10.0.0.1:1"), hosts.of("10.0.0.1:2"));
        assert!(Arc::ptr_eq(&one, &two));
        let other = hosts.of("10.0.0.2:1");
        assert_eq!(hosts.count(), 2);
        drop((one, two));
        assert_eq!(hosts.count(), 1);
        drop(other);
        assert_eq!(hosts.count(), 0);
    }
}
