//! One open connection: requests go out in batches, answers are matched to them.
//!
//! Version 2 answers are matched by (operation, ledger, entry), identical requests in the order they were sent. A request
//! whose deadline has passed is answered to its owner and stays in its place as a stub: its late answer must not be taken for
//! that of a later request with the same key. A bookie that leaves a stub unanswered for too long, or that reads nothing, is
//! sick, and the connection is closed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use common::net::BoxStream;
use ledger::BookieId;
use proto::client::{AddFlags, Operation, ResponseV2, decode_response_v2, encode_read_v2};
use proto::{FrameDecoder, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::outgoing::Outgoing;
use crate::request::{Answer, Ask, Loss, Request, Sink};

/// Bytes encoded ahead of the socket. What waits beyond that keeps its own body, and the permit that rides with it.
const OUTGOING_BYTES_MAX: usize = 256 * 1024;
/// Space to read into at a time.
const READ_BYTES: usize = 64 * 1024;
/// Requests taken from the queue at a time.
const BATCH: usize = 256;
/// How long a bookie may leave an expired request unanswered, or take no bytes, before the connection is given up.
const SICK_AFTER: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    operation: Operation,
    ledger: i64,
    entry: i64,
}

struct Pending {
    deadline: Instant,
    /// `None`: the owner was told that the deadline passed.
    sink: Option<Sink>,
}

/// The requests of one key; nearly always just one.
struct Line {
    first: Pending,
    more: VecDeque<Pending>,
}

pub(crate) struct Session<'a> {
    bookie: &'a BookieId,
    decoder: FrameDecoder,
    check_interval: Duration,
    /// Not encoded yet.
    waiting: VecDeque<Request>,
    outgoing: Outgoing,
    needs_flush: bool,
    /// When bytes were last taken by the socket, or began to wait for it.
    last_progress: Instant,
    incoming: BytesMut,
    pending: BTreeMap<Key, Line>,
    was_answered: bool,
}

/// How a session ended.
pub(crate) struct End {
    /// Why the connection is no more. `None`: nobody can send requests any more, and all are answered.
    pub(crate) loss: Option<Loss>,
    /// Whether the bookie answered anything.
    pub(crate) was_answered: bool,
}

/// Writes what the socket takes, or flushes when everything is written; how many bytes were written. Cancel-safe.
async fn send(writer: &mut WriteHalf<BoxStream>, outgoing: &mut Outgoing) -> io::Result<usize> {
    if !outgoing.has_remaining() {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write_buf(outgoing).await {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        sent => sent,
    }
}

impl<'a> Session<'a> {
    pub(crate) fn new(bookie: &'a BookieId, frame_bytes_max: usize, check_interval: Duration) -> Self {
        Self {
            bookie,
            decoder: FrameDecoder::new(frame_bytes_max),
            check_interval,
            waiting: VecDeque::new(),
            outgoing: Outgoing::default(),
            needs_flush: false,
            last_progress: Instant::now(),
            incoming: BytesMut::new(),
            pending: BTreeMap::new(),
            was_answered: false,
        }
    }

    /// Serves `queue` over `stream` until the connection ends, and says why it did. All requests taken are answered then.
    pub(crate) async fn run(
        mut self,
        stream: BoxStream,
        first: Request,
        queue: &mut mpsc::UnboundedReceiver<Request>,
        stop: &CancellationToken,
    ) -> End {
        self.waiting.push_back(first);
        let end = self.serve(stream, queue, stop).await;
        let loss = end.clone().unwrap_or_else(|| Loss::connection("the client is stopping"));
        self.end(&loss);
        End { loss: end, was_answered: self.was_answered }
    }

    async fn serve(
        &mut self,
        stream: BoxStream,
        queue: &mut mpsc::UnboundedReceiver<Request>,
        stop: &CancellationToken,
    ) -> Option<Loss> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut check = tokio::time::interval(self.check_interval);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(BATCH);
        let mut is_open = true;
        loop {
            self.encode_waiting();
            let is_busy = !self.pending.is_empty() || !self.waiting.is_empty() || self.outgoing.has_remaining();
            if !is_open && !is_busy {
                return None;
            }
            if self.incoming.capacity() - self.incoming.len() < READ_BYTES / 4 {
                self.incoming.reserve(READ_BYTES);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Some(Loss::connection("the client is stopping")),
                _ = check.tick(), if is_busy => {
                    if let Some(loss) = self.check(Instant::now()) {
                        return Some(loss);
                    }
                }
                read = reader.read_buf(&mut self.incoming) => match read {
                    Ok(0) => return Some(Loss::connection("the bookie closed the connection")),
                    Ok(_) => {
                        if let Err(loss) = self.on_bytes() {
                            return Some(loss);
                        }
                    }
                    Err(error) => return Some(Loss::connection(format!("read from bookie: {error}"))),
                },
                sent = send(&mut writer, &mut self.outgoing), if self.needs_flush || self.outgoing.has_remaining() => {
                    match sent {
                        Ok(count) => {
                            self.needs_flush = count > 0;
                            self.last_progress = Instant::now();
                        }
                        Err(error) => return Some(Loss::connection(format!("write to bookie: {error}"))),
                    }
                }
                count = queue.recv_many(&mut batch, BATCH), if is_open => {
                    is_open = count > 0;
                    self.waiting.extend(batch.drain(..));
                }
            }
        }
    }

    fn encode_waiting(&mut self) {
        if !self.outgoing.has_remaining() && !self.waiting.is_empty() {
            self.last_progress = Instant::now();
        }
        while self.outgoing.remaining() < OUTGOING_BYTES_MAX {
            let Some(Request { ask, deadline, sink }) = self.waiting.pop_front() else { return };
            let key = match &ask {
                Ask::Add { ledger, entry, .. } => {
                    Key { operation: Operation::Add, ledger: ledger.as_i64(), entry: entry.as_i64() }
                }
                Ask::Read { ledger, target, .. } => {
                    Key { operation: Operation::Read, ledger: ledger.as_i64(), entry: target.as_i64() }
                }
            };
            match ask {
                Ask::Add { master_key, body, recovery, .. } => {
                    let flags = AddFlags { recovery, high_priority: recovery };
                    self.outgoing.push_add(&master_key, body, flags);
                }
                Ask::Read { ledger, target, fence } => {
                    // Recovery reads are urgent; the fencing round is sent as others send it.
                    let high_priority = fence.is_some() && matches!(target, proto::ReadTarget::Entry(_));
                    self.outgoing.push_with(|out| encode_read_v2(ledger, target, fence.as_ref(), high_priority, out));
                }
            }
            let pending = Pending { deadline, sink: Some(sink) };
            match self.pending.entry(key) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(Line { first: pending, more: VecDeque::new() });
                }
                std::collections::btree_map::Entry::Occupied(mut line) => line.get_mut().more.push_back(pending),
            }
        }
    }

    fn on_bytes(&mut self) -> Result<(), Loss> {
        loop {
            match self.decoder.decode(&mut self.incoming) {
                Ok(None) => return Ok(()),
                Ok(Some(payload)) => match decode_response_v2(payload) {
                    Ok(response) => self.on_response(response),
                    Err(error) => return Err(Loss::connection(error.to_string())),
                },
                Err(error) => return Err(Loss::connection(error.to_string())),
            }
        }
    }

    fn on_response(&mut self, response: ResponseV2) {
        let ResponseV2 { operation, status, ledger, entry, body } = response;
        self.was_answered = true;
        let key = Key { operation, ledger, entry };
        let Some(line) = self.pending.get_mut(&key) else {
            tracing::debug!(bookie = %self.bookie, ledger, entry, "an answer that nobody asked for");
            return;
        };
        let sink = match line.more.pop_front() {
            Some(next) => std::mem::replace(&mut line.first, next).sink,
            None => self.pending.remove(&key).and_then(|line| line.first.sink),
        };
        let Some(sink) = sink else { return };
        sink.answer(match (status, operation) {
            (Status::Ok, Operation::Add) => Answer::Added,
            (Status::Ok, _) => Answer::Body(body),
            (status, _) => Answer::Refused(status),
        });
    }

    /// Answers what is overdue. The loss, if the bookie is sick.
    fn check(&mut self, now: Instant) -> Option<Loss> {
        let mut is_sick = self.outgoing.has_remaining() && now >= self.last_progress + SICK_AFTER;
        let mut late = Vec::new();
        // Ordered by key, so that runs of one seed are equal.
        for line in self.pending.values_mut() {
            for pending in std::iter::once(&mut line.first).chain(&mut line.more) {
                if pending.deadline <= now {
                    late.extend(pending.sink.take());
                    is_sick |= pending.deadline + SICK_AFTER <= now;
                }
            }
        }
        for sink in late {
            sink.answer(Answer::Lost(Loss::timeout()));
        }
        if self.waiting.iter().any(|request| request.deadline <= now) {
            for request in std::mem::take(&mut self.waiting) {
                if request.deadline <= now {
                    request.sink.answer(Answer::NotSent(Loss::timeout()));
                } else {
                    self.waiting.push_back(request);
                }
            }
        }
        is_sick.then(|| Loss::connection("the bookie leaves requests unanswered"))
    }

    /// Answers everything, because the connection is no more.
    fn end(&mut self, loss: &Loss) {
        for (_, line) in std::mem::take(&mut self.pending) {
            for sink in std::iter::once(line.first).chain(line.more).filter_map(|pending| pending.sink) {
                sink.answer(Answer::Lost(loss.clone()));
            }
        }
        for request in self.waiting.drain(..) {
            request.sink.answer(Answer::NotSent(loss.clone()));
        }
    }
}
