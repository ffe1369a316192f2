use super::*;

#[tokio::test(start_paused = true)]
async fn members_that_are_dead_stuck_or_wrong_are_passed_over() {
    fn other_entry(_: u64) -> Act {
        Act::Tell(Reply::Read { body: cold(77), max_lac: None })
    }
    /// A true body under the ids of another request.
    fn other_ids(_: u64) -> Act {
        let mut frame = BytesMut::new();
        encode_read_v3(0, ledger(1), ReadTarget::Entry(entry(3)), None, false, &mut frame);
        let Incoming::Request(to, _) = decode_request(&mut Protocol::default(), frame.split_off(4).freeze()) else {
            panic!("a read")
        };
        Act::Send(to.to_frame(&Reply::Read { body: cold(3), max_lac: None }))
    }
    type Wrong = (&'static str, fn(u64) -> Act);
    let acts: [Wrong; 7] = [
        ("leaves", |_| Act::Close),
        ("other entry", other_entry),
        ("other ids", other_ids),
        ("short body", |_| Act::Tell(Reply::Read { body: Bytes::from_static(b"short"), max_lac: None })),
        ("no frame", |_| Act::Send(Bytes::from_static(&[0xff; 12]))),
        ("too long", |_| Act::Send(Bytes::from_static(&[0x7f, 0, 0, 0]))),
        ("no message", |_| Act::Send(Bytes::from_static(&[0, 0, 0, 2, 0x77, 0x77]))),
    ];
    let moved = Moved::to(&["m1:1", "m2:1", "m3:1"]).await;
    let good = moved.has("m3:1");
    for (number, (name, act)) in (0..).zip(acts) {
        let wrong = moved.member("m1:1", act);
        // Nobody listens at the second place. Entries that begin with the first place.
        let entry = number * 3;
        assert_eq!(moved.connect().await.read(1, entry).await.unwrap(), cold(entry), "{name}");
        assert_eq!(wrong.entries(), [entry], "{name}");
        assert_eq!(good.entries().last(), Some(&entry), "{name}");
        // By then it is no suspect any more.
        tokio::time::advance(Duration::from_secs(11)).await;
    }
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stuck_takes_its_share_of_the_time_and_is_asked_last_afterwards() {
    let moved = Moved::to(&["m1:1", "m2:1"]).await;
    let (stuck, good) = (moved.member("m1:1", |_| Act::Nothing), moved.has("m2:1"));
    let mut wire = moved.connect().await;
    let began = Instant::now();
    assert_eq!(wire.read(1, 0).await.unwrap(), cold(0));
    let first = began.elapsed();
    assert!(first >= Duration::from_millis(1_900) && first < Duration::from_secs(4), "{first:?}");
    assert_eq!(wire.read(1, 2).await.unwrap(), cold(2));
    assert!(began.elapsed() - first < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((stuck.entries(), good.entries()), (vec![0], vec![0, 2]));
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn members_are_looked_up_again_when_they_have_moved() {
    let moved = Moved::to(&["m1:1"]).await;
    let (old, id) = (moved.has("m1:1"), BookieId::new("m1:1").unwrap());
    let mut wire = moved.connect().await;
    assert_eq!(wire.read(1, 0).await.unwrap(), cold(0));
    moved.world.network.cut("m1:1");
    let new = moved.has("m9:1");
    register(&moved.world, &id, "m9:1").await;
    assert_eq!(wire.read(1, 1).await.unwrap(), cold(1));
    assert_eq!((old.entries(), new.entries()), (vec![0], vec![1]));
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_cannot_be_looked_up_is_asked_where_it_was() {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let moved = Moved::with(World { metadata: store.clone(), config: relaying(), ..World::new() }, &["m1:1"]).await;
    let failing = Arc::new(Mutex::new(false));
    let fails = failing.clone();
    let member = moved.member("m1:1", move |entry| match std::mem::take(&mut *fails.lock().unwrap()) {
        true => Act::Close,
        false => has(entry),
    });
    let mut wire = moved.connect().await;
    assert_eq!(wire.read(1, 0).await.unwrap(), cold(0));
    let id = BookieId::new("m1:1").unwrap();
    for key in [layout::available_key(&id), layout::readonly_key(&id)] {
        for _ in 0..100 {
            store.fail_next_on(&key, FaultKind::FailRead);
        }
    }
    *failing.lock().unwrap() = true;
    assert_eq!(wire.read(1, 1).await.unwrap(), cold(1));
    assert_eq!(member.entries(), [0, 1, 1], "again, though nobody can say where it is now");
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_place_that_takes_no_connection_is_tried_once_for_all_who_would_ask_it() {
    let moved = Moved::to(&["m1:1", "m2:1"]).await;
    let good = moved.has("m2:1");
    // Nobody listens at the first place. Each of these connections asks it first.
    let mut wires = Vec::new();
    for number in 0..8 {
        let mut wire = moved.connect().await;
        wire.put_read(1, ReadTarget::Entry(entry(2 * number)), None);
        wire.send().await;
        wires.push(wire);
    }
    let began = Instant::now();
    for (number, wire) in (0..).zip(&mut wires) {
        assert_eq!(wire.reply().await.body, cold(2 * number));
    }
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    assert_eq!(good.asked().len(), 8);
    moved.stop().await;
}
