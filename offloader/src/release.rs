//! Releasing: prove that the gateway serves the ledger from its object, then put cold ids in the place of its members.

use async_trait::async_trait;
use bytes::Bytes;
use cold::ObjectReader;
use ledger::{ColdId, ColdRecord, Entry, EntryId, LedgerId, Password};
use metadata::{LedgerRecord, WriteError};

use crate::error::{Error, ErrorKind, Result};
use crate::job::Job;
use crate::observe::Step;
use crate::report::Counters;

/// An entry as a reader of the cold tier gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// The user's bytes.
    pub payload: Bytes,
    /// The last confirmed entry its writer knew.
    pub last_confirmed: Option<EntryId>,
    /// The ledger length its writer counted.
    pub length: u64,
}

/// How readers will get at a released ledger: through a gateway, from its object only.
#[async_trait]
pub trait ReleaseProbe: Send + Sync + 'static {
    /// Reads one entry as a reader would, from the cold tier only: bookies MUST NOT answer, whether they could or not.
    ///
    /// # Errors
    /// When the gateway does not serve it.
    async fn read_cold(&self, ledger: LedgerId, entry: EntryId, password: Option<&Password>) -> Result<Probed>;
}

const DOING: &str = "release";

impl Job<'_> {
    /// Proves and releases. False: the record changed meanwhile, and the ledger must be looked at again.
    pub(crate) async fn release(&self, record: LedgerRecord) -> Result<bool> {
        self.step(Step::ProveRelease, Box::pin(self.prove(&record))).await?;
        self.step(Step::Release, self.swap(record)).await
    }

    /// Everything about the object is asked of the store now, past every cache; what the gateway serves is compared with it.
    async fn prove(&self, record: &LedgerRecord) -> Result<()> {
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
        for id in ends {
            let row = reader.read_entry(id).await.map_err(failed)?;
            let entry = row.and_then(|row| row.to_entry()).ok_or_else(|| {
                let why = format_args!("object {key} does not have entry {id}");
                Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why)
            })?;
            if digester.as_ref().is_some_and(|digester| !digester.verify_entry(&entry)) {
                let why = format_args!("entry {id} of object {key} does not have its writer's digest");
                return Err(Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why));
            }
            self.gateway_agrees(&entry, &key, metadata.password()).await?;
        }
        Ok(())
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

    async fn gateway_agrees(&self, entry: &Entry, key: &str, password: Option<&Password>) -> Result<()> {
        let id = entry.header.entry;
        let limit = self.at.config.probe_timeout;
        let probe = self.at.probe.read_cold(self.ledger, id, password);
        let served = tokio::time::timeout(limit.duration(), probe).await.map_err(|_| {
            let why = format_args!("the gateway gave no entry {id} of object {key} within {limit}");
            Error::of_ledger(ErrorKind::Timeout, DOING, self.ledger, why)
        })??;
        let expected = Probed {
            payload: entry.payload.clone(),
            last_confirmed: entry.header.last_confirmed,
            length: entry.header.length,
        };
        if served == expected {
            return Ok(());
        }
        let why = format_args!("the gateway's entry {id} is not the one in object {key}");
        Err(Error::of_ledger(ErrorKind::Damaged, DOING, self.ledger, why))
    }

    async fn swap(&self, record: LedgerRecord) -> Result<bool> {
        let quorums = record.metadata.quorums();
        let config = &self.at.config;
        let released = ColdId::for_ledger(self.ledger, quorums.ensemble(), &config.cold_domain, config.cold_port)
            .and_then(|ids| record.metadata.released_to(&ids))
            .map_err(|error| self.refuse(ErrorKind::Unsuitable, "its members cannot be replaced").caused_by(error))?;
        match self.at.ledgers.update(self.ledger, &released, record.version).await {
            Ok(_) => {
                Counters::add(&self.at.counters.released, 1);
                tracing::info!("ledger released");
                Ok(true)
            }
            Err(WriteError::Conflict(_)) => Ok(false),
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
