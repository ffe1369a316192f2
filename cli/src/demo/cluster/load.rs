//! Writers and readers: what goes on while processes die.
//!
//! A writer sends batches and waits for each to be acknowledged. When that fails it closes its ledger through the other gateway,
//! which recovers it, and sends the rest of the batch to a new ledger. Readers read what was acknowledged so far, from wherever it
//! is. Both take refusals and broken connections as what they are while something is down, and nothing else: a wrong byte, a missing
//! entry or an answer that does not come is a violation, and ends the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use common::rng::Rng;
use common::shutdown::TaskTree;
use proto::v1::append_request::Message;
use proto::v1::{
    AppendEntries, AppendOpen, AppendRequest, AppendResponse, CloseLedgerRequest, CreateLedgerRequest, Tier,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::acks::{Ack, AckLog};
use super::chaos::Phase;
use crate::Fault;
use crate::remote::{Remote, refused};
use crate::replay::{Range, Replay};

/// Entries of a batch.
const BATCH: u64 = 32;
/// How often a writer sends one, when the last is acknowledged.
const PACE: Duration = Duration::from_millis(50);
/// Batches of a ledger.
const LEDGER_BATCHES: u32 = 40;
/// How long anything may take before it counts as lost for good: longer than any process is down.
pub(super) const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(200);

/// Where the gateways are now.
pub(super) type Endpoints = Vec<watch::Receiver<String>>;

/// What went on.
#[derive(Default)]
pub(super) struct Tallies {
    /// Writes that were refused or lost their connection, and were done again.
    pub(super) write_retries: AtomicU64,
    /// The same for reads.
    pub(super) read_retries: AtomicU64,
    /// Ledgers closed by another gateway than the one that wrote them, or after their writer failed.
    pub(super) recovered: AtomicU64,
    /// Entries that readers compared meanwhile.
    pub(super) read_hot: AtomicU64,
    pub(super) read_cold: AtomicU64,
    waits: Mutex<Waits>,
}

/// How long batches waited for their acknowledgement, by what was killed.
struct Waits {
    /// What was killed last and when, and what before that.
    now: Phase,
    since: Instant,
    before: Phase,
    longest: [Duration; Phase::ALL.len()],
}

impl Default for Waits {
    fn default() -> Self {
        let longest = [Duration::ZERO; Phase::ALL.len()];
        Self { now: Phase::Calm, since: Instant::now(), before: Phase::Calm, longest }
    }
}

impl Waits {
    fn enter(&mut self, phase: Phase, at: Instant) {
        (self.before, self.now, self.since) = (self.now, phase, at);
    }

    /// A wait over a kill is put down to that kill, unless most of it was before.
    fn note(&mut self, begun: Instant, ended: Instant) {
        let mostly_before = self.since.saturating_duration_since(begun) > ended.saturating_duration_since(self.since);
        let phase = if mostly_before { self.before } else { self.now };
        let longest = &mut self.longest[phase as usize];
        *longest = (*longest).max(ended.saturating_duration_since(begun));
    }
}

impl Tallies {
    /// A process is about to be killed.
    pub(super) fn enter(&self, phase: Phase) {
        self.waits().enter(phase, Instant::now());
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The longest that a batch waited for its acknowledgement, by what was killed.
    pub(super) fn longest(&self) -> [Duration; Phase::ALL.len()] {
        self.waits().longest
    }

    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// What writers and readers share.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) endpoints: Endpoints,
    pub(super) acks: Arc<AckLog>,
    pub(super) tallies: Arc<Tallies>,
    pub(super) rng: Rng,
    /// Asks writers and readers to come to their end.
    pub(super) stop: TaskTree,
}

/// A batch on its way.
struct Batch {
    begun: Instant,
    payloads: Vec<Bytes>,
}

/// What a ledger could not be written for.
struct Trouble {
    ledger: Option<u64>,
    cause: String,
}

impl Load {
    async fn connect(&self, side: usize) -> Result<Remote, String> {
        let endpoint = self.endpoints[side % self.endpoints.len()].borrow().clone();
        match timeout(Duration::from_secs(5), Remote::connect(&endpoint)).await {
            Ok(connected) => connected.map_err(|fault| fault.to_string()),
            Err(_) => Err(format!("connect to {endpoint}: no answer in time")),
        }
    }

    fn payload(&self) -> Bytes {
        // Mostly lines as of a log, now and then something large.
        let bytes = if self.rng.below(500) == 0 { 65_536 + self.rng.below(200_000) } else { 40 + self.rng.below(700) };
        let mut payload = Vec::with_capacity(bytes as usize);
        while (payload.len() as u64) < bytes {
            payload.extend_from_slice(&self.rng.next_u64().to_be_bytes());
            payload.extend_from_slice(b" some words that compress ");
        }
        payload.truncate(bytes as usize);
        Bytes::from(payload)
    }

    /// Writes ledger after ledger until asked to stop; all of them are closed then.
    pub(super) async fn write(self, number: usize) -> Result<(), Fault> {
        let mut side = number;
        let mut batch = None;
        while !self.stop.is_stopping() {
            let Err(trouble) = self.write_ledger(side, &mut batch).await? else { continue };
            tracing::info!(
                writer = number,
                ledger = trouble.ledger,
                cause = trouble.cause,
                "a writer goes on elsewhere"
            );
            Tallies::add(&self.tallies.write_retries, 1);
            if let Some(batch) = &batch
                && batch.begun.elapsed() > ANSWER_DEADLINE
            {
                return Err(Fault::failed(format!(
                    "a write was not acknowledged within {ANSWER_DEADLINE:?}: {}",
                    trouble.cause
                )));
            }
            side += 1;
            if let Some(ledger) = trouble.ledger {
                self.recover(side, ledger).await?;
            }
            sleep(RETRY).await;
        }
        Ok(())
    }

    /// Writes one ledger to its end. A violation is the outer error.
    async fn write_ledger(&self, side: usize, batch: &mut Option<Batch>) -> Result<Result<(), Trouble>, Fault> {
        let none = |cause| Ok(Err(Trouble { ledger: None, cause }));
        if batch.is_none() {
            *batch = Some(self.next_batch());
        }
        let remote = match self.connect(side).await {
            Ok(remote) => remote,
            Err(cause) => return none(cause),
        };
        let created = timeout(ANSWER_DEADLINE, remote.ledgers().create_ledger(CreateLedgerRequest::default())).await;
        let ledger = match created {
            Ok(Ok(created)) => created.into_inner().ledger_id,
            Ok(Err(status)) => return none(describe(&status)),
            Err(_) => {
                return Err(Fault::failed(format!("a ledger's creation had no answer within {ANSWER_DEADLINE:?}")));
            }
        };
        self.acks.begin(ledger);
        let outcome = self.append(&remote, ledger, batch).await?;
        Ok(outcome.map_err(|cause| Trouble { ledger: Some(ledger), cause }))
    }

    async fn append(
        &self,
        remote: &Remote,
        ledger: u64,
        batch: &mut Option<Batch>,
    ) -> Result<Result<(), String>, Fault> {
        let (messages, requests) = mpsc::channel(4);
        let open = AppendOpen { ledger_id: ledger, password: Bytes::new() };
        let gone = || Ok(Err("the stream ended".to_owned()));
        if messages.send(AppendRequest { message: Some(Message::Open(open)) }).await.is_err() {
            return gone();
        }
        let mut answers = match timeout(ANSWER_DEADLINE, remote.ledgers().append(ReceiverStream::new(requests))).await {
            Ok(Ok(answers)) => answers.into_inner(),
            Ok(Err(status)) => return Ok(Err(describe(&status))),
            Err(_) => return Ok(Err("no answer in time".to_owned())),
        };
        let mut next = 0;
        for _ in 0..LEDGER_BATCHES {
            let Batch { begun, payloads } = batch.take().unwrap_or_else(|| self.next_batch());
            let entries = AppendEntries { payloads: payloads.clone() };
            if messages.send(AppendRequest { message: Some(Message::Entries(entries)) }).await.is_err() {
                *batch = Some(Batch { begun, payloads });
                return gone();
            }
            let mut rest = payloads;
            while !rest.is_empty() {
                let acknowledged = match next_ack(&mut answers, next, rest.len() as u64).await {
                    Ok(acknowledged) => acknowledged,
                    Err(Some(violation)) => return Err(Fault::failed(format!("ledger {ledger}: {violation}"))),
                    Err(None) => {
                        *batch = Some(Batch { begun, payloads: rest });
                        return Ok(Err("the stream broke before its acknowledgement".to_owned()));
                    }
                };
                let acks: Vec<Ack> = rest.drain(..acknowledged).map(|payload| Ack::of(&payload)).collect();
                self.acks.acknowledge(ledger, &acks)?;
                next += acknowledged as u64;
            }
            self.tallies.waits().note(begun, Instant::now());
            if self.stop.is_stopping() {
                break;
            }
            sleep(PACE).await;
        }
        if !self.stop.is_stopping() {
            // What comes next waits for the ledger to be closed and another created: that is part of its wait.
            *batch = Some(self.next_batch());
        }
        drop(messages);
        let request = CloseLedgerRequest { ledger_id: ledger, password: Bytes::new() };
        match timeout(ANSWER_DEADLINE, remote.ledgers().close_ledger(request)).await {
            Ok(Ok(closed)) => {
                let entries = closed.into_inner().last_entry_id.map_or(0, |last| last + 1);
                if entries != next {
                    return Err(Fault::failed(format!(
                        "ledger {ledger} was closed with {entries} entries, {next} were written and acknowledged"
                    )));
                }
                self.acks.close(ledger, entries);
                Ok(Ok(()))
            }
            Ok(Err(status)) => Ok(Err(describe(&status))),
            Err(_) => Ok(Err("closing had no answer in time".to_owned())),
        }
    }

    fn next_batch(&self) -> Batch {
        Batch { begun: Instant::now(), payloads: (0..BATCH).map(|_| self.payload()).collect() }
    }

    /// Closes a ledger whose writer is lost, through whichever gateway serves; what was acknowledged must be in it.
    async fn recover(&self, mut side: usize, ledger: u64) -> Result<(), Fault> {
        let begun = Instant::now();
        let mut cause = String::new();
        while begun.elapsed() < ANSWER_DEADLINE {
            let request = CloseLedgerRequest { ledger_id: ledger, password: Bytes::new() };
            match self.connect(side).await {
                Ok(remote) => match timeout(ANSWER_DEADLINE, remote.ledgers().close_ledger(request)).await {
                    Ok(Ok(closed)) => {
                        let entries = closed.into_inner().last_entry_id.map_or(0, |last| last + 1);
                        let known = self.acks.known().into_iter().find(|known| known.ledger == ledger);
                        let acknowledged = known.map_or(0, |known| known.acknowledged);
                        if entries < acknowledged {
                            return Err(Fault::failed(format!(
                                "ledger {ledger} was recovered with {entries} entries, but {acknowledged} had been acknowledged"
                            )));
                        }
                        self.acks.close(ledger, entries);
                        Tallies::add(&self.tallies.recovered, 1);
                        return Ok(());
                    }
                    Ok(Err(status)) if is_violation(status.code()) => {
                        return Err(refused(format_args!("recover ledger {ledger}"), &status));
                    }
                    Ok(Err(status)) => cause = describe(&status),
                    Err(_) => cause = "no answer in time".to_owned(),
                },
                Err(why) => cause = why,
            }
            side += 1;
            sleep(RETRY).await;
        }
        Err(Fault::failed(format!("ledger {ledger} could not be recovered within {ANSWER_DEADLINE:?}: {cause}")))
    }

    /// Reads what was acknowledged so far, ledger by ledger at random, until asked to stop.
    pub(super) async fn read(self) -> Result<(), Fault> {
        while !self.stop.is_stopping() {
            let known: Vec<_> = self.acks.known().into_iter().filter(|known| known.acknowledged > 0).collect();
            let Some(known) = (!known.is_empty()).then(|| known[self.rng.below(known.len() as u64) as usize]) else {
                sleep(RETRY).await;
                continue;
            };
            let side = self.rng.below(self.endpoints.len() as u64) as usize;
            // Of an open ledger another gateway knows less than its writer: what it gives must be right all the same.
            let (from, to) = match known.closed_at {
                None => (0, None),
                Some(_) => {
                    let from = self.rng.below(known.acknowledged);
                    (from, Some(from + 1 + self.rng.below((known.acknowledged - from).min(200))))
                }
            };
            self.read_range(side, known.ledger, from, to).await?;
            sleep(PACE).await;
        }
        Ok(())
    }

    /// Reads a range through one gateway until it comes, whatever is down meanwhile: another one in its place would excuse its
    /// loss.
    async fn read_range(&self, side: usize, ledger: u64, from: u64, to: Option<u64>) -> Result<(), Fault> {
        let begun = Instant::now();
        while !self.stop.is_stopping() {
            let read = async {
                let remote = self.connect(side).await.map_err(ReadFault::Refused)?;
                read_back(&remote, &self.acks, ledger, from, to).await
            };
            let cause = match timeout(ANSWER_DEADLINE, read).await {
                Ok(Ok(read)) => {
                    Tallies::add(&self.tallies.read_hot, read.hot);
                    Tallies::add(&self.tallies.read_cold, read.cold);
                    return Ok(());
                }
                Ok(Err(ReadFault::Violation(violation))) => return Err(Fault::failed(violation)),
                Ok(Err(ReadFault::Refused(cause))) => cause,
                Err(_) => {
                    return Err(Fault::failed(format!(
                        "a read of ledger {ledger} had no answer within {ANSWER_DEADLINE:?}"
                    )));
                }
            };
            if begun.elapsed() > ANSWER_DEADLINE {
                return Err(Fault::failed(format!(
                    "ledger {ledger} could not be read from entry {from} within {ANSWER_DEADLINE:?}: {cause}"
                )));
            }
            tracing::info!(ledger, cause, "a read is tried again");
            Tallies::add(&self.tallies.read_retries, 1);
            sleep(RETRY).await;
        }
        Ok(())
    }
}

/// How many of the `most` entries that wait are acknowledged next, from `expected` on. `Err(None)`: the stream ended.
async fn next_ack(answers: &mut Streaming<AppendResponse>, expected: u64, most: u64) -> Result<usize, Option<String>> {
    match timeout(ANSWER_DEADLINE, answers.message()).await {
        Ok(Ok(Some(run))) if run.first_entry_id == expected && (1..=most).contains(&run.count) => {
            Ok(usize::try_from(run.count).unwrap_or_default())
        }
        Ok(Ok(Some(run))) => Err(Some(format!(
            "entries {} and {} more were acknowledged, expected {expected} and at most {most}",
            run.first_entry_id, run.count
        ))),
        Ok(Ok(None) | Err(_)) | Err(_) => Err(None),
    }
}

/// Entries compared, by tier.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Compared {
    pub(super) hot: u64,
    pub(super) cold: u64,
}

/// Why a read gave not what it should.
#[derive(Debug)]
pub(super) enum ReadFault {
    /// What must never be.
    Violation(String),
    /// Not now.
    Refused(String),
}

/// Reads entries `from..to` of a ledger, without `to` what is confirmed, and compares them with what was acknowledged.
pub(super) async fn read_back(
    remote: &Remote,
    acks: &AckLog,
    ledger: u64,
    from: u64,
    to: Option<u64>,
) -> Result<Compared, ReadFault> {
    let failed = |status: Status| {
        let text = format!("read ledger {ledger}: {}", describe(&status));
        if is_violation(status.code()) { ReadFault::Violation(text) } else { ReadFault::Refused(text) }
    };
    let range = Range { ledger, from, to, tier: Tier::Unspecified };
    let mut replay = Replay::start(remote, range).await.map_err(failed)?;
    let (mut next, mut compared) = (from, Compared::default());
    while let Some(entries) = replay.next().await.map_err(failed)? {
        for entry in entries {
            if entry.entry_id != next {
                let text = format!("ledger {ledger}: entry {} came where entry {next} must", entry.entry_id);
                return Err(ReadFault::Violation(text));
            }
            acks.compare(ledger, next, &entry.payload).map_err(ReadFault::Violation)?;
            match entry.tier() {
                Tier::Cold => compared.cold += 1,
                _ => compared.hot += 1,
            }
            next += 1;
        }
    }
    match to {
        Some(to) if next != to => {
            Err(ReadFault::Violation(format!("ledger {ledger}: the read of {from} to {to} ended before entry {next}")))
        }
        _ => Ok(compared),
    }
}

/// Whether a refusal is one that no outage excuses.
fn is_violation(code: Code) -> bool {
    matches!(code, Code::DataLoss | Code::NotFound | Code::OutOfRange | Code::InvalidArgument | Code::PermissionDenied)
}

fn describe(status: &Status) -> String {
    format!("{} ({:?})", status.message(), status.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_put_down_to_the_kill_that_it_mostly_followed() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut waits = Waits::default();
        waits.enter(Phase::Etcd, at(10));
        waits.note(at(9), at(12));
        waits.enter(Phase::Bookie, at(14));
        waits.note(at(10), at(15));
        waits.note(at(14), at(16));
        let longest = |phase| waits.longest[phase as usize].as_secs();
        assert_eq!((longest(Phase::Calm), longest(Phase::Etcd), longest(Phase::Bookie)), (0, 5, 2));
    }
}
