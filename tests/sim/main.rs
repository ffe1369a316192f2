//! Simulation: the whole road in one process, on turmoil: hosts with networks and disks of their own, and simulated time.
//!
//! Three bookies on disks that lose what is not synced when their host crashes, half of a write included; two writers, two
//! recovering clients, a reader of bookies and a reader of the gateway; the gateway, the offloader and an object store that fails
//! and loses answers; metadata on a host of its own that loses answers too; links with latency that are cut, held up, and that
//! lose messages. A seed decides everything, so that a failure can be replayed:
//! `SIM_SEED=17 cargo test --workspace --test sim -- --nocapture` runs one seed and prints the end of its trace (`SIM_LINES=5000`:
//! more of it; `SIM_MESSAGES=1`: with every message of the network). `SIM_SEEDS=500` runs that many seeds, `SIM_MINUTES=5` seeds by
//! chance for so long. `docs/simulation.md` says how to read what a run prints.
//!
//! What is judged stands in [`history`], [`judge`] and [`tiering`] (the witness); [`sabotage`] proves that they convict. What is not
//! simulated: RocksDB (the index is in memory, durable and never lost alone), the real object stores' and etcd's own behaviour,
//! TCP's retransmission (a lost message is lost for its connection), and more than one thread.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[cfg(not(tokio_unstable))]
compile_error!(
    "the simulation needs --cfg tokio_unstable: a RUSTFLAGS variable replaces the flags of .cargo/config.toml, unset it"
);

mod actors;
mod bookies;
mod disk;
mod history;
mod judge;
mod nemesis;
mod net;
mod run;
mod sabotage;
mod store;
mod tiering;
mod trace;
mod world;

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use common::clock::Clock;
use common::rng::Rng;

use history::Counts;
use run::{Plan, run};
use trace::Trace;

/// Seeds of a usual test run.
const SEEDS: u64 = 30;

/// A longer run tells after so many seeds that it goes on.
const PROGRESS: u64 = 50;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs seeds on all cores, each in a simulation of its own thread, until `next` gives no more or one of them fails. Gives how
/// many ran and what happened in all of them.
fn run_all(next: impl Fn() -> Option<u64> + Sync) -> (u64, Counts) {
    let total = Mutex::new((0, Counts::default()));
    let failure = OnceLock::new();
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = next().filter(|_| failure.get().is_none()) {
                    let outcome = run(Plan::of(seed));
                    if !outcome.violations.is_empty() {
                        // Another one may have failed at the same time: one is enough to begin with.
                        let _ = failure.set(outcome.report(setting("SIM_LINES")));
                    }
                    let total = &mut *total.lock().unwrap();
                    total.0 += 1;
                    total.1 += outcome.counts;
                    if total.0 % PROGRESS == 0 {
                        println!("{} seeds", total.0);
                    }
                }
            });
        }
    });
    if let Some(report) = failure.get() {
        panic!("{report}");
    }
    total.into_inner().unwrap()
}

#[test]
fn a_seed_repeats_itself() {
    for seed in [1, 2] {
        // The second one on a slower machine, so to speak.
        let slow = Plan { lag: Duration::from_millis(20), ..Plan::of(seed) };
        let (first, second) = (run(Plan::of(seed)), run(slow));
        let differs = first.lines.iter().zip(&second.lines).position(|(first, second)| first != second);
        if let Some(at) = differs {
            let before = first.lines[at.saturating_sub(10)..at].join("\n");
            let (first, second) = (&first.lines[at], &second.lines[at]);
            panic!("seed {seed} differs at line {at}, after\n{before}\nonce\n{first}\nand once\n{second}");
        }
        assert_eq!(Trace::digest(&first.lines), Trace::digest(&second.lines), "one trace of seed {seed} is longer");
        assert_eq!(first.messages, second.messages, "seed {seed}: the network did something else");
        // An equal trace of nothing would prove nothing.
        let events = first.lines.len() as u64 + first.messages.events;
        assert!(events >= 1_000 && first.counts.crashes >= 1 && first.counts.lost >= 1, "{}", first.report(None));
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
    let clock = Clock::system();
    let begun = clock.wall_ms();
    let (seeds, total) = match setting("SIM_MINUTES") {
        None => {
            let (wanted, given) = (setting("SIM_SEEDS").unwrap_or(SEEDS), AtomicU64::new(0));
            run_all(|| Some(given.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < wanted))
        }
        Some(minutes) => {
            let (rng, end) = (Rng::from_os(), begun + minutes * 60_000);
            run_all(|| (clock.wall_ms() < end).then(|| rng.next_u64() >> 32))
        }
    };
    println!("{total:?}");
    println!("{seeds} seeds without a violation in {} s", (clock.wall_ms() - begun) / 1_000);
    // A run in which nothing happens would pass as well.
    if seeds >= SEEDS {
        assert!(total.acknowledged > 1_000 && total.recoveries > 50 && total.reads > 1_000, "{total:?}");
        assert!(total.crashes > 20 && total.probes > 20 && total.lost > 20, "{total:?}");
        assert!(total.audits > 10 && total.audited > 500, "{total:?}");
        // Faults that were armed have hit.
        assert!(total.unknown_applied > 15 && total.unknown_not_applied > 15, "{total:?}");
        assert!(total.object_faults > 100 && total.attempts_cut > 10, "{total:?}");
        assert!(total.released > 50 && total.gateway_hot > 1_000 && total.gateway_cold > 1_000, "{total:?}");
    }
}
