//! Simulation: real bookies and clients in one process, on a seeded, single-threaded runtime whose time is simulated.
//!
//! Three bookies with disks that a power cut catches half-way and that may fail; two writers, two recovering clients and a
//! reader; metadata that loses answers; a network with latency whose links are cut and stalled. A seed decides everything, so
//! that a failure can be replayed: `SIM_SEED=17 cargo test -p tests --test sim -- --nocapture` runs one seed and prints the end
//! of its trace (`SIM_LINES=5000`: more of it), and `SIM_MINUTES=5` runs seeds by chance for so long.
//!
//! What is judged stands in [`history`] and [`judge`]; [`sabotage`] proves that they convict. What is not simulated: the object
//! store and those who tier, RocksDB (the index is in memory and is never lost alone), and real files and sockets.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[cfg(not(tokio_unstable))]
compile_error!(
    "the simulation needs --cfg tokio_unstable: a RUSTFLAGS variable replaces the flags of .cargo/config.toml, unset it"
);

mod actors;
mod cluster;
mod history;
mod judge;
mod nemesis;
mod net;
mod run;
mod sabotage;
mod storage;
mod store;
mod trace;
mod world;

use common::clock::Clock;
use common::rng::Rng;

use history::Counts;
use run::{Plan, run};
use trace::Trace;

/// Seeds of a usual test run.
const SEEDS: u64 = 20;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs a seed; panics with all there is to know when something happened that must not.
fn check(seed: u64) -> Counts {
    let outcome = run(Plan::of(seed));
    assert!(outcome.violations.is_empty(), "{}", outcome.report(setting("SIM_LINES")));
    outcome.counts
}

#[test]
fn a_seed_repeats_itself() {
    for seed in [1, 2] {
        let (first, second) = (run(Plan::of(seed)), run(Plan::of(seed)));
        let differs = first.lines.iter().zip(&second.lines).position(|(first, second)| first != second);
        if let Some(at) = differs {
            panic!("seed {seed} differs at line {at}:\n{}\n{}", first.lines[at], second.lines[at]);
        }
        assert_eq!(Trace::digest(&first.lines), Trace::digest(&second.lines), "one trace of seed {seed} is longer");
    }
}

#[test]
fn what_was_acknowledged_is_there_through_faults() {
    if let Some(seed) = setting("SIM_SEED") {
        let outcome = run(Plan::of(seed));
        println!("{}", outcome.report(setting("SIM_LINES")));
        assert!(outcome.violations.is_empty(), "seed {seed} failed");
        return;
    }
    let mut total = Counts::default();
    match setting("SIM_MINUTES") {
        None => (0..SEEDS).for_each(|seed| total += check(seed)),
        Some(minutes) => {
            let (clock, rng) = (Clock::system(), Rng::from_os());
            let end = clock.wall_ms() + minutes * 60_000;
            let mut seeds = 0;
            while clock.wall_ms() < end {
                total += check(rng.next_u64() >> 32);
                seeds += 1;
            }
            println!("{seeds} seeds");
        }
    }
    println!("{total:?}");
    // A run in which nothing happens would pass as well.
    assert!(total.acknowledged > 1_000 && total.recoveries > 50 && total.reads > 1_000, "{total:?}");
    assert!(total.crashes > 20 && total.audits > 5 && total.probes > 20, "{total:?}");
}
