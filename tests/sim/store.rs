//! Metadata as a service of its own host, so that a crash, a cut link or a lost message stands between it and everyone else.
//!
//! A request crosses the network as a ticket of eight bytes, and its content lies in a table under that number: what is simulated
//! is whether and when a message arrives, not how it is encoded. One connection a call; a call that is not answered in time has
//! an outcome that nobody knows.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use metadata::{
    CommitError, Committed, Error, ErrorKind, Key, LeaseId, MetadataStore, Transaction, Versioned, WatchEvent,
    WatchStream,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use turmoil::net::TcpStream;

use crate::net::SimListener;

/// The host.
pub const METADATA: &str = "metadata";
const PORT: u16 = 2379;
/// The longest a call may take.
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// How often a watcher is told that nothing happened, and when it takes silence for loss.
const WATCH_BEAT: Duration = Duration::from_secs(1);
const WATCH_SILENCE: Duration = Duration::from_secs(3);
/// Nothing happened.
const BEAT: u64 = 0;

/// What is under way. Clones are the same table.
#[derive(Clone, Default)]
pub struct Letters(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next: u64,
    letters: BTreeMap<u64, Box<dyn Any + Send>>,
}

impl Letters {
    fn post(&self, letter: impl Any + Send) -> u64 {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.next += 1;
        let ticket = table.next;
        table.letters.insert(ticket, Box::new(letter));
        ticket
    }

    fn take<T: Any>(&self, ticket: u64) -> Option<T> {
        let letter = self.0.lock().unwrap_or_else(PoisonError::into_inner).letters.remove(&ticket)?;
        letter.downcast().ok().map(|letter| *letter)
    }
}

enum Request {
    Get(Key),
    GetQuorum(Key),
    Commit(Transaction),
    List { prefix: Key, after: Option<Key>, limit: usize },
    Watch(Key),
    Grant(Duration),
    KeepAlive(LeaseId),
    Revoke(LeaseId),
}

/// Answers requests of [`RemoteStore`]s out of `store`, for ever.
pub async fn serve(store: Arc<dyn MetadataStore>, letters: Letters) -> std::io::Result<()> {
    let listener = SimListener::bind(METADATA, PORT).await?;
    loop {
        let stream = listener.next().await?;
        let (store, letters) = (store.clone(), letters.clone());
        tokio::spawn(async move {
            // A caller that has gone away needs no answer.
            let _ = answer(&*store, &letters, stream).await;
        });
    }
}

async fn answer(store: &dyn MetadataStore, letters: &Letters, mut stream: TcpStream) -> std::io::Result<()> {
    let ticket = stream.read_u64().await?;
    let Some(request) = letters.take(ticket) else { return Ok(()) };
    let reply = match request {
        Request::Get(key) => letters.post(store.get(&key).await),
        Request::GetQuorum(key) => letters.post(store.get_quorum(&key).await),
        Request::Commit(transaction) => letters.post(store.commit(transaction).await),
        Request::List { prefix, after, limit } => letters.post(store.list(&prefix, after.as_ref(), limit).await),
        Request::Grant(ttl) => letters.post(store.grant_lease(ttl).await),
        Request::KeepAlive(lease) => letters.post(store.keep_alive(lease).await),
        Request::Revoke(lease) => letters.post(store.revoke(lease).await),
        Request::Watch(prefix) => return tell(store.watch(&prefix).await, letters, stream).await,
    };
    stream.write_u64(reply).await
}

/// Tells a watcher what it watches until it goes away.
async fn tell(watch: Result<WatchStream, Error>, letters: &Letters, mut stream: TcpStream) -> std::io::Result<()> {
    let mut events = match watch {
        Ok(events) => events,
        Err(error) => return stream.write_u64(letters.post(Err::<(), Error>(error))).await,
    };
    stream.write_u64(letters.post(Ok::<(), Error>(()))).await?;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => stream.write_u64(letters.post(event)).await?,
                None => return Ok(()),
            },
            () = tokio::time::sleep(WATCH_BEAT) => stream.write_u64(BEAT).await?,
            // Nothing more is asked on this connection: whatever comes is its end.
            _ = stream.read_u8() => return Ok(()),
        }
    }
}

/// A process's way to metadata.
pub struct RemoteStore {
    letters: Letters,
}

/// Why there is no answer.
struct Silence {
    /// The request may have been received.
    sent: bool,
}

impl RemoteStore {
    pub fn new(letters: Letters) -> Arc<Self> {
        Arc::new(Self { letters })
    }

    /// Sends a request and waits for its answer, and gives the connection for what follows.
    async fn call<T: Any>(&self, request: Request) -> Result<(T, TcpStream), Silence> {
        let mut sent = false;
        let exchange = async {
            let mut stream = TcpStream::connect((METADATA, PORT)).await.ok()?;
            sent = true;
            stream.write_u64(self.letters.post(request)).await.ok()?;
            let reply = stream.read_u64().await.ok()?;
            Some((self.letters.take(reply)?, stream))
        };
        let outcome = tokio::time::timeout(CALL_LIMIT, exchange).await.ok().flatten();
        outcome.ok_or(Silence { sent })
    }

    async fn ask<T: Any>(&self, request: Request) -> Result<T, Error> {
        match self.call::<Result<T, Error>>(request).await {
            Ok((answer, _)) => answer,
            Err(Silence { .. }) => Err(no_answer()),
        }
    }
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Unavailable, "reach metadata: no answer")
}

#[async_trait]
impl MetadataStore for RemoteStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.ask(Request::Get(key.clone())).await
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        self.ask(Request::GetQuorum(key.clone())).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        match self.call::<Result<Committed, CommitError>>(Request::Commit(transaction)).await {
            Ok((answer, _)) => answer,
            Err(Silence { sent: true }) => Err(CommitError::Unknown(no_answer())),
            Err(Silence { sent: false }) => Err(CommitError::NotDone(no_answer())),
        }
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        self.ask(Request::List { prefix: prefix.clone(), after: after.cloned(), limit }).await
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        let (answer, stream) = match self.call::<Result<(), Error>>(Request::Watch(prefix.clone())).await {
            Ok(answered) => answered,
            Err(Silence { .. }) => return Err(no_answer()),
        };
        answer?;
        let letters = self.letters.clone();
        let events = futures::stream::unfold(Some(stream), move |stream| {
            let letters = letters.clone();
            async move {
                let mut stream = stream?;
                loop {
                    let told = tokio::time::timeout(WATCH_SILENCE, stream.read_u64()).await;
                    let event = match told {
                        Ok(Ok(BEAT)) => continue,
                        Ok(Ok(ticket)) => letters.take::<WatchEvent>(ticket),
                        Ok(Err(_)) | Err(_) => None,
                    };
                    return match event {
                        Some(WatchEvent::Lost) | None => Some((WatchEvent::Lost, None)),
                        Some(event) => Some((event, Some(stream))),
                    };
                }
            }
        });
        Ok(WatchStream::new(events))
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        self.ask(Request::Grant(ttl)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        self.ask(Request::KeepAlive(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.ask(Request::Revoke(lease)).await
    }
}
