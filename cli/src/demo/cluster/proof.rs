//! The verdict's facts: everything acknowledged through each gateway, and what the metadata and the object store say themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cold::{ColdStore, ObjectSummary, StoreOptions, verify_object};
use common::budget::ByteBudget;
use common::rng::Rng;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use ledger::{ColdRecord, LedgerId, LedgerState, Tier};
use metadata::{Attempts, Catalog, Cluster, LedgerRecord, Ledgers, MetadataStore};
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::Story;
use super::acks::AckLog;
use super::load::{ANSWER_DEADLINE, Compared, Endpoints, ReadFault, read_back};
use crate::Fault;
use crate::fault::chain;
use crate::remote::Remote;

const PAGE: usize = 256;
/// Ledgers read or objects verified at a time.
const AT_ONCE: usize = 4;
const VERIFY_BYTES: u64 = 256 << 20;
/// How long settling what is left may take after the writers have stopped.
const SETTLE_DEADLINE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(250);
const ATTEMPT_LOOK: Duration = Duration::from_millis(5);

/// The cluster's metadata and objects, seen without any of its processes.
pub(super) struct Evidence {
    ledgers: Ledgers,
    attempts: Attempts,
    catalog: Catalog,
    cold: ColdStore,
    instance: String,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) open: u64,
    pub(super) hot: u64,
    pub(super) settled: u64,
    pub(super) released: u64,
    /// Objects that ledgers name, each verified from its first to its last byte.
    pub(super) objects: u64,
    pub(super) object_bytes: u64,
    /// Attempts that were given up or taken over.
    pub(super) abandoned: u64,
    /// Objects that no ledger names, each of them condemned by an abandoned attempt.
    pub(super) condemned: u64,
    /// Ledgers that nobody was told about: the answer to their creation was lost.
    pub(super) unknown: u64,
}

impl Evidence {
    pub(super) async fn open(metadata: &str, cold: &Url) -> Result<Self, Fault> {
        let failed = |error: metadata::Error| Fault::failed(chain(&error));
        let store: Arc<dyn MetadataStore> = metadata::open(metadata).await.map_err(failed)?;
        let instance = Cluster::open(store.as_ref()).await.map_err(failed)?;
        let instance = instance.ok_or_else(|| Fault::failed("the metadata store holds no cluster"))?;
        let cold = ColdStore::open(cold, StoreOptions::default(), Rng::from_os());
        Ok(Self {
            ledgers: Ledgers::new(Arc::clone(&store)),
            attempts: Attempts::new(Arc::clone(&store)),
            catalog: Catalog::new(store),
            cold: cold.map_err(|error| Fault::failed(chain(&error)))?,
            instance: instance.as_str().to_owned(),
        })
    }

    async fn all(&self) -> Result<Vec<(LedgerId, LedgerRecord)>, Fault> {
        let mut all: Vec<(LedgerId, LedgerRecord)> = Vec::new();
        loop {
            let after = all.last().map(|(id, _)| *id);
            let page = self.ledgers.list(after, PAGE).await.map_err(|error| Fault::failed(chain(&error)))?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    async fn running_attempts(&self) -> Result<usize, Fault> {
        Ok(self.attempts.list(None, PAGE).await.map_err(|error| Fault::failed(chain(&error)))?.len())
    }

    /// Waits until an attempt to settle a ledger is under way; not for ever.
    pub(super) async fn wait_for_attempt(&self, patience: Duration) {
        let one_runs = async {
            while !self.running_attempts().await.is_ok_and(|running| running > 0) {
                sleep(ATTEMPT_LOOK).await;
            }
        };
        // No attempt is no fault: the offloaders may have nothing to do.
        let _ = timeout(patience, one_runs).await;
    }

    /// Ledgers by state and tier.
    pub(super) async fn count(&self) -> Result<Found, Fault> {
        let mut found = Found::default();
        for (_, record) in self.all().await? {
            match (record.metadata.state(), record.metadata.tier()) {
                (LedgerState::Closed { .. }, Tier::Hot) => found.hot += 1,
                (LedgerState::Closed { .. }, Tier::Settled) => found.settled += 1,
                (LedgerState::Closed { .. }, Tier::Released) => found.released += 1,
                _ => found.open += 1,
            }
        }
        Ok(found)
    }

    /// Waits until every closed ledger with entries is settled and no attempt is under way.
    ///
    /// # Errors
    /// What is left after a minute.
    pub(super) async fn wait_settled(&self) -> Result<(), Fault> {
        let give_up = Instant::now() + SETTLE_DEADLINE;
        loop {
            let all = self.all().await?;
            let waits = |record: &LedgerRecord| {
                let metadata = &record.metadata;
                metadata.is_closed() && metadata.last_entry().is_some() && metadata.tier() == Tier::Hot
            };
            let left: Vec<String> =
                all.iter().filter(|(_, record)| waits(record)).map(|(id, _)| id.to_string()).collect();
            let attempts = self.running_attempts().await?;
            if left.is_empty() && attempts == 0 {
                return Ok(());
            }
            if Instant::now() >= give_up {
                return Err(Fault::failed(format!(
                    "not all is settled {SETTLE_DEADLINE:?} after the writers stopped: ledgers {}; {attempts} attempts run",
                    left.join(", ")
                )));
            }
            sleep(LOOK).await;
        }
    }

    /// Checks that each settled ledger names exactly one object, the catalog the same one, and that the object is whole.
    pub(super) async fn examine(&self, acks: &AckLog) -> Result<Found, Fault> {
        let mut found = self.count().await?;
        let known: BTreeMap<u64, _> = acks.known().into_iter().map(|known| (known.ledger, known)).collect();
        let named = self.catalogued().await?;
        let budget = ByteBudget::new("verify", VERIFY_BYTES);
        let mut objects = Vec::new();
        for (id, record) in self.all().await? {
            let cold = ColdRecord::from_metadata(&record.metadata).map_err(|error| Fault::failed(chain(&error)))?;
            let in_catalog = named.get(&id).map_or(&[][..], Vec::as_slice);
            match (&cold, in_catalog) {
                (None, []) => {}
                (Some(cold), [object]) if *object == cold.object => {}
                _ => {
                    return Err(Fault::failed(format!(
                        "ledger {id} must name as many objects as the catalog has for it, none or the same one: it names {:?}, the catalog has {in_catalog:?}",
                        cold.map(|cold| cold.object)
                    )));
                }
            }
            let entries = record.metadata.last_entry().map_or(0, |last| last.get() + 1);
            match known.get(&id.get()) {
                None => found.unknown += 1,
                Some(known) if record.metadata.is_closed() && entries < known.acknowledged => {
                    let acknowledged = known.acknowledged;
                    return Err(Fault::failed(format!(
                        "ledger {id} ends after {entries} entries, {acknowledged} were acknowledged"
                    )));
                }
                Some(_) => {}
            }
            if let Some(cold) = cold {
                if cold.entries != entries {
                    return Err(Fault::failed(format!(
                        "ledger {id} has {entries} entries, its object {}",
                        cold.entries
                    )));
                }
                found.objects += 1;
                found.object_bytes += cold.object_bytes;
                objects.push((id, cold));
            }
        }
        stream::iter(objects.iter().map(Ok::<_, Fault>))
            .try_for_each_concurrent(AT_ONCE, |(id, cold)| {
                let budget = &budget;
                async move {
                    let summary = ObjectSummary::from(cold);
                    verify_object(&self.cold, &self.instance, *id, &summary, budget)
                        .await
                        .map_err(|error| Fault::failed(format!("the object of ledger {id}: {}", chain(&error))))
                }
            })
            .await?;
        let abandoned = self.abandoned().await?;
        found.abandoned = abandoned.len() as u64;
        let named: BTreeSet<String> = objects.iter().map(|(id, cold)| cold.object_key(&self.instance, *id)).collect();
        found.condemned = self.check_known(&named, &abandoned).await?;
        Ok(found)
    }

    /// Checks that the store holds no object of this cluster that nothing knows; gives how many are condemned.
    async fn check_known(&self, named: &BTreeSet<String>, abandoned: &BTreeSet<String>) -> Result<u64, Fault> {
        let (mut condemned, mut after) = (0, None::<String>);
        loop {
            let page = self.cold.list("", after.as_deref(), PAGE).await;
            let page = page.map_err(|error| Fault::failed(chain(&error)))?;
            let Some(last) = page.last() else { return Ok(condemned) };
            after = Some(last.key.clone());
            for object in
                page.iter().filter(|object| object.key.contains(&self.instance) && !named.contains(&object.key))
            {
                if !abandoned.contains(&object.key) {
                    return Err(Fault::failed(format!(
                        "object {} is named by no ledger and condemned by no attempt",
                        object.key
                    )));
                }
                condemned += 1;
            }
        }
    }

    async fn catalogued(&self) -> Result<BTreeMap<LedgerId, Vec<uuid::Uuid>>, Fault> {
        let mut named: BTreeMap<LedgerId, Vec<uuid::Uuid>> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.catalog.list(after, PAGE).await.map_err(|error| Fault::failed(chain(&error)))?;
            let Some(last) = page.last() else { return Ok(named) };
            after = Some((last.ledger, last.uuid));
            for entry in page {
                named.entry(entry.ledger).or_default().push(entry.uuid);
            }
        }
    }

    /// The keys of the objects that abandoned attempts condemn, whether they were written or not.
    async fn abandoned(&self) -> Result<BTreeSet<String>, Fault> {
        let (mut keys, mut after) = (BTreeSet::new(), None);
        loop {
            let page = self.attempts.list_abandoned(after, PAGE).await.map_err(|error| Fault::failed(chain(&error)))?;
            let Some(last) = page.last() else { return Ok(keys) };
            after = Some(last.attempt.uuid);
            keys.extend(page.into_iter().map(|record| record.attempt.key));
        }
    }
}

/// Reads everything acknowledged back through every gateway, whole, and compares it.
pub(super) async fn read_all(acks: &AckLog, endpoints: &Endpoints, story: &Story) -> Result<Vec<Compared>, Fault> {
    let mut through = Vec::new();
    for (number, endpoint) in (1..).zip(endpoints) {
        let endpoint = endpoint.borrow().clone();
        let remote = Remote::connect(&endpoint).await?;
        let known = acks.known().into_iter().filter(|known| known.acknowledged > 0);
        let sum = stream::iter(known)
            .map(|known| {
                let remote = &remote;
                async move {
                    let read = read_back(remote, acks, known.ledger, 0, Some(known.acknowledged));
                    match timeout(ANSWER_DEADLINE, read).await {
                        Ok(Ok(read)) => Ok(read),
                        Ok(Err(ReadFault::Violation(why) | ReadFault::Refused(why))) => Err(Fault::failed(why)),
                        Err(_) => Err(Fault::failed(format!(
                            "ledger {} was not read within {ANSWER_DEADLINE:?}",
                            known.ledger
                        ))),
                    }
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_fold(Compared::default(), |sum, read| async move {
                Ok(Compared { hot: sum.hot + read.hot, cold: sum.cold + read.cold })
            })
            .await?;
        story.tell(&format!(
            "through gateway-{number}: {} entries from bookies, {} from objects, all equal",
            sum.hot, sum.cold
        ));
        through.push(sum);
    }
    Ok(through)
}
