//! Keys as etcd has them: the root, then the key.

use crate::engine::subtree;
use crate::{Error, ErrorKind, Key};

/// A half-open range of etcd's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Vec<u8>,
    pub(super) end: Vec<u8>,
}

/// Puts the root before keys and takes it off again.
#[derive(Debug, Clone)]
pub(super) struct Names {
    root: String,
}

impl Names {
    pub(super) fn new(root: String) -> Self {
        Self { root }
    }

    pub(super) fn name(&self, key: &Key) -> Vec<u8> {
        format!("{}{key}", self.root).into_bytes()
    }

    /// The key of a name; `None` for names of others, that can share the etcd.
    pub(super) fn key(&self, name: &[u8]) -> Option<Key> {
        Key::new(std::str::from_utf8(name.strip_prefix(self.root.as_bytes())?).ok()?).ok()
    }

    /// What lies strictly below `prefix` and after `after`; `None` when nothing can.
    pub(super) fn below(&self, prefix: &Key, after: Option<&Key>) -> Option<Span> {
        let (first, end) = subtree(prefix);
        let from = match after {
            Some(after) if after.as_str() >= end.as_str() => return None,
            // The smallest name above `after`: keys hold no control characters.
            Some(after) if after.as_str() >= first.as_str() => format!("{after}\0"),
            _ => first,
        };
        Some(Span { from: self.rooted(&from), end: self.rooted(&end) })
    }

    /// `prefix` itself and what lies below it; and some neighbours, such as `/a-b` of `/a`.
    pub(super) fn with_neighbours(&self, prefix: &Key) -> Span {
        Span { from: self.name(prefix), end: self.rooted(&subtree(prefix).1) }
    }

    /// A name to ask for when any will do: one that whoever may use the store may read.
    pub(super) fn probe(&self) -> Vec<u8> {
        self.name(&crate::layout::instance_key())
    }

    fn rooted(&self, text: &str) -> Vec<u8> {
        format!("{}{text}", self.root).into_bytes()
    }
}

/// Whole seconds, at least as long as asked for.
pub(super) fn ttl_seconds(ttl: std::time::Duration) -> Result<i64, Error> {
    // What etcd takes at most.
    const SECONDS_MAX: i64 = 9_000_000_000;
    let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    match i64::try_from(seconds) {
        Ok(seconds) if seconds <= SECONDS_MAX => Ok(seconds.max(1)),
        _ => Err(Error::new(ErrorKind::Invalid, format!("grant lease: {ttl:?} is longer than etcd allows"))),
    }
}
