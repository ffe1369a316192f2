//! The way to the members: one session for everything that is not leased, replaced as soon as its connection is lost.
//!
//! Consistency: a session's requests are carried out in their order, and its reads see at least what its writes and earlier reads saw.
//! A *barrier* is a transaction that changes nothing: it is ordered by the quorum and answered by the member only after that member
//! has caught up with it. Each new session begins with one, so that a hint is never older than what this store has shown,
//! whichever member answers. The same holds after something was done or seen on another session: [`Links::shown_elsewhere`].
//! A read behind a barrier is a proof: what it shows was true after the barrier was ordered, and a member that lags cannot
//! answer the barrier.
//!
//! Retries: calls that may be repeated are, on a new session, for a short while. A commit is not sent again once it may have left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::retry::RetryPolicy;
use common::rng::Rng;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{Client, Error as ClientError, MultiWriteError, SessionState};

use super::fault::Failure;
use super::target::Target;
use crate::{Error, ErrorKind};

/// How long one call of the store may take.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// How long calls are tried again that fail quickly.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How long a new session may take to come about.
const CONNECT_DEADLINE: Duration = Duration::from_secs(4);
/// Of the session that holds nothing: how soon a silent connection is given up follows from it (two fifths).
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The members, and the session in use.
pub(super) struct Links {
    target: Target,
    session: Mutex<Option<Arc<Session>>>,
    /// How often something was shown that the session in use may not know yet.
    elsewhere: AtomicU64,
    rng: Rng,
}

/// A session, and up to which `elsewhere` it has caught up.
pub(super) struct Session {
    pub(super) client: Client,
    caught_up: AtomicU64,
}

impl Links {
    /// Connects nothing yet.
    pub(super) fn new(target: Target, rng: Rng) -> Self {
        Self { target, session: Mutex::new(None), elsewhere: AtomicU64::new(0), rng }
    }

    pub(super) fn endpoints(&self) -> String {
        self.target.endpoints.join(", ")
    }

    /// Connects a session of its own, that lives `timeout` without a connection. The server may choose another time.
    pub(super) async fn connect(&self, timeout: Duration) -> Result<Client, Failure> {
        let mut endpoints = self.target.endpoints.clone();
        for place in (1..endpoints.len()).rev() {
            let other = usize::try_from(self.rng.below(place as u64 + 1)).unwrap_or(place);
            endpoints.swap(place, other);
        }
        // The client goes on by itself from a member that refuses. One that swallows everything would use up the time, so each
        // member comes first once, with its share.
        let share = CONNECT_DEADLINE / u32::try_from(endpoints.len()).unwrap_or(u32::MAX).max(1);
        for _ in 0..endpoints.len() {
            let connector = Client::connector().with_session_timeout(timeout).with_fail_eagerly();
            let place = endpoints.join(",");
            match tokio::time::timeout(share, connector.connect(&place)).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(error)) => return Err(Failure::unsent(self.unreachable(&error.to_string()))),
                Err(_) => endpoints.rotate_left(1),
            }
        }
        Err(Failure::unsent(self.unreachable("no answer in time")))
    }

    fn unreachable(&self, why: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("connect to ZooKeeper at {}: {why}", self.endpoints()))
    }

    /// The session in use, or a new one behind a barrier when its connection is lost.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Failure> {
        let mut slot = self.session.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| session.client.state() == SessionState::SyncConnected) {
            return Ok(Arc::clone(session));
        }
        *slot = None;
        let elsewhere = self.elsewhere.load(Ordering::Acquire);
        let client = self.connect(SESSION_TIMEOUT).await?;
        let barrier = tokio::time::timeout(CONNECT_DEADLINE, barrier(&client));
        match barrier.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(Failure::answered("begin a session", &error)),
            Err(_) => return Err(Failure::silent("begin a session", CONNECT_DEADLINE)),
        }
        Ok(Arc::clone(slot.insert(Arc::new(Session { client, caught_up: AtomicU64::new(elsewhere) }))))
    }

    /// A session whose reads are hints: it has caught up with everything this store has shown.
    async fn caught_up(&self) -> Result<Arc<Session>, Failure> {
        let session = self.session().await?;
        let elsewhere = self.elsewhere.load(Ordering::Acquire);
        if session.caught_up.load(Ordering::Acquire) < elsewhere {
            barrier(&session.client).await.map_err(|error| Failure::answered("catch up", &error))?;
            session.caught_up.fetch_max(elsewhere, Ordering::AcqRel);
        }
        Ok(session)
    }

    /// Something was done or seen on another session.
    pub(super) fn shown_elsewhere(&self) {
        self.elsewhere.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets go of a session that failed, if it is still the one that others would use. Someone who holds the slot now is about to
    /// replace it.
    pub(super) fn give_back(&self, session: &Arc<Session>) {
        let Ok(mut slot) = self.session.try_lock() else { return };
        if slot.as_ref().is_some_and(|held| Arc::ptr_eq(held, session)) {
            *slot = None;
        }
    }

    /// A call that may be repeated, whatever became of it. Gives the first failure: later ones are often its echo.
    pub(super) async fn repeatable<T, F>(&self, what: &str, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let began = Instant::now();
        let give_up = began + CALL_DEADLINE;
        let mut backoff = RetryPolicy { max: Duration::from_millis(500), ..RetryPolicy::default() }.backoff();
        let mut first: Option<Failure> = None;
        loop {
            let mut used = None;
            let asked = timeout_at(give_up, async {
                let session = used.insert(self.caught_up().await?);
                call(session.client.clone()).await.map_err(|error| Failure::answered(what, &error))
            });
            let failure = match asked.await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) if !failure.is_passing() => return Err(failure),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::silent(what, began.elapsed()),
            };
            if let Some(session) = &used {
                self.give_back(session);
            }
            let tries_left = first.is_none();
            first.get_or_insert(failure);
            let wait = backoff.next_wait(&self.rng);
            let patience_ends = began.elapsed() + wait >= PATIENCE && !tries_left;
            if let Some(failure) = first.take_if(|_| patience_ends || Instant::now() + wait >= give_up) {
                return Err(failure);
            }
            tokio::time::sleep(wait).await;
        }
    }
}

/// Waits until the member has caught up with everything that was done before this call: through the quorum.
pub(super) fn barrier(client: &Client) -> impl Future<Output = Result<(), ClientError>> + Send {
    let mut writer = client.new_multi_writer();
    let added = writer.add_check_version("/", -1);
    let answer = writer.commit();
    async move {
        added?;
        match answer.await {
            // The leader knows the session no more, or as another member's.
            Err(MultiWriteError::OperationFailed {
                source: source @ (ClientError::SessionExpired | ClientError::SessionMoved),
                ..
            }) => Err(source),
            // Refused by the leader: that answer, too, goes through the quorum.
            Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => Ok(()),
            Err(MultiWriteError::RequestFailed { source }) => Err(source),
        }
    }
}
