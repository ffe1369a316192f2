//! Several groups of the journal at the disk at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::gate::GatedDisk;
use super::support::*;
use crate::disk::BLOCK_BYTES;
use crate::format::{GroupHead, SegmentHeader, decode_group};
use crate::{BookieParts, BookieState, ErrorKind};
use ::config::ByteSize;
use common::rng::Rng;
use proto::Status;
use proto::client::AddFlags;

/// A world in which a group carries one entry of [`payload`], or few.
fn world(writes: usize) -> World {
    let mut world = World::new();
    world.config.group_bytes_max = ByteSize::kib(4);
    world.config.journal_writes = writes;
    world
}

async fn start(world: &World, gate: &GatedDisk) -> Running {
    let disk = Arc::new(gate.clone());
    world.try_start_with(|parts| BookieParts { disk, ..parts }).await.unwrap()
}

/// Sends entries of ledger 1, in one go; each fills a group, so that the last goes to the disk beside others too.
async fn send(wire: &mut Wire, entries: std::ops::Range<u64>) {
    for e in entries {
        wire.put_add(1, e, &long_payload(e), &key(), AddFlags::default());
    }
    wire.send().await;
}

fn long_payload(e: u64) -> Vec<u8> {
    payload(1, e).repeat(5)
}

/// Each group of a segment that is whole: where it begins, and its header.
fn whole_groups(file: &[u8]) -> Vec<(usize, GroupHead)> {
    let header = SegmentHeader::decode(file).unwrap();
    let blocks = (BLOCK_BYTES..file.len()).step_by(BLOCK_BYTES);
    let group = |at: usize| {
        let head = GroupHead::peek(&file[at..], &header, (file.len() - at) as u64)?;
        decode_group(&head, &file[at..at + head.bytes as usize]).ok()?;
        Some((at, head))
    };
    blocks.filter_map(group).collect()
}

/// Reads answers until the connection ends; each must be of the next entry, and of one whose groups are durable with all before.
fn watch_answers(mut wire: Wire, gate: &GatedDisk) -> (Arc<AtomicU64>, tokio::task::JoinHandle<()>) {
    let (answered, gate) = (Arc::new(AtomicU64::new(0)), gate.clone());
    let counted = answered.clone();
    let task = tokio::spawn(async move {
        while let Some(frame) = wire.frame().await {
            let reply = proto::client::decode_response_v2(frame).unwrap();
            if reply.status != Status::Ok {
                break;
            }
            assert_eq!(reply.entry as u64, counted.load(Ordering::SeqCst), "in order");
            assert!((reply.entry as u64) < gate.settled_entries(), "durable with all before it");
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    (answered, task)
}

#[tokio::test(start_paused = true)]
async fn answers_come_in_order_whatever_the_disk_does_first() {
    for seed in 0..20 {
        let (world, rng) = (world(4), Rng::seeded(seed));
        let gate = GatedDisk::new(&world.disk);
        let running = start(&world, &gate).await;
        let mut wire = running.connect().await;
        send(&mut wire, 0..60).await;
        let (answered, task) = watch_answers(wire, &gate);
        while answered.load(Ordering::SeqCst) < 60 {
            settle(|| gate.waiting() > 0 || answered.load(Ordering::SeqCst) == 60).await;
            // Most of the time all of them are there to choose from.
            for _ in 0..rng.below(20) {
                tokio::task::yield_now().await;
            }
            if gate.waiting() > 0 {
                gate.finish(rng.below(gate.waiting() as u64) as usize).await;
            }
        }
        assert_eq!(gate.peak(), 4, "seed {seed}");
        // The last group says of all others that they are durable.
        settle(|| gate.waiting() > 0).await;
        gate.finish(0).await;
        let world = world.crash(running).await;
        task.abort();
        let files = world.segment_files();
        let (_, last) = files.iter().rev().find_map(|(_, file)| whole_groups(file).pop()).unwrap();
        assert_eq!((last.records, last.unsettled), (0, 0));
        let running = world.start().await;
        let mut wire = running.connect().await;
        for e in 0..60 {
            assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &long_payload(e)), "seed {seed} entry {e}");
        }
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_write_at_a_time_where_that_is_wanted() {
    let world = world(1);
    let gate = GatedDisk::new(&world.disk);
    let running = start(&world, &gate).await;
    let mut wire = running.connect().await;
    send(&mut wire, 0..10).await;
    let (answered, task) = watch_answers(wire, &gate);
    while answered.load(Ordering::SeqCst) < 10 {
        settle(|| gate.waiting() > 0 || answered.load(Ordering::SeqCst) == 10).await;
        if gate.waiting() > 0 {
            gate.finish(0).await;
        }
    }
    assert_eq!(gate.peak(), 1);
    // The stop says of the last group that it is durable.
    let ((), ()) = tokio::join!(running.stop(), async {
        settle(|| gate.waiting() > 0).await;
        gate.finish(0).await;
    });
    task.abort();
    let file = world.segment_files().swap_remove(0).1;
    assert!(whole_groups(&file).iter().all(|(_, head)| head.unsettled == 0));
}

#[tokio::test(start_paused = true)]
async fn a_read_behind_an_add_that_is_on_its_way_waits_for_it() {
    let world = world(4);
    let gate = GatedDisk::new(&world.disk);
    let running = start(&world, &gate).await;
    let (mut writer, mut reader, mut other) =
        (running.connect().await, running.connect().await, running.connect().await);
    send(&mut writer, 0..2).await;
    settle(|| gate.waiting() > 0).await;
    let reads = async {
        assert_eq!(reader.read(1, 1).await.unwrap(), body(1, 1, &long_payload(1)), "it was not absent");
        assert_eq!(reader.read(1, 7).await, Err(Status::NoEntry), "nothing is on its way any more");
    };
    let absent = async { assert_eq!(other.read(1, 7).await, Err(Status::NoEntry)) };
    let durable = async {
        // Time enough for an answer.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        for answer in 0..2 {
            let reply = loop {
                tokio::select! {
                    biased;
                    reply = writer.reply() => break reply,
                    () = settle(|| gate.waiting() > 0) => gate.finish(0).await,
                }
            };
            assert_eq!((reply.entry, reply.status), (answer, Status::Ok));
        }
    };
    tokio::join!(reads, absent, durable);
    // Of another ledger nothing is: its reads wait for nobody.
    send(&mut writer, 2..3).await;
    settle(|| gate.waiting() > 0).await;
    assert_eq!(reader.read(9, 0).await, Err(Status::NoLedger));
    assert_eq!(reader.read(1, 0).await.unwrap(), body(1, 0, &long_payload(0)));
    gate.finish(0).await;
    let ((), ()) = tokio::join!(running.stop(), async {
        settle(|| gate.waiting() > 0).await;
        gate.finish(0).await;
    });
}

/// Runs until about `events` groups were durable, cuts the power, and lets some blocks of what was at the disk come through.
/// Returns the world after that and how many entries were acknowledged.
async fn cut_off(world: World, seed: u64) -> (World, u64) {
    let rng = Rng::seeded(seed);
    let gate = GatedDisk::new(&world.disk);
    let running = start(&world, &gate).await;
    let mut wire = running.connect().await;
    send(&mut wire, 0..60).await;
    let (answered, task) = watch_answers(wire, &gate);
    for _ in 0..rng.below(40) {
        settle(|| gate.waiting() > 0 || answered.load(Ordering::SeqCst) == 60).await;
        for _ in 0..rng.below(40) {
            tokio::task::yield_now().await;
        }
        if gate.waiting() > 0 {
            gate.finish(rng.below(gate.waiting() as u64) as usize).await;
        }
    }
    let likely = 1 + rng.below(3);
    let (disk, index) = (gate.crash(|| rng.below(likely + 1) > 0), world.index.crash());
    let acknowledged = answered.load(Ordering::SeqCst);
    // The old bookie goes on until nothing waits any more.
    while answered.load(Ordering::SeqCst) < 60 {
        settle(|| gate.waiting() > 0 || answered.load(Ordering::SeqCst) == 60).await;
        if gate.waiting() > 0 {
            gate.finish(0).await;
        }
    }
    let stopping = tokio::spawn(running.stop());
    settle(|| gate.waiting() > 0 || stopping.is_finished()).await;
    if gate.waiting() > 0 {
        gate.finish(0).await;
    }
    stopping.await.unwrap();
    task.abort();
    (World { disk, index, ..world }, acknowledged)
}

#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_is_there_whatever_else_came_to_the_disk() {
    let mut holes = 0;
    for seed in 0..60 {
        let (world, acknowledged) = cut_off(world(4), seed).await;
        let header = |file: &[u8]| SegmentHeader::decode(file).is_ok();
        for (_, file) in world.segment_files().iter().filter(|(_, file)| header(file)) {
            let sequences: Vec<u64> = whole_groups(file).iter().map(|(_, head)| head.sequence).collect();
            holes += u64::from(sequences.windows(2).any(|pair| pair[1] != pair[0] + 1));
        }
        let running = world.try_start().await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let mut wire = running.connect().await;
        let mut stored = 0;
        for e in 0..60 {
            match wire.read(1, e).await {
                Ok(found) => {
                    assert_eq!((found, e), (body(1, e, &long_payload(e)), stored), "seed {seed}");
                    stored += 1;
                }
                Err(status) => assert!(e >= acknowledged && status != Status::Io, "seed {seed} entry {e}: {status:?}"),
            }
        }
        assert_eq!(wire.add(1, 100, b"goes on").await, Status::Ok);
        let world = world.crash(running).await;
        let running = world.start().await;
        let mut wire = running.connect().await;
        assert_eq!(running.bookie.stats().entries, stored + 1, "what was dropped stays away");
        assert_eq!(wire.read(1, 100).await.unwrap(), body(1, 100, b"goes on"));
        running.stop().await;
    }
    assert!(holes >= 10, "{holes}");
}

#[tokio::test(start_paused = true)]
async fn dropped_groups_stay_away_while_the_index_has_no_space() {
    let mut tried = 0;
    for seed in 0..40 {
        let (world, _) = cut_off(world(4), seed).await;
        let Some((_, file)) = world.segment_files().into_iter().rfind(|(_, file)| SegmentHeader::decode(file).is_ok())
        else {
            continue;
        };
        let sequences: Vec<u64> = whole_groups(&file).iter().map(|(_, head)| head.sequence).collect();
        if !sequences.windows(2).any(|pair| pair[1] != pair[0] + 1) {
            continue;
        }
        tried += 1;
        world.index.set_full(Some(1));
        let running = world.start().await;
        let entries = running.bookie.stats().entries;
        let world = world.crash(running).await;
        world.index.set_full(Some(1));
        let running = world.start().await;
        assert_eq!(running.bookie.stats().entries, entries, "seed {seed}");
        running.stop().await;
        world.index.set_full(None);
        let running = world.start().await;
        let mut wire = running.connect().await;
        assert_eq!(wire.add(1, 100, b"goes on").await, Status::Ok);
        let world = world.crash(running).await;
        world.start().await.stop().await;
    }
    assert!(tried >= 5, "{tried}");
}

#[tokio::test(start_paused = true)]
async fn one_failed_sync_fails_all_that_is_not_answered() {
    let world = world(4);
    let gate = GatedDisk::new(&world.disk);
    let running = start(&world, &gate).await;
    let mut wire = running.connect().await;
    send(&mut wire, 0..20).await;
    settle(|| gate.waiting() == 4).await;
    gate.fail(2, "the third fails first");
    for e in 0..20 {
        let reply = wire.reply().await;
        assert_eq!(
            (reply.entry, reply.status),
            (e, Status::Io),
            "those before it too: what their syncs say counts no more"
        );
    }
    match running.bookie.stats().state {
        BookieState::ReadOnly { reason, for_good: true } => assert!(reason.contains("the third fails"), "{reason}"),
        state => panic!("{state:?}"),
    }
    assert_eq!(wire.add(1, 20, b"later").await, Status::Io);
    assert_eq!(gate.waiting(), 3, "nothing more was written");
    running.stop().await;
}

/// A journal whose last groups were at the disk together, all acknowledged; `settled` with the note that follows.
async fn burst(settled: bool) -> World {
    let world = world(4);
    let gate = GatedDisk::new(&world.disk);
    let running = start(&world, &gate).await;
    let mut wire = running.connect().await;
    send(&mut wire, 0..8).await;
    let (answered, task) = watch_answers(wire, &gate);
    while answered.load(Ordering::SeqCst) < 8 {
        settle(|| gate.waiting() > 0 || answered.load(Ordering::SeqCst) == 8).await;
        if gate.waiting() > 0 {
            gate.finish(gate.waiting() - 1).await;
        }
    }
    settle(|| gate.waiting() > 0).await;
    let unsettled = (world.disk.crash(), world.index.crash());
    gate.finish(0).await;
    running.stop().await;
    task.abort();
    let (disk, index) = if settled { (world.disk.crash(), world.index.crash()) } else { unsettled };
    World { disk, index, ..world }
}

#[tokio::test(start_paused = true)]
async fn damage_before_a_rest_of_the_journal_is_refused() {
    let world = burst(true).await;
    let (path, file) = world.segment_files().swap_remove(0);
    let groups = whole_groups(&file);
    assert!(groups.iter().any(|(_, head)| head.unsettled > 0));
    for (start, _) in &groups[..groups.len() - 1] {
        for zeroed in [true, false] {
            let damaged = World { disk: world.disk.crash(), index: world.index.crash(), ..self::world(4) };
            let damaged = World { metadata: world.metadata.clone(), ..damaged };
            damaged.disk.damage(&path, |file| match zeroed {
                true => file[*start..*start + BLOCK_BYTES].fill(0),
                false => file[*start + 36] ^= 0x40,
            });
            let before = damaged.disk.files();
            let error = damaged.try_start().await.err().expect("refused");
            assert_eq!(error.kind(), ErrorKind::Damaged);
            assert!(damaged.disk.files() == before, "nothing was cut, removed or created");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn damage_in_the_last_groups_is_refused_or_cut_and_never_served() {
    let world = burst(false).await;
    let (path, file) = world.segment_files().swap_remove(0);
    let groups = whole_groups(&file);
    let last = groups.last().unwrap().1;
    for (start, head) in &groups {
        let damaged = World { disk: world.disk.crash(), index: world.index.crash(), ..self::world(4) };
        let damaged = World { metadata: world.metadata.clone(), ..damaged };
        damaged.disk.damage(&path, |file| file[*start..*start + BLOCK_BYTES].fill(0));
        let may_be_unfinished = head.sequence > last.settled_through();
        match damaged.try_start().await {
            Ok(running) => {
                assert!(may_be_unfinished, "group {}", head.sequence);
                running.stop().await;
            }
            Err(error) => {
                assert!(!may_be_unfinished, "group {}: {error}", head.sequence);
                assert_eq!(error.kind(), ErrorKind::Damaged);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_length_costs_no_memory() {
    let mut world = world(4);
    world.config.segment_bytes = ByteSize::mib(32);
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..3 {
        assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
    }
    let big = vec![3; 4_700_000];
    assert_eq!(wire.add(1, 3, &big).await, Status::Ok, "a length that is right is believed");
    let world = world.crash(running).await;
    let (path, file) = world.segment_files().swap_remove(0);
    let second = whole_groups(&file)[1].0;
    let damaged = World { disk: world.disk.crash(), index: world.index.crash(), ..self::world(4) };
    let damaged = World { metadata: world.metadata.clone(), ..damaged };
    damaged.disk.damage(&path, |file| file[second + 36] = 1);
    assert_eq!(damaged.try_start().await.err().expect("refused").kind(), ErrorKind::Damaged);
    let peak = damaged.disk.read_bytes_peak();
    assert!(peak < 10 << 20, "{peak} bytes: the longest true group has 4.5 MiB, the false one 16 MiB");
    let running = world.start().await;
    assert_eq!(running.connect().await.read(1, 3).await.unwrap(), body(1, 3, &big));
    running.stop().await;
}
