//! `cold-read`: how fast one reader gets a settled ledger out of the object store, through a gateway (P5).
//!
//! The store is in this process and answers as a cloud's does: the first byte after about 30 ms, now and then far later, and then 58 MiB a
//! second on each connection. The gateway and its gRPC front are the real ones; its cache is empty when a reading begins. The limit is
//! the same GETs, one for the object's tail and one for each row group, made by the same HTTP client with their bytes dropped, with as
//! many in flight as serves them best.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cold::{AccessKey, CloudOptions, ColdStore, ObjectReader, StoreOptions};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::TcpConnector;
use common::rng::Rng;
use common::shutdown::TaskTree;
use faults::http::Proxy;
use faults::model::StoreModel;
use faults::s3;
use futures::{StreamExt as _, TryStreamExt as _};
use ledger::{
    BookieId, ColdRecord, DigestType, Digester, EntryHeader, EntryId, LedgerId, LedgerMetadata, Password, Quorums,
};
use metadata::{Cluster, InstanceId, Ledgers, MemoryStore, MetadataStore};
use offloader::{EntrySource, EntryStream, NoObserver, Offloader, OffloaderConfig, OffloaderParts, WireProbe};
use tokio::runtime::Runtime;
use url::Url;

use crate::append::ledger_id;
use crate::content::{Content, Pool};
use crate::cpu::{self, CpuTimes};
use crate::gateway::{self, Gateway};
use crate::node::{BUDGET_BYTES, chain, runtime};
use crate::plan::{Error, Plan, Result};
use crate::row::{Better, Fact, Head, Pair, Row, Target, fact};
use crate::timing::now;

/// What P5 asks for: this rate, or this share of the limit.
const MIB_PER_SECOND_MIN: f64 = 590.0;
const SHARE_MIN: f64 = 0.90;
const MIB: f64 = (1 << 20) as f64;
const ENTRY_BYTES: usize = 1 << 10;
/// How many raw GETs are tried to be in flight.
const RAW_IN_FLIGHT: [usize; 4] = [4, 8, 16, 32];
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// Measures P5 at one object size.
///
/// # Errors
/// When store, offloader or gateway fail, or entries do not come back as they were written.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    let (wanted, entries) = plan.scale.pick((5, 512 << 10), (3, 192 << 10), (1, 4 << 10));
    plan.say(format!("cold-read: settle a ledger of {} MiB", (entries * ENTRY_BYTES as u64) >> 20));
    let world = World::make(plan, entries)?;
    let mut common = Vec::new();
    if let Some(server) = &world.server {
        plan.say("cold-read: look at the GETs of one reading");
        common = world.look_at_gets(server)?;
    }
    let mut pairs = Vec::new();
    while plan.go_on(pairs.len(), wanted) {
        plan.say(format!("cold-read, pair {} of {wanted}", pairs.len() + 1));
        let (seconds, mut facts) = world.read_through_gateway(&world.cold)?;
        let (mut best, mut at) = (f64::INFINITY, 0);
        for in_flight in RAW_IN_FLIGHT {
            let raw = world.read_raw(in_flight)?;
            if raw < best {
                (best, at) = (raw, in_flight);
            }
        }
        facts.push(fact("raw GETs in flight at the limit", at as f64, ""));
        facts.extend(common.iter().cloned());
        let stored = world.record.object_bytes as f64 / MIB;
        pairs.push(Pair { value: stored / seconds, limit: stored / best, facts });
    }
    let store = if world.server.is_some() { "30 ms first byte, 58 MiB/s a connection" } else { "the given store" };
    let head = Head {
        id: "P5",
        what: format!(
            "cold sequential read, one reader, 1 KiB entries, incompressible payload, {store}, in stored bytes"
        ),
        unit: "MiB/s",
        better: Better::Higher,
        limit_is: "the same GETs raw: same ranges, same store, same HTTP client, bytes dropped, the best of 4, 8, 16 and 32 in flight",
    };
    let row = Row::of(head, &pairs, plan.scale, |pair, ratio| {
        let met = pair.value >= MIB_PER_SECOND_MIN || ratio >= SHARE_MIN;
        Some(Target { text: "≥ 590 MiB/s, or ≥ 0.90 of the limit".to_owned(), met })
    });
    world.end()?;
    Ok(row.into_iter().collect())
}

/// The store with a settled ledger in it.
struct World {
    store_runtime: Runtime,
    server: Option<s3::Server>,
    cold: Reach,
    metadata: Arc<dyn MetadataStore>,
    instance: InstanceId,
    ledger: LedgerId,
    record: ColdRecord,
    entries: u64,
}

/// How the store is reached.
#[derive(Clone)]
struct Reach {
    url: Url,
    options: StoreOptions,
}

impl Reach {
    fn of_server(server: &s3::Server, endpoint: String) -> Result<Self> {
        let url = Url::parse(&format!("s3://{}/bench", server.bucket())).map_err(Error::at("name the store"))?;
        let key = AccessKey { id: server.access_key().to_owned(), secret: server.secret_key().to_owned() };
        let cloud = CloudOptions {
            endpoint: Some(endpoint),
            region: Some("us-east-1".to_owned()),
            access_key: Some(key),
            allow_http: Some(true),
            ..CloudOptions::default()
        };
        Ok(Self { url, options: StoreOptions { cloud, ..StoreOptions::default() } })
    }

    fn open(&self) -> Result<ColdStore> {
        let opened = ColdStore::open(&self.url, self.options.clone(), Rng::from_os());
        opened.map_err(|error| Error::new("open the store", chain(&error)))
    }
}

impl World {
    fn make(plan: &Plan, entries: u64) -> Result<Self> {
        let store_runtime = runtime("store")?;
        let (server, cold) = match &plan.store {
            Some(url) => (None, Reach { url: url.clone(), options: StoreOptions::default() }),
            None => {
                let options = s3::Options { model: StoreModel::cloud(), seed: 1, ..s3::Options::default() };
                let server =
                    store_runtime.block_on(s3::Server::start(options)).map_err(Error::at("start the store"))?;
                let cold = Reach::of_server(&server, server.endpoint().to_owned())?;
                (Some(server), cold)
            }
        };
        let metadata: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let ledger = ledger_id(1)?;
        let setup = runtime(cpu::OFFLOAD)?;
        let settled = setup.block_on(settle(metadata.clone(), cold.open()?, ledger, entries));
        setup.shutdown_timeout(STOP_DEADLINE);
        let (instance, record) = settled?;
        Ok(Self { store_runtime, server, cold, metadata, instance, ledger, record, entries })
    }

    fn end(self) -> Result<()> {
        let Self { store_runtime, server, .. } = self;
        drop(server);
        store_runtime.shutdown_timeout(STOP_DEADLINE);
        Ok(())
    }

    /// Reads the ledger through a new gateway; seconds, and who used the processor.
    fn read_through_gateway(&self, cold: &Reach) -> Result<(f64, Vec<Fact>)> {
        let gateway = Gateway::start(self.metadata.clone(), cold.open()?, &self.instance)?;
        let reader = runtime(cpu::LOAD)?;
        let (before, begun) = (CpuTimes::now(), now());
        let read = reader.block_on(gateway::read_cold(gateway.address(), self.ledger, self.entries, ENTRY_BYTES));
        let (seconds, after) = (begun.elapsed().as_secs_f64(), CpuTimes::now());
        reader.shutdown_timeout(STOP_DEADLINE);
        gateway.stop()?;
        read?;
        let facts = vec![
            fact("cores of the gateway", after.node_since(&before).as_secs_f64() / seconds, "cores"),
            fact("cores of the reader", after.load_since(&before).as_secs_f64() / seconds, "cores"),
            fact("cores of the store", after.since(&before, &["store"]).as_secs_f64() / seconds, "cores"),
        ];
        Ok((seconds, facts))
    }

    /// One reading through a proxy that logs its requests: not part of any figure, since the proxy takes part of the machine.
    fn look_at_gets(&self, server: &s3::Server) -> Result<Vec<Fact>> {
        let proxy = self.store_runtime.block_on(Proxy::start(server.endpoint()));
        let proxy = proxy.map_err(Error::at("start a proxy before the store"))?;
        let cold = Reach::of_server(server, format!("http://{}", proxy.address()))?;
        let (seconds, _) = self.read_through_gateway(&cold)?;
        let log = proxy.log();
        let bytes: u64 = log.iter().map(|record| record.bytes_down).sum();
        let busy: Duration = log.iter().filter_map(|record| record.duration).sum();
        Ok(vec![
            fact("requests", log.len() as f64, ""),
            fact("GET bytes per object byte", bytes as f64 / self.record.object_bytes as f64, ""),
            fact("GETs in flight, mean", busy.as_secs_f64() / seconds, ""),
        ])
    }

    /// The GETs of a whole reading, raw; seconds.
    fn read_raw(&self, in_flight: usize) -> Result<f64> {
        const PLACE: &str = "read the object raw";
        let reader = runtime(cpu::LOAD)?;
        let failed = |error: cold::Error| Error::new(PLACE, chain(&error));
        let read = reader.block_on(async {
            let cold = self.cold.open()?;
            let object = ObjectReader::open(&cold, self.instance.as_str(), self.ledger, &self.record).await;
            let object = object.map_err(failed)?;
            let ranges: Vec<Range<u64>> = object.row_groups().iter().map(|group| group.range.clone()).collect();
            let (key, bytes) = (object.key().to_owned(), self.record.object_bytes);
            let tail = self.record.footer_offset..bytes;
            // A client that has no connections yet, as the gateway's.
            let cold = self.cold.open()?;
            let begun = now();
            cold.get_range(&key, tail, Some(bytes)).await.map_err(failed)?;
            let gets = futures::stream::iter(ranges).map(|range| {
                let (cold, key) = (cold.clone(), key.clone());
                // A task each: several cores may receive, as in the gateway.
                let get = tokio::spawn(async move { cold.get_range(&key, range, Some(bytes)).await.map(drop) });
                async move { get.await.map_err(Error::at(PLACE))?.map_err(failed) }
            });
            gets.buffer_unordered(in_flight).try_collect::<()>().await?;
            Ok(begun.elapsed().as_secs_f64())
        });
        reader.shutdown_timeout(STOP_DEADLINE);
        read
    }
}

/// Settles a closed ledger whose entries come from memory.
async fn settle(
    metadata: Arc<dyn MetadataStore>,
    cold: ColdStore,
    ledger: LedgerId,
    entries: u64,
) -> Result<(InstanceId, ColdRecord)> {
    const PLACE: &str = "settle a ledger";
    let rng = Rng::from_os();
    let instance =
        Cluster::init_or_open(metadata.as_ref(), &rng).await.map_err(|error| Error::new(PLACE, chain(&error)))?;
    let describe = || -> std::result::Result<LedgerMetadata, ledger::Error> {
        let members = vec![BookieId::for_real_bookie("bench")?];
        let open = LedgerMetadata::open(Quorums::new(1, 1, 1)?, members, DigestType::Crc32c, Password::empty())?;
        open.closed(entries.checked_sub(1).and_then(EntryId::new), entries * ENTRY_BYTES as u64)
    };
    let ledgers = Ledgers::new(metadata.clone());
    ledgers.create(ledger, &describe().map_err(Error::at(PLACE))?).await.map_err(Error::at(PLACE))?;
    let tasks = TaskTree::root("bench-settle");
    let parts = OffloaderParts {
        // Nothing is released here, so it is never asked.
        probe: Arc::new(WireProbe::new(metadata.clone(), Arc::new(TcpConnector), Duration::ZERO)),
        metadata,
        cold,
        instance_id: instance.clone(),
        entries: Arc::new(MemorySource(Pool::new(Content::Incompressible, ENTRY_BYTES))),
        clock: Clock::system(),
        rng,
        budget: ByteBudget::new("bench-offloader", BUDGET_BYTES),
        tasks: tasks.clone(),
        observer: Arc::new(NoObserver),
    };
    let failed = |error: offloader::Error| Error::new(PLACE, chain(&error));
    Offloader::new(parts, OffloaderConfig::default())
        .map_err(failed)?
        .offload_now(ledger, false)
        .await
        .map_err(failed)?;
    tasks.stop(STOP_DEADLINE).await.map_err(Error::at(PLACE))?;
    let record = ledgers.get(ledger).await.map_err(Error::at(PLACE))?;
    let record = record.ok_or_else(|| Error::new(PLACE, "its record is gone"))?;
    let cold = ColdRecord::from_metadata(&record.metadata).map_err(Error::at(PLACE))?;
    Ok((instance, cold.ok_or_else(|| Error::new(PLACE, "its record names no object"))?))
}

/// Entries made as they are asked for.
struct MemorySource(Pool);

#[async_trait]
impl EntrySource for MemorySource {
    async fn read(
        &self,
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        range: Range<EntryId>,
    ) -> offloader::Result<EntryStream> {
        let (pool, digester) = (self.0.clone(), Digester::new(DigestType::Crc32c, &Password::empty()));
        debug_assert_eq!(metadata.digest_type(), Some(DigestType::Crc32c));
        let entries = (range.start.get()..range.end.get()).map(move |number| {
            let entry = EntryId::new(number).unwrap_or(EntryId::ZERO);
            let length = (number + 1) * ENTRY_BYTES as u64;
            let header = EntryHeader { ledger, entry, last_confirmed: entry.prev(), length };
            let body = digester.seal(&header, &pool.payload(number));
            digester.open(ledger, Some(entry), &body).map_err(|error| {
                offloader::Error::new(offloader::ErrorKind::Damaged, format!("make entry {entry}: {error}"))
            })
        });
        Ok(futures::stream::iter(entries).boxed())
    }
}
