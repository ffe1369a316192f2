//! Cold ids: how they are named, which gateway owns which shard of them, and where they are registered.
//!
//! # Ownership
//! A gateway owns a shard while it holds the shard's key, under its lease. Every change of a cold id's registration is one
//! transaction with the condition that the shard is owned by whoever makes it, so a gateway that lost a shard without knowing
//! cannot send clients to itself any more.
//!
//! # Registrations
//! Cold ids are registered as read-only bookies, **without a lease**: an outage of gateways must not look like lost bookies, which
//! other implementations' auditors would replicate anew. An address is written only where it differs from what is there.
//! BookKeeper's clients take a registration whose value was replaced for a bookie that was never away, and some keep its old
//! address then; where a driver can tell them by removing and creating the key in the same transaction, it must.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::ledger::{BookieId, COLD_SHARDS, ColdId, is_cold};
use bytes::Bytes;

use crate::record::{RecordReader, RecordWriter};
use crate::{
    BookieInfo, CommitError, Error, ErrorKind, Expect, Key, LeaseId, MetadataStore, OPS_MAX, Transaction, Version,
    Versioned, WatchStream, layout,
};

const TAG_DOMAIN: u8 = 1;
const TAG_PORT: u8 = 2;
const TAG_MEMBERS: u8 = 3;
const TAG_OWNER: u8 = 1;

const LIST_PAGE: usize = 500;
const TRIES_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 256;
/// Shards that are claimed together: one that has an owner by now keeps only these from being taken.
const CLAIMED_TOGETHER: usize = 16;

/// How the cold ids of a cluster are named: `c<shard>-<member>.<domain>:<port>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdNames {
    /// What follows the first dot.
    pub domain: String,
    /// The port, never 0.
    pub port: u16,
    /// Members that are registered for each shard: the largest ensemble of a ledger that was released, or is to be. It only grows.
    pub members: u32,
}

impl ColdNames {
    /// The most members that cold ids are made for: a shard and all its ids are changed in one transaction.
    pub const MEMBERS_MAX: u32 = OPS_MAX as u32 - 1;

    fn encode(&self) -> Vec<u8> {
        RecordWriter::new()
            .bytes(TAG_DOMAIN, self.domain.as_bytes())
            .number(TAG_PORT, u64::from(self.port))
            .number(TAG_MEMBERS, u64::from(self.members))
            .finish()
    }

    fn decode(value: &[u8]) -> Result<Self, Error> {
        let record = RecordReader::open("names of cold ids", value)?;
        let names = Self {
            domain: record.text(TAG_DOMAIN)?,
            port: u16::try_from(record.number(TAG_PORT)?).unwrap_or_default(),
            members: u32::try_from(record.number(TAG_MEMBERS)?).unwrap_or(u32::MAX),
        };
        names.checked(ErrorKind::Damaged)
    }

    fn checked(self, kind: ErrorKind) -> Result<Self, Error> {
        if self.domain.len() > NAME_BYTES_MAX || self.members > Self::MEMBERS_MAX {
            let max = Self::MEMBERS_MAX;
            let text = format!("name cold ids: a domain longer than 256 bytes, or more than {max} members");
            return Err(Error::new(kind, text));
        }
        match ColdId::of_shard(0, 0, &self.domain, self.port) {
            Ok(_) => Ok(self),
            Err(error) => Err(Error::new(kind, "name cold ids").caused_by(error)),
        }
    }

    /// The ids of a shard.
    pub fn of_shard(&self, shard: u8) -> impl Iterator<Item = BookieId> + '_ {
        let id = move |index| ColdId::of_shard(shard, index, &self.domain, self.port);
        (0..self.members).filter_map(move |index| id(index).ok()).map(|id| id.to_bookie_id())
    }
}

/// Who owns a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOwner {
    /// The name of the gateway.
    pub gateway: String,
    /// The state of the key; the fence of what its owner does.
    pub version: Version,
    /// The lease it is held under.
    pub lease: Option<LeaseId>,
}

impl ShardOwner {
    fn decode(found: &Versioned) -> Result<Self, Error> {
        let gateway = RecordReader::open("shard owner", &found.value)?.text(TAG_OWNER)?;
        Ok(Self { gateway, version: found.version, lease: found.lease })
    }
}

/// A shard as its owner names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedShard {
    /// The shard.
    pub shard: u8,
    /// The version of its key when it was claimed.
    pub version: Version,
}

/// The registrations of cold ids as they were listed.
pub type ColdRegistrations = BTreeMap<BookieId, Versioned>;

/// The cold ids of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct ColdShards {
    store: Arc<dyn MetadataStore>,
}

impl ColdShards {
    /// The cold ids in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// How cold ids are named; `None` before the first release. A hint.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn names(&self) -> Result<Option<ColdNames>, Error> {
        let found = self.store.get(&layout::cold_names_key()).await?;
        found.map(|found| ColdNames::decode(&found.value)).transpose()
    }

    /// Sees to it that cold ids are named so, for at least so many members. The names are chosen once for a cluster: they stand in
    /// the metadata of released ledgers.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when the cluster's cold ids are named otherwise; [`ErrorKind::Invalid`] for names that cannot be; those
    /// of the store.
    pub async fn ensure_names(&self, wanted: &ColdNames) -> Result<ColdNames, Error> {
        let wanted = wanted.clone().checked(ErrorKind::Invalid)?;
        let key = layout::cold_names_key();
        for _ in 0..TRIES_MAX {
            let found = self.store.get_quorum(&key).await?;
            let (next, expect) = match &found {
                None => (wanted.clone(), Expect::Absent),
                Some(found) => {
                    let there = ColdNames::decode(&found.value)?;
                    if (&there.domain, there.port) != (&wanted.domain, wanted.port) {
                        let text = format!(
                            "name cold ids: those of this cluster end in .{}:{}, not in .{}:{}, and stand in the metadata of released \
                             ledgers; set the offloader's cold_domain and cold_port to them",
                            there.domain, there.port, wanted.domain, wanted.port
                        );
                        return Err(Error::new(ErrorKind::Refused, text));
                    }
                    if there.members >= wanted.members {
                        return Ok(there);
                    }
                    (wanted.clone(), Expect::At(found.version))
                }
            };
            match self.store.put_if(&key, next.encode().into(), expect).await {
                Ok(_) => return Ok(next),
                // Whatever became of it: what stands there now decides.
                Err(CommitError::Conflict { .. } | CommitError::Unknown(_)) => {}
                Err(CommitError::NotDone(error)) => return Err(error),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "name cold ids: every try met a change or an unknown outcome"))
    }

    /// The shards that have an owner. A hint.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn owners(&self) -> Result<BTreeMap<u8, ShardOwner>, Error> {
        let mut owners = BTreeMap::new();
        for (key, found) in self.list(&layout::shards_root()).await? {
            let Some(shard) = layout::parse_shard_key(&key) else { continue };
            owners.insert(shard, ShardOwner::decode(&found)?);
        }
        Ok(owners)
    }

    /// Who owns a shard, as a proof; `None` when nobody does.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn owner_quorum(&self, shard: u8) -> Result<Option<ShardOwner>, Error> {
        let found = self.store.get_quorum(&layout::shard_key(shard)).await?;
        found.as_ref().map(ShardOwner::decode).transpose()
    }

    /// Where cold ids are registered now. A hint.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn registrations(&self) -> Result<ColdRegistrations, Error> {
        let rows = self.list(&layout::readonly_root()).await?.into_iter();
        let cold = rows.filter_map(|(key, found)| {
            let (id, _) = layout::parse_registration_key(&key)?;
            is_cold(&id).then_some((id, found))
        });
        Ok(cold.collect())
    }

    async fn list(&self, root: &Key) -> Result<Vec<(Key, Versioned)>, Error> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map(|(key, _): &(Key, Versioned)| key.clone());
            let rows = self.store.list(root, after.as_ref(), LIST_PAGE).await?;
            if rows.is_empty() {
                return Ok(all);
            }
            all.extend(rows);
        }
    }

    /// Takes shards that have no owner, under the gateway's lease. Returns those that were taken; of the others some
    /// have an owner by now: look again.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseGone`]; [`ErrorKind::Invalid`] for a name that is too long; those of the store. Shards may have been taken all
    /// the same: look at the owners.
    pub async fn claim(&self, shards: &[u8], gateway: &str, lease: LeaseId) -> Result<Vec<OwnedShard>, Error> {
        if gateway.len() > crate::KEY_BYTES_MAX {
            return Err(Error::new(ErrorKind::Invalid, "claim shards: the gateway's name is longer than 1024 bytes"));
        }
        let value = Bytes::from(RecordWriter::new().bytes(TAG_OWNER, gateway.as_bytes()).finish());
        let mut claimed = Vec::new();
        for part in shards.chunks(CLAIMED_TOGETHER) {
            let put = |transaction: Transaction, shard: &u8| {
                transaction.put_leased(layout::shard_key(*shard), value.clone(), Expect::Absent, lease)
            };
            match self.store.commit(part.iter().fold(Transaction::new(), put)).await {
                Ok(done) => {
                    let owned = part.iter().enumerate();
                    claimed
                        .extend(owned.map(|(op, shard)| OwnedShard { shard: *shard, version: done.put_version(op) }));
                }
                Err(CommitError::Conflict { .. }) => {}
                Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => return Err(error),
            }
        }
        Ok(claimed)
    }

    /// Gives a shard back. Nothing happens when it was lost already.
    ///
    /// # Errors
    /// Those of the store; repeat.
    pub async fn give_up(&self, owned: OwnedShard) -> Result<(), Error> {
        match self.store.delete_if(&layout::shard_key(owned.shard), Expect::At(owned.version)).await {
            Ok(()) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => Err(error),
        }
    }

    /// Registers the ids of an owned shard at `info`, in one transaction with the condition that it is still owned and that the
    /// registrations are as `now` lists them. Returns how many were new or moved; `None` when a condition did not hold, and nothing
    /// was done.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an address that is not `host:port`; those of the store. May be repeated.
    pub async fn register(
        &self,
        owned: OwnedShard,
        names: &ColdNames,
        info: &BookieInfo,
        now: &ColdRegistrations,
    ) -> Result<Option<usize>, Error> {
        debug_assert!(owned.shard < COLD_SHARDS, "shards are below {COLD_SHARDS}");
        let value = Bytes::from(info.encode()?);
        let mut transaction = Transaction::new().check(layout::shard_key(owned.shard), Expect::At(owned.version));
        let mut moved = 0;
        for id in names.of_shard(owned.shard) {
            let key = layout::readonly_key(&id);
            transaction = match now.get(&id) {
                Some(found) if found.value == value && found.lease.is_none() => {
                    transaction.check(key, Expect::At(found.version))
                }
                found => {
                    moved += 1;
                    let expect = found.map_or(Expect::Absent, |found| Expect::At(found.version));
                    transaction.put(key, value.clone(), expect)
                }
            };
        }
        match self.store.commit(transaction).await {
            Ok(_) => Ok(Some(moved)),
            Err(CommitError::Conflict { .. }) => Ok(None),
            Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => Err(error),
        }
    }

    /// Watches names and owners.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn watch(&self) -> Result<WatchStream, Error> {
        self.store.watch(&layout::cold_root()).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
