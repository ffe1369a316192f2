//! Those who tier: the offloader, the gateway, and the witness who looks at every change of a ledger's record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use cold::ObjectReader;
use common::budget::ByteBudget;
use common::net::{Listener as _, Offer};
use common::rng::Rng;
use config::{ByteSize, Span};
use ledger::{ColdRecord, LedgerId, LedgerMetadata};
use metadata::layout::{ledgers_root, parse_ledger_key};
use metadata::{Cluster, FaultRates, FaultyStore, GatewayInfo, InstanceId, Ledgers, MetadataStore as _, WatchEvent};
use offloader::{ClientSource, Offloader, OffloaderConfig, OffloaderParts, Step, StepObserver, Verdict, WireProbe};
use read_gateway::{GatewayConfig, GatewayParts, LedgersService, Registration};
use tonic::transport::Server;

use crate::net::{SimConnector, SimListener};
use crate::store;
use crate::world::{World, store_options};

/// Their hosts.
pub const OFFLOADER: &str = "offloader";
pub const GATEWAY: &str = "gateway";
/// Where the gateway listens.
pub const GATEWAY_ADDRESS: &str = "gateway:9600";
const GATEWAY_PORT: u16 = 9600;
/// Where it answers BookKeeper's protocol.
const BOOKKEEPER_PORT: u16 = 3181;

/// The metadata service, which loses answers, and beside it the witness, whom nothing is lost on.
pub async fn metadata_host(world: World) -> turmoil::Result {
    let instance = Cluster::init_or_open(&*world.truth, &world.rng.fork()).await?;
    tokio::spawn(witness(world.clone(), instance));
    let rates = FaultRates {
        fail_before: 5,
        applied_unknown: 10,
        not_applied_unknown: 10,
        fail_read: 5,
        delay: 10,
        delay_max: Duration::from_millis(500),
    };
    let store = Arc::new(FaultyStore::new(world.truth.clone(), world.rng.fork(), rates));
    let store = world.metadata_faults.get_or_init(|| store);
    store::serve(store.clone(), world.letters.clone()).await?;
    Ok(())
}

/// One process of the offloader.
pub async fn offloader_host(world: World) -> turmoil::Result {
    world.trace.note("the offloader starts");
    let process = world.process(OFFLOADER);
    let parts = OffloaderParts {
        metadata: process.metadata.clone(),
        cold: process.cold(),
        instance_id: process.instance().await,
        entries: Arc::new(ClientSource::new(process.client())),
        probe: Arc::new(WireProbe::new(process.metadata.clone(), Arc::new(SimConnector), Duration::from_secs(2))),
        clock: process.clock.clone(),
        rng: process.rng.fork(),
        budget: ByteBudget::new("offloader", 128 << 20),
        tasks: process.tasks.clone(),
        observer: Arc::new(Dawdler { world: world.clone(), rng: process.rng.fork() }),
    };
    let config = OffloaderConfig {
        scan_interval: Span::millis(500),
        settle_after: Span::millis(500),
        hot_retention: Span::secs(2),
        memory_max: ByteSize::mib(100),
        owner_ttl: Span::secs(2),
        read_timeout: Span::secs(5),
        probe_timeout: Span::secs(5),
        ledger_deadline: Span::secs(30),
        failure_pause_max: Span::secs(2),
        // A bookie that is down would keep a ledger from being released for the length of the run.
        handle_grace: Span::secs(0),
        ..OffloaderConfig::default()
    };
    let offloader = Offloader::new(parts, config)?;
    offloader.start();
    let cause = process.tasks.failed().await;
    world.history.violation(9, format!("offloader: {cause}"));
    Ok(())
}

/// Takes its time around every step, so that a crash can come between any two.
struct Dawdler {
    world: World,
    rng: Rng,
}

#[async_trait]
impl StepObserver for Dawdler {
    async fn before(&self, ledger: LedgerId, step: Step) -> Verdict {
        self.world.pause(&self.rng, 0..40).await;
        self.world.trace.note(format_args!("offloader: ledger {ledger}: {}", step.name()));
        Verdict::Go
    }

    async fn after(&self, ledger: LedgerId, step: Step) -> Verdict {
        match step {
            Step::ClaimAttempt => self.world.attempts().insert(ledger),
            Step::Commit | Step::Abandon => self.world.attempts().remove(&ledger),
            _ => false,
        };
        self.world.pause(&self.rng, 0..40).await;
        Verdict::Go
    }
}

/// One process of the gateway.
pub async fn gateway_host(world: World) -> turmoil::Result {
    world.trace.note("the gateway starts");
    let process = world.process(GATEWAY);
    let parts = GatewayParts {
        client: process.client(),
        ledgers: Ledgers::new(process.metadata.clone()),
        cold: process.cold(),
        instance_id: process.instance().await.as_str().to_owned(),
        budget: ByteBudget::new("gateway", 256 << 20),
        tasks: process.tasks.clone(),
    };
    let config = GatewayConfig {
        read_timeout: Span::secs(5),
        memory_timeout: Span::secs(5),
        session_idle: Span::secs(5),
        ..GatewayConfig::default()
    };
    let service = LedgersService::new(parts, config);
    let listener = SimListener::bind(GATEWAY, GATEWAY_PORT).await?;
    let cold_ids = SimListener::bind(GATEWAY, BOOKKEEPER_PORT).await?;
    let info = GatewayInfo {
        id: GATEWAY.to_owned(),
        endpoint: format!("http://{GATEWAY_ADDRESS}"),
        bookkeeper: Some(cold_ids.address()),
    };
    service.serve_bookkeeper(Box::new(cold_ids));
    let registration = Registration::new(process.metadata.clone(), info, Offer::default(), service.shards());
    process.tasks.spawn("registration", registration.run(process.tasks.clone()));
    world.gateway_serves.store(true, Ordering::Relaxed);
    Server::builder().add_service(service.into_server()).serve_with_incoming(listener.into_stream()).await?;
    Ok(())
}

/// What the witness remembers of a ledger.
#[derive(Default)]
struct Seen {
    closed: Option<LedgerMetadata>,
    cold: Option<ColdRecord>,
}

/// Looks at each state of each record, at the moment it becomes true: the end of a closed ledger stays what it is, and a record that
/// names an object names one that has every entry.
async fn witness(world: World, instance: InstanceId) {
    let ledgers = Ledgers::new(world.truth.clone());
    let mut events = world.truth.watch(&ledgers_root()).await.expect("a store in memory can be watched");
    let mut seen = BTreeMap::<LedgerId, Seen>::new();
    while let Some(event) = events.next().await {
        let WatchEvent::Put { key, .. } = event else { continue };
        let Some(ledger) = parse_ledger_key(&key) else { continue };
        let Ok(Some(record)) = ledgers.get(ledger).await else { continue };
        let seen = seen.entry(ledger).or_default();
        if let Err(text) = look(&world, &instance, ledger, &record.metadata, seen).await {
            world.history.violation(3, format!("witness: ledger {ledger}: {text}"));
        }
    }
    world.history.violation(9, "the witness saw the watch end".to_owned());
}

async fn look(
    world: &World,
    instance: &InstanceId,
    ledger: LedgerId,
    metadata: &LedgerMetadata,
    seen: &mut Seen,
) -> Result<(), String> {
    if let Some(closed) = &seen.closed
        && (closed.state() != metadata.state() || closed.quorums() != metadata.quorums())
    {
        let text = format!("witness: ledger {ledger} was {:?} and is {:?}", closed.state(), metadata.state());
        world.history.violation(2, text);
    }
    if metadata.is_closed() {
        seen.closed = Some(metadata.clone());
        world.history.sealed(ledger, metadata, "witness");
    }
    let cold = ColdRecord::from_metadata(metadata).map_err(|error| format!("its cold record: {error}"))?;
    match (&seen.cold, cold) {
        (Some(_), None) => return Err("its cold record is gone".to_owned()),
        (None, None) if metadata.is_released() => return Err("it is released without an object".to_owned()),
        (_, None) => return Ok(()),
        (Some(before), Some(now)) if *before == now => {}
        (_, Some(now)) => {
            read_object(world, instance, ledger, metadata, &now).await?;
            world.trace.note(format_args!("witness: ledger {ledger} is settled"));
            world.history.count(|counts| counts.settled += 1);
            seen.cold = Some(now);
        }
    }
    if metadata.is_released() && !world.history.of(ledger).released {
        world.trace.note(format_args!("witness: ledger {ledger} is released"));
        world.history.count(|counts| counts.released += 1);
        world.history.mark(ledger, |history| history.released = true);
    }
    Ok(())
}

/// Reads every entry from the object and compares it with what was sent.
async fn read_object(
    world: &World,
    instance: &InstanceId,
    ledger: LedgerId,
    metadata: &LedgerMetadata,
    record: &ColdRecord,
) -> Result<(), String> {
    let bad = |error: cold::Error| format!("its object: {}", crate::trace::with_causes(&error));
    let store = world.sound_objects.cold_store(store_options(), Rng::seeded(0));
    let object = ObjectReader::open(&store, instance.as_str(), ledger, record).await.map_err(bad)?;
    let expected = metadata.last_entry().map_or(0, |last| last.get() + 1);
    let mut count = 0;
    for group in 0..object.row_groups().len() {
        let group = object.read_group(group).await.map_err(bad)?;
        for place in 0..group.len() {
            let row = group.row(place).map_err(bad)?;
            if row.entry.get() != count {
                return Err(format!("its object has entry {} where {count} belongs", row.entry));
            }
            let payload = row.payload.ok_or_else(|| format!("its object has no payload of entry {count}"))?;
            world.history.read(ledger, row.entry, &payload, "witness");
            count += 1;
        }
    }
    if count == expected { Ok(()) } else { Err(format!("its object has {count} of {expected} entries")) }
}
