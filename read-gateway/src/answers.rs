//! The sending half of a streamed answer.
//!
//! A stream that simply ends tells the caller that all was said. So the task behind it says *done* explicitly; if it goes away without
//! doing so, because it was stopped or panicked, the caller gets an error.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use common::budget::BytePermit;
use futures::Stream;
use tokio::sync::mpsc;
use tonic::Status;

use crate::error::Error;

type Message<T> = (T, Option<BytePermit>);

/// How the task ended; empty when it went away without a word.
type Outcome = Arc<OnceLock<Result<(), Error>>>;

/// The task's end.
pub(crate) struct Answers<T> {
    messages: mpsc::Sender<Message<T>>,
    outcome: Outcome,
}

/// A place for one message.
pub(crate) struct Slot<'a, T>(mpsc::Permit<'a, Message<T>>);

/// The caller's end.
pub(crate) struct AnswerStream<T> {
    messages: mpsc::Receiver<Message<T>>,
    outcome: Outcome,
    /// Of the message that was handed out last: it is being encoded until the next one is asked for.
    in_hand: Option<BytePermit>,
    ended: bool,
}

/// The two ends of a streamed answer. One message waits in between.
pub(crate) fn answers<T>() -> (Answers<T>, AnswerStream<T>) {
    let (sender, messages) = mpsc::channel(1);
    let outcome = Outcome::default();
    let stream = AnswerStream { messages, outcome: Arc::clone(&outcome), in_hand: None, ended: false };
    (Answers { messages: sender, outcome }, stream)
}

impl<T> Answers<T> {
    /// Waits for room for one message; `None` when the caller has gone away. Cancel-safe.
    pub(crate) async fn slot(&self) -> Option<Slot<'_, T>> {
        self.messages.reserve().await.ok().map(Slot)
    }

    /// Resolves when the caller has gone away. Cancel-safe.
    pub(crate) async fn gone(&self) {
        self.messages.closed().await;
    }

    /// Ends the stream, after the messages sent before. Does not wait for the caller.
    pub(crate) fn end(self, result: Result<(), Error>) {
        // It is set here only, and this takes `self`.
        let _ = self.outcome.set(result);
    }
}

impl<T> Slot<'_, T> {
    /// Sends a message; `permit` is given back once it has been encoded.
    pub(crate) fn send(self, message: T, permit: Option<BytePermit>) {
        self.0.send((message, permit));
    }
}

impl<T: Unpin> Stream for AnswerStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        this.in_hand = None;
        if this.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(message) = this.messages.poll_recv(cx) else { return Poll::Pending };
        if let Some((message, permit)) = message {
            this.in_hand = permit;
            return Poll::Ready(Some(Ok(message)));
        }
        this.ended = true;
        Poll::Ready(match this.outcome.get() {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(Err(error.to_status())),
            None => Some(Err(Error::stopping().to_status())),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::StreamExt as _;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn a_stream_ends_well_only_when_it_was_said() {
        let (sender, mut stream) = answers::<u32>();
        sender.slot().await.unwrap().send(7, None);
        assert_eq!(stream.next().await.unwrap().unwrap(), 7);
        sender.end(Ok(()));
        assert!(stream.next().await.is_none());

        let (sender, mut stream) = answers::<u32>();
        drop(sender);
        assert_eq!(stream.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
        assert!(stream.next().await.is_none());
    }
}
