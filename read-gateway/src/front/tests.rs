use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use common::net::{BoxStream, Connector as _, MemoryListener, MemoryNetwork};
use config::{ByteSize, Span};
use ledger::{BookieId, EntryId, LedgerId, MasterKey};
use proto::client::{
    AddFlags, BatchRead, BatchResponseV2, Operation, PayloadV3, ResponseV2, ResponseV3, decode_batch_response_v2,
    decode_response_v2, decode_response_v3, encode_add_v2, encode_add_v3, encode_batch_read_v2, encode_bookie_info_v3,
    encode_force_ledger_v3, encode_list_entries_v3, encode_long_poll_v3, encode_read_lac_v3, encode_read_v2,
    encode_read_v3, encode_write_lac_v3,
};
use proto::{
    BATCH_ENTRY_HEAD_BYTES, BATCH_HEAD_BYTES, FRAME_BYTES_MAX_DEFAULT, FrameDecoder, PollTarget, ReadTarget, Status,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

mod sharing;

use super::*;
use crate::testing::{Made, On, Sizes, World, id, noise};

const ADDRESS: &str = "gateway:3181";
const DEADLINE: Duration = Duration::from_secs(4);
/// More than one connection may have open.
const REQUESTS: usize = 200;

/// A world with a front.
struct Served {
    world: World,
    network: MemoryNetwork,
    front: Arc<Front>,
}

impl Served {
    fn new(world: World) -> Self {
        Self::with(world, GatewayConfig::default())
    }

    fn with(world: World, config: GatewayConfig) -> Self {
        Self::behind(world, config, |listener| Box::new(listener))
    }

    /// A front whose listener has another one before it.
    fn behind(world: World, config: GatewayConfig, before: impl FnOnce(MemoryListener) -> Box<dyn Listener>) -> Self {
        let ends = ByteBudget::new("ends", config.ends_bytes.bytes());
        let front = Arc::new(Front::new(Arc::clone(&world.tiers), &ends, &config, world.tasks.clone()));
        let network = MemoryNetwork::new();
        let listener = before(network.listen(ADDRESS));
        world.tasks.spawn_critical("front", accept(Arc::clone(&front), listener));
        Self { world, network, front }
    }

    /// Bytes of the memory for ends that are in use.
    fn ends_used(&self) -> u64 {
        let ends = &self.front.ends;
        ends.indexes.used_bytes() + ends.reads.used_bytes() + ends.replies.used_bytes()
    }

    async fn connect(&self) -> Peer {
        let stream = self.network.connect(ADDRESS).await.unwrap();
        Peer { stream, decoder: FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT), input: BytesMut::new() }
    }

    /// The body that the bookies held of an entry.
    async fn body(&self, made: &Made, entry: u64) -> Bytes {
        let digester = self.world.ledgers.get(made.ledger).await.unwrap().unwrap().metadata.digester().unwrap();
        let payloads = &made.payloads[..=usize::try_from(entry).unwrap()];
        let length = payloads.iter().map(|payload| payload.len() as u64).sum();
        let header =
            ledger::EntryHeader { ledger: made.ledger, entry: id(entry), last_confirmed: id(entry).prev(), length };
        digester.seal(&header, payloads.last().unwrap())
    }
}

/// A client that writes and reads raw frames.
struct Peer {
    stream: BoxStream,
    decoder: FrameDecoder,
    input: BytesMut,
}

impl Peer {
    async fn send(&mut self, frames: &[u8]) {
        self.stream.write_all(frames).await.unwrap();
    }

    /// The next frame; `None` when the connection is closed.
    async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(payload) = self.decoder.decode(&mut self.input).unwrap() {
                return Some(payload);
            }
            match tokio::time::timeout(Duration::from_secs(120), self.stream.read_buf(&mut self.input)).await.unwrap() {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn read_v2(&mut self, ledger: LedgerId, target: ReadTarget, fence: Option<&MasterKey>) -> ResponseV2 {
        let mut frame = BytesMut::new();
        encode_read_v2(ledger, target, fence, false, &mut frame);
        self.send(&frame).await;
        decode_response_v2(self.frame().await.unwrap()).unwrap()
    }

    async fn read_v3(&mut self, ledger: LedgerId, target: ReadTarget, fence: Option<&MasterKey>) -> ResponseV3 {
        static TXN: AtomicU64 = AtomicU64::new(1);
        let (txn, mut frame) = (TXN.fetch_add(1, Ordering::Relaxed), BytesMut::new());
        encode_read_v3(txn, ledger, target, fence, false, &mut frame);
        self.send(&frame).await;
        let response = decode_response_v3(self.frame().await.unwrap()).unwrap();
        assert_eq!((response.txn, response.operation), (txn, Operation::Read));
        response
    }

    async fn read_lac(&mut self, ledger: LedgerId) -> ResponseV3 {
        let mut frame = BytesMut::new();
        encode_read_lac_v3(9, ledger, &mut frame);
        self.send(&frame).await;
        decode_response_v3(self.frame().await.unwrap()).unwrap()
    }

    async fn batch(&mut self, read: BatchRead<'_>) -> BatchResponseV2 {
        let mut frame = BytesMut::new();
        encode_batch_read_v2(&read, &mut frame);
        self.send(&frame).await;
        let response = decode_batch_response_v2(self.frame().await.unwrap()).unwrap();
        assert_eq!((response.request, response.start), (read.request, read.start.as_i64()));
        response
    }

    /// Sends a frame of version 3 and reads its answer.
    async fn ask(&mut self, encode: impl FnOnce(&mut BytesMut)) -> ResponseV3 {
        let mut frame = BytesMut::new();
        encode(&mut frame);
        self.send(&frame).await;
        decode_response_v3(self.frame().await.unwrap()).unwrap()
    }

    /// What a plain read of an entry is told in both versions, over a connection for each.
    async fn told(served: &Served, ledger: LedgerId, entry: EntryId) -> Status {
        let target = ReadTarget::Entry(entry);
        let v2 = served.connect().await.read_v2(ledger, target, None).await;
        let v3 = served.connect().await.read_v3(ledger, target, None).await;
        assert_eq!(v2.status, v3.status);
        assert_eq!((v2.ledger, v2.entry), (ledger.as_i64(), entry.as_i64()));
        assert!(v2.status == Status::Ok || v2.body.is_empty());
        v2.status
    }
}

fn deny_gets(served: &Served, count: usize) {
    for _ in 0..count {
        served.world.faults.inject(cold::Fault::DenyGet);
    }
}

fn unknown() -> LedgerId {
    LedgerId::new(999).unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_entry_comes_bit_for_bit_in_both_versions() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(300, 900), On::Released).await;
    let (mut v2, mut v3) = (served.connect().await, served.connect().await);
    for entry in 0..300 {
        let (target, body) = (ReadTarget::Entry(id(entry)), served.body(&made, entry).await);
        let response = v2.read_v2(made.ledger, target, None).await;
        assert_eq!((response.status, response.entry, response.body), (Status::Ok, id(entry).as_i64(), body.clone()));
        let response = v3.read_v3(made.ledger, target, None).await;
        assert_eq!(response.payload, PayloadV3::Entry { body, max_lac: Some(id(299)) });
    }
    assert_eq!(served.world.hot.reads(), 0, "the front never asks a bookie");
    assert_eq!(served.world.tiers.send_budget.used_bytes(), 0, "what was sent is given back");
}

#[tokio::test(start_paused = true)]
async fn the_last_entry_and_what_is_confirmed_are_those_of_the_end() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(20, 50), On::Settled).await;
    let last = served.body(&made, 19).await;
    let mut peer = served.connect().await;
    let lac = peer.read_lac(made.ledger).await;
    assert_eq!((lac.status, lac.txn, lac.ledger), (Status::Ok, 9, 7));
    assert_eq!(lac.payload, PayloadV3::Lac { explicit: None, last_entry: Some(last.clone()) });
    let response = peer.read_v3(made.ledger, ReadTarget::Last, None).await;
    assert_eq!((response.status, response.entry), (Status::Ok, -1));
    let response = peer.read_v2(made.ledger, ReadTarget::Last, None).await;
    assert_eq!((response.status, response.entry, response.body), (Status::Ok, -1, last));
}

#[tokio::test(start_paused = true)]
async fn a_fence_changes_nothing_and_wants_the_ledgers_key() {
    let served = Served::new(World::new(Sizes::default()));
    let locked = served.world.make_locked(7, noise(5, 50), b"secret").await;
    let open = served.world.make(8, noise(5, 50), On::Released).await;
    let before = served.world.ledgers.get(locked.ledger).await.unwrap().unwrap();
    let (right, wrong) = (MasterKey::derive(b"secret"), MasterKey::derive(b""));
    for (ledger, key, status) in [
        (locked.ledger, &right, Status::Ok),
        (locked.ledger, &wrong, Status::Unauthorized),
        (locked.ledger, &MasterKey::EMPTY, Status::Unauthorized),
        (open.ledger, &wrong, Status::Ok),
        (open.ledger, &right, Status::Unauthorized),
    ] {
        for target in [ReadTarget::Last, ReadTarget::Entry(id(1))] {
            let mut peer = served.connect().await;
            let v3 = peer.read_v3(ledger, target, Some(key)).await;
            assert_eq!(v3.status, status, "{ledger} {target:?}");
            if let PayloadV3::Entry { max_lac, .. } = v3.payload {
                assert_eq!(max_lac, None, "a fencing read is not told what is confirmed");
            }
            assert_eq!(peer.read_v2(ledger, target, Some(key)).await.status, status, "{ledger} {target:?}");
        }
    }
    // A plain read needs no key.
    assert_eq!(Peer::told(&served, locked.ledger, id(1)).await, Status::Ok);
    assert_eq!(served.world.ledgers.get(locked.ledger).await.unwrap().unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn what_would_write_is_refused_as_by_a_read_only_bookie() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    let key = MasterKey::derive(b"");
    for body in [served.body(&made, 4).await, Bytes::from([&[0; 7], &[7][..], &[0; 8], &vec![1; 200_000]].concat())] {
        for recovery in [false, true] {
            let flags = AddFlags { recovery, high_priority: recovery };
            let entry = ledger::peek(&body).unwrap().entry;
            let mut peer = served.connect().await;
            let mut frame = BytesMut::new();
            encode_add_v3(3, made.ledger, entry, &key, &body, flags, false, &mut frame);
            encode_add_v2(&key, &body, flags, &mut frame);
            peer.send(&frame).await;
            let v3 = decode_response_v3(peer.frame().await.unwrap()).unwrap();
            assert_eq!((v3.operation, v3.status, v3.entry), (Operation::Add, Status::ReadOnly, entry.as_i64()));
            let v2 = decode_response_v2(peer.frame().await.unwrap()).unwrap();
            assert_eq!((v2.operation, v2.status, v2.entry), (Operation::Add, Status::ReadOnly, entry.as_i64()));
        }
    }
    assert_eq!(served.world.tiers.send_budget.used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn absence_is_told_of_what_is_proved_absent_alone() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    assert_eq!(Peer::told(&served, made.ledger, id(5)).await, Status::NoEntry);
    assert_eq!(Peer::told(&served, unknown(), id(0)).await, Status::NoLedger);
    // What has no entries needs no object to say so.
    let empty = served.world.make_empty(9).await;
    assert_eq!(Peer::told(&served, empty, id(0)).await, Status::NoEntry);
    let mut peer = served.connect().await;
    assert_eq!(peer.read_v3(empty, ReadTarget::Last, None).await.status, Status::NoEntry);
    assert_eq!(peer.read_lac(empty).await.status, Status::NoEntry);
    assert_eq!(peer.read_lac(unknown()).await.status, Status::NoEntry, "as bookies tell it");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_here_is_told_to_come_later_after_most_of_the_clients_patience() {
    let served = Served::new(World::new(Sizes::default()));
    let hot = served.world.make(7, noise(5, 50), On::Hot).await;
    let open = served.world.make_open(8, noise(5, 50)).await;
    for ledger in [hot.ledger, open.ledger] {
        let began = Instant::now();
        let mut peer = served.connect().await;
        let status = peer.read_v3(ledger, ReadTarget::Entry(id(1)), None).await.status;
        assert_eq!(status, Status::TooManyRequests);
        assert_eq!(began.elapsed().as_secs(), DEADLINE.as_secs());
        assert_eq!(peer.read_lac(ledger).await.status, Status::TooManyRequests);
        let fence = peer.read_v2(ledger, ReadTarget::Last, Some(&MasterKey::derive(b""))).await;
        assert_eq!(fence.status, Status::TooManyRequests, "and it is not fenced");
        assert!(!served.world.ledgers.get(open.ledger).await.unwrap().unwrap().metadata.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_is_settled_meanwhile_is_served_in_the_same_request() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Hot).await;
    let mut peer = served.connect().await;
    let (response, ()) = tokio::join!(peer.read_v3(made.ledger, ReadTarget::Entry(id(2)), None), async {
        tokio::time::sleep(DEADLINE / 2).await;
        served.world.release(&made).await;
    });
    assert_eq!(response.status, Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_told_to_come_later_and_damage_is_told() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(300, 900), On::Released).await;
    deny_gets(&served, 3);
    assert_eq!(Peer::told(&served, made.ledger, id(100)).await, Status::Ok, "tried again");
    let away = Served::new(World::new(Sizes::default()));
    let made = away.world.make(7, noise(300, 900), On::Released).await;
    deny_gets(&away, 100_000);
    for entry in [0, 100, 299] {
        assert_eq!(Peer::told(&away, made.ledger, id(entry)).await, Status::TooManyRequests, "{entry}");
    }
    assert_ne!(away.world.faults.outstanding(), 0);

    let flipped = served.world.make(8, noise(300, 900), On::Released).await;
    served.world.alter(&flipped, |bytes| bytes[1_000] ^= 1).await;
    assert_eq!(Peer::told(&served, flipped.ledger, id(0)).await, Status::Io);
    let lost = served.world.make(9, noise(5, 50), On::Released).await;
    served.world.lose(&lost).await;
    for entry in [0, 2, 4] {
        assert_eq!(Peer::told(&served, lost.ledger, id(entry)).await, Status::Io, "a missing object is damage");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_ledger_is_gone_and_not_damaged() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    assert_eq!(Peer::told(&served, made.ledger, id(1)).await, Status::Ok);
    let version = served.world.ledgers.get(made.ledger).await.unwrap().unwrap().version;
    served.world.ledgers.delete(made.ledger, Some(version)).await.unwrap();
    served.world.lose(&made).await;
    // What is known of it is older than its end, and its object's index is kept: what is not in memory finds the object missing.
    assert_eq!(Peer::told(&served, made.ledger, id(3)).await, Status::NoLedger);
}

#[tokio::test(start_paused = true)]
async fn the_ends_are_served_when_all_other_memory_is_used_up() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(300, 900), On::Released).await;
    let _blocks = served.world.blocks_budget.acquire(u64::MAX).await;
    let _replies = served.world.tiers.send_budget.acquire(u64::MAX).await;
    let _footers = served.world.footers_budget.acquire(u64::MAX).await;
    for entry in [0, 299] {
        assert_eq!(Peer::told(&served, made.ledger, id(entry)).await, Status::Ok, "{entry}");
    }
    assert_eq!(Peer::told(&served, made.ledger, id(100)).await, Status::TooManyRequests);
    assert_eq!(served.ends_used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_scan_by_single_reads_fetches_each_row_group_once() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(2_000, 900), On::Released).await;
    let mut peer = served.connect().await;
    let mut frames = BytesMut::new();
    for entry in 0..2_000 {
        encode_read_v2(made.ledger, ReadTarget::Entry(id(entry)), None, false, &mut frames);
    }
    let (mut read, mut write) = tokio::io::split(peer.stream);
    let sending = tokio::spawn(async move { write.write_all(&frames).await });
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2_000 {
        while let Some(payload) = peer.decoder.decode(&mut peer.input).unwrap() {
            let response = decode_response_v2(payload).unwrap();
            assert_eq!(response.status, Status::Ok);
            assert!(seen.insert(response.entry), "answered once");
        }
        if seen.len() < 2_000 {
            assert_ne!(read.read_buf(&mut peer.input).await.unwrap(), 0);
        }
    }
    sending.await.unwrap().unwrap();
    let object = served.world.object_bytes(&made).await;
    let traffic = served.world.faults.take_traffic();
    assert!(traffic.get_bytes() < object * 3 / 2, "{} bytes of an object of {object}", traffic.get_bytes());
}

#[tokio::test(start_paused = true)]
async fn reads_of_one_entry_are_answered_in_their_order() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Hot).await;
    let mut peer = served.connect().await;
    let mut frames = BytesMut::new();
    let target = ReadTarget::Entry(id(2));
    // The fence with a wrong key would be answered at once, if it did not wait for the read before it.
    encode_read_v2(made.ledger, target, None, false, &mut frames);
    encode_read_v2(made.ledger, target, Some(&MasterKey::EMPTY), false, &mut frames);
    peer.send(&frames).await;
    let (statuses, ()) = tokio::join!(
        async {
            let first = decode_response_v2(peer.frame().await.unwrap()).unwrap().status;
            (first, decode_response_v2(peer.frame().await.unwrap()).unwrap().status)
        },
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            served.world.release(&made).await;
        }
    );
    assert_eq!(statuses, (Status::Ok, Status::Unauthorized));
}

#[tokio::test(start_paused = true)]
async fn requests_with_numbers_do_not_wait_for_one_of_the_same_entry() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    let replies = served.world.tiers.send_budget.acquire(u64::MAX).await;
    let mut peer = served.connect().await;
    let mut frames = BytesMut::new();
    let target = ReadTarget::Entry(id(2));
    encode_read_v3(1, made.ledger, target, None, false, &mut frames);
    encode_read_v3(2, made.ledger, target, Some(&MasterKey::EMPTY), false, &mut frames);
    peer.send(&frames).await;
    let first = decode_response_v3(peer.frame().await.unwrap()).unwrap();
    assert_eq!((first.txn, first.status), (2, Status::Unauthorized), "the read before it waits for memory");
    drop(replies);
    let second = decode_response_v3(peer.frame().await.unwrap()).unwrap();
    assert_eq!((second.txn, second.status), (1, Status::Ok));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing_leaves_memory_and_turns_to_others() {
    let served = Served::new(World::new(Sizes { group: 4 << 20, ..Sizes::default() }));
    let (large, other) = (
        served.world.make(7, noise(40, 100_000), On::Released).await,
        served.world.make(8, noise(5, 50), On::Released).await,
    );
    let mut greedy = served.connect().await;
    let mut frames = BytesMut::new();
    for _ in 0..REQUESTS {
        encode_batch_read_v2(&batch_of(large.ledger, 0, None, 5 << 20), &mut frames);
    }
    // What it asks for last is under way when it is stuck.
    encode_read_v2(other.ledger, ReadTarget::Entry(id(1)), None, false, &mut frames);
    greedy.send(&frames).await;
    let fair = (served.world.tiers.send_budget.limit_bytes() / CONNECTION_PARTS).max(FRAME_BYTES_MAX_DEFAULT as u64);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(served.world.tiers.send_budget.used_bytes() <= fair, "a fair part");
        let (mut peer, asked) = (served.connect().await, Instant::now());
        let target = ReadTarget::Entry(id(1));
        assert_eq!(peer.read_v2(other.ledger, target, None).await.status, Status::Ok);
        assert_eq!(peer.batch(batch_of(large.ledger, 0, None, 5 << 20)).await.status, Status::Ok);
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    }
    assert_ne!(served.world.tiers.send_budget.used_bytes(), 0, "it is stuck");
    drop(greedy);
}

#[tokio::test(start_paused = true)]
async fn the_ends_of_many_ledgers_at_once_are_read_by_pages_and_each_once() {
    const LEDGERS: u64 = 40;
    let served = Served::new(World::new(Sizes { group: 8 << 20, ..Sizes::default() }));
    let mut made = Vec::new();
    for number in 0..LEDGERS {
        made.push(served.world.make(number, noise(60, 100_000), On::Released).await);
    }
    let _blocks = served.world.blocks_budget.acquire(u64::MAX).await;
    let _replies = served.world.tiers.send_budget.acquire(u64::MAX).await;
    let _footers = served.world.footers_budget.acquire(u64::MAX).await;
    let asked = Instant::now();
    let auditors = (0..4).map(|_| async {
        let mut peers = Vec::new();
        for made in &made {
            let mut peer = served.connect().await;
            let mut frames = BytesMut::new();
            for entry in [0, 59] {
                encode_read_v3(entry, made.ledger, ReadTarget::Entry(id(entry)), None, false, &mut frames);
            }
            peer.send(&frames).await;
            peers.push(peer);
        }
        for mut peer in peers {
            for _ in 0..2 {
                assert_eq!(decode_response_v3(peer.frame().await.unwrap()).unwrap().status, Status::Ok);
            }
        }
    });
    futures::future::join_all(auditors).await;
    assert!(asked.elapsed() < DEADLINE);
    let traffic = served.world.faults.take_traffic();
    let object = served.world.object_bytes(&made[0]).await;
    assert!(traffic.get_bytes() < LEDGERS * object / 4, "pages, not row groups: {}", traffic.get_bytes());
    // An index and two ends, of two ranges each, once for all who ask at the same time.
    assert!(traffic.gets.len() as u64 <= LEDGERS * 2 * 5, "{} reads", traffic.gets.len());
    assert_eq!(served.ends_used(), 0);
    assert!(served.front.ends.reads.peak_bytes() > 0);
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_takes_the_place_of_the_longest_idle_and_of_nobody_busy() {
    let config = GatewayConfig { bookkeeper_connections_max: 2, ..GatewayConfig::default() };
    let served = Served::with(World::new(Sizes::default()), config);
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    let hot = served.world.make(8, noise(5, 50), On::Hot).await;
    let target = ReadTarget::Entry(id(1));
    let (mut first, mut second) = (served.connect().await, served.connect().await);
    assert_eq!(second.read_v2(made.ledger, target, None).await.status, Status::Ok);
    assert_eq!(first.read_v2(made.ledger, target, None).await.status, Status::Ok);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(first.read_v2(made.ledger, target, None).await.status, Status::Ok);
    // The second has asked for nothing since: it goes.
    let mut third = served.connect().await;
    assert_eq!(third.read_v3(made.ledger, target, None).await.status, Status::Ok);
    assert_eq!(second.frame().await, None);
    // While both wait for answers nobody else gets in.
    let (one, other, ()) =
        tokio::join!(first.read_v2(hot.ledger, target, None), third.read_v3(hot.ledger, target, None), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(served.connect().await.frame().await, None);
        });
    assert_eq!((one.status, other.status), (Status::TooManyRequests, Status::TooManyRequests));
    let fourth = served.connect().await.read_v2(made.ledger, target, None).await;
    assert_eq!(fourth.status, Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn peers_that_break_the_protocol_are_closed() {
    let config = GatewayConfig { bookkeeper_connections_max: 1, ..GatewayConfig::default() };
    let served = Served::with(World::new(Sizes::default()), config);
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    let mut peer = served.connect().await;
    peer.send(&[0, 0, 0, 1, 0x77]).await;
    assert_eq!(peer.frame().await, None);
    // Its place is free again.
    let again = served.connect().await.read_v3(made.ledger, ReadTarget::Entry(id(1)), None).await;
    assert_eq!(again.status, Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_never_finished_does_not_hold_its_connection() {
    let served = Served::new(World::new(Sizes::default()));
    let mut peer = served.connect().await;
    let began = Instant::now();
    peer.send(&[0, 0, 0, 20, 2]).await;
    assert_eq!(peer.frame().await, None);
    assert_eq!(began.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_stop_tells_what_is_under_way_to_come_later_and_is_quick() {
    let served = Served::new(World::new(Sizes::default()));
    let hot = served.world.make(7, noise(5, 50), On::Hot).await;
    let mut peer = served.connect().await;
    let (response, stopped) = tokio::join!(peer.read_v3(hot.ledger, ReadTarget::Entry(id(1)), None), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        served.world.tasks.stop(DEADLINE / 4).await
    });
    assert_eq!(response.status, Status::TooManyRequests);
    stopped.unwrap();
    assert_eq!(peer.frame().await, None);
}

#[tokio::test(start_paused = true)]
async fn ledgers_of_shards_that_others_own_are_served_and_counted() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    assert_eq!(Peer::told(&served, made.ledger, id(1)).await, Status::Ok);
    assert_eq!(served.front.metrics.foreign.get(), 2);
}

#[test]
fn cold_ids_are_refused_to_real_bookies() {
    let id = ledger::ColdId::for_member(unknown(), 0, "cold.thermocline", 3181).unwrap().to_string();
    BookieId::for_real_bookie(&id).unwrap_err();
}

#[test]
fn settings_that_cannot_work_are_named() {
    let refused = |config: GatewayConfig| config.validate().unwrap_err().to_string();
    let small = GatewayConfig { ends_bytes: ByteSize::mib(1), ..GatewayConfig::default() };
    assert!(refused(small).contains("ends_bytes"));
    let none = GatewayConfig { bookkeeper_connections_max: 0, ..GatewayConfig::default() };
    assert!(refused(none).contains("bookkeeper_connections_max"));
    let quick = GatewayConfig { bookkeeper_deadline: Span::millis(1), ..GatewayConfig::default() };
    assert!(refused(quick).contains("bookkeeper_deadline"));
}

fn batch_of(ledger: LedgerId, start: u64, count_max: Option<u32>, bytes_max: u64) -> BatchRead<'static> {
    BatchRead { ledger, start: id(start), request: 77, count_max, bytes_max, fence: None, high_priority: false }
}

#[tokio::test(start_paused = true)]
async fn batches_hold_consecutive_entries_within_what_was_asked_for() {
    let served = Served::new(World::new(Sizes { group: 200 << 10, ..Sizes::default() }));
    let made = served.world.make(7, noise(300, 900), On::Released).await;
    let body = served.body(&made, 0).await.len();
    let mut peer = served.connect().await;
    // The whole ledger, a batch at a time: a batch may be shorter than asked for, but never empty.
    let mut read = 0;
    while read < 300 {
        let response = peer.batch(batch_of(made.ledger, read, None, 1 << 20)).await;
        assert_eq!(response.status, Status::Ok);
        assert!(!response.entries.is_empty());
        for found in response.entries {
            assert_eq!(found, served.body(&made, read).await, "entry {read}");
            read += 1;
        }
    }
    assert_eq!(read, 300, "none beyond the end");
    let (mut read, mut batches) = (0, 0);
    while read < 300 {
        read += peer.batch(batch_of(made.ledger, read, None, 1 << 20)).await.entries.len() as u64;
        batches += 1;
    }
    assert!(batches < 10, "{batches} batches of a ledger of few row groups");
    assert_eq!(peer.batch(batch_of(made.ledger, 3, Some(5), 1 << 20)).await.entries.len(), 5);
    assert_eq!(peer.batch(batch_of(made.ledger, 0, Some(1), 1 << 20)).await.entries.len(), 1);
    let three = (BATCH_HEAD_BYTES + 3 * (BATCH_ENTRY_HEAD_BYTES + body)) as u64;
    assert_eq!(peer.batch(batch_of(made.ledger, 3, None, three)).await.entries.len(), 3);
    assert_eq!(peer.batch(batch_of(made.ledger, 3, None, three - 1)).await.entries.len(), 2);
    assert_eq!(peer.batch(batch_of(made.ledger, 3, None, 0)).await.entries.len(), 1, "one comes whatever its size");
    let beyond = peer.batch(batch_of(made.ledger, 300, None, 1 << 20)).await;
    assert_eq!((beyond.status, beyond.entries), (Status::NoEntry, Vec::new()));
    assert_eq!(peer.batch(batch_of(unknown(), 0, None, 1 << 20)).await.status, Status::NoLedger);
    let (right, wrong) = (MasterKey::derive(b""), MasterKey::EMPTY);
    let fence = |key| BatchRead { fence: Some(key), ..batch_of(made.ledger, 3, Some(2), 1 << 20) };
    assert_eq!(peer.batch(fence(&right)).await.entries.len(), 2);
    assert_eq!(peer.batch(fence(&wrong)).await.status, Status::Unauthorized);
    assert_eq!(served.world.tiers.send_budget.used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn long_polls_of_a_closed_ledger_do_not_wait() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    let patience = Some(Duration::from_secs(3_600));
    let began = Instant::now();
    let mut peer = served.connect().await;
    let poll = |target, previous| {
        move |out: &mut BytesMut| encode_long_poll_v3(1, LedgerId::new(7).unwrap(), target, previous, patience, out)
    };
    let next = peer.ask(poll(PollTarget::Next, Some(id(2)))).await;
    assert_eq!((next.status, next.entry), (Status::Ok, 3));
    assert_eq!(next.payload, PayloadV3::Entry { body: served.body(&made, 3).await, max_lac: Some(id(4)) });
    assert_eq!(peer.ask(poll(PollTarget::Next, None)).await.entry, 0);
    let none = peer.ask(poll(PollTarget::Next, Some(id(4)))).await;
    assert_eq!((none.status, none.payload), (Status::Ok, PayloadV3::Confirmed { max_lac: Some(id(4)) }));
    let read = peer.ask(poll(PollTarget::Read(ReadTarget::Entry(id(1))), Some(id(4)))).await;
    assert_eq!(read.payload, PayloadV3::Entry { body: served.body(&made, 1).await, max_lac: Some(id(4)) });
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn what_auditors_and_writers_ask_is_answered_as_by_a_read_only_bookie() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    let empty = served.world.make_empty(9).await;
    let mut peer = served.connect().await;
    let list = peer.ask(|out| encode_list_entries_v3(1, made.ledger, out)).await;
    let PayloadV3::Entries(entries) = list.payload else { panic!("{list:?}") };
    assert_eq!(entries.runs().collect::<Vec<_>>(), [0..=4]);
    let list = peer.ask(|out| encode_list_entries_v3(1, empty, out)).await;
    let PayloadV3::Entries(entries) = list.payload else { panic!("{list:?}") };
    assert_eq!(entries.runs().count(), 0);
    assert_eq!(peer.ask(|out| encode_list_entries_v3(1, unknown(), out)).await.status, Status::NoLedger);
    let info = peer.ask(|out| encode_bookie_info_v3(1, true, true, out)).await;
    assert_eq!(info.payload, PayloadV3::BookieInfo { total_bytes: Some(0), free_bytes: Some(0) });
    let info = peer.ask(|out| encode_bookie_info_v3(1, false, true, out)).await;
    assert_eq!(info.payload, PayloadV3::BookieInfo { total_bytes: None, free_bytes: Some(0) });
    assert_eq!(peer.ask(|out| encode_force_ledger_v3(1, made.ledger, out)).await.status, Status::Ok);
    let key = MasterKey::derive(b"");
    let lac = Bytes::from([&7_u64.to_be_bytes()[..], &4_u64.to_be_bytes()].concat());
    let written = peer.ask(|out| encode_write_lac_v3(1, made.ledger, Some(id(4)), &key, &lac, out)).await;
    assert_eq!((written.operation, written.status), (Operation::WriteLac, Status::ReadOnly));
}
