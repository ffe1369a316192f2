use super::support::*;
use crate::disk::BLOCK_BYTES;
use crate::{BookieState, ErrorKind};
use common::rng::Rng;
use proto::Status;

#[tokio::test]
async fn a_failed_sync_ends_writing_for_good() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    world.disk.fail_syncs(Some("first reason"));
    assert_eq!(wire.add(1, 1, b"y").await, Status::Io);
    world.disk.fail_syncs(None);
    assert_eq!(wire.add(1, 2, b"z").await, Status::Io, "the disk works again, but what it holds is unknown");
    world.disk.fail_syncs(Some("second reason"));
    match running.bookie.stats().state {
        BookieState::ReadOnly { reason, for_good: true } => assert!(reason.contains("first reason"), "{reason}"),
        state => panic!("{state:?}"),
    }
    world.disk.fail_syncs(None);
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, b"x"));
    assert_eq!(wire.read(1, 1).await, Err(Status::NoEntry));
    assert!(running.bookie.collect_now().await.is_err());
    while world.registered().await != Some(false) {
        tokio::task::yield_now().await;
    }
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, b"x"));
    assert_eq!(wire.add(1, 1, b"y").await, Status::Ok, "a restart reads back what there is and goes on");
    assert_eq!(world.registered().await, Some(true));
    running.stop().await;
}

#[tokio::test]
async fn a_failed_index_ends_writing_when_a_segment_must_be_opened() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    world.index.fail_writes(Some("no space for the index"));
    let mut e = 1;
    let status = loop {
        match wire.add(1, e, &payload(1, e)).await {
            Status::Ok => e += 1,
            status => break status,
        }
    };
    assert_eq!(status, Status::Io);
    for known in 1..e {
        assert_eq!(wire.read(1, known).await.unwrap(), body(1, known, &payload(1, known)));
    }
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    for known in 1..e {
        assert_eq!(wire.read(1, known).await.unwrap(), body(1, known, &payload(1, known)));
    }
    running.stop().await;
}

#[tokio::test]
async fn damage_of_any_part_of_a_sealed_segment_is_an_io_error() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let end = wire.fill(&running, 1, 0, 1).await;
    let world = world.crash(running).await;
    let sealed = crate::index::rows::segments(&world.index).await.unwrap();
    let path = segment_path(&sealed[0].id.file_name());
    let bytes = sealed[0].file_bytes as usize;
    let first_index_byte = bytes - 3 * BLOCK_BYTES;
    for at in (first_index_byte..bytes).step_by(509).chain([bytes - BLOCK_BYTES]) {
        let damaged = World { disk: world.disk.crash(), index: world.index.crash(), ..World::new() };
        let damaged = World { metadata: world.metadata.clone(), ..damaged };
        damaged.disk.damage(&path, |file| file[at] ^= 1);
        let running = damaged.start().await;
        let mut wire = running.connect().await;
        for e in [0, 1, end / 2] {
            match wire.read(1, e).await {
                Ok(found) => assert_eq!(found, body(1, e, &payload(1, e))),
                Err(status) => assert_eq!(status, Status::Io, "byte {at}, entry {e}"),
            }
        }
        running.stop().await;
    }
    world.disk.damage(&path, |file| file.truncate(bytes / 2));
    let running = world.start().await;
    assert_eq!(running.connect().await.read(1, 0).await, Err(Status::Io));
    // The ledger is in no metadata, but nobody can tell what else the segment holds: it is kept.
    running.bookie.collect_now().await.unwrap();
    assert!(world.segment_files().iter().any(|(kept, _)| *kept == path));
    running.stop().await;
}

#[tokio::test]
async fn a_disk_that_cannot_read_is_an_io_error() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    wire.fill(&running, 1, 0, 1).await;
    world.disk.fail_reads(Some("unreadable"));
    assert_eq!(wire.read(1, 0).await, Err(Status::Io));
    world.disk.fail_reads(None);
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    running.stop().await;
}

/// What a disk may do to a file behind the bookie's back.
fn harm(rng: &Rng, file: &mut Vec<u8>) {
    let at = rng.below(file.len() as u64) as usize;
    let block = at / BLOCK_BYTES * BLOCK_BYTES..(at / BLOCK_BYTES + 1) * BLOCK_BYTES;
    match rng.below(5) {
        0 => file[at] ^= 1 << rng.below(8),
        1 => (0..64).for_each(|byte| {
            if let Some(byte) = file.get_mut(at + byte) {
                *byte = rng.below(256) as u8;
            }
        }),
        2 => file[block].fill(0),
        3 => {
            // A block that was written to another's place.
            let other = rng.below((file.len() / BLOCK_BYTES) as u64) as usize * BLOCK_BYTES;
            file.copy_within(other..other + BLOCK_BYTES, block.start);
        }
        _ => file.truncate(at),
    }
}

/// Corpora of real journals, each harmed at one place: whatever that is, the start is refused, or what is served is what was acknowledged,
/// and nothing of it is told as absent.
#[tokio::test]
async fn a_journal_that_is_harmed_anywhere_is_refused_or_serves_nothing_else() {
    let world = World::new();
    for l in [1, 2, 3] {
        world.create_ledger(l, world.id.as_str(), false).await;
    }
    let (rng, mut acknowledged) = (Rng::seeded(11), Vec::new());
    for life in 0..2 {
        let running = world.start().await;
        let mut wire = running.connect().await;
        let mut more = 15;
        while running.bookie.stats().segments < 2 + life || more > 0 {
            more -= u32::from(running.bookie.stats().segments >= 2 + life);
            let (l, e) = (1 + rng.below(2), acknowledged.len() as u64);
            let payload = vec![e as u8; rng.below(6_000) as usize];
            assert_eq!(wire.add(l, e, &payload).await, Status::Ok);
            acknowledged.push((l, payload));
        }
        if life == 0 {
            // In a segment that will be sealed.
            assert_eq!(wire.fence(3, &key()).await, Err(Status::NoEntry));
        }
        running.stop().await;
    }
    let (mut refused, mut served, mut missed) = (0, 0, 0);
    for seed in 0..120 {
        let rng = Rng::seeded(seed);
        let harmed = World { disk: world.disk.crash(), index: world.index.crash(), ..World::new() };
        let harmed = World { metadata: world.metadata.clone(), ..harmed };
        let files = harmed.segment_files();
        let (path, content) = &files[rng.below(files.len() as u64) as usize];
        harmed.disk.damage(path, |file| harm(&rng, file));
        let changed = harmed.segment_files().into_iter().any(|(at, now)| at == *path && now != *content);
        let running = match harmed.try_start().await {
            Ok(running) => running,
            Err(error) => {
                assert!(changed && error.kind() == ErrorKind::Damaged, "seed {seed}: {error}");
                refused += 1;
                continue;
            }
        };
        served += 1;
        let mut wire = running.connect().await;
        for (e, (l, payload)) in (0..).zip(&acknowledged) {
            match wire.read(*l, e).await {
                Ok(found) => assert_eq!(found, body(*l, e, payload), "seed {seed}"),
                Err(status) => {
                    assert!(status == Status::Io && changed, "seed {seed}: entry {e} is told as {status:?}");
                    missed += 1;
                }
            }
        }
        assert_eq!(wire.add(3, 0, b"late").await, Status::Fenced, "seed {seed}");
        running.stop().await;
    }
    assert!(refused > 5 && served > 20 && missed > 20, "refused {refused}, served {served}, missed {missed}");
}
