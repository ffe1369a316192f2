//! The load generator: one connection of the BookKeeper wire, version 2, driven by plain threads and blocking sockets.
//!
//! Adds carry no digest (type DUMMY), so that frames are made by patching two numbers into a template and the generator takes as little of the
//! machine as possible; the bookie never looks at digests.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use hdrhistogram::Histogram;
use ledger::{BODY_HEADER_BYTES, EntryHeader, EntryId, LedgerId, MasterKey};
use proto::client::{ADD_HEAD_BYTES, AddFlags, ResponseV2, add_head_v2, decode_response_v2};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, Status};

use crate::cpu::CpuTimes;
use crate::plan::{Error, Result};
use crate::timing::{join, latencies, now, record, sleep_closely, sleep_until, thread};

/// The most that one write to the socket carries.
const BATCH_BYTES: usize = 256 << 10;
/// What is in flight at full speed: well below the bookie's add budget, far above what one group takes.
const WINDOW_BYTES: u64 = 8 << 20;
const WINDOW_ENTRIES_MAX: u64 = 8192;
/// A bookie that says nothing for this long has failed the bench.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Frames of adds, made in place: to one ledger, or to several in turn.
pub(crate) struct AddFrames {
    batch: Vec<u8>,
    frame_bytes: usize,
    payload_bytes: usize,
    ledgers: Vec<LedgerId>,
}

impl AddFrames {
    pub(crate) fn new(ledgers: &[LedgerId], payload: &[u8]) -> Self {
        let body_bytes = BODY_HEADER_BYTES + payload.len();
        let mut frame = add_head_v2(&MasterKey::derive(b""), body_bytes, AddFlags::default()).to_vec();
        frame.resize(ADD_HEAD_BYTES + BODY_HEADER_BYTES, 0);
        frame.extend_from_slice(payload);
        let frames = (BATCH_BYTES / frame.len()).max(1);
        let frame_bytes = frame.len();
        Self { batch: frame.repeat(frames), frame_bytes, payload_bytes: payload.len(), ledgers: ledgers.to_vec() }
    }

    /// How many fit one write.
    pub(crate) fn per_batch(&self) -> u64 {
        (self.batch.len() / self.frame_bytes) as u64
    }

    /// How many may be in flight at full speed, and how many go together.
    fn window(&self) -> (u64, u64) {
        let most = (WINDOW_BYTES / self.frame_bytes as u64).clamp(1, WINDOW_ENTRIES_MAX);
        (most, self.per_batch().min(most.div_ceil(4)))
    }

    /// Frames for `count` adds from the one numbered `first` on; `count` must fit a batch. With one ledger the numbers are its entry
    /// ids; with several each ledger gets the next entry in its turn.
    pub(crate) fn make(&mut self, first: u64, count: u64) -> &[u8] {
        let used = count as usize * self.frame_bytes;
        for (number, frame) in (first..).zip(self.batch[..used].chunks_exact_mut(self.frame_bytes)) {
            let turn = number % self.ledgers.len() as u64;
            let entry = number / self.ledgers.len() as u64;
            let header = EntryHeader {
                ledger: self.ledgers[turn as usize],
                entry: EntryId::new(entry).unwrap_or(EntryId::ZERO),
                last_confirmed: entry.checked_sub(1).and_then(EntryId::new),
                length: (entry + 1) * self.payload_bytes as u64,
            };
            frame[ADD_HEAD_BYTES..ADD_HEAD_BYTES + BODY_HEADER_BYTES].copy_from_slice(&header.to_bytes());
        }
        &self.batch[..used]
    }
}

pub(crate) fn connect(address: &str) -> Result<TcpStream> {
    let place = || format!("connect to {address}");
    let stream = TcpStream::connect(address).map_err(Error::at(place()))?;
    stream.set_nodelay(true).map_err(Error::at(place()))?;
    stream.set_read_timeout(Some(SILENCE_MAX)).map_err(Error::at(place()))?;
    stream.set_write_timeout(Some(SILENCE_MAX)).map_err(Error::at(place()))?;
    Ok(stream)
}

/// The receiving half of a connection.
pub(crate) struct Replies {
    stream: TcpStream,
    buffer: BytesMut,
    chunk: Vec<u8>,
    decoder: FrameDecoder,
}

impl Replies {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: BytesMut::new(),
            chunk: vec![0; BATCH_BYTES],
            decoder: FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT),
        }
    }

    /// Waits for bytes and hands every whole reply to `take`; returns when they came. A refused request ends the bench.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(&ResponseV2)) -> Result<Instant> {
        self.receive_frames(|frame| {
            let reply = decode_response_v2(frame).map_err(Error::at("read a reply"))?;
            if reply.status != Status::Ok {
                let what = format!("entry {} of ledger {}", reply.entry, reply.ledger);
                return Err(Error::new(what, format!("the bookie answered {:?}", reply.status)));
            }
            take(&reply);
            Ok(())
        })
    }

    /// The same for replies of any form, as their frames.
    pub(crate) fn receive_frames(&mut self, mut take: impl FnMut(Bytes) -> Result<()>) -> Result<Instant> {
        let count = self.stream.read(&mut self.chunk).map_err(Error::at("wait for replies of the bookie"))?;
        if count == 0 {
            return Err(Error::new("wait for replies of the bookie", "it closed the connection"));
        }
        let came = now();
        self.buffer.extend_from_slice(&self.chunk[..count]);
        while let Some(frame) = self.decoder.decode(&mut self.buffer).map_err(Error::at("read a reply"))? {
            take(frame)?;
        }
        Ok(came)
    }
}

/// Counts what was sent and answered, so that no more than a window is in flight.
#[derive(Default)]
pub(crate) struct Window {
    state: Mutex<WindowState>,
    changed: Condvar,
}

#[derive(Default)]
struct WindowState {
    answered: u64,
    over: bool,
}

impl Window {
    fn lock(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answered(&self, count: u64) {
        self.lock().answered += count;
        self.changed.notify_one();
    }

    pub(crate) fn end(&self) {
        self.lock().over = true;
        self.changed.notify_one();
    }

    /// Waits until `sent` is at most `most` ahead of the answers; false when it is over.
    pub(crate) fn wait(&self, sent: u64, most: u64) -> bool {
        let mut state = self.lock();
        while !state.over && sent - state.answered > most {
            let (next, timeout) = self.changed.wait_timeout(state, SILENCE_MAX).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timeout.timed_out() {
                return false;
            }
        }
        !state.over
    }
}

/// The windows that a stretch holds at least: what the second one acknowledges was sent, and so written, within the stretch.
const WINDOWS_MIN: u64 = 3;

/// What was acknowledged within a stretch of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) entries: u64,
}

/// How adds at full speed went.
pub(crate) struct FullSpeed {
    pub(crate) stretch: Stretch,
    /// Processor times at both ends of the stretch.
    pub(crate) cpu: [CpuTimes; 2],
}

impl Stretch {
    pub(crate) fn seconds(&self) -> f64 {
        (self.ended - self.begun).as_secs_f64()
    }
}

/// Adds at full speed with a window in flight, for `warm_up` and then `measured`, or longer until some windows are acknowledged: on a machine
/// that stalls the stretch must still hold whole groups. Tells what was acknowledged in the latter.
pub(crate) fn add_at_full_speed(
    address: &str,
    ledgers: &[LedgerId],
    payload: &[u8],
    (warm_up, measured): (Duration, Duration),
) -> Result<FullSpeed> {
    let mut frames = AddFrames::new(ledgers, payload);
    let (most, batch) = frames.window();
    let stream = connect(address)?;
    let mut replies = Replies::new(stream.try_clone().map_err(Error::at("clone a socket"))?);
    let window = Arc::new(Window::default());
    let begin = now() + warm_up;
    let end = begin + measured;
    let sender = {
        let (window, mut stream) = (window.clone(), stream);
        thread("load-send", move || -> Result<()> {
            let mut sent = 0;
            while window.wait(sent + batch, most) {
                stream.write_all(frames.make(sent, batch)).map_err(Error::at("send entries to the bookie"))?;
                sent += batch;
            }
            Ok(())
        })?
    };
    let receiver = thread("load-receive", move || -> Result<FullSpeed> {
        let mut answered = 0;
        let mut first: Option<(Instant, u64, CpuTimes)> = None;
        loop {
            let before = answered;
            let received = replies.receive(|_| answered += 1);
            window.answered(answered - before);
            let came = received.inspect_err(|_| window.end())?;
            match first.take() {
                None if came >= begin => first = Some((came, answered, CpuTimes::now())),
                Some((begun, base, cpu)) if came >= end && answered - base >= WINDOWS_MIN * most => {
                    // Read before any thread ends, and its time with it.
                    let cpu = [cpu, CpuTimes::now()];
                    window.end();
                    return Ok(FullSpeed { stretch: Stretch { begun, ended: came, entries: answered - base }, cpu });
                }
                other => first = other,
            }
        }
    })?;
    let (received, sent) = (join(receiver), join(sender));
    match (received, sent) {
        // The receiver has hung up: a send that failed because of that is no news.
        (Ok(speed), _) => Ok(speed),
        (Err(_), Err(error)) | (Err(error), Ok(())) => Err(error),
    }
}

/// Adds `count` entries in all at full speed and waits until all are acknowledged.
pub(crate) fn add_all(address: &str, ledgers: &[LedgerId], payload: &[u8], count: u64) -> Result<()> {
    let mut frames = AddFrames::new(ledgers, payload);
    let (most, batch) = frames.window();
    let mut stream = connect(address)?;
    let mut replies = Replies::new(stream.try_clone().map_err(Error::at("clone a socket"))?);
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        while sent < count && sent + batch <= answered + most {
            let part = batch.min(count - sent);
            stream.write_all(frames.make(sent, part)).map_err(Error::at("send entries to the bookie"))?;
            sent += part;
        }
        replies.receive(|_| answered += 1)?;
    }
    Ok(())
}

/// How a steady stream of adds went.
pub(crate) struct Steady {
    /// From the time an entry was due to the time its acknowledgement came.
    pub(crate) latency: Histogram<u64>,
    /// How late the generator itself was.
    pub(crate) lateness: Histogram<u64>,
    /// The measured part.
    pub(crate) stretch: Stretch,
}

/// Adds at a fixed rate whatever the answers do: an entry is due at its time, and its latency counts from then, sent or not.
pub(crate) fn add_steadily(
    address: &str,
    ledger: LedgerId,
    payload: &[u8],
    per_second: f64,
    (warm_up, measured): (Duration, Duration),
) -> Result<Steady> {
    let mut frames = AddFrames::new(&[ledger], payload);
    let batch = frames.per_batch();
    let stream = connect(address)?;
    let mut replies = Replies::new(stream.try_clone().map_err(Error::at("clone a socket"))?);
    let warm = (warm_up.as_secs_f64() * per_second) as u64;
    let count = warm + ((measured.as_secs_f64() * per_second) as u64).max(1);
    let start = now() + Duration::from_millis(5);
    let due = move |entry: u64| start + Duration::from_secs_f64(entry as f64 / per_second);
    let sender = {
        let mut stream = stream;
        thread("load-send", move || -> Result<Histogram<u64>> {
            sleep_closely();
            let mut lateness = latencies()?;
            let mut sent = 0;
            while sent < count {
                sleep_until(due(sent));
                let time = now();
                let passed = (time.saturating_duration_since(start).as_secs_f64() * per_second) as u64 + 1;
                let now_due = passed.clamp(sent + 1, count) - sent;
                let now_due = now_due.min(batch);
                if sent >= warm {
                    record(&mut lateness, time.saturating_duration_since(due(sent)));
                }
                stream.write_all(frames.make(sent, now_due)).map_err(Error::at("send entries to the bookie"))?;
                sent += now_due;
            }
            Ok(lateness)
        })?
    };
    let receiver = thread("load-receive", move || -> Result<(Histogram<u64>, Instant)> {
        let mut latency = latencies()?;
        let mut answered = 0;
        let mut last = start;
        let mut entries = Vec::new();
        while answered < count {
            entries.clear();
            let came = replies.receive(|reply| entries.push(u64::try_from(reply.entry).unwrap_or(0)))?;
            for &entry in entries.iter().filter(|entry| **entry >= warm) {
                record(&mut latency, came.saturating_duration_since(due(entry)));
            }
            answered += entries.len() as u64;
            last = came;
        }
        Ok((latency, last))
    })?;
    let (received, sent) = (join(receiver), join(sender));
    let (latency, ended) = received?;
    Ok(Steady { latency, lateness: sent?, stretch: Stretch { begun: due(warm), ended, entries: count - warm } })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn frames_carry_rising_ids_and_are_whole() {
        let ledger = LedgerId::new(7_u64).unwrap();
        let mut frames = AddFrames::new(&[ledger], &[9; 1000]);
        let mut expected = BytesMut::new();
        for entry in 41..44_u64 {
            let entry = EntryId::new(entry).unwrap();
            let header = EntryHeader { ledger, entry, last_confirmed: entry.prev(), length: (entry.get() + 1) * 1000 };
            let mut body = header.to_bytes().to_vec();
            body.extend_from_slice(&[9; 1000]);
            proto::client::encode_add_v2(&MasterKey::derive(b""), &body, AddFlags::default(), &mut expected);
        }
        assert_eq!(frames.make(41, 3), &expected[..]);
        assert!(frames.per_batch() > 200);
    }

    #[test]
    fn ledgers_get_their_entries_in_turn() {
        let ledgers = [3_u64, 4, 5].map(|id| LedgerId::new(id).unwrap());
        let mut frames = AddFrames::new(&ledgers, &[9; 10]);
        let frame_bytes = ADD_HEAD_BYTES + BODY_HEADER_BYTES + 10;
        let made = frames.make(5, 3).chunks_exact(frame_bytes);
        let headers = made.map(|frame| EntryHeader::from_body(&frame[ADD_HEAD_BYTES..]).unwrap());
        let places: Vec<_> = headers.map(|header| (header.ledger.get(), header.entry.get(), header.length)).collect();
        assert_eq!(places, [(5, 1, 20), (3, 2, 30), (4, 2, 30)]);
    }

    #[test]
    fn a_window_lets_no_more_through() {
        let window = Window::default();
        assert!(window.wait(4, 4));
        window.answered(2);
        assert!(window.wait(6, 4));
        window.end();
        assert!(!window.wait(6, 4));
    }
}
