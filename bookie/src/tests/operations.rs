use super::support::*;
use ::config::ByteSize;
use bytes::Bytes;
use ledger::MasterKey;
use proto::client::{
    AddFlags, PayloadV3, encode_add_v3, encode_bookie_info_v3, encode_force_ledger_v3, encode_list_entries_v3,
    encode_read_v3, encode_write_lac_v3,
};
use proto::{Availability, ReadTarget, Status};

use crate::SyncMode;

async fn write_lac_as(wire: &mut Wire, l: u64, lac: u64, key: &MasterKey) -> Status {
    let body = lac_body(l, lac);
    let reply = wire.ask(|out| encode_write_lac_v3(1, ledger(l), Some(entry(lac)), key, &body, out)).await;
    assert_eq!(reply.ledger, l as i64);
    reply.status
}

async fn write_lac(wire: &mut Wire, l: u64, lac: u64) -> Status {
    write_lac_as(wire, l, lac, &key()).await
}

async fn force(wire: &mut Wire, l: u64) -> Status {
    wire.ask(|out| encode_force_ledger_v3(2, ledger(l), out)).await.status
}

async fn list(wire: &mut Wire, l: u64) -> Result<Availability, Status> {
    let reply = wire.ask(|out| encode_list_entries_v3(3, ledger(l), out)).await;
    match reply.payload {
        PayloadV3::Entries(list) => Ok(list),
        _ => Err(reply.status),
    }
}

async fn max_lac(wire: &mut Wire, l: u64, e: u64) -> Option<u64> {
    let target = ReadTarget::Entry(entry(e));
    match wire.ask(|out| encode_read_v3(4, ledger(l), target, None, false, out)).await.payload {
        PayloadV3::Entry { max_lac, .. } => max_lac.map(|id| id.get()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_explicit_last_confirmed_is_kept_through_crashes_and_sealing() {
    let world = World::new();
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    assert_eq!(wire.read_lac(1).await, Err(Status::NoEntry), "never heard of");
    assert_eq!(write_lac(&mut wire, 1, 41).await, Status::Ok, "it makes the ledger");
    assert_eq!(wire.read_lac(1).await, Ok((Some(lac_body(1, 41)), None)));
    assert_eq!(v2.read_last(1).await, Err(Status::NoEntry));
    assert_eq!(v2.add(1, 3, b"x").await, Status::Ok);
    assert_eq!(wire.read_lac(1).await, Ok((Some(lac_body(1, 41)), Some(body(1, 3, b"x")))));
    assert_eq!(max_lac(&mut wire, 1, 3).await, Some(41), "the highest of both");
    assert_eq!(write_lac(&mut wire, 1, 7).await, Status::Ok);
    assert_eq!(wire.read_lac(1).await.unwrap().0, Some(lac_body(1, 41)), "nobody sees it go back");
    let mut world = world.crash(running).await;
    for round in 0..3_u64 {
        let running = world.start().await;
        let (mut v2, mut wire) = (running.connect().await, running.connect().await);
        let lac = 41 + round;
        assert_eq!(wire.read_lac(1).await.unwrap().0, Some(lac_body(1, lac)), "round {round}");
        assert_eq!(max_lac(&mut wire, 1, 3).await, Some(lac));
        // The record that said so is sealed, and only the index is asked at the next start.
        v2.fill(&running, 2, round * 1_000, 2).await;
        assert_eq!(wire.read_lac(1).await.unwrap().0, Some(lac_body(1, lac)));
        assert_eq!(write_lac(&mut wire, 1, lac + 1).await, Status::Ok);
        world = world.crash(running).await;
    }
}

#[tokio::test]
async fn an_explicit_last_confirmed_is_keyed_and_no_fence_stops_it() {
    let world = World::new();
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    assert_eq!(write_lac(&mut wire, 1, 5).await, Status::Ok);
    let other = MasterKey::derive(b"other");
    assert_eq!(write_lac_as(&mut wire, 1, 6, &other).await, Status::Unauthorized);
    assert_eq!(v2.add_as(1, 0, b"x", &other, AddFlags::default()).await, Status::Unauthorized, "it taught the key");
    assert_eq!(v2.fence(1, &key()).await, Err(Status::NoEntry));
    assert_eq!(write_lac(&mut wire, 1, 6).await, Status::Ok);
    assert_eq!(wire.read_lac(1).await.unwrap().0, Some(lac_body(1, 6)));

    let end = v2.fill(&running, 8, 0, 1).await;
    v2.fill(&running, 9, 0, 2).await;
    world.create_ledger(1, "bk1:3181", false).await;
    world.create_ledger(8, "elsewhere:3181", true).await;
    running.bookie.collect_now().await.unwrap();
    assert_eq!(write_lac(&mut wire, 9, 6).await, Status::NoLedger, "deleted");
    assert_eq!(wire.read_lac(9).await, Err(Status::NoLedger));
    assert_eq!(write_lac(&mut wire, 8, end).await, Status::Fenced, "closed, and elsewhere");
    assert_eq!(wire.read_lac(8).await, Err(Status::UnknownLedgerState));
    running.stop().await;
}

#[tokio::test]
async fn an_explicit_last_confirmed_that_cannot_be_stored_is_refused() {
    let mut world = World::new();
    world.config.disk_bytes_max = ByteSize::kib(256);
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    assert_eq!(write_lac(&mut wire, 1, 5).await, Status::Ok);
    let mut e = 0;
    while v2.add(2, e, &payload(2, e)).await == Status::Ok {
        e += 1;
    }
    assert_eq!(write_lac(&mut wire, 1, 6).await, Status::ReadOnly);
    assert_eq!(wire.read_lac(1).await.unwrap().0, Some(lac_body(1, 5)));
    assert_eq!(force(&mut wire, 1).await, Status::Ok, "a read-only bookie forces");
    running.stop().await;

    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.disk.fail_syncs(Some("the cable fell out"));
    assert_eq!(write_lac(&mut wire, 1, 5).await, Status::Io);
    assert_eq!(write_lac(&mut wire, 1, 5).await, Status::Io);
    running.stop().await;
}

/// Whether a power cut now would leave the bytes.
fn is_durable(world: &World, bytes: &[u8]) -> bool {
    world.disk.crash().files().iter().any(|(_, file)| file.windows(bytes.len()).any(|window| window == bytes))
}

#[tokio::test]
async fn a_force_makes_durable_what_was_acknowledged_in_every_mode() {
    for mode in [SyncMode::Never, SyncMode::Always] {
        let mut world = World::new();
        world.config.sync = mode;
        let running = world.start().await;
        let (mut v2, mut wire) = (running.connect().await, running.connect().await);
        assert_eq!(force(&mut wire, 7).await, Status::Ok, "of a ledger nobody knows");
        assert_eq!(v2.read_last(7).await, Err(Status::NoLedger), "which it did not make");
        assert_eq!(running.bookie.stats().ledgers, 0);
        for e in 0..400 {
            assert_eq!(v2.add(1, e, format!("entry number {e} of many").as_bytes()).await, Status::Ok);
        }
        assert_eq!(is_durable(&world, b"entry number 399"), mode == SyncMode::Always);
        assert_eq!(force(&mut wire, 1).await, Status::Ok);
        assert!(is_durable(&world, b"entry number 399"));
        let world = world.crash(running).await;
        let running = world.start().await;
        let mut v2 = running.connect().await;
        for e in 0..400 {
            let expected = body(1, e, format!("entry number {e} of many").as_bytes());
            assert_eq!(v2.read(1, e).await.unwrap(), expected, "entry {e} with {mode:?}");
        }
        running.stop().await;
    }
}

#[tokio::test]
async fn a_force_that_fails_says_so_and_ends_writing() {
    let mut world = World::new();
    world.config.sync = SyncMode::Never;
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    assert_eq!(v2.add(1, 0, b"x").await, Status::Ok);
    world.disk.fail_syncs(Some("the cable fell out"));
    assert_eq!(v2.add(1, 1, b"x").await, Status::Ok, "nothing is synced for it");
    assert_eq!(force(&mut wire, 1).await, Status::Io);
    world.disk.fail_syncs(None);
    assert_eq!(force(&mut wire, 1).await, Status::Io, "what was lost does not come back");
    assert_eq!(v2.add(1, 2, b"x").await, Status::Io);
    running.stop().await;
}

#[tokio::test]
async fn deferred_adds_are_durable_when_they_are_acknowledged() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let sealed = body(1, 0, b"deferred entry");
    let reply =
        wire.ask(|out| encode_add_v3(1, ledger(1), entry(0), &key(), &sealed, AddFlags::default(), true, out)).await;
    assert_eq!(reply.status, Status::Ok);
    assert!(is_durable(&world, b"deferred entry"));
    running.stop().await;
}

#[tokio::test]
async fn the_disks_are_told_as_the_budget_allows() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let budget = world.config.disk_bytes_max.bytes();
    let free = budget - running.bookie.stats().allocated_bytes;
    for (total, usable) in [(true, true), (true, false), (false, true), (false, false)] {
        let reply = wire.ask(|out| encode_bookie_info_v3(5, total, usable, out)).await;
        let expected =
            PayloadV3::BookieInfo { total_bytes: total.then_some(budget), free_bytes: usable.then_some(free) };
        assert_eq!((reply.status, reply.payload), (Status::Ok, expected));
    }
    let used: u64 = world.disk.files().iter().map(|(_, file)| file.len() as u64).sum();
    world.disk.set_capacity(Some(used + 5_000));
    let reply = wire.ask(|out| encode_bookie_info_v3(5, true, true, out)).await;
    let expected = PayloadV3::BookieInfo { total_bytes: Some(used + 5_000), free_bytes: Some(5_000) };
    assert_eq!(reply.payload, expected);
    running.stop().await;
}

#[tokio::test]
async fn the_list_of_entries_has_each_once_from_every_segment() {
    let world = World::new();
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    assert_eq!(list(&mut wire, 1).await, Err(Status::NoLedger));
    assert_eq!(v2.fence(3, &key()).await, Err(Status::NoEntry));
    assert_eq!(list(&mut wire, 3).await.unwrap().runs().count(), 0, "known, and empty");
    for e in [0, 1, 2, 5, 6] {
        assert_eq!(v2.add(1, e, b"x").await, Status::Ok);
    }
    let runs = |list: &Availability| list.runs().collect::<Vec<_>>();
    assert_eq!(runs(&list(&mut wire, 1).await.unwrap()), [0..=2, 5..=6]);
    v2.fill(&running, 2, 0, 2).await;
    // Again, and more, in later segments; a block of the index holds 682 rows.
    for e in [2, 3, 6, 1_000] {
        assert_eq!(v2.add(1, e, b"again").await, Status::Ok);
    }
    let end = v2.fill(&running, 2, 1_000, 2).await;
    assert_eq!(v2.add(1, 1_001, b"x").await, Status::Ok);
    let expected = [0..=3, 5..=6, 1_000..=1_001];
    assert_eq!(runs(&list(&mut wire, 1).await.unwrap()), expected);
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(runs(&list(&mut wire, 1).await.unwrap()), expected);
    let found = list(&mut wire, 2).await.unwrap();
    let held: u64 = found.runs().map(|run| run.end() - run.start() + 1).sum();
    let mut v2 = running.connect().await;
    for e in (0..end).step_by(29) {
        assert_eq!(found.contains(entry(e)), v2.read(2, e).await.is_ok(), "entry {e}");
    }
    assert!(held > 80 && !found.contains(entry(end)));
    running.stop().await;
}

#[tokio::test]
async fn a_list_that_may_be_less_than_was_is_not_told() {
    let world = World::new();
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    for l in [1, 2, 3] {
        assert_eq!(v2.add(l, 0, b"x").await, Status::Ok);
    }
    v2.fill(&running, 4, 0, 2).await;
    world.create_ledger(1, "elsewhere:3181", true).await;
    world.create_ledger(3, "bk1:3181", false).await;
    world.create_ledger(4, "bk1:3181", false).await;
    running.bookie.collect_now().await.unwrap();
    assert_eq!(list(&mut wire, 1).await, Err(Status::UnknownLedgerState), "gone");
    assert_eq!(list(&mut wire, 2).await, Err(Status::NoLedger), "deleted");
    assert!(list(&mut wire, 3).await.is_ok());
    assert_eq!(v2.recover(1, 0, b"x").await, Status::Ok);
    assert_eq!(list(&mut wire, 1).await, Err(Status::UnknownLedgerState), "revived in part");
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.disk.fail_reads(Some("a bad block"));
    assert_eq!(list(&mut wire, 3).await, Err(Status::Io), "an index that cannot be read");
    world.disk.fail_reads(None);
    assert!(list(&mut wire, 3).await.is_ok());
    running.stop().await;
}

#[tokio::test]
async fn a_list_longer_than_a_frame_is_refused_and_nothing_else_is() {
    let mut world = World::new();
    world.config.frame_bytes_max = ByteSize::new(4096);
    let running = world.start().await;
    let (mut v2, mut wire) = (running.connect().await, running.connect().await);
    for e in 0..200 {
        assert_eq!(v2.add(2, 2 * e, b"x").await, Status::Ok);
    }
    assert_eq!(list(&mut wire, 2).await.unwrap().runs().count(), 200, "runs at equal distances take next to nothing");
    let is_early = |e: &u64| [0, 2].contains(&(e % 5));
    for e in (0..900).filter(is_early) {
        assert_eq!(v2.add(1, e, b"x").await, Status::Ok);
    }
    assert_eq!(list(&mut wire, 1).await, Err(Status::Io), "180 groups of 24 bytes");
    for e in (0..900).filter(|e| !is_early(e)) {
        assert_eq!(v2.add(1, e, b"x").await, Status::Ok);
    }
    assert_eq!(list(&mut wire, 1).await.unwrap().runs().collect::<Vec<_>>(), [0..=899]);
    assert_eq!(wire.read_lac(1).await.unwrap(), (None, Some(Bytes::clone(&body(1, 899, b"x")))));
    running.stop().await;
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_and_those_that_are_open_are_kept() {
    let mut world = World::new();
    world.config.connections_max = 2;
    let running = world.start().await;
    let (mut first, mut second) = (running.connect().await, running.connect().await);
    assert_eq!(first.add(1, 0, b"x").await, Status::Ok);
    assert_eq!(second.add(1, 1, b"x").await, Status::Ok);
    assert_eq!(running.connect().await.frame().await, None);
    assert_eq!(second.read(1, 0).await.unwrap(), body(1, 0, b"x"), "an idle one is kept");
    // A place that was left is free again.
    drop(first);
    let served = async || {
        let (mut wire, mut frame) = (running.connect().await, bytes::BytesMut::new());
        encode_read_v3(1, ledger(1), ReadTarget::Entry(entry(0)), None, false, &mut frame);
        wire.try_send(&frame).await.is_ok() && wire.frame().await.is_some()
    };
    let again = async {
        while !served().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
    running.stop().await;
}
