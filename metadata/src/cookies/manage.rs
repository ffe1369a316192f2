//! What an administrator does with cookies: look at all of them, and remove one.

use ::ledger::BookieId;
use bytes::Bytes;

use super::{Cookie, Cookies};
use crate::{BookieInfo, CommitError, Error, Expect, Transaction, Version, Versioned, layout};

/// How often an unknown outcome is followed by another try.
const TRIES_MAX: usize = 4;

/// A cookie as stored, readable or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCookie {
    /// Whose key it is.
    pub bookie: BookieId,
    /// What a compare-and-swap on it must name.
    pub version: Version,
    /// The stored bytes, which are text unless they are damaged.
    pub value: Bytes,
}

impl StoredCookie {
    fn of(bookie: BookieId, row: Versioned) -> Self {
        Self { bookie, version: row.version, value: row.value }
    }

    /// What it says.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`] or [`crate::ErrorKind::Unsupported`].
    pub fn read(&self) -> Result<Cookie, Error> {
        Cookie::decode(&self.value)
    }
}

/// Why a cookie was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveCookieError {
    /// The bookie lives: it is registered.
    #[error(
        "bookie {bookie} is registered, at {address}: stop it first (the registration of one that died ends by itself, in seconds)"
    )]
    Registered {
        /// The bookie.
        bookie: BookieId,
        /// Where it says it is.
        address: String,
    },
    /// The cookie is not the one that was looked at: it changed, or it is gone.
    #[error("the cookie of bookie {bookie} is not the one that was looked at: {}", now(found))]
    Changed {
        /// The bookie.
        bookie: BookieId,
        /// The version of now; `None`: it is gone.
        found: Option<Version>,
    },
    /// Surely not done.
    #[error("the cookie was not removed")]
    NotDone(#[source] Error),
    /// Maybe done, and reading back did not settle it.
    #[error("it is unknown whether the cookie was removed; look with `thermocline cookie list`")]
    Unknown(#[source] Error),
}

fn now(found: &Option<Version>) -> String {
    found.map_or_else(|| "there is none now".to_owned(), |version| format!("its version is {version} now"))
}

impl Cookies {
    /// The stored cookie of a bookie, by proof, even if it cannot be read.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn stored(&self, id: &BookieId) -> Result<Option<StoredCookie>, Error> {
        let found = self.store.get_quorum(&layout::cookie_key(id)).await?;
        Ok(found.map(|row| StoredCookie::of(id.clone(), row)))
    }

    /// Up to `limit` cookies after `after` in the order of ids. Only an empty page is the end. Keys that are no bookie's id are left
    /// out.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self, after: Option<&BookieId>, limit: usize) -> Result<Vec<StoredCookie>, Error> {
        let root = layout::cookies_root();
        let mut after = after.map(layout::cookie_key);
        loop {
            let page = self.store.list(&root, after.as_ref(), limit).await?;
            let Some((last, _)) = page.last() else { return Ok(Vec::new()) };
            after = Some(last.clone());
            let read = |(key, row): (crate::Key, Versioned)| {
                let id = BookieId::new(key.below(&root)?).ok()?;
                Some(StoredCookie::of(id, row))
            };
            let found: Vec<StoredCookie> = page.into_iter().filter_map(read).collect();
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }

    /// Whether the bookie is registered, by proof. Listings that follow miss no ledger that was created on it before.
    ///
    /// # Errors
    /// [`RemoveCookieError::Registered`], [`RemoveCookieError::NotDone`].
    pub async fn refuse_registered(&self, id: &BookieId) -> Result<(), RemoveCookieError> {
        for (op, key) in [layout::available_key(id), layout::readonly_key(id)].into_iter().enumerate() {
            if let Some(found) = self.store.get_quorum(&key).await.map_err(RemoveCookieError::NotDone)? {
                return Err(conflict(id, op, Some(found)));
            }
        }
        Ok(())
    }

    /// Removes the cookie that has version `expected`, in a transaction that holds only while the bookie is not registered.
    ///
    /// # Errors
    /// See [`RemoveCookieError`].
    pub async fn remove(&self, id: &BookieId, expected: Version) -> Result<(), RemoveCookieError> {
        let key = layout::cookie_key(id);
        let registrations = [layout::available_key(id), layout::readonly_key(id)];
        let mut unsure: Option<Error> = None;
        for _ in 0..TRIES_MAX {
            let [writable, readonly] = registrations.clone();
            let transaction = Transaction::new()
                .check(writable, Expect::Absent)
                .check(readonly, Expect::Absent)
                .delete(key.clone(), Expect::At(expected));
            match self.store.commit(transaction).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict { op, found }) if unsure.is_none() => {
                    return Err(conflict(id, op, found));
                }
                Err(CommitError::NotDone(error)) if unsure.is_none() => return Err(RemoveCookieError::NotDone(error)),
                Err(CommitError::Conflict { .. } | CommitError::NotDone(_)) => {}
                Err(CommitError::Unknown(error)) => {
                    unsure.get_or_insert(error);
                }
            }
            match self.store.get_quorum(&key).await {
                // Ours, by a try whose answer was lost; or another's that wanted the same.
                Ok(None) => return Ok(()),
                Ok(Some(row)) if row.version == expected => {}
                Ok(Some(_)) | Err(_) => break,
            }
        }
        Err(RemoveCookieError::Unknown(unsure.expect("the loop goes on only after an unknown outcome")))
    }
}

fn conflict(id: &BookieId, op: usize, found: Option<Versioned>) -> RemoveCookieError {
    let bookie = id.clone();
    if op == 2 {
        return RemoveCookieError::Changed { bookie, found: found.map(|row| row.version) };
    }
    let info = found.and_then(|row| BookieInfo::decode(id, &row.value).ok());
    let address = info.map_or_else(|| "an unknown address".to_owned(), |info| info.address);
    RemoveCookieError::Registered { bookie, address }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::{Bookies, FaultKind, FaultyStore, MemoryStore, MetadataStore as _, Mode};

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn setup() -> (Cookies, Arc<FaultyStore>) {
        let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
        (Cookies::new(store.clone()), store)
    }

    async fn create(cookies: &Cookies, name: &str) -> Version {
        let cookie = Cookie::new(id(name), vec!["journal".into()], vec!["journal".into()], "instance").unwrap();
        cookies.create(&cookie).await.unwrap()
    }

    #[tokio::test]
    async fn all_are_listed_page_by_page_the_damaged_ones_too() {
        let (cookies, store) = setup();
        for name in ["b1", "b2", "b3"] {
            create(&cookies, name).await;
        }
        store.create(&layout::cookie_key(&id("b4")), Bytes::from_static(b"?")).await.unwrap();
        let mut names = Vec::new();
        let mut after = None;
        loop {
            let page = cookies.list(after.as_ref(), 2).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.bookie.clone());
            names.extend(page.iter().map(|stored| (stored.bookie.to_string(), stored.read().is_ok())));
        }
        let want = [("b1", true), ("b2", true), ("b3", true), ("b4", false)];
        assert_eq!(names, want.map(|(name, whole)| (name.to_owned(), whole)));
        assert_eq!(cookies.stored(&id("b1")).await.unwrap().unwrap().read().unwrap().bookie, id("b1"));
        assert_eq!(cookies.stored(&id("b9")).await.unwrap(), None);
    }

    #[tokio::test]
    async fn only_the_version_that_was_looked_at_is_removed() {
        let (cookies, _) = setup();
        let old = create(&cookies, "b1").await;
        cookies.remove(&id("b1"), old).await.unwrap();
        let gone = cookies.remove(&id("b1"), old).await.unwrap_err();
        assert!(gone.to_string().contains("there is none now"), "{gone}");
        let new = create(&cookies, "b1").await;
        let changed = cookies.remove(&id("b1"), old).await.unwrap_err();
        assert!(changed.to_string().contains(&format!("its version is {new} now")), "{changed}");
        assert!(cookies.stored(&id("b1")).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn the_cookie_of_a_registered_bookie_stays() {
        for mode in [Mode::Writable, Mode::ReadOnly] {
            let (cookies, store) = setup();
            let version = create(&cookies, "b1").await;
            let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
            let info = BookieInfo::at("10.0.0.1:3181");
            Bookies::new(store.clone()).register_as(&id("b1"), &info, lease, mode).await.unwrap();
            let refused = cookies.remove(&id("b1"), version).await.unwrap_err();
            assert!(refused.to_string().contains("is registered, at 10.0.0.1:3181"), "{refused}");
            store.revoke(lease).await.unwrap();
            cookies.remove(&id("b1"), version).await.unwrap();
        }
    }

    #[tokio::test]
    async fn lost_answers_are_settled() {
        for kind in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
            let (cookies, store) = setup();
            let version = create(&cookies, "b1").await;
            store.fail_next(kind);
            cookies.remove(&id("b1"), version).await.unwrap();
            assert_eq!(cookies.stored(&id("b1")).await.unwrap(), None);
        }
        let (cookies, store) = setup();
        let version = create(&cookies, "b1").await;
        store.fail_next(FaultKind::FailBefore);
        assert!(matches!(cookies.remove(&id("b1"), version).await, Err(RemoveCookieError::NotDone(_))));
    }
}
