use super::support::*;
use crate::ErrorKind;
use crate::disk::BLOCK_BYTES;
use crate::format::{GroupHead, SegmentHeader};
use ledger::MasterKey;
use proto::Status;
use proto::client::AddFlags;

/// Where each group of a segment begins, and where the last one ends.
fn groups(file: &[u8]) -> Vec<usize> {
    let header = SegmentHeader::decode(file).unwrap();
    let (mut at, mut starts) = (BLOCK_BYTES, Vec::new());
    while let Some(head) = GroupHead::peek(&file[at..], &header, (file.len() - at) as u64) {
        starts.push(at);
        at += (head.bytes as usize).next_multiple_of(BLOCK_BYTES);
    }
    starts.push(at);
    starts
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_every_crash() {
    let mut world = World::new();
    let mut acknowledged: Vec<(u64, u64, Vec<u8>)> = Vec::new();
    for round in 0..6_u64 {
        let running = world.start().await;
        let mut wire = running.connect().await;
        for (l, e, bytes) in &acknowledged {
            assert_eq!(wire.read(*l, *e).await.unwrap(), body(*l, *e, bytes), "ledger {l} entry {e} in round {round}");
        }
        for e in 0..60_u64 {
            let (l, e) = (e % 3, round * 100 + e);
            let bytes = vec![e as u8; 1 << (e % 14)];
            assert_eq!(wire.add(l, e, &bytes).await, Status::Ok);
            acknowledged.push((l, e, bytes));
        }
        assert_eq!(
            wire.add_as(0, 0, b"", &MasterKey::derive(b"other"), AddFlags::default()).await,
            Status::Unauthorized
        );
        world = world.crash(running).await;
    }
    let stats = world.start().await.bookie.stats();
    assert_eq!(stats.entries, acknowledged.len() as u64);
    assert_eq!(stats.ledgers, 3);
}

#[tokio::test]
async fn an_orderly_stop_answers_what_was_taken_in() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..500 {
        wire.put_add(1, e, &payload(1, e), &key(), AddFlags::default());
    }
    wire.send().await;
    assert_eq!(wire.reply().await.status, Status::Ok);
    running.stop().await;
    let mut answered = 1;
    while let Some(frame) = wire.frame().await {
        assert_eq!(proto::client::decode_response_v2(frame).unwrap().status, Status::Ok);
        answered += 1;
    }
    assert_eq!(world.registered().await, None, "no longer registered");
    let running = world.start().await;
    assert_eq!(running.bookie.stats().entries, answered);
    running.stop().await;
}

#[tokio::test]
async fn a_torn_tail_is_cut_wherever_it_tore() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, &payload(1, 0)).await, Status::Ok);
    assert_eq!(wire.add(1, 1, &payload(1, 1)).await, Status::Ok);
    let big: Vec<u8> = (0..9_000_u32).map(|at| at as u8).collect();
    assert_eq!(wire.add(1, 2, &big).await, Status::Ok);
    let world = world.crash(running).await;
    let (path, file) = world.segment_files().swap_remove(0);
    let starts = groups(&file);
    let (start, end) = (starts[starts.len() - 2], starts[starts.len() - 1]);
    // Without the padding, of which nothing depends.
    let bytes =
        GroupHead::peek(&file[start..], &SegmentHeader::decode(&file).unwrap(), 1 << 20).unwrap().bytes as usize;
    let cuts = (start..end).step_by(97).chain([start + 1, start + 47, start + 48, end - 4096]);
    for cut in cuts.chain((start..end).step_by(BLOCK_BYTES)) {
        let torn = World { disk: world.disk.crash(), index: world.index.crash(), ..World::new() };
        let torn = World { metadata: world.metadata.clone(), ..torn };
        // The tail of the write never came, or other bytes stand there.
        torn.disk.damage(&path, |file| {
            if cut % 2 == 0 {
                file[cut..].fill(0);
            } else {
                file[cut..end].fill(0xa5);
            }
        });
        let whole = torn.segment_files().swap_remove(0).1[start..start + bytes] == file[start..start + bytes];
        let running = torn.try_start().await.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let mut wire = running.connect().await;
        assert_eq!(wire.read(1, 1).await.unwrap(), body(1, 1, &payload(1, 1)), "cut at {cut}");
        match wire.read(1, 2).await {
            Ok(found) => assert!(whole && found == body(1, 2, &big), "cut at {cut}"),
            Err(status) => assert!(!whole && status == Status::NoEntry, "cut at {cut}"),
        }
        assert_eq!(wire.add(1, 3, b"goes on").await, Status::Ok, "cut at {cut}");
        let again = torn.crash(running).await;
        let running = again.start().await;
        assert_eq!(running.connect().await.read(1, 3).await.unwrap(), body(1, 3, b"goes on"));
        running.stop().await;
    }
}

#[tokio::test]
async fn a_damaged_middle_is_refused_and_nothing_is_changed() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..4 {
        assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
    }
    let world = world.crash(running).await;
    let (path, file) = world.segment_files().swap_remove(0);
    let starts = groups(&file);
    for at in [starts[0], starts[0] + 60, starts[1] + 20, starts[1] + 100, starts[2] + 47] {
        let damaged = World { disk: world.disk.crash(), index: world.index.crash(), ..World::new() };
        let damaged = World { metadata: world.metadata.clone(), ..damaged };
        damaged.disk.damage(&path, |file| file[at] ^= 0x40);
        let before = damaged.disk.files();
        let error = damaged.try_start().await.err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Damaged);
        let text = error.to_string();
        assert!(text.contains(".seg") && text.contains("offset") && text.contains("is damaged"), "{text}");
        assert!(damaged.disk.files() == before, "nothing was cut, removed or created");
        assert_eq!(damaged.registered().await, None);
        damaged.disk.damage(&path, |file| file[at] ^= 0x40);
        damaged.start().await.stop().await;
    }
}

#[tokio::test]
async fn no_flipped_byte_of_the_journal_becomes_other_data() {
    const GROUPS: u64 = 12;
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    for e in 0..GROUPS {
        assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
    }
    let world = world.crash(running).await;
    let (path, file) = world.segment_files().swap_remove(0);
    let (starts, rng) = (groups(&file), common::rng::Rng::seeded(43));
    let (mut refused, mut started) = (0, 0);
    for _ in 0..200 {
        let at = rng.below(*starts.last().unwrap() as u64) as usize;
        let flipped = World { disk: world.disk.crash(), index: world.index.crash(), ..World::new() };
        let flipped = World { metadata: world.metadata.clone(), ..flipped };
        flipped.disk.damage(&path, |file| file[at] ^= 1 << rng.below(8));
        let running = match flipped.try_start().await {
            Ok(running) => running,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "byte {at}: {error}");
                refused += 1;
                continue;
            }
        };
        started += 1;
        let mut wire = running.connect().await;
        for e in 0..GROUPS - 1 {
            assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)), "byte {at}");
        }
        // The last group cannot be told from one that was never finished.
        match wire.read(1, GROUPS - 1).await {
            Ok(found) => assert_eq!(found, body(1, GROUPS - 1, &payload(1, GROUPS - 1)), "byte {at}"),
            Err(status) => assert!(status == Status::NoEntry && at >= starts[starts.len() - 2], "byte {at}"),
        }
        running.stop().await;
    }
    assert!(refused > 20 && started > 20, "{refused} refused, {started} started");
}

#[tokio::test]
async fn a_missing_segment_is_refused() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    wire.fill(&running, 1, 0, 2).await;
    let world = world.crash(running).await;
    let names = world.segment_files();
    assert!(names.len() >= 3);
    for (path, _) in names {
        let missing = World { disk: world.disk.crash(), index: world.index.crash(), ..World::new() };
        let missing = World { metadata: world.metadata.clone(), ..missing };
        let opened = crate::index::rows::opened(&missing.index).await.unwrap();
        if path > segment_path(&opened.file_name()) {
            continue;
        }
        crate::Disk::remove(&missing.disk, &path).await.unwrap();
        let error = missing.try_start().await.err().expect("refused");
        assert!(error.to_string().contains("missing"), "{error}");
    }
}

#[tokio::test]
async fn an_entry_longer_than_a_segment_is_stored() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let big = vec![9; 1 << 20];
    assert_eq!(wire.add(1, 0, b"before").await, Status::Ok);
    assert_eq!(wire.add(1, 1, &big).await, Status::Ok);
    assert_eq!(wire.add(1, 2, b"after").await, Status::Ok);
    assert_eq!(wire.read(1, 1).await.unwrap(), body(1, 1, &big));
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.read(1, 1).await.unwrap(), body(1, 1, &big));
    assert_eq!(wire.read(1, 2).await.unwrap(), body(1, 2, b"after"));
    running.stop().await;
}

#[tokio::test]
async fn sealed_segments_are_not_read_again_at_start() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let end = wire.fill(&running, 1, 0, 3).await;
    let world = world.crash(running).await;
    let sealed = crate::index::rows::segments(&world.index).await.unwrap();
    let first = segment_path(&sealed[0].id.file_name());
    // Damage that a replay of this segment would meet.
    world.disk.damage(&first, |file| file[BLOCK_BYTES + 100] ^= 1);
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.read(1, 0).await, Err(Status::Io), "damage is never told as absence");
    for e in 1..end {
        assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)), "entry {e}");
    }
    assert_eq!(wire.read_last(1).await.unwrap(), body(1, end - 1, &payload(1, end - 1)));
    running.stop().await;
}
