//! The live writers of this gateway, one for each open ledger that was created here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::LedgerWriter;
use futures::future::FutureExt as _;
use futures::stream::{Stream, StreamExt as _};
use ledger::{LedgerId, Password};
use proto::v1;
use proto::v1::append_request::Message;
use tokio::sync::mpsc;
use tonic::Status;

use crate::answers::Answers;
use crate::error::{Error, ErrorKind, Result};

/// Appends of one stream that wait for their acknowledgement at most. Their bytes are bounded by the client's budget; this bounds
/// how many empty ones there may be.
const UNACKNOWLEDGED_MAX: usize = 8_192;

/// Acknowledgements in one message at most.
const RUN_MAX: u64 = 4_096;

/// A writer and who uses it.
pub(crate) struct Live {
    pub(crate) writer: LedgerWriter,
    password: Password,
    appending: AtomicBool,
}

impl Live {
    /// Lets in whoever knows the ledger's password.
    fn check_password(&self, shown: &[u8]) -> Result<()> {
        if self.password.is_empty() || self.password.ct_eq(&Password::new(shown.to_vec())) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Denied, format!("the password is not that of ledger {}", self.writer.id())))
    }
}

/// Held by the one append stream a ledger may have.
struct Appending(Arc<Live>);

impl Appending {
    fn begin(live: &Arc<Live>) -> Result<Self> {
        if live.appending.swap(true, Ordering::AcqRel) {
            let message = format!(
                "append to ledger {}: another append stream is open; end it first, a ledger has one writer",
                live.writer.id()
            );
            return Err(Error::new(ErrorKind::Precondition, message));
        }
        Ok(Self(Arc::clone(live)))
    }
}

impl Drop for Appending {
    fn drop(&mut self) {
        self.0.appending.store(false, Ordering::Release);
    }
}

/// The registry. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Writers {
    live: Arc<Mutex<BTreeMap<LedgerId, Arc<Live>>>>,
    limit: usize,
}

impl Writers {
    pub(crate) fn new(limit: usize) -> Self {
        Self { live: Arc::default(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LedgerId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses early what [`Writers::keep`] would have no place for.
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.lock().len() < self.limit {
            return Ok(());
        }
        let message = format!("{} ledgers are open for writing here, the most allowed: close some first", self.limit);
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    pub(crate) fn keep(&self, writer: LedgerWriter, password: Password) {
        let ledger = writer.id();
        let live = Live { writer, password, appending: AtomicBool::new(false) };
        self.lock().insert(ledger, Arc::new(live));
    }

    pub(crate) fn get(&self, ledger: LedgerId) -> Option<Arc<Live>> {
        self.lock().get(&ledger).cloned()
    }

    /// Forgets a writer. Not before its ledger is known to be closed or gone: until then it alone knows how far the ledger is
    /// confirmed, the bookies are an entry behind.
    pub(crate) fn remove(&self, ledger: LedgerId) {
        self.lock().remove(&ledger);
    }

    /// Every ledger with a writer here.
    pub(crate) fn ledgers(&self) -> Vec<LedgerId> {
        self.lock().keys().copied().collect()
    }

    /// The writer of a ledger, for whoever knows its password; `None`: it is not here.
    pub(crate) fn open(&self, ledger: LedgerId, shown: &[u8]) -> Result<Option<Arc<Live>>> {
        let Some(live) = self.get(ledger) else { return Ok(None) };
        live.check_password(shown)?;
        Ok(Some(live))
    }
}

/// The first message of an append stream, for which it waits no longer than `idle`.
pub(crate) async fn first_message<S>(requests: &mut S, idle: Duration) -> Result<v1::AppendOpen>
where
    S: Stream<Item = std::result::Result<v1::AppendRequest, Status>> + Unpin + Send,
{
    let too_idle =
        |_| Error::new(ErrorKind::Timeout, format!("the caller did not say what to append to within {idle:?}"));
    match message(tokio::time::timeout(idle, requests.next()).await.map_err(too_idle)?)? {
        Some(Message::Open(open)) => Ok(open),
        _ => Err(Error::new(ErrorKind::Invalid, "the first message must name the ledger (`open`)")),
    }
}

/// Appends what comes and acknowledges it in order, until the caller ends its side or an append fails.
pub(crate) async fn append<S>(live: &Arc<Live>, mut requests: S, answers: &Answers<v1::AppendResponse>) -> Result<()>
where
    S: Stream<Item = std::result::Result<v1::AppendRequest, Status>> + Unpin + Send,
{
    let appending = Appending::begin(live)?;
    let (promises, unacknowledged) = mpsc::channel(UNACKNOWLEDGED_MAX);
    let feed = async move {
        while let Some(message) = message(requests.next().await)? {
            let Message::Entries(entries) = message else {
                return Err(Error::new(ErrorKind::Invalid, "only the first message may name the ledger"));
            };
            for payload in entries.payloads {
                let promise = appending.0.writer.append(payload).await.map_err(|error| failed(&appending.0, error))?;
                // Nobody acknowledges any more: an earlier append failed, and that is the answer.
                if promises.send(promise).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    };
    let acknowledge = acknowledge(live, unacknowledged, answers);
    tokio::pin!(feed, acknowledge);
    let mut fed = None;
    let acknowledged = loop {
        tokio::select! {
            biased;
            acknowledged = &mut acknowledge => break acknowledged,
            result = &mut feed, if fed.is_none() => fed = Some(result),
        }
    };
    acknowledged.and(fed.unwrap_or(Ok(())))
}

/// Sends a run of acknowledgements as soon as its first entry is confirmed, with all that are confirmed by then.
async fn acknowledge(
    live: &Live,
    mut unacknowledged: mpsc::Receiver<client::Append>,
    answers: &Answers<v1::AppendResponse>,
) -> Result<()> {
    let mut next = unacknowledged.recv().await;
    while let Some(promise) = next.take() {
        let first = promise.await.map_err(|error| failed(live, error))?;
        let mut count = 1;
        let mut failure = None;
        while count < RUN_MAX {
            let Ok(mut promise) = unacknowledged.try_recv() else { break };
            match (&mut promise).now_or_never() {
                Some(Ok(_)) => count += 1,
                Some(Err(error)) => {
                    failure = Some(failed(live, error));
                    break;
                }
                None => {
                    next = Some(promise);
                    break;
                }
            }
        }
        let Some(slot) = answers.slot().await else { return Ok(()) };
        slot.send(v1::AppendResponse { first_entry_id: first.get(), count }, None);
        if let Some(error) = failure {
            return Err(error);
        }
        if next.is_none() {
            next = unacknowledged.recv().await;
        }
    }
    Ok(())
}

fn failed(live: &Live, error: client::Error) -> Error {
    let error = Error::from(error);
    let message = format!(
        "append to ledger {}: entries not acknowledged may or may not be in it; close it, and go on in a new one",
        live.writer.id()
    );
    Error::because(error.kind(), message, error)
}

fn message(next: Option<std::result::Result<v1::AppendRequest, Status>>) -> Result<Option<Message>> {
    match next {
        None => Ok(None),
        Some(Ok(request)) => match request.message {
            Some(message) => Ok(Some(message)),
            None => Err(Error::new(ErrorKind::Invalid, "a message of the request stream is empty")),
        },
        Some(Err(status)) => Err(Error::because(ErrorKind::Unavailable, "read the request stream", status)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_never_names_a_ledger_is_ended() {
        let error = first_message(&mut futures::stream::pending(), Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
}
