//! An index or a disk that does not answer: whoever asks is answered in time, and all is as before once it does.

use std::time::Duration;

use ::config::ByteSize;
use proto::client::{AddFlags, PayloadV3, encode_bookie_info_v3, encode_force_ledger_v3, encode_list_entries_v3};
use proto::{ReadTarget, Status};
use tokio::time::Instant;

use super::stalling::start;
use super::support::*;
use crate::{BookieState, StallCause};

/// A world whose ledgers 1 and 2 are in sealed segments, with how many entries each.
async fn sealed_world() -> (World, u64, u64) {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let first = wire.fill(&running, 1, 0, 2).await;
    let second = wire.fill(&running, 2, 0, 2).await;
    // So that nothing of them is left in the segment that is read at the next start.
    wire.fill(&running, 9, 0, 1).await;
    running.stop().await;
    (world, first, second)
}

fn deadline(world: &World) -> Duration {
    world.config.read_deadline.duration()
}

/// What stalls, and for how many seconds.
fn stalled(running: &Running) -> Vec<(StallCause, u64)> {
    running.bookie.stalls().now().iter().map(|stall| (stall.cause, stall.age.as_secs())).collect()
}

#[tokio::test(start_paused = true)]
async fn an_index_that_stalls_for_one_ledger_holds_up_no_other() {
    let (world, ..) = sealed_world().await;
    let (running, gates) = start(&world, Duration::ZERO).await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(3, 0, b"in memory").await, Status::Ok);
    gates.first.close();
    let began = Instant::now();
    for (l, e) in [(1, 0), (1, 1), (3, 0), (2, 1), (3, 0), (65, 0)] {
        wire.put_read(l, ReadTarget::Entry(entry(e)), None);
    }
    wire.send().await;
    let mut others = Vec::new();
    for _ in 0..4 {
        let reply = wire.reply().await;
        others.push((reply.ledger, reply.entry, reply.status));
    }
    others.sort_by_key(|reply| reply.0);
    let found = |l, e| (l, e, Status::Ok);
    assert_eq!(others, [found(2, 1), found(3, 0), found(3, 0), (65, 0, Status::NoLedger)], "65 has the shard of 1");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    for _ in 0..2 {
        let reply = wire.reply().await;
        assert_eq!((reply.ledger, reply.status), (1, Status::TooManyRequests), "unknown, not absent");
        assert!(began.elapsed() >= deadline(&world) && began.elapsed() < deadline(&world) + Duration::from_millis(100));
    }
    // Hundreds of others wait for the same answer.
    let mut wires = Vec::new();
    for connection in 0..4 {
        let mut wire = running.connect().await;
        for e in 0..100 {
            wire.put_read(1, ReadTarget::Entry(entry(connection * 100 + e)), None);
        }
        wire.send().await;
        wires.push(wire);
    }
    for wire in &mut wires {
        for _ in 0..100 {
            assert_eq!(wire.reply().await.status, Status::TooManyRequests);
        }
    }
    assert_eq!(gates.first.peak(), 1, "it is asked once");
    assert_eq!(stalled(&running), [(StallCause::Index, 8)]);
    gates.first.open();
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    assert_eq!(stalled(&running), []);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn reads_that_need_no_index_have_turns_beside_those_that_do() {
    let (world, ..) = sealed_world().await;
    let (running, gates) = start(&world, Duration::ZERO).await;
    let mut wire = running.connect().await;
    assert_eq!(wire.read(2, 0).await.unwrap(), body(2, 0, &payload(2, 0)));
    // In memory with that, and not where its entries are.
    assert_eq!(wire.add(1, 5000, b"loads it").await, Status::Ok);
    gates.index.close();
    let began = Instant::now();
    for e in 0..20 {
        wire.put_read(1, ReadTarget::Entry(entry(e)), None);
        wire.send().await;
    }
    wire.put_read(2, ReadTarget::Entry(entry(1)), None);
    wire.send().await;
    let reply = wire.reply().await;
    assert_eq!((reply.ledger, reply.status), (2, Status::Ok), "from the disk");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    for _ in 0..20 {
        assert_eq!(wire.reply().await.status, Status::TooManyRequests);
    }
    gates.index.open();
    assert_eq!(wire.read(1, 3).await.unwrap(), body(1, 3, &payload(1, 3)));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_index_that_stalls_takes_a_bounded_number_of_questions() {
    let (world, ..) = sealed_world().await;
    let (running, gates) = start(&world, Duration::ZERO).await;
    let mut wires = Vec::new();
    gates.index.close();
    for connection in 0..5 {
        let mut wire = running.connect().await;
        for l in 0..60 {
            wire.put_read(1000 + connection * 60 + l, ReadTarget::Last, None);
        }
        wire.send().await;
        wires.push(wire);
    }
    let began = Instant::now();
    for wire in &mut wires {
        for _ in 0..60 {
            assert_eq!(wire.reply().await.status, Status::TooManyRequests);
        }
    }
    assert!(began.elapsed() < deadline(&world) + Duration::from_millis(100), "{:?}", began.elapsed());
    assert_eq!(gates.index.peak(), 32);
    // Those whose ledgers are asked about now too.
    let mut wire = running.connect().await;
    assert_eq!(wire.read(1, 0).await, Err(Status::TooManyRequests));
    gates.index.open();
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)));
    assert_eq!(wire.read_last(1017).await, Err(Status::NoLedger));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn adds_that_wait_for_the_index_are_answered_in_order_and_reads_pass_them_by() {
    let (world, first, _) = sealed_world().await;
    let (running, gates) = start(&world, Duration::ZERO).await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(3, 0, b"in memory").await, Status::Ok);
    gates.first.close();
    let began = Instant::now();
    wire.put_add(1, first, b"late", &key(), AddFlags::default());
    wire.put_add(3, 1, b"behind it", &key(), AddFlags::default());
    wire.put_read(3, ReadTarget::Entry(entry(0)), None);
    wire.send().await;
    let mut replies = Vec::new();
    for _ in 0..3 {
        let reply = wire.reply().await;
        replies.push((reply.ledger, reply.entry, reply.status, began.elapsed() >= deadline(&world)));
    }
    let first = first as i64;
    assert_eq!(
        replies,
        [(3, 0, Status::Ok, false), (1, first, Status::TooManyRequests, true), (3, 1, Status::Ok, true)]
    );
    gates.first.open();
    assert_eq!(wire.read(1, first as u64).await, Err(Status::NoEntry), "it was refused, so it did not happen");
    assert_eq!(wire.add(1, first as u64, b"again").await, Status::Ok);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_read_holds_up_only_what_is_on_it() {
    let (world, ..) = sealed_world().await;
    let (running, gates) = start(&world, Duration::ZERO).await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(3, 0, b"in memory").await, Status::Ok);
    assert!(wire.read(1, 0).await.is_ok(), "its place is known");
    gates.reads.close();
    let mut wires = Vec::new();
    for connection in 0..12 {
        let mut wire = running.connect().await;
        for e in 0..25 {
            wire.put_read(1 + connection % 2, ReadTarget::Entry(entry(e)), None);
        }
        wire.send().await;
        wires.push(wire);
    }
    let began = Instant::now();
    assert_eq!(wire.read(3, 0).await.unwrap(), body(3, 0, b"in memory"));
    assert_eq!(wire.add(3, 1, b"goes on").await, Status::Ok);
    assert!(began.elapsed() < Duration::from_millis(100));
    for wire in &mut wires {
        for _ in 0..25 {
            assert_eq!(wire.reply().await.status, Status::TooManyRequests);
        }
    }
    assert!(began.elapsed() < deadline(&world) + Duration::from_millis(100), "{:?}", began.elapsed());
    let mut asker = running.connect().await;
    let info = asker.ask(|out| encode_bookie_info_v3(1, true, true, out)).await;
    assert_eq!(info.status, Status::TooManyRequests);
    let list = asker.late_ask(LATE, |out| encode_list_entries_v3(2, ledger(2), out));
    assert_eq!(list.await.status, Status::TooManyRequests);
    // Each round leaves nothing behind that the next one adds to.
    let asked = gates.reads.peak();
    for _ in 0..20 {
        assert_eq!(wire.read(2, 5).await, Err(Status::TooManyRequests));
    }
    assert!(gates.reads.peak() <= asked + 1 && asked <= 8 + 32, "{asked}, {}", gates.reads.peak());
    assert!(matches!(stalled(&running)[..], [(StallCause::Read, 60..)]), "{:?}", stalled(&running));
    gates.reads.open();
    for l in 1..=2 {
        assert_eq!(wire.read(l, 7).await.unwrap(), body(l, 7, &payload(l, 7)));
    }
    let list = asker.ask(|out| encode_list_entries_v3(3, ledger(2), out)).await;
    assert!(matches!(list.payload, PayloadV3::Entries(_)) && list.status == Status::Ok);
    assert_eq!(stalled(&running), []);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_the_journal_stalls_fences_are_unknown_and_adds_are_sent_elsewhere() {
    let (world, ..) = sealed_world().await;
    let (running, gates) = start(&world, Duration::ZERO).await;
    let (mut writer, mut reader) = (running.connect().await, running.connect().await);
    for l in 3..=4 {
        assert_eq!(writer.add(l, 0, b"acknowledged").await, Status::Ok);
    }
    gates.writes.close();
    let began = Instant::now();
    writer.put_add(3, 1, b"waits", &key(), AddFlags::default());
    writer.send().await;
    assert_eq!(reader.fence(4, &key()).await, Err(Status::TooManyRequests), "it may happen yet");
    assert!(began.elapsed() < deadline(&world) + Duration::from_millis(100));
    assert_eq!(reader.read(3, 0).await.unwrap(), body(3, 0, b"acknowledged"));
    assert_eq!(reader.read(1, 0).await.unwrap(), body(1, 0, &payload(1, 0)), "reads go on");
    assert_eq!(running.bookie.stats().state, BookieState::Writable);
    settle(|| running.bookie.stats().state != BookieState::Writable).await;
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert!(matches!(stalled(&running)[..], [(StallCause::Journal, 5)]));
    assert_eq!(running.connect().await.add(5, 0, b"elsewhere").await, Status::ReadOnly, "at once");
    assert_eq!(world.registered().await, Some(false), "its registration says so");
    gates.writes.open();
    assert_eq!(writer.reply().await.status, Status::Ok, "what waited is written");
    assert_eq!(reader.add(4, 1, b"late").await, Status::ReadOnly);
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.registered().await, Some(true));
    assert_eq!(reader.add(4, 1, b"late").await, Status::Fenced, "the fence was on its way and holds");
    assert_eq!(reader.add(3, 2, b"goes on").await, Status::Ok);
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    for (e, text) in [(0, &b"acknowledged"[..]), (1, b"waits"), (2, b"goes on")] {
        assert_eq!(wire.read(3, e).await.unwrap(), body(3, e, text));
    }
    assert_eq!(wire.add(4, 1, b"late").await, Status::Fenced);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slow_syncs_are_no_stall_and_reads_go_on_beside_them() {
    let (mut world, first, _) = sealed_world().await;
    world.config.add_bytes_max = ByteSize::kib(128);
    world.config.group_bytes_max = ByteSize::kib(16);
    let (running, _gates) = start(&world, Duration::from_secs(2)).await;
    let mut reader = running.connect().await;
    let writes = async {
        let mut acknowledged = Vec::new();
        for round in 0..5_u64 {
            let mut wires = Vec::new();
            for writer in 0..4_u64 {
                let mut wire = running.connect().await;
                for e in 0..50 {
                    wire.put_add(
                        20 + writer,
                        round * 50 + e,
                        &payload(20 + writer, round * 50 + e),
                        &key(),
                        AddFlags::default(),
                    );
                }
                wire.send().await;
                wires.push(wire);
            }
            for wire in &mut wires {
                for _ in 0..50 {
                    let reply = wire.reply().await;
                    match reply.status {
                        Status::Ok => acknowledged.push((reply.ledger as u64, reply.entry as u64)),
                        status => assert_eq!(status, Status::TooManyRequests, "beyond the budget"),
                    }
                }
            }
        }
        acknowledged
    };
    let mut slowest = Duration::ZERO;
    let reads = async {
        for e in 0_u64.. {
            let began = Instant::now();
            assert!(reader.read(1, e % first).await.is_ok());
            slowest = slowest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let acknowledged = tokio::select! {
        acknowledged = writes => acknowledged,
        () = reads => unreachable!("it reads for ever"),
    };
    assert!(slowest < Duration::from_millis(50), "{slowest:?}");
    assert_eq!(stalled(&running), []);
    assert!(acknowledged.len() >= 100, "{} acknowledged", acknowledged.len());
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    for (l, e) in acknowledged {
        assert_eq!(wire.read(l, e).await.unwrap(), body(l, e, &payload(l, e)));
    }
    running.stop().await;
}

/// Longer than the journal lets anyone wait, or a list takes.
const LATE: Duration = Duration::from_secs(31);

#[tokio::test(start_paused = true)]
async fn what_the_journal_does_not_come_to_is_answered_as_unknown_and_written_all_the_same() {
    // A stalled sync, and a segment that the index does not name.
    for stalls_index in [false, true] {
        let world = World::new();
        let (running, gates) = start(&world, Duration::ZERO).await;
        let (mut wire, mut forcer) = (running.connect().await, running.connect().await);
        let mut e = 0;
        while running.bookie.stats().spare_segments == 0 {
            assert_eq!(wire.add(1, e, &payload(1, e)).await, Status::Ok);
            e += 1;
        }
        let gate = if stalls_index { &gates.index } else { &gates.writes };
        gate.close();
        let began = Instant::now();
        let (first, last) = (e, e + 99);
        for e in first..=last {
            wire.put_add(1, e, &payload(1, e), &key(), AddFlags::default());
        }
        wire.send().await;
        let reply = forcer.late_ask(LATE, |out| encode_force_ledger_v3(1, ledger(1), out));
        // The force waits for them; so do refusals, which are told in their turn.
        let (forced, refused) = tokio::join!(reply, async {
            tokio::time::sleep(Duration::from_secs(6)).await;
            wire.put_add(1, 1000, b"refused", &key(), AddFlags::default());
            wire.send().await;
            let mut written = 0;
            for e in first..=last {
                let reply = wire.late_reply(LATE).await;
                assert_eq!(reply.entry as u64, e);
                match reply.status {
                    Status::Ok => written += 1,
                    status => assert_eq!((status, began.elapsed() < LATE), (Status::Io, true), "unknown"),
                }
            }
            assert!(written < 100, "{written}");
            wire.late_reply(LATE).await
        });
        assert_eq!(forced.status, Status::Io);
        assert_eq!((refused.entry, refused.status), (1000, Status::ReadOnly));
        assert!(began.elapsed() < Duration::from_secs(37), "{:?}", began.elapsed());
        gate.open();
        settle(|| running.bookie.stats().state == BookieState::Writable).await;
        assert_eq!(wire.add(1, last + 1, b"goes on").await, Status::Ok);
        let world = world.crash(running).await;
        let running = world.start().await;
        let mut wire = running.connect().await;
        for e in 0..=last {
            assert_eq!(wire.read(1, e).await.unwrap(), body(1, e, &payload(1, e)), "entry {e}");
        }
        assert_eq!(wire.read(1, 1000).await, Err(Status::NoEntry));
        running.stop().await;
    }
}
