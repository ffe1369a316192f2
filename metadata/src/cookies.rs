//! Cookies: what ties a bookie's id to its directories and its cluster.
//!
//! The same text stands in the metadata store and in a file `VERSION` in each directory. A bookie whose directories do not
//! show its cookie has lost data or is not that bookie, and must not serve.

mod manage;
mod text;
mod verify;

use std::sync::Arc;

use ::ledger::BookieId;

pub use manage::{RemoveCookieError, StoredCookie};
pub use text::Cookie;
pub use verify::{CookieMismatch, CookieVerdict, LocalCookie, verify};

use crate::{Error, Expect, MetadataStore, Version, Versioned, WriteError, layout, resolve};

/// The cookies in the metadata store. Cheap to clone.
#[derive(Clone)]
pub struct Cookies {
    store: Arc<dyn MetadataStore>,
}

impl Cookies {
    /// The cookies in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// The stored cookie of a bookie, by proof: a boot decides by its absence.
    ///
    /// # Errors
    /// Those of the store; [`crate::ErrorKind::Damaged`] when it cannot be read.
    pub async fn get(&self, id: &BookieId) -> Result<Option<(Cookie, Version)>, Error> {
        let Some(found) = self.store.get_quorum(&layout::cookie_key(id)).await? else { return Ok(None) };
        Ok(Some((Cookie::decode(&found.value)?, found.version)))
    }

    /// Stores the cookie of a new bookie. An unknown outcome is settled by reading it back.
    ///
    /// # Errors
    /// `Conflict` with the cookie that is there already.
    pub async fn create(&self, cookie: &Cookie) -> Result<Version, WriteError<Option<Box<Cookie>>>> {
        self.put(cookie, Expect::Absent).await
    }

    /// Replaces the cookie that has version `expected`.
    ///
    /// # Errors
    /// `Conflict` with the cookie of now.
    pub async fn update(&self, cookie: &Cookie, expected: Version) -> Result<Version, WriteError<Option<Box<Cookie>>>> {
        self.put(cookie, Expect::At(expected)).await
    }

    async fn put(&self, cookie: &Cookie, expect: Expect) -> Result<Version, WriteError<Option<Box<Cookie>>>> {
        let value = bytes::Bytes::from(cookie.encode().into_bytes());
        let ours = |found: &Versioned| found.value == value && !expect.allows(Some(found.version));
        match resolve::put(&*self.store, &layout::cookie_key(&cookie.bookie), &value, expect, ours).await {
            Ok(version) => Ok(version),
            Err(WriteError::NotDone(error)) => Err(WriteError::NotDone(error)),
            Err(WriteError::Unknown(error)) => Err(WriteError::Unknown(error)),
            Err(WriteError::Conflict(found)) => match found.map(|found| Cookie::decode(&found.value)).transpose() {
                Ok(found) => Err(WriteError::Conflict(found.map(Box::new))),
                Err(error) => Err(WriteError::NotDone(error)),
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
