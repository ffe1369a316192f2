//! Registration: which bookies are there, and where.
//!
//! A live bookie holds its key under a lease, so two processes cannot carry one id. Cold ids are registered without a lease,
//! read-only, by the gateways that own them: see [`crate::ColdShards`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::ledger::{BookieId, BookieServiceInfo, is_cold};
use common::net::Offer;
use tokio::time::Instant;

use crate::{
    CommitError, Error, ErrorKind, Expect, Key, LeaseId, MetadataStore, Transaction, Version, Versioned, WatchStream,
    layout,
};

/// The extension of an endpoint that answers START_TLS.
const TLS_EXTENSION: &str = "tls";
const LIST_PAGE: usize = 500;
const TRIES_MAX: usize = 8;
/// The property of bookies that send readers of ledgers they have dropped on to the cold tier; its value is the way they do it.
const RELAYS: (&str, &str) = ("thermocline.relay", "1");

/// What a registration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookieInfo {
    /// `host:port` of the entry protocol.
    pub address: String,
    /// What it offers or asks of those who connect there.
    pub offer: Offer,
    /// Whether it sends readers of ledgers that it has dropped on to the cold tier.
    pub relays: bool,
}

impl BookieInfo {
    /// At an address that takes everybody as they come, and relays nothing.
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: address.into(), offer: Offer::default(), relays: false }
    }

    /// The stored form: BookKeeper's `BookieServiceInfo`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the address is not `host:port`.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let invalid = || {
            Error::new(ErrorKind::Invalid, format!("register bookie: the address {:?} is not host:port", self.address))
        };
        let (host, port) = self.address.rsplit_once(':').ok_or_else(invalid)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().map_err(|_| invalid())?;
        if host.is_empty() {
            return Err(invalid());
        }
        let mut info = BookieServiceInfo::of_bookie(host, port);
        for endpoint in &mut info.endpoints {
            endpoint.extensions.extend(self.offer.tls.then(|| TLS_EXTENSION.to_owned()));
            endpoint.auth.extend(self.offer.auth.clone());
        }
        if self.relays {
            info.properties.push((RELAYS.0.to_owned(), RELAYS.1.to_owned()));
        }
        Ok(info.encode())
    }

    /// Reads a registration; an empty value stands for a bookie that is found under its id.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] when it is malformed or names no endpoint of the entry protocol.
    pub fn decode(id: &BookieId, value: &[u8]) -> Result<Self, Error> {
        if value.is_empty() {
            return Ok(Self::at(id.as_str()));
        }
        let damaged = || Error::new(ErrorKind::Damaged, format!("read registration of bookie {id}"));
        let info = BookieServiceInfo::decode(value).map_err(|error| damaged().caused_by(error))?;
        let endpoint = info.bookie_endpoint().ok_or_else(|| damaged().caused_by("it has no bookie-rpc endpoint"))?;
        let offer = Offer {
            tls: endpoint.extensions.iter().any(|extension| extension == TLS_EXTENSION),
            auth: endpoint.auth.first().cloned(),
        };
        Ok(Self { address: endpoint.address(), offer, relays: info.property(RELAYS.0) == Some(RELAYS.1) })
    }
}

/// Whether a bookie takes new entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    Writable,
    /// It only serves reads.
    ReadOnly,
}

impl Mode {
    fn key(self, id: &BookieId) -> Key {
        match self {
            Self::Writable => layout::available_key(id),
            Self::ReadOnly => layout::readonly_key(id),
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Writable => Self::ReadOnly,
            Self::ReadOnly => Self::Writable,
        }
    }
}

/// Why a bookie was not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Another live process carries the id.
    #[error(
        "register bookie {id}: another live process has this id, at {address}; stop it, or give this bookie another id"
    )]
    Taken {
        /// The id.
        id: BookieId,
        /// Where the other process says it is.
        address: String,
    },
    /// Surely not registered.
    #[error("the bookie was not registered")]
    NotDone(#[source] Error),
    /// Maybe registered, under the caller's lease: end the lease to be sure that it is not.
    #[error("it is unknown whether the bookie was registered")]
    Unknown(#[source] Error),
}

/// The bookies of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Bookies {
    store: Arc<dyn MetadataStore>,
}

impl Bookies {
    /// The bookies in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// Registers a writable bookie for as long as `lease` lives. Registering again under the same lease is a success.
    ///
    /// # Errors
    /// [`RegisterError::Taken`] at once when another lease holds the id.
    pub async fn register(&self, id: &BookieId, info: &BookieInfo, lease: LeaseId) -> Result<Version, RegisterError> {
        self.register_as(id, info, lease, Mode::Writable).await
    }

    /// As [`Bookies::register`], in either mode; a bookie that this lease holds in the other mode changes over in one step.
    ///
    /// # Errors
    /// As [`Bookies::register`].
    pub async fn register_as(
        &self,
        id: &BookieId,
        info: &BookieInfo,
        lease: LeaseId,
        mode: Mode,
    ) -> Result<Version, RegisterError> {
        let value = info.encode().map_err(RegisterError::NotDone)?;
        let (target, other) = (mode.key(id), mode.other().key(id));
        let mut unsure: Option<Error> = None;
        for _ in 0..TRIES_MAX {
            let settled = |unsure: &mut Option<Error>, error| match unsure.take() {
                None => RegisterError::NotDone(error),
                Some(first) => RegisterError::Unknown(first),
            };
            let there = match self.store.get_quorum(&target).await {
                Ok(there) => there,
                Err(error) => return Err(settled(&mut unsure, error)),
            };
            let elsewhere = match self.store.get_quorum(&other).await {
                Ok(elsewhere) => elsewhere,
                Err(error) => return Err(settled(&mut unsure, error)),
            };
            for found in [&there, &elsewhere].into_iter().flatten() {
                if found.lease != Some(lease) {
                    return Err(taken(id, found));
                }
            }
            if let Some(there) = &there
                && there.value == value
                && elsewhere.is_none()
            {
                return Ok(there.version);
            }
            let still =
                |found: &Option<Versioned>| found.as_ref().map_or(Expect::Absent, |found| Expect::At(found.version));
            let transaction = Transaction::new()
                .put_leased(target.clone(), value.clone(), still(&there), lease)
                .delete(other.clone(), still(&elsewhere));
            match self.store.commit(transaction).await {
                Ok(done) => return Ok(done.put_version(0)),
                // Read again who holds it: us, perhaps, by a try whose answer was lost.
                Err(CommitError::Conflict { .. }) => {}
                Err(CommitError::NotDone(error)) => return Err(settled(&mut unsure, error)),
                Err(CommitError::Unknown(error)) => {
                    unsure.get_or_insert(error);
                }
            }
        }
        Err(match unsure {
            Some(error) => RegisterError::Unknown(error),
            None => {
                RegisterError::NotDone(Error::new(ErrorKind::Unavailable, "register bookie: every try met a change"))
            }
        })
    }

    /// As [`Bookies::register`], but waits up to `patience` for another holder to go: the lease of a process that has just
    /// died ends by itself.
    ///
    /// # Errors
    /// As [`Bookies::register`], [`RegisterError::Taken`] after `patience`.
    pub async fn register_within(
        &self,
        id: &BookieId,
        info: &BookieInfo,
        lease: LeaseId,
        patience: Duration,
    ) -> Result<Version, RegisterError> {
        let deadline = Instant::now() + patience;
        loop {
            let mut changes = self.watch().await.map_err(RegisterError::NotDone)?;
            let taken = match self.register(id, info, lease).await {
                Err(taken @ RegisterError::Taken { .. }) => taken,
                other => return other,
            };
            if tokio::time::timeout_at(deadline, changes.next()).await.is_err() {
                return Err(taken);
            }
        }
    }

    /// Where a bookie is and whether it is writable; `None` when it is not registered. A hint.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn get(&self, id: &BookieId) -> Result<Option<(BookieInfo, bool)>, Error> {
        for mode in [Mode::Writable, Mode::ReadOnly] {
            if let Some(found) = self.store.get(&mode.key(id)).await? {
                return Ok(Some((BookieInfo::decode(id, &found.value)?, mode == Mode::Writable)));
            }
        }
        Ok(None)
    }

    /// All registered bookies: id, info, whether writable. A registration that cannot be read is logged and left out.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self) -> Result<Vec<(BookieId, BookieInfo, bool)>, Error> {
        let root = layout::available_root();
        let mut bookies = Vec::new();
        let mut after: Option<Key> = None;
        loop {
            let rows = self.store.list(&root, after.as_ref(), LIST_PAGE).await?;
            let Some((last, _)) = rows.last() else { return Ok(bookies) };
            after = Some(last.clone());
            for (key, found) in rows {
                let Some((id, writable)) = layout::parse_registration_key(&key) else { continue };
                match BookieInfo::decode(&id, &found.value) {
                    Ok(info) => bookies.push((id, info, writable)),
                    Err(error) => {
                        tracing::error!(bookie = %id, error = &error as &dyn std::error::Error, "registration left out of the listing");
                    }
                }
            }
        }
    }

    /// The bookies that are registered, and whether each sends readers of ledgers it has dropped on to the cold tier. A registration
    /// that says nothing of it, or cannot be read, is of one that does not. Cold ids are left out.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn relaying(&self) -> Result<BTreeMap<BookieId, bool>, Error> {
        let root = layout::available_root();
        let (mut bookies, mut after) = (BTreeMap::new(), None);
        loop {
            let rows = self.store.list(&root, after.as_ref(), LIST_PAGE).await?;
            let Some((last, _)) = rows.last() else { return Ok(bookies) };
            after = Some(last.clone());
            for (key, found) in rows {
                let Some((id, _)) = layout::parse_registration_key(&key) else { continue };
                if !is_cold(&id) {
                    let info = BookieServiceInfo::decode(&found.value).unwrap_or_default();
                    bookies.insert(id, info.property(RELAYS.0) == Some(RELAYS.1));
                }
            }
        }
    }

    /// Watches all registrations.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn watch(&self) -> Result<WatchStream, Error> {
        self.store.watch(&layout::available_root()).await
    }
}

fn taken(id: &BookieId, found: &Versioned) -> RegisterError {
    let address =
        BookieInfo::decode(id, &found.value).map_or_else(|_| "an unknown address".into(), |info| info.address);
    RegisterError::Taken { id: id.clone(), address }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
