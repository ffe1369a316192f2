use bytes::Bytes;

use super::*;
use crate::testing::{Made, On, Sizes, World, id, noise};

fn start(made: &Made, from: u64, to: Option<u64>) -> v1::ReadStart {
    v1::ReadStart { ledger_id: made.ledger.get(), first_entry_id: from, end_entry_id: to, ..v1::ReadStart::default() }
}

/// Reads everything, and says which tiers it came from.
async fn read(world: &World, start: v1::ReadStart) -> Result<(Vec<Bytes>, Vec<v1::Tier>)> {
    let mut reading = Reading::open(Arc::clone(&world.tiers), &start).await?;
    let mut payloads = Vec::new();
    let mut tiers = Vec::new();
    let mut next = start.first_entry_id;
    while !reading.is_done() {
        let permitted = reading.next_batch(u64::MAX).await?;
        for entry in permitted.batch.into_message().entries {
            assert_eq!(entry.entry_id, next);
            assert_eq!(entry.last_confirmed, next.checked_sub(1));
            next += 1;
            if tiers.last() != Some(&entry.tier()) {
                tiers.push(entry.tier());
            }
            payloads.push(entry.payload);
        }
    }
    Ok((payloads, tiers))
}

async fn error(world: &World, start: v1::ReadStart) -> Error {
    read(world, start).await.unwrap_err()
}

#[tokio::test]
async fn every_range_is_exact_on_every_tier() {
    let world = World::new(Sizes::default());
    let payloads: Vec<Bytes> = noise(600, 1_000).into_iter().enumerate().map(|(i, p)| p.slice(..i % 1_000)).collect();
    for (number, on, scan) in
        [(1, On::Hot, v1::Tier::Hot), (2, On::Settled, v1::Tier::Cold), (3, On::Released, v1::Tier::Cold)]
    {
        let made = world.make(number, payloads.clone(), on).await;
        for (from, to) in [(0, 600), (0, 1), (599, 600), (17, 18), (100, 533), (0, 0), (600, 600)] {
            let (got, tiers) = read(&world, start(&made, from, Some(to))).await.unwrap();
            assert_eq!(got, made.payloads[from as usize..to as usize], "{on:?} {from}..{to}");
            // A single entry of a settled ledger comes from the bookies.
            let point = to - from == 1 && on == On::Settled;
            let expected = if point { v1::Tier::Hot } else { scan };
            assert!(tiers.iter().all(|tier| *tier == expected), "{on:?} {from}..{to} {tiers:?}");
        }
        let (got, _) = read(&world, start(&made, 10, None)).await.unwrap();
        assert_eq!(got, made.payloads[10..]);
    }
}

#[tokio::test]
async fn what_cannot_be_read_says_why() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(10, 10), On::Hot).await;
    let nobody = v1::ReadStart { ledger_id: 99, ..v1::ReadStart::default() };
    assert_eq!(error(&world, nobody).await.kind(), ErrorKind::NotFound);
    for (from, to) in [(0, Some(11)), (11, None), (11, Some(12)), (u64::MAX >> 1, None)] {
        let error = error(&world, start(&made, from, to)).await;
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
        assert!(error.to_string().contains("ends with entry 9"), "{error}");
    }
    assert_eq!(error(&world, start(&made, 5, Some(4))).await.kind(), ErrorKind::Invalid);
    assert_eq!(error(&world, start(&made, u64::MAX, None)).await.kind(), ErrorKind::Invalid);
    let follow = v1::ReadStart { follow: true, ..start(&made, 0, None) };
    assert_eq!(error(&world, follow).await.kind(), ErrorKind::Unsupported);
    let cold = v1::ReadStart { tier: v1::Tier::Cold.into(), ..start(&made, 0, None) };
    assert_eq!(error(&world, cold).await.kind(), ErrorKind::Precondition);
    let bad_tier = v1::ReadStart { tier: 9, ..start(&made, 0, None) };
    assert_eq!(error(&world, bad_tier).await.kind(), ErrorKind::Invalid);
    let released = world.make(2, noise(10, 10), On::Released).await;
    let hot = v1::ReadStart { tier: v1::Tier::Hot.into(), ..start(&released, 0, None) };
    assert_eq!(error(&world, hot).await.kind(), ErrorKind::Precondition);
}

#[tokio::test]
async fn an_open_ledger_ends_with_what_is_confirmed() {
    let world = World::new(Sizes::default());
    let made = world.make_open(1, noise(10, 10)).await;
    assert!(read(&world, start(&made, 0, None)).await.unwrap().0.is_empty());
    assert_eq!(error(&world, start(&made, 0, Some(1))).await.kind(), ErrorKind::OutOfRange);
    world.hot.confirm(made.ledger, id(6));
    assert_eq!(read(&world, start(&made, 2, None)).await.unwrap().0, made.payloads[2..7]);
    let error = error(&world, start(&made, 0, Some(8))).await;
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert!(error.to_string().contains("confirmed up to entry 6"), "{error}");
}

#[tokio::test]
async fn the_password_is_asked_for() {
    let world = World::new(Sizes::default());
    let made = world.make_locked(1, noise(10, 10), b"secret").await;
    for wrong in ["", "secreT"] {
        let start = v1::ReadStart { password: wrong.into(), ..start(&made, 0, None) };
        assert_eq!(error(&world, start).await.kind(), ErrorKind::Denied);
    }
    let start = v1::ReadStart { password: "secret".into(), ..start(&made, 0, None) };
    assert_eq!(read(&world, start).await.unwrap().0, made.payloads);
}

#[tokio::test]
async fn a_lost_or_altered_object_is_served_from_the_bookies_while_they_have_it() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(300, 1_000), On::Settled).await;
    world.lose(&made).await;
    let (got, tiers) = read(&world, start(&made, 0, None)).await.unwrap();
    assert_eq!((got, tiers), (made.payloads.clone(), vec![v1::Tier::Hot]));

    // Damage in the middle: the first part is cold already.
    let made = world.make(2, noise(300, 1_000), On::Settled).await;
    let middle = usize::try_from(made.record.footer_offset / 2).unwrap();
    world.alter(&made, |bytes| bytes[middle] ^= 1).await;
    let (got, tiers) = read(&world, start(&made, 0, None)).await.unwrap();
    assert_eq!((got, tiers), (made.payloads.clone(), vec![v1::Tier::Cold, v1::Tier::Hot]));
}

#[tokio::test]
async fn bookies_that_fail_are_made_good_by_the_object() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(50, 100), On::Settled).await;
    world.hot.fail_at(Some(id(7)));
    let (got, tiers) = read(&world, start(&made, 7, Some(8))).await.unwrap();
    assert_eq!((got, tiers), (made.payloads[7..8].to_vec(), vec![v1::Tier::Cold]));
    let hot = v1::ReadStart { tier: v1::Tier::Hot.into(), ..start(&made, 0, None) };
    assert_eq!(error(&world, hot).await.kind(), ErrorKind::Unavailable, "one tier was asked for, and no other");
}

#[tokio::test]
async fn a_release_in_the_middle_of_a_read_is_not_seen() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(100, 100), On::Hot).await;
    let mut reading = Reading::open(Arc::clone(&world.tiers), &start(&made, 0, None)).await.unwrap();
    let first = reading.next_batch(1_000).await.unwrap().batch;
    let end = first.end().unwrap();
    assert!(end < id(100));
    world.release(&made).await;
    reading.release();
    let mut got: Vec<Bytes> = first.into_message().entries.into_iter().map(|entry| entry.payload).collect();
    while !reading.is_done() {
        let batch = reading.next_batch(u64::MAX).await.unwrap().batch.into_message();
        assert!(batch.entries.iter().all(|entry| entry.tier() == v1::Tier::Cold));
        got.extend(batch.entries.into_iter().map(|entry| entry.payload));
    }
    assert_eq!(got, made.payloads);
}

/// Of a released ledger, whatever happens to the object is an error that names it, and what is served before is right.
#[tokio::test]
async fn damage_is_told_and_names_the_object() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 5] = [
        ("first byte of a page", |bytes| bytes[10] ^= 0x40),
        ("a byte in the middle", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }),
        ("a byte of the footer", |bytes| {
            let place = bytes.len() - 20;
            bytes[place] ^= 1;
        }),
        ("cut by a byte", |bytes| bytes.truncate(bytes.len() - 1)),
        ("cut in half", |bytes| bytes.truncate(bytes.len() / 2)),
    ];
    for (number, (what, change)) in changes.into_iter().enumerate() {
        let world = World::new(Sizes::default());
        let made = world.make(number as u64 + 1, noise(300, 1_000), On::Released).await;
        world.alter(&made, change).await;
        let mut reading = Reading::open(Arc::clone(&world.tiers), &start(&made, 0, None)).await.unwrap();
        let mut next = 0;
        let error = loop {
            assert!(!reading.is_done(), "{what}: the whole ledger was served");
            match reading.next_batch(u64::MAX).await {
                Err(error) => break error,
                Ok(permitted) => {
                    for entry in permitted.batch.into_message().entries {
                        assert_eq!(entry.payload, made.payloads[next], "{what}");
                        next += 1;
                    }
                }
            }
        };
        assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {}", error.chain());
        assert!(error.chain().contains(&made.key), "{what}: {}", error.chain());
    }
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(300, 1_000), On::Released).await;
    world.lose(&made).await;
    for range in [(0, None), (7, Some(8))] {
        let error = error(&world, start(&made, range.0, range.1)).await;
        assert_eq!(error.kind(), ErrorKind::Damaged, "{}", error.chain());
        assert!(error.chain().contains(&made.key), "{}", error.chain());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_a_moment_is_asked_again() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(100, 1_000), On::Released).await;
    world.faults.inject(cold::Fault::FailGet);
    assert_eq!(read(&world, start(&made, 0, None)).await.unwrap().0, made.payloads);
}

#[tokio::test]
async fn an_entry_larger_than_a_message_gets_room_of_its_own() {
    let world = World::new(Sizes { send: 8 << 20, group: 1 << 20, ..Sizes::default() });
    let mut payloads = noise(3, 100);
    payloads.extend(noise(2, 5 << 20));
    payloads.extend(noise(3, 100));
    for (number, on) in [(1, On::Hot), (2, On::Released)] {
        let made = world.make(number, payloads.clone(), on).await;
        assert_eq!(read(&world, start(&made, 0, None)).await.unwrap().0, made.payloads, "{on:?}");
    }
    assert!(world.tiers.send_budget.peak_bytes() <= 8 << 20);
    assert_eq!(world.tiers.send_budget.used_bytes(), 0);
}

#[tokio::test]
async fn hot_streams_go_on_where_the_last_batch_ended() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(5_000, 1_000), On::Hot).await;
    assert_eq!(read(&world, start(&made, 0, None)).await.unwrap().0, made.payloads);
    assert_eq!(world.hot.reads(), 1);
}
