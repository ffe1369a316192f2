//! Reads of ledgers that moved away, between a whole bookie and members that answer as they are told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::config::{ByteSize, Span};
use bytes::{Bytes, BytesMut};
use common::budget::ByteBudget;
use common::net::{BoxStream, Listener as _, MemoryNetwork};
use ledger::{BookieId, DigestType, EntryId, LedgerMetadata, MasterKey, Password, Quorums};
use metadata::{BookieInfo, Expect, FaultKind, FaultyStore, MemoryStore, Transaction, layout};
use proto::client::{
    BatchRead, Operation, PayloadV3, decode_batch_response_v2, encode_batch_read_v2, encode_list_entries_v3,
    encode_long_poll_v3, encode_read_lac_v3, encode_read_v3, mark_relayed,
};
use proto::{
    BATCH_ENTRY_HEAD_BYTES, BATCH_HEAD_BYTES, FrameDecoder, Incoming, PollTarget, Protocol, ReadTarget, Reply, Request,
    Status, decode_request,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::support::*;
use crate::{BookieConfig, BookieParts};

/// The last entry of ledger 1, far above those that the bookie had.
const LAST: u64 = 5_000;

/// What a member does with a read.
#[derive(Clone)]
enum Act {
    Tell(Reply),
    Nothing,
    /// The bytes of a whole frame.
    Send(Bytes),
    Close,
}

/// What a member was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    entry: u64,
    key: Option<MasterKey>,
    marked: bool,
}

/// A member behind an address of its own.
#[derive(Clone, Default)]
struct Member {
    asked: Arc<Mutex<Vec<Question>>>,
}

impl Member {
    fn asked(&self) -> Vec<Question> {
        self.asked.lock().unwrap().clone()
    }

    fn entries(&self) -> Vec<u64> {
        self.asked().iter().map(|question| question.entry).collect()
    }

    async fn serve(self, mut stream: BoxStream, act: Arc<dyn Fn(u64) -> Act + Send + Sync>) -> Option<()> {
        let (mut decoder, mut input, mut protocol) = (FrameDecoder::new(1 << 20), BytesMut::new(), Protocol::default());
        loop {
            let Some(payload) = decoder.decode(&mut input).unwrap() else {
                match stream.read_buf(&mut input).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => continue,
                }
            };
            let Incoming::Request(to, request) = decode_request(&mut protocol, payload) else { panic!("no request") };
            let Request::Read { ledger: asked, target: ReadTarget::Entry(entry), master_key, .. } = request else {
                panic!("only entries are asked for, not {request:?}")
            };
            assert_eq!(asked, ledger(1));
            let question = Question { entry: entry.get(), key: master_key, marked: to.is_relayed() };
            self.asked.lock().unwrap().push(question);
            let frame = match act(entry.get()) {
                Act::Tell(reply) => to.to_frame(&reply),
                Act::Send(frame) => frame,
                Act::Nothing => continue,
                Act::Close => return None,
            };
            stream.write_all(&frame).await.ok()?;
        }
    }
}

/// A bookie that has dropped ledger 1, and the network its members are in.
struct Moved {
    world: World,
    running: Running,
    budget: ByteBudget,
}

fn relaying() -> BookieConfig {
    BookieConfig { relay_concurrency: 16, relay_deadline: Span::secs(4), ..small_config() }
}

impl Moved {
    /// The members of the ledger are named as the addresses they are registered at.
    async fn to(members: &[&str]) -> Self {
        Self::with(World { config: relaying(), ..World::new() }, members).await
    }

    /// One whose requests end soon, for what is never answered.
    async fn hasty(members: &[&str]) -> Self {
        let config = BookieConfig { relay_deadline: Span::millis(400), ..relaying() };
        Self::with(World { config, ..World::new() }, members).await
    }

    async fn with(world: World, members: &[&str]) -> Self {
        let budget = ByteBudget::new("test", 64 << 20);
        let running = world.try_start_with(|parts| BookieParts { budget: budget.clone(), ..parts }).await.unwrap();
        running.connect().await.fill(&running, 1, 0, 2).await;
        let members: Vec<BookieId> = members.iter().map(|member| BookieId::new(member).unwrap()).collect();
        for member in &members {
            register(&world, member, member.as_str()).await;
        }
        world.ledgers().create(ledger(1), &closed(members)).await.unwrap();
        assert_eq!(running.bookie.collect_now().await.unwrap().ledgers_gone, 1);
        Self { world, running, budget }
    }

    fn member(&self, address: &str, act: impl Fn(u64) -> Act + Send + Sync + 'static) -> Member {
        member(&self.world.network, address, act)
    }

    fn has(&self, address: &str) -> Member {
        self.member(address, has)
    }

    async fn connect(&self) -> Wire {
        self.running.connect().await
    }

    async fn stop(self) {
        settle(|| self.budget.used_bytes() == 0).await;
        self.running.stop().await;
    }
}

fn member(network: &MemoryNetwork, address: &str, act: impl Fn(u64) -> Act + Send + Sync + 'static) -> Member {
    let (member, act) = (Member::default(), Arc::new(act));
    let mut listener = network.listen(address);
    let serving = member.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serving.clone().serve(stream, act.clone()));
        }
    });
    member
}

/// The metadata of the ledger, closed, with all entries on all members.
fn closed(members: Vec<BookieId>) -> LedgerMetadata {
    let count = u32::try_from(members.len()).unwrap();
    let quorums = Quorums::new(count, count, 1).unwrap();
    let metadata = LedgerMetadata::open(quorums, members, DigestType::Crc32c, Password::empty()).unwrap();
    metadata.closed(EntryId::new(LAST), 1).unwrap()
}

/// Has all entries of the ledger.
fn has(entry: u64) -> Act {
    Act::Tell(Reply::Read { body: cold(entry), max_lac: None })
}

fn tells(status: Status) -> impl Fn(u64) -> Act {
    move |_| Act::Tell(Reply::Failed(status))
}

/// The body that members have of an entry.
fn cold(entry: u64) -> Bytes {
    body(1, entry, &payload(1, entry))
}

async fn register(world: &World, id: &BookieId, address: &str) {
    let value = BookieInfo::at(address).encode().unwrap();
    let put = Transaction::new().put(layout::readonly_key(id), value, Expect::Any);
    world.metadata.commit(put).await.unwrap();
}

async fn read_v3(wire: &mut Wire, entry_id: u64) -> (Status, PayloadV3) {
    let target = ReadTarget::Entry(entry(entry_id));
    let reply = wire.ask(|out| encode_read_v3(9, ledger(1), target, None, false, out)).await;
    assert_eq!((reply.txn, reply.ledger, reply.entry), (9, 1, entry_id as i64));
    (reply.status, reply.payload)
}

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
        (PollTarget::Next, Some(entry(7)), 8, Some(cold(8))),
        (PollTarget::Next, None, 0, Some(cold(0))),
        (PollTarget::Next, last, -1, None),
        (PollTarget::Read(ReadTarget::Entry(entry(5))), last, 5, Some(cold(5))),
    ] {
        let reply = wire.ask(|out| encode_long_poll_v3(4, ledger(1), target, previous, patience, out)).await;
        assert_eq!((reply.status, reply.entry), (Status::Ok, expected));
        let payload = match body {
            Some(body) => PayloadV3::Entry { body, max_lac: last },
            None => PayloadV3::Confirmed { max_lac: last },
        };
        assert_eq!(reply.payload, payload);
    }
    assert!(began.elapsed() < PATIENCE, "a closed ledger is not waited for");
    let listed = wire.ask(|out| encode_list_entries_v3(5, ledger(1), out)).await;
    assert_eq!(listed.status, Status::UnknownLedgerState, "lists are about this bookie");
    moved.stop().await;
}

#[tokio::test(start_paused = true)]
async fn batches_hold_the_first_entry_and_some_behind_it() {
    let moved = Moved::to(&["m1:1"]).await;
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
