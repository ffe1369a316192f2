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
use super::outbox::Outbox;
use super::polls::PollJob;
use super::reads::{ReadJob, Reads};
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
    /// What a burst brought beside reads and adds, until its adds are with the journal.
    tasks: Vec<Task>,
    /// Covers a frame that is longer than one read, from before it is read.
    long_frame: Option<BytePermit>,
}

/// A request that takes a turn of the connection and is served by a task of its own.
enum Task {
    Run(BatchJob, Arc<LedgerSlot>),
    List(ReplyTo, Arc<LedgerSlot>),
    Info { to: ReplyTo, total: bool, free: bool },
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
            server,
            outbox,
            reads,
            protocol: Protocol::default(),
            decoder,
            last: None,
            batch: Vec::new(),
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
                            self.add(to, ledger, add).await;
                        }
                        Err(status) => {
                            let in_order = self.outbox.open_add();
                            self.server.store.refuse(status, self.answer(to, Reply::Added), in_order);
                        }
                    }
                }
                Item::Request(to, request) => {
                    let permit = permit.clone();
                    self.handle_other(to, request, received, permit, &mut wakeups).await;
                }
            }
        }
        drop(permit);
        wakeups.flush();
        self.start_batches().await;
    }

    /// Everything but adds. `permit` covers the bodies of the burst.
    async fn handle_other(
        &mut self,
        to: ReplyTo,
        request: Request,
        received: Instant,
        permit: Result<Option<Arc<BytePermit>>, Status>,
        wakeups: &mut Wakeups,
    ) {
        match request {
            Request::Read { ledger, target, fence: false, .. } => {
                self.read(ReadJob::read(to, ledger, target, received), wakeups).await;
            }
            Request::Read { ledger, target, master_key, .. } => {
                self.read(ReadJob::fencing(to, ledger, target, master_key, received), wakeups).await;
            }
            Request::ReadLac { ledger } => {
                self.read(ReadJob::last_confirmed(to, ledger, received), wakeups).await;
            }
            Request::BatchRead { ledger, start, count_max, bytes_max, fence, master_key, .. } => {
                let fence = fence.then_some(master_key);
                let job = BatchJob { to, start, count_max, bytes_max, fence, received };
                let slot = self.open(to, ledger, wakeups).await;
                self.tasks.extend(slot.map(|slot| Task::Run(job, slot)));
            }
            Request::LongPoll { ledger, target, previous, patience } => {
                self.start_poll(PollJob { to, ledger, target, previous, patience, received }, wakeups).await;
            }
            Request::WriteLac { ledger, lac: _, master_key, body } => {
                self.outbox.open_add();
                let done = self.answer(to, Reply::LacWritten);
                let admitted = match permit {
                    Ok(permit) => self.slot(ledger).await.map(|slot| (slot, permit)),
                    Err(status) => Err(status),
                };
                match admitted {
                    Ok((slot, permit)) => self.server.store.write_lac(&slot, &master_key, body, permit, done),
                    Err(status) => done(Err(status), wakeups),
                }
            }
            Request::ForceLedger { ledger: _ } => {
                self.outbox.open_add();
                self.server.store.force(self.answer(to, Reply::Forced));
            }
            Request::ListEntries { ledger } => {
                let slot = self.open(to, ledger, wakeups).await;
                self.tasks.extend(slot.map(|slot| Task::List(to, slot)));
            }
            Request::BookieInfo { total, free } => {
                self.outbox.open_read();
                self.tasks.push(Task::Info { to, total, free });
            }
            Request::Add { .. } => {
                debug_assert!(false, "adds are handled where their bytes are admitted");
                self.outbox.put_failure(&to, Status::Io);
                wakeups.add(&self.outbox);
            }
        }
    }

    /// Opens a read of a ledger that a task of its own serves; answers at once when the ledger cannot be loaded.
    async fn open(&mut self, to: ReplyTo, ledger: LedgerId, wakeups: &mut Wakeups) -> Option<Arc<LedgerSlot>> {
        self.outbox.open_read();
        match self.slot(ledger).await {
            Ok(slot) => Some(slot),
            Err(status) => {
                self.reads.put(&to, &Reply::Failed(status), None, wakeups);
                None
            }
        }
    }

    async fn start_poll(&mut self, job: PollJob, wakeups: &mut Wakeups) {
        let Some(slot) = self.open(job.to, job.ledger, wakeups).await else { return };
        let reads = self.reads.clone();
        self.server.tasks.spawn("poll", async move { reads.serve_poll(job, slot).await });
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

    async fn slot(&mut self, ledger: LedgerId) -> Result<Arc<LedgerSlot>, Status> {
        if let Some(slot) = self.last.as_ref().filter(|slot| slot.id() == ledger) {
            return Ok(slot.clone());
        }
        let slot = self.server.store.slot(ledger).await.map_err(|error| {
            tracing::error!(%ledger, error = &error as &dyn std::error::Error, "load ledger");
            Status::Io
        })?;
        self.last = Some(slot.clone());
        Ok(slot)
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

    async fn add(&mut self, to: ReplyTo, ledger: LedgerId, add: Add) {
        let in_order = self.outbox.open_add();
        let done = self.answer(to, Reply::Added);
        let slot = match self.slot(ledger).await {
            Ok(slot) => slot,
            Err(status) => return self.server.store.refuse(status, done, in_order),
        };
        let store = &self.server.store;
        let Err((add, done)) = store.add(&slot, add, done, in_order) else { return };
        match store.revive(&slot).await {
            Ok(()) => {
                if let Err((_, done)) = store.add(&slot, add, done, in_order) {
                    store.refuse(Status::Io, done, in_order);
                }
            }
            Err(status) => store.refuse(status, done, in_order),
        }
    }

    async fn read(&mut self, job: ReadJob, wakeups: &mut Wakeups) {
        let Some(job) = self.reads.take_turn(job) else { return };
        let slot = match self.slot(job.ledger()).await {
            Ok(slot) => slot,
            Err(status) => return self.reads.finish_now(job, Err(status), None, wakeups),
        };
        if job.needs_fence(&slot) {
            let reads = self.reads.clone();
            self.server.tasks.spawn("fence", async move { reads.serve_fence(job, slot).await });
            return;
        }
        match self.server.store.read_memory(&slot, job.target()) {
            Some(Ok(found)) => match self.server.reads.try_acquire(found.body.len() as u64) {
                Some(permit) => self.reads.finish_now(job.with_slot(slot), Ok(found), Some(permit), wakeups),
                None => self.batch.push(job.with_slot(slot)),
            },
            Some(Err(status)) => {
                if let Some(job) = self.reads.keep_or_relay(job.with_slot(slot), Some(status)) {
                    self.reads.finish_now(job, Err(status), None, wakeups);
                }
            }
            None => self.batch.push(job.with_slot(slot)),
        }
    }

    /// Hands out what the burst brought and the journal does not answer, as the connection's turns allow.
    async fn start_batches(&mut self) {
        let mut batch = std::mem::take(&mut self.batch).into_iter().peekable();
        while batch.peek().is_some() {
            let part: Vec<ReadJob> = batch.by_ref().take(BATCH_READS).collect();
            let Some(turn) = self.reads.batch_turn().await else { return };
            let reads = self.reads.clone();
            self.server.tasks.spawn("reads", async move {
                reads.serve_batch(part).await;
                drop(turn);
            });
        }
        for task in std::mem::take(&mut self.tasks) {
            let Some(turn) = self.reads.batch_turn().await else { return };
            let reads = self.reads.clone();
            self.server.tasks.spawn("read", async move {
                match task {
                    Task::Run(job, slot) => reads.serve_run(job, slot).await,
                    Task::List(to, slot) => reads.serve_list(to, &slot).await,
                    Task::Info { to, total, free } => reads.serve_info(to, total, free).await,
                }
                drop(turn);
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
