//! Reads of ledgers that moved away, answered with what their present members have.
//!
//! Clients that opened a ledger before it was released keep its old members, and some never look at its metadata again. A bookie that
//! has dropped its copy under a *gone* tombstone asks the members that metadata names now in their place, which are mostly cold
//! ids with a gateway behind them.
//!
//! # What is asked
//! One entry at a time, by its id, with a READ of version 3, whatever the caller asked for: where a closed ledger ends is known from its
//! metadata, so that "the last entry" and what a long poll waits for are such reads too. A fence is written here before anything is
//! asked, and its key goes with the read. Adds are never relayed.
//!
//! # One hop
//! Each question carries a mark (`proto::client::mark_relayed`) that keeps whoever gets it from asking others. This bookie is never
//! asked by itself.
//!
//! # What is told
//! A body, as it came. *No entry* beyond the end of the closed ledger, and *no ledger*, after a proof of metadata that still holds the
//! bookie's own cluster, never on the word of a member. *Damage* when every member says that it cannot read its copy. *Unauthorized* when a member refuses the key that the
//! caller showed, not when it does not let this bookie in. Everything else may be over later and is *too many requests*, after trying for as long as callers wait.
//!
//! # Bounds
//! A number of requests at a time (and of one connection no more than its part), memory of its own for answers, and a
//! deadline that counts from when a request was received. No turn of the disk, of a connection, or of the journal is held meanwhile.

mod copies;
pub(crate) mod decide;
mod known;
mod link;
mod peers;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use common::budget::{ByteBudget, BytePermit};
use common::net::Connector;
use common::shutdown::TaskTree;
use ledger::{BookieId, EntryId, LedgerId, MasterKey};
use metadata::{Bookies, InstanceId, MetadataStore};
use proto::Status;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub(crate) use self::copies::Copies;
use self::decide::{ClosedLedger, Hearsay, Tally, Want, share};
use self::known::{Knowledge, KnownLedgers};
use self::link::{Answer, Question};
use self::peers::{Peers, PeersParts};
use crate::store::Store;

/// The first pause before members are asked again, and the longest: each is twice the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(800);
/// How often the log is told of requests that came to nothing.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(30);
/// The part of all requests that one connection may have under way.
const CONNECTION_PART: usize = 8;

/// What a relay is given.
#[derive(Clone)]
pub(crate) struct RelayParts {
    pub(crate) store: Arc<Store>,
    pub(crate) metadata: Arc<dyn MetadataStore>,
    /// The cluster the bookie started in.
    pub(crate) instance: InstanceId,
    pub(crate) me: BookieId,
    /// Where this bookie is registered.
    pub(crate) address: String,
    pub(crate) connector: Arc<dyn Connector>,
    /// The memory it shares with the rest of the bookie.
    pub(crate) budget: ByteBudget,
    pub(crate) tasks: TaskTree,
}

/// See the module.
pub(crate) struct Relay {
    store: Arc<Store>,
    me: BookieId,
    known: KnownLedgers,
    peers: Peers,
    /// Requests under way.
    pub(crate) turns: Arc<Semaphore>,
    tasks: TaskTree,
    complaints: Mutex<Complaints>,
}

/// What is wanted on behalf of a caller.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) ledger: LedgerId,
    pub(crate) want: Want,
    /// The key of a fence that is durable here.
    pub(crate) fence: Option<MasterKey>,
    pub(crate) until: Instant,
}

/// An entry that a member had.
#[derive(Debug)]
pub(crate) struct Relayed {
    pub(crate) entry: EntryId,
    pub(crate) body: Bytes,
    /// The last entry of the closed ledger: all of it is confirmed.
    pub(crate) last: Option<EntryId>,
    pub(crate) permit: BytePermit,
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Found(Relayed),
    /// The closed ledger ends before what is wanted, with this entry.
    Beyond(Option<EntryId>),
    Failed(Status),
}

/// How one round of questions ended.
enum Round {
    Found(Bytes, BytePermit),
    Denied,
    Damaged,
    Nothing,
}

impl Relay {
    /// `None` when the bookie is not to relay anything.
    pub(crate) fn new(parts: RelayParts) -> Option<Self> {
        let RelayParts { store, metadata, instance, me, address, connector, budget, tasks } = parts;
        let config = &store.config;
        let turns = config.relay_concurrency.min(Semaphore::MAX_PERMITS);
        if turns == 0 {
            return None;
        }
        let peers = Peers::new(PeersParts {
            bookies: Bookies::new(metadata.clone()),
            connector,
            budget: budget.child("bookie-relay", config.relay_bytes_max.bytes()),
            tasks: tasks.clone(),
            own_address: address,
            frame_bytes_max: config.frame_bytes_max.as_usize(),
            deadline: config.relay_deadline.duration(),
            connections: store.metrics.relay_connections.clone(),
        });
        Some(Self {
            known: KnownLedgers::new(metadata, instance),
            peers,
            turns: Arc::new(Semaphore::new(turns)),
            me,
            tasks,
            store,
            complaints: Mutex::default(),
        })
    }

    /// How many requests one connection may have under way.
    pub(crate) fn connection_turns(&self) -> usize {
        (self.store.config.relay_concurrency / CONNECTION_PART).max(1)
    }

    /// Until when a request is tried that was received then.
    pub(crate) fn until(&self, received: Instant) -> Instant {
        received + self.store.config.relay_deadline.duration()
    }

    /// Gets what is wanted from the ledger's members, by its time. Cancel-safe.
    pub(crate) async fn read(&self, wanted: &Wanted) -> Outcome {
        let _counted = self.store.metrics.relays.hold();
        let began = Instant::now();
        let mut why = String::new();
        let outcome = tokio::select! {
            ended = tokio::time::timeout_at(wanted.until, self.tries(wanted, &mut why)) => {
                ended.unwrap_or(Outcome::Failed(Status::TooManyRequests))
            }
            () = self.tasks.stopping() => Outcome::Failed(Status::TooManyRequests),
        };
        self.store.metrics.relayed(&outcome, began.elapsed());
        if matches!(outcome, Outcome::Failed(Status::Io | Status::TooManyRequests)) && !self.tasks.is_stopping() {
            self.complain(wanted.ledger, &why);
        }
        outcome
    }

    /// A request that had no turn in time.
    pub(crate) fn had_no_turn(&self, ledger: LedgerId) -> Status {
        self.store
            .metrics
            .relayed(&Outcome::Failed(Status::TooManyRequests), self.store.config.relay_deadline.duration());
        self.complain(ledger, "too many others are under way (setting relay_concurrency)");
        Status::TooManyRequests
    }

    async fn tries(&self, wanted: &Wanted, why: &mut String) -> Outcome {
        let mut pause = PAUSE_FIRST;
        // What is known may be old: after the first miss metadata is asked by proof, once.
        let (mut missed, mut proven) = (None, false);
        loop {
            let known = match missed {
                Some(since) if !proven => self.known.prove(wanted.ledger, since).await,
                _ => self.known.get(wanted.ledger).await,
            };
            let mut at_once = false;
            match known {
                Ok(Knowledge::Absent) => return Outcome::Failed(Status::NoLedger),
                // Nothing is told of an end that may be another ledger's.
                Ok(Knowledge::Closed { ledger, proven: false }) if wanted.want.within(ledger.last).is_none() => {
                    at_once = missed.is_none();
                }
                Ok(Knowledge::Closed { ledger, .. }) => {
                    proven = missed.is_some();
                    let Some(entry) = wanted.want.within(ledger.last) else { return Outcome::Beyond(ledger.last) };
                    match self.round(&ledger, entry, wanted, why).await {
                        Round::Found(body, permit) => {
                            return Outcome::Found(Relayed { entry, body, last: ledger.last, permit });
                        }
                        Round::Denied => return Outcome::Failed(Status::Unauthorized),
                        // It may be deleted, and its copies with it.
                        Round::Damaged if proven => return Outcome::Failed(Status::Io),
                        Round::Damaged | Round::Nothing => at_once = !proven,
                    }
                }
                Err(error) => *why = error.to_string(),
            }
            missed.get_or_insert_with(Instant::now);
            if !at_once {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Asks the members of an entry, one place after the other.
    async fn round(&self, ledger: &ClosedLedger, entry: EntryId, wanted: &Wanted, why: &mut String) -> Round {
        let question = Question { ledger: wanted.ledger, entry, fence: wanted.fence };
        let (places, unasked) = self.peers.places(&ledger.holders(entry, &self.me)).await;
        if places.is_empty() {
            *why = "no other member of it is registered".to_owned();
        }
        let mut tally = Tally { unasked, asked: 0, damaged: 0 };
        for (number, place) in places.iter().enumerate() {
            let now = Instant::now();
            let time = share(wanted.until.saturating_duration_since(now), places.len() - number);
            tally.asked += 1;
            *why = format!("{} does not answer in time", place.address);
            match self.peers.ask(place, &question, now + time).await {
                Ok(Answer::Body(body, permit)) => return Round::Found(body, permit),
                Ok(Answer::Stranger) => {
                    *why = format!("{} does not let this bookie in (settings connect.*)", place.address)
                }
                Ok(Answer::Status(status)) => {
                    *why = format!("{} answers {status:?}", place.address);
                    match Hearsay::of(status, wanted.fence.is_some()) {
                        Hearsay::Denied => return Round::Denied,
                        Hearsay::Damaged => tally.damaged += 1,
                        Hearsay::Nothing => {}
                    }
                }
                Err(error) => *why = format!("{}: {error}", place.address),
            }
        }
        if tally.is_damage() { Round::Damaged } else { Round::Nothing }
    }

    fn complain(&self, ledger: LedgerId, why: &str) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(untold) = complaints.count(Instant::now()) else { return };
        drop(complaints);
        tracing::warn!(%ledger, why, untold, "a read of a ledger that moved away was not served by its members");
    }
}

/// Keeps a log from being filled by what comes often.
#[derive(Debug, Default)]
struct Complaints {
    last: Option<Instant>,
    untold: u64,
}

impl Complaints {
    /// Counts one. When it is to be told: how many were not told before it.
    fn count(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < COMPLAINT_INTERVAL) {
            self.untold += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_now_and_then_with_their_number() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        assert_eq!(complaints.count(now), Some(0));
        assert_eq!(complaints.count(now + COMPLAINT_INTERVAL / 2), None);
        assert_eq!(complaints.count(now + COMPLAINT_INTERVAL / 2), None);
        assert_eq!(complaints.count(now + COMPLAINT_INTERVAL), Some(2));
        assert_eq!(complaints.count(now + 2 * COMPLAINT_INTERVAL), Some(0));
    }
}
