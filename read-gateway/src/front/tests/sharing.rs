//! What peers that take nothing, or have gone, leave to others.

use super::*;

/// The first connections are of one host, the others of hosts of their own.
struct Crowd<L> {
    inner: L,
    crowd: usize,
    came: usize,
}

#[async_trait::async_trait]
impl<L: Listener> Listener for Crowd<L> {
    async fn accept(&mut self) -> std::io::Result<(BoxStream, String)> {
        let (stream, _) = self.inner.accept().await?;
        self.came += 1;
        let host = if self.came <= self.crowd { 1 } else { self.came };
        Ok((stream, format!("10.0.0.{host}:{}", self.came)))
    }

    fn address(&self) -> String {
        self.inner.address()
    }
}

fn crowded(world: World, crowd: usize) -> Served {
    Served::behind(world, GatewayConfig::default(), |inner| Box::new(Crowd { inner, crowd, came: 0 }))
}

const CROWD: usize = 8;

#[tokio::test(start_paused = true)]
async fn all_connections_of_a_host_that_takes_nothing_leave_memory_to_others() {
    let served = crowded(World::new(Sizes { group: 4 << 20, ..Sizes::default() }), CROWD);
    let (large, other) = (
        served.world.make(7, noise(40, 100_000), On::Released).await,
        served.world.make(8, noise(5, 50), On::Released).await,
    );
    let mut greedy = Vec::new();
    for _ in 0..CROWD {
        let mut peer = served.connect().await;
        let mut frames = BytesMut::new();
        for _ in 0..REQUESTS {
            encode_batch_read_v2(&batch_of(large.ledger, 0, None, 5 << 20), &mut frames);
        }
        peer.send(&frames).await;
        greedy.push(peer);
    }
    let fair = (served.world.tiers.send_budget.limit_bytes() / HOST_PARTS).max(FRAME_BYTES_MAX_DEFAULT as u64);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(served.world.tiers.send_budget.used_bytes() <= fair, "a fair part");
        let (mut peer, asked) = (served.connect().await, Instant::now());
        let target = ReadTarget::Entry(id(1));
        assert_eq!(peer.read_v2(other.ledger, target, None).await.status, Status::Ok);
        assert_eq!(peer.batch(batch_of(large.ledger, 0, None, 5 << 20)).await.status, Status::Ok);
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    }
    assert_ne!(served.world.tiers.send_budget.used_bytes(), 0, "it is stuck");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_takes_no_ends_leaves_room_for_those_of_others() {
    let served = crowded(World::new(Sizes::default()), CROWD);
    let made = served.world.make(7, noise(10, 100_000), On::Released).await;
    let _replies = served.world.tiers.send_budget.acquire(u64::MAX).await;
    let mut greedy = Vec::new();
    for _ in 0..CROWD {
        let mut peer = served.connect().await;
        let mut frames = BytesMut::new();
        for txn in 0..REQUESTS as u64 {
            encode_read_v3(txn, made.ledger, ReadTarget::Last, None, false, &mut frames);
        }
        peer.send(&frames).await;
        greedy.push(peer);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_ne!(served.front.ends.replies.used_bytes(), 0, "it is stuck");
    assert_eq!(Peer::told(&served, made.ledger, id(0)).await, Status::Ok);
    assert!(served.front.ends.replies.used_bytes() < 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn reads_of_ends_that_were_given_up_stand_in_no_line() {
    let served = Served::new(World::new(Sizes::default()));
    let _blocks = served.world.blocks_budget.acquire(u64::MAX).await;
    for (number, budget) in [(7, &served.front.ends.reads), (8, &served.front.ends.indexes)] {
        let _footers = served.world.footers_budget.acquire(u64::MAX).await;
        let made = served.world.make(number, noise(300, 900), On::Released).await;
        let _used_up = budget.acquire(u64::MAX).await;
        for entry in [0, 299] {
            let (mut peer, target) = (served.connect().await, ReadTarget::Entry(id(entry)));
            assert_eq!(peer.read_v2(made.ledger, target, None).await.status, Status::TooManyRequests);
            assert!(budget.waits() > 0);
            // Told at the deadline; its reads end with the next turn of theirs.
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(budget.waiting(), 0, "{budget:?}");
        }
    }
    assert_eq!(served.ends_used(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_row_group_is_held_while_an_end_waits_for_memory() {
    // An entry larger than the memory for ends is read as others are.
    let config = GatewayConfig { ends_bytes: ByteSize::kib(64), ..GatewayConfig::default() };
    let served = Served::with(World::new(Sizes::default()), config);
    let made = served.world.make(7, noise(3, 50_000), On::Released).await;
    let held = served.front.ends.reads.acquire(1).await;
    let mut peer = served.connect().await;
    let target = ReadTarget::Entry(id(2));
    let (told, ()) = tokio::join!(peer.read_v2(made.ledger, target, None), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(served.front.ends.reads.waiting(), 1);
        assert_eq!(served.world.blocks_budget.used_bytes(), 0, "a block is held by somebody who waits");
        drop(held);
    });
    assert_eq!((told.status, told.body), (Status::Ok, served.body(&made, 2).await));
    assert_eq!(served.ends_used(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_in_memory_is_not_read_again_for_want_of_room() {
    let served = Served::new(World::new(Sizes::default()));
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    let mut peer = served.connect().await;
    for entry in [0, 4] {
        assert!(!peer.batch(batch_of(made.ledger, entry, None, 1 << 20)).await.entries.is_empty());
    }
    let _replies = served.world.tiers.send_budget.acquire(u64::MAX).await;
    served.world.faults.take_traffic();
    assert_eq!(Peer::told(&served, made.ledger, id(4)).await, Status::Ok);
    let full = served.front.ends.replies.acquire(u64::MAX).await;
    let (told, ()) = tokio::join!(peer.read_v2(made.ledger, ReadTarget::Entry(id(0)), None), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(full);
    });
    assert_eq!((told.status, told.body), (Status::Ok, served.body(&made, 0).await));
    assert_eq!(served.world.faults.take_traffic().gets.len(), 0, "it was in memory");
    assert_eq!(served.ends_used(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_has_to_go_does_not_stay_by_taking_its_answer_slowly() {
    let config = GatewayConfig { bookkeeper_connections_max: 1, ..GatewayConfig::default() };
    let served = Served::with(World::new(Sizes { group: 4 << 20, ..Sizes::default() }), config);
    let made = served.world.make(7, noise(5, 400_000), On::Released).await;
    let mut peer = served.connect().await;
    assert_eq!(peer.read_v2(made.ledger, ReadTarget::Entry(id(1)), None).await.status, Status::Ok);
    let _newcomer = served.connect().await;
    let mut frame = BytesMut::new();
    encode_read_v2(made.ledger, ReadTarget::Entry(id(1)), None, false, &mut frame);
    peer.send(&frame).await;
    // Some of it every second, which is why it is never stuck.
    let (mut taken, mut some) = (0, [0; 1024]);
    for _ in 0..35 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        taken += peer.stream.read(&mut some).await.unwrap();
    }
    let mut rest = Vec::new();
    let drained = tokio::time::timeout(Duration::from_secs(1), peer.stream.read_to_end(&mut rest)).await;
    drained.expect("it was closed before").unwrap();
    assert!(taken >= 20 << 10, "it was served: {taken} bytes");
    assert!(taken + rest.len() < 400_000, "it got {taken} and {} bytes", rest.len());
    assert_eq!(served.front.metrics.evicted.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_has_to_go_is_answered_what_it_asked_before() {
    let config = GatewayConfig { bookkeeper_connections_max: 1, ..GatewayConfig::default() };
    let served = Served::with(World::new(Sizes::default()), config);
    let made = served.world.make(7, noise(5, 50), On::Released).await;
    let (target, mut peer) = (ReadTarget::Entry(id(1)), served.connect().await);
    assert_eq!(peer.read_v2(made.ledger, target, None).await.status, Status::Ok);
    // The newcomer is taken in before the connection finds the request, and the connection is idle until then.
    let mut newcomer = served.connect().await;
    assert_eq!(peer.read_v2(made.ledger, target, None).await.status, Status::Ok);
    assert_eq!(peer.frame().await, None);
    assert_eq!(served.front.metrics.evicted.get(), 1);
    assert_eq!(newcomer.read_v2(made.ledger, target, None).await.status, Status::Ok);
}
