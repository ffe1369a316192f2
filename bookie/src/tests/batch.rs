use super::support::*;
use ::config::{ByteSize, Span};
use bytes::{Bytes, BytesMut};
use proto::Status;
use proto::client::{BatchRead, BatchResponseV2, decode_batch_response_v2, encode_batch_read_v2};

use crate::SyncMode;

const ALL: u64 = 5 << 20;

async fn ask(wire: &mut Wire, read: &BatchRead<'_>) -> BatchResponseV2 {
    let mut out = BytesMut::new();
    encode_batch_read_v2(read, &mut out);
    wire.send_raw(&out).await;
    let frame = wire.frame().await.expect("the connection is open");
    let reply = decode_batch_response_v2(frame).unwrap();
    assert_eq!((reply.request, reply.ledger), (read.request, read.ledger.as_i64()));
    assert_eq!(reply.start, read.start.as_i64());
    reply
}

fn read(l: u64, start: u64, count_max: Option<u32>, bytes_max: u64) -> BatchRead<'static> {
    let (ledger, start) = (ledger(l), entry(start));
    BatchRead { ledger, start, request: -9, count_max, bytes_max, fence: None, high_priority: false }
}

async fn entries(wire: &mut Wire, l: u64, start: u64, count_max: Option<u32>, bytes_max: u64) -> Vec<Bytes> {
    let reply = ask(wire, &read(l, start, count_max, bytes_max)).await;
    assert_eq!(reply.status, Status::Ok);
    reply.entries
}

fn bodies(l: u64, ids: std::ops::Range<u64>) -> Vec<Bytes> {
    ids.map(|e| body(l, e, &payload(l, e))).collect()
}

#[tokio::test]
async fn neighbours_come_together_from_memory_and_from_every_segment() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let end = wire.fill(&running, 1, 0, 3).await;
    assert_eq!(entries(&mut wire, 1, 0, None, ALL).await, bodies(1, 0..end), "sealed, unsealed and just added");
    assert_eq!(entries(&mut wire, 1, 7, Some(3), ALL).await, bodies(1, 7..10));
    assert_eq!(entries(&mut wire, 1, end - 2, Some(30), ALL).await, bodies(1, end - 2..end));
    // The head has 36 bytes, an entry 4 more than its body, which is 1060 long.
    let each = 4 + body(1, 0, &payload(1, 0)).len() as u64;
    assert_eq!(entries(&mut wire, 1, 5, None, 36 + 3 * each).await, bodies(1, 5..8));
    assert_eq!(entries(&mut wire, 1, 5, None, 36 + 3 * each - 1).await, bodies(1, 5..7));
    assert_eq!(entries(&mut wire, 1, 5, None, 0).await, bodies(1, 5..6), "the first one always");
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(entries(&mut wire, 1, 0, None, ALL).await, bodies(1, 0..end));
    running.stop().await;
}

#[tokio::test]
async fn a_batch_ends_at_the_first_entry_that_is_not_here() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in [0, 1, 2, 4] {
        assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
    }
    assert_eq!(entries(&mut wire, 1, 1, None, ALL).await, bodies(1, 1..3));
    assert_eq!(entries(&mut wire, 1, 4, None, ALL).await, bodies(1, 4..5));
    for (l, start, expected) in [(1, 3, Status::NoEntry), (1, 5, Status::NoEntry), (2, 0, Status::NoLedger)] {
        let reply = ask(&mut wire, &read(l, start, None, ALL)).await;
        assert_eq!((reply.status, reply.entries.len()), (expected, 0));
    }
    running.stop().await;
}

#[tokio::test]
async fn a_batch_holds_one_step_of_what_it_reads_and_its_reply() {
    let mut world = World::new();
    world.config.write_buffer_bytes = ByteSize::new(0);
    world.config.segment_bytes = ByteSize::mib(16);
    let running = world.start().await;
    let mut wire = running.connect().await;
    // Each in a group of its own: 4 KiB apart.
    for e in 0..1000 {
        assert_eq!(wire.add(1, e, b"x").await, Status::Ok);
    }
    let got = entries(&mut wire, 1, 0, None, ALL).await;
    assert_eq!(got.len(), 1000);
    assert_eq!(got[999], body(1, 999, b"x"));
    let peak = world.disk.read_bytes_peak();
    assert!(peak > 512 << 10, "{peak} bytes: neighbours are read together");
    assert!(peak <= (1 << 20) + (64 << 10), "{peak} bytes for a reply of 60 kB");
    running.stop().await;
}

#[tokio::test]
async fn a_batch_of_tiny_entries_ends_at_a_number() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..4200 {
        wire.put_add(1, e, b"", &key(), proto::client::AddFlags::default());
    }
    wire.send().await;
    for _ in 0..4200 {
        assert_eq!(wire.reply().await.status, Status::Ok);
    }
    for count_max in [None, Some(5000)] {
        let got = entries(&mut wire, 1, 0, count_max, ALL).await;
        assert_eq!((got.len(), &got[4095]), (4096, &body(1, 4095, b"")));
    }
    assert_eq!(entries(&mut wire, 1, 4096, None, ALL).await.len(), 104);
    running.stop().await;
}

#[tokio::test]
async fn adds_before_batches_give_their_budget_back_before_those_wait() {
    let mut world = World::new();
    world.config.add_bytes_max = ByteSize::kib(96);
    world.config.write_timeout = Span::secs(60);
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..30 {
        assert_eq!(wire.add(1, e, &vec![e as u8; 50_000]).await, Status::Ok);
    }
    let mut out = BytesMut::new();
    let flags = proto::client::AddFlags::default();
    for _ in 0..3 {
        encode_batch_read_v2(&read(1, 0, None, ALL), &mut out);
    }
    proto::client::encode_add_v2(&key(), &body(2, 0, &[2; 50_000]), flags, &mut out);
    encode_batch_read_v2(&read(1, 0, None, ALL), &mut out);
    let mut deaf = running.connect().await;
    deaf.send_raw(&out).await;
    // Once it is answered nothing of the deaf peer's burst needs the budget.
    settle_read(&mut wire, 2, 0).await;
    assert_eq!(wire.add(3, 0, &[3; 50_000]).await, Status::Ok);
    drop(deaf);
    running.stop().await;
}

/// Reads until the entry is there.
async fn settle_read(wire: &mut Wire, l: u64, e: u64) {
    let wait = async { while wire.read(l, e).await.is_err() {} };
    tokio::time::timeout(PATIENCE, wait).await.expect("the entry comes");
}

#[tokio::test]
async fn a_reply_is_never_longer_than_a_frame() {
    let mut world = World::new();
    world.config.frame_bytes_max = ByteSize::kib(8);
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..10 {
        assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
    }
    let got = entries(&mut wire, 1, 0, None, u64::MAX).await;
    assert_eq!(got, bodies(1, 0..7));
    // An add of exactly a frame: the reply to a single read of it fits, that to a batch of one is 12 bytes longer.
    let longest = vec![7; 8192 - 28 - 36];
    assert_eq!(wire.add(2, 0, &longest).await, Status::Ok);
    assert_eq!(ask(&mut wire, &read(2, 0, None, ALL)).await.status, Status::BadRequest);
    assert_eq!(wire.read(2, 0).await.unwrap(), body(2, 0, &longest));
    assert_eq!(wire.add(2, 1, &longest[12..]).await, Status::Ok);
    assert_eq!(entries(&mut wire, 2, 1, None, ALL).await, [body(2, 1, &longest[12..])]);
    running.stop().await;
}

#[tokio::test]
async fn a_fencing_batch_fences_durably_whatever_it_finds() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    let key = key();
    let other = ledger::MasterKey::derive(b"other");
    let fencing = |l, fence| BatchRead { fence: Some(fence), high_priority: true, ..read(l, 0, None, ALL) };
    assert_eq!(ask(&mut wire, &fencing(1, &other)).await.status, Status::Unauthorized);
    assert_eq!(wire.add(1, 1, b"x").await, Status::Ok, "not fenced by that");
    assert_eq!(ask(&mut wire, &fencing(1, &key)).await.entries.len(), 2);
    assert_eq!(ask(&mut wire, &fencing(2, &key)).await.status, Status::NoEntry, "made, and fenced");
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    for l in [1, 2] {
        assert_eq!(wire.add(l, 5, b"late").await, Status::Fenced);
    }
    world.disk.fail_syncs(Some("the cable fell out"));
    assert_eq!(ask(&mut wire, &fencing(3, &key)).await.status, Status::Io, "not even that it is missing");
    running.stop().await;
}

#[tokio::test]
async fn a_damaged_entry_ends_a_batch_and_is_an_error_at_its_start() {
    let mut world = World::new();
    world.config.write_buffer_bytes = ByteSize::new(0);
    world.config.sync = SyncMode::Always;
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..4 {
        assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
    }
    let (path, file) = world.segment_files().swap_remove(0);
    let wanted = payload(1, 2);
    let at = file.windows(wanted.len()).position(|window| window == wanted).unwrap();
    world.disk.damage(&path, |file| file[at + 500] ^= 1);
    assert_eq!(entries(&mut wire, 1, 0, None, ALL).await, bodies(1, 0..2));
    assert_eq!(ask(&mut wire, &read(1, 2, None, ALL)).await.status, Status::Io);
    running.stop().await;
}

#[tokio::test]
async fn batches_of_deaf_peers_stay_within_the_budget_of_reads() {
    let mut world = World::new();
    world.config.read_bytes_max = ByteSize::mib(1);
    world.config.write_timeout = Span::millis(300);
    let tasks = common::shutdown::TaskTree::root("test");
    let budget = common::budget::ByteBudget::new("node", 8 << 20);
    let parts = crate::BookieParts { budget: budget.clone(), ..world.parts(&tasks) };
    let index = std::sync::Arc::new(world.index.clone());
    let bookie = crate::Bookie::start_with_index(world.config.clone(), parts, index).await.unwrap();
    let connect = async || Wire::new(common::net::Connector::connect(&world.network, "bk1:3181").await.unwrap());
    let mut wire = connect().await;
    for e in 0..40 {
        assert_eq!(wire.add(1, e, &vec![e as u8; 50_000]).await, Status::Ok);
    }
    let mut out = BytesMut::new();
    for _ in 0..20 {
        encode_batch_read_v2(&read(1, 0, None, ALL), &mut out);
    }
    let mut deaf = Vec::new();
    for _ in 0..5 {
        let mut peer = connect().await;
        peer.send_raw(&out).await;
        deaf.push(peer);
    }
    assert_eq!(entries(&mut wire, 1, 0, Some(2), ALL).await.len(), 2, "others are served");
    assert!(world.disk.read_bytes_peak() <= (1 << 20) + (64 << 10), "{}", world.disk.read_bytes_peak());
    settle(|| budget.used_bytes() == 0).await;
    bookie.stop(PATIENCE).await.unwrap();
}
