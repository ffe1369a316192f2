use std::time::Duration;

use super::support::*;
use bytes::BytesMut;
use proto::client::{
    PayloadV3, ResponseV3, encode_force_ledger_v3, encode_long_poll_v3, encode_read_lac_v3, encode_write_lac_v3,
};
use proto::{PollTarget, ReadTarget, Status};
use tokio::time::Instant;

const LONG: Option<Duration> = Some(Duration::from_secs(600));

fn put_poll(
    out: &mut BytesMut,
    txn: u64,
    l: u64,
    target: PollTarget,
    previous: Option<u64>,
    patience: Option<Duration>,
) {
    encode_long_poll_v3(txn, ledger(l), target, previous.map(entry), patience, out);
}

async fn poll(wire: &mut Wire, l: u64, previous: Option<u64>, patience: Option<Duration>) -> ResponseV3 {
    wire.ask(|out| put_poll(out, 1, l, PollTarget::Next, previous, patience)).await
}

/// Sends a poll for the next entry and waits until the bookie has it waiting.
async fn waiting(running: &Running, l: u64, previous: Option<u64>) -> Wire {
    let (mut wire, before) = (running.connect().await, running.bookie.waiting_polls());
    let mut out = BytesMut::new();
    put_poll(&mut out, 9, l, PollTarget::Next, previous, LONG);
    wire.send_raw(&out).await;
    settle(|| running.bookie.waiting_polls() == before + 1).await;
    wire
}

fn found(reply: &ResponseV3) -> (i64, bytes::Bytes, Option<u64>) {
    match (&reply.status, &reply.payload) {
        (Status::Ok, PayloadV3::Entry { body, max_lac }) => (reply.entry, body.clone(), max_lac.map(|id| id.get())),
        other => panic!("{other:?}"),
    }
}

fn confirmed(reply: &ResponseV3) -> Option<u64> {
    match (&reply.status, &reply.payload) {
        (Status::Ok, PayloadV3::Confirmed { max_lac }) => {
            assert_eq!(reply.entry, -1);
            max_lac.map(|id| id.get())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_confirmed_already_is_told_at_once() {
    let world = World::new();
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    assert_eq!(poll(&mut wire, 1, None, LONG).await.status, Status::NoLedger, "unknown: no waiting");
    for e in 0..5 {
        assert_eq!(v2.add(1, e, b"x").await, Status::Ok);
    }
    for (previous, next) in [(None, 0), (Some(0), 1), (Some(2), 3)] {
        let reply = poll(&mut wire, 1, previous, LONG).await;
        assert_eq!(found(&reply), (next as i64, body(1, next, b"x"), Some(3)));
    }
    assert_eq!(confirmed(&poll(&mut wire, 1, Some(3), None).await), Some(3), "no time: no waiting");
    assert_eq!(confirmed(&poll(&mut wire, 1, Some(3), Some(Duration::ZERO)).await), Some(3));
    // Striping: entry 8 is confirmed by what entry 9 says, and lies elsewhere.
    assert_eq!(v2.add(1, 9, b"x").await, Status::Ok);
    assert_eq!(confirmed(&poll(&mut wire, 1, Some(7), LONG).await), Some(8));
    running.stop().await;
}

#[tokio::test]
async fn waiting_ends_with_an_add_an_explicit_last_confirmed_or_a_fence() {
    let world = World::new();
    let running = world.start().await;
    let mut v2 = running.connect().await;
    for e in 0..2 {
        assert_eq!(v2.add(1, e, b"x").await, Status::Ok);
    }
    let (mut one, mut two) = (waiting(&running, 1, Some(0)).await, waiting(&running, 1, Some(0)).await);
    assert_eq!(v2.add(1, 2, b"x").await, Status::Ok);
    for wire in [&mut one, &mut two] {
        assert_eq!(found(&wire.reply_v3().await), (1, body(1, 1, b"x"), Some(1)));
    }
    let mut wire = waiting(&running, 1, Some(1)).await;
    let lac = lac_body(1, 2);
    let mut writer = running.connect().await;
    let reply = writer.ask(|out| encode_write_lac_v3(1, ledger(1), Some(entry(2)), &key(), &lac, out)).await;
    assert_eq!(reply.status, Status::Ok);
    assert_eq!(found(&wire.reply_v3().await), (2, body(1, 2, b"x"), Some(2)));

    let mut wire = waiting(&running, 1, Some(2)).await;
    assert_eq!(v2.add(1, 3, b"x").await, Status::Ok, "it confirms nothing new");
    assert_eq!(running.bookie.waiting_polls(), 1);
    assert_eq!(v2.fence(1, &key()).await.unwrap(), body(1, 3, b"x"));
    assert_eq!(confirmed(&wire.reply_v3().await), Some(2), "a fence ends it, with the state of that moment");
    // Whoever asks again after the fence waits for recovery to add something.
    let mut wire = waiting(&running, 1, Some(2)).await;
    assert_eq!(v2.recover(1, 4, b"x").await, Status::Ok);
    assert_eq!(found(&wire.reply_v3().await), (3, body(1, 3, b"x"), Some(3)));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_is_answered_from_the_present_state() {
    let world = World::new();
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    for e in 0..2 {
        assert_eq!(v2.add(1, e, b"x").await, Status::Ok);
    }
    let began = Instant::now();
    assert_eq!(confirmed(&poll(&mut wire, 1, Some(0), Some(Duration::from_secs(7))).await), Some(0));
    assert!(began.elapsed() >= Duration::from_secs(7));
    for (e, expected) in [(1, Status::Ok), (7, Status::NoEntry)] {
        let target = PollTarget::Read(ReadTarget::Entry(entry(e)));
        let began = Instant::now();
        let reply = wire.ask(|out| put_poll(out, 3, 1, target, Some(0), Some(Duration::from_secs(7)))).await;
        assert_eq!((reply.status, reply.entry), (expected, e as i64));
        assert!(began.elapsed() >= Duration::from_secs(7), "a plain read waits too");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_waiting_read_of_an_entry_gets_it_when_it_is_confirmed() {
    let world = World::new();
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    assert_eq!(v2.add(1, 0, b"x").await, Status::Ok);
    let mut out = BytesMut::new();
    put_poll(&mut out, 4, 1, PollTarget::Read(ReadTarget::Entry(entry(1))), None, LONG);
    put_poll(&mut out, 5, 1, PollTarget::Read(ReadTarget::Last), None, LONG);
    wire.send_raw(&out).await;
    settle(|| running.bookie.waiting_polls() == 2).await;
    v2.put_add(1, 1, b"x", &key(), proto::client::AddFlags::default());
    v2.put_add(1, 2, b"x", &key(), proto::client::AddFlags::default());
    v2.send().await;
    let mut replies = [wire.reply_v3().await, wire.reply_v3().await];
    replies.sort_by_key(|reply| reply.txn);
    assert_eq!(found(&replies[0]).0, 1);
    assert_eq!(replies[1].entry, -1);
    running.stop().await;
}

#[tokio::test]
async fn only_durable_entries_end_a_wait() {
    let world = World::new();
    let running = world.start().await;
    let mut v2 = running.connect().await;
    assert_eq!(v2.add(1, 0, b"x").await, Status::Ok);
    let mut wire = waiting(&running, 1, None).await;
    world.disk.fail_syncs(Some("the cable fell out"));
    assert_eq!(v2.add(1, 1, b"x").await, Status::Io);
    assert_eq!(v2.fence(1, &key()).await, Err(Status::Io));
    assert_eq!(running.bookie.waiting_polls(), 1, "neither the entry nor the fence can be told");
    running.stop().await;
    assert_eq!(confirmed(&wire.reply_v3().await), None, "a stop ends it");
}

#[tokio::test]
async fn waits_end_with_their_connection_and_with_the_bookie() {
    let world = World::new();
    let running = world.start().await;
    let mut v2 = running.connect().await;
    assert_eq!(v2.add(1, 0, b"x").await, Status::Ok);
    let gone = waiting(&running, 1, None).await;
    let mut stays = waiting(&running, 1, None).await;
    drop(gone);
    settle(|| running.bookie.waiting_polls() == 1).await;
    let began = Instant::now();
    running.stop().await;
    assert!(began.elapsed() < PATIENCE, "nobody waited for the time of the poll");
    assert_eq!(confirmed(&stays.reply_v3().await), None);
}

#[tokio::test]
async fn waits_beyond_their_number_are_answered_at_once_and_hold_no_budget() {
    let mut world = World::new();
    world.config.long_polls_max = 12;
    let tasks = common::shutdown::TaskTree::root("test");
    let budget = common::budget::ByteBudget::new("node", 8 << 20);
    let parts = crate::BookieParts { budget: budget.clone(), ..world.parts(&tasks) };
    let index = std::sync::Arc::new(world.index.clone());
    let bookie = crate::Bookie::start_with_index(world.config.clone(), parts, index).await.unwrap();
    let mut wire = Wire::new(common::net::Connector::connect(&world.network, "bk1:3181").await.unwrap());
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    let mut wire = Wire::new(common::net::Connector::connect(&world.network, "bk1:3181").await.unwrap());
    let mut out = BytesMut::new();
    for txn in 0..10 {
        put_poll(&mut out, txn, 1, PollTarget::Next, None, LONG);
    }
    wire.send_raw(&out).await;
    for _ in 0..4 {
        assert_eq!(confirmed(&wire.reply_v3().await), None);
    }
    assert_eq!((bookie.waiting_polls(), budget.used_bytes()), (6, 0), "one connection may have half of all");
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut other = Wire::new(common::net::Connector::connect(&world.network, "bk1:3181").await.unwrap());
        other.send_raw(&out).await;
        others.push(other);
    }
    settle(|| bookie.waiting_polls() == 12).await;
    // And a quarter of all once half of them are taken.
    for other in &mut others {
        for _ in 0..7 {
            assert_eq!(confirmed(&other.reply_v3().await), None);
        }
    }
    // Other requests of the connection are served meanwhile.
    let reply = wire.ask(|out| encode_force_ledger_v3(77, ledger(1), out)).await;
    assert_eq!((reply.txn, reply.status), (77, Status::Ok));
    let reply = wire.ask(|out| encode_read_lac_v3(78, ledger(1), out)).await;
    assert_eq!((reply.txn, reply.status), (78, Status::Ok));
    bookie.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn polls_of_a_deaf_peer_do_not_hold_up_the_reads_of_others() {
    let mut world = World::new();
    world.config.read_bytes_max = ::config::ByteSize::mib(4);
    world.config.write_timeout = ::config::Span::secs(60);
    let running = world.start().await;
    let mut v2 = running.connect().await;
    for e in 0..3 {
        assert_eq!(v2.add(2, e, &[7; 100_000]).await, Status::Ok);
    }
    assert_eq!(v2.add(1, 0, b"x").await, Status::Ok);
    let mut deaf = running.connect().await;
    let mut out = BytesMut::new();
    for txn in 0..40 {
        let target = if txn % 2 == 0 { PollTarget::Next } else { PollTarget::Read(ReadTarget::Entry(entry(1))) };
        put_poll(&mut out, txn, 1, target, Some(0), LONG);
    }
    deaf.send_raw(&out).await;
    settle(|| running.bookie.waiting_polls() == 40).await;
    // 40 answers of 300 kB, three times the budget.
    assert_eq!(v2.add(1, 1, &[1; 300_000]).await, Status::Ok);
    assert_eq!(v2.add(1, 2, b"x").await, Status::Ok);
    settle(|| running.bookie.waiting_polls() == 0).await;
    for e in 0..3 {
        assert_eq!(
            v2.read(2, e).await.unwrap(),
            body(2, e, &[7; 100_000]),
            "from the disk, without waiting for the deaf"
        );
    }
    drop(deaf);
    running.stop().await;
}

#[tokio::test]
async fn a_ledger_that_is_dropped_ends_the_wait_and_is_not_told_as_less() {
    let world = World::new();
    let running = world.start().await;
    let mut v2 = running.connect().await;
    for l in [1, 2] {
        assert_eq!(v2.add(l, 0, b"x").await, Status::Ok);
    }
    v2.fill(&running, 3, 0, 2).await;
    world.create_ledger(1, "elsewhere:3181", true).await;
    world.create_ledger(3, "bk1:3181", false).await;
    let (mut gone, mut deleted) = (waiting(&running, 1, None).await, waiting(&running, 2, None).await);
    running.bookie.collect_now().await.unwrap();
    assert_eq!(gone.reply_v3().await.status, Status::UnknownLedgerState);
    assert_eq!(deleted.reply_v3().await.status, Status::NoLedger);
    running.stop().await;
}
