//! Real time, and waiting for it closely.

use std::fs;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::plan::{Error, Result};

/// The longest latency that is told apart, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The monotonic time of the machine. A bench measures the machine, so no simulated clock stands in.
pub(crate) fn now() -> Instant {
    #[allow(clippy::disallowed_methods)]
    Instant::now()
}

/// Sleeps of this thread end within a few microseconds of their time, where the system lets us ask for that (Linux adds 50 otherwise).
pub(crate) fn sleep_closely() {
    let Ok(thread) = fs::read_link("/proc/thread-self") else { return };
    if let Some(thread) = thread.file_name() {
        // Without it latencies are a little longer than they need be, and no figure is wrong.
        let _ = fs::write(format!("/proc/{}/timerslack_ns", thread.to_string_lossy()), "1");
    }
}

/// Sleeps until a time, which may be over.
pub(crate) fn sleep_until(time: Instant) {
    let rest = time.saturating_duration_since(now());
    if !rest.is_zero() {
        std::thread::sleep(rest);
    }
}

/// An empty histogram of latencies in ns, three digits exact.
pub(crate) fn latencies() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).map_err(Error::at("make a histogram"))
}

/// Counts a latency.
pub(crate) fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_NS_MAX).max(1));
}

/// A quantile in ms.
pub(crate) fn quantile_ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e6
}

/// Starts a thread with a name, by which its processor time is found.
pub(crate) fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(Error::at(format!("start thread {name}")))
}

/// The thread's result; a panic goes on in the caller.
pub(crate) fn join<T>(handle: std::thread::JoinHandle<T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
