//! Copies of entries that other members of a ledger hold, for this bookie's own repair.

use std::time::Duration;

use bytes::Bytes;
use common::budget::BytePermit;
use ledger::{BookieId, EntryId, LedgerId};
use metadata::Bookies;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::RelayParts;
use super::decide::{ClosedLedger, share};
use super::link::{Answer, Question};
use super::peers::{Peers, PeersParts};

/// Memory for copies on their way, one longer entry excepted.
const BYTES_MAX: u64 = 8 << 20;

/// Asks the members of a ledger for copies.
pub(crate) struct Copies {
    me: BookieId,
    peers: Peers,
    patience: Duration,
}

impl Copies {
    pub(crate) fn new(parts: &RelayParts) -> Self {
        let config = &parts.store.config;
        let bytes_max = BYTES_MAX.max(2 * config.frame_bytes_max.bytes());
        let peers = Peers::new(PeersParts {
            bookies: Bookies::new(parts.metadata.clone()),
            connector: parts.connector.clone(),
            budget: parts.budget.child("bookie-repair", bytes_max),
            tasks: parts.tasks.clone(),
            own_address: parts.address.clone(),
            frame_bytes_max: config.frame_bytes_max.as_usize(),
            deadline: config.relay_deadline.duration(),
            // Whoever repairs bounds what is asked.
            place_part: Semaphore::MAX_PERMITS,
            connections: parts.store.metrics.relay_connections.clone(),
        });
        Self { me: parts.me.clone(), peers, patience: config.relay_deadline.duration() }
    }

    /// The first copy that is `sound`, from any other member that holds the entry. Cancel-safe.
    ///
    /// # Errors
    /// Why there is none: a sentence about the last member asked.
    pub(crate) async fn get(
        &self,
        (id, ledger): (LedgerId, &ClosedLedger),
        entry: EntryId,
        sound: impl Fn(&Bytes) -> Result<(), String>,
    ) -> Result<(Bytes, BytePermit), String> {
        let until = Instant::now() + self.patience;
        let question = Question { ledger: id, entry, fence: None };
        let members = ledger.holders(entry, &self.me);
        let found = tokio::time::timeout_at(until, self.peers.places(&members)).await;
        let (places, _) = found.map_err(|_| "metadata does not say in time where its members are".to_owned())?;
        let mut why = "no other member of it is registered".to_owned();
        for (number, place) in places.iter().enumerate() {
            let now = Instant::now();
            let time = share(until.saturating_duration_since(now), places.len() - number);
            why = match self.peers.ask(place, &question, now + time, &mut None).await {
                Ok(Answer::Body(body, permit)) => match sound(&body) {
                    Ok(()) => return Ok((body, permit)),
                    Err(what) => format!("{}: {what}", place.address),
                },
                Ok(Answer::Word(status, _)) => format!("{} answers {status:?}", place.address),
                Ok(Answer::Stranger) => format!("{} does not let this bookie in (settings connect.*)", place.address),
                Err(error) => format!("{}: {error}", place.address),
            };
        }
        Err(why)
    }
}
