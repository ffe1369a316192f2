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
        let deadline = Instant::now() + self.ttl * 2 + Duration::from_secs(5);
        loop {
            let failed = match self.try_begin().await {
                Ok(lease) => return Ok(lease),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                return Err(failed);
            }
            tracing::debug!(error = &failed as &dyn std::error::Error, "registration is tried again");
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

    /// Keeps the registration alive and true until the bookie stops.
    pub(crate) async fn run(mut self, mut lease: LeaseId, tasks: TaskTree) {
        loop {
            let alive = tokio::select! {
                biased;
                () = tasks.stopping() => break,
                changed = self.state.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.register(lease).await.is_ok()
                }
                () = tokio::time::sleep(self.ttl / 3) => self.store.keep_alive(lease).await.is_ok(),
            };
            if alive {
                continue;
            }
            // The lease may be gone, and the registration with it; a new one needs a new lease.
            let _ = self.store.revoke(lease).await;
            lease = loop {
                match self.try_begin().await {
                    Ok(lease) => break lease,
                    Err(error) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "the registration is lost, and tried again"
                        );
                    }
                }
                tokio::select! {
                    () = tasks.stopping() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            };
        }
        if let Err(error) = self.store.revoke(lease).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the registration ends by itself");
        }
    }
}
