//! A cluster in memory: metadata and objects that fail on order, bookies that are a table of entries, a gateway that reads
//! objects.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cold::{ColdStore, FaultStore, ObjectReader, StoreOptions};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::retry::RetryPolicy;
use common::rng::Rng;
use common::shutdown::TaskTree;
use futures::StreamExt;
use futures::future::BoxFuture;
use ledger::{
    BookieId, ColdId, ColdRecord, DigestType, Digester, Entry, EntryHeader, EntryId, LedgerId, LedgerMetadata,
    Password, Quorums,
};
use metadata::{
    Attempts, Catalog, Cluster, ColdShards, Expect, FaultyStore, InstanceId, LedgerRecord, Ledgers, MemoryStore,
    MetadataStore as _, OwnedShard, layout,
};
use object_store::memory::InMemory;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::{Step, StepObserver, Verdict};
use crate::{EntrySource, EntryStream, Offloader, OffloaderConfig, OffloaderParts, ReleaseProbe, Served};

pub(super) const OWNER_TTL: Duration = Duration::from_secs(30);

pub(super) struct World {
    pub(super) store: Arc<FaultyStore>,
    pub(super) objects: FaultStore,
    pub(super) cold: ColdStore,
    pub(super) instance: InstanceId,
    pub(super) ledgers: Ledgers,
    pub(super) attempts: Attempts,
    pub(super) catalog: Catalog,
    pub(super) bookies: Arc<Bookies>,
    pub(super) gateway: Arc<Gateway>,
    pub(super) script: Arc<Script>,
    pub(super) tasks: TaskTree,
    pub(super) offloader: Offloader,
    config: OffloaderConfig,
    seed: u64,
}

pub(super) fn id(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

/// Registers a bookie that sends readers on to the cold tier, or one that does not, as Apache's.
pub(super) async fn register(store: &FaultyStore, bookie: &str, relays: bool) {
    let mut info = ledger::BookieServiceInfo::of_bookie("bk", 3181);
    info.properties.extend(relays.then(|| ("thermocline.relay".to_owned(), "1".to_owned())));
    let key = layout::available_key(&BookieId::new(bookie).unwrap());
    store.put_if(&key, info.encode().into(), Expect::Any).await.unwrap();
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(OffloaderConfig::default()).await
    }

    pub(super) async fn with(config: OffloaderConfig) -> Self {
        let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
        let rng = Rng::seeded(7);
        let instance = Cluster::init_or_open(&*store, &rng).await.unwrap();
        let objects = FaultStore::new(Arc::new(InMemory::new()));
        let options = StoreOptions {
            retry: RetryPolicy {
                initial: Duration::from_millis(1),
                factor: 1.0,
                max: Duration::from_millis(1),
                deadline: Duration::ZERO,
            },
            part_bytes: 1 << 20,
            ..StoreOptions::default()
        };
        let cold = ColdStore::new(Arc::new(objects.clone()), options, rng.clone());
        let ledgers = Ledgers::new(Arc::clone(&store) as _);
        let bookies = Arc::new(Bookies::default());
        let gateway = Arc::new(Gateway {
            cold: cold.clone(),
            instance: instance.clone(),
            ledgers: ledgers.clone(),
            shards: ColdShards::new(Arc::clone(&store) as _),
            answer: Mutex::default(),
            asked: Mutex::default(),
        });
        gateway.claim(&store).await;
        for bookie in ["bk1:3181", "bk2:3181", "bk3:3181"] {
            register(&store, bookie, true).await;
        }
        let script = Arc::new(Script::default());
        let tasks = TaskTree::root("test");
        let parts = OffloaderParts {
            metadata: Arc::clone(&store) as _,
            cold: cold.clone(),
            instance_id: instance.clone(),
            entries: Arc::clone(&bookies) as _,
            probe: Arc::clone(&gateway) as _,
            clock: Clock::following(0),
            rng,
            budget: ByteBudget::new("test", 256 << 20),
            tasks: tasks.clone(),
            observer: Arc::clone(&script) as _,
        };
        let offloader = Offloader::new(parts, config.clone()).unwrap();
        Self {
            attempts: Attempts::new(Arc::clone(&store) as _),
            catalog: Catalog::new(Arc::clone(&store) as _),
            store,
            objects,
            cold,
            instance,
            ledgers,
            bookies,
            gateway,
            script,
            tasks,
            offloader,
            config,
            seed: 7,
        }
    }

    /// Another process with the same stores. The one before is left as it is: its lease runs out unless it keeps it.
    pub(super) fn new_process(&mut self) {
        self.new_process_at(Duration::ZERO);
    }

    /// As above, where the wall clock shows this much more than at the beginning.
    pub(super) fn new_process_at(&mut self, wall: Duration) {
        self.seed += 1;
        self.tasks = TaskTree::root("test");
        self.script = Arc::new(Script::default());
        let parts = OffloaderParts {
            metadata: Arc::clone(&self.store) as _,
            cold: self.cold.clone(),
            instance_id: self.instance.clone(),
            entries: Arc::clone(&self.bookies) as _,
            probe: Arc::clone(&self.gateway) as _,
            clock: Clock::following(u64::try_from(wall.as_millis()).unwrap()),
            rng: Rng::seeded(self.seed),
            budget: ByteBudget::new("test", 256 << 20),
            tasks: self.tasks.clone(),
            observer: Arc::clone(&self.script) as _,
        };
        self.offloader = Offloader::new(parts, self.config.clone()).unwrap();
    }

    /// Makes a closed ledger with entries 0 to `count` - 1 on the bookies.
    pub(super) async fn ledger(&self, ledger: u64, count: u64) -> LedgerId {
        self.ledger_of(ledger, count, DigestType::Crc32c, |metadata| metadata).await
    }

    pub(super) async fn ledger_of(
        &self,
        ledger: u64,
        count: u64,
        digest_type: DigestType,
        change: impl Fn(LedgerMetadata) -> LedgerMetadata,
    ) -> LedgerId {
        let ledger = id(ledger);
        let entries = entries(ledger, count, digest_type);
        let length = entries.last().map_or(0, |entry| entry.header.length);
        self.bookies.tables.lock().unwrap().insert(ledger, entries);
        let metadata = open_metadata(digest_type).closed(EntryId::new(count.wrapping_sub(1)), length).unwrap();
        self.ledgers.create(ledger, &change(metadata)).await.unwrap();
        ledger
    }

    /// Makes an open ledger.
    pub(super) async fn open_ledger(&self, ledger: u64) -> LedgerId {
        self.ledgers.create(id(ledger), &open_metadata(DigestType::Crc32c)).await.unwrap();
        id(ledger)
    }

    pub(super) async fn record(&self, ledger: LedgerId) -> LedgerRecord {
        self.ledgers.get_quorum(ledger).await.unwrap().unwrap()
    }

    pub(super) async fn cold_record(&self, ledger: LedgerId) -> Option<ColdRecord> {
        ColdRecord::from_metadata(&self.record(ledger).await.metadata).unwrap()
    }

    pub(super) async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for prefix in 0..=u8::MAX {
            let found = self.cold.list(&format!("{prefix:02x}"), None, 1000).await.unwrap();
            keys.extend(found.into_iter().map(|facts| facts.key));
        }
        keys
    }

    pub(super) async fn abandoned(&self) -> Vec<String> {
        let found = self.attempts.list_abandoned(None, 1000).await.unwrap();
        found.into_iter().map(|record| record.attempt.key).collect()
    }

    /// The whole ledger, from its object or from bookies, whichever its record allows; fails when neither has it all.
    pub(super) async fn assert_readable(&self, ledger: LedgerId) {
        let record = self.record(ledger).await;
        let expected = self.bookies.tables.lock().unwrap()[&ledger].clone();
        if let Some(cold) = ColdRecord::from_metadata(&record.metadata).unwrap() {
            let reader = ObjectReader::open(&self.cold, self.instance.as_str(), ledger, &cold).await.unwrap();
            assert_eq!(reader.entries(), expected.len() as u64);
            for entry in &expected {
                let row = reader.read_entry(entry.header.entry).await.unwrap().unwrap();
                assert_eq!(row.to_entry().as_ref(), Some(entry));
            }
        } else {
            assert!(!record.metadata.is_released(), "released without an object");
        }
    }

    /// No attempt runs, every object is named by a ledger or condemned, and nothing was deleted.
    pub(super) async fn assert_tidy(&self) {
        assert!(self.attempts.list(None, 10).await.unwrap().is_empty(), "an attempt runs");
        let abandoned = self.abandoned().await;
        let named: Vec<String> =
            self.catalog.list(None, 1000).await.unwrap().into_iter().map(|entry| entry.key).collect();
        for key in self.keys().await {
            assert!(abandoned.contains(&key) != named.contains(&key), "{key}: named and condemned, or neither");
        }
        assert_eq!(self.objects.take_traffic().deletes, 0, "nothing is deleted");
    }
}

pub(super) fn open_metadata(digest_type: DigestType) -> LedgerMetadata {
    let members = ["bk1:3181", "bk2:3181", "bk3:3181"].map(|id| BookieId::new(id).unwrap()).to_vec();
    LedgerMetadata::open(Quorums::new(3, 3, 2).unwrap(), members, digest_type, Password::new("pw")).unwrap()
}

fn entries(ledger: LedgerId, count: u64, digest_type: DigestType) -> Vec<Entry> {
    let digester = Digester::new(digest_type, &Password::new("pw"));
    let mut length = 0;
    (0..count)
        .map(|place| {
            let entry = EntryId::new(place).unwrap();
            let payload = Bytes::from(format!("payload {place} of {ledger} {}", "x".repeat((place % 97) as usize)));
            length += payload.len() as u64;
            let header = EntryHeader { ledger, entry, last_confirmed: entry.prev(), length };
            digester.open(ledger, Some(entry), &digester.seal(&header, &payload)).unwrap()
        })
        .collect()
}

/// What bookies answer.
#[derive(Default)]
pub(super) struct Bookies {
    pub(super) tables: Mutex<BTreeMap<LedgerId, Vec<Entry>>>,
    /// After this many entries the stream says nothing more.
    pub(super) hang_after: Mutex<Option<usize>>,
    /// After this many entries the stream fails.
    pub(super) fail_after: Mutex<Option<usize>>,
    pub(super) reads: Mutex<u64>,
}

#[async_trait]
impl EntrySource for Bookies {
    async fn read(&self, ledger: LedgerId, _: &LedgerMetadata, range: Range<EntryId>) -> Result<EntryStream> {
        *self.reads.lock().unwrap() += 1;
        let table = self.tables.lock().unwrap().get(&ledger).cloned().unwrap_or_default();
        let mut entries: Vec<Result<Entry>> =
            table.into_iter().filter(|entry| range.contains(&entry.header.entry)).map(Ok).collect();
        if let Some(count) = *self.fail_after.lock().unwrap() {
            entries.truncate(count);
            entries.push(Err(Error::new(ErrorKind::Unavailable, "read: no replica answers")));
        }
        if let Some(count) = *self.hang_after.lock().unwrap() {
            entries.truncate(count);
            return Ok(futures::stream::iter(entries).chain(futures::stream::pending()).boxed());
        }
        Ok(futures::stream::iter(entries).boxed())
    }
}

/// A gateway that reads the object which the ledger's record names.
pub(super) struct Gateway {
    cold: ColdStore,
    instance: InstanceId,
    ledgers: Ledgers,
    shards: ColdShards,
    /// What the last of the three cold ids answers.
    pub(super) answer: Mutex<GatewayAnswer>,
    /// Members and entries asked for.
    pub(super) asked: Mutex<Vec<(u32, EntryId)>>,
}

impl Gateway {
    /// Owns all shards from here on.
    pub(super) async fn claim(&self, store: &FaultyStore) {
        let lease = store.grant_lease(Duration::from_secs(1_000_000)).await.unwrap();
        let all: Vec<u8> = (0..ledger::COLD_SHARDS).collect();
        for (shard, owner) in self.shards.owners().await.unwrap() {
            self.shards.give_up(OwnedShard { shard, version: owner.version }).await.unwrap();
        }
        assert_eq!(self.shards.claim(&all, "gateway", lease).await.unwrap().len(), all.len());
    }

    async fn owned(&self, shard: u8) -> OwnedShard {
        let owner = self.shards.owner_quorum(shard).await.unwrap().unwrap();
        OwnedShard { shard, version: owner.version }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum GatewayAnswer {
    #[default]
    True,
    OtherBytes,
    Nothing,
    Refuses,
    Waits,
    Hangs,
}

#[async_trait]
impl ReleaseProbe for Gateway {
    async fn read(&self, id: &ColdId, ledger: LedgerId, entries: &[EntryId]) -> Result<Served> {
        self.asked.lock().unwrap().extend(entries.iter().map(|entry| (id.index(), *entry)));
        let answer = if id.index() == 2 { *self.answer.lock().unwrap() } else { GatewayAnswer::True };
        match answer {
            GatewayAnswer::Waits => return Err(Error::new(ErrorKind::Waiting, "nobody owns the shard")),
            GatewayAnswer::Refuses => return Err(Error::new(ErrorKind::Damaged, "gateway: an I/O error")),
            GatewayAnswer::Hangs => std::future::pending().await,
            GatewayAnswer::Nothing => return Ok(Served { bodies: Vec::new(), owned: self.owned(id.shard()).await }),
            GatewayAnswer::True | GatewayAnswer::OtherBytes => {}
        }
        let record = self.ledgers.get(ledger).await.unwrap().unwrap();
        let cold = ColdRecord::from_metadata(&record.metadata).unwrap().unwrap();
        let reader = ObjectReader::open(&self.cold, self.instance.as_str(), ledger, &cold).await.unwrap();
        let mut bodies = Vec::new();
        for entry in entries {
            let row = reader.read_entry(*entry).await.unwrap().unwrap();
            bodies.push(row.rebuild_body().unwrap());
        }
        if answer == GatewayAnswer::OtherBytes {
            let mut last = bodies.pop().unwrap().to_vec();
            *last.last_mut().unwrap() ^= 1;
            bodies.push(last.into());
        }
        Ok(Served { bodies, owned: self.owned(id.shard()).await })
    }
}

type Action = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// Ends jobs at steps, or does something there; each order is carried out once.
#[derive(Default)]
pub(super) struct Script {
    halts: Mutex<Vec<(Step, bool)>>,
    actions: Mutex<Vec<(Step, Action)>>,
    pub(super) seen: Mutex<Vec<Step>>,
}

impl Script {
    pub(super) fn halt(&self, step: Step, after: bool) {
        self.halts.lock().unwrap().push((step, after));
    }

    /// Does something before a step.
    pub(super) fn before<F>(&self, step: Step, action: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.actions.lock().unwrap().push((step, Box::new(move || Box::pin(action()))));
    }

    pub(super) fn count(&self, step: Step) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| **seen == step).count()
    }

    fn halted(&self, step: Step, after: bool) -> Verdict {
        let mut halts = self.halts.lock().unwrap();
        match halts.iter().position(|halt| *halt == (step, after)) {
            Some(place) => {
                halts.remove(place);
                Verdict::Halt
            }
            None => Verdict::Go,
        }
    }
}

#[async_trait]
impl StepObserver for Script {
    async fn before(&self, _: LedgerId, step: Step) -> Verdict {
        self.seen.lock().unwrap().push(step);
        let action = {
            let mut actions = self.actions.lock().unwrap();
            actions.iter().position(|(at, _)| *at == step).map(|place| actions.remove(place).1)
        };
        if let Some(action) = action {
            action().await;
        }
        self.halted(step, false)
    }

    async fn after(&self, _: LedgerId, step: Step) -> Verdict {
        self.halted(step, true)
    }
}
