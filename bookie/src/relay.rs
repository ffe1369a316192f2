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
//! bookie's own cluster, never on the word of a member. *Damage* when every member says that it cannot read its copy. *Unauthorized*
//! when a member refuses the key that the caller showed, not when it does not let this bookie in. *Unknown* when metadata names this
//! bookie as a member again and no other has the entry. Everything else may be over later and is *too many requests*, after trying
//! for as long as callers wait.
//!
//! # Bounds
//! A number of requests at a time, memory of its own for answers (of both no more than a part for one connection), and a deadline that
//! counts from when a request was received. Half of the requests may be under way at one address; those that wait for it, or to ask
//! again, hold no turn. No turn of the disk, of a connection, or of the journal is held meanwhile.

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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

pub(crate) use self::copies::Copies;
use self::decide::{ClosedLedger, Hearsay, Tally, Want, has_spare, place_part, share};
use self::known::{Knowledge, KnownLedgers};
use self::link::{Answer, Question};
use self::peers::{Crowd, NoAnswer, Pass, Peers, PeersParts};
use crate::store::Store;

/// The first pause before members are asked again, and the longest: each is twice the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(800);
/// How often the log is told of requests that came to nothing.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(30);
/// The part of all requests that one connection may have under way, and of the memory for answers that it may hold.
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
    turns: Arc<Semaphore>,
    turns_max: usize,
    tasks: TaskTree,
    /// Notes of ends under way.
    notes: Arc<Semaphore>,
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
    /// Whether one round of questions is enough: it can be asked for again.
    pub(crate) once: bool,
}

/// The turn of a request, of a bounded number, which it lays down while nothing is under way for it.
#[derive(Debug)]
pub(crate) struct Turn(Option<OwnedSemaphorePermit>);

impl Turn {
    fn lay_down(&mut self) {
        self.0 = None;
    }

    /// Waits in line. Cancel-safe.
    async fn take_up(&mut self, turns: &Arc<Semaphore>) {
        if self.0.is_none() {
            // The semaphore is never closed.
            self.0 = turns.clone().acquire_owned().await.ok();
        }
    }
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
    /// It has no other members.
    Unasked,
    /// A place that may have it has too many questions under way.
    Crowded(Crowd),
    Nothing,
}

/// What is known so far of a request that is not answered.
struct Trail {
    why: String,
    /// What is told if nothing else is known in the end.
    word: Status,
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
            place_part: place_part(turns),
            deadline: config.relay_deadline.duration(),
            connections: store.metrics.relay_connections.clone(),
        });
        Some(Self {
            known: KnownLedgers::new(metadata, instance),
            peers,
            turns: Arc::new(Semaphore::new(turns)),
            turns_max: turns,
            me,
            tasks,
            store,
            notes: Arc::new(Semaphore::new(1)),
            complaints: Mutex::default(),
        })
    }

    /// How many requests one connection may have under way.
    pub(crate) fn connection_turns(&self) -> usize {
        (self.turns_max / CONNECTION_PART).max(1)
    }

    /// How much of the memory for answers one connection may hold.
    pub(crate) fn connection_bytes(&self) -> u64 {
        (self.store.config.relay_bytes_max.bytes() / CONNECTION_PART as u64).max(1)
    }

    /// Until when a request is tried that was received then.
    pub(crate) fn until(&self, received: Instant) -> Instant {
        received + self.store.config.relay_deadline.duration()
    }

    /// Waits for a turn, in line with all others. Cancel-safe.
    pub(crate) async fn turn(&self) -> Turn {
        // The semaphore is never closed.
        Turn(self.turns.clone().acquire_owned().await.ok())
    }

    /// A turn for what can be asked for again, if others would still find some.
    pub(crate) fn spare_turn(&self) -> Option<Turn> {
        has_spare(self.turns.available_permits(), self.turns_max).then_some(())?;
        Some(Turn(Some(self.turns.clone().try_acquire_owned().ok()?)))
    }

    /// Gets what is wanted from the ledger's members, by its time. Cancel-safe.
    pub(crate) async fn read(&self, wanted: &Wanted, turn: &mut Turn) -> Outcome {
        let _counted = self.store.metrics.relays.hold();
        let began = Instant::now();
        let mut trail = Trail { why: String::new(), word: Status::TooManyRequests };
        let ended = tokio::select! {
            ended = tokio::time::timeout_at(wanted.until, self.tries(wanted, turn, &mut trail)) => ended.ok(),
            () = self.tasks.stopping() => None,
        };
        let outcome = ended.unwrap_or(Outcome::Failed(trail.word));
        self.store.metrics.relayed(&outcome, began.elapsed());
        let is_nothing =
            matches!(outcome, Outcome::Failed(Status::Io | Status::TooManyRequests | Status::UnknownLedgerState));
        if is_nothing && !wanted.once && !self.tasks.is_stopping() {
            self.complain(wanted.ledger, &trail.why);
        }
        outcome
    }

    /// A request that had no turn in time.
    pub(crate) fn had_no_turn(&self, ledger: LedgerId) -> Status {
        self.store
            .metrics
            .relayed(&Outcome::Failed(Status::TooManyRequests), self.store.config.relay_deadline.duration());
        self.complain(
            ledger,
            "too many others are under way (setting relay_concurrency), or the caller takes no answers",
        );
        Status::TooManyRequests
    }

    async fn tries(&self, wanted: &Wanted, turn: &mut Turn, trail: &mut Trail) -> Outcome {
        let mut pause = PAUSE_FIRST;
        // What is known may be old: after the first miss metadata is asked by proof, once.
        let (mut missed, mut settled, mut pass) = (None, false, None);
        loop {
            let known = match missed {
                Some(since) if !settled => self.known.prove(wanted.ledger, since).await,
                _ => self.known.get(wanted.ledger).await,
            };
            let (mut crowd, is_known) = (None, known.is_ok());
            match known {
                Ok(Knowledge::Absent) => return Outcome::Failed(Status::NoLedger),
                Ok(Knowledge::Closed { ledger, proven, old }) => {
                    settled |= missed.is_some() && proven && !old;
                    if proven && !old {
                        self.confirm(wanted.ledger, ledger.last);
                    }
                    let is_mine = ledger.names(&self.me);
                    // What it dropped its copy for does not hold any more: it cannot tell what it should have.
                    trail.word = if proven && is_mine { Status::UnknownLedgerState } else { Status::TooManyRequests };
                    match wanted.want.within(ledger.last) {
                        Some(entry) => match self.round(&ledger, entry, wanted, &mut pass, trail).await {
                            Round::Found(body, permit) => {
                                return Outcome::Found(Relayed { entry, body, last: ledger.last, permit });
                            }
                            // It may be deleted, and its copies with it, or another of the same id.
                            Round::Denied if settled => return Outcome::Failed(Status::Unauthorized),
                            Round::Damaged if settled && !is_mine => return Outcome::Failed(Status::Io),
                            Round::Unasked if settled && is_mine => return Outcome::Failed(trail.word),
                            Round::Crowded(full) => crowd = Some(full),
                            Round::Denied | Round::Damaged | Round::Unasked | Round::Nothing => {}
                        },
                        // Nothing is told of an end that may be another ledger's.
                        None if !proven => "metadata gives no proof of the ledger's end".clone_into(&mut trail.why),
                        // That nothing new came denies nothing.
                        None if is_mine && matches!(wanted.want, Want::Read(_)) => return Outcome::Failed(trail.word),
                        None => return Outcome::Beyond(ledger.last),
                    }
                }
                Err(error) => trail.why = error.to_string(),
            }
            if wanted.once {
                return Outcome::Failed(trail.word);
            }
            if let Some(crowd) = crowd {
                turn.lay_down();
                pass = crowd.pass().await;
                turn.take_up(&self.turns).await;
                continue;
            }
            pass = None;
            let is_first = missed.is_none();
            missed.get_or_insert_with(Instant::now);
            if !is_first || !is_known {
                turn.lay_down();
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                turn.take_up(&self.turns).await;
            }
        }
    }

    /// Has the end of a ledger told wherever this bookie still answers for it.
    fn confirm(&self, ledger: LedgerId, last: Option<EntryId>) {
        if self.store.cached(ledger).is_some_and(|slot| slot.lock().last_confirmed >= last) {
            return;
        }
        // One at a time: where the index is slow or full they would pile up. The next read of the ledger tries again.
        let Ok(note) = self.notes.clone().try_acquire_owned() else { return };
        // Beside the read, which must not wait for a turn at the disk, and to its end, whoever ceases to wait.
        let store = self.store.clone();
        self.tasks.spawn("confirm end", async move {
            if let Err(error) = store.confirm_ends(&[(ledger, last)]).await {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(%ledger, error, "note the end of a ledger that moved away");
            }
            drop(note);
        });
    }

    /// Asks the members of an entry, one place after the other.
    async fn round(
        &self,
        ledger: &ClosedLedger,
        entry: EntryId,
        wanted: &Wanted,
        pass: &mut Option<Pass>,
        trail: &mut Trail,
    ) -> Round {
        let question = Question { ledger: wanted.ledger, entry, fence: wanted.fence };
        let (places, unasked) = self.peers.places(&ledger.holders(entry, &self.me)).await;
        if places.is_empty() {
            "no other member of it is registered".clone_into(&mut trail.why);
            return if unasked == 0 { Round::Unasked } else { Round::Nothing };
        }
        let (mut tally, mut crowded) = (Tally { unasked, asked: 0, damaged: 0 }, None);
        for (number, place) in places.iter().enumerate() {
            let now = Instant::now();
            let time = share(wanted.until.saturating_duration_since(now), places.len() - number);
            trail.why = format!("{} does not answer in time", place.address);
            match self.peers.ask(place, &question, now + time, pass).await {
                Ok(Answer::Body(body, permit)) => return Round::Found(body, permit),
                Ok(Answer::Stranger) => {
                    trail.why = format!("{} does not let this bookie in (settings connect.*)", place.address)
                }
                Ok(Answer::Word(status, hearsay)) => {
                    trail.why = format!("{} answers {status:?}", place.address);
                    match hearsay {
                        Hearsay::Denied => return Round::Denied,
                        Hearsay::Damaged => tally.damaged += 1,
                        Hearsay::Nothing => {}
                    }
                }
                Err(error) => {
                    trail.why = format!("{}: {error}", place.address);
                    if let NoAnswer::Crowded(crowd) = error {
                        tally.unasked += 1;
                        crowded.get_or_insert(crowd);
                        continue;
                    }
                }
            }
            tally.asked += 1;
        }
        match crowded {
            Some(crowd) => Round::Crowded(crowd),
            None if tally.is_damage() => Round::Damaged,
            None => Round::Nothing,
        }
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
