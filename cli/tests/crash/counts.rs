//! What a run did, in numbers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Counts something.
pub fn add(what: impl Into<String>, count: u64) {
    *COUNTS.lock().unwrap_or_else(PoisonError::into_inner).entry(what.into()).or_default() += count;
}

/// One line with everything counted so far in this process.
pub fn line() -> String {
    let counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let parts: Vec<String> = counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
    format!("crash: {}, violations 0", parts.join(", "))
}

/// Tells the counts at the end of a test that found no violation: on standard output, and to the file that the runner names.
pub fn tell() {
    let line = line();
    println!("{line}");
    if let Some(path) = std::env::var_os("THERMOCLINE_CRASH_COUNTS") {
        std::fs::write(path, line).unwrap();
    }
}
