use super::*;

#[tokio::test(start_paused = true)]
async fn every_read_of_a_ledger_that_moved_away_is_answered_by_its_members() {
    let moved = Moved::to(&["m1:1"]).await;
    let member = moved.has("m1:1");
    let mut wire = moved.connect().await;
    assert_eq!(wire.read(1, 0).await.unwrap(), cold(0));
    assert_eq!(wire.read(1, LAST).await.unwrap(), cold(LAST));
    assert_eq!(wire.read_last(1).await.unwrap(), cold(LAST), "the end that metadata knows");
    assert_eq!(wire.read(1, LAST + 1).await, Err(Status::NoEntry), "beyond the end");
    assert_eq!(wire.fence(1, &key()).await.unwrap(), cold(LAST));
    assert_eq!(wire.recovery_read(1, 2).await.unwrap(), cold(2));
    assert_eq!(wire.recovery_read(1, LAST + 1).await, Err(Status::NoEntry));
    assert_eq!(wire.add(1, 7, b"late").await, Status::Fenced, "adds are not relayed");
    let asked = member.asked();
    assert!(asked.iter().all(|question| question.marked), "{asked:?}");
    let keys: Vec<bool> = asked.iter().map(|question| question.key == Some(key())).collect();
    assert_eq!(keys, [false, false, false, true, true]);

    let mut wire = moved.connect().await;
    let last = Some(entry(LAST));
    assert_eq!(read_v3(&mut wire, 3).await, (Status::Ok, PayloadV3::Entry { body: cold(3), max_lac: last }));
    assert_eq!(wire.read_lac(1).await, Ok((None, Some(cold(LAST)))));
    let patience = Some(Duration::from_secs(600));
    let began = Instant::now();
    for (target, previous, expected, body) in [
        (PollTarget::Next, Some(entry(7)), 8, cold(8)),
        (PollTarget::Next, None, 0, cold(0)),
        (PollTarget::Read(ReadTarget::Entry(entry(5))), last, 5, cold(5)),
    ] {
        let reply = wire.ask(|out| encode_long_poll_v3(4, ledger(1), target, previous, patience, out)).await;
        assert_eq!((reply.status, reply.entry), (Status::Ok, expected));
        assert_eq!(reply.payload, PayloadV3::Entry { body, max_lac: last });
    }
    assert!(began.elapsed() < PATIENCE, "a closed ledger is not waited for");
    let listed = wire.ask(|out| encode_list_entries_v3(5, ledger(1), out)).await;
    assert_eq!(listed.status, Status::UnknownLedgerState, "lists are about this bookie");
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn batches_hold_the_first_entry_and_some_behind_it() {
    let config = BookieConfig { relay_concurrency: 256, ..relaying() };
    let moved = Moved::with(World { config, ..World::new() }, &["m1:1"]).await;
    let member = moved.has("m1:1");
    let mut wire = moved.connect().await;
    let mut batch = async |start: u64, count_max, bytes_max, fence: Option<&MasterKey>| {
        let read = BatchRead {
            ledger: ledger(1),
            start: entry(start),
            request: 77,
            count_max,
            bytes_max,
            fence,
            high_priority: false,
        };
        let mut out = BytesMut::new();
        encode_batch_read_v2(&read, &mut out);
        wire.send_raw(&out).await;
        let response = decode_batch_response_v2(wire.frame().await.unwrap()).unwrap();
        assert_eq!((response.request, response.start), (77, start as i64));
        for (place, body) in (start..).zip(&response.entries) {
            assert_eq!(*body, cold(place));
        }
        (response.status, response.entries.len())
    };
    assert_eq!(batch(0, None, 1 << 20, None).await, (Status::Ok, 16));
    assert_eq!(batch(3, Some(5), 1 << 20, None).await, (Status::Ok, 5));
    assert_eq!(batch(3, Some(1), 1 << 20, None).await, (Status::Ok, 1));
    let three = (BATCH_HEAD_BYTES + 3 * (BATCH_ENTRY_HEAD_BYTES + cold(0).len())) as u64;
    assert_eq!(batch(3, None, three, None).await, (Status::Ok, 3));
    assert_eq!(batch(3, None, 0, Some(&key())).await, (Status::Ok, 1), "one comes whatever its size");
    assert_eq!(batch(LAST - 1, None, 1 << 20, None).await, (Status::Ok, 2), "none beyond the end");
    let asked = member.asked().len();
    assert_eq!(batch(LAST + 1, None, 1 << 20, None).await, (Status::NoEntry, 0));
    assert_eq!(member.asked().len(), asked, "metadata knows the end");
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_member_can_make_an_entry_absent() {
    for status in [Status::NoEntry, Status::NoLedger, Status::UnknownLedgerState, Status::TooManyRequests, Status::Io] {
        let moved = Moved::to(&["m1:1", "m2:1"]).await;
        let (first, second) = (moved.member("m1:1", tells(status)), moved.has("m2:1"));
        assert_eq!(moved.connect().await.read(1, 0).await.unwrap(), cold(0), "{status:?}");
        assert_eq!((first.entries(), second.entries()), (vec![0], vec![0]));
        moved.stop().await;
    }
    for status in [Status::NoEntry, Status::NoLedger, Status::UnknownLedgerState, Status::Unauthorized] {
        let moved = Moved::hasty(&["m1:1", "m2:1"]).await;
        let (first, second) = (moved.member("m1:1", tells(status)), moved.member("m2:1", tells(status)));
        let began = Instant::now();
        assert_eq!(moved.connect().await.read(1, 0).await, Err(Status::TooManyRequests), "{status:?}");
        assert!(began.elapsed() >= Duration::from_millis(400), "most of the caller's time is used");
        assert!(first.asked().len() > 1 && second.asked().len() > 1, "and they are asked again");
        moved.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn damage_is_told_when_every_member_says_so() {
    let moved = Moved::to(&["m1:1", "m2:1"]).await;
    let members = [moved.member("m1:1", tells(Status::Io)), moved.member("m2:1", tells(Status::Io))];
    assert_eq!(moved.connect().await.read(1, 0).await, Err(Status::Io));
    assert_eq!(members.map(|member| member.entries()), [[0, 0], [0, 0]], "again after a proof that it is not deleted");
    moved.stop().await;

    let moved = Moved::hasty(&["m1:1", "m2:1"]).await;
    let _first = moved.member("m1:1", tells(Status::Io));
    assert_eq!(moved.connect().await.read(1, 0).await, Err(Status::TooManyRequests), "the other one may have it");
    moved.stop().await;
}

/// The answer to a plain read in version 3, with a number that the protocol does not name in the place of EIO.
fn unnamed(txn: u64, entry_id: u64) -> Bytes {
    let mut frame = BytesMut::new();
    encode_read_v3(txn, ledger(1), ReadTarget::Entry(entry(entry_id)), None, false, &mut frame);
    let Incoming::Request(to, _) = decode_request(&mut Protocol::default(), frame.split_off(4).freeze()) else {
        panic!("a read")
    };
    let mut frame = to.to_frame(&Reply::Failed(Status::Io)).to_vec();
    let (eio, other) = ([0xf5, 3], [0xd7, 4]);
    let places: Vec<usize> = (0..frame.len() - 1).filter(|at| frame[*at..at + 2] == eio).collect();
    assert_eq!(places.len(), 2, "the status of the message, and that of the read");
    for at in places {
        frame[at..at + 2].copy_from_slice(&other);
    }
    frame.into()
}

#[tokio::test(start_paused = true)]
async fn only_damage_is_told_as_damage() {
    // Whoever is not there may have it, whatever the other one says of its own disk.
    let moved = Moved::hasty(&["m1:1", "m2:1"]).await;
    let _first = moved.member("m1:1", tells(Status::Io));
    let gone = Transaction::new().delete(layout::readonly_key(&BookieId::new("m2:1").unwrap()), Expect::Any);
    moved.world.metadata.commit(gone).await.unwrap();
    assert_eq!(moved.connect().await.read(1, 0).await, Err(Status::TooManyRequests));
    moved.stop().await;

    // EIO without a word of the ledger is not about it; the number of the answer comes before the number of the status.
    let bare = |txn: u64, _: u64| Bytes::from(vec![0, 0, 0, 11, 0x0a, 6, 8, 3, 16, 2, 24, txn as u8, 16, 0xf5, 3]);
    let answers: [fn(u64, u64) -> Bytes; 2] = [unnamed, bare];
    for answer in answers {
        let moved = Moved::hasty(&["m1:1"]).await;
        let count = Mutex::new(0);
        let member = moved.member("m1:1", move |entry| {
            let mut count = count.lock().unwrap();
            *count += 1;
            Act::Send(answer(*count - 1, entry))
        });
        assert_eq!(moved.connect().await.read(1, 0).await, Err(Status::TooManyRequests));
        assert!(member.asked().len() > 2, "asked again: {}", member.asked().len());
        moved.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_members_refuse_is_refused_and_only_where_one_was_shown() {
    let moved = Moved::hasty(&["m1:1"]).await;
    let _member = moved.member("m1:1", tells(Status::Unauthorized));
    let mut wire = moved.connect().await;
    assert_eq!(wire.fence(1, &key()).await, Err(Status::Unauthorized));
    assert_eq!(wire.read(1, 0).await, Err(Status::TooManyRequests), "this bookie was not let in, and not its caller");
    assert_eq!(wire.fence(1, &MasterKey::derive(b"other")).await, Err(Status::Unauthorized), "as the bookie knows");
    moved.stop().await;

    // What whoever is not let in is told: the request's number, its operation (READ_ENTRY, 2) and EUA, not a word of the ledger.
    let stranger = |_| Act::Send(Bytes::from_static(&[0, 0, 0, 11, 0x0a, 6, 8, 3, 16, 2, 24, 0, 16, 0xf6, 3]));
    let moved = Moved::to(&["m1:1", "m2:1"]).await;
    let (first, _second) = (moved.member("m1:1", stranger), moved.has("m2:1"));
    assert_eq!(moved.connect().await.recovery_read(1, 0).await.unwrap(), cold(0), "another one may have it");
    assert_eq!(first.entries(), [0]);
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn reads_of_one_entry_are_answered_in_their_order() {
    let moved = Moved::to(&["m1:1"]).await;
    let count = Arc::new(Mutex::new(0_u64));
    let _member = moved.member("m1:1", move |e| {
        let mut count = count.lock().unwrap();
        *count += 1;
        // Only the digest type of a client could tell these from true ones.
        Act::Tell(Reply::Read { body: body(1, e, &count.to_be_bytes()), max_lac: None })
    });
    let mut wire = moved.connect().await;
    for _ in 0..5 {
        wire.put_read(1, ReadTarget::Entry(entry(4)), None);
        wire.put_read(1, ReadTarget::Entry(entry(4)), Some(&key()));
    }
    wire.send().await;
    for number in 1..=10_u64 {
        assert_eq!(wire.reply().await.body, body(1, 4, &number.to_be_bytes()));
    }
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_bookie_asks_is_not_passed_on() {
    let moved = Moved::to(&["m1:1"]).await;
    let member = moved.has("m1:1");
    let mut wire = moved.connect().await;
    let marked = |encode: &dyn Fn(&mut BytesMut)| {
        let mut frame = BytesMut::new();
        encode(&mut frame);
        mark_relayed(0, &mut frame);
        frame
    };
    let patience = Some(Duration::from_secs(600));
    let frames = [
        marked(&|out| encode_read_v3(1, ledger(1), ReadTarget::Entry(entry(0)), None, false, out)),
        marked(&|out| encode_read_v3(2, ledger(1), ReadTarget::Last, Some(&key()), false, out)),
        marked(&|out| encode_read_lac_v3(3, ledger(1), out)),
        marked(&|out| encode_long_poll_v3(4, ledger(1), PollTarget::Next, None, patience, out)),
    ];
    for frame in frames {
        wire.send_raw(&frame).await;
        let reply = wire.reply_v3().await;
        assert_eq!(reply.status, Status::UnknownLedgerState, "request {}: gone here too, and never absent", reply.txn);
    }
    assert_eq!(member.asked(), []);
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_bookies_that_both_dropped_a_ledger_do_not_ask_each_other_for_ever() {
    let moved = Moved::to(&["m1:1"]).await;
    let member = moved.has("m1:1");
    let world = World {
        id: BookieId::new("bk2:3181").unwrap(),
        metadata: moved.world.metadata.clone(),
        network: moved.world.network.clone(),
        config: moved.world.config.clone(),
        ..World::new()
    };
    let second = world.start().await;
    second.connect().await.fill(&second, 1, 0, 2).await;
    assert_eq!(second.bookie.collect_now().await.unwrap().ledgers_gone, 1);
    let members = ["bk1:3181", "bk2:3181", "m1:1"].map(|id| BookieId::new(id).unwrap()).to_vec();
    let version = world.ledgers().get(ledger(1)).await.unwrap().unwrap().version;
    world.ledgers().update(ledger(1), &closed(members), version).await.unwrap();
    // Entry 1 is first with the second bookie.
    assert_eq!(moved.connect().await.read(1, 1).await.unwrap(), cold(1));
    assert_eq!(member.entries(), [1], "by one of them");
    assert_eq!(second.connect().await.read(1, 1).await.unwrap(), cold(1));
    assert_eq!(member.entries(), [1, 1]);
    second.stop().await;
    moved.stop().await;
}
