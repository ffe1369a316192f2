use super::*;

#[tokio::test(start_paused = true)]
async fn adds_and_reads_go_on_while_the_relay_is_stuck() {
    let moved = Moved::to(&["m1:1"]).await;
    let stuck = moved.member("m1:1", |_| Act::Nothing);
    let mut waiting = moved.connect().await;
    let mut other = moved.connect().await;
    for e in 1_000..1_200 {
        waiting.put_read(1, ReadTarget::Entry(entry(e)), None);
        other.put_read(1, ReadTarget::Entry(entry(e)), None);
    }
    let began = Instant::now();
    waiting.send().await;
    other.send().await;
    settle(|| stuck.asked().len() >= 4).await;
    assert!(stuck.asked().len() <= 4, "an eighth of all turns for each connection");
    // On one of the same connections too.
    let mut fresh = moved.connect().await;
    for e in 0..50 {
        assert_eq!(fresh.add(2, e, &payload(2, e)).await, Status::Ok);
        assert_eq!(fresh.read(2, e).await.unwrap(), body(2, e, &payload(2, e)));
    }
    assert_eq!(waiting.add(2, 50, b"x").await, Status::Ok);
    assert_eq!(waiting.read(2, 50).await.unwrap(), body(2, 50, b"x"));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    for wire in [&mut waiting, &mut other] {
        let mut told = Vec::new();
        for _ in 0..200 {
            let reply = wire.reply().await;
            assert_eq!((reply.operation, reply.status), (Operation::Read, Status::TooManyRequests));
            told.push(reply.entry);
        }
        told.sort_unstable();
        assert!(told.into_iter().eq(1_000..1_200), "each once");
    }
    assert!(began.elapsed() >= Duration::from_secs(4) && began.elapsed() < Duration::from_secs(9));
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_no_answers_keeps_no_turn() {
    let config = BookieConfig { relay_concurrency: 1, ..relaying() };
    let moved = Moved::with(World { config, ..World::new() }, &["m1:1"]).await;
    let large = |e: u64| body(1, e, &vec![e as u8; 60 << 10]);
    let _member = moved.member("m1:1", move |e| Act::Tell(Reply::Read { body: large(e), max_lac: None }));
    let mut deaf = moved.connect().await;
    for e in 0..60 {
        // The second of an entry waits for the first, and then for room.
        deaf.put_read(1, ReadTarget::Entry(entry(e)), None);
        deaf.put_read(1, ReadTarget::Entry(entry(e)), None);
    }
    deaf.send().await;
    settle(|| moved.budget.used_bytes() > 1 << 20).await;
    let began = Instant::now();
    assert_eq!(moved.connect().await.read(1, 70).await.unwrap(), large(70));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    drop(deaf);
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn answers_wait_for_memory_of_their_own_and_no_longer_than_their_time() {
    let config = BookieConfig { relay_bytes_max: ByteSize::kib(64), ..relaying() };
    let moved = Moved::with(World { config, ..World::new() }, &["m1:1"]).await;
    let large = |e: u64| body(1, e, &vec![e as u8; 60 << 10]);
    let _member = moved.member("m1:1", move |e| Act::Tell(Reply::Read { body: large(e), max_lac: None }));
    let mut wire = moved.connect().await;
    for e in 0..20 {
        wire.put_read(1, ReadTarget::Entry(entry(e)), None);
    }
    wire.send().await;
    for _ in 0..20 {
        let reply = wire.reply().await;
        assert_eq!((reply.status, &reply.body), (Status::Ok, &large(reply.entry as u64)), "one after the other");
    }
    let held = moved.budget.acquire(u64::MAX).await;
    assert_eq!(wire.read(1, 30).await, Err(Status::TooManyRequests));
    drop(held);
    assert_eq!(wire.read(1, 31).await.unwrap(), large(31));
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_answers_what_is_under_way_at_once() {
    let moved = Moved::to(&["m1:1"]).await;
    let stuck = moved.member("m1:1", |_| Act::Nothing);
    let mut wire = moved.connect().await;
    wire.put_read(1, ReadTarget::Entry(entry(0)), None);
    let began = Instant::now();
    wire.send().await;
    settle(|| stuck.asked().len() == 1).await;
    let (reply, ()) = tokio::join!(wire.reply(), moved.running.stop());
    assert_eq!(reply.status, Status::TooManyRequests);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_no_answers_holds_its_part_of_the_memory() {
    let config = BookieConfig { relay_concurrency: 256, relay_bytes_max: ByteSize::kib(512), ..relaying() };
    let moved = Moved::with(World { config, ..World::new() }, &["m1:1"]).await;
    let large = |e: u64| body(1, e, &vec![e as u8; 30 << 10]);
    let _member = moved.member("m1:1", move |e| Act::Tell(Reply::Read { body: large(e), max_lac: None }));
    let mut deaf = moved.connect().await;
    for e in 0..200 {
        deaf.put_read(1, ReadTarget::Entry(entry(e)), None);
    }
    deaf.send().await;
    settle(|| moved.budget.used_bytes() >= 30 << 10).await;
    let (mut wire, began) = (moved.connect().await, Instant::now());
    for e in 300..320 {
        assert_eq!(wire.read(1, e).await.unwrap(), large(e));
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    settle(|| moved.budget.used_bytes() <= 64 << 10).await;
    for e in 0..20 {
        wire.put_read(1, ReadTarget::Entry(entry(400 + e)), None);
    }
    wire.send().await;
    for _ in 0..20 {
        assert_eq!(wire.reply().await.status, Status::Ok);
    }
    drop(deaf);
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_follows_in_a_batch_counts_as_the_connections() {
    let moved = Moved::to(&["m1:1"]).await;
    let member = moved.has("m1:1");
    let mut wire = moved.connect().await;
    let read = BatchRead {
        ledger: ledger(1),
        start: entry(0),
        request: 77,
        count_max: None,
        bytes_max: 1 << 20,
        fence: None,
        high_priority: false,
    };
    let mut out = BytesMut::new();
    encode_batch_read_v2(&read, &mut out);
    wire.send_raw(&out).await;
    let response = decode_batch_response_v2(wire.frame().await.unwrap()).unwrap();
    assert_eq!((response.status, response.entries.len()), (Status::Ok, 3), "two turns are an eighth of all");
    assert_eq!(member.asked().len(), 3);
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_place_holds_half_of_the_turns() {
    // Even entries are with one member, odd ones with the other.
    let two = ["m1:1", "m2:1"];
    let moved = Moved::to(&two).await;
    moved.moves_to(&two, 1).await;
    let (stuck, good) = (moved.member("m1:1", |_| Act::Nothing), moved.has("m2:1"));
    let began = Instant::now();
    let _wires = ask_for_even_ones(&moved).await;
    settle(|| stuck.asked().len() == 8).await;
    assert_eq!(moved.connect().await.read(1, 1).await.unwrap(), cold(1));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((stuck.asked().len(), good.entries()), (8, vec![1]));
    moved.running.stop().await;

    // Nor do those hold turns that wait to ask again.
    let moved = Moved::to(&two).await;
    moved.moves_to(&two, 1).await;
    let (empty, _good) = (moved.member("m1:1", tells(Status::NoLedger)), moved.has("m2:1"));
    let began = Instant::now();
    let _wires = ask_for_even_ones(&moved).await;
    settle(|| empty.asked().len() >= 32).await;
    assert_eq!(moved.connect().await.read(1, 1).await.unwrap(), cold(1));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    moved.running.stop().await;
}

/// Requests for all turns there are.
async fn ask_for_even_ones(moved: &Moved) -> Vec<Wire> {
    let mut wires = Vec::new();
    for number in 0..8 {
        let mut wire = moved.connect().await;
        for e in [4 * number, 4 * number + 2] {
            wire.put_read(1, ReadTarget::Entry(entry(e)), None);
        }
        wire.send().await;
        wires.push(wire);
    }
    wires
}

#[tokio::test(start_paused = true)]
async fn a_poll_at_the_end_of_a_ledger_is_answered_when_its_time_is_over() {
    let config = BookieConfig { relay_concurrency: 1, ..relaying() };
    let moved = Moved::with(World { config, ..World::new() }, &["m1:1"]).await;
    let _member = moved.has("m1:1");
    let (last, waits) = (Some(entry(LAST)), || moved.running.bookie.waiting_polls());
    let frame = |target, previous, patience| {
        let mut frame = BytesMut::new();
        encode_long_poll_v3(4, ledger(1), target, previous, Some(Duration::from_secs(patience)), &mut frame);
        frame
    };
    let beyond = PollTarget::Read(ReadTarget::Entry(entry(LAST + 1)));
    let expected = [
        (PollTarget::Next, last, Status::Ok, PayloadV3::Confirmed { max_lac: last }),
        (PollTarget::Next, EntryId::new(LAST + 9), Status::Ok, PayloadV3::Confirmed { max_lac: last }),
        (beyond, last, Status::NoEntry, PayloadV3::None),
    ];
    for (target, previous, status, payload) in expected {
        let (mut wire, began) = (moved.connect().await, Instant::now());
        wire.send_raw(&frame(target, previous, 15)).await;
        settle(|| waits() == 1).await;
        assert_eq!(moved.connect().await.read(1, 3).await.unwrap(), cold(3), "it has no turn meanwhile");
        let reply = wire.reply_v3().await;
        assert_eq!((reply.status, reply.payload), (status, payload));
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(14) && took < Duration::from_secs(16), "{took:?}");
    }
    let mut lost = moved.connect().await;
    lost.send_raw(&frame(PollTarget::Next, last, 600)).await;
    settle(|| waits() == 1).await;
    drop(lost);
    settle(|| waits() == 0).await;
    let (mut wire, began) = (moved.connect().await, Instant::now());
    wire.send_raw(&frame(PollTarget::Next, last, 600)).await;
    settle(|| waits() == 1).await;
    let (reply, ()) = tokio::join!(wire.reply_v3(), moved.running.stop());
    assert_eq!(reply.payload, PayloadV3::Confirmed { max_lac: last });
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}
