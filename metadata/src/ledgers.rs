//! Ledgers: ids, records, listing.

use std::sync::Arc;

use ::ledger::{LedgerId, LedgerMetadata};
use bytes::Bytes;

use crate::{
    Error, ErrorKind, Expect, Key, MetadataStore, OwnedShard, Version, Versioned, WatchStream, WriteError, layout,
    listing, resolve,
};

/// A ledger's metadata with the version it was read in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRecord {
    /// The metadata.
    pub metadata: LedgerMetadata,
    /// What a compare-and-swap on it must name.
    pub version: Version,
}

/// Why a ledger's record was not written. `Conflict` has the record found instead; `None`: the ledger is deleted.
pub type UpdateError = WriteError<Option<Box<LedgerRecord>>>;

/// The ledgers of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Ledgers {
    store: Arc<dyn MetadataStore>,
}

impl Ledgers {
    /// The ledgers in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// An id that nobody else gets. Ids may be skipped; the first is 1. Whether the ledger may really have it,
    /// [`Ledgers::create`] decides.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn allocate_id(&self) -> Result<LedgerId, Error> {
        let number = self.store.allocate_ledger_id().await?;
        LedgerId::new(number).ok_or_else(|| Error::new(ErrorKind::Refused, "allocate ledger id: all ids are used up"))
    }

    /// Creates the record, if there is none.
    ///
    /// An unknown outcome is settled by reading back the creation token, so `metadata` should have a random one that is not
    /// 0; without it the outcome stays unknown. A record that carries that token already is our own earlier try: success.
    ///
    /// # Errors
    /// `Conflict` with the record of whoever has the id.
    pub async fn create(&self, id: LedgerId, metadata: &LedgerMetadata) -> Result<Version, UpdateError> {
        let key = layout::ledger_key(id);
        let token = metadata.ctoken().filter(|token| *token != 0);
        let ours = |found: &Versioned| {
            token.is_some() && LedgerMetadata::decode(&found.value).is_ok_and(|found| found.ctoken() == token)
        };
        let value = Bytes::from(metadata.encode());
        match resolve::put(&*self.store, &key, &value, Expect::Absent, ours).await {
            Err(WriteError::Conflict(found)) => {
                let found = match found {
                    Some(found) => Some(found),
                    None => self.store.get_quorum(&key).await.map_err(WriteError::NotDone)?,
                };
                match found {
                    Some(found) if ours(&found) => Ok(found.version),
                    found => Err(conflict(id, found)),
                }
            }
            other => other.map_err(|error| with_record(id, error)),
        }
    }

    /// Reads a record as a hint.
    ///
    /// # Errors
    /// Those of the store, and [`ErrorKind::Damaged`] for a record that cannot be read: that is not an absent ledger.
    pub async fn get(&self, id: LedgerId) -> Result<Option<LedgerRecord>, Error> {
        self.store.get(&layout::ledger_key(id)).await?.map(|found| record(id, found)).transpose()
    }

    /// Reads a record as a proof.
    ///
    /// # Errors
    /// As [`Ledgers::get`].
    pub async fn get_quorum(&self, id: LedgerId) -> Result<Option<LedgerRecord>, Error> {
        self.store.get_quorum(&layout::ledger_key(id)).await?.map(|found| record(id, found)).transpose()
    }

    /// Replaces the record if it still has version `expected`. An unknown outcome is settled by reading back and comparing the
    /// bytes.
    ///
    /// # Errors
    /// `Conflict` with the record of now.
    pub async fn update(
        &self,
        id: LedgerId,
        metadata: &LedgerMetadata,
        expected: Version,
    ) -> Result<Version, UpdateError> {
        let value = Bytes::from(metadata.encode());
        let ours = |found: &Versioned| found.version > expected && found.value == value;
        resolve::put(&*self.store, &layout::ledger_key(id), &value, Expect::At(expected), ours)
            .await
            .map_err(|error| with_record(id, error))
    }

    /// As [`Ledgers::update`], in one transaction with the condition that a shard of cold ids is still owned as given.
    ///
    /// # Errors
    /// `Conflict` when either has changed.
    pub async fn update_while_owned(
        &self,
        id: LedgerId,
        metadata: &LedgerMetadata,
        expected: Version,
        owned: OwnedShard,
    ) -> Result<Version, WriteError<()>> {
        let value = Bytes::from(metadata.encode());
        let ours = |found: &Versioned| found.version > expected && found.value == value;
        let (key, fence) = (layout::ledger_key(id), (layout::shard_key(owned.shard), owned.version));
        let put = resolve::put_fenced(&*self.store, &key, &value, Expect::At(expected), Some(&fence), ours);
        put.await.map_err(|error| match error {
            WriteError::Conflict(_) => WriteError::Conflict(()),
            WriteError::NotDone(error) => WriteError::NotDone(error),
            WriteError::Unknown(error) => WriteError::Unknown(error),
        })
    }

    /// Removes the record: with `expected` only in that version. A ledger that is not there is a success.
    ///
    /// # Errors
    /// `Conflict` with the record of now.
    pub async fn delete(&self, id: LedgerId, expected: Option<Version>) -> Result<(), UpdateError> {
        let expect = expected.map_or(Expect::Any, Expect::At);
        resolve::delete(&*self.store, &layout::ledger_key(id), expect).await.map_err(|error| with_record(id, error))
    }

    /// Up to `limit` ledgers after `after` in the order of ids. Only an empty page is the end. A record that cannot be read is
    /// logged and left out: absence from a listing proves nothing.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self, after: Option<LedgerId>, limit: usize) -> Result<Vec<(LedgerId, LedgerRecord)>, Error> {
        let after = after.map(layout::ledger_key);
        let read = |key: &Key, found| {
            let id = layout::parse_ledger_key(key)?;
            Some(record(id, found).map(|record| (id, record)))
        };
        listing::page(&*self.store, &layout::ledgers_root(), after, limit, layout::is_behind_ledgers, read).await
    }

    /// As [`Ledgers::list`], with a record that cannot be read in its place: for whoever must not pass one over.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list_each(
        &self,
        after: Option<LedgerId>,
        limit: usize,
    ) -> Result<Vec<(LedgerId, Result<LedgerRecord, Error>)>, Error> {
        let after = after.map(layout::ledger_key);
        let read = |key: &Key, found| layout::parse_ledger_key(key).map(|id| Ok((id, record(id, found))));
        listing::page(&*self.store, &layout::ledgers_root(), after, limit, layout::is_behind_ledgers, read).await
    }

    /// Watches one ledger's record.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn watch(&self, id: LedgerId) -> Result<WatchStream, Error> {
        self.store.watch(&layout::ledger_key(id)).await
    }
}

fn record(id: LedgerId, found: Versioned) -> Result<LedgerRecord, Error> {
    let metadata = LedgerMetadata::decode(&found.value)
        .map_err(|error| Error::new(ErrorKind::Damaged, format!("read metadata of ledger {id}")).caused_by(error))?;
    Ok(LedgerRecord { metadata, version: found.version })
}

fn conflict(id: LedgerId, found: Option<Versioned>) -> UpdateError {
    match found.map(|found| record(id, found)).transpose() {
        Ok(found) => WriteError::Conflict(found.map(Box::new)),
        Err(error) => WriteError::NotDone(error),
    }
}

fn with_record(id: LedgerId, error: WriteError<Option<Versioned>>) -> UpdateError {
    match error {
        WriteError::Conflict(found) => conflict(id, found),
        WriteError::NotDone(error) => WriteError::NotDone(error),
        WriteError::Unknown(error) => WriteError::Unknown(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
