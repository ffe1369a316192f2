use super::*;

#[tokio::test(start_paused = true)]
async fn a_ledger_that_was_deleted_is_gone_by_proof_only() {
    let moved = Moved::to(&["m1:1"]).await;
    let _member = moved.member("m1:1", tells(Status::NoLedger));
    let mut wire = moved.connect().await;
    moved.world.ledgers().delete(ledger(1), None).await.unwrap();
    assert_eq!(wire.read(1, 0).await, Err(Status::NoLedger));
    assert_eq!(wire.read_last(1).await, Err(Status::NoLedger));
    let mut v3 = moved.connect().await;
    assert_eq!(v3.read_lac(1).await, Err(Status::NoLedger));
    assert_eq!(read_v3(&mut v3, 0).await.0, Status::NoLedger);
    moved.stop().await;

    let moved = Moved::hasty(&["m1:1"]).await;
    moved.world.ledgers().delete(ledger(1), None).await.unwrap();
    let removed = Transaction::new().delete(layout::instance_key(), Expect::Any);
    moved.world.metadata.commit(removed).await.unwrap();
    assert_eq!(
        moved.connect().await.read(1, 0).await,
        Err(Status::TooManyRequests),
        "absence from another cluster proves nothing"
    );
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_cluster_says_of_a_ledger_of_this_id_is_not_told() {
    let replaced = async |moved: &Moved| {
        let other = Bytes::from_static(b"2ad6d2ea-5d4a-4d2e-9f5c-0d7c3a4f5b11");
        let put = Transaction::new().put(layout::instance_key(), other, Expect::Any);
        moved.world.metadata.commit(put).await.unwrap();
    };
    let moved = Moved::hasty(&["m1:1"]).await;
    let member = moved.has("m1:1");
    replaced(&moved).await;
    let mut wire = moved.connect().await;
    assert_eq!(wire.read(1, 0).await, Err(Status::TooManyRequests), "the entry may be another ledger's");
    assert_eq!(wire.read(1, LAST + 1).await, Err(Status::TooManyRequests), "and so may the end");
    assert_eq!(member.asked(), []);
    moved.stop().await;

    // What was known before and not proven is no proof of an end either; what was proven is.
    for proven in [false, true] {
        let moved = Moved::hasty(&["m1:1"]).await;
        let _member = moved.has("m1:1");
        let mut wire = moved.connect().await;
        assert_eq!(wire.read(1, 0).await.unwrap(), cold(0));
        if proven {
            assert_eq!(wire.read(1, LAST + 1).await, Err(Status::NoEntry));
        }
        replaced(&moved).await;
        let expected = if proven { Status::NoEntry } else { Status::TooManyRequests };
        assert_eq!(wire.read(1, LAST + 1).await, Err(expected));
        moved.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_metadata_the_caller_is_told_to_come_again() {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let config = BookieConfig { relay_deadline: Span::millis(400), ..relaying() };
    let world = World { metadata: store.clone(), config, ..World::new() };
    let moved = Moved::with(world, &["m1:1"]).await;
    let member = moved.has("m1:1");
    let mut wire = moved.connect().await;
    for _ in 0..100 {
        store.fail_next_on(&layout::ledger_key(ledger(1)), FaultKind::FailRead);
    }
    assert_eq!(wire.read(1, 0).await, Err(Status::TooManyRequests));
    assert_eq!(wire.read(1, LAST + 1).await, Err(Status::TooManyRequests), "the end is not known either");
    assert_eq!(member.asked(), []);
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_where_the_bookie_is_the_only_member_or_relays_nothing() {
    let moved = Moved::hasty(&["m1:1"]).await;
    let id = BookieId::new("m1:1").unwrap();
    register(&moved.world, &id, "bk1:3181").await;
    assert_eq!(moved.connect().await.read(1, 0).await, Err(Status::TooManyRequests), "the address is its own");
    moved.stop().await;

    let config = BookieConfig { relay_concurrency: 0, ..relaying() };
    let moved = Moved::with(World { config, ..World::new() }, &["m1:1"]).await;
    let member = moved.has("m1:1");
    let mut wire = moved.connect().await;
    assert_eq!(read_v3(&mut wire, 0).await.0, Status::UnknownLedgerState);
    assert_eq!(member.asked(), []);
    let said = async |moved: &Moved| {
        let registered = moved.world.metadata.get(&layout::available_key(&moved.world.id)).await.unwrap().unwrap();
        BookieInfo::decode(&moved.world.id, &registered.value).unwrap().relays
    };
    assert!(!said(&moved).await, "releases beside it take two steps");
    moved.running.stop().await;
    let moved = Moved::to(&["m1:1"]).await;
    assert!(said(&moved).await);
    moved.running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn members_are_asked_though_metadata_is_away() {
    for proven in [false, true] {
        let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
        let moved = Moved::with(World { metadata: store.clone(), config: relaying(), ..World::new() }, &["m1:1"]).await;
        let member = moved.has("m1:1");
        let mut wire = moved.connect().await;
        assert_eq!(wire.read(1, 0).await.unwrap(), cold(0));
        if proven {
            assert_eq!(wire.read(1, LAST + 1).await, Err(Status::NoEntry));
        }
        let id = BookieId::new("m1:1").unwrap();
        let keys = [layout::instance_key(), layout::ledger_key(ledger(1)), layout::available_key(&id)];
        for key in keys.into_iter().chain([layout::readonly_key(&id)]) {
            for _ in 0..1_000 {
                store.fail_next_on(&key, FaultKind::FailRead);
            }
        }
        // Longer than anything is believed without a look.
        tokio::time::advance(Duration::from_secs(60)).await;
        let began = Instant::now();
        assert_eq!(wire.read(1, 1).await.unwrap(), cold(1));
        assert_eq!(wire.read(1, 2).await.unwrap(), cold(2));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(member.entries(), [0, 1, 2]);
        let expected = if proven { Status::NoEntry } else { Status::TooManyRequests };
        assert_eq!(wire.read(1, LAST + 1).await, Err(expected), "the end takes a proof, which holds for ever");
        moved.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_it_should_have_as_a_member_is_unknown() {
    let moved = Moved::hasty(&["m1:1"]).await;
    moved.moves_to(&["bk1:3181", "m1:1"], 2).await;
    let act = Arc::new(Mutex::new(Status::Ok));
    let told = act.clone();
    let _member = moved.member("m1:1", move |entry| match *told.lock().unwrap() {
        Status::Ok => has(entry),
        status => Act::Tell(Reply::Failed(status)),
    });
    let mut wire = moved.connect().await;
    assert_eq!(read_v3(&mut wire, 0).await.0, Status::Ok, "the others are asked first");
    for status in [Status::NoEntry, Status::NoLedger, Status::Io, Status::TooManyRequests] {
        *act.lock().unwrap() = status;
        assert_eq!(read_v3(&mut wire, 1).await.0, Status::UnknownLedgerState, "{status:?}");
    }
    assert_eq!(read_v3(&mut wire, LAST + 1).await.0, Status::UnknownLedgerState);
    moved.stop().await;

    let moved = Moved::to(&["m1:1"]).await;
    moved.moves_to(&["bk1:3181"], 1).await;
    let (mut wire, began) = (moved.connect().await, Instant::now());
    assert_eq!(read_v3(&mut wire, 0).await.0, Status::UnknownLedgerState);
    assert!(began.elapsed() < Duration::from_secs(1), "there is nobody to ask: {:?}", began.elapsed());
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn all_of_a_closed_ledger_is_confirmed_by_what_is_left_of_it_here() {
    let world = World { config: relaying(), ..World::new() };
    let running = world.start().await;
    let mut wire = running.connect().await;
    // A ledger that stays keeps the segment.
    world.create_ledger(2, "bk1:3181", false).await;
    assert_eq!(wire.add(2, 0, b"stays").await, Status::Ok);
    wire.fill(&running, 1, 0, 1).await;
    let id = BookieId::new("m1:1").unwrap();
    register(&world, &id, "m1:1").await;
    world.ledgers().create(ledger(1), &closed(vec![id])).await.unwrap();
    let member = member(&world.network, "m1:1", has);
    let last = Some(entry(LAST));
    let (_, PayloadV3::Entry { max_lac, .. }) = read_v3(&mut running.connect().await, 0).await else {
        panic!("an entry")
    };
    assert!(max_lac < last, "not known yet");
    let report = running.bookie.collect_now().await.unwrap();
    assert_eq!((report.ledgers_gone, report.segments_removed), (1, 0));
    let told = (Status::Ok, PayloadV3::Entry { body: cold(0), max_lac: last });
    assert_eq!(read_v3(&mut running.connect().await, 0).await, told);
    running.stop().await;

    let running = world.start().await;
    assert_eq!(read_v3(&mut running.connect().await, 0).await, told, "after it was loaded again");
    let poll = |out: &mut BytesMut| {
        encode_long_poll_v3(4, ledger(1), PollTarget::Read(ReadTarget::Entry(entry(1))), None, None, out);
    };
    let reply = running.connect().await.ask(poll).await;
    assert_eq!(reply.payload, PayloadV3::Entry { body: cold(1), max_lac: last });
    assert_eq!(member.asked(), [], "all of it came from here");
    running.stop().await;
}
