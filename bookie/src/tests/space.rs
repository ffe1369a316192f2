use super::support::*;
use crate::index::Index as _;
use crate::{BookieState, begin_read_only, end_read_only};
use ::config::ByteSize;
use proto::Status;

async fn fill_up(wire: &mut Wire, l: u64) -> u64 {
    let mut e = 0;
    loop {
        match wire.add(l, e, &payload(l, e)).await {
            Status::Ok => e += 1,
            Status::ReadOnly => return e,
            status => panic!("{status:?}"),
        }
    }
}

#[tokio::test]
async fn a_spent_disk_budget_refuses_adds_loses_nothing_and_ends_by_itself() {
    let mut world = World::new();
    world.config.disk_bytes_max = ByteSize::kib(512);
    let running = world.start().await;
    let mut wire = running.connect().await;
    let end = fill_up(&mut wire, 1).await;
    assert!(end > 80, "{end} entries");
    assert!(matches!(running.bookie.stats().state, BookieState::ReadOnly { for_good: false, .. }));
    assert!(running.bookie.stats().allocated_bytes <= 512 << 10);
    while world.registered().await != Some(false) {
        tokio::task::yield_now().await;
    }
    for e in 0..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    // Fences are taken, and kept.
    assert_eq!(wire.fence(7, &key()).await, Err(Status::NoEntry));
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, end, b"x").await, Status::ReadOnly, "still no space after a restart");
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    // The ledger is in no metadata, so it goes.
    assert!(running.bookie.collect_now().await.unwrap().segments_removed > 0);
    assert_eq!(running.bookie.stats().state, BookieState::Writable);
    assert_eq!(wire.add(7, 0, b"x").await, Status::Fenced);
    assert_eq!(wire.add(8, 0, b"x").await, Status::Ok);
    running.stop().await;
}

#[tokio::test]
async fn a_full_disk_is_read_only_until_there_is_space() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.disk.set_capacity(Some(600 << 10));
    let end = fill_up(&mut wire, 1).await;
    assert!(end > 40, "{end} entries");
    assert_eq!(
        wire.fence(1, &key()).await.unwrap(),
        body(1, end - 1, &payload(1, end - 1)),
        "a fence needs little space"
    );
    world.disk.set_capacity(None);
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    assert_eq!(wire.add(2, 0, b"x").await, Status::Ok);
    assert_eq!(wire.add(1, end, b"x").await, Status::Fenced);
    running.stop().await;
}

#[tokio::test]
async fn a_disk_that_fails_while_space_is_awaited_ends_writing() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.disk.set_capacity(Some(600 << 10));
    let end = fill_up(&mut wire, 1).await;
    world.disk.fail_syncs(Some("the cable fell out"));
    world.disk.set_capacity(None);
    settle(|| matches!(running.bookie.stats().state, BookieState::ReadOnly { for_good: true, .. })).await;
    world.disk.fail_syncs(None);
    assert_eq!(wire.add(1, end, b"x").await, Status::Io, "nothing follows a segment that was made halfway");
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.read(1, end - 1).await.unwrap(), body(1, end - 1, &payload(1, end - 1)));
    assert_eq!(wire.add(1, end, b"x").await, Status::Ok);
    running.stop().await;
}

#[tokio::test]
async fn a_full_disk_does_not_prevent_the_start() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    let world = world.crash(running).await;
    world.disk.set_capacity(Some(1));
    for _ in 0..3 {
        let running = world.start().await;
        let mut wire = running.connect().await;
        assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, b"x"));
        assert_eq!(wire.add(1, 1, b"y").await, Status::ReadOnly);
        assert_eq!(wire.fence(1, &key()).await, Err(Status::Io), "nothing can be stored at all");
        running.stop().await;
    }
    world.disk.set_capacity(None);
    let running = world.start().await;
    assert_eq!(running.connect().await.add(1, 1, b"y").await, Status::Ok);
    running.stop().await;
}

#[tokio::test]
async fn an_index_without_space_is_read_only_until_there_is_some() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, &payload(1, 0)).await, Status::Ok);
    world.index.set_full(Some(0));
    let mut end = 1;
    loop {
        match wire.add(1, end, &payload(1, end)).await {
            Status::Ok => end += 1,
            Status::ReadOnly => break,
            status => panic!("{status:?}"),
        }
    }
    assert!(matches!(running.bookie.stats().state, BookieState::ReadOnly { for_good: false, .. }));
    settle(|| running.bookie.stats().spare_segments >= 1).await;
    for e in 0..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    assert_eq!(wire.fence(1, &key()).await.unwrap(), body(1, end - 1, &payload(1, end - 1)), "in what is kept back");
    world.index.set_full(None);
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    assert_eq!(wire.add(1, end, b"x").await, Status::Fenced);
    let more = fill_some(&mut wire, 2, 300).await;
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    assert_eq!(wire.read(2, more - 1).await.unwrap(), body(2, more - 1, &payload(2, more - 1)));
    assert_eq!(wire.add(1, end, b"x").await, Status::Fenced);
    running.stop().await;
}

async fn fill_some(wire: &mut Wire, l: u64, entries: u64) -> u64 {
    for e in 0..entries {
        assert_eq!(wire.add(l, e, &payload(l, e)).await, Status::Ok);
    }
    entries
}

#[tokio::test]
async fn full_segments_wait_for_space_in_the_index_and_are_served_meanwhile() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    // A new segment can be named, a full one cannot be entered.
    world.index.set_full(Some(1));
    let mut end = fill_up(&mut wire, 1).await;
    let stats = running.bookie.stats();
    assert!(matches!(stats.state, BookieState::ReadOnly { for_good: false, .. }));
    assert!(stats.segments <= 4, "the memory of unsealed segments is bounded: {stats:?}");
    assert_eq!(running.bookie.sealed_segments(), 0);
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    // Not by itself: the sealer must have got through first.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert!(matches!(running.bookie.stats().state, BookieState::ReadOnly { for_good: false, .. }));

    world.index.set_full(None);
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    settle(|| running.bookie.sealed_segments() > 0).await;
    let sealed = running.bookie.sealed_segments();
    while running.bookie.sealed_segments() == sealed {
        assert_eq!(wire.add(1, end, &payload(1, end)).await, Status::Ok);
        end += 1;
    }
    for e in 0..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    running.stop().await;
}

#[tokio::test]
async fn an_index_without_space_does_not_prevent_a_start_or_a_stop() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.index.set_full(Some(1));
    let end = fill_up(&mut wire, 1).await;
    let mut world = world.crash(running).await;
    for start in 0..3 {
        world.index.set_full(Some(start % 2));
        let running = world.start().await;
        let mut wire = running.connect().await;
        assert_eq!(running.bookie.sealed_segments(), 0);
        for e in 0..end {
            assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
        }
        assert_eq!(wire.add(1, end, b"x").await, Status::ReadOnly);
        if start == 0 {
            running.stop().await;
        } else {
            world = world.crash(running).await;
        }
    }
    let running = world.start().await;
    assert_eq!(running.bookie.stats().state, BookieState::Writable);
    let mut wire = running.connect().await;
    assert!(running.bookie.sealed_segments() > 0);
    for e in 0..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    assert_eq!(wire.add(1, end, b"x").await, Status::Ok);
    running.stop().await;
}

#[tokio::test]
async fn nothing_is_dropped_on_tombstones_that_the_index_has_no_space_for() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.create_ledger(1, "other:3181", true).await;
    let end = wire.fill(&running, 1, 0, 2).await;
    world.index.set_full(Some(0));
    for _ in 0..2 {
        let error = running.bookie.collect_now().await.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::IndexFull, "{error}");
        assert!(matches!(running.bookie.stats().state, BookieState::ReadOnly { for_good: false, .. }));
        assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    }
    // The tombstone stands in memory alone: a crash forgets it, and the data is there.
    assert!(world.index.scan(b"G", None, 10).await.unwrap().is_empty());
    world.index.set_full(None);
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    assert!(running.bookie.collect_now().await.unwrap().segments_removed > 0);
    // Now it is known to the index too.
    assert_eq!(wire.add(1, end, b"x").await, Status::Fenced);
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, end, b"x").await, Status::Fenced);

    // A recovery add to a gone ledger revives it, durably or not at all.
    world.index.set_full(Some(0));
    assert_eq!(wire.recover(1, 0, &payload(1, 0)).await, Status::ReadOnly);
    world.index.set_full(None);
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    assert_eq!(wire.recover(1, 0, &payload(1, 0)).await, Status::Ok);
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    running.stop().await;
}

/// A stop that meets a segment waiting for space leaves all behind it unsealed too, even when there is space by then: what the
/// index calls sealed begins with the first segment and has no hole.
#[tokio::test]
async fn nothing_is_sealed_past_a_segment_that_a_stop_left_waiting() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    world.index.set_full(Some(1));
    let end = fill_up(&mut wire, 1).await;
    // Just after a try: the next one comes when the writer has ended.
    let tried = world.index.found_full();
    settle(|| world.index.found_full() > tried).await;
    world.index.set_full_times(1, 1);
    running.stop().await;
    assert!(world.index.found_full() > tried + 1, "the waiting segment was tried once more");
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)));
    }
    assert_eq!(wire.add(1, end, b"x").await, Status::Ok);
    running.stop().await;
}

#[tokio::test]
async fn an_administrator_keeps_the_bookie_read_only_over_restarts_until_the_word_is_taken_back() {
    let world = World::new();
    let dir = std::path::Path::new(DIR);
    let no_bookie = begin_read_only(&world.disk, std::path::Path::new("/elsewhere"), "").await.unwrap();
    assert_eq!(no_bookie, None, "nothing is written to what is no bookie's");
    assert!(!world.disk.files().iter().any(|(path, _)| path.starts_with("/elsewhere")));

    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    let too_long = begin_read_only(&world.disk, dir, &"x".repeat(1025)).await.unwrap_err();
    assert!(too_long.to_string().contains("1024"), "{too_long}");
    let id = begin_read_only(&world.disk, dir, "the disk\nwill be replaced").await.unwrap();
    assert_eq!(id, Some(world.id.clone()));
    settle(|| running.bookie.stats().state != BookieState::Writable).await;
    let BookieState::ReadOnly { reason, for_good: false } = running.bookie.stats().state else { panic!() };
    assert!(reason.contains("READONLY") && reason.contains("the disk will be replaced"), "{reason}");
    assert_eq!(wire.add(1, 1, b"y").await, Status::ReadOnly);
    assert_eq!(wire.add_as(1, 1, b"y", &key(), RECOVERY).await, Status::Ok, "repair goes on");
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, b"x"));
    // Space that comes and goes changes nothing about it.
    running.bookie.collect_now().await.unwrap();
    assert_eq!(wire.add(1, 2, b"z").await, Status::ReadOnly);

    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(world.registered().await, Some(false), "from the start");
    assert_eq!(wire.add(1, 2, b"z").await, Status::ReadOnly);
    assert_eq!(end_read_only(&world.disk, dir).await.unwrap(), Some((world.id.clone(), true)));
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    assert_eq!(wire.add(1, 2, b"z").await, Status::Ok);
    assert_eq!(end_read_only(&world.disk, dir).await.unwrap(), Some((world.id.clone(), false)));
    running.stop().await;
}

#[tokio::test]
async fn a_bookie_does_not_go_on_for_one_segment_only() {
    let mut world = World::new();
    // A hundred segments: five of them are a twentieth, four are wanted.
    world.config.disk_bytes_max = ByteSize::kib(12_800);
    world.create_ledger(1, "bk1:3181", false).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    world.disk.set_capacity(Some(1200 << 10));
    let end = fill_up(&mut wire, 1).await;
    let is_writable = || running.bookie.stats().state == BookieState::Writable;
    let used: u64 = world.disk.files().iter().map(|(_, file)| file.len() as u64).sum();
    world.disk.set_capacity(Some(used + (300 << 10)));
    running.bookie.collect_now().await.unwrap();
    assert!(!is_writable(), "space for two segments");
    assert_eq!(wire.add(1, end, b"x").await, Status::ReadOnly);
    world.disk.set_capacity(Some(used + (600 << 10)));
    running.bookie.collect_now().await.unwrap();
    assert!(is_writable());
    assert_eq!(wire.add(1, end, b"x").await, Status::Ok);
    running.stop().await;
}
