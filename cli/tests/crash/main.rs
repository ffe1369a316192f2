//! Crash tests: real processes of the program, killed with SIGKILL at random moments and at every step of the offload protocol,
//! and bookies whose disk is full.
//!
//! # The judge
//! A test writer keeps an acknowledgement log ([`acks`]): what a positive reply promised, flushed before the next append. After
//! every kill everything in it is read back by every path ([`sweep`]): the gateway from any tier and from each, every bookie over
//! BookKeeper's wire, the objects through a reader of their own, and the metadata record by record.
//!
//! # Replay
//! `CRASH_SEED` chooses the run, `CRASH_ROUNDS` how many random rounds there are. A failure names both, and the folder it keeps
//! with data, acknowledgement log and every process's log.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod acks;
mod calls;
mod cluster;
mod counts;
mod disk_full;
mod folder;
mod outsider;
mod process;
mod small_disk;
mod standalone;
mod steps;
mod sweep;
mod wire;
mod writers;

use std::time::Duration;

/// How long any single wait may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// The run's seed: `CRASH_SEED`, or one that differs from run to run.
fn seed() -> u64 {
    let given = std::env::var("CRASH_SEED").ok();
    given.map_or_else(
        || common::rng::Rng::from_os().next_u64() >> 32,
        |text| text.parse().expect("CRASH_SEED is a number"),
    )
}

/// Random rounds of a kind: its part of `CRASH_ROUNDS`, or a few.
fn rounds(share: u64, otherwise: u64) -> u64 {
    let given = std::env::var("CRASH_ROUNDS").ok();
    let all = given.map(|text| text.parse::<u64>().expect("CRASH_ROUNDS is a number"));
    all.map_or(otherwise, |all| (all * share).div_ceil(100))
}

/// Waits until a condition holds; panics with `what` past the deadline.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let reached = tokio::time::timeout(DEADLINE, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(reached.await.is_ok(), "not within {DEADLINE:?}: {what}");
}
