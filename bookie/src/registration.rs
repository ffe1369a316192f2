//! Tells the cluster that the bookie is there, where, and whether it takes adds.

use std::time::Duration;

use common::shutdown::TaskTree;
use ledger::BookieId;
use metadata::{BookieInfo, Bookies, LeaseId, MetadataStore, Mode, RegisterError};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Error;
use crate::store::BookieState;

/// Pause between tries to register.
const RETRY: Duration = Duration::from_millis(250);

pub(crate) struct Registration {
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) id: BookieId,
    pub(crate) info: BookieInfo,
    pub(crate) ttl: Duration,
    pub(crate) state: watch::Receiver<BookieState>,
}

fn mode(state: &BookieState) -> Mode {
    match state {
        BookieState::Writable => Mode::Writable,
        BookieState::ReadOnly { .. } => Mode::ReadOnly,
    }
}

impl Registration {
    /// Registers for the first time. The registration of a process that just died ends by itself, so a taken id is waited for.
    pub(crate) async fn begin(&mut self) -> Result<LeaseId, Error> {
        let patience = self.ttl * 2 + Duration::from_secs(5);
        let deadline = Instant::now() + patience;
        let mut told = false;
        loop {
            let failed = match self.try_begin().await {
                Ok(lease) => return Ok(lease),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                return Err(failed);
            }
            if !std::mem::replace(&mut told, true) {
                let error = &failed as &dyn std::error::Error;
                tracing::info!(
                    bookie = %self.id,
                    error,
                    "not registered yet; the registration of a process that died ends with its lease, waiting up to {patience:?}"
                );
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_begin(&mut self) -> Result<LeaseId, Error> {
        let lease = self.store.grant_lease(self.ttl).await;
        let lease = lease.map_err(|error| Error::metadata("take a lease for the registration", error))?;
        match self.register(lease).await {
            Ok(()) => Ok(lease),
            Err(error) => {
                // A lease nobody keeps alive ends by itself, should this fail.
                let _ = self.store.revoke(lease).await;
                Err(match error {
                    RegisterError::Taken { .. } => {
                        Error::Identity(format!("{error}; two bookies must never run with one id"))
                    }
                    other => Error::metadata("register", other),
                })
            }
        }
    }

    async fn register(&mut self, lease: LeaseId) -> Result<(), RegisterError> {
        let mode = mode(&self.state.borrow_and_update());
        Bookies::new(self.store.clone()).register_as(&self.id, &self.info, lease, mode).await.map(|_| ())
    }

    /// Shows that the bookie lives; registers where that is not so, or where it is not known to be so.
    async fn beat(&mut self, lease: &mut LeaseId, registered: bool) -> Result<(), Error> {
        match self.store.keep_alive(*lease).await {
            Ok(()) if registered => Ok(()),
            Ok(()) => self.register(*lease).await.map_err(|error| Error::metadata("register", error)),
            Err(error) if error.kind() == metadata::ErrorKind::LeaseGone => {
                *lease = self.try_begin().await?;
                Ok(())
            }
            Err(error) => Err(Error::metadata("keep the registration", error)),
        }
    }

    /// Keeps the registration alive and true until the bookie stops. While metadata is away the bookie serves on; the registration
    /// is kept if it comes back within the lease's life, and made anew otherwise.
    pub(crate) async fn run(mut self, mut lease: LeaseId, tasks: TaskTree) {
        let (mut kept, mut told) = (Instant::now(), false);
        let (mut registered, mut pause) = (true, self.ttl / 3);
        loop {
            tokio::select! {
                biased;
                () = tasks.stopping() => break,
                changed = self.state.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    registered = false;
                }
                () = tokio::time::sleep(pause) => {}
            }
            let asked = Instant::now();
            match self.beat(&mut lease, registered).await {
                Ok(()) => {
                    if std::mem::take(&mut told) {
                        tracing::info!(bookie = %self.id, "registered again");
                    }
                    (kept, registered, pause) = (asked, true, self.ttl / 3);
                }
                Err(error) => {
                    (registered, pause) = (false, RETRY);
                    let error = &error as &dyn std::error::Error;
                    // Until then the registration stands.
                    if kept.elapsed() >= self.ttl && !std::mem::replace(&mut told, true) {
                        tracing::warn!(bookie = %self.id, error, "the registration is lost; the bookie serves on and registers again as soon as it can");
                    } else {
                        tracing::debug!(bookie = %self.id, error, "the registration is tried again");
                    }
                }
            }
        }
        if let Err(error) = self.store.revoke(lease).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the registration ends by itself");
        }
    }
}
