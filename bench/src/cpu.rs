//! Processor time of this process by the names of its threads.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Prefix of the threads of the product under test.
pub(crate) const NODE: &str = "node";
/// Prefix of the threads that make load.
pub(crate) const LOAD: &str = "load";

/// Prefix of the offloader's threads, and those of the client it reads with.
pub(crate) const OFFLOAD: &str = "offload";

/// Processor time since the start of each thread that lives, by thread.
#[derive(Clone, Debug, Default)]
pub struct CpuTimes(BTreeMap<u64, (String, Duration)>);

impl CpuTimes {
    /// Reads them from `/proc`; empty where there is none.
    pub fn now() -> Self {
        // The system counts the time of a thread that runs when it leaves its core or at the next tick, which may be 10 ms away: for
        // this thread, that is now.
        std::thread::yield_now();
        let mut times = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let path = task.path();
            let (Ok(name), Ok(stat)) =
                (fs::read_to_string(path.join("comm")), fs::read_to_string(path.join("schedstat")))
            else {
                continue;
            };
            let id = task.file_name().to_string_lossy().parse().unwrap_or(0);
            let run_ns = stat.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
            times.insert(id, (name.trim_end().to_owned(), Duration::from_nanos(run_ns)));
        }
        Self(times)
    }

    /// Time that threads whose name begins with one of `prefixes` took since `before`.
    pub fn since(&self, before: &Self, prefixes: &[&str]) -> Duration {
        let named = self.0.iter().filter(|(_, (name, _))| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        named
            .map(|(id, (_, time))| time.saturating_sub(before.0.get(id).map_or(Duration::ZERO, |(_, time)| *time)))
            .sum()
    }

    /// Time of the product's threads since `before`, those of its storage engine included.
    pub(crate) fn node_since(&self, before: &Self) -> Duration {
        self.since(before, &[NODE, "rocksdb"])
    }

    /// Time of the load generator's threads since `before`.
    pub(crate) fn load_since(&self, before: &Self) -> Duration {
        self.since(before, &[LOAD])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::{join, now, thread};

    #[test]
    fn a_busy_thread_is_found_by_its_name() {
        let before = CpuTimes::now();
        let busy = thread("load-busy", || {
            let (start, mut turns) = (now(), 0_u64);
            while start.elapsed() < Duration::from_millis(60) {
                turns = turns.wrapping_add(1);
            }
            (CpuTimes::now(), std::hint::black_box(turns))
        });
        let (after, _) = join(busy.expect("a thread starts"));
        assert!(after.load_since(&before) >= Duration::from_millis(5), "{after:?}");
        assert_eq!(after.since(&before, &["no-such-thread"]), Duration::ZERO);
    }
}
