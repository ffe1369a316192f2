//! A bookie that gets short of space asks for the release of what keeps its oldest segments.

use std::time::Duration;

use ::config::ByteSize;
use ledger::LedgerId;
use metadata::ReleaseRequests;

use super::support::*;
use crate::BookieConfig;

/// What is asked for, once that is as wanted.
async fn asks(world: &World, wanted: impl Fn(&[u64]) -> bool) -> Vec<u64> {
    let requests = ReleaseRequests::new(world.metadata.clone());
    let asked = async {
        loop {
            let listed: Vec<u64> = requests.list().await.unwrap().into_iter().map(LedgerId::get).collect();
            if wanted(&listed) {
                return listed;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it never asks so")
}

#[tokio::test]
async fn the_ledgers_of_the_oldest_segments_are_asked_for_until_space_is_back() {
    let mut world = World::new();
    // Eight segments; from the fourth on it asks.
    world.config = BookieConfig { disk_bytes_max: ByteSize::mib(1), ..small_config() };
    for l in [1, 2, 3] {
        world.create_ledger(l, "bk1:3181", l != 2).await;
    }
    let running = world.start().await;
    let mut wire = running.connect().await;
    wire.fill(&running, 1, 0, 1).await;
    running.bookie.collect_now().await.unwrap();
    asks(&world, <[u64]>::is_empty).await;
    wire.fill(&running, 2, 0, 1).await;
    wire.fill(&running, 3, 0, 2).await;
    let stats = running.bookie.stats();
    assert!(stats.allocated_bytes > 512 << 10, "{stats:?}");
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!(report.segments_removed, 0, "{report:?}");
    // Those that are open too: who releases knows what can be.
    let listed = asks(&world, |listed| !listed.is_empty()).await;
    assert_eq!(listed[0], 1, "the oldest segment first: {listed:?}");

    // A crash takes the request along with the registration, and the next life asks anew.
    let world = world.crash(running).await;
    asks(&world, <[u64]>::is_empty).await;
    let running = world.start().await;
    running.bookie.collect_now().await.unwrap();
    asks(&world, |asked| asked == listed).await;

    // Released or deleted, the segments go, and with them the request.
    for l in listed {
        world.ledgers().delete(ledger(l), None).await.unwrap();
    }
    let report = running.bookie.collect_now().await.unwrap();
    assert!(report.segments_removed > 0, "{report:?}");
    asks(&world, <[u64]>::is_empty).await;
    running.stop().await;
}
