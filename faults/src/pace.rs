//! Bytes at a fixed rate: what a connection of limited bandwidth does to a body.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};

/// What is let through at once at most; small enough that a reader sees a flow and not bursts.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// When the next bytes may pass, at a rate.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: Option<u64>,
    /// When the bytes let through so far would have passed at the rate.
    free_at: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, free_at: None }
    }

    /// Until when to wait after `bytes` were taken, before they are passed on.
    pub(crate) fn admit(&mut self, bytes: usize) -> Option<Instant> {
        let rate = self.bytes_per_second?;
        let now = Instant::now();
        let from = self.free_at.map_or(now, |at| at.max(now));
        let at = from + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        self.free_at = Some(at);
        Some(at)
    }
}

/// A known body that leaves at a rate.
pub(crate) struct Paced {
    chunks: VecDeque<Bytes>,
    remaining: usize,
    pace: Pace,
    waiting: Option<(Bytes, Pin<Box<Sleep>>)>,
}

impl Paced {
    pub(crate) fn new(chunks: Vec<Bytes>, bytes_per_second: Option<u64>) -> Self {
        let remaining = chunks.iter().map(Bytes::len).sum();
        Self { chunks: chunks.into(), remaining, pace: Pace::new(bytes_per_second), waiting: None }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.remaining
    }

    fn next_piece(&mut self) -> Option<Bytes> {
        let mut chunk = self.chunks.pop_front()?;
        if self.pace.bytes_per_second.is_some() && chunk.len() > PIECE_BYTES {
            let rest = chunk.split_off(PIECE_BYTES);
            self.chunks.push_front(rest);
        }
        Some(chunk)
    }
}

impl futures::Stream for Paced {
    type Item = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.waiting.is_none() {
            let Some(piece) = self.next_piece() else { return Poll::Ready(None) };
            match self.pace.admit(piece.len()) {
                Some(at) => self.waiting = Some((piece, Box::pin(tokio::time::sleep_until(at)))),
                None => {
                    self.remaining -= piece.len();
                    return Poll::Ready(Some(Ok(piece)));
                }
            }
        }
        if let Some((_, sleep)) = &mut self.waiting {
            ready!(sleep.as_mut().poll(cx));
        }
        let piece = self.waiting.take().map(|(piece, _)| piece);
        if let Some(piece) = &piece {
            self.remaining -= piece.len();
        }
        Poll::Ready(piece.map(Ok))
    }
}
