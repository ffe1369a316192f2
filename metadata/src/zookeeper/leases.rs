//! Leases: each is a session of its own, and the keys under it are what that session holds.
//!
//! The client keeps a session alive by itself, so a lease that nobody keeps alive is closed here when its time is up. Should this
//! process end without a word, ZooKeeper ends the session by itself, at most its time-out later. That time-out is never shorter than
//! the lease's time, so a connection that fails right after a lease was kept alive does not end it early.
//!
//! Keeping alive is a barrier on the lease's own session: it goes through the quorum, so no leader that others have deposed can say
//! that a session lives which has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use zookeeper_client::{Client, Error as ClientError, SessionState, StateWatcher};

use super::fault::Failure;
use super::links::{CALL_DEADLINE, PATIENCE, barrier};
use crate::{Error, ErrorKind, LeaseId};

/// How long a lease's session may take to be closed.
const CLOSE_DEADLINE: Duration = CALL_DEADLINE;

#[derive(Default)]
pub(super) struct Leases {
    table: Arc<Mutex<Table>>,
}

type Table = HashMap<LeaseId, Lease>;

struct Lease {
    client: Client,
    ttl: Duration,
    kept: Instant,
    /// Ends the lease when it was not kept alive.
    timer: AbortHandle,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

pub(super) fn gone(lease: LeaseId) -> Error {
    Error::new(ErrorKind::LeaseGone, format!("use lease {lease}: it has ended"))
}

fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // Nothing panics while holding the lock; should it ever, the plain data inside is still whole.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leases {
    /// Takes in a new session as a lease.
    pub(super) fn grant(&self, client: Client, ttl: Duration) -> Result<LeaseId, Error> {
        if client.session_timeout() < ttl {
            let message = format!(
                "grant lease: ZooKeeper ends sessions after {} ms at most, {} ms were asked for; raise its maxSessionTimeout",
                client.session_timeout().as_millis(),
                ttl.as_millis(),
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let lease = LeaseId::new(client.session_id().0.cast_unsigned());
        let kept = Instant::now();
        // Locked before the timer runs, which would find nothing to end.
        let mut table = locked(&self.table);
        let timer = tokio::spawn(end_in_time(Arc::downgrade(&self.table), lease, kept + ttl)).abort_handle();
        table.insert(lease, Lease { client, ttl, kept, timer });
        Ok(lease)
    }

    /// The session of a lease that lives, with a connection.
    pub(super) async fn client(&self, lease: LeaseId) -> Result<Client, Error> {
        let client = self.alive(lease)?;
        let mut states = client.state_watcher();
        let give_up = Instant::now() + PATIENCE;
        loop {
            match client.state() {
                SessionState::SyncConnected => return Ok(client),
                state if state.is_terminated() => {
                    self.remove(lease);
                    return Err(gone(lease));
                }
                _ => {}
            }
            if timeout_at(give_up, states.changed()).await.is_err() {
                let message = format!("use lease {lease}: its session has no connection to ZooKeeper");
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
        }
    }

    fn alive(&self, lease: LeaseId) -> Result<Client, Error> {
        let table = locked(&self.table);
        let found = table.get(&lease).filter(|found| Instant::now() < found.kept + found.ttl);
        found.map(|found| found.client.clone()).ok_or_else(|| gone(lease))
    }

    fn remove(&self, lease: LeaseId) -> Option<Lease> {
        locked(&self.table).remove(&lease)
    }

    /// Begins the lease's time anew.
    pub(super) async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let began = Instant::now();
        let client = self.client(lease).await?;
        let what = "keep lease alive";
        match timeout_at(began + PATIENCE, barrier(&client)).await {
            Ok(Ok(())) => match locked(&self.table).get_mut(&lease) {
                Some(found) => {
                    found.kept = found.kept.max(began);
                    Ok(())
                }
                None => Err(gone(lease)),
            },
            Ok(Err(ClientError::SessionExpired | ClientError::ClientClosed)) => {
                self.remove(lease);
                Err(gone(lease))
            }
            Ok(Err(error)) => {
                let failure = Failure::answered(what, &error);
                Err(Error::new(ErrorKind::Unavailable, "keep lease alive").caused_by(failure.error))
            }
            Err(_) => Err(Failure::silent(what, began.elapsed()).error),
        }
    }

    /// Ends a lease and waits until ZooKeeper has removed its keys.
    pub(super) async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let Some(found) = self.remove(lease) else { return Ok(()) };
        let states = found.client.state_watcher();
        drop(found);
        match timeout(CLOSE_DEADLINE, closed(states)).await {
            Ok(()) => Ok(()),
            Err(_) => {
                let message = format!("end lease {lease}: ZooKeeper does not answer; it ends by itself");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }
}

/// Waits for the end of a session whose last client is gone or is going.
async fn closed(mut states: StateWatcher) {
    while !states.state().is_terminated() {
        if states.changed().await.is_terminated() {
            return;
        }
    }
}

/// Ends a lease that was not kept alive. Dropping its client closes the session.
async fn end_in_time(table: Weak<Mutex<Table>>, lease: LeaseId, mut deadline: Instant) {
    loop {
        tokio::time::sleep_until(deadline).await;
        let Some(table) = table.upgrade() else { return };
        let mut table = locked(&table);
        let Some(found) = table.get(&lease) else { return };
        deadline = found.kept + found.ttl;
        if deadline <= Instant::now() {
            tracing::debug!(%lease, "a lease was not kept alive");
            table.remove(&lease);
            return;
        }
    }
}
