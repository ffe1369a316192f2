//! One connection to a place where members answer: questions go out as they come, in version 3 and with the hop mark; answers are
//! matched by their numbers, and must be about what was asked.
//!
//! # Bounds
//! No more than [`OPEN_MAX`] questions are open. An answer is paid for before it is read, unless it is so short that it came with
//! the buffer, and before it is handed on in any case. What comes late is let go. A place that is silent for longer than a question
//! may take loses its connection, as does one that breaks the protocol, or whose answers find no memory in time.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::budget::{ByteBudget, BytePermit};
use common::net::BoxStream;
use futures::future::{BoxFuture, FutureExt as _};
use ledger::{EntryId, LedgerId, MasterKey};
use proto::client::{Operation, PayloadV3, ResponseV3, decode_response_v3, encode_read_v3, mark_relayed};
use proto::{FrameDecoder, ReadTarget, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::decide::Hearsay;

/// Open questions of one connection. A gateway reads no further than that either.
const OPEN_MAX: usize = 128;
/// Room for a read from the socket.
const READ_BYTES: usize = 16 << 10;
/// Room that is enough for another read.
const READ_BYTES_MIN: usize = 1 << 10;
/// Questions are encoded no further ahead of the socket than this.
const OUTPUT_BYTES_MAX: usize = 16 << 10;
/// What an answer takes beside its body.
const ANSWER_BYTES: u64 = 256;
/// How long a connection is kept that nobody asks anything.
const IDLE: Duration = Duration::from_secs(60);

/// What a member is asked.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) ledger: LedgerId,
    pub(super) entry: EntryId,
    /// The key to fence the ledger with before it is read, as the caller showed it.
    pub(super) fence: Option<MasterKey>,
}

/// What a member answers.
#[derive(Debug)]
pub(super) enum Answer {
    /// The entry's body, verbatim, and the memory it is charged to.
    Body(Bytes, BytePermit),
    /// Something else, and what it is worth as an answer to this very question.
    Word(Status, Hearsay),
    /// This bookie is not let in: that is not about the ledger, nor about the key that was shown.
    Stranger,
}

/// A question on its way. Whoever asked hears nothing when there is no answer.
pub(super) struct Asked {
    pub(super) question: Question,
    pub(super) until: Instant,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Loss {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it closed the connection")]
    Closed,
    #[error("it answers nothing")]
    Silent,
    #[error("there was no memory for its answers")]
    NoMemory,
    #[error("{0}")]
    Broken(String),
}

fn broken(error: impl ToString) -> Loss {
    Loss::Broken(error.to_string())
}

/// The memory for the answer at the front of the input.
enum Room {
    None,
    Waits(BoxFuture<'static, BytePermit>),
    Paid(BytePermit),
}

/// One connection.
pub(super) struct Link {
    budget: ByteBudget,
    /// How long the place may be silent while it owes answers.
    patience: Duration,
    decoder: FrameDecoder,
    open: BTreeMap<u64, Asked>,
    /// Number of the next question.
    next: u64,
    input: BytesMut,
    room: Room,
    output: BytesMut,
    needs_flush: bool,
    /// Since when it owes answers, those that are overdue included, and says nothing.
    silent_since: Option<Instant>,
    idle_since: Instant,
}

impl Link {
    /// A connection whose answers are charged to `budget`; none is longer than `frame_bytes_max`. `patience` is how long the place
    /// may be silent while it owes answers.
    pub(super) fn new(budget: ByteBudget, frame_bytes_max: usize, patience: Duration) -> Self {
        Self {
            budget,
            patience,
            decoder: FrameDecoder::new(frame_bytes_max),
            open: BTreeMap::new(),
            next: 0,
            input: BytesMut::new(),
            room: Room::None,
            output: BytesMut::new(),
            needs_flush: false,
            silent_since: None,
            idle_since: Instant::now(),
        }
    }

    /// Asks what comes through `questions` until nobody asks any more.
    ///
    /// # Errors
    /// Why the connection is over before that. Whoever waits for an answer then hears nothing.
    pub(super) async fn run(mut self, stream: BoxStream, questions: &mut mpsc::Receiver<Asked>) -> Result<(), Loss> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut more = true;
        loop {
            if self.open.is_empty() && !more {
                return Ok(());
            }
            let (wake, may_read) = (self.wake(), !matches!(self.room, Room::Waits(_)));
            let may_ask = more && self.open.len() < OPEN_MAX && self.output.len() < OUTPUT_BYTES_MAX;
            if may_read && self.input.capacity() - self.input.len() < READ_BYTES_MIN {
                self.input.reserve(READ_BYTES);
            }
            tokio::select! {
                biased;
                permit = paid(&mut self.room) => {
                    self.room = Room::Paid(permit);
                    self.decode()?;
                    self.silent_since = (!self.open.is_empty()).then(Instant::now);
                }
                read = reader.read_buf(&mut self.input), if may_read => match read? {
                    0 => return Err(Loss::Closed),
                    _ => {
                        self.silent_since = None;
                        self.decode()?;
                        self.silent_since = (!self.open.is_empty()).then(Instant::now);
                    }
                },
                sent = send(&mut writer, &mut self.output), if self.needs_flush || !self.output.is_empty() => {
                    self.needs_flush = sent?;
                }
                asked = questions.recv(), if may_ask => match asked {
                    Some(asked) => self.ask(asked),
                    None => more = false,
                },
                () = tokio::time::sleep_until(wake) => {
                    if self.expire(Instant::now())? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// When something is due though nothing comes.
    fn wake(&self) -> Instant {
        let overdue = self.open.values().map(|asked| asked.until).min();
        let silent =
            self.silent_since.filter(|_| !matches!(self.room, Room::Waits(_))).map(|since| since + self.patience);
        let idle = self.idle_since + IDLE;
        overdue.into_iter().chain(silent).min().unwrap_or(idle)
    }

    fn ask(&mut self, asked: Asked) {
        if asked.answer.is_closed() {
            return;
        }
        let Question { ledger, entry, fence } = &asked.question;
        let (start, target) = (self.output.len(), ReadTarget::Entry(*entry));
        encode_read_v3(self.next, *ledger, target, fence.as_ref(), false, &mut self.output);
        mark_relayed(start, &mut self.output);
        self.open.insert(self.next, asked);
        self.silent_since.get_or_insert_with(Instant::now);
        self.next += 1;
    }

    /// Takes the answers off the input that are whole and paid for.
    fn decode(&mut self) -> Result<(), Loss> {
        loop {
            let Some(bytes) = self.decoder.announced(&self.input).map_err(broken)? else { return Ok(()) };
            let permit = match std::mem::replace(&mut self.room, Room::None) {
                Room::Paid(permit) => permit,
                Room::None | Room::Waits(_) => {
                    let cost = bytes as u64 + ANSWER_BYTES;
                    let Some(permit) = self.budget.try_acquire(cost) else {
                        let budget = self.budget.clone();
                        self.room = Room::Waits(async move { budget.acquire(cost).await }.boxed());
                        return Ok(());
                    };
                    permit
                }
            };
            if self.input.len() < bytes {
                self.room = Room::Paid(permit);
                self.input.reserve(bytes - self.input.len());
                return Ok(());
            }
            let Some(payload) = self.decoder.decode(&mut self.input).map_err(broken)? else { return Ok(()) };
            self.on_answer(decode_response_v3(payload).map_err(broken)?, permit)?;
        }
    }

    fn on_answer(&mut self, response: ResponseV3, mut permit: BytePermit) -> Result<(), Loss> {
        let ResponseV3 { txn, operation, status, is_named, ledger, entry, payload } = response;
        if operation != Operation::Read || txn >= self.next {
            return Err(broken("an answer that nobody asked for"));
        }
        // One that came too late to be of use.
        let Some(asked) = self.open.remove(&txn) else { return Ok(()) };
        self.idle_since = Instant::now();
        let Question { ledger: ledger_id, entry: entry_id, .. } = asked.question;
        let answer = match (status, payload) {
            (Status::Ok, PayloadV3::Entry { body, .. }) => {
                let found = ledger::peek(&body).map_err(broken)?;
                let echoed = (ledger, entry) == (ledger_id.as_i64(), entry_id.as_i64());
                if !echoed || (found.ledger, found.entry) != (ledger_id, entry_id) {
                    return Err(broken(format_args!(
                        "it answered with something else than entry {entry_id} of ledger {ledger_id}"
                    )));
                }
                permit.shrink_to(body.len() as u64 + ANSWER_BYTES);
                // A short one would keep the whole buffer.
                let body = if body.len() < READ_BYTES { Bytes::copy_from_slice(&body) } else { body };
                Answer::Body(body, permit)
            }
            (Status::Ok, _) => return Err(broken("it answered a read without an entry")),
            // Who does not come in is answered without a word about what was asked.
            (Status::Unauthorized, _) if ledger != ledger_id.as_i64() => Answer::Stranger,
            // A number that nobody knows, or one about something else, says nothing of the entry.
            (status, _) if !is_named || ledger != ledger_id.as_i64() => Answer::Word(status, Hearsay::Nothing),
            (status, _) => Answer::Word(status, Hearsay::of(status, asked.question.fence.is_some())),
        };
        // Whoever asked may have given up.
        let _ = asked.answer.send(answer);
        Ok(())
    }

    /// Lets go of what is overdue. Whether nobody needs the connection any more.
    fn expire(&mut self, now: Instant) -> Result<bool, Loss> {
        let open = self.open.len();
        self.open.retain(|_, asked| asked.until > now);
        if self.open.len() < open {
            self.idle_since = now;
        }
        let is_over = |since: Instant, patience: Duration| now.saturating_duration_since(since) >= patience;
        match &self.room {
            Room::Waits(_) if self.open.is_empty() => Err(Loss::NoMemory),
            Room::Waits(_) => Ok(false),
            _ if self.silent_since.is_some_and(|since| is_over(since, self.patience)) => Err(Loss::Silent),
            _ => Ok(self.open.is_empty() && is_over(self.idle_since, IDLE)),
        }
    }
}

async fn paid(room: &mut Room) -> BytePermit {
    match room {
        Room::Waits(permit) => permit.await,
        _ => std::future::pending().await,
    }
}

/// Writes what the socket takes, or flushes when everything is written; whether it must be flushed then. Cancel-safe.
async fn send(writer: &mut WriteHalf<BoxStream>, output: &mut BytesMut) -> io::Result<bool> {
    if output.is_empty() {
        return writer.flush().await.map(|()| false);
    }
    match writer.write_buf(output).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(true),
    }
}
