//! Releasing: prove that gateways serve the ledger from its object under its cold ids, then put these in the place of its members.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cold::ObjectReader;
use ledger::{ColdId, ColdRecord, EntryId, LedgerId, LedgerMetadata};
use metadata::{ColdNames, LedgerRecord, OwnedShard, WriteError};

use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, Wanted};
use crate::observe::Step;
use crate::offloader::Relaying;
use crate::report::Counters;

/// What a cold id gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// The bodies of the entries in the order asked for.
    pub bodies: Vec<Bytes>,
    /// The id's shard as it was owned by the gateway that served them. The release is committed only while that holds.
    pub owned: OwnedShard,
}

/// How clients will get at a released ledger: through its cold ids, over BookKeeper's protocol.
#[async_trait]
pub trait ReleaseProbe: Send + Sync + 'static {
    /// Reads entries through one cold id, as a client does that knows nothing of tiers, from the gateway that owns the id's shard:
    /// what anybody else answers proves nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Waiting`] while the shard's owner does not serve the id, which may change; [`ErrorKind::Damaged`] when it is served wrongly.
    async fn read(&self, id: &ColdId, ledger: LedgerId, entries: &[EntryId]) -> Result<Served>;
}

const DOING: &str = "release";
/// Members that cold ids are registered for at least: the ensemble of ledgers whose creator does not say.
pub(crate) const MEMBERS_DEFAULT: u32 = 3;
/// The shortest pause before the policy tries again to release when nobody serves cold ids.
const RELEASE_PAUSE: Duration = Duration::from_secs(2);

/// For how long it is believed which bookies relay.
const RELAYING_AGE_MAX: Duration = Duration::from_secs(10);

/// What the first of two steps leaves.
struct Stay {
    /// Wall-clock milliseconds since 1970.
    until_ms: u64,
    /// The bookies that are there: of each write set one of these stays, if it has any.
    registered: Relaying,
}

impl Job<'_> {
    /// Proves and releases. False: it is not released yet, since its record changed meanwhile or this was the first of two steps; the
    /// ledger must be looked at again.
    pub(crate) async fn release(&self, record: LedgerRecord, wanted: Wanted) -> Result<bool> {
        if wanted == Wanted::Policy
            && let Some(why) = self.at.waiting.holds(self.at.clock.now())
        {
            return Err(Error::new(ErrorKind::Waiting, why));
        }
        self.clients_find_cold_ids()?;
        let ids = self.cold_ids(&record.metadata)?;
        let owned = self.step(Step::ProveRelease, Box::pin(self.prove(&record, &ids))).await?;
        let stay = self.who_stays(&record.metadata).await?;
        self.step(Step::Release, self.swap(record, &ids, owned, stay)).await
    }

    /// Who stays, and until when, if this is the first of two steps; `None` when all members may go now.
    ///
    /// Two steps are for bookies that cannot send readers on. What one does that is not registered is unknown, and it is taken for one
    /// of them.
    async fn who_stays(&self, metadata: &LedgerMetadata) -> Result<Option<Stay>> {
        let grace = self.at.config.handle_grace.duration();
        // What was begun is at its end, or nothing would be released now.
        if grace.is_zero() || metadata.partly_released_until().is_some() {
            return Ok(None);
        }
        let registered = self.relaying().await?;
        let members = metadata.segments().iter().flat_map(|segment| &segment.ensemble);
        let mut bookies = members.filter(|member| !ledger::is_cold(member));
        if bookies.all(|member| registered.get(member) == Some(&true)) {
            return Ok(None);
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        Ok(Some(Stay { until_ms: self.at.clock.wall_ms().saturating_add(grace_ms), registered }))
    }

    /// Which bookies relay, looked up at most once in [`RELAYING_AGE_MAX`]: every registration is read for it.
    async fn relaying(&self) -> Result<Relaying> {
        let mut known = self.at.relaying.lock().await;
        let now = self.at.clock.now();
        if let Some((_, relaying)) = known.as_ref().filter(|(at, _)| now < *at + RELAYING_AGE_MAX) {
            return Ok(Arc::clone(relaying));
        }
        let found = self.at.bookies.relaying().await;
        let found = found.map_err(|error| Error::metadata("look up the bookies of", self.ledger, error))?;
        let (_, relaying) = known.insert((now, Arc::new(found)));
        Ok(Arc::clone(relaying))
    }

    /// Where BookKeeper's clients cannot know where a cold id is, a release would take the ledger away from them.
    fn clients_find_cold_ids(&self) -> Result<()> {
        if self.at.store.clients_resolve_by_registration() || self.at.config.cold_ids_in_dns {
            return Ok(());
        }
        let why = "BookKeeper's clients cannot find cold ids: in etcd as their driver has it, a bookie's id is its host and port. Leave ledgers \
                   settled, or put the names of cold ids into DNS and say cold_ids_in_dns = true";
        Err(self.wait(Error::of_ledger(ErrorKind::Waiting, DOING, self.ledger, format_args!("{why}"))))
    }

    fn cold_ids(&self, metadata: &LedgerMetadata) -> Result<Vec<ColdId>> {
        let config = &self.at.config;
        ColdId::for_ledger(self.ledger, metadata.quorums().ensemble(), &config.cold_domain, config.cold_port)
            .map_err(|error| self.refuse(ErrorKind::Unsuitable, "its members cannot be replaced").caused_by(error))
    }

    /// Everything about the object is asked of the store now, past every cache; what each cold id serves is compared with it. Gives
    /// the shard as its owner held it all the while.
    async fn prove(&self, record: &LedgerRecord, ids: &[ColdId]) -> Result<OwnedShard> {
        let metadata = &record.metadata;
        let cold = ColdRecord::from_metadata(metadata);
        let cold =
            cold.map_err(|error| self.refuse(ErrorKind::Damaged, "its cold record is malformed").caused_by(error))?;
        let cold = cold.ok_or_else(|| self.refuse(ErrorKind::NotClosed, "it is not settled"))?;
        let key = cold.object_key(self.at.instance_id.as_str(), self.ledger);
        let last = metadata.last_entry().ok_or_else(|| self.refuse(ErrorKind::NotClosed, "it has no last entry"))?;
        if cold.entries != last.get().saturating_add(1) {
            let why = format_args!("object {key} has {} entries, its last one is {last}", cold.entries);
            return Err(Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why));
        }
        self.catalog_agrees(&cold, &key).await?;
        let failed = |error| Error::cold(DOING, self.ledger, error);
        let facts = self.at.cold.head(&key).await.map_err(failed)?;
        if facts.bytes != cold.object_bytes {
            let why = format_args!("object {key} has {} bytes, expected {}", facts.bytes, cold.object_bytes);
            return Err(Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why));
        }
        let reader = {
            let _permit = self.at.budget.acquire(u64::from(cold.footer_bytes)).await;
            ObjectReader::open(&self.at.cold, self.at.instance_id.as_str(), self.ledger, &cold).await.map_err(failed)?
        };
        let digester = metadata.digester();
        let mut ends = vec![EntryId::ZERO];
        ends.extend(Some(last).filter(|last| *last != EntryId::ZERO));
        let mut bodies = Vec::with_capacity(ends.len());
        for &id in &ends {
            let row = reader.read_entry(id).await.map_err(failed)?;
            let entry = row.and_then(|row| row.to_entry()).ok_or_else(|| {
                let why = format_args!("object {key} does not have entry {id}");
                Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why)
            })?;
            if digester.as_ref().is_some_and(|digester| !digester.verify_entry(&entry)) {
                let why = format_args!("entry {id} of object {key} does not have its writer's digest");
                return Err(Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why));
            }
            bodies.push(entry.to_body());
        }
        self.ensure_names(ids.len()).await?;
        let mut owned = None;
        for id in ids {
            let by = self.served_alike(id, &ends, &bodies, &key).await?;
            if *owned.get_or_insert(by) != by {
                let why = format_args!("shard {} of its cold ids went to another gateway meanwhile", by.shard);
                return Err(self.wait(Error::of_ledger(ErrorKind::Waiting, DOING, self.ledger, why)));
            }
        }
        let owned = owned.ok_or_else(|| self.refuse(ErrorKind::Unsuitable, "it has no members"))?;
        if self.at.waiting.end() {
            tracing::info!("releases go on: cold ids are served");
        }
        Ok(owned)
    }

    async fn catalog_agrees(&self, cold: &ColdRecord, key: &str) -> Result<()> {
        let entry = self.at.catalog.get(self.ledger, cold.object).await;
        let entry =
            entry.map_err(|error| Error::metadata("look up in the catalog the object of", self.ledger, error))?;
        if entry.is_some_and(|entry| entry.key == key && entry.object_bytes == cold.object_bytes) {
            return Ok(());
        }
        let why = format_args!("the catalog does not have object {key} as its record names it");
        Err(Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why))
    }

    /// Sees to it that gateways register the cold ids of ledgers with so many members.
    async fn ensure_names(&self, members: usize) -> Result<()> {
        let members = u32::try_from(members).unwrap_or(u32::MAX);
        if self.at.names_ensured.load(Ordering::Relaxed) >= members {
            return Ok(());
        }
        let config = &self.at.config;
        let names = ColdNames {
            domain: config.cold_domain.clone(),
            port: config.cold_port,
            members: members.max(MEMBERS_DEFAULT),
        };
        let ensured = self.at.cold_shards.ensure_names(&names).await.map_err(|error| match error.kind() {
            metadata::ErrorKind::Refused | metadata::ErrorKind::Invalid => {
                self.refuse(ErrorKind::Config, "its cold ids have no names here").caused_by(error)
            }
            _ => Error::metadata(DOING, self.ledger, error),
        })?;
        self.at.names_ensured.fetch_max(ensured.members, Ordering::Relaxed);
        Ok(())
    }

    async fn served_alike(
        &self,
        id: &ColdId,
        entries: &[EntryId],
        expected: &[Bytes],
        key: &str,
    ) -> Result<OwnedShard> {
        let limit = self.at.config.probe_timeout;
        let read = tokio::time::timeout(limit.duration(), self.at.probe.read(id, self.ledger, entries)).await;
        let served = match read {
            Ok(Err(error)) if error.kind() == ErrorKind::Waiting => return Err(self.wait(error)),
            Ok(served) => served?,
            Err(_) => {
                let why = format_args!("cold id {id} gave no entries of object {key} within {limit}");
                return Err(self.wait(Error::of_ledger(ErrorKind::Waiting, DOING, self.ledger, why)));
            }
        };
        for (place, (entry, body)) in entries.iter().zip(expected).enumerate() {
            if served.bodies.get(place) != Some(body) {
                let why = format_args!("entry {entry} through cold id {id} is not the one in object {key}");
                return Err(Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why));
            }
        }
        Ok(served.owned)
    }

    /// Nobody serves a cold id, which is no failure of the ledger: its release waits, and the status says for what.
    fn wait(&self, error: Error) -> Error {
        let config = &self.at.config;
        let pause = config.scan_interval.duration().max(RELEASE_PAUSE);
        if self.at.waiting.begin(error.to_string(), self.at.clock.now(), pause) {
            tracing::warn!(error = error.chain(), "releases wait; ledgers are settled meanwhile");
        }
        error
    }

    async fn swap(&self, record: LedgerRecord, ids: &[ColdId], owned: OwnedShard, stay: Option<Stay>) -> Result<bool> {
        let until_ms = stay.as_ref().map(|stay| stay.until_ms);
        let released = match stay {
            None => record.metadata.released_to(ids),
            Some(Stay { until_ms, registered }) => {
                record.metadata.partly_released_to(ids, until_ms, |member| registered.contains_key(member))
            }
        };
        let released = released
            .map_err(|error| self.refuse(ErrorKind::Unsuitable, "its members cannot be replaced").caused_by(error))?;
        match self.at.ledgers.update_while_owned(self.ledger, &released, record.version, owned).await {
            // It is not released yet; what is to be done next, the next look says.
            Ok(_) if until_ms.is_some() => {
                tracing::info!(until_ms, "ledger partly released: one bookie of each write set stays until then");
                Ok(false)
            }
            Ok(_) => {
                Counters::add(&self.at.counters.released, 1);
                tracing::info!("ledger released");
                Ok(true)
            }
            Err(WriteError::Conflict(())) => Ok(false),
            Err(WriteError::NotDone(error)) => Err(Error::metadata(DOING, self.ledger, error)),
            Err(WriteError::Unknown(error)) => {
                Err(self.refuse(ErrorKind::Unknown, "it is unknown whether it was released").caused_by(error))
            }
        }
    }

    fn refuse(&self, kind: ErrorKind, why: &str) -> Error {
        Error::of_ledger(kind, DOING, self.ledger, why)
    }
}
