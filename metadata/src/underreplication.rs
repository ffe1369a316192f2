//! Ledgers that lack replicas, and the locks of those who change replicas: what BookKeeper's auto-recovery and bookies share.
//!
//! An auditor marks a ledger; a worker takes the ledger's lock, looks again, makes the replicas, removes the mark. A bookie that is to
//! drop a copy which no ledger's metadata names takes the same lock, so that no worker is just writing that copy. Locks are leased: those
//! of a process that died end by themselves. Everybody honours them; nothing enforces them.
//!
//! Keys and values are BookKeeper's; on ZooKeeper they are where Java's auto-recovery looks, and it works beside us unchanged.

mod text;

use std::sync::Arc;

use ::ledger::{BookieId, LedgerId};

pub use text::Mark;

use crate::{
    CommitError, Error, ErrorKind, Expect, Key, LeaseId, MetadataStore, OPS_MAX, Transaction, Version, Versioned,
    WriteError, layout, listing, resolve,
};

const TRIES_MAX: usize = 8;
const LIST_PAGE: usize = 500;

/// A mark in the version it was read in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMark {
    /// What it says.
    pub mark: Mark,
    /// What removing it must name.
    pub version: Version,
}

/// What became of a wish for locks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locked {
    /// Held by the caller's lease now.
    pub taken: Vec<RepairLock>,
    /// Held by somebody else, as far as could be seen.
    pub held: Vec<LedgerId>,
}

/// A ledger's lock in the version it was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepairLock {
    /// The ledger.
    pub ledger: LedgerId,
    /// The state of its key.
    pub version: Version,
}

/// What auto-recovery knows of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct UnderReplication {
    store: Arc<dyn MetadataStore>,
}

impl UnderReplication {
    /// That of the cluster in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// Whether a ledger is marked, as a proof. A mark that cannot be read is a mark.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_marked(&self, ledger: LedgerId) -> Result<bool, Error> {
        Ok(self.store.get_quorum(&layout::mark_key(ledger)).await?.is_some())
    }

    /// A ledger's mark, as a proof.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn mark(&self, ledger: LedgerId) -> Result<Option<StoredMark>, Error> {
        let found = self.store.get_quorum(&layout::mark_key(ledger)).await?;
        found.as_ref().map(stored).transpose()
    }

    /// Marks a ledger: the members in `missing` are added to those that are named already. Naming them again changes the time only,
    /// so an unknown outcome may be repeated.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`] when there is a mark that cannot be read.
    pub async fn add_mark(&self, ledger: LedgerId, missing: &[&str], now_ms: i64) -> Result<(), Error> {
        let key = layout::mark_key(ledger);
        let mut last = None;
        for _ in 0..TRIES_MAX {
            let found = self.store.get_quorum(&key).await?.as_ref().map(stored).transpose()?;
            let expect = found.as_ref().map_or(Expect::Absent, |found| Expect::At(found.version));
            let mut mark = found.map(|found| found.mark).unwrap_or_default();
            for replica in missing {
                if !mark.replicas.iter().any(|known| known == replica) {
                    mark.replicas.push((*replica).to_owned());
                }
            }
            mark.ctime_ms = Some(now_ms);
            match self.store.put_if(&key, mark.encode(), expect).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict { .. }) => {}
                Err(CommitError::NotDone(error)) => return Err(error),
                Err(CommitError::Unknown(error)) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("mark ledger {ledger}: every try met a change"))
        }))
    }

    /// Removes a mark in the version that was worked on. One that is gone is a success.
    ///
    /// # Errors
    /// `Conflict` when it was marked anew meanwhile.
    pub async fn remove_mark(&self, ledger: LedgerId, version: Version) -> Result<(), WriteError<()>> {
        let removed = resolve::delete(&*self.store, &layout::mark_key(ledger), Expect::At(version)).await;
        removed.map_err(|error| match error {
            WriteError::Conflict(_) => WriteError::Conflict(()),
            WriteError::NotDone(error) => WriteError::NotDone(error),
            WriteError::Unknown(error) => WriteError::Unknown(error),
        })
    }

    /// Up to `limit` marked ledgers after `after`, in the order of ids. Only an empty page is the end. A hint.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self, after: Option<LedgerId>, limit: usize) -> Result<Vec<(LedgerId, StoredMark)>, Error> {
        let read = |key: &Key, found: Versioned| {
            let ledger = layout::parse_mark_key(key)?;
            Some(stored(&found).map(|mark| (ledger, mark)))
        };
        let after = after.map(layout::mark_key);
        listing::page(&*self.store, &layout::marks_root(), after, limit, |_| false, read).await
    }

    /// Takes the locks of some ledgers in the name of `holder`, under a lease: those that nobody holds. A few transactions for
    /// [`OPS_MAX`] ledgers each. Locks are given back with the lease, or one by one with [`UnderReplication::unlock`].
    ///
    /// # Errors
    /// [`ErrorKind::LeaseGone`]; those of the store. Locks may have been taken all the same: end the lease.
    pub async fn lock(&self, ledgers: &[LedgerId], holder: &BookieId, lease: LeaseId) -> Result<Locked, Error> {
        let mut locked = Locked::default();
        for part in ledgers.chunks(OPS_MAX) {
            self.lock_part(part.to_vec(), holder, lease, &mut locked).await?;
        }
        Ok(locked)
    }

    async fn lock_part(
        &self,
        mut wanted: Vec<LedgerId>,
        holder: &BookieId,
        lease: LeaseId,
        locked: &mut Locked,
    ) -> Result<(), Error> {
        let value = text::encode_holder(holder.as_str());
        for _ in 0..TRIES_MAX {
            if wanted.is_empty() {
                return Ok(());
            }
            let put = |transaction: Transaction, ledger: &LedgerId| {
                transaction.put_leased(layout::repair_lock_key(*ledger), value.clone(), Expect::Absent, lease)
            };
            let refused = match self.store.commit(wanted.iter().fold(Transaction::new(), put)).await {
                Ok(done) => {
                    let taken = wanted.iter().enumerate();
                    locked.taken.extend(
                        taken.map(|(op, ledger)| RepairLock { ledger: *ledger, version: done.put_version(op) }),
                    );
                    return Ok(());
                }
                Err(CommitError::Conflict { op, .. }) => op,
                Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => return Err(error),
            };
            // One was held. Others may be too: all are looked at now, so that the next try leaves them out.
            let mut free = Vec::with_capacity(wanted.len());
            for (op, ledger) in wanted.into_iter().enumerate() {
                let is_held = op == refused || self.store.get(&layout::repair_lock_key(ledger)).await?.is_some();
                if is_held { locked.held.push(ledger) } else { free.push(ledger) }
            }
            wanted = free;
        }
        locked.held.append(&mut wanted);
        Ok(())
    }

    /// Gives a lock back. Nothing happens when it was lost already.
    ///
    /// # Errors
    /// Those of the store; repeat, or end the lease.
    pub async fn unlock(&self, lock: RepairLock) -> Result<(), Error> {
        match self.store.delete_if(&layout::repair_lock_key(lock.ledger), Expect::At(lock.version)).await {
            Ok(()) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => Err(error),
        }
    }

    /// Who holds a ledger's lock; empty for a holder without a name, `None` when nobody does. A hint.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn lock_holder(&self, ledger: LedgerId) -> Result<Option<String>, Error> {
        let found = self.store.get(&layout::repair_lock_key(ledger)).await?;
        found.map(|found| text::decode_holder(&found.value)).transpose()
    }

    /// Whether auto-recovery is switched off. A hint.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_disabled(&self) -> Result<bool, Error> {
        Ok(self.store.get(&layout::recovery_disabled_key()).await?.is_some())
    }

    /// Who is auditor: the bookie of the vote with the lowest number; `None` when nobody stands for election. A hint.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn auditor(&self) -> Result<Option<String>, Error> {
        let root = layout::auditor_votes_root();
        let mut votes = Vec::new();
        loop {
            let after = votes.last().map(|(key, _): &(Key, Versioned)| key.clone());
            let rows = self.store.list(&root, after.as_ref(), LIST_PAGE).await?;
            if rows.is_empty() {
                break;
            }
            votes.extend(rows);
        }
        let number = |key: &Key| key.name().strip_prefix("V_").and_then(|number| number.parse::<i64>().ok());
        let first = votes.into_iter().filter_map(|(key, vote)| Some((number(&key)?, vote))).min_by_key(|(n, _)| *n);
        first.map(|(_, vote)| text::decode_holder(&vote.value)).transpose()
    }
}

fn stored(found: &Versioned) -> Result<StoredMark, Error> {
    Ok(StoredMark { mark: Mark::decode(&found.value)?, version: found.version })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
