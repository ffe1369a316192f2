//! How fast a store is from here: a few small objects and a few larger ones, written, read and removed.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use common::clock::Clock;
use futures::future::join_all;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::time::Instant;

use super::ColdStore;
use super::check::PROBES;
use crate::error::Result;

/// Small requests measured at most.
const SMALL_MAX: usize = 20;
const SMALL_BYTES: usize = 4 << 10;
/// The object by which the size of the larger ones is chosen.
const TRIAL_BYTES: usize = 1 << 20;
/// Larger objects, all under way together, as the parts of an upload are.
const LARGE: usize = 4;
const LARGE_BYTES_MIN: u64 = 256 << 10;
const LARGE_BYTES_MAX: u64 = 8 << 20;

/// What [`ColdStore::measure`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSpeed {
    /// Times of writes of 4 KiB, one after the other.
    pub put_small: Vec<Duration>,
    /// Times of reads of 4 KiB, one after the other.
    pub get_small: Vec<Duration>,
    /// Bytes that were written in large objects, four at a time.
    pub large_bytes: u64,
    /// How long writing them took.
    pub put_large: Duration,
    /// How long reading them took.
    pub get_large: Duration,
    /// How far the store's clock is ahead of this machine's, in milliseconds; stores tell whole seconds, so ±1,000 is nothing.
    pub clock_ahead_ms: i64,
}

impl ColdStore {
    /// Measures the store with objects of its own under `.thermocline-check/`, at most 34 MiB in all, which it removes at the end,
    /// also after an error. Takes about `time`, longer where single requests do. Dropping the future leaves its objects.
    ///
    /// # Errors
    /// The first request that does not work, in a sentence that says what to do.
    pub async fn measure(&self, time: Duration, clock: &Clock) -> Result<StoreSpeed> {
        let mut probes =
            Probes { store: self, prefix: format!("{PROBES}/{}", self.inner.rng.uuid()), written: Vec::new() };
        let measured = probes.measure(time, clock).await;
        let removed = probes.remove().await;
        let speed = measured?;
        removed?;
        Ok(speed)
    }
}

struct Probes<'a> {
    store: &'a ColdStore,
    prefix: String,
    /// Keys that may exist.
    written: Vec<(String, Path)>,
}

impl Probes<'_> {
    async fn measure(&mut self, time: Duration, clock: &Clock) -> Result<StoreSpeed> {
        let (mut put_small, mut get_small) = (Vec::new(), Vec::new());
        let small = self.body(SMALL_BYTES);
        let began = Instant::now();
        let mut clock_ahead_ms = 0;
        while put_small.is_empty() || (put_small.len() < SMALL_MAX && began.elapsed() < time / 4) {
            let key = self.next_key()?;
            let before_ms = clock.wall_ms();
            put_small.push(timed(self.put(&key, &small)).await?.0);
            let at_ms = (before_ms + clock.wall_ms()) / 2;
            let range = self.store.get_range(&key.0, 0..SMALL_BYTES as u64, Some(SMALL_BYTES as u64));
            get_small.push(timed(range).await?.0);
            if put_small.len() == 1 {
                let modified_ms = self.store.head(&key.0).await?.modified_ms;
                clock_ahead_ms = modified_ms - i64::try_from(at_ms).unwrap_or(i64::MAX);
            }
        }
        let trial = self.next_key()?;
        let (took, ()) = timed(self.put(&trial, &self.body(TRIAL_BYTES))).await?;
        let bytes_each = large_bytes(took, time / 3);
        let body = self.body(usize::try_from(bytes_each).unwrap_or(TRIAL_BYTES));
        let keys = (0..LARGE).map(|_| self.next_key()).collect::<Result<Vec<_>>>()?;
        let (put_large, done) =
            timed(async { Ok(join_all(keys.iter().map(|key| self.put(key, &body))).await) }).await?;
        done.into_iter().collect::<Result<Vec<()>>>()?;
        let store = self.store;
        let get = |key: &(String, Path)| {
            let key = key.0.clone();
            async move { store.get_range(&key, 0..bytes_each, Some(bytes_each)).await.map(drop) }
        };
        let (get_large, done) = timed(async { Ok(join_all(keys.iter().map(get)).await) }).await?;
        done.into_iter().collect::<Result<Vec<()>>>()?;
        let large_bytes = bytes_each * LARGE as u64;
        Ok(StoreSpeed { put_small, get_small, large_bytes, put_large, get_large, clock_ahead_ms })
    }

    /// Bytes that do not compress.
    fn body(&self, bytes: usize) -> Bytes {
        let mut body = vec![0; bytes];
        self.store.inner.rng.fill(&mut body);
        Bytes::from(body)
    }

    /// The key is noted before it is written, so that it is removed whatever becomes of the write.
    fn next_key(&mut self) -> Result<(String, Path)> {
        let key = format!("{}-{}", self.prefix, self.written.len());
        let path = self.store.path(&key)?;
        self.written.push((key.clone(), path.clone()));
        Ok((key, path))
    }

    async fn put(&self, key: &(String, Path), body: &Bytes) -> Result<()> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = self.store.inner.store.put_opts(&key.1, PutPayload::from(body.clone()), options);
        let done = self.store.request(&key.0, "write", put).await;
        done.map(drop).map_err(|error| self.store.explain("write to it", error))
    }

    /// The objects are ours and nobody names them.
    async fn remove(&self) -> Result<()> {
        let mut first = Ok(());
        for (key, path) in &self.written {
            let removed = self.store.request(key, "remove", self.store.inner.store.delete(path)).await;
            match removed {
                Err(error) if error.kind() != crate::ErrorKind::NotFound && first.is_ok() => {
                    first = Err(self.store.explain("remove its own probe", error));
                }
                _ => {}
            }
        }
        first
    }
}

async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(Duration, T)> {
    let began = Instant::now();
    let done = work.await?;
    Ok((began.elapsed(), done))
}

/// The size of each large object, so that all of them take about `time` at the speed of the trial.
fn large_bytes(trial: Duration, time: Duration) -> u64 {
    let per_second = TRIAL_BYTES as f64 / trial.as_secs_f64().max(1e-6);
    ((per_second * time.as_secs_f64() / 2.0 / LARGE as f64) as u64).clamp(LARGE_BYTES_MIN, LARGE_BYTES_MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use common::rng::Rng;
    use object_store::memory::InMemory;

    use super::*;
    use crate::StoreOptions;

    #[tokio::test]
    async fn measures_and_leaves_nothing() {
        let store = ColdStore::new(Arc::new(InMemory::new()), StoreOptions::default(), Rng::seeded(3));
        let speed = store.measure(Duration::from_millis(300), &Clock::system()).await.unwrap();
        assert!(!speed.put_small.is_empty() && speed.put_small.len() == speed.get_small.len());
        assert!(speed.large_bytes >= LARGE as u64 * LARGE_BYTES_MIN);
        assert!(speed.clock_ahead_ms.abs() < 5_000, "{speed:?}");
        assert_eq!(store.list(PROBES, None, 10).await.unwrap(), []);
    }

    #[test]
    fn a_slow_store_gets_small_objects() {
        let time = Duration::from_secs(1);
        assert_eq!(large_bytes(Duration::from_secs(10), time), LARGE_BYTES_MIN);
        assert_eq!(large_bytes(Duration::from_millis(1), time), LARGE_BYTES_MAX);
        assert_eq!(large_bytes(Duration::from_millis(100), time), 10 * TRIAL_BYTES as u64 / 8);
    }
}
