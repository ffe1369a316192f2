use std::collections::BTreeSet;

use futures::FutureExt as _;

use super::*;
use crate::testing::{On, Sizes, World, id, noise};

async fn opened(world: &World, made: &crate::testing::Made) -> Arc<OpenObject> {
    let object = world.object_cache().open(made.ledger, &made.record).await.unwrap();
    world.faults.take_traffic();
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_ask_a_row_group_is_fetched_once() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(1_000, 1_000), On::Released).await;
    let object = opened(&world, &made).await;
    let groups = object.reader().row_groups().len();
    assert!(groups > 5);
    let readers: Vec<_> = (0..16)
        .map(|reader| {
            let (blocks, object) = (world.blocks.clone(), Arc::clone(&object));
            tokio::spawn(async move {
                for step in 0..groups {
                    let group = (step + reader) % groups;
                    assert_eq!(blocks.block(&object, group).await.unwrap().index(), group);
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    let traffic = world.faults.take_traffic();
    assert_eq!(traffic.gets.len(), groups);
    let distinct: BTreeSet<u64> = traffic.gets.iter().map(|range| range.start).collect();
    assert_eq!(distinct.len(), groups);
}

#[tokio::test]
async fn a_fetch_goes_on_when_its_caller_goes_away() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(200, 1_000), On::Released).await;
    let object = opened(&world, &made).await;
    // Polled once, which starts the fetch, then dropped.
    assert!(world.blocks.block(&object, 0).now_or_never().is_none());
    world.blocks.block(&object, 0).await.unwrap();
    assert_eq!(world.faults.take_traffic().gets.len(), 1);
}

#[tokio::test]
async fn a_block_fetched_ahead_is_there_when_asked_for() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(200, 1_000), On::Released).await;
    let object = opened(&world, &made).await;
    world.blocks.prefetch(&object, 1);
    world.blocks.prefetch(&object, 1);
    world.blocks.prefetch(&object, 999);
    world.blocks.block(&object, 1).await.unwrap();
    world.blocks.prefetch(&object, 1);
    world.blocks.block(&object, 1).await.unwrap();
    assert_eq!(world.faults.take_traffic().gets.len(), 1);
}

#[tokio::test]
async fn errors_are_not_kept() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(200, 1_000), On::Released).await;
    let object = opened(&world, &made).await;
    world.faults.inject(cold::Fault::FlipGet(50));
    let error = world.blocks.block(&object, 0).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.chain().contains(&made.key));
    world.blocks.block(&object, 0).await.unwrap();
}

/// A working set many times the budget, read by many at once in different orders: everyone gets through, and what is admitted
/// never exceeds the budget.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_budget_is_never_exceeded_and_everyone_gets_through() {
    let world = World::new(Sizes { blocks: 1 << 20, ..Sizes::default() });
    let made = world.make(1, noise(4_000, 1_000), On::Released).await;
    let object = opened(&world, &made).await;
    let groups = object.reader().row_groups().len();
    let readers: Vec<_> = (0..24)
        .map(|reader| {
            let (blocks, object) = (world.blocks.clone(), Arc::clone(&object));
            tokio::spawn(async move {
                for step in 0..groups {
                    let group = if reader % 2 == 0 { (step + reader) % groups } else { groups - 1 - step };
                    let block = blocks.block(&object, group).await.unwrap();
                    assert_eq!(block.index(), group);
                    drop(block);
                    blocks.prefetch(&object, group + 1);
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    assert!(world.blocks_budget.peak_bytes() <= 1 << 20);
    assert!(world.blocks_budget.used_bytes() <= 1 << 20);
}

/// A row group larger than the headroom, even than the budget, is admitted alone.
#[tokio::test]
async fn a_row_group_larger_than_the_headroom_pushes_everything_else_out() {
    let world = World::new(Sizes { blocks: 1 << 20, group: 100 << 10, ..Sizes::default() });
    let small = world.make(1, noise(900, 1_000), On::Released).await;
    let large = world.make(2, noise(1, 3 << 20), On::Released).await;
    let (small, large) = (opened(&world, &small).await, opened(&world, &large).await);
    for _ in 0..2 {
        for group in 0..small.reader().row_groups().len() {
            world.blocks.block(&small, group).await.unwrap();
        }
        assert_eq!(world.blocks.block(&large, 0).await.unwrap().len(), 1);
    }
    assert!(world.blocks_budget.peak_bytes() <= 1 << 20);
}

#[tokio::test]
async fn a_point_read_fetches_pages_and_uses_a_block_that_is_there() {
    let world = World::new(Sizes { group: 8 << 20, ..Sizes::default() });
    let made = world.make(1, noise(2_000, 1_000), On::Released).await;
    let object = opened(&world, &made).await;
    let row = world.blocks.row(&object, id(1_234)).await.unwrap().unwrap();
    assert_eq!(row.payload.as_ref(), Some(&made.payloads[1_234]));
    assert!(world.faults.take_traffic().get_bytes() < 256 << 10);
    world.blocks.block(&object, 0).await.unwrap();
    world.faults.take_traffic();
    let row = world.blocks.row(&object, id(1_235)).await.unwrap().unwrap();
    assert_eq!(row.payload.as_ref(), Some(&made.payloads[1_235]));
    assert_eq!(world.faults.take_traffic().gets.len(), 0);
    assert!(world.blocks.row(&object, id(2_000)).await.unwrap().is_none());
}

#[tokio::test]
async fn after_a_stop_nothing_is_fetched_and_callers_are_told() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(200, 1_000), On::Released).await;
    let object = opened(&world, &made).await;
    world.tasks.stop(Duration::from_secs(5)).await.unwrap();
    let error = world.blocks.block(&object, 0).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(world.faults.take_traffic().gets.len(), 0);
}
