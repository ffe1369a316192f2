//! Frames of strangers: random ones, and good ones with some bytes changed.

use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use ::config::Span;
use bytes::BytesMut;
use common::budget::ByteBudget;
use common::net::Connector as _;
use common::rng::Rng;
use common::shutdown::TaskTree;
use proto::client::{self, AddFlags, BatchRead};
use proto::{PollTarget, ReadTarget, Status};

/// One request of every kind, chosen by `kind`, well-formed.
fn good_frame(kind: u64, rng: &Rng, out: &mut BytesMut) {
    let (l, e, key) = (ledger(rng.below(5)), entry(rng.below(50)), key());
    let sealed = body(l.get(), e.get(), b"from a stranger");
    let fence = (rng.below(4) == 0).then_some(&key);
    let txn = rng.next_u64();
    match kind {
        0 => client::encode_add_v2(&key, &sealed, AddFlags { recovery: rng.below(2) == 0, high_priority: false }, out),
        1 => client::encode_read_v2(l, ReadTarget::Entry(e), fence, rng.below(2) == 0, out),
        2 => {
            let count_max = (rng.below(3) != 0).then(|| rng.below(9) as u32 + 1);
            let bytes_max = if rng.below(3) == 0 { rng.next_u64() >> 1 } else { rng.below(9_000) };
            let read = BatchRead {
                ledger: l,
                start: e,
                request: txn as i64,
                count_max,
                bytes_max,
                fence,
                high_priority: false,
            };
            client::encode_batch_read_v2(&read, out);
        }
        3 => client::encode_add_v3(txn, l, e, &key, &sealed, AddFlags::default(), rng.below(2) == 0, out),
        4 => client::encode_read_v3(txn, l, ReadTarget::Last, fence, false, out),
        5 => {
            let lac = rng.below(50);
            client::encode_write_lac_v3(txn, l, Some(entry(lac)), &key, &lac_body(l.get(), lac), out);
        }
        6 => client::encode_read_lac_v3(txn, l, out),
        7 => client::encode_force_ledger_v3(txn, l, out),
        8 => client::encode_bookie_info_v3(txn, true, true, out),
        9 => client::encode_list_entries_v3(txn, l, out),
        _ => {
            let patience = Some(Duration::from_millis(rng.below(30)));
            client::encode_long_poll_v3(txn, l, PollTarget::Next, Some(e), patience, out);
        }
    }
}

/// A frame that may be anything: its length word is right, or the frame is one of `good_frame` with bytes changed.
fn hostile_frame(rng: &Rng) -> Vec<u8> {
    if rng.below(3) == 0 {
        let mut payload = vec![0; rng.below(200) as usize];
        rng.fill(&mut payload);
        if let Some(first) = payload.first_mut().filter(|_| rng.below(4) != 0) {
            *first = [0, 1, 2, 0x0a][rng.below(4) as usize];
        }
        return [&(payload.len() as u32).to_be_bytes()[..], &payload].concat();
    }
    let mut out = BytesMut::new();
    good_frame(rng.below(11), rng, &mut out);
    let mut frame = out.to_vec();
    for _ in 0..rng.below(4) {
        // The length word too now and then: it may announce what never comes.
        let at = if rng.below(20) == 0 { rng.below(4) } else { 4 + rng.below(frame.len() as u64 - 4) };
        frame[at as usize] = rng.next_u64() as u8;
    }
    frame
}

#[tokio::test]
async fn nothing_that_strangers_send_harms_the_bookie() {
    let mut world = World::new();
    world.config.write_timeout = Span::millis(200);
    world.config.long_polls_max = 20;
    let tasks = TaskTree::root("test");
    let budget = ByteBudget::new("node", 16 << 20);
    let parts = crate::BookieParts { budget: budget.clone(), ..world.parts(&tasks) };
    let index = Arc::new(world.index.clone());
    let bookie = crate::Bookie::start_with_index(world.config.clone(), parts, index).await.unwrap();
    let connect = async || Wire::new(world.network.connect("bk1:3181").await.unwrap());
    let mut good = connect().await;
    for e in 0..20 {
        assert_eq!(good.add(1_000_000, e, &payload(7, e)).await, Status::Ok);
    }
    let rng = Rng::seeded(20_260);
    let mut strangers = Vec::new();
    for round in 0..400_u64 {
        let mut stranger = connect().await;
        for _ in 0..rng.below(12) + 1 {
            // It may be gone by then, as the protocol asks.
            if stranger.try_send(&hostile_frame(&rng)).await.is_err() {
                break;
            }
        }
        // Most leave without taking an answer, some stay.
        if round % 10 == 0 {
            strangers.push(stranger);
        }
        if round % 50 == 0 {
            let e = round / 50;
            assert_eq!(good.read(1_000_000, e).await.unwrap(), body(1_000_000, e, &payload(7, e)));
        }
    }
    for e in 0..20 {
        assert_eq!(good.read(1_000_000, e).await.unwrap(), body(1_000_000, e, &payload(7, e)), "nobody changed it");
    }
    assert_eq!(good.add(1_000_000, 20, b"x").await, Status::Ok);
    drop(strangers);
    settle(|| budget.used_bytes() == 0 && bookie.waiting_polls() == 0).await;
    assert_eq!(tasks.failure(), None);
    bookie.stop(PATIENCE).await.unwrap();
}

/// Every kind of request, unchanged, is answered: the frames above are not refused for their form alone.
#[tokio::test]
async fn good_requests_of_every_kind_are_answered() {
    let world = World::new();
    let running = world.start().await;
    let rng = Rng::seeded(3);
    for kind in 0..11 {
        let mut wire = running.connect().await;
        let mut out = BytesMut::new();
        for _ in 0..20 {
            good_frame(kind, &rng, &mut out);
        }
        wire.send_raw(&out).await;
        for _ in 0..20 {
            assert!(wire.frame().await.is_some(), "kind {kind}");
        }
    }
    running.stop().await;
}
