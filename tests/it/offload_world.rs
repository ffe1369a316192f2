//! One closed ledger, an offloader, and an object store reached over HTTP: what an offload needs and nothing else, so that every
//! request of it can be named and made to fail.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cold::{AccessKey, CloudOptions, ColdStore, ObjectReader, StoreOptions, verify_object};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::retry::RetryPolicy;
use common::rng::Rng;
use common::shutdown::TaskTree;
use futures::StreamExt as _;
use ledger::{
    BookieId, ColdId, ColdRecord, DigestType, Digester, Entry, EntryHeader, EntryId, LedgerId, LedgerMetadata,
    Password, Quorums, Tier,
};
use metadata::{
    Attempts, Catalog, Cluster, ColdShards, CommitError, Committed, FaultKind, FaultyStore, InstanceId, Key, LeaseId,
    Ledgers, MemoryStore, MetadataStore, OwnedShard, Transaction, Versioned, WatchStream,
};
use offloader::{
    EntrySource, EntryStream, Error, NoObserver, Offloader, OffloaderConfig, OffloaderParts, ReleaseProbe, Served,
};
use url::Url;

/// Orders of an offload before it must be through.
const TRIES_MAX: usize = 6;

/// A store over HTTP as a test reaches it: quick to give up.
pub fn store_options(endpoint: &str, key: (&str, &str), part_bytes: u64, request_retries: usize) -> StoreOptions {
    StoreOptions {
        retry: RetryPolicy {
            initial: Duration::from_millis(1),
            factor: 2.0,
            max: Duration::from_millis(10),
            deadline: Duration::from_millis(100),
        },
        request_deadline: Duration::from_secs(20),
        part_bytes,
        // One after the other, so that the n-th request is the same in every run.
        parts_in_flight: 1,
        cloud: CloudOptions {
            endpoint: Some(endpoint.to_owned()),
            region: Some("us-east-1".to_owned()),
            access_key: Some(AccessKey { id: key.0.to_owned(), secret: key.1.to_owned() }),
            request_retries: Some(request_retries),
            ..CloudOptions::default()
        },
        ..StoreOptions::default()
    }
}

pub fn open(url: &str, options: StoreOptions) -> ColdStore {
    ColdStore::open(&Url::parse(url).unwrap(), options, Rng::seeded(3)).unwrap()
}

/// A metadata store that lets its n-th commit, or its n-th read, fail in one way.
pub struct AtNth {
    inner: FaultyStore,
    commits: AtomicU64,
    reads: AtomicU64,
    order: Mutex<Option<(u64, FaultKind)>>,
}

impl AtNth {
    fn new() -> Self {
        Self {
            inner: FaultyStore::scripted(Arc::new(MemoryStore::new())),
            commits: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            order: Mutex::default(),
        }
    }

    /// Counts from here; the `n`-th call from 1 that `kind` can befall gets it.
    pub fn arm(&self, order: Option<(u64, FaultKind)>) {
        self.commits.store(0, Ordering::SeqCst);
        self.reads.store(0, Ordering::SeqCst);
        *self.order.lock().unwrap() = order;
    }

    /// Commits and reads since.
    pub fn counts(&self) -> (u64, u64) {
        (self.commits.load(Ordering::SeqCst), self.reads.load(Ordering::SeqCst))
    }

    /// Whether the order was carried out.
    pub fn is_spent(&self) -> bool {
        self.order.lock().unwrap().is_none() && self.inner.outstanding() == 0
    }

    fn pass(&self, read: bool) {
        let counter = if read { &self.reads } else { &self.commits };
        let now = counter.fetch_add(1, Ordering::SeqCst) + 1;
        let mut order = self.order.lock().unwrap();
        if let Some((n, kind)) = *order
            && n == now
            && (kind == FaultKind::FailRead) == read
        {
            *order = None;
            self.inner.fail_next(kind);
        }
    }
}

#[async_trait]
impl MetadataStore for AtNth {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, metadata::Error> {
        self.pass(true);
        self.inner.get(key).await
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, metadata::Error> {
        self.pass(true);
        self.inner.get_quorum(key).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        self.pass(false);
        self.inner.commit(transaction).await
    }

    async fn list(
        &self,
        prefix: &Key,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Versioned)>, metadata::Error> {
        self.pass(true);
        self.inner.list(prefix, after, limit).await
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, metadata::Error> {
        self.inner.watch(prefix).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, metadata::Error> {
        self.inner.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), metadata::Error> {
        self.inner.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), metadata::Error> {
        self.inner.revoke(lease).await
    }
}

struct Bookies(Vec<Entry>);

#[async_trait]
impl EntrySource for Bookies {
    async fn read(
        &self,
        _: LedgerId,
        _: &LedgerMetadata,
        range: Range<EntryId>,
    ) -> Result<EntryStream, offloader::Error> {
        let entries: Vec<_> =
            self.0.iter().filter(|entry| range.contains(&entry.header.entry)).cloned().map(Ok).collect();
        Ok(futures::stream::iter(entries).boxed())
    }
}

/// Reads a released ledger's entries from its object, as a gateway does.
struct Gateway {
    cold: ColdStore,
    instance: InstanceId,
    ledgers: Ledgers,
    shards: ColdShards,
}

#[async_trait]
impl ReleaseProbe for Gateway {
    async fn read(&self, id: &ColdId, ledger: LedgerId, entries: &[EntryId]) -> Result<Served, Error> {
        let failed = |error: &dyn std::error::Error| Error::new(offloader::ErrorKind::Unavailable, error.to_string());
        let record = self.ledgers.get_quorum(ledger).await.map_err(|error| failed(&error))?.unwrap();
        let cold = ColdRecord::from_metadata(&record.metadata).unwrap().unwrap();
        let reader = ObjectReader::open(&self.cold, self.instance.as_str(), ledger, &cold).await;
        let reader = reader.map_err(|error| failed(&error))?;
        let mut bodies = Vec::new();
        for entry in entries {
            let row = reader.read_entry(*entry).await.map_err(|error| failed(&error))?;
            bodies.push(row.unwrap().rebuild_body().unwrap());
        }
        let owner = self.shards.owner_quorum(id.shard()).await.map_err(|error| failed(&error))?.unwrap();
        Ok(Served { bodies, owned: OwnedShard { shard: id.shard(), version: owner.version } })
    }
}

/// The world.
pub struct World {
    pub metadata: Arc<AtNth>,
    pub ledger: LedgerId,
    instance: InstanceId,
    entries: Vec<Entry>,
    offloader: Offloader,
    ledgers: Ledgers,
    attempts: Attempts,
    catalog: Catalog,
    tasks: TaskTree,
}

/// What an offload came to.
pub struct Outcome {
    /// How many orders it took.
    pub tries: usize,
    /// The key of the object that the ledger names.
    pub key: String,
    /// Keys of objects that abandoned attempts condemn.
    pub condemned: Vec<String>,
}

impl World {
    /// A ledger of `entries` entries of about `payload_bytes` that do not compress, and an offloader that settles into `cold`.
    pub async fn new(cold: &ColdStore, entries: u64, payload_bytes: usize) -> Self {
        let store = Arc::new(AtNth::new());
        let rng = Rng::seeded(11);
        let instance = Cluster::init_or_open(&*store, &rng).await.unwrap();
        let ledgers = Ledgers::new(Arc::clone(&store) as _);
        let ledger = LedgerId::new(7).unwrap();
        let entries = sealed(ledger, entries, payload_bytes);
        let last = entries.last().unwrap();
        let members = ["bk1:3181", "bk2:3181", "bk3:3181"].map(|id| BookieId::new(id).unwrap()).to_vec();
        let quorums = Quorums::new(3, 3, 2).unwrap();
        let open = LedgerMetadata::open(quorums, members, DigestType::Crc32c, Password::new("pw")).unwrap();
        let closed = open.closed(Some(last.header.entry), last.header.length).unwrap();
        ledgers.create(ledger, &closed).await.unwrap();
        let tasks = TaskTree::root("test");
        let shards = ColdShards::new(Arc::clone(&store) as _);
        let lease = store.grant_lease(Duration::from_secs(1_000_000)).await.unwrap();
        let all: Vec<u8> = (0..ledger::COLD_SHARDS).collect();
        shards.claim(&all, "gateway", lease).await.unwrap();
        let gateway = Gateway { cold: cold.clone(), instance: instance.clone(), ledgers: ledgers.clone(), shards };
        let parts = OffloaderParts {
            metadata: Arc::clone(&store) as _,
            cold: cold.clone(),
            instance_id: instance.clone(),
            entries: Arc::new(Bookies(entries.clone())),
            probe: Arc::new(gateway),
            clock: Clock::system(),
            rng,
            budget: ByteBudget::new("test", 256 << 20),
            tasks: tasks.clone(),
            observer: Arc::new(NoObserver),
        };
        // The ledger's bookies are a table of entries, registered nowhere.
        let config = OffloaderConfig { handle_grace: config::Span::secs(0), ..OffloaderConfig::default() };
        let offloader = Offloader::new(parts, config).unwrap();
        Self {
            attempts: Attempts::new(Arc::clone(&store) as _),
            catalog: Catalog::new(Arc::clone(&store) as _),
            metadata: store,
            ledger,
            instance,
            entries,
            offloader,
            ledgers,
            tasks,
        }
    }

    /// Orders settling and release until both are done. Returns how many orders it took.
    pub async fn offload_only(&self, what: &str) -> usize {
        for tries in 1..=TRIES_MAX {
            match self.offloader.offload_now(self.ledger, true).await {
                // A release whose answer was lost is found done by the next order.
                Ok(report) if report.tier == Tier::Released => return tries,
                Ok(report) => panic!("{what}: neither an error nor released: {report:?}"),
                Err(error) => assert_ne!(error.kind(), offloader::ErrorKind::Damaged, "{what}: {error}"),
            }
        }
        panic!("{what}: still not released after {TRIES_MAX} orders");
    }

    /// As [`World::offload_only`], then proves through `direct`, past every fault, that all is as it must be: one object is named, it
    /// is whole, it has what was written, and no attempt is left.
    pub async fn offload(&self, what: &str, direct: &ColdStore) -> Outcome {
        let tries = self.offload_only(what).await;
        self.metadata.arm(None);
        let record = self.ledgers.get_quorum(self.ledger).await.unwrap().unwrap();
        assert!(record.metadata.is_released(), "{what}");
        let cold = ColdRecord::from_metadata(&record.metadata).unwrap().unwrap();
        let key = cold.object_key(self.instance.as_str(), self.ledger);
        let named = self.catalog.list(None, 100).await.unwrap();
        assert_eq!(named.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), [key.as_str()], "{what}");
        assert!(self.attempts.list(None, 10).await.unwrap().is_empty(), "{what}: an attempt runs");
        let budget = ByteBudget::new("test", 256 << 20);
        verify_object(direct, self.instance.as_str(), self.ledger, &(&cold).into(), &budget)
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let reader = ObjectReader::open(direct, self.instance.as_str(), self.ledger, &cold).await.unwrap();
        let mut counted = 0;
        for group in 0..reader.row_groups().len() {
            let rows = reader.read_group(group).await.unwrap();
            let range = rows.first()..rows.last().next();
            for (row, entry) in rows.rows(range.clone()).zip(self.expected(&range)) {
                assert_eq!(row.unwrap().to_entry().as_ref(), Some(entry), "{what}");
                counted += 1;
            }
        }
        let written = self.entries.len() as u64;
        assert_eq!(
            (counted, reader.entries()),
            (written, written),
            "{what}: rows read, entries that the object declares"
        );
        let condemned = self.attempts.list_abandoned(None, 100).await.unwrap();
        Outcome { tries, key, condemned: condemned.into_iter().map(|record| record.attempt.key).collect() }
    }

    fn expected(&self, range: &Range<EntryId>) -> &[Entry] {
        let place = |entry: EntryId| usize::try_from(entry.get()).unwrap();
        &self.entries[place(range.start)..place(range.end)]
    }

    /// Ends what runs in the background.
    pub async fn stop(self) {
        self.tasks.stop(Duration::from_secs(10)).await.unwrap();
    }
}

fn sealed(ledger: LedgerId, count: u64, payload_bytes: usize) -> Vec<Entry> {
    let digester = Digester::new(DigestType::Crc32c, &Password::new("pw"));
    let rng = Rng::seeded(5);
    let mut length = 0;
    (0..count)
        .map(|place| {
            let entry = EntryId::new(place).unwrap();
            let mut payload = vec![0; payload_bytes + (place % 7) as usize];
            rng.fill(&mut payload);
            length += payload.len() as u64;
            let header = EntryHeader { ledger, entry, last_confirmed: entry.prev(), length };
            digester.open(ledger, Some(entry), &digester.seal(&header, &Bytes::from(payload))).unwrap()
        })
        .collect()
}
