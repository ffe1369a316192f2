use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use ::config::{ByteSize, Span};
use common::net::Connector as _;
use proto::client::AddFlags;
use proto::{ReadTarget, Status};
use tokio::io::AsyncWriteExt as _;

#[tokio::test]
async fn adds_beyond_the_budget_wait_a_little_and_are_then_refused() {
    let mut world = World::new();
    world.config.add_bytes_max = ByteSize::kib(64);
    world.config.add_wait = Span::millis(20);
    let tasks = common::shutdown::TaskTree::root("test");
    let mut parts = world.parts(&tasks);
    let budget = common::budget::ByteBudget::new("small", 64 << 10);
    parts.budget = budget.clone();
    let bookie =
        crate::Bookie::start_with_index(world.config.clone(), parts, Arc::new(world.index.clone())).await.unwrap();
    let held = budget.acquire(60 << 10).await;
    let mut wire = Wire::new(world.network.connect("bk1:3181").await.unwrap());
    assert_eq!(wire.add(1, 0, &[1; 8_000]).await, Status::TooManyRequests);
    drop(held);
    assert_eq!(wire.add(1, 0, &[1; 8_000]).await, Status::Ok);
    assert_eq!(budget.used_bytes(), 0, "given back with the answer");
    bookie.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn readers_that_take_nothing_cost_bounded_memory_and_harm_nobody() {
    let mut world = World::new();
    world.config.read_bytes_max = ByteSize::mib(2);
    world.config.write_timeout = Span::millis(300);
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..64 {
        assert_eq!(wire.add(1, e, &vec![e as u8; 100_000]).await, Status::Ok);
    }
    let mut deaf = Vec::new();
    for _ in 0..10 {
        let mut stream = world.network.connect("bk1:3181").await.unwrap();
        let mut out = bytes::BytesMut::new();
        for e in 0..64 {
            proto::client::encode_read_v2(ledger(1), ReadTarget::Entry(entry(e)), None, false, &mut out);
        }
        stream.write_all(&out).await.unwrap();
        deaf.push(stream);
    }
    for e in 0..64 {
        assert_eq!(wire.read(1, e).await.unwrap().len(), 100_036);
    }
    assert_eq!(wire.add(2, 0, b"x").await, Status::Ok);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn reads_that_wait_for_others_of_their_entry_do_not_hold_up_the_budget() {
    let mut world = World::new();
    world.config.read_bytes_max = ByteSize::kib(16);
    world.config.write_buffer_bytes = ByteSize::new(0);
    let tasks = common::shutdown::TaskTree::root("test");
    let mut parts = world.parts(&tasks);
    let budget = common::budget::ByteBudget::new("node", 1 << 20);
    parts.budget = budget.clone();
    let bookie =
        crate::Bookie::start_with_index(world.config.clone(), parts, Arc::new(world.index.clone())).await.unwrap();
    let mut wire = Wire::new(world.network.connect("bk1:3181").await.unwrap());
    for (e, bytes) in [(0, 4_000), (1, 4_000), (2, 40_000)] {
        assert_eq!(wire.add(1, e, &vec![1; bytes]).await, Status::Ok);
    }
    let held = budget.acquire(1 << 20).await;
    for e in [0, 0, 1] {
        wire.put_read(1, ReadTarget::Entry(entry(e)), None);
    }
    wire.send().await;
    settle(|| budget.waiting() == 1).await;
    // More than the reads' whole budget: it waits until it is alone, before the second read of entry 0 asks for its part.
    let mut large = Wire::new(world.network.connect("bk1:3181").await.unwrap());
    large.put_read(1, ReadTarget::Entry(entry(2)), None);
    large.send().await;
    // Paused time moves only when nothing else can: by then the large read waits in its place.
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(held);
    for _ in 0..3 {
        assert_eq!(wire.reply().await.status, Status::Ok);
    }
    assert_eq!(large.reply().await.status, Status::Ok);
    bookie.stop(PATIENCE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whoever_begins_a_frame_must_go_on_with_it() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    wire.send_raw(&[0, 0x40, 0, 0, 2, 1, 0, 0]).await;
    // The wait of the test is shorter than that of the bookie, which is 30 s.
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(wire.frame().await, None);
    let mut idle = running.connect().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(idle.add(1, 0, b"x").await, Status::Ok, "silence between frames is no offence");
    running.stop().await;
}

#[tokio::test]
async fn a_flood_of_refused_requests_is_answered_to_the_last() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.fence(1, &key()).await, Err(Status::NoEntry));
    for round in 0..30 {
        for e in 0..1_000 {
            wire.put_add(1, round * 1_000 + e, b"", &key(), AddFlags::default());
        }
        wire.send().await;
        for _ in 0..1_000 {
            assert_eq!(wire.reply().await.status, Status::Fenced);
        }
    }
    running.stop().await;
}
