//! The handle of a ledger being written, and the task that owns its state.
//!
//! # Flow
//!
//! `append` takes bytes from the client's budget, then queues the payload; the owner task gives it to the machine, seals it
//! once and passes the same body to every member. The permit rides inside the body: it is given back when the last reference
//! has gone, that is when the entry is confirmed or failed *and* no connection still has it to send. A member that takes no
//! bytes therefore slows the writer down, at most until its deadline, and never grows the heap.
//!
//! # Order
//!
//! Ids are given in the order in which appends pass the gate, which is the order of the calls for a caller that awaits each.
//! Outcomes are told in id order.
//!
//! # End
//!
//! The first fatal cause is kept and is what later appends get. Dropping all handles leaves the ledger open; what is pending
//! is still followed to its end.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use common::budget::{ByteBudget, BytePermit};
use ledger::{BODY_HEADER_BYTES, Digester, EntryHeader, EntryId, LedgerId, LedgerMetadata, MasterKey};
use metadata::LedgerRecord;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::close::close_ledger;
use crate::error::{Error, ErrorKind};
use crate::geometry::{Geometry, IndexSet};
use crate::pool::{Channel, Lane};
use crate::request::{Ask, Reply, Request, Sink};
use crate::shared::Core;
use crate::writer::{WriterAction, WriterEnd, WriterEvent, WriterMachine};

/// What an entry costs in memory beside its payload: headers, queue places, the promise.
const ENTRY_OVERHEAD_BYTES: u64 = 256;
/// The longest digest.
const DIGEST_BYTES_MAX: usize = 20;
/// Events taken at a time.
const BATCH: usize = 512;

/// A ledger that this client writes. Cheap to clone; clones write the same ledger.
#[derive(Clone)]
pub struct LedgerWriter {
    shared: Arc<Shared>,
}

struct Shared {
    ledger: LedgerId,
    metadata: LedgerMetadata,
    budget: ByteBudget,
    payload_bytes_max: usize,
    commands: mpsc::UnboundedSender<Command>,
    gate: Arc<Mutex<Gate>>,
    /// In wire form, -1 for none.
    last_confirmed: Arc<AtomicI64>,
}

/// Where appends get their ids.
struct Gate {
    next: Option<EntryId>,
    end: Option<Error>,
}

enum Command {
    Append { payload: Bytes, permit: BytePermit, promise: oneshot::Sender<Result<EntryId, Error>> },
    Close { promise: oneshot::Sender<Result<LedgerMetadata, Error>> },
}

/// A queued append: resolves once the entry is confirmed, in id order, or has failed.
///
/// Dropping it changes nothing for the entry.
#[derive(Debug)]
#[must_use = "an append is confirmed only when this has resolved"]
pub struct Append {
    entry: EntryId,
    outcome: oneshot::Receiver<Result<EntryId, Error>>,
}

impl Append {
    /// The id that the entry has in the ledger if it is confirmed.
    pub fn entry(&self) -> EntryId {
        self.entry
    }
}

impl Future for Append {
    type Output = Result<EntryId, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let gone = |_| Err(Error::new(ErrorKind::Unknown, "append: the client stopped before the outcome was known"));
        Pin::new(&mut self.outcome).poll(context).map(|outcome| outcome.unwrap_or_else(gone))
    }
}

impl LedgerWriter {
    /// Starts the writer of a ledger that was just created as `record`.
    pub(crate) fn start(
        core: &Arc<Core>,
        ledger: LedgerId,
        record: LedgerRecord,
        digester: Digester,
        master_key: MasterKey,
    ) -> Result<Self, Error> {
        let geometry = Geometry::new(record.metadata.quorums())?;
        let (commands, command_queue) = mpsc::unbounded_channel();
        let (replies, reply_queue) = mpsc::unbounded_channel();
        let gate = Arc::new(Mutex::new(Gate { next: Some(EntryId::ZERO), end: None }));
        let last_confirmed = Arc::new(AtomicI64::new(-1));
        let members = &record.metadata.last_segment().ensemble;
        let owner = Owner {
            core: Arc::clone(core),
            ledger,
            channels: members.iter().map(|bookie| core.pool.channel(bookie, Lane::Normal)).collect(),
            problems: vec![String::new(); members.len()],
            record: record.clone(),
            digester,
            master_key,
            machine: WriterMachine::new(geometry),
            actions: Vec::new(),
            pending: VecDeque::new(),
            replies,
            gate: Arc::clone(&gate),
            last_confirmed: Arc::clone(&last_confirmed),
            end: None,
            closed: None,
            target: None,
        };
        let stop = core.tasks.token().clone();
        core.tasks.spawn("ledger-writer", owner.run(command_queue, reply_queue, stop));
        let head_bytes = proto::client::ADD_HEAD_BYTES + BODY_HEADER_BYTES + DIGEST_BYTES_MAX;
        let shared = Shared {
            ledger,
            metadata: record.metadata,
            budget: core.append_budget.clone(),
            payload_bytes_max: core.config.frame_bytes_max.as_usize().saturating_sub(head_bytes),
            commands,
            gate,
            last_confirmed,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The ledger's id.
    pub fn id(&self) -> LedgerId {
        self.shared.ledger
    }

    /// The metadata as the ledger was created.
    pub fn metadata(&self) -> &LedgerMetadata {
        &self.shared.metadata
    }

    /// The last entry confirmed so far; `None` before the first one.
    pub fn last_confirmed(&self) -> Option<EntryId> {
        EntryId::new(self.shared.last_confirmed.load(Ordering::Acquire))
    }

    /// Appends an entry: waits until the client's byte budget admits it, gives it the next id and queues it. The returned
    /// [`Append`] resolves when it is confirmed; many may be under way.
    ///
    /// Cancel-safe: an append that is dropped before it returns was not queued.
    ///
    /// # Errors
    /// `Unsupported` when the payload does not fit a frame; otherwise the cause that ended this writer. In both cases the
    /// entry was surely not written.
    pub async fn append(&self, payload: Bytes) -> Result<Append, Error> {
        let shared = &self.shared;
        if payload.len() > shared.payload_bytes_max {
            let message = format!(
                "append to ledger {}: the payload has {} bytes, {} fit a frame",
                shared.ledger,
                payload.len(),
                shared.payload_bytes_max
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if let Some(end) = &shared.lock_gate().end {
            return Err(end.clone());
        }
        let permit = shared.budget.acquire(payload.len() as u64 + ENTRY_OVERHEAD_BYTES).await;
        let (promise, outcome) = oneshot::channel();
        // Ids are given and queued under one lock, so that both have one order.
        let mut gate = shared.lock_gate();
        if let Some(end) = &gate.end {
            return Err(end.clone());
        }
        let full =
            || Error::new(ErrorKind::Unsupported, format!("append to ledger {}: no entry id is left", shared.ledger));
        let entry = gate.next.ok_or_else(full)?;
        let stopped =
            |_| Error::new(ErrorKind::Closed, format!("append to ledger {}: the client has stopped", shared.ledger));
        shared.commands.send(Command::Append { payload, permit, promise }).map_err(stopped)?;
        gate.next = entry.checked_add(1);
        Ok(Append { entry, outcome })
    }

    /// Closes the ledger at its last confirmed entry and returns the metadata of the closed ledger. Appends that are not
    /// confirmed by now fail: await them first to keep them. After a failure that says so ([`Error::may_have_happened`], or
    /// kind `Metadata`) closing may be tried again; after success it gives the same answer again.
    ///
    /// Not cancel-safe: a dropped call may still close the ledger.
    ///
    /// # Errors
    /// `Fenced` when another client recovers the ledger, `Closed` when another client closed it at another end, `NoSuchLedger`,
    /// `Metadata`, or `Unknown` when it could not be found out whether the ledger is closed.
    pub async fn close(&self) -> Result<LedgerMetadata, Error> {
        let ledger = self.shared.ledger;
        let (promise, outcome) = oneshot::channel();
        if self.shared.commands.send(Command::Close { promise }).is_err() {
            return Err(Error::new(ErrorKind::Closed, format!("close ledger {ledger}: the client has stopped")));
        }
        let gone = |_| {
            let message = format!("close ledger {ledger}: the client stopped before the outcome was known");
            Err(Error::new(ErrorKind::Unknown, message))
        };
        outcome.await.unwrap_or_else(gone)
    }
}

impl Shared {
    fn lock_gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body and the budget it is charged to; becomes the memory behind the `Bytes` that the connections share.
struct Charged {
    body: Bytes,
    _permit: BytePermit,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

struct PendingAppend {
    promise: oneshot::Sender<Result<EntryId, Error>>,
    /// Keeps the charge until the entry is confirmed or failed.
    _body: Option<Bytes>,
    payload_bytes: u64,
    sent: tokio::time::Instant,
}

/// The one task that owns a writer's state.
struct Owner {
    core: Arc<Core>,
    ledger: LedgerId,
    record: LedgerRecord,
    digester: Digester,
    master_key: MasterKey,
    channels: Vec<Channel>,
    /// The last problem of each member, for error messages.
    problems: Vec<String>,
    machine: WriterMachine,
    actions: Vec<WriterAction>,
    /// In id order, as the machine's own queue.
    pending: VecDeque<PendingAppend>,
    replies: mpsc::UnboundedSender<Reply>,
    gate: Arc<Mutex<Gate>>,
    last_confirmed: Arc<AtomicI64>,
    /// Why appends fail, once they do.
    end: Option<Error>,
    /// What closing came to, when that is final.
    closed: Option<Result<LedgerMetadata, Error>>,
    /// The end to close at, fixed by the first attempt.
    target: Option<(Option<EntryId>, u64)>,
}

impl Owner {
    async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut replies: mpsc::UnboundedReceiver<Reply>,
        stop: CancellationToken,
    ) {
        let mut command_batch = Vec::with_capacity(BATCH);
        let mut reply_batch = Vec::with_capacity(BATCH);
        let mut has_handles = true;
        while has_handles || !self.pending.is_empty() {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = replies.recv_many(&mut reply_batch, BATCH) => {
                    for reply in reply_batch.drain(..) {
                        self.on_reply(&reply);
                    }
                }
                count = commands.recv_many(&mut command_batch, BATCH), if has_handles => {
                    has_handles = count > 0;
                    let now = self.core.clock.now();
                    for command in command_batch.drain(..) {
                        match command {
                            Command::Append { payload, permit, promise } => self.on_append(&payload, permit, promise, now),
                            Command::Close { promise } => {
                                let outcome = tokio::select! {
                                    biased;
                                    () = stop.cancelled() => break,
                                    outcome = self.on_close() => outcome,
                                };
                                // A caller that has gone does not want the answer.
                                let _ = promise.send(outcome);
                            }
                        }
                    }
                }
            }
        }
        // Stopping: nothing is queued after this, and every promise left is answered when it is dropped.
        let stopped =
            Error::new(ErrorKind::Closed, format!("append to ledger {}: the client has stopped", self.ledger));
        self.lock_gate().end.get_or_insert(stopped);
    }

    fn on_append(
        &mut self,
        payload: &Bytes,
        permit: BytePermit,
        promise: oneshot::Sender<Result<EntryId, Error>>,
        now: tokio::time::Instant,
    ) {
        if let Some(end) = &self.end {
            // It passed the gate just before the end was known there; it was not sent.
            let _ = promise.send(Err(end.clone()));
            return;
        }
        let payload_bytes = payload.len() as u64;
        self.pending.push_back(PendingAppend { promise, _body: None, payload_bytes, sent: now });
        let mut actions = std::mem::take(&mut self.actions);
        self.machine.on(WriterEvent::Append { payload_bytes }, &mut actions);
        if let [WriterAction::Send { entry, last_confirmed, length, to }] = actions[..] {
            actions.clear();
            let header = EntryHeader { ledger: self.ledger, entry, last_confirmed, length };
            let body = self.digester.seal(&header, payload);
            let body = Bytes::from_owner(Charged { body, _permit: permit });
            for index in to.iter() {
                let ask = Ask::Add {
                    ledger: self.ledger,
                    entry,
                    master_key: self.master_key,
                    body: body.clone(),
                    recovery: false,
                };
                let sink = Sink::add(&self.replies, index, entry);
                self.channels[index].send(Request {
                    ask,
                    deadline: now + self.core.config.add_timeout.duration(),
                    sink,
                });
            }
            if let Some(last) = self.pending.back_mut() {
                last._body = Some(body);
            }
        }
        self.actions = actions;
        self.act();
    }

    fn on_reply(&mut self, reply: &Reply) {
        let proto::ReadTarget::Entry(entry) = reply.target else { return };
        let problem = reply.answer.describe();
        if !problem.is_empty() {
            if self.problems[reply.index].is_empty() {
                let bookie = &self.record.metadata.last_segment().ensemble[reply.index];
                self.core.metrics.member_failed();
                tracing::warn!(ledger_id = %self.ledger, %bookie, entry_id = %entry, %problem, "member failed");
            }
            self.problems[reply.index] = problem;
        }
        let answer = reply.answer.to_add_answer();
        self.machine.on(WriterEvent::Answered { index: reply.index, entry, answer }, &mut self.actions);
        self.act();
    }

    /// Does what the machine has decided; `Send` is done where the payload is.
    fn act(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        let mut now = None;
        for action in actions.drain(..) {
            match action {
                WriterAction::Confirm { entry } => {
                    self.last_confirmed.store(entry.as_i64(), Ordering::Release);
                    if let Some(pending) = self.pending.pop_front() {
                        let now = *now.get_or_insert_with(|| self.core.clock.now());
                        self.core.metrics.confirmed(pending.payload_bytes, now - pending.sent);
                        let _ = pending.promise.send(Ok(entry));
                    }
                }
                WriterAction::Fail { may_be_stored, .. } => {
                    self.core.metrics.append_failed(may_be_stored);
                    let error = self.append_error(may_be_stored);
                    if let Some(pending) = self.pending.pop_front() {
                        let _ = pending.promise.send(Err(error));
                    }
                }
                WriterAction::End(end) => self.on_end(end),
                WriterAction::WriteClosed { last_entry, length } => self.target = Some((last_entry, length)),
                WriterAction::Send { .. } => {}
            }
        }
        self.actions = actions;
    }

    fn on_end(&mut self, end: WriterEnd) {
        let ledger = self.ledger;
        let error = match end {
            WriterEnd::Fenced => {
                let message = format!("append to ledger {ledger}: it is fenced, another client recovers it");
                Error::new(ErrorKind::Fenced, message)
            }
            WriterEnd::Unauthorized => {
                Error::new(ErrorKind::Unauthorized, format!("append to ledger {ledger}: the master key was refused"))
            }
            WriterEnd::QuorumUnreachable { entry, acked } => {
                let needed = self.record.metadata.quorums().ack();
                let failed = self.describe(self.machine.failed());
                let message = format!(
                    "append to ledger {ledger}: entry {entry} has {acked} of {needed} acknowledgements and no more can come ({failed})"
                );
                Error::new(ErrorKind::QuorumUnreachable, message)
            }
            WriterEnd::Full => {
                Error::new(ErrorKind::Unsupported, format!("append to ledger {ledger}: it cannot grow any further"))
            }
            WriterEnd::Closing => Error::new(ErrorKind::Closed, format!("append to ledger {ledger}: it is closed")),
        };
        if end != WriterEnd::Closing {
            self.core.metrics.writer_ended(&error);
            tracing::warn!(ledger_id = %ledger, last_confirmed = ?self.machine.last_confirmed(), "writer ended: {error}");
        }
        self.lock_gate().end.get_or_insert(error.clone());
        self.end.get_or_insert(error);
    }

    /// What a pending append is told.
    fn append_error(&self, may_be_stored: bool) -> Error {
        let Some(end) = self.end.clone() else {
            return Error::new(
                ErrorKind::Unknown,
                format!("append to ledger {}: its outcome is not known", self.ledger),
            );
        };
        match end.kind() {
            _ if !may_be_stored => end,
            ErrorKind::Fenced | ErrorKind::Unauthorized => end.indeterminate(),
            _ => {
                let message = format!("append to ledger {}: the entry may be stored", self.ledger);
                Error::because(ErrorKind::Unknown, message, &end)
            }
        }
    }

    fn describe(&self, members: IndexSet) -> String {
        let ensemble = &self.record.metadata.last_segment().ensemble;
        let one = |index: usize| format!("{}: {}", ensemble[index], self.problems[index]);
        members.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    async fn on_close(&mut self) -> Result<LedgerMetadata, Error> {
        if let Some(closed) = &self.closed {
            return closed.clone();
        }
        self.machine.on(WriterEvent::Close, &mut self.actions);
        self.act();
        let Some((last_entry, length)) = self.target else {
            // The end belongs to somebody else.
            let end = self.end.as_ref();
            let kind = end.map_or(ErrorKind::Unknown, Error::kind);
            let message = format!("close ledger {}: this writer has lost it", self.ledger);
            return Err(end.map_or_else(|| Error::new(kind, &message), |end| Error::because(kind, &message, end)));
        };
        let outcome = close_ledger(&self.core, self.ledger, &self.record, last_entry, length).await;
        self.machine.on(WriterEvent::CloseOver { closed: outcome.is_ok() }, &mut self.actions);
        self.act();
        let is_final = match &outcome {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Metadata | ErrorKind::Timeout),
        };
        if is_final {
            self.closed = Some(outcome.clone());
        }
        outcome
    }

    fn lock_gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
