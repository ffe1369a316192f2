use super::support::*;
use crate::BookieState;
use ::config::ByteSize;
use proto::Status;
use proto::client::AddFlags;

const RECOVERY_ONLY: AddFlags = AddFlags { recovery: true, high_priority: false };
const PRIORITY_ONLY: AddFlags = AddFlags { recovery: false, high_priority: true };

/// A bookie whose budget is spent, and the end of what it took of ledger 1.
async fn full(world: &World) -> (Running, Wire, u64) {
    let running = world.start().await;
    let mut wire = running.connect().await;
    let mut e = 0;
    while wire.add(1, e, &payload(1, e)).await == Status::Ok {
        e += 1;
    }
    assert!(matches!(running.bookie.stats().state, BookieState::ReadOnly { for_good: false, .. }));
    (running, wire, e)
}

fn world(reserve: ByteSize) -> World {
    let mut world = World::new();
    world.config.disk_bytes_max = ByteSize::kib(512);
    world.config.priority_reserve_bytes = reserve;
    world
}

#[tokio::test]
async fn recovery_goes_on_in_the_space_that_is_kept_for_it() {
    let reserve = ByteSize::kib(512);
    let world = world(reserve);
    let (running, mut wire, end) = full(&world).await;
    let plain = AddFlags::default();
    assert_eq!(wire.add_as(2, 0, &payload(2, 0), &key(), RECOVERY_ONLY).await, Status::ReadOnly, "not urgent");
    assert_eq!(wire.add_as(2, 0, &payload(2, 0), &key(), RECOVERY).await, Status::Ok);
    assert_eq!(wire.add_as(3, 0, &payload(3, 0), &key(), PRIORITY_ONLY).await, Status::Ok);
    assert_eq!(wire.add_as(1, end, b"x", &key(), plain).await, Status::ReadOnly, "the rest is still refused");
    let mut e = 1;
    while wire.recover(2, e, &payload(2, e)).await == Status::Ok {
        e += 1;
    }
    assert!(e > 40, "{e} entries of 1 KiB in {reserve}");
    assert_eq!(wire.recover(2, e, &payload(2, e)).await, Status::ReadOnly, "spent too");
    assert!(running.bookie.stats().allocated_bytes <= (512 + 512) << 10);
    assert_eq!(wire.fence(7, &key()).await, Err(Status::NoEntry), "a fence outlasts both");
    for id in 0..e {
        assert_eq!(wire.read(2, id).await.unwrap(), body(2, id, &payload(2, id)));
    }
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    for id in 0..e {
        assert_eq!(wire.read(2, id).await.unwrap(), body(2, id, &payload(2, id)), "entry {id}");
    }
    assert_eq!(wire.read(1, end - 1).await.unwrap(), body(1, end - 1, &payload(1, end - 1)));
    assert_eq!(wire.add(1, end, b"x").await, Status::ReadOnly);
    assert_eq!(wire.recover(2, e, &payload(2, e)).await, Status::ReadOnly);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn space_that_comes_back_is_for_recovery_first() {
    let world = world(ByteSize::kib(512));
    let (running, mut wire, _) = full(&world).await;
    world.create_ledger(2, "bk1:3181", false).await;
    let mut e = 0;
    while wire.recover(2, e, &payload(2, e)).await == Status::Ok {
        e += 1;
    }
    // Ledger 1 is in no metadata; what recovery brought stays.
    assert!(running.bookie.collect_now().await.unwrap().segments_removed > 0);
    settle(|| running.bookie.stats().allocated_bytes <= 1 << 20).await;
    let mut tries = 0;
    while wire.recover(2, e, &payload(2, e)).await != Status::Ok {
        tries += 1;
        assert!(tries < 200, "the space is found within the interval of the look-out");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(wire.read(2, 0).await.unwrap(), body(2, 0, &payload(2, 0)));
    running.stop().await;
}

#[tokio::test]
async fn without_kept_space_urgent_adds_are_refused_as_all_others() {
    let world = world(ByteSize::new(0));
    let (running, mut wire, end) = full(&world).await;
    for flags in [RECOVERY, PRIORITY_ONLY, RECOVERY_ONLY] {
        assert_eq!(wire.add_as(1, end, &payload(1, end), &key(), flags).await, Status::ReadOnly);
    }
    running.stop().await;
}

#[tokio::test]
async fn the_free_space_of_others_is_lent_so_far_and_no_further() {
    let mut world = world(ByteSize::kib(256));
    world.config.disk_bytes_max = ByteSize::mib(64);
    world.config.disk_free_bytes_min = ByteSize::kib(512);
    world.disk.set_capacity(Some(1 << 20));
    let (running, mut wire, _) = full(&world).await;
    let free = async || crate::Disk::free_bytes(&world.disk, std::path::Path::new(DIR)).await.unwrap();
    assert!(free().await >= 512 << 10);
    let mut e = 0;
    while wire.recover(2, e, &payload(2, e)).await == Status::Ok {
        e += 1;
    }
    assert!(e > 10, "{e} entries");
    assert!(free().await >= 256 << 10, "{} bytes are left to others", free().await);
    running.stop().await;
}

#[tokio::test]
async fn a_bookie_that_failed_takes_nothing() {
    let world = world(ByteSize::kib(512));
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.disk.fail_syncs(Some("the cable fell out"));
    assert_eq!(wire.add(1, 0, b"x").await, Status::Io);
    world.disk.fail_syncs(None);
    assert_eq!(wire.recover(1, 0, b"x").await, Status::Io);
    running.stop().await;
}
