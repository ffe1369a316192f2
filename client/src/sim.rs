//! A seeded simulation of one writer, some recovering clients and a handful of model bookies, with messages that arrive in
//! any order, late, twice or never, and clients that die at any point.
//!
//! The judges look at what the bookies really hold, never at what a client believes:
//!
//! - an entry is confirmed, in order, only while an ack quorum of its write set holds it;
//! - once the ledger is closed its end stays, covers every confirmed entry, and nothing above it is ever confirmed;
//! - every entry up to the end is held by an ack quorum with the writer's payload, the length is the sum of the payloads, and
//!   no stored body claims that more is confirmed than the end;
//! - when the faults stop, a recovery succeeds.
//!
//! `SIM_SEED=n cargo test -p client sim` replays one seed.

mod model;

use model::{Flaw, run};

const SEEDS: u64 = 10_000;

#[test]
fn no_seed_breaks_an_invariant() {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        let seed = seed.parse().expect("SIM_SEED is a number");
        if let Err(broken) = run(seed, None) {
            panic!("SIM_SEED={seed}: {broken}");
        }
        return;
    }
    for seed in 0..SEEDS {
        if let Err(broken) = run(seed, None) {
            panic!("SIM_SEED={seed}: {broken}");
        }
    }
}

#[test]
fn a_seed_repeats() {
    for seed in 0..20 {
        assert_eq!(run(seed, None), run(seed, None));
    }
}

/// The simulation is worth something only if it notices the mistakes it is there for.
#[test]
fn known_mistakes_are_noticed() {
    for flaw in
        [Flaw::RecoveryReadsDoNotFence, Flaw::ErrorsAreDenials, Flaw::FenceIsForgotten, Flaw::CloseIgnoresVersion]
    {
        assert!((0..5 * SEEDS).any(|seed| run(seed, Some(flaw)).is_err()), "{flaw:?} went unnoticed");
    }
}
