//! Bodies on their way through: counted, cut, slowed down.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::Sleep;

use super::Shared;
use crate::pace::{PIECE_BYTES, Pace};

/// A body was cut on purpose.
#[derive(Debug, thiserror::Error)]
#[error("the body was cut after {0} bytes, as ordered")]
pub(super) struct Cut(u64);

pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Which way a body goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Up,
    Down,
}

/// A request's or an answer's body.
pub(super) struct Passing {
    inner: Source,
    shared: Arc<Shared>,
    place: usize,
    way: Way,
    cut_after: Option<u64>,
    passed: u64,
    pace: Pace,
    waiting: Option<(Bytes, Pin<Box<Sleep>>)>,
    pieces: VecDeque<Bytes>,
    /// Notes the end of the request in the log when the answer is through, or nobody wants it any more.
    begun: Option<tokio::time::Instant>,
}

pub(super) type RequestBody = Passing;

enum Source {
    Incoming(Incoming),
    Whole(Option<Bytes>),
}

impl Passing {
    fn new(inner: Source, shared: Arc<Shared>, place: usize, way: Way) -> Self {
        Self {
            inner,
            shared,
            place,
            way,
            cut_after: None,
            passed: 0,
            pace: Pace::new(None),
            waiting: None,
            pieces: VecDeque::new(),
            begun: None,
        }
    }

    pub(super) fn incoming(body: Incoming, shared: Arc<Shared>, place: usize, way: Way) -> Self {
        Self::new(Source::Incoming(body), shared, place, way)
    }

    pub(super) fn whole(body: Bytes, shared: Arc<Shared>, place: usize, way: Way) -> Self {
        Self::new(Source::Whole(Some(body)), shared, place, way)
    }

    pub(super) fn cut_after(mut self, bytes: Option<u64>) -> Self {
        self.cut_after = bytes;
        self
    }

    pub(super) fn paced(mut self, bytes_per_second: Option<u64>) -> Self {
        self.pace = Pace::new(bytes_per_second);
        self
    }

    pub(super) fn ends_request(mut self, begun: tokio::time::Instant) -> Self {
        self.begun = Some(begun);
        self
    }

    fn pass(&mut self, bytes: &Bytes) {
        self.passed += bytes.len() as u64;
        let mut state = self.shared.state();
        if let Some(record) = state.log.get_mut(self.place) {
            match self.way {
                Way::Up => record.bytes_up += bytes.len() as u64,
                Way::Down => record.bytes_down += bytes.len() as u64,
            }
        }
    }

    /// The next bytes of the source, in pieces that a pace can be kept with.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(piece) = self.pieces.pop_front() {
            return Poll::Ready(Some(Ok(piece)));
        }
        let mut bytes = match &mut self.inner {
            Source::Whole(bytes) => match bytes.take() {
                Some(bytes) => bytes,
                None => return Poll::Ready(None),
            },
            Source::Incoming(body) => loop {
                match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                    None => return Poll::Ready(None),
                    Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                    // Trailers of HTTP itself are not used by object stores.
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(bytes) => break bytes,
                        Err(_) => continue,
                    },
                }
            },
        };
        while bytes.len() > PIECE_BYTES {
            self.pieces.push_back(bytes.split_to(PIECE_BYTES));
        }
        self.pieces.push_back(bytes);
        Poll::Ready(self.pieces.pop_front().map(Ok))
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = &mut *self;
        if let Some(most) = this.cut_after
            && this.passed >= most
        {
            return Poll::Ready(Some(Err(Box::new(Cut(most)))));
        }
        if this.waiting.is_none() {
            let Some(piece) = ready!(this.poll_piece(cx)) else { return Poll::Ready(None) };
            let mut piece = piece?;
            if let Some(most) = this.cut_after {
                piece.truncate(usize::try_from(most - this.passed).unwrap_or(usize::MAX));
            }
            match this.pace.admit(piece.len()) {
                Some(at) => this.waiting = Some((piece, Box::pin(tokio::time::sleep_until(at)))),
                None => {
                    this.pass(&piece);
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
            }
        }
        if let Some((_, sleep)) = &mut this.waiting {
            ready!(sleep.as_mut().poll(cx));
        }
        Poll::Ready(this.waiting.take().map(|(piece, _)| {
            this.pass(&piece);
            Ok(Frame::data(piece))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none()
            && self.pieces.is_empty()
            && self.cut_after.is_none()
            && match &self.inner {
                Source::Incoming(body) => body.is_end_stream(),
                Source::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            }
    }

    /// The length the sender promised, also of a body that will be cut: the receiver must see that bytes are missing.
    fn size_hint(&self) -> SizeHint {
        let waiting = self.waiting.as_ref().map_or(0, |(piece, _)| piece.len() as u64);
        let queued = waiting + self.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let exact = match &self.inner {
            Source::Incoming(body) => body.size_hint().exact(),
            Source::Whole(bytes) => Some(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        };
        exact.map_or_else(SizeHint::new, |rest| SizeHint::with_exact(rest + queued))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(begun) = self.begun {
            let mut state = self.shared.state();
            if let Some(record) = state.log.get_mut(self.place) {
                record.duration = Some(begun.elapsed());
            }
        }
    }
}
