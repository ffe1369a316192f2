use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Index, Write};
use crate::error::Error;

/// An index in memory, for tests. Clones share one map; [`MemoryIndex::crash`] makes an independent one.
#[derive(Clone, Default)]
pub struct MemoryIndex {
    shared: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    failure: Option<String>,
    /// Batches of more changes than this find no space.
    full_above: Option<usize>,
    /// How many more batches find none, when that is limited.
    full_times: Option<u64>,
    /// How many have found none.
    found_full: u64,
}

impl MemoryIndex {
    /// An empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy as a power cut at this moment would leave it.
    #[must_use]
    pub fn crash(&self) -> Self {
        let rows = self.lock().rows.clone();
        Self { shared: Arc::new(Mutex::new(State { rows, ..State::default() })) }
    }

    /// Makes every write fail with this text, or work again.
    pub fn fail_writes(&self, reason: Option<&str>) {
        self.lock().failure = reason.map(str::to_owned);
    }

    /// Makes writes of more changes than `full_above` fail for want of space; `None` lets all work again.
    pub fn set_full(&self, full_above: Option<usize>) {
        let mut state = self.lock();
        (state.full_above, state.full_times) = (full_above, None);
    }

    /// As [`MemoryIndex::set_full`], for so many batches only.
    pub fn set_full_times(&self, full_above: usize, times: u64) {
        let mut state = self.lock();
        (state.full_above, state.full_times) = (Some(full_above), Some(times));
    }

    /// How many batches have found no space.
    pub fn found_full(&self) -> u64 {
        self.lock().found_full
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Index for MemoryIndex {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.lock().rows.get(key).cloned())
    }

    async fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let start = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let state = self.lock();
        let rows =
            state.rows.range::<[u8], _>((start, Bound::Unbounded)).take_while(|(key, _)| key.starts_with(prefix));
        Ok(rows.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    async fn write(&self, batch: Vec<Write>) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(reason) = &state.failure {
            return Err(Error::index("write", reason.clone()));
        }
        if state.full_above.is_some_and(|most| batch.len() > most) && state.full_times != Some(0) {
            state.full_times = state.full_times.map(|times| times - 1);
            state.found_full += 1;
            return Err(Error::index_full("write", "the test says so"));
        }
        for change in batch {
            match change {
                Write::Put(key, value) => state.rows.insert(key, value),
                Write::Delete(key) => state.rows.remove(&key),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conforms() {
        super::super::suite::run(&MemoryIndex::new()).await;
    }
}
