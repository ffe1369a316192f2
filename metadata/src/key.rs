//! Keys: path-like names.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::{Error, ErrorKind};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// A path-like name such as `/ledgers/INSTANCEID`.
///
/// Begins with `/`, has no empty segment and no trailing `/`, holds no control character, and is at most
/// [`KEY_BYTES_MAX`] bytes. Keys order by their bytes, as every store lists them. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the rule that is broken.
    pub fn new(name: &str) -> Result<Self, Error> {
        match Self::fault(name) {
            None => Ok(Self(name.into())),
            Some(fault) => Err(Error::new(ErrorKind::Invalid, format!("check key {name:?}: {fault}"))),
        }
    }

    /// For names built by [`crate::layout`] from parts that are valid by their types.
    pub(crate) fn known(name: String) -> Self {
        debug_assert!(Self::fault(&name).is_none(), "layout built a bad key: {name:?}");
        Self(name.into())
    }

    fn fault(name: &str) -> Option<&'static str> {
        if name.len() > KEY_BYTES_MAX {
            return Some("it is longer than 1024 bytes");
        }
        let Some(path) = name.strip_prefix('/') else {
            return Some("it does not begin with a slash");
        };
        if path.split('/').any(str::is_empty) {
            return Some("it has an empty segment");
        }
        if name.chars().any(char::is_control) {
            return Some("it holds a control character");
        }
        None
    }

    /// The whole name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last segment.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// What follows `prefix` and its slash, when this key lies strictly below `prefix`.
    #[must_use]
    pub fn below(&self, prefix: &Key) -> Option<&str> {
        self.0.strip_prefix(prefix.as_str())?.strip_prefix('/')
    }

    /// `self` with one more path part (`part` may itself hold slashes).
    ///
    /// # Errors
    /// As [`Key::new`].
    pub fn join(&self, part: &str) -> Result<Self, Error> {
        Self::new(&format!("{}/{part}", self.0))
    }
}

/// A key hashes, compares and orders as its text.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn accepts_paths_and_refuses_the_rest() {
        for good in ["/a", "/a/b", "/ledgers/available/10.0.0.1:3181", "/ä/ö"] {
            assert_eq!(Key::new(good).unwrap().as_str(), good);
        }
        let long = format!("/{}", "x".repeat(KEY_BYTES_MAX));
        for bad in ["", "/", "a", "/a/", "//a", "/a//b", "/a\n", "/a\0b", long.as_str()] {
            assert_eq!(Key::new(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn below_wants_a_whole_segment() {
        let a = Key::new("/a").unwrap();
        assert_eq!(Key::new("/a/b/c").unwrap().below(&a), Some("b/c"));
        assert_eq!(Key::new("/ab").unwrap().below(&a), None);
        assert_eq!(a.below(&a), None);
        assert_eq!(a.join("b").unwrap().name(), "b");
    }
}
