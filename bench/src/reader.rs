//! Who reads: one connection that gets the entries of a ledger in order, with many requests in flight.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use ledger::{BODY_HEADER_BYTES, EntryHeader, EntryId, LedgerId};
use proto::client::{BatchRead, decode_batch_response_v2, decode_response_v2, encode_batch_read_v2, encode_read_v2};
use proto::{ReadTarget, Status};

use crate::cpu::CpuTimes;
use crate::load::{self, Replies, Window};
use crate::plan::{Error, Result};
use crate::timing::{join, thread};

/// Entries in flight: about a megabyte of replies when they have 1 KiB.
const WINDOW: u64 = 1024;
/// Requests for single entries that go together.
const BURST: u64 = 128;
/// Entries of one batch read.
const BATCH: u64 = 512;
/// A batch read's bytes: enough for [`BATCH`] entries of 1 KiB, so that each one brings all it asks for.
const BATCH_BYTES_MAX: u64 = 1 << 20;

/// How entries are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// One request each.
    Singly,
    /// Many with each request.
    InBatches,
}

/// What is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) ledger: LedgerId,
    /// Its entries from 0 on.
    pub(crate) entries: u64,
    pub(crate) payload_bytes: usize,
}

/// Seen from outside while it reads.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Entries that came.
    pub(crate) came: AtomicU64,
    /// Set to end the reading early.
    pub(crate) stop: AtomicBool,
}

/// Reads the range once over a connection of its own and checks that each entry is the one that was asked for. Gives the processor times
/// at the end, before any thread ends and its time with it.
pub(crate) fn read(address: &str, range: Range, ask: Ask, watch: &Arc<Watch>) -> Result<CpuTimes> {
    let Range { ledger, entries, .. } = range;
    let stream = load::connect(address)?;
    let mut replies = Replies::new(stream.try_clone().map_err(Error::at("clone a socket"))?);
    let window = Arc::new(Window::default());
    let sender = {
        let (window, mut stream) = (window.clone(), stream);
        let step = match ask {
            Ask::Singly => BURST,
            Ask::InBatches => BATCH,
        };
        thread("load-send", move || -> Result<()> {
            let (mut sent, mut frames) = (0, BytesMut::new());
            while sent < entries && window.wait(sent + step, WINDOW) {
                frames.clear();
                let end = entries.min(sent + step);
                requests(ledger, sent..end, ask, &mut frames);
                stream.write_all(&frames).map_err(Error::at("send reads to the bookie"))?;
                sent = end;
            }
            Ok(())
        })?
    };
    let watch = Arc::clone(watch);
    let receiver = thread("load-receive", move || -> Result<CpuTimes> {
        let mut seen = Seen { range, answered: 0, wrong: 0, ids: 0 };
        while seen.answered < entries && !watch.stop.load(Ordering::Relaxed) {
            let before = seen.answered;
            let received = replies.receive_frames(|frame| seen.take(frame, ask));
            window.answered(seen.answered - before);
            watch.came.fetch_add(seen.answered - before, Ordering::Relaxed);
            received.inspect_err(|_| window.end())?;
        }
        window.end();
        seen.check()?;
        Ok(CpuTimes::now())
    })?;
    let (received, sent) = (join(receiver), join(sender));
    match (received, sent) {
        // The receiver has hung up: a send that failed because of that is no news.
        (Ok(times), _) => Ok(times),
        (Err(_), Err(error)) | (Err(error), Ok(())) => Err(error),
    }
}

fn requests(ledger: LedgerId, entries: std::ops::Range<u64>, ask: Ask, frames: &mut BytesMut) {
    match ask {
        Ask::Singly => {
            for entry in entries.filter_map(EntryId::new) {
                encode_read_v2(ledger, ReadTarget::Entry(entry), None, false, frames);
            }
        }
        Ask::InBatches => {
            let count = u32::try_from(entries.end - entries.start).unwrap_or(u32::MAX);
            if let Some(start) = EntryId::new(entries.start) {
                let request = start.as_i64();
                let (count_max, bytes_max) = (Some(count), BATCH_BYTES_MAX);
                let read =
                    BatchRead { ledger, start, request, count_max, bytes_max, fence: None, high_priority: false };
                encode_batch_read_v2(&read, frames);
            }
        }
    }
}

/// What came. Every entry once: the sum of their ids tells a reply that came twice in the place of another.
struct Seen {
    range: Range,
    answered: u64,
    wrong: u64,
    ids: u64,
}

impl Seen {
    fn take(&mut self, frame: Bytes, ask: Ask) -> Result<()> {
        let (status, first, bodies) = match ask {
            Ask::Singly => {
                let reply = decode_response_v2(frame).map_err(Error::at("read a reply"))?;
                (reply.status, reply.entry, vec![reply.body])
            }
            Ask::InBatches => {
                let reply = decode_batch_response_v2(frame).map_err(Error::at("read a reply"))?;
                (reply.status, reply.start, reply.entries)
            }
        };
        let first = u64::try_from(first).unwrap_or(0);
        if status != Status::Ok {
            let what = format!("entry {first} of ledger {}", self.range.ledger);
            return Err(Error::new(what, format!("the bookie answered {status:?}")));
        }
        if ask == Ask::InBatches && bodies.len() as u64 != BATCH.min(self.range.entries - first) {
            let what = format!("entries from {first} on of ledger {}", self.range.ledger);
            return Err(Error::new(what, format!("a batch of {} came, which is not what was asked for", bodies.len())));
        }
        for (entry, body) in (first..).zip(&bodies) {
            let whole = body.len() == BODY_HEADER_BYTES + self.range.payload_bytes;
            let own = EntryHeader::from_body(body).is_ok_and(|header| header.entry.get() == entry);
            self.wrong += u64::from(!whole || !own);
            self.ids = self.ids.wrapping_add(entry);
        }
        self.answered += bodies.len() as u64;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.wrong > 0 {
            return Err(Error::new("read entries", format!("{} are not the entry that was asked for", self.wrong)));
        }
        let all = self.range.entries;
        if self.answered == all && self.ids != all * (all - 1) / 2 {
            return Err(Error::new("read entries", "some came twice and others not at all"));
        }
        Ok(())
    }
}
