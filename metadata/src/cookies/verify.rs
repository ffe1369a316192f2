//! Whether a bookie may start: pure.

use super::Cookie;

/// What one directory of the bookie shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCookie {
    /// The directory, for messages.
    pub dir: String,
    /// Its cookie; `None`: it has none.
    pub cookie: Option<Cookie>,
}

/// What a consistent set of cookies means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CookieVerdict {
    /// There is no cookie anywhere: a new bookie, if its directories are empty. The caller checks that, then stores the cookie
    /// (create-if-absent) and writes the files, in this order.
    NewBookie,
    /// Everything fits.
    Known,
}

/// Why the bookie must not start. The text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CookieMismatch {
    /// The cluster knows the bookie, the directory is blank.
    #[error(
        "directory {dir} has no cookie, but the cluster knows bookie {bookie}: its data is not here; \
         mount the right disk, or remove the bookie from the cluster before using its id again"
    )]
    Blank {
        /// The directory.
        dir: String,
        /// The bookie.
        bookie: String,
    },
    /// The directory has a cookie, the cluster does not know the bookie.
    #[error(
        "directory {dir} holds the data of bookie {bookie}, but this cluster does not know it: \
         the metadata store is another or was wiped, or the bookie was removed"
    )]
    NotInCluster {
        /// The directory.
        dir: String,
        /// The bookie its cookie names.
        bookie: String,
    },
    /// The directory belongs to another bookie.
    #[error("{place} is of bookie {found}, not of {expected}: give every bookie its own directories")]
    Bookie {
        /// Where the cookie stands.
        place: String,
        /// The bookie it names.
        found: String,
        /// This bookie.
        expected: String,
    },
    /// The directory belongs to another cluster.
    #[error(
        "{place} is of cluster {found}, not of {expected}: this is the wrong directory or the wrong metadata store"
    )]
    Cluster {
        /// Where the cookie stands.
        place: String,
        /// The cluster it names.
        found: String,
        /// This cluster.
        expected: String,
    },
    /// The bookie was set up with other directories.
    #[error("{place} names the {what} {found:?}, the configuration {expected:?}: set them as they were")]
    Directories {
        /// Where the cookie stands.
        place: String,
        /// Which directories.
        what: &'static str,
        /// Those it names.
        found: Vec<String>,
        /// Those of the configuration.
        expected: Vec<String>,
    },
}

/// Compares what every directory shows, what the store holds (by proof) and what the configuration says.
///
/// # Errors
/// The first mismatch.
pub fn verify(
    local: &[LocalCookie],
    stored: Option<&Cookie>,
    expected: &Cookie,
) -> Result<CookieVerdict, CookieMismatch> {
    for LocalCookie { dir, cookie } in local {
        if let Some(cookie) = cookie {
            compare(&format!("the cookie in directory {dir}"), cookie, expected)?;
        }
    }
    match stored {
        None => match local.iter().find_map(|local| Some((local, local.cookie.as_ref()?))) {
            None => Ok(CookieVerdict::NewBookie),
            Some((local, cookie)) => {
                Err(CookieMismatch::NotInCluster { dir: local.dir.clone(), bookie: cookie.bookie.to_string() })
            }
        },
        Some(stored) => {
            compare("the cookie in the metadata store", stored, expected)?;
            match local.iter().find(|local| local.cookie.is_none()) {
                None => Ok(CookieVerdict::Known),
                Some(local) => {
                    Err(CookieMismatch::Blank { dir: local.dir.clone(), bookie: expected.bookie.to_string() })
                }
            }
        }
    }
}

fn compare(place: &str, found: &Cookie, expected: &Cookie) -> Result<(), CookieMismatch> {
    let place = || place.to_owned();
    if found.bookie != expected.bookie {
        return Err(CookieMismatch::Bookie {
            place: place(),
            found: found.bookie.to_string(),
            expected: expected.bookie.to_string(),
        });
    }
    if found.instance != expected.instance {
        let name = |instance: &Option<String>| instance.clone().unwrap_or_else(|| "an old release, unnamed".into());
        return Err(CookieMismatch::Cluster {
            place: place(),
            found: name(&found.instance),
            expected: name(&expected.instance),
        });
    }
    let index = |cookie: &Cookie| cookie.index_dirs.clone().unwrap_or_else(|| cookie.ledger_dirs.clone());
    for (what, found, expected) in [
        ("journal directories", &found.journal_dirs, &expected.journal_dirs),
        ("ledger directories", &found.ledger_dirs, &expected.ledger_dirs),
        ("index directories", &index(found), &index(expected)),
    ] {
        if sorted(found) != sorted(expected) {
            return Err(CookieMismatch::Directories {
                place: place(),
                what,
                found: found.clone(),
                expected: expected.clone(),
            });
        }
    }
    Ok(())
}

fn sorted(dirs: &[String]) -> Vec<&String> {
    let mut dirs: Vec<_> = dirs.iter().collect();
    dirs.sort();
    dirs
}
