//! What a run did, in numbers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Counts something.
pub fn add(what: impl Into<String>, count: u64) {
    *COUNTS.lock().unwrap_or_else(PoisonError::into_inner).entry(what.into()).or_default() += count;
}

/// What was counted up to a moment, to tell what a test did from what others did before it.
pub struct Since(BTreeMap<String, u64>);

impl Since {
    pub fn now() -> Self {
        Self(COUNTS.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Each of these was counted since: a test that did nothing found no violation either.
    pub fn assert_counted(&self, whats: &[&str]) {
        let counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for what in whats {
            let of = |counts: &BTreeMap<String, u64>| counts.get(*what).copied().unwrap_or_default();
            assert!(
                of(&counts) > of(&self.0),
                "the test proves nothing: {what} 0 in {counts:?}, before it {:?}",
                self.0
            );
        }
    }
}

/// What every random test must have done, whoever is killed in it.
pub const FLOOR: &[&str] = &[
    "entries acknowledged",
    "entries read back, any tier",
    "entries read back, hot tier",
    "entries read back, cold tier",
    "entries read back, bookies",
    "entries read back, objects",
    "settled ledgers checked",
];

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
