//! The catalog: every object that was committed, and the commit itself.

use std::sync::Arc;

use ::ledger::{ColdRecord, LedgerId, LedgerMetadata};
use uuid::Uuid;

use crate::record::{RecordReader, RecordWriter};
use crate::{
    AttemptRecord, CommitError, Error, ErrorKind, Expect, Key, LedgerRecord, Ledgers, MetadataStore, Transaction,
    Version, Versioned, layout, listing,
};

const TRIES_MAX: usize = 4;

const TAG_LEDGER: u8 = 1;
const TAG_UUID: u8 = 2;
const TAG_KEY: u8 = 3;
const TAG_OBJECT_BYTES: u8 = 4;
const TAG_COMMIT_COUNTER: u8 = 5;

/// One committed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// The ledger it was written for.
    pub ledger: LedgerId,
    /// The object.
    pub uuid: Uuid,
    /// Its key in the cold store.
    pub key: String,
    /// Its size.
    pub object_bytes: u64,
    /// The counter of the attempt that committed it.
    pub commit_counter: u64,
}

impl CatalogEntry {
    /// The entry of the object that `attempt` wrote.
    #[must_use]
    pub fn of(attempt: &AttemptRecord, object_bytes: u64) -> Self {
        let attempt = &attempt.attempt;
        Self {
            ledger: attempt.ledger,
            uuid: attempt.uuid,
            key: attempt.key.clone(),
            object_bytes,
            commit_counter: attempt.counter,
        }
    }

    /// The stored form. The key is at most [`crate::KEY_BYTES_MAX`] bytes, as its attempt was checked to be.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        RecordWriter::new()
            .number(TAG_LEDGER, self.ledger.get())
            .uuid(TAG_UUID, self.uuid)
            .bytes(TAG_KEY, self.key.as_bytes())
            .number(TAG_OBJECT_BYTES, self.object_bytes)
            .number(TAG_COMMIT_COUNTER, self.commit_counter)
            .finish()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let record = RecordReader::open("catalog entry", bytes)?;
        Ok(Self {
            ledger: record.ledger(TAG_LEDGER)?,
            uuid: record.uuid(TAG_UUID)?,
            key: record.text(TAG_KEY)?,
            object_bytes: record.number(TAG_OBJECT_BYTES)?,
            commit_counter: record.number(TAG_COMMIT_COUNTER)?,
        })
    }
}

/// Why an object was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitOffloadError {
    /// Surely not done: the attempt is not running any more. Its object is condemned by whoever ended it.
    #[error("the attempt was stolen or abandoned")]
    AttemptLost,
    /// Surely not done: the ledger's record changed. Re-apply the cold record to this one and commit again, without uploading
    /// again. `None`: the ledger is deleted; abandon the attempt.
    #[error("the ledger's record was changed by someone else")]
    LedgerMoved(Option<Box<LedgerRecord>>),
    /// Surely not done.
    #[error("the object was not committed")]
    NotDone(#[source] Error),
    /// Maybe done, and reading back did not settle it. The object must stay.
    #[error("it is unknown whether the object was committed")]
    Unknown(#[source] Error),
}

/// What [`Catalog::commit`] makes visible at once.
#[derive(Debug, Clone)]
pub struct CommitOffload<'a> {
    /// The running attempt.
    pub attempt: &'a AttemptRecord,
    /// The ledger's metadata with the cold record in it.
    pub metadata: &'a LedgerMetadata,
    /// The version of the record that `metadata` was made from.
    pub expected: Version,
    /// The object's size.
    pub object_bytes: u64,
}

/// The catalog of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Catalog {
    store: Arc<dyn MetadataStore>,
}

impl Catalog {
    /// The catalog in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// One transaction: the ledger's record gains its cold record, the catalog entry appears, the attempt ends. Gives the new
    /// version of the ledger's record. An unknown outcome is settled by looking for our object in the ledger's record.
    ///
    /// # Errors
    /// See [`CommitOffloadError`].
    pub async fn commit(&self, offload: CommitOffload<'_>) -> Result<Version, CommitOffloadError> {
        let entry = CatalogEntry::of(offload.attempt, offload.object_bytes);
        let transaction = Transaction::new()
            .delete(layout::attempt_key(entry.ledger), Expect::At(offload.attempt.version))
            .put(layout::ledger_key(entry.ledger), offload.metadata.encode(), Expect::At(offload.expected))
            .put(layout::catalog_key(entry.ledger, entry.uuid), entry.encode(), Expect::Absent);
        let mut unsure: Option<Error> = None;
        for _ in 0..TRIES_MAX {
            match self.store.commit(transaction.clone()).await {
                Ok(done) => return Ok(done.put_version(1)),
                Err(CommitError::NotDone(error)) if unsure.is_none() => return Err(CommitOffloadError::NotDone(error)),
                Err(CommitError::NotDone(_) | CommitError::Conflict { .. }) => {}
                Err(CommitError::Unknown(error)) => {
                    unsure.get_or_insert(error);
                }
            }
            match self.standing(&offload, &entry).await {
                Ok(Standing::Committed(version)) => return Ok(version),
                Ok(Standing::Lost) => return Err(CommitOffloadError::AttemptLost),
                Ok(Standing::Moved(record)) => return Err(CommitOffloadError::LedgerMoved(record)),
                Ok(Standing::Open) => {}
                Err(error) => {
                    return Err(match unsure {
                        Some(first) => CommitOffloadError::Unknown(first),
                        None => CommitOffloadError::NotDone(error),
                    });
                }
            }
        }
        Err(match unsure {
            Some(error) => CommitOffloadError::Unknown(error),
            None => {
                CommitOffloadError::NotDone(Error::new(ErrorKind::Unavailable, "commit object: every try met a change"))
            }
        })
    }

    /// Reads back how a commit stands. The catalog entry is read last of what only a commit changes, so what it does not show
    /// was not there when the attempt was read as ended.
    async fn standing(&self, offload: &CommitOffload<'_>, entry: &CatalogEntry) -> Result<Standing, Error> {
        let attempt = self.store.get_quorum(&layout::attempt_key(entry.ledger)).await?;
        let running = attempt.is_some_and(|found| found.version == offload.attempt.version);
        let record = Ledgers::new(Arc::clone(&self.store)).get_quorum(entry.ledger).await?;
        if let Some(record) = &record
            && names(record, entry.uuid)?
        {
            return Ok(Standing::Committed(record.version));
        }
        if running {
            let unmoved = record.as_ref().is_some_and(|record| record.version == offload.expected);
            return Ok(if unmoved { Standing::Open } else { Standing::Moved(record.map(Box::new)) });
        }
        // Committed, and the record was changed or deleted since: the commit stands all the same.
        match self.store.get_quorum(&layout::catalog_key(entry.ledger, entry.uuid)).await? {
            Some(found) => Ok(Standing::Committed(found.version)),
            None => Ok(Standing::Lost),
        }
    }

    /// Whether an object is in the catalog, by proof.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn get(&self, ledger: LedgerId, uuid: Uuid) -> Result<Option<CatalogEntry>, Error> {
        let found = self.store.get_quorum(&layout::catalog_key(ledger, uuid)).await?;
        found.map(|found| CatalogEntry::decode(&found.value)).transpose()
    }

    /// Up to `limit` entries after `after`, in the order of ledgers, then uuids. Only an empty page is the end. A record
    /// that cannot be read is logged and left out.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self, after: Option<(LedgerId, Uuid)>, limit: usize) -> Result<Vec<CatalogEntry>, Error> {
        let after = after.map(|(ledger, uuid)| layout::catalog_key(ledger, uuid));
        let read = |_: &Key, found: Versioned| Some(CatalogEntry::decode(&found.value));
        listing::page(&*self.store, &layout::catalog_root(), after, limit, |_| false, read).await
    }
}

enum Standing {
    /// Our object is committed; the version of the ledger's record.
    Committed(Version),
    /// Nothing changed: the commit may be sent again.
    Open,
    /// The attempt runs, the ledger's record is another.
    Moved(Option<Box<LedgerRecord>>),
    /// The attempt ended without our commit.
    Lost,
}

fn names(record: &LedgerRecord, uuid: Uuid) -> Result<bool, Error> {
    let cold = ColdRecord::from_metadata(&record.metadata)
        .map_err(|error| Error::new(ErrorKind::Damaged, "read cold record").caused_by(error))?;
    Ok(cold.is_some_and(|cold| cold.object == uuid))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
