use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use common::budget::BytePermit;
use proto::{Reply, ReplyTo, Status};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

use crate::wakeups::Wake;

/// Answers that wait beyond this stop the reading of requests, in bytes.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Open requests of one connection that stop the reading of more.
const OPEN_MAX: usize = 16 * 1024;
/// A buffer that grew beyond this is not kept for the next answers.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// Answers of one connection on their way to its socket.
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Something to write, or to end for.
    ready: Notify,
    /// Something was written or answered.
    room: Notify,
    armed: AtomicBool,
    open_adds: AtomicUsize,
    open_reads: AtomicUsize,
}

#[derive(Default)]
struct State {
    buffer: BytesMut,
    /// What covers the buffer, one of each budget.
    permits: Vec<BytePermit>,
    /// Bytes taken by the writer and not yet by the peer.
    writing: usize,
    closing: bool,
    failed: bool,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            ready: Notify::new(),
            room: Notify::new(),
            armed: AtomicBool::new(false),
            open_adds: AtomicUsize::new(0),
            open_reads: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an answer down; `permits` cover it until the peer has it. The writer is not woken: see [`Wake`].
    pub(crate) fn put(&self, to: &ReplyTo, reply: &Reply, permits: impl IntoIterator<Item = BytePermit>) {
        let mut state = self.lock();
        if state.failed {
            return;
        }
        to.encode(reply, &mut state.buffer);
        for permit in permits {
            merge(&mut state.permits, permit);
        }
    }

    /// Puts a complete frame down.
    pub(crate) fn put_frame(&self, frame: &Bytes) {
        let mut state = self.lock();
        if !state.failed {
            state.buffer.extend_from_slice(frame);
        }
    }

    /// Puts a failure down.
    pub(crate) fn put_failure(&self, to: &ReplyTo, status: Status) {
        self.put(to, &Reply::Failed(status), None);
    }

    /// Counts an add in; tells whether others are open, whose answers must come first.
    pub(crate) fn open_add(&self) -> bool {
        self.open_adds.fetch_add(1, Ordering::AcqRel) > 0
    }

    pub(crate) fn close_add(&self) {
        self.open_adds.fetch_sub(1, Ordering::AcqRel);
        self.room.notify_waiters();
    }

    pub(crate) fn open_read(&self) {
        self.open_reads.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn close_read(&self) {
        self.open_reads.fetch_sub(1, Ordering::AcqRel);
        self.room.notify_waiters();
    }

    fn open(&self) -> usize {
        self.open_adds.load(Ordering::Acquire) + self.open_reads.load(Ordering::Acquire)
    }

    /// Waits until another request may be taken in; false when the connection is lost. Cancel-safe.
    pub(crate) async fn wait_for_room(&self) -> bool {
        self.wait_until(|state| self.room_in(state)).await
    }

    /// Whether another request may be taken in now.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.lock();
        !state.failed && self.room_in(&state)
    }

    fn room_in(&self, state: &State) -> bool {
        state.buffer.len() + state.writing < WAITING_BYTES_MAX && self.open() < OPEN_MAX
    }

    /// Waits until more answers may be put down; false when the connection is lost. Cancel-safe.
    pub(crate) async fn wait_for_room_to_answer(&self) -> bool {
        self.wait_until(|state| state.buffer.len() + state.writing < WAITING_BYTES_MAX).await
    }

    /// Waits until every open request is answered; false when the connection is lost. Cancel-safe.
    pub(crate) async fn wait_until_answered(&self) -> bool {
        self.wait_until(|_| self.open() == 0).await
    }

    async fn wait_until(&self, reached: impl Fn(&State) -> bool) -> bool {
        loop {
            let changed = self.room.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.lock();
                if state.failed {
                    return false;
                }
                if reached(&state) {
                    return true;
                }
            }
            changed.await;
        }
    }

    /// Resolves when the connection is lost. Cancel-safe.
    pub(crate) async fn lost(&self) {
        while self.wait_until(|_| false).await {}
    }

    /// No more answers will come: the writer sends what waits and ends.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.ready.notify_one();
    }

    fn fail(&self) {
        let mut state = self.lock();
        state.failed = true;
        state.buffer = BytesMut::new();
        state.permits = Vec::new();
        drop(state);
        self.room.notify_waiters();
    }

    /// Sends answers until the outbox is closed and empty, or the peer takes nothing for `patience`.
    pub(crate) async fn write_to(&self, socket: &mut (impl AsyncWrite + Unpin), patience: Duration) -> io::Result<()> {
        let result = self.write_all_to(socket, patience).await;
        self.fail();
        result
    }

    async fn write_all_to(&self, socket: &mut (impl AsyncWrite + Unpin), patience: Duration) -> io::Result<()> {
        let mut spare = BytesMut::new();
        loop {
            self.armed.store(false, Ordering::Release);
            let (mut buffer, permits, closing) = {
                let mut state = self.lock();
                state.writing = state.buffer.len();
                let permits = std::mem::take(&mut state.permits);
                (std::mem::replace(&mut state.buffer, std::mem::take(&mut spare)), permits, state.closing)
            };
            if buffer.is_empty() {
                if closing {
                    return tokio::time::timeout(patience, socket.shutdown()).await?;
                }
                spare = buffer;
                self.ready.notified().await;
                continue;
            }
            while buffer.has_remaining() {
                let taken = tokio::time::timeout(patience, socket.write(&buffer)).await??;
                if taken == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                buffer.advance(taken);
                self.lock().writing = buffer.len();
                self.room.notify_waiters();
            }
            tokio::time::timeout(patience, socket.flush()).await??;
            drop(permits);
            buffer.clear();
            if buffer.capacity() <= KEPT_BYTES_MAX {
                spare = buffer;
            }
        }
    }
}

fn merge(held: &mut Vec<BytePermit>, more: BytePermit) {
    let mut more = Some(more);
    for permit in held.iter_mut() {
        more = more.and_then(|more| permit.try_merge(more).err());
    }
    held.extend(more);
}

impl Wake for Outbox {
    fn wake(&self) {
        self.ready.notify_one();
    }

    fn arm(&self) -> bool {
        !self.armed.swap(true, Ordering::AcqRel)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_loses_the_connection() {
        let outbox = Arc::new(Outbox::new());
        let (mut ours, _theirs) = tokio::io::duplex(10);
        outbox.put_frame(&Bytes::from(vec![0; 2 * WAITING_BYTES_MAX]));
        let waiting = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.wait_for_room().await }
        });
        let error = outbox.write_to(&mut ours, Duration::from_secs(3)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(!waiting.await.unwrap(), "told that the connection is lost");
        outbox.put_frame(&Bytes::from_static(b"late"));
        assert!(outbox.lock().buffer.is_empty(), "nothing piles up for a lost connection");
    }

    #[tokio::test]
    async fn what_waits_is_sent_before_the_end() {
        let outbox = Outbox::new();
        let (mut ours, mut theirs) = tokio::io::duplex(1000);
        outbox.put_frame(&Bytes::from_static(b"one"));
        outbox.put_frame(&Bytes::from_static(b"two"));
        outbox.close();
        outbox.write_to(&mut ours, Duration::from_secs(3)).await.unwrap();
        drop(ours);
        let mut got = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut theirs, &mut got).await.unwrap();
        assert_eq!(got, b"onetwo");
    }
}
