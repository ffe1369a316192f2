//! The store for tests and simulation: rows in a map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};

use crate::decide::Write;
use crate::engine::{LocalStore, Page, Rows, row, subtree};
use crate::{Error, ErrorKind, Key, Versioned};

/// A store in memory. It decides by the same code as [`crate::EmbeddedStore`] and forgets everything when dropped.
pub type MemoryStore = LocalStore<MemoryRows>;

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::over(MemoryRows::default(), 0)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Rows in a map.
#[derive(Debug, Default)]
pub struct MemoryRows(RwLock<BTreeMap<Key, Versioned>>);

impl Rows for MemoryRows {
    const BLOCKING: bool = false;

    fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        Ok(self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned())
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        let (first, end) = subtree(prefix);
        let start = match after {
            Some(after) if after.as_str() >= end.as_str() => return Ok(Vec::new()),
            Some(after) if after.as_str() >= first.as_str() => Bound::Excluded(after.as_str()),
            _ => Bound::Included(first.as_str()),
        };
        let rows = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut page = Page::default();
        for (key, value) in rows.range::<str, _>((start, Bound::Excluded(end.as_str()))) {
            if !page.push(key.clone(), value.clone(), limit) {
                break;
            }
        }
        Ok(page.rows)
    }

    fn apply(&self, revision: u64, writes: &[Write]) -> Result<(), Error> {
        let mut rows = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for write in writes {
            match &write.value {
                Some((value, lease)) => {
                    rows.insert(write.key.clone(), row(value.clone(), revision, *lease));
                }
                None => {
                    rows.remove(&write.key);
                }
            }
        }
        Ok(())
    }

    fn is_full(&self, _: &Error) -> bool {
        false
    }

    fn go_on(&self) -> Result<u64, Error> {
        Err(Error::new(ErrorKind::Poisoned, "go on with metadata in memory: its writes do not fail"))
    }
}
