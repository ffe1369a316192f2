use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::net::{BoxStream, Listener as _, MemoryNetwork};
use ledger::{ColdId, EntryId, LedgerId};
use metadata::{BookieInfo, ColdNames, ColdShards, GatewayInfo, Gateways, LeaseId, MemoryStore, MetadataStore};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, Incoming, Protocol, ReadTarget, Reply, Request, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::error::ErrorKind;
use crate::{ReleaseProbe, Served, WireProbe};

const PATIENCE: Duration = Duration::from_secs(3);
const GATEWAY: &str = "gateway:3181";

/// Metadata in which a shard's ids may be registered, and a network.
struct World {
    store: Arc<dyn MetadataStore>,
    network: MemoryNetwork,
    probe: WireProbe,
    id: ColdId,
}

impl World {
    fn new() -> Self {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let network = MemoryNetwork::new();
        let probe = WireProbe::new(store.clone(), Arc::new(network.clone()), PATIENCE);
        let id = ColdId::for_member(ledger(), 1, "cold.thermocline", 3181).unwrap();
        Self { store, network, probe, id }
    }

    /// A gateway that owns the shard has registered its ids. Returns the lease it lives by.
    async fn register(&self) -> LeaseId {
        let shards = ColdShards::new(self.store.clone());
        let lease = self.store.grant_lease(Duration::from_secs(600)).await.unwrap();
        let owned = shards.claim(&[self.id.shard()], "gateway", lease).await.unwrap()[0];
        let names = ColdNames { domain: "cold.thermocline".to_owned(), port: 3181, members: 3 };
        let info = BookieInfo::at(GATEWAY);
        shards.register(owned, &names, &info, &Default::default()).await.unwrap().unwrap();
        self.gateway(GATEWAY, lease).await;
        lease
    }

    /// The gateway tells that it answers at `address`.
    async fn gateway(&self, address: &str, lease: LeaseId) {
        let endpoint = "http://gateway:9600".to_owned();
        let info = GatewayInfo { id: "gateway".to_owned(), endpoint, bookkeeper: Some(address.to_owned()) };
        Gateways::new(self.store.clone()).register(&info, lease).await.unwrap();
    }

    /// Answers one connection's reads, the last one first.
    fn serve(&self, answer: impl Fn(EntryId) -> Reply + Send + Sync + 'static) {
        let mut listener = self.network.listen(GATEWAY);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, &answer).await;
            }
        });
    }

    async fn read(&self) -> crate::Result<Served> {
        self.probe.read(&self.id, ledger(), &[EntryId::ZERO, entry(9)]).await
    }
}

fn ledger() -> LedgerId {
    LedgerId::new(7).unwrap()
}

fn entry(entry: u64) -> EntryId {
    EntryId::new(entry).unwrap()
}

fn found(entry: EntryId) -> Reply {
    Reply::Read { body: Bytes::from(format!("body of {entry}")), max_lac: None }
}

async fn serve(mut stream: BoxStream, answer: &(impl Fn(EntryId) -> Reply + Send + Sync)) {
    let (mut decoder, mut protocol) = (FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT), Protocol::default());
    let mut input = BytesMut::new();
    let mut asked = Vec::new();
    while !matches!(stream.read_buf(&mut input).await, Ok(0) | Err(_)) {
        while let Some(payload) = decoder.decode(&mut input).unwrap() {
            let Incoming::Request(to, Request::Read { target: ReadTarget::Entry(entry), .. }) =
                proto::decode_request(&mut protocol, payload)
            else {
                panic!("plain reads only")
            };
            asked.push((to, entry));
        }
        if asked.len() == 2 {
            let mut output = BytesMut::new();
            for (to, entry) in asked.drain(..).rev() {
                to.encode(&answer(entry), &mut output);
            }
            stream.write_all(&output).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn entries_come_through_the_registered_address_in_the_order_asked_for() {
    let world = World::new();
    world.register().await;
    world.serve(found);
    let served = world.read().await.unwrap();
    assert_eq!(served.bodies, ["body of 0", "body of 9"]);
    let owner = ColdShards::new(world.store.clone()).owner_quorum(world.id.shard()).await.unwrap().unwrap();
    assert_eq!((served.owned.shard, served.owned.version), (world.id.shard(), owner.version));
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_not_registered_yet_is_waited_for() {
    let world = World::new();
    world.serve(found);
    let error = world.read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    let text = error.to_string();
    assert!(text.contains("ledger 7") && text.contains("is not served") && text.contains("owns shard"), "{text}");
    let (read, ()) = tokio::join!(world.read(), async {
        tokio::time::sleep(PATIENCE / 2).await;
        world.register().await;
    });
    assert_eq!(read.unwrap().bodies.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_the_owner_of_the_shard_proves_nothing() {
    let world = World::new();
    let lease = world.register().await;
    // Whoever has got the address by now would answer rightly, as a bookie that holds the ledger does.
    world.serve(found);
    assert_eq!(world.read().await.unwrap().bodies.len(), 2);

    world.gateway("gateway:4000", lease).await;
    let error = world.read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    assert!(error.to_string().contains("gateway:4000"), "{error}");

    world.store.revoke(lease).await.unwrap();
    let error = world.read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    assert!(error.to_string().contains("is not served"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_gone_silent_or_busy_is_waited_for() {
    let world = World::new();
    world.register().await;
    let error = world.read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    assert!(error.to_string().contains(GATEWAY), "{error}");
    let silent = world.network.listen(GATEWAY);
    assert_eq!(world.read().await.unwrap_err().kind(), ErrorKind::Waiting);
    drop(silent);
    world.serve(|_| Reply::Failed(Status::TooManyRequests));
    let error = world.read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    assert!(error.to_string().contains("TooManyRequests"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_denies_an_entry_stops_the_release() {
    for status in [Status::NoEntry, Status::NoLedger, Status::Io] {
        let world = World::new();
        world.register().await;
        world.serve(move |entry| if entry == EntryId::ZERO { found(entry) } else { Reply::Failed(status) });
        let error = world.read().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{status:?}");
        assert!(error.to_string().contains("entry 9"), "{error}");
    }
}
