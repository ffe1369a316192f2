use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use common::budget::BytePermit;
use common::net::BoxStream;
use ledger::LedgerId;
use proto::{FrameDecoder, Incoming, Protocol, Reply, ReplyTo, Request, Status, decode_request};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::Instant;

use super::Server;
use super::batch::BatchJob;
use super::lane::{Lane, Order};
use super::outbox::Outbox;
use super::polls::PollJob;
use super::reads::{ReadJob, Reads};
use super::task::Task;
use crate::format::RECORD_HEADER_BYTES;
use crate::journal::Completion;
use crate::store::{Add, LedgerSlot};
use crate::wakeups::Wakeups;

/// How much one read from the socket may bring.
const READ_BYTES: usize = 128 << 10;
/// Room that is enough for another read. A buffer lives as long as any frame in it, so one buffer a read would keep a thousand
/// times what the budget counts where each read brings one small add.
const READ_BYTES_MIN: usize = READ_BYTES / 4;
/// What an add costs beside its record while it waits, in bytes: keeps a flood of tiny entries within the budget too.
const ADD_OVERHEAD_BYTES: usize = 256;
/// Reads of one burst that go to the disk together.
const BATCH_READS: usize = 256;

/// Serves one connection until its peer leaves, breaks the protocol or takes no answers, or the server stops.
pub(super) async fn serve(server: Arc<Server>, stream: BoxStream, peer: String) {
    let _open = server.store.metrics.connections.hold();
    server.store.metrics.connected();
    let (mut input, mut output) = tokio::io::split(stream);
    let outbox = Arc::new(Outbox::new());
    let patience = server.store.config.write_timeout.duration();
    let mut connection = Connection::new(server, outbox.clone());
    let read = async {
        let end = connection.read_requests(&mut input).await;
        connection.reads.end_waits();
        // Requests already taken in are answered before the connection ends.
        let answered = tokio::time::timeout(patience, outbox.wait_until_answered()).await;
        outbox.close();
        (end, answered)
    };
    let (written, (end, _)) = tokio::join!(outbox.write_to(&mut output, patience), read);
    match (end, written) {
        (Some(cause), _) => tracing::warn!(peer, cause, "connection closed: the peer broke the protocol"),
        (None, Err(error)) => tracing::debug!(peer, %error, "connection lost"),
        (None, Ok(())) => tracing::debug!(peer, "connection closed"),
    }
}

struct Connection {
    server: Arc<Server>,
    outbox: Arc<Outbox>,
    reads: Arc<Reads>,
    protocol: Protocol,
    decoder: FrameDecoder,
    /// The ledger of the last add: most adds of a burst are for the same few.
    last: Option<Arc<LedgerSlot>>,
    batch: Vec<ReadJob>,
    /// Reads of a burst that need the index, of ledgers that are not in memory and others.
    unloaded: Vec<ReadJob>,
    lane: Arc<Lane>,
    /// What a burst brought beside reads and adds, until its adds are with the journal.
    tasks: Vec<Task>,
    /// Covers a frame that is longer than one read, from before it is read.
    long_frame: Option<BytePermit>,
}

/// A decoded frame of a burst.
enum Item {
    Request(ReplyTo, Request),
    Frame(Bytes),
}

impl Item {
    /// What an add, or another request with a body that is stored, takes from the budget of adds.
    fn added_bytes(&self) -> Option<usize> {
        match self {
            Self::Request(_, Request::Add { body, .. } | Request::WriteLac { body, .. }) => {
                Some(ADD_OVERHEAD_BYTES + RECORD_HEADER_BYTES + body.len())
            }
            _ => None,
        }
    }
}

impl Connection {
    fn new(server: Arc<Server>, outbox: Arc<Outbox>) -> Self {
        let decoder = FrameDecoder::new(server.store.config.frame_bytes_max.as_usize());
        let reads = Reads::new(server.clone(), outbox.clone());
        Self {
            lane: Lane::new(server.clone()),
            server,
            outbox,
            reads,
            protocol: Protocol::default(),
            decoder,
            last: None,
            batch: Vec::new(),
            unloaded: Vec::new(),
            tasks: Vec::new(),
            long_frame: None,
        }
    }

    /// Reads and hands out requests. Returns why the peer must go, when it is its fault.
    async fn read_requests(&mut self, input: &mut (impl AsyncRead + Unpin)) -> Option<String> {
        let mut buffer = BytesMut::new();
        let mut burst = Vec::new();
        let stopping = self.server.tasks.token().clone();
        loop {
            if !self.outbox.wait_for_room().await {
                return None;
            }
            let outbox = self.outbox.clone();
            tokio::select! {
                biased;
                () = stopping.cancelled() => return None,
                read = self.read_more(input, &mut buffer) => match read {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                },
                () = outbox.lost() => return None,
            }
            let end = self.decode(&mut buffer, &mut burst);
            if !burst.is_empty() {
                self.handle(&mut burst).await;
            }
            if end.is_some() {
                return end;
            }
        }
    }

    /// Reads what there is. A long frame is paid for first, and whoever began a frame must go on with it. Cancel-safe.
    async fn read_more(
        &mut self,
        input: &mut (impl AsyncRead + Unpin),
        buffer: &mut BytesMut,
    ) -> std::io::Result<usize> {
        if self.long_frame.is_none()
            && let Ok(Some(bytes)) = self.decoder.announced(buffer)
            && bytes > READ_BYTES
        {
            self.long_frame = Some(self.server.adds.acquire(bytes as u64).await);
        }
        let started = !buffer.is_empty();
        make_room(buffer);
        if started {
            let patience = self.server.store.config.write_timeout.duration();
            return tokio::time::timeout(patience, input.read_buf(buffer)).await?;
        }
        input.read_buf(buffer).await
    }

    fn decode(&mut self, buffer: &mut BytesMut, burst: &mut Vec<Item>) -> Option<String> {
        loop {
            let payload = match self.decoder.decode(buffer) {
                Ok(Some(payload)) => payload,
                Ok(None) => return None,
                Err(error) => return Some(error.to_string()),
            };
            match decode_request(&mut self.protocol, payload) {
                Incoming::Request(to, request) => burst.push(Item::Request(to, request)),
                Incoming::Reply(frame) => burst.push(Item::Frame(frame)),
                Incoming::Close(reason) => return Some(reason.to_string()),
            }
        }
    }

    async fn handle(&mut self, burst: &mut Vec<Item>) {
        // Once for all that came together; waiting for the budget counts.
        let received = self.server.store.clock.now();
        let mut permit = self.admit(burst).await;
        let mut adds_left = burst.iter().filter(|item| item.added_bytes().is_some()).count();
        let mut wakeups = Wakeups::default();
        for item in burst.drain(..) {
            if adds_left == 0 {
                // The journal has its own part: what comes now may wait for the peer, and nobody's adds should wait for that.
                permit = Ok(None);
            }
            adds_left -= usize::from(item.added_bytes().is_some());
            if !self.outbox.has_room() {
                // The room comes from the writer, which must know of what was put down so far.
                wakeups.flush();
                if !self.outbox.wait_for_room().await {
                    return;
                }
            }
            match item {
                Item::Frame(frame) => {
                    self.outbox.put_frame(&frame);
                    wakeups.add(&self.outbox);
                }
                Item::Request(
                    to,
                    Request::Add { ledger, entry, master_key, body, recovery, high_priority, deferred_sync: _ },
                ) => {
                    let last_confirmed = match ledger::peek(&body) {
                        Ok(peek) => Ok(peek.last_confirmed),
                        Err(_) => Err(Status::BadRequest),
                    };
                    let permit = permit.as_ref().map_err(|status| *status);
                    match last_confirmed.and_then(|confirmed| permit.map(|permit| (confirmed, permit.clone()))) {
                        Ok((last_confirmed, permit)) => {
                            let add = Add {
                                entry,
                                last_confirmed,
                                master_key,
                                body,
                                recovery,
                                high_priority,
                                permit,
                                received,
                            };
                            let (in_order, done) = (self.outbox.open_add(), self.answer(to, Reply::Added));
                            self.order(Order::Add { ledger, add, done, in_order });
                        }
                        Err(status) => {
                            let in_order = self.outbox.open_add();
                            let done = self.answer(to, Reply::Added);
                            self.order(Order::Refuse { status, done, in_order });
                        }
                    }
                }
                Item::Request(to, request) => {
                    let permit = permit.clone();
                    self.handle_other(to, request, received, permit, &mut wakeups);
                }
            }
        }
        drop(permit);
        wakeups.flush();
        self.start_tasks().await;
    }

    /// Everything but adds. `permit` covers the bodies of the burst.
    fn handle_other(
        &mut self,
        to: ReplyTo,
        request: Request,
        received: Instant,
        permit: Result<Option<Arc<BytePermit>>, Status>,
        wakeups: &mut Wakeups,
    ) {
        match request {
            Request::Read { ledger, target, fence: false, .. } => {
                self.read(ReadJob::read(to, ledger, target, received), wakeups);
            }
            Request::Read { ledger, target, master_key, .. } => {
                self.read(ReadJob::fencing(to, ledger, target, master_key, received), wakeups);
            }
            Request::ReadLac { ledger } => {
                self.read(ReadJob::last_confirmed(to, ledger, received), wakeups);
            }
            Request::BatchRead { ledger, start, count_max, bytes_max, fence, master_key, .. } => {
                let fence = fence.then_some(master_key);
                let job = BatchJob { to, start, count_max, bytes_max, fence, received };
                self.open(Task::Run(job, ledger));
            }
            Request::LongPoll { ledger, target, previous, patience } => {
                self.open(Task::Poll(PollJob { to, ledger, target, previous, patience, received }));
            }
            Request::WriteLac { ledger, lac: _, master_key, body } => {
                self.outbox.open_add();
                let done = self.answer(to, Reply::LacWritten);
                match permit {
                    Ok(permit) => {
                        self.order(Order::WriteLac { ledger, key: master_key, body, permit, received, done });
                    }
                    Err(status) => done(Err(status), wakeups),
                }
            }
            Request::ForceLedger { ledger: _ } => {
                self.outbox.open_add();
                self.server.store.force(self.answer(to, Reply::Forced));
            }
            Request::ListEntries { ledger } => {
                self.open(Task::List { to, ledger, received });
            }
            Request::BookieInfo { total, free } => {
                self.open(Task::Info { to, total, free, received });
            }
            Request::Add { .. } => {
                debug_assert!(false, "adds are handled where their bytes are admitted");
                self.outbox.put_failure(&to, Status::Io);
                wakeups.add(&self.outbox);
            }
        }
    }

    /// Counts a request in that a task of its own serves.
    fn open(&mut self, task: Task) {
        self.outbox.open_read();
        self.tasks.push(task);
    }

    /// Takes the bytes of the burst's adds from the budget, all at once.
    async fn admit(&mut self, burst: &[Item]) -> Result<Option<Arc<BytePermit>>, Status> {
        let bytes: usize = burst.iter().filter_map(Item::added_bytes).sum();
        if bytes == 0 {
            self.long_frame = None;
            return Ok(None);
        }
        let (adds, bytes) = (&self.server.adds, bytes as u64);
        if let Some(permit) = self.long_frame.take() {
            // What came behind the long frame is less than one read.
            return Ok(Some(Arc::new(permit)));
        }
        let permit = match adds.try_acquire(bytes) {
            Some(permit) => permit,
            None => {
                let patience = self.server.store.config.add_wait.duration();
                tokio::time::timeout(patience, adds.acquire(bytes)).await.map_err(|_| Status::TooManyRequests)?
            }
        };
        Ok(Some(Arc::new(permit)))
    }

    /// The ledger, when it is in memory: the index is never waited for here.
    fn slot(&mut self, ledger: LedgerId) -> Option<Arc<LedgerSlot>> {
        if self.last.as_ref().is_none_or(|slot| slot.id() != ledger) {
            self.last = Some(self.server.store.cached(ledger)?);
        }
        self.last.clone()
    }

    /// What answers an add, or whatever else the journal answers, whenever and however it ends.
    fn answer(&self, to: ReplyTo, success: Reply) -> Completion {
        let outbox = self.outbox.clone();
        Box::new(move |result, wakeups| {
            match result {
                Ok(()) => outbox.put(&to, &success, None),
                Err(status) => outbox.put_failure(&to, status),
            }
            outbox.close_add();
            wakeups.add(&outbox);
        })
    }

    fn order(&mut self, order: Order) {
        let lane = self.lane.clone();
        lane.put(order, |ledger| self.slot(ledger));
    }

    fn read(&mut self, job: ReadJob, wakeups: &mut Wakeups) {
        let Some(job) = self.reads.take_turn(job) else { return };
        let Some(slot) = self.slot(job.ledger()) else { return self.unloaded.push(job) };
        let job = job.with_slot(slot.clone());
        if job.needs_fence(&slot) {
            let reads = self.reads.clone();
            self.server.tasks.spawn("fence", async move { reads.serve_fence(job).await });
            return;
        }
        match self.server.store.read_memory(&slot, job.target()) {
            Some(Ok(found)) => match self.server.reads.try_acquire(found.body.len() as u64) {
                Some(permit) => self.reads.finish_now(job, Ok(found), Some(permit), wakeups),
                None => self.batch.push(job),
            },
            Some(Err(status)) => {
                if let Some(job) = self.reads.keep_or_relay(job, Some(status)) {
                    self.reads.finish_now(job, Err(status), None, wakeups);
                }
            }
            None => {
                // What follows a read that needs the index stays with it: they go to the disk together.
                let with_last = self.unloaded.last().is_some_and(|last| last.ledger() == job.ledger());
                let waits = with_last || !self.server.store.needs_no_index(&slot, job.target());
                if waits { self.unloaded.push(job) } else { self.batch.push(job) }
            }
        }
    }

    /// Hands out what the burst brought and the journal does not answer.
    async fn start_tasks(&mut self) {
        let mut unloaded = std::mem::take(&mut self.unloaded);
        unloaded.sort_by_key(ReadJob::ledger);
        let mut unloaded = unloaded.into_iter().peekable();
        while let Some(ledger) = unloaded.peek().map(ReadJob::ledger) {
            let of_ledger = std::iter::from_fn(|| unloaded.next_if(|job| job.ledger() == ledger));
            let (part, reads): (Vec<ReadJob>, _) = (of_ledger.take(BATCH_READS).collect(), self.reads.clone());
            self.server.tasks.spawn("reads", async move { reads.serve_unloaded(ledger, part).await });
        }
        let mut batch = std::mem::take(&mut self.batch).into_iter().peekable();
        while batch.peek().is_some() {
            let (part, reads): (Vec<ReadJob>, _) = (batch.by_ref().take(BATCH_READS).collect(), self.reads.clone());
            let Some(place) = self.reads.place().await else { return };
            self.server.tasks.spawn("reads", async move {
                reads.serve_batch(part).await;
                drop(place);
            });
        }
        for task in std::mem::take(&mut self.tasks) {
            let reads = self.reads.clone();
            let place = match task {
                // It may wait as long as it likes.
                Task::Poll(_) => None,
                _ => self.reads.place().await,
            };
            self.server.tasks.spawn("read", async move {
                reads.serve(task).await;
                drop(place);
            });
        }
    }
}

/// Makes room for the next read, in the buffer at hand while that has some.
fn make_room(buffer: &mut BytesMut) {
    if buffer.capacity() - buffer.len() < READ_BYTES_MIN {
        buffer.reserve(READ_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_share_buffers() {
        let (mut buffer, mut frames) = (BytesMut::new(), Vec::<Bytes>::new());
        for _ in 0..5_000 {
            make_room(&mut buffer);
            buffer.extend_from_slice(&[1; 100]);
            frames.push(buffer.split().freeze());
        }
        let apart = |pair: &&[Bytes]| pair[0].as_ptr_range().end != pair[1].as_ptr_range().start;
        let buffers = 1 + frames.windows(2).filter(apart).count();
        assert!(buffers <= 7, "{buffers} buffers for 500 kB");
    }
}
