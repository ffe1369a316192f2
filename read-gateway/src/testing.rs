//! A small world for tests: ledgers in memory on both tiers.
#![allow(clippy::unwrap_used)]

pub(crate) mod bookie;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cold::{ColdStore, FaultStore, Limits, ObjectMeta, ObjectWriter, Row, StoreOptions};
use common::budget::ByteBudget;
use common::rng::Rng;
use common::shutdown::TaskTree;
use futures::stream::StreamExt as _;
use ledger::{
    BookieId, ColdId, ColdRecord, DigestType, Digester, Entry, EntryHeader, EntryId, LedgerId, LedgerMetadata,
    Password, Quorums,
};
use metadata::{Ledgers, MemoryStore};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::blocks::MokaBlocks;
use crate::cold_tier::ColdTier;
use crate::error::{Error, ErrorKind, Result};
use crate::hot_tier::{EntryStream, HotTier};
use crate::objects::ObjectCache;
use crate::reading::Tiers;

const INSTANCE: &str = "instance-1";

pub(crate) fn id(entry: u64) -> EntryId {
    EntryId::new(entry).unwrap()
}

/// A hot tier in memory.
#[derive(Default)]
pub(crate) struct MemoryHot {
    ledgers: Mutex<BTreeMap<LedgerId, Vec<Entry>>>,
    confirmed: Mutex<BTreeMap<LedgerId, EntryId>>,
    /// Fail before this entry, once it is set.
    fail_at: Mutex<Option<EntryId>>,
    reads: AtomicUsize,
    /// Held by each stream that is open.
    open: Arc<()>,
}

impl MemoryHot {
    pub(crate) fn open_streams(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }

    pub(crate) fn fail_at(&self, entry: Option<EntryId>) {
        *self.fail_at.lock().unwrap() = entry;
    }

    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    pub(crate) fn confirm(&self, ledger: LedgerId, entry: EntryId) {
        self.confirmed.lock().unwrap().insert(ledger, entry);
    }
}

#[async_trait]
impl HotTier for MemoryHot {
    async fn read(&self, ledger: LedgerId, _: &LedgerMetadata, entries: Range<EntryId>) -> Result<EntryStream> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let away = || Error::new(ErrorKind::Unavailable, "the bookies are away");
        let fail_at = *self.fail_at.lock().unwrap();
        let held = self.ledgers.lock().unwrap().get(&ledger).cloned().ok_or_else(away)?;
        let answers: Vec<Result<Entry>> = held
            .into_iter()
            .filter(|entry| entries.contains(&entry.header.entry))
            .map(|entry| if Some(entry.header.entry) == fail_at { Err(away()) } else { Ok(entry) })
            .collect();
        let open = Arc::clone(&self.open);
        let answers = answers.into_iter().inspect(move |_| {
            let _ = &open;
        });
        Ok(futures::stream::iter(answers).boxed())
    }

    async fn last_confirmed(&self, ledger: LedgerId, _: &LedgerMetadata) -> Result<Option<EntryId>> {
        Ok(self.confirmed.lock().unwrap().get(&ledger).copied())
    }
}

/// Budgets of a [`World`].
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) blocks: u64,
    pub(crate) send: u64,
    /// Encoded bytes of a row group.
    pub(crate) group: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { blocks: 64 << 20, send: 16 << 20, group: 64 << 10 }
    }
}

pub(crate) struct World {
    pub(crate) objects: Arc<InMemory>,
    pub(crate) faults: FaultStore,
    pub(crate) hot: Arc<MemoryHot>,
    pub(crate) ledgers: Ledgers,
    pub(crate) blocks: MokaBlocks,
    pub(crate) blocks_budget: ByteBudget,
    pub(crate) footers_budget: ByteBudget,
    pub(crate) tiers: Arc<Tiers>,
    pub(crate) tasks: TaskTree,
    cold: ColdStore,
    group_bytes: u64,
}

/// A ledger to be made.
pub(crate) struct Made {
    pub(crate) ledger: LedgerId,
    pub(crate) payloads: Vec<Bytes>,
    pub(crate) key: String,
    pub(crate) record: ColdRecord,
}

/// Where a made ledger lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Hot,
    Settled,
    Released,
}

impl World {
    pub(crate) fn new(sizes: Sizes) -> Self {
        let objects = Arc::new(InMemory::new());
        let faults = FaultStore::new(Arc::clone(&objects) as Arc<dyn ObjectStore>);
        let mut options = StoreOptions::default();
        options.retry.initial = Duration::from_millis(1);
        options.retry.deadline = Duration::from_millis(50);
        let cold = ColdStore::new(Arc::new(faults.clone()), options, Rng::seeded(1));
        let tasks = TaskTree::root("test");
        let blocks_budget = ByteBudget::new("blocks", sizes.blocks);
        let wait = Duration::from_secs(20);
        let blocks = MokaBlocks::new(blocks_budget.clone(), wait, tasks.clone());
        let footers_budget = ByteBudget::new("footers", 8 << 20);
        let footers = ObjectCache::new(cold.clone(), INSTANCE, footers_budget.clone(), wait, tasks.clone());
        let hot = Arc::new(MemoryHot::default());
        let ledgers = Ledgers::new(Arc::new(MemoryStore::new()));
        let tiers = Tiers {
            ledgers: ledgers.clone(),
            hot: Arc::clone(&hot) as Arc<dyn HotTier>,
            cold: ColdTier::new(footers, Arc::new(blocks.clone()), tasks.clone()),
            send_budget: ByteBudget::new("send", sizes.send),
            read_timeout: Duration::from_secs(30),
            memory_timeout: wait,
            metrics: crate::metrics::Metrics::new(),
        };
        let tiers = Arc::new(tiers);
        Self {
            objects,
            faults,
            hot,
            ledgers,
            blocks,
            blocks_budget,
            footers_budget,
            tiers,
            tasks,
            cold,
            group_bytes: sizes.group,
        }
    }

    /// A cache of open objects of its own.
    pub(crate) fn object_cache(&self) -> ObjectCache {
        let footers = ByteBudget::new("footers", 8 << 20);
        ObjectCache::new(self.cold.clone(), INSTANCE, footers, Duration::from_secs(20), self.tasks.clone())
    }

    /// Makes a closed ledger of these payloads.
    pub(crate) async fn make(&self, number: u64, payloads: Vec<Bytes>, on: On) -> Made {
        let made = self.make_parts(number, payloads, Password::empty()).await;
        self.register(&made, on, Password::empty()).await;
        made
    }

    async fn make_parts(&self, number: u64, payloads: Vec<Bytes>, password: Password) -> Made {
        let ledger = LedgerId::new(number).unwrap();
        let digester = Digester::new(DigestType::Crc32c, &password);
        let mut length = 0;
        let mut entries = Vec::new();
        for (place, payload) in payloads.iter().enumerate() {
            length += payload.len() as u64;
            let entry = id(place as u64);
            let header = EntryHeader { ledger, entry, last_confirmed: entry.prev(), length };
            entries.push(digester.open(ledger, Some(entry), &digester.seal(&header, payload)).unwrap());
        }
        let object = Rng::seeded(number).uuid();
        let closed = closed(ledger, entries.last().map(|entry| entry.header.entry), length, password);
        let meta = ObjectMeta::new(INSTANCE, ledger, object, &closed);
        let key = meta.key();
        let mut limits = Limits::v1();
        limits.group_encoded_bytes = self.group_bytes;
        limits.page_bytes = 8 << 10;
        let mut writer = ObjectWriter::new(meta, limits);
        let mut upload = self.cold.upload(&key, &ByteBudget::new("upload", 64 << 20)).unwrap();
        for entry in &entries {
            if let Some(bytes) = writer.push(Row::from_entry(entry)).unwrap() {
                upload.write(bytes).await.unwrap();
            }
        }
        let (rest, summary) = writer.finish().unwrap();
        upload.write(rest).await.unwrap();
        upload.finish().await.unwrap();
        self.hot.ledgers.lock().unwrap().insert(ledger, entries);
        self.faults.take_traffic();
        Made { ledger, payloads, key, record: summary.to_record(0, 1, None) }
    }

    /// Writes the metadata of a made ledger.
    async fn register(&self, made: &Made, on: On, password: Password) {
        let last = (made.payloads.len() as u64).checked_sub(1).map(id);
        let length = made.payloads.iter().map(|payload| payload.len() as u64).sum();
        let mut metadata = closed(made.ledger, last, length, password);
        if on != On::Hot {
            metadata = metadata.with_cold_record(&made.record).unwrap();
        }
        if on == On::Released {
            metadata =
                metadata.released_to(&ColdId::for_ledger(made.ledger, 3, "cold.thermocline", 3181).unwrap()).unwrap();
            self.hot.ledgers.lock().unwrap().remove(&made.ledger);
        }
        self.ledgers.create(made.ledger, &metadata).await.unwrap();
    }

    /// As [`World::make`], with a password.
    pub(crate) async fn make_locked(&self, number: u64, payloads: Vec<Bytes>, password: &'static [u8]) -> Made {
        let password = Password::new(password);
        let made = self.make_parts(number, payloads, password.clone()).await;
        self.register(&made, On::Settled, password).await;
        made
    }

    /// Makes a closed ledger without entries, released though it has no object.
    pub(crate) async fn make_empty(&self, number: u64) -> LedgerId {
        let ledger = LedgerId::new(number).unwrap();
        let ids = ColdId::for_ledger(ledger, 3, "cold.thermocline", 3181).unwrap();
        let metadata = closed(ledger, None, 0, Password::empty()).released_to(&ids).unwrap();
        self.ledgers.create(ledger, &metadata).await.unwrap();
        ledger
    }

    /// The size of a made ledger's object.
    pub(crate) async fn object_bytes(&self, made: &Made) -> u64 {
        self.objects.head(&Path::from(made.key.as_str())).await.unwrap().size
    }

    /// Makes an open ledger with entries on the hot tier, none of them confirmed.
    pub(crate) async fn make_open(&self, number: u64, payloads: Vec<Bytes>) -> Made {
        let made = self.make_parts(number, payloads, Password::empty()).await;
        self.ledgers.create(made.ledger, &open(made.ledger, Password::empty())).await.unwrap();
        made
    }

    /// Moves a settled ledger to the cold tier alone.
    pub(crate) async fn release(&self, made: &Made) {
        let record = self.ledgers.get(made.ledger).await.unwrap().unwrap();
        let ids = ColdId::for_ledger(made.ledger, 3, "cold.thermocline", 3181).unwrap();
        let metadata = record.metadata.with_cold_record(&made.record).unwrap().released_to(&ids).unwrap();
        self.ledgers.update(made.ledger, &metadata, record.version).await.unwrap();
        self.hot.ledgers.lock().unwrap().remove(&made.ledger);
    }

    /// Replaces the object by what `change` makes of it.
    pub(crate) async fn alter(&self, made: &Made, change: impl FnOnce(&mut Vec<u8>)) {
        let path = Path::from(made.key.as_str());
        let mut bytes = self.objects.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        change(&mut bytes);
        self.objects.put(&path, bytes.into()).await.unwrap();
    }

    /// Takes the object away.
    pub(crate) async fn lose(&self, made: &Made) {
        self.objects.delete(&Path::from(made.key.as_str())).await.unwrap();
    }
}

fn open(ledger: LedgerId, password: Password) -> LedgerMetadata {
    let ensemble = (1..=3).map(|bookie| BookieId::new(&format!("bookie{bookie}:3181")).unwrap()).collect();
    LedgerMetadata::open(Quorums::new(3, 3, 2).unwrap(), ensemble, DigestType::Crc32c, password)
        .unwrap()
        .with_ctoken(i64::try_from(ledger.get()).unwrap() + 1)
        .unwrap()
}

fn closed(ledger: LedgerId, last: Option<EntryId>, length: u64, password: Password) -> LedgerMetadata {
    open(ledger, password).closed(last, length).unwrap()
}

/// Payloads that do not compress, so that sizes are what they seem.
pub(crate) fn noise(count: usize, bytes: usize) -> Vec<Bytes> {
    let rng = Rng::seeded(42);
    (0..count)
        .map(|_| {
            let mut payload = vec![0; bytes];
            rng.fill(&mut payload);
            payload.into()
        })
        .collect()
}
