//! Offload attempts: who is settling which ledger.
//!
//! A ledger has at most one running attempt, under one key; its version is the fence of whoever began it: the commit names it,
//! so work begun under an attempt that was stolen cannot be committed. An attempt that ends without a commit moves to the
//! abandoned ones in the same transaction, where it condemns its object; nothing else ever may.
//! An owner shows that it lives by a leased key; only attempts of dead owners can be stolen, and the theft checks that in the
//! same transaction.

use std::sync::Arc;

use ::ledger::LedgerId;
use uuid::Uuid;

use crate::record::{RecordReader, RecordWriter};
use crate::{
    CommitError, Error, ErrorKind, Expect, KEY_BYTES_MAX, Key, LeaseId, MetadataStore, Transaction, Version, Versioned,
    counter, layout, listing,
};

const TRIES_MAX: usize = 1000;

const TAG_UUID: u8 = 1;
const TAG_LEDGER: u8 = 2;
const TAG_KEY: u8 = 3;
const TAG_OWNER: u8 = 4;
const TAG_COUNTER: u8 = 5;
const TAG_STARTED_MS: u8 = 6;
const TAG_STATE: u8 = 7;

/// Whether an attempt may still commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptState {
    /// It may.
    Running,
    /// It never will; its object is condemned.
    Abandoned,
}

/// What its owner chooses of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAttempt {
    /// Fresh and random: names the object.
    pub uuid: Uuid,
    /// The ledger to settle.
    pub ledger: LedgerId,
    /// The object's key in the cold store.
    pub key: String,
    /// The owner's name; one a process start, as it is given to [`Attempts::register_owner`].
    pub owner: String,
    /// When it began, in wall-clock milliseconds since 1970; for people.
    pub started_ms: u64,
}

/// An attempt as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Names the object.
    pub uuid: Uuid,
    /// The ledger to settle.
    pub ledger: LedgerId,
    /// The object's key in the cold store.
    pub key: String,
    /// The owner's name.
    pub owner: String,
    /// The place of this attempt among all of the cluster; the commit counter of its cold record.
    pub counter: u64,
    /// When it began, in wall-clock milliseconds since 1970.
    pub started_ms: u64,
    /// Whether it may still commit.
    pub state: AttemptState,
}

impl Attempt {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        RecordWriter::new()
            .uuid(TAG_UUID, self.uuid)
            .number(TAG_LEDGER, self.ledger.get())
            .bytes(TAG_KEY, self.key.as_bytes())
            .bytes(TAG_OWNER, self.owner.as_bytes())
            .number(TAG_COUNTER, self.counter)
            .number(TAG_STARTED_MS, self.started_ms)
            .number(TAG_STATE, if self.state == AttemptState::Running { 1 } else { 2 })
            .finish()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let record = RecordReader::open("attempt", bytes)?;
        Ok(Self {
            uuid: record.uuid(TAG_UUID)?,
            ledger: record.ledger(TAG_LEDGER)?,
            key: record.text(TAG_KEY)?,
            owner: record.text(TAG_OWNER)?,
            counter: record.number(TAG_COUNTER)?,
            started_ms: record.number(TAG_STARTED_MS)?,
            state: match record.number(TAG_STATE)? {
                1 => AttemptState::Running,
                2 => AttemptState::Abandoned,
                other => return Err(Error::new(ErrorKind::Damaged, format!("read attempt: state {other} is unknown"))),
            },
        })
    }

    fn abandoned(&self) -> Self {
        Self { state: AttemptState::Abandoned, ..self.clone() }
    }
}

/// A running attempt with the version that is its fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The attempt.
    pub attempt: Attempt,
    /// Its fence.
    pub version: Version,
}

/// Why an attempt did not begin or end as asked.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// A live owner is settling the ledger.
    #[error("ledger {} is being settled by {}", .0.attempt.ledger, .0.attempt.owner)]
    Busy(Box<AttemptRecord>),
    /// The attempt is not the ledger's running one any more: it was stolen, abandoned or committed.
    #[error("the attempt has ended")]
    Lost,
    /// Surely not done.
    #[error("the attempt was not changed")]
    NotDone(#[source] Error),
    /// Maybe done, and reading back did not settle it.
    #[error("it is unknown whether the attempt was changed")]
    Unknown(#[source] Error),
}

/// The attempts of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Attempts {
    store: Arc<dyn MetadataStore>,
}

impl Attempts {
    /// The attempts in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// Shows that `owner` lives as long as `lease` does. Fails when the name is in use: take one a process start.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when another lease has the name; those of the store.
    pub async fn register_owner(&self, owner: &str, lease: LeaseId) -> Result<(), Error> {
        let key = owner_key(owner)?;
        let put = Transaction::new().put_leased(key.clone(), "", Expect::Absent, lease);
        let error = match self.store.commit(put).await {
            Ok(_) => return Ok(()),
            Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => error,
            Err(CommitError::Conflict { .. }) => {
                Error::new(ErrorKind::Refused, format!("register owner {owner:?}: the name is in use"))
            }
        };
        match self.store.get_quorum(&key).await?.and_then(|found| found.lease) {
            Some(holder) if holder == lease => Ok(()),
            _ => Err(error),
        }
    }

    /// Begins the attempt to settle a ledger; the counter steps in the same transaction.
    ///
    /// # Errors
    /// [`AttemptError::Busy`] with the running attempt, whoever owns it: see [`Attempts::steal`].
    pub async fn begin(&self, new: NewAttempt) -> Result<AttemptRecord, AttemptError> {
        self.replace(None, new).await
    }

    /// Begins an attempt in place of `old`, whose owner must be dead or be the new attempt's own; `old` is abandoned in the
    /// same transaction.
    ///
    /// # Errors
    /// [`AttemptError::Busy`] when its owner lives or the ledger has another running attempt by now; [`AttemptError::Lost`]
    /// when the ledger has none any more.
    pub async fn steal(&self, old: &AttemptRecord, new: NewAttempt) -> Result<AttemptRecord, AttemptError> {
        self.replace(Some(old), new).await
    }

    async fn replace(&self, old: Option<&AttemptRecord>, new: NewAttempt) -> Result<AttemptRecord, AttemptError> {
        check_new(&new).map_err(AttemptError::NotDone)?;
        let attempt_key = layout::attempt_key(new.ledger);
        let counter_key = layout::commit_counter_key();
        let mut unsure: Option<Error> = None;
        for _ in 0..TRIES_MAX {
            let fail = |error: Error, unsure: Option<Error>| match unsure {
                None => AttemptError::NotDone(error),
                Some(first) => AttemptError::Unknown(first),
            };
            let counter = self.store.get_quorum(&counter_key).await.and_then(|found| counter::step(found.as_ref()));
            let (number, counter_expect) = match counter {
                Ok(step) => step,
                Err(error) => return Err(fail(error, unsure)),
            };
            let attempt = new_attempt(&new, number);
            let expect = old.map_or(Expect::Absent, |old| Expect::At(old.version));
            let mut transaction = Transaction::new()
                .put(counter_key.clone(), counter::encode(number), counter_expect)
                .put(attempt_key.clone(), attempt.encode(), expect);
            if let Some(old) = old {
                let abandoned = old.attempt.abandoned();
                transaction = transaction.put(layout::abandoned_key(abandoned.uuid), abandoned.encode(), Expect::Any);
                if old.attempt.owner != new.owner {
                    let owner = owner_key(&old.attempt.owner).map_err(AttemptError::NotDone)?;
                    transaction = transaction.check(owner, Expect::Absent);
                }
            }
            let mut owner_lives = false;
            match self.store.commit(transaction).await {
                Ok(done) => return Ok(AttemptRecord { attempt, version: done.put_version(1) }),
                Err(CommitError::Conflict { op, .. }) => owner_lives = op == 3,
                Err(CommitError::NotDone(error)) => return Err(fail(error, unsure)),
                Err(CommitError::Unknown(error)) if unsure.is_some() => return Err(fail(error, unsure)),
                Err(CommitError::Unknown(error)) => unsure = Some(error),
            }
            match self.get(new.ledger).await {
                // Ours, by a try whose answer was lost.
                Ok(Some(found)) if found.attempt.uuid == new.uuid => return Ok(found),
                Ok(Some(found)) if owner_lives || old.is_none_or(|old| found.version != old.version) => {
                    return Err(AttemptError::Busy(Box::new(found)));
                }
                Ok(None) if old.is_some() => return Err(AttemptError::Lost),
                // The counter went on, or our try was not done: the attempt may still be begun.
                Ok(_) => {}
                Err(error) => return Err(fail(error, unsure)),
            }
        }
        Err(match unsure {
            Some(error) => AttemptError::Unknown(error),
            None => AttemptError::NotDone(Error::new(ErrorKind::Unavailable, "begin attempt: every try met a change")),
        })
    }

    /// Ends a running attempt without a commit: its object is condemned from now on.
    ///
    /// # Errors
    /// [`AttemptError::Lost`] when it is not running any more and was not abandoned either, so its object may be committed.
    pub async fn abandon(&self, record: &AttemptRecord) -> Result<(), AttemptError> {
        let attempt = record.attempt.abandoned();
        let abandoned_key = layout::abandoned_key(attempt.uuid);
        let mut unsure: Option<Error> = None;
        for _ in 0..4 {
            let transaction = Transaction::new()
                .delete(layout::attempt_key(attempt.ledger), Expect::At(record.version))
                .put(abandoned_key.clone(), attempt.encode(), Expect::Any);
            let lost = match self.store.commit(transaction).await {
                Ok(_) => return Ok(()),
                Err(CommitError::NotDone(error)) if unsure.is_none() => return Err(AttemptError::NotDone(error)),
                Err(CommitError::NotDone(_)) => false,
                Err(CommitError::Conflict { .. }) => true,
                Err(CommitError::Unknown(error)) => {
                    unsure.get_or_insert(error);
                    false
                }
            };
            match self.store.get_quorum(&abandoned_key).await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if lost => return Err(AttemptError::Lost),
                Ok(None) => {}
                Err(error) if unsure.is_none() => return Err(AttemptError::NotDone(error)),
                Err(_) => break,
            }
        }
        Err(AttemptError::Unknown(unsure.expect("the loop goes on only after an unknown outcome")))
    }

    /// The running attempt of a ledger, by proof.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn get(&self, ledger: LedgerId) -> Result<Option<AttemptRecord>, Error> {
        self.store.get_quorum(&layout::attempt_key(ledger)).await?.map(|found| record(&found)).transpose()
    }

    /// Whether the owner of an attempt shows that it lives. A hint; [`Attempts::steal`] checks it again.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn owner_lives(&self, owner: &str) -> Result<bool, Error> {
        Ok(self.store.get(&owner_key(owner)?).await?.is_some())
    }

    /// Up to `limit` running attempts after `after`, in the order of ledgers. Only an empty page is the end. A record that
    /// cannot be read is logged and left out.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self, after: Option<LedgerId>, limit: usize) -> Result<Vec<AttemptRecord>, Error> {
        let after = after.map(layout::attempt_key);
        self.page(&layout::attempts_root(), after, limit).await
    }

    /// Up to `limit` abandoned attempts after `after`, in the order of uuids. Only an empty page is the end. A record that
    /// cannot be read is logged and left out.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list_abandoned(&self, after: Option<Uuid>, limit: usize) -> Result<Vec<AttemptRecord>, Error> {
        let after = after.map(layout::abandoned_key);
        self.page(&layout::abandoned_root(), after, limit).await
    }

    async fn page(&self, root: &Key, after: Option<Key>, limit: usize) -> Result<Vec<AttemptRecord>, Error> {
        listing::page(&*self.store, root, after, limit, |_| false, |_, found| Some(record(&found))).await
    }

    /// The highest counter given to an attempt; 0 before the first.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn counter(&self) -> Result<u64, Error> {
        match self.store.get_quorum(&layout::commit_counter_key()).await? {
            None => Ok(0),
            Some(found) => counter::decode(&found.value),
        }
    }
}

fn new_attempt(new: &NewAttempt, counter: u64) -> Attempt {
    Attempt {
        uuid: new.uuid,
        ledger: new.ledger,
        key: new.key.clone(),
        owner: new.owner.clone(),
        counter,
        started_ms: new.started_ms,
        state: AttemptState::Running,
    }
}

fn check_new(new: &NewAttempt) -> Result<(), Error> {
    owner_key(&new.owner)?;
    if new.key.is_empty() || new.key.len() > KEY_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::Invalid,
            "begin attempt: the object's key is empty or longer than 1024 bytes",
        ));
    }
    Ok(())
}

fn owner_key(owner: &str) -> Result<Key, Error> {
    if owner.contains('/') {
        return Err(Error::new(ErrorKind::Invalid, format!("check owner {owner:?}: it holds a slash")));
    }
    layout::owners_root().join(owner)
}

fn record(found: &Versioned) -> Result<AttemptRecord, Error> {
    Ok(AttemptRecord { attempt: Attempt::decode(&found.value)?, version: found.version })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
