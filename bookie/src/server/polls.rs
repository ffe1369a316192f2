//! Long polls: reads that wait for a higher last-add-confirmed.
//!
//! # Bounds
//! Waiting polls hold a place of a bounded number, of which one connection gets no more than a quarter once half of them are taken, and their
//! ledger's slot, no bytes of any budget. Without a place a poll is answered at once from the present state, which is always a true answer. They
//! end with their connection.

use std::time::Duration;

use common::metrics::Held;
use ledger::{EntryId, LedgerId};
use proto::{PollTarget, ReadTarget, Reply, ReplyTo, Status};
use std::sync::Arc;
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::reads::{ReadJob, Reads};
use super::relays::RelayJob;
use crate::ledger_state::Absence;
use crate::store::{LedgerSlot, Located};
use crate::wakeups::Wakeups;

/// Longest wait, whatever the caller asks for: it is told the state of that moment and may ask again.
const PATIENCE_MAX: Duration = Duration::from_secs(600);

/// A read that may wait.
pub(super) struct PollJob {
    pub(super) to: ReplyTo,
    pub(super) ledger: LedgerId,
    pub(super) target: PollTarget,
    pub(super) previous: Option<EntryId>,
    pub(super) patience: Option<Duration>,
    pub(super) received: Instant,
}

impl Reads {
    /// Waits as long as the poll asks for, then answers.
    pub(super) async fn serve_poll(&self, job: PollJob, slot: Arc<LedgerSlot>) {
        let confirmed_ms = match job.patience {
            Some(patience) => self.wait(&slot, job.previous, patience.min(PATIENCE_MAX)).await,
            None => None,
        };
        // Many wait for the same news: what they are answered is read a few at a time, as fast as the peer takes it, or they would
        // fill the budget that the reads of others wait for.
        // The wait is not the read's.
        let received = if job.patience.is_some() { self.server.store.clock.now() } else { job.received };
        let patience = job.patience.map(|patience| patience.min(PATIENCE_MAX).saturating_sub(received - job.received));
        let (job, until) = (PollJob { received, patience, ..job }, self.server.until(received));
        let turn = async {
            let turn = self.batch_turn().await.ok_or(Status::Io)?;
            let is_taken = self.outbox.wait_for_room_to_answer().await;
            is_taken.then_some(turn).ok_or(Status::Io)
        };
        let _turn = match self.server.by(until, turn).await {
            Ok(turn) => turn,
            Err(status) => return self.put(&job.to, &Reply::Failed(status), None, &mut Wakeups::default()),
        };
        match job.target {
            PollTarget::Read(target) => {
                let mut read = ReadJob::read(job.to, job.ledger, target, received).with_slot(slot.clone());
                match self.server.by(until, self.read_one(&mut read)).await {
                    Err(status) if self.is_for_relay(&job.to, &slot, status) => self.hand_over(RelayJob::Poll(job)),
                    answer => self.answer_one(&read, answer),
                }
            }
            PollTarget::Next => self.answer_next(job, &slot, confirmed_ms).await,
        }
    }

    /// Waits for news of the ledger, the end of `patience`, or that of the connection. When a higher last-add-confirmed came, in
    /// milliseconds since 1970; `None` for every other end, and when it was there before.
    async fn wait(&self, slot: &LedgerSlot, previous: Option<EntryId>, patience: Duration) -> Option<u64> {
        let knows_fence = {
            let state = slot.lock();
            // A fence that was there before stops the writer, not the one who recovers: waiting goes on, or readers would ask
            // without a pause.
            let knows_fence = state.is_fenced_for_good();
            if state.has_news(previous, knows_fence) {
                return None;
            }
            knows_fence
        };
        let _place = self.waiting_place()?;
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            () = slot.wait_until(|state| state.has_news(previous, knows_fence)) => {}
            // An error means that the connection is gone.
            _ = ended.wait_for(|ended| *ended) => {}
            () = tokio::time::sleep(patience) => {}
        }
        (slot.lock().last_confirmed > previous).then(|| self.server.store.clock.wall_ms())
    }

    /// Waits as long as a poll has time that no news can come for: it is told nothing new, and would ask again at once.
    pub(super) async fn wait_in_vain(&self, job: &PollJob) {
        let Some(patience) = job.patience else { return };
        let Some(_place) = self.waiting_place() else { return };
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            // An error means that the connection is gone.
            _ = ended.wait_for(|ended| *ended) => {}
            () = tokio::time::sleep_until(job.received + patience.min(PATIENCE_MAX)) => {}
        }
    }

    /// A place among the polls that wait; `None`: there are too many.
    fn waiting_place(&self) -> Option<(SemaphorePermit<'_>, Option<SemaphorePermit<'_>>, Held)> {
        // The semaphores are never closed.
        let place = self.server.polls.try_acquire().ok()?;
        let own = self.polls.try_acquire().ok();
        // Whoever has many may have more while there are enough for all.
        if own.is_none() && self.server.polls.available_permits() < self.server.store.config.long_polls_max / 2 {
            return None;
        }
        Some((place, own, self.server.store.metrics.long_polls.hold()))
    }

    async fn answer_next(&self, job: PollJob, slot: &LedgerSlot, confirmed_ms: Option<u64>) {
        let (metrics, clock) = (&self.server.store.metrics, &self.server.store.clock);
        let known = self.server.store.is_whole(slot).map(|()| slot.lock().last_confirmed);
        let answered = match known.map_err(Absence::status) {
            Err(status) => Err(status),
            Ok(max_lac) if max_lac > job.previous => {
                let until = self.server.until(job.received);
                self.server.by(until, self.next_entry(&job, slot, max_lac, confirmed_ms)).await
            }
            Ok(max_lac) => Ok((Reply::Next { max_lac, entry: None, confirmed_ms: None }, None)),
        };
        let (reply, permit) = match answered {
            Err(status) if self.is_for_relay(&job.to, slot, status) => return self.hand_over(RelayJob::Poll(job)),
            Err(status) => {
                metrics.read_not_found(status, clock.now() - job.received);
                (Reply::Failed(status), None)
            }
            Ok(answer) => answer,
        };
        self.put(&job.to, &reply, permit, &mut Wakeups::default());
    }

    /// The answer with the entry behind the one the caller knows; striping may have put it elsewhere.
    async fn next_entry(
        &self,
        job: &PollJob,
        slot: &LedgerSlot,
        max_lac: Option<EntryId>,
        confirmed_ms: Option<u64>,
    ) -> Result<(Reply, Option<common::budget::BytePermit>), Status> {
        let next = job.previous.map_or(EntryId::ZERO, EntryId::next);
        let found = match self.server.store.locate(slot, ReadTarget::Entry(next)).await {
            Ok(Located::Here(found)) => {
                let permit = self.server.reads.acquire(found.body.len() as u64).await;
                Some((found, permit))
            }
            Ok(Located::There(spot)) => {
                let permit = self.server.reads.acquire(spot.bytes()).await;
                Some(self.fetch_one(spot, permit).await?)
            }
            Err(Status::NoEntry) => None,
            Err(status) => return Err(status),
        };
        let (entry, permit) = match found {
            Some((found, permit)) => (Some((found.entry, found.body)), Some(permit)),
            None => (None, None),
        };
        Ok((Reply::Next { max_lac, entry, confirmed_ms }, permit))
    }
}
