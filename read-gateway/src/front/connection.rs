//! One connection: a task that reads frames and writes answers as they come. What cannot be answered at once is served in a task of
//! its own, which goes on however slowly the peer takes its answers, and ends with the connection.
//!
//! # Order
//! Answers come in any order, but for those of the same entry in version 2, whose clients cannot tell them apart: such a request waits
//! for the one before it. Requests of version 3 have numbers.
//!
//! # Bounds
//! No more is read while [`REQUESTS_MAX`] requests are open or [`WAITING_BYTES_MAX`] of answers wait for the peer. All answers that wait
//! are charged to the connection's part of the replies' budget. A frame that is longer than any read request has (an add, which is
//! refused) is paid for from it before it is read. A peer that takes no answer or does not go on with a frame for [`PATIENCE`] is
//! disconnected.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use common::net::BoxStream;
use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;
use ledger::LedgerId;
use proto::{
    FRAME_BYTES_MAX_DEFAULT, FrameDecoder, Incoming, PollTarget, Protocol, ReadTarget, ReplyTo, Request, decode_request,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Front;
use super::hosts::Host;
use super::metrics::Asked;
use super::places::Place;
use super::serve::Answer;
use super::strides::Strides;
use crate::cold_tier::bodies::{Access, Memory};
use crate::cold_tier::share::SharePermit;

/// Open requests of one connection that stop the reading of more.
const REQUESTS_MAX: usize = 128;
/// Answers that wait beyond this stop the reading of requests and the taking of answers, in bytes.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Room for a read from the socket: some hundred requests.
const READ_BYTES: usize = 4 << 10;
/// Room that is enough for another read.
const READ_BYTES_MIN: usize = 512;
/// A buffer that grew beyond this is not kept.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// The longest frame that is read without paying for it.
const FREE_FRAME_BYTES: usize = 16 << 10;
/// How long a peer may take nothing, or leave a frame half sent.
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves one connection until its peer leaves, breaks the protocol or takes no answers, its place is another's, or the gateway stops.
pub(super) async fn serve(front: Arc<Front>, stream: BoxStream, peer: String, place: Place) {
    let _open = front.metrics.connection();
    match Connection::new(front, &peer).run(stream, &place).await {
        Ok(End::Left) => tracing::debug!(peer, "connection closed"),
        Ok(End::Broke(cause)) => tracing::warn!(peer, cause, "connection closed: the peer broke the protocol"),
        Err(error) => tracing::debug!(peer, %error, "connection lost"),
    }
}

/// Why a connection is over that was not lost.
enum End {
    /// Its peer sends no more, its place is another's, or the gateway stops.
    Left,
    /// Its peer must go.
    Broke(String),
}

/// Requests of these cannot be told apart by clients of version 2.
type Key = (LedgerId, ReadTarget);

/// A request on its way.
struct Job {
    to: ReplyTo,
    /// Of a request that has to wait for others of its kind.
    key: Option<Key>,
    request: Request,
    access: Access,
    received: Instant,
}

/// A request that was served.
struct Served {
    to: ReplyTo,
    key: Option<Key>,
    asked: Asked,
    received: Instant,
    answer: Answer,
}

/// The permit of a frame that is longer than requests are.
enum LongFrame {
    None,
    Waits(BoxFuture<'static, SharePermit>),
    Paid(#[expect(dead_code, reason = "held for its bytes")] SharePermit),
}

struct Connection {
    front: Arc<Front>,
    /// Known for as long as it has connections.
    _host: Arc<Host>,
    memory: Arc<Memory>,
    protocol: Protocol,
    decoder: FrameDecoder,
    input: BytesMut,
    /// Since when the front of `input` is a frame that is not whole.
    begun: Option<Instant>,
    long: LongFrame,
    strides: Strides,
    /// The open requests, whoever serves them.
    work: FuturesUnordered<oneshot::Receiver<Served>>,
    /// Requests that wait for one of the same key.
    turns: HashMap<Key, VecDeque<Job>>,
    waiting: usize,
    output: BytesMut,
    /// Bytes that were ever put into `output`, and taken from it.
    put: u64,
    sent: u64,
    /// What covers the answers in `output`, and what must have been sent before it is given back.
    permits: VecDeque<(u64, SharePermit)>,
    /// Since when the peer takes nothing of `output`.
    stuck: Option<Instant>,
    /// Since when its place is another's.
    evicted: Option<Instant>,
    /// Whether what was sent last may still wait below, in a TLS session.
    unflushed: bool,
    end: Option<End>,
}

impl Connection {
    fn new(front: Arc<Front>, peer: &str) -> Self {
        let host = front.hosts.of(peer);
        Self {
            memory: Arc::new(front.memory(&host)),
            _host: host,
            front,
            protocol: Protocol::default(),
            decoder: FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT),
            input: BytesMut::new(),
            begun: None,
            long: LongFrame::None,
            strides: Strides::default(),
            work: FuturesUnordered::new(),
            turns: HashMap::new(),
            waiting: 0,
            output: BytesMut::new(),
            put: 0,
            sent: 0,
            permits: VecDeque::new(),
            stuck: None,
            evicted: None,
            unflushed: false,
            end: None,
        }
    }

    async fn run(mut self, stream: BoxStream, place: &Place) -> std::io::Result<End> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let stopping = self.front.tasks.token().clone();
        loop {
            if self.end.is_some() && self.work.is_empty() && self.output.is_empty() && !self.unflushed {
                let until = self.evicted.unwrap_or_else(Instant::now) + PATIENCE;
                tokio::time::timeout_at(until, writer.shutdown()).await??;
                return Ok(self.end.take().unwrap_or(End::Left));
            }
            place.set_idle(self.is_idle());
            let may_read = self.end.is_none() && self.may_read();
            let has_room = self.output.len() < WAITING_BYTES_MAX;
            // Who has to go has so long in all, however little it takes at a time.
            let deadline = [self.begun.filter(|_| may_read), self.stuck, self.evicted].into_iter().flatten().min();
            let patience = async move {
                match deadline {
                    Some(since) => tokio::time::sleep_until(since + PATIENCE).await,
                    None => std::future::pending().await,
                }
            };
            if may_read && self.input.capacity() - self.input.len() < READ_BYTES_MIN {
                self.input.reserve(READ_BYTES);
            }
            tokio::select! {
                biased;
                () = stopping.cancelled(), if self.end.is_none() => self.end = Some(End::Left),
                () = place.evicted().cancelled(), if self.end.is_none() => {
                    self.evicted = Some(Instant::now());
                    // What it asked before it was told to go is served.
                    let read = if may_read { reader.read_buf(&mut self.input).now_or_never() } else { None };
                    if read.transpose()?.is_some_and(|bytes| bytes > 0) {
                        self.decode();
                    }
                    self.end.get_or_insert(End::Left);
                }
                written = send(&mut writer, &self.output), if self.unflushed || !self.output.is_empty() => {
                    self.written(written?)?;
                }
                Some(served) = self.work.next(), if has_room => match served {
                    Ok(served) => self.served(served),
                    // Its task is gone, which has told why. The peer would wait for ever.
                    Err(_) => return Err(std::io::Error::other("a request was lost")),
                },
                permit = paid(&mut self.long) => self.long = LongFrame::Paid(permit),
                read = reader.read_buf(&mut self.input), if may_read => match read? {
                    0 => self.end = Some(End::Left),
                    _ => self.decode(),
                },
                () = patience => return Err(std::io::ErrorKind::TimedOut.into()),
            }
        }
    }

    /// Whether its peer waits for nothing, and is waited for with nothing half done.
    fn is_idle(&self) -> bool {
        self.work.is_empty()
            && self.output.is_empty()
            && !self.unflushed
            && self.input.is_empty()
            && matches!(self.long, LongFrame::None)
    }

    fn may_read(&self) -> bool {
        !matches!(self.long, LongFrame::Waits(_))
            && self.work.len() + self.waiting < REQUESTS_MAX
            && self.output.len() < WAITING_BYTES_MAX
    }

    /// Takes in what one read brought.
    fn decode(&mut self) {
        loop {
            let payload = match self.decoder.decode(&mut self.input) {
                Ok(Some(payload)) => payload,
                Ok(None) => break,
                Err(error) => return self.broke(error.to_string()),
            };
            self.long = LongFrame::None;
            match decode_request(&mut self.protocol, payload) {
                Incoming::Request(to, request) => self.take(to, request),
                Incoming::Reply(frame) => {
                    self.put(|output| output.extend_from_slice(&frame));
                }
                Incoming::Close(reason) => return self.broke(reason.to_string()),
            }
        }
        self.begun = (!self.input.is_empty()).then(Instant::now);
        if let Ok(Some(bytes)) = self.decoder.announced(&self.input)
            && bytes > FREE_FRAME_BYTES
            && matches!(self.long, LongFrame::None)
        {
            let replies = self.memory.replies.clone();
            self.long = LongFrame::Waits(async move { replies.acquire(bytes as u64).await }.boxed());
        }
    }

    fn broke(&mut self, cause: String) {
        self.end = Some(End::Broke(cause));
        self.long = LongFrame::None;
    }

    fn take(&mut self, to: ReplyTo, request: Request) {
        let access = match &request {
            Request::Read { ledger, target: ReadTarget::Entry(entry), .. }
            | Request::LongPoll { ledger, target: PollTarget::Read(ReadTarget::Entry(entry)), .. } => {
                self.strides.note(*ledger, *entry)
            }
            _ => Access::Point,
        };
        let key = match (self.protocol, &request) {
            (Protocol::V2, Request::Read { ledger, target, .. }) => Some((*ledger, *target)),
            _ => None,
        };
        let job = Job { to, key, request, access, received: Instant::now() };
        if let Some(key) = key {
            match self.turns.get_mut(&key) {
                Some(waiting) => {
                    waiting.push_back(job);
                    self.waiting += 1;
                    return;
                }
                None => drop(self.turns.insert(key, VecDeque::new())),
            }
        }
        self.start(job);
    }

    fn start(&mut self, job: Job) {
        let (front, memory) = (Arc::clone(&self.front), Arc::clone(&self.memory));
        let asked = Asked::from(&job.request);
        let Job { to, key, request, access, received } = job;
        let serve = async move {
            let answer = front.answer(request, access, received, &memory).await;
            Served { to, key, asked, received, answer }
        };
        let mut serve = serve.boxed();
        let (mut answer, served) = oneshot::channel();
        self.work.push(served);
        // Most are answered from memory: a task would cost more than they do.
        if let Some(served) = (&mut serve).now_or_never() {
            let _ = answer.send(served);
            return;
        }
        // What it holds or waits for together with others must not stand still with this connection.
        self.front.tasks.spawn("bookkeeper request", async move {
            tokio::select! {
                served = serve => drop(answer.send(served)),
                () = answer.closed() => {}
            }
        });
    }

    /// Puts an answer down, and lets the next request of its kind begin.
    fn served(&mut self, served: Served) {
        let Served { to, key, asked, received, answer } = served;
        let bytes = self.put(|output| to.encode(&answer.reply, output));
        self.permits.extend(answer.permit.map(|permit| (self.put, permit)));
        self.front.metrics.answered(asked, &answer.reply, bytes, received.elapsed());
        let Some(key) = key else { return };
        match self.turns.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(job) => {
                self.waiting -= 1;
                self.start(job);
            }
            None => drop(self.turns.remove(&key)),
        }
    }

    /// Puts a frame down; returns its bytes.
    fn put(&mut self, write: impl FnOnce(&mut BytesMut)) -> usize {
        let before = self.output.len();
        if before == 0 {
            self.stuck = Some(Instant::now());
        }
        write(&mut self.output);
        let bytes = self.output.len() - before;
        self.put += bytes as u64;
        bytes
    }

    /// Notes what was written; nothing, when it was flushed.
    fn written(&mut self, bytes: usize) -> std::io::Result<()> {
        if bytes == 0 && !self.output.is_empty() {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        self.unflushed = bytes > 0;
        self.output.advance(bytes);
        self.sent += bytes as u64;
        while self.permits.front().is_some_and(|(end, _)| *end <= self.sent) {
            self.permits.pop_front();
        }
        self.stuck = (self.unflushed || !self.output.is_empty()).then(Instant::now);
        if self.output.is_empty() && self.output.capacity() > KEPT_BYTES_MAX {
            self.output = BytesMut::new();
        }
        Ok(())
    }
}

/// Writes what the socket takes, or flushes when everything is written; how many bytes were written. Cancel-safe.
async fn send(writer: &mut WriteHalf<BoxStream>, output: &[u8]) -> std::io::Result<usize> {
    if output.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(output).await }
}

/// Resolves when a long frame is paid for. Cancel-safe: the request keeps its place.
async fn paid(long: &mut LongFrame) -> SharePermit {
    match long {
        LongFrame::Waits(permit) => permit.await,
        LongFrame::None | LongFrame::Paid(_) => std::future::pending().await,
    }
}
