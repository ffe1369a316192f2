//! Released ledgers read by BookKeeper's protocol through their cold ids, as clients do that know nothing of tiers: found by their
//! registrations, over the wire, and from another gateway after the one that owned them has died. And read by those that opened
//! them before they were released and go on to ask the bookies, which have dropped them.

use std::sync::Arc;
use std::time::Duration;

use ::config::{ByteSize, Span};
use bookie::{Bookie, BookieConfig, BookieParts, LocalDisk};
use bytes::{Bytes, BytesMut};
use client::{Client, ClientConfig, ClientParts, CreateOptions, OpenMode, Opened};
use cold::{FaultStore, StoreOptions};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{BoxStream, Connector as _, MemoryNetwork, Offer};
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::{BookieId, DigestType, Digester, EntryId, LedgerId, Password, Quorums, Tier};
use metadata::{Bookies, Cluster, GatewayInfo, InstanceId, Ledgers, MemoryStore, MetadataStore};
use offloader::{ClientSource, NoObserver, Offloader, OffloaderConfig, OffloaderParts, WireProbe};
use proto::client::{PayloadV3, decode_response_v2, decode_response_v3, encode_read_v2, encode_read_v3};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, ReadTarget, Status};
use read_gateway::{GatewayConfig, GatewayParts, LedgersService, Registration, Shards};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use crate::support::{eventually, payloads};

/// Within which cold ids lead to a living gateway after theirs has died.
const TAKEN_OVER: Duration = Duration::from_secs(10);

/// Three bookies, an offloader, and gateways that come and go, over one metadata store.
struct World {
    store: Arc<dyn MetadataStore>,
    network: MemoryNetwork,
    objects: FaultStore,
    instance: InstanceId,
    client: Client,
    offloader: Offloader,
    bookies: Vec<Bookie>,
    tasks: TaskTree,
    _dir: TempDir,
}

struct Gateway {
    address: String,
    shards: Shards,
    registration: JoinHandle<()>,
}

impl World {
    async fn start() -> Self {
        Self::start_with(BookieConfig::default()).await
    }

    async fn start_with(config: BookieConfig) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let (network, tasks, rng) = (MemoryNetwork::new(), TaskTree::root("test"), Rng::seeded(1));
        let instance = Cluster::init_or_open(store.as_ref(), &rng).await.unwrap();
        let mut bookies = Vec::new();
        for number in 1..=3 {
            let (id, address) = (format!("bookie-{number}"), format!("bookie-{number}:3181"));
            let dir = dir.path().join(&id);
            let parts = BookieParts {
                id: BookieId::for_real_bookie(&id).unwrap(),
                disk: Arc::new(LocalDisk::open(&dir).await.unwrap()),
                dir,
                metadata: store.clone(),
                connector: Arc::new(network.clone()),
                listener: Box::new(network.listen(&address)),
                clock: Clock::system(),
                rng: rng.fork(),
                budget: ByteBudget::new("bookie", 256 << 20),
                tasks: tasks.child("bookie"),
            };
            bookies.push(Bookie::start(config.clone(), parts).await.unwrap());
        }
        let objects = FaultStore::in_memory();
        let client = client_of(&store, &network, &tasks, &rng);
        let parts = OffloaderParts {
            metadata: store.clone(),
            cold: objects.cold_store(StoreOptions::default(), rng.fork()),
            instance_id: instance.clone(),
            entries: Arc::new(ClientSource::new(client.clone())),
            probe: Arc::new(WireProbe::new(store.clone(), Arc::new(network.clone()), Duration::from_secs(2))),
            clock: Clock::system(),
            rng: rng.fork(),
            budget: ByteBudget::new("offloader", 128 << 20),
            tasks: tasks.child("offloader"),
            observer: Arc::new(NoObserver),
        };
        let offloader = Offloader::new(parts, OffloaderConfig::default()).unwrap();
        Self { store, network, objects, instance, client, offloader, bookies, tasks, _dir: dir }
    }

    fn gateway(&self, id: &str) -> Gateway {
        let rng = Rng::seeded(2);
        let tasks = self.tasks.child("gateway");
        let parts = GatewayParts {
            client: client_of(&self.store, &self.network, &tasks, &rng),
            ledgers: Ledgers::new(self.store.clone()),
            cold: self.objects.cold_store(StoreOptions::default(), rng.fork()),
            instance_id: self.instance.as_str().to_owned(),
            budget: ByteBudget::new("gateway", 256 << 20),
            tasks: tasks.clone(),
        };
        let service = LedgersService::new(parts, GatewayConfig::default());
        let address = format!("{id}:3181");
        service.serve_bookkeeper(Box::new(self.network.listen(&address)));
        let endpoint = format!("http://{id}:9600");
        let info = GatewayInfo { id: id.to_owned(), endpoint, bookkeeper: Some(address.clone()) };
        let shards = service.shards();
        let registration =
            tokio::spawn(Registration::new(self.store.clone(), info, Offer::default(), shards.clone()).run(tasks));
        Gateway { address, shards, registration }
    }

    /// Dies as a process does: nothing of it answers any more, and nobody is told.
    async fn kill(&self, gateway: Gateway) {
        self.network.cut(&gateway.address);
        gateway.registration.abort();
        let _ = gateway.registration.await;
    }

    async fn written(&self, payloads: &[Bytes], password: &Password) -> LedgerId {
        let options = CreateOptions {
            quorums: Quorums::new(3, 2, 2).unwrap(),
            digest: DigestType::Crc32c,
            password: password.clone(),
            custom: Vec::new(),
        };
        let writer = self.client.create(options).await.unwrap();
        let mut appends = Vec::new();
        for payload in payloads {
            appends.push(writer.append(payload.clone()).await.unwrap());
        }
        for append in appends {
            append.await.unwrap();
        }
        writer.close().await.unwrap();
        writer.id()
    }

    /// Where a member of a ledger is registered.
    async fn connect(&self, member: &BookieId) -> Option<BoxStream> {
        let (info, writable) = Bookies::new(self.store.clone()).get(member).await.unwrap()?;
        assert!(!writable, "{member}");
        self.network.connect(&info.address).await.ok()
    }

    /// Reads each entry from each member that the ledger's metadata names, in both versions of the protocol; `None` when a member
    /// leads nowhere.
    async fn read(&self, ledger: LedgerId, entries: u64) -> Option<Vec<Bytes>> {
        let record = Ledgers::new(self.store.clone()).get_quorum(ledger).await.unwrap().unwrap();
        let members = record.metadata.segments()[0].ensemble.clone();
        let mut all: Option<Vec<Bytes>> = None;
        for member in &members {
            for binary in [true, false] {
                let (bodies, confirmed) = read_all(self.connect(member).await?, ledger, entries, binary).await?;
                assert!(binary || confirmed == Some(entries - 1), "all of a closed ledger is confirmed");
                assert!(all.as_ref().is_none_or(|all| *all == bodies), "{member} tells something else");
                all = Some(bodies);
            }
        }
        all
    }

    async fn assert_holds(&self, ledger: LedgerId, payloads: &[Bytes], password: &Password) {
        let bodies = self.read(ledger, payloads.len() as u64).await.unwrap();
        let digester = Digester::new(DigestType::Crc32c, password);
        for ((place, payload), body) in (0..).zip(payloads).zip(bodies) {
            let entry = digester.open(ledger, EntryId::new(place), &body).unwrap();
            assert_eq!(&entry.payload, payload, "entry {place}");
        }
    }
}

fn client_of(store: &Arc<dyn MetadataStore>, network: &MemoryNetwork, tasks: &TaskTree, rng: &Rng) -> Client {
    let parts = ClientParts {
        metadata: store.clone(),
        connector: Arc::new(network.clone()),
        clock: Clock::system(),
        rng: rng.fork(),
        budget: ByteBudget::new("client", 64 << 20),
        tasks: tasks.child("client"),
    };
    Client::new(parts, ClientConfig::default())
}

/// Asks for all entries at once over one connection. Their bodies, and the lowest last-add-confirmed that came with one, which only
/// version 3 tells; a bookie with no more than a part of a ledger may tell less than was confirmed, or nothing. `None` when the
/// connection is lost.
async fn read_all(
    mut stream: BoxStream,
    ledger: LedgerId,
    entries: u64,
    binary: bool,
) -> Option<(Vec<Bytes>, Option<u64>)> {
    let mut frames = BytesMut::new();
    for entry in 0..entries {
        let target = ReadTarget::Entry(EntryId::new(entry).unwrap());
        match binary {
            true => encode_read_v2(ledger, target, None, false, &mut frames),
            false => encode_read_v3(entry, ledger, target, None, false, &mut frames),
        }
    }
    let mut bodies = vec![None; usize::try_from(entries).unwrap()];
    let mut confirmed = Some(u64::MAX);
    let (mut decoder, mut input) = (FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT), BytesMut::new());
    let (mut reader, mut writer) = tokio::io::split(&mut stream);
    let read = async {
        while bodies.iter().any(Option::is_none) {
            let Some(payload) = decoder.decode(&mut input).unwrap() else {
                match reader.read_buf(&mut input).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => continue,
                }
            };
            let (entry, body) = match binary {
                true => {
                    let response = decode_response_v2(payload).unwrap();
                    assert_eq!(response.status, Status::Ok);
                    (response.entry, response.body)
                }
                false => {
                    let response = decode_response_v3(payload).unwrap();
                    assert_eq!(response.status, Status::Ok);
                    let PayloadV3::Entry { body, max_lac } = response.payload else { panic!("no body") };
                    // None is below all.
                    confirmed = confirmed.min(max_lac.map(EntryId::get));
                    (response.entry, body)
                }
            };
            assert_eq!(bodies[usize::try_from(entry).unwrap()].replace(body), None, "answered once");
        }
        Some(())
    };
    let (sent, read) = tokio::join!(writer.write_all(&frames), read);
    sent.ok()?;
    read?;
    Some((bodies.into_iter().collect::<Option<Vec<Bytes>>>()?, confirmed))
}

#[tokio::test(flavor = "multi_thread")]
async fn released_ledgers_are_read_through_cold_ids_also_after_their_gateway_died() {
    let world = World::start().await;
    let (first, second) = (world.gateway("gateway-a"), world.gateway("gateway-b"));
    let password = Password::new("secret");
    let payloads = payloads(1, 400);
    let mut ledgers = Vec::new();
    // Shards of both gateways, surely among so many.
    for _ in 0..8 {
        let ledger = world.written(&payloads, &password).await;
        let report = world.offloader.offload_now(ledger, true).await.unwrap();
        assert_eq!(report.tier, Tier::Released);
        ledgers.push(ledger);
    }
    eventually("each owns its share", async || (first.shards.len(), second.shards.len()) == (32, 32)).await;
    eventually("ids lead to their owners", async || {
        let listed = Bookies::new(world.store.clone()).list().await.unwrap();
        let at = |gateway: &Gateway| listed.iter().filter(|(_, info, _)| info.address == gateway.address).count();
        (at(&first), at(&second)) == (96, 96)
    })
    .await;
    for ledger in &ledgers {
        world.assert_holds(*ledger, &payloads, &password).await;
    }

    let died = Instant::now();
    world.kill(first).await;
    for ledger in &ledgers {
        eventually("a ledger is read again", async || world.read(*ledger, payloads.len() as u64).await.is_some()).await;
    }
    assert!(died.elapsed() <= TAKEN_OVER, "{:?}", died.elapsed());
    for ledger in &ledgers {
        world.assert_holds(*ledger, &payloads, &password).await;
    }
    world.tasks.stop(Duration::from_secs(20)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_gateway_a_ledger_is_settled_and_its_release_waits() {
    let world = World::start().await;
    let (password, payloads) = (Password::empty(), payloads(2, 50));
    let ledger = world.written(&payloads, &password).await;
    let error = world.offloader.offload_now(ledger, true).await.unwrap_err();
    assert_eq!(error.kind(), offloader::ErrorKind::Waiting, "{error}");
    assert!(world.offloader.releases_wait_for().unwrap().contains("owns shard"));
    let record = Ledgers::new(world.store.clone()).get_quorum(ledger).await.unwrap().unwrap();
    assert_eq!(record.metadata.tier(), Tier::Settled);
    let _gateway = world.gateway("gateway-a");
    assert_eq!(world.offloader.offload_now(ledger, true).await.unwrap().tier, Tier::Released);
    assert_eq!(world.offloader.releases_wait_for(), None);
    world.assert_holds(ledger, &payloads, &password).await;
    world.tasks.stop(Duration::from_secs(20)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_opened_before_the_release_is_read_on_from_bookies_that_dropped_it() {
    let config = BookieConfig {
        segment_bytes: ByteSize::kib(256),
        collect_interval: Span::secs(24 * 3600),
        relay_deadline: Span::secs(20),
        ..BookieConfig::default()
    };
    let world = World::start_with(config).await;
    let gateway = world.gateway("gateway-a");
    let (password, payloads) = (Password::new("secret"), payloads(3, 400));
    let ledger = world.written(&payloads, &password).await;
    let opened = world.client.open(ledger, OpenMode::ReadOnly, Some(&password)).await.unwrap();
    let Opened::Hot(handle) = opened else { panic!("it is on the bookies") };
    // What keeps the ledger's segments open goes into others behind them.
    let filler = vec![Bytes::from(vec![7; 4 << 10]); 400];
    world.written(&filler, &Password::empty()).await;
    assert_eq!(world.offloader.offload_now(ledger, true).await.unwrap().tier, Tier::Released);
    eventually("the bookies drop it", async || {
        for bookie in &world.bookies {
            bookie.collect_now().await.unwrap();
        }
        world.bookies.iter().all(|bookie| bookie.stats().tombstones == 1)
    })
    .await;

    let read = |binary| {
        let world = &world;
        async move {
            let mut all: Option<Vec<Bytes>> = None;
            for number in 1..=3 {
                let stream = world.network.connect(&format!("bookie-{number}:3181")).await.unwrap();
                let (bodies, _) = read_all(stream, ledger, 400, binary).await.unwrap();
                assert!(all.as_ref().is_none_or(|all| *all == bodies), "bookie {number} tells something else");
                all = Some(bodies);
            }
            all.unwrap()
        }
    };
    let digester = Digester::new(DigestType::Crc32c, &password);
    for binary in [true, false] {
        for ((place, payload), body) in (0..).zip(&payloads).zip(read(binary).await) {
            let entry = digester.open(ledger, EntryId::new(place), &body).unwrap();
            assert_eq!(&entry.payload, payload, "entry {place}");
        }
    }
    let all = EntryId::ZERO..EntryId::new(400_u64).unwrap();
    let entries: Vec<_> = handle.read(all.clone()).collect().await;
    assert!(entries.iter().zip(&payloads).all(|(read, payload)| read.as_ref().unwrap().entry.payload == *payload));
    assert_eq!(entries.len(), payloads.len());

    // Cold ids move to another gateway, and whoever reads on need not know.
    world.kill(gateway).await;
    let _other = world.gateway("gateway-b");
    assert_eq!(read(true).await.len(), payloads.len());
    world.tasks.stop(Duration::from_secs(20)).await.unwrap();
}
