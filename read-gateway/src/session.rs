//! The task of one `ReadEntries` call.
//!
//! It waits for credit, then for room in the answer, then for a batch, in this order: what waits longest holds least. While it
//! waits for its caller it keeps its place in the hot tier for a moment only.

use std::sync::Arc;
use std::time::Duration;

use common::shutdown::TaskTree;
use futures::future::FutureExt as _;
use futures::stream::{Stream, StreamExt as _};
use proto::v1;
use proto::v1::read_entries_request::Message;
use tonic::Status;

use crate::answers::Answers;
use crate::credit::Credit;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::Stream as StreamKind;
use crate::reading::{Reading, Tiers};

/// How long a read that waits for its caller keeps its stream of hot entries, with what that has read ahead.
const KEEP: Duration = Duration::from_secs(1);

/// What a session is given.
pub(crate) struct Session {
    pub(crate) tiers: Arc<Tiers>,
    pub(crate) tasks: TaskTree,
    pub(crate) initial_credit_bytes: u64,
    pub(crate) idle: Duration,
}

impl Session {
    /// Serves one call to its end.
    pub(crate) async fn run<S>(self, requests: S, answers: Answers<v1::ReadEntriesResponse>)
    where
        S: Stream<Item = std::result::Result<v1::ReadEntriesRequest, Status>> + Unpin + Send,
    {
        let metrics = self.tiers.metrics.clone();
        let _open = metrics.stream(StreamKind::Read);
        let result = tokio::select! {
            biased;
            () = answers.gone() => return metrics.read_ended(None),
            () = self.tasks.stopping() => Err(Error::stopping()),
            result = self.serve(requests, &answers) => result,
        };
        if let Err(error) = &result
            && error.kind() == ErrorKind::Damaged
        {
            tracing::warn!(error = %error.chain(), "a read met damage that no other copy could make good");
        }
        metrics.read_ended(Some(&result));
        answers.end(result);
    }

    async fn serve<S>(&self, mut requests: S, answers: &Answers<v1::ReadEntriesResponse>) -> Result<()>
    where
        S: Stream<Item = std::result::Result<v1::ReadEntriesRequest, Status>> + Unpin + Send,
    {
        let first =
            tokio::time::timeout(self.idle, requests.next()).await.map_err(|_| self.too_idle("say what to read"))?;
        let Some(Message::Start(start)) = message(first)? else {
            return Err(Error::new(ErrorKind::Invalid, "the first message must say what to read (`start`)"));
        };
        let initial =
            if start.initial_credit_bytes == 0 { self.initial_credit_bytes } else { start.initial_credit_bytes };
        let mut credit = Credit::new(initial);
        let mut reading = Reading::open(Arc::clone(&self.tiers), &start).await?;
        // False once the caller has ended its side: no further credit can come.
        let mut listening = true;
        while !reading.is_done() {
            while listening && let Some(next) = requests.next().now_or_never() {
                listening = grant(&mut credit, message(next)?)?;
            }
            if !credit.is_open() {
                if !listening {
                    let message = "the credit is used up and the request stream has ended: keep it open and grant more (`credit`)";
                    return Err(Error::new(ErrorKind::Precondition, message));
                }
                let next = match tokio::time::timeout(KEEP, requests.next()).await {
                    Ok(next) => next,
                    Err(_) => {
                        reading.release();
                        let next = tokio::time::timeout(self.idle, requests.next()).await;
                        next.map_err(|_| self.too_idle("grant credit"))?
                    }
                };
                listening = grant(&mut credit, message(next)?)?;
                continue;
            }
            let slot = match tokio::time::timeout(KEEP, answers.slot()).await {
                Ok(slot) => slot,
                Err(_) => {
                    reading.release();
                    let slot = tokio::time::timeout(self.idle, answers.slot()).await;
                    slot.map_err(|_| self.too_idle("take a message"))?
                }
            };
            // Nobody is left to be answered.
            let Some(slot) = slot else { return Ok(()) };
            let permitted = reading.next_batch(credit.left()).await?;
            credit.spend(permitted.batch.bytes());
            slot.send(permitted.batch.into_message(), Some(permitted.permit));
        }
        Ok(())
    }

    fn too_idle(&self, what: &str) -> Error {
        Error::new(ErrorKind::Timeout, format!("the caller did not {what} within {:?}", self.idle))
    }
}

type Next = Option<std::result::Result<v1::ReadEntriesRequest, Status>>;

/// The message, `None` at the end of the caller's stream.
fn message(next: Next) -> Result<Option<Message>> {
    match next {
        None => Ok(None),
        Some(Ok(request)) => match request.message {
            Some(message) => Ok(Some(message)),
            None => Err(Error::new(ErrorKind::Invalid, "a message of the request stream is empty")),
        },
        Some(Err(status)) => Err(Error::because(ErrorKind::Unavailable, "read the request stream", status)),
    }
}

/// Adds credit; false at the end of the caller's stream.
fn grant(credit: &mut Credit, message: Option<Message>) -> Result<bool> {
    match message {
        None => Ok(false),
        Some(Message::Credit(more)) => {
            credit.grant(more.bytes);
            Ok(true)
        }
        Some(Message::Start(_)) => Err(Error::new(ErrorKind::Invalid, "only the first message may say what to read")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
