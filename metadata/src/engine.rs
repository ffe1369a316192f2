//! The decisions of every store that lives in this process: order of commits, revisions, leases, watches. What is below it, a
//! map or a disk, only keeps rows.
//!
//! Consistency: one lock orders all commits. Conditions are decided against the rows under that lock, then the rows are
//! written, then watchers are told, then the caller is answered.
//! Failure: when rows cannot be written, nobody knows which of them would be there after a restart. That commit is *unknown*,
//! and from then on the engine takes no writes and gives no proofs; the first reason is kept. Missing space alone is made good
//! without a restart: once the rows can be written again, they say whether the failed commit is among them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::blocking::run_blocking;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::decide::{After, Refusal, Write, decide};
use crate::leases::Leases;
use crate::watch::Hub;
use crate::{
    CommitError, Committed, Error, ErrorKind, Key, LeaseId, MetadataStore, Transaction, Version, Versioned, WatchStream,
};

/// The most bytes of values that one page of a listing holds, except that one row always fits.
pub(crate) const PAGE_BYTES_MAX: usize = 4 << 20;

/// Where the rows are kept.
pub trait Rows: Send + Sync + 'static {
    /// Whether the calls wait for a disk, so that they must run where blocking is allowed.
    const BLOCKING: bool;

    /// One row.
    fn get(&self, key: &Key) -> Result<Option<Versioned>, Error>;

    /// Rows strictly below `prefix` after `after`, in order, at most `limit` and about [`PAGE_BYTES_MAX`].
    fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error>;

    /// Makes all writes durable under `revision`, atomically. On an error they may or may not be there after a restart.
    fn apply(&self, revision: u64, writes: &[Write]) -> Result<(), Error>;

    /// Whether a failed [`Rows::apply`] was for want of space, so that [`Rows::go_on`] may be tried.
    fn is_full(&self, error: &Error) -> bool;

    /// Makes the rows writable again after a failed [`Rows::apply`], and gives the revision they are at: what a restart at any
    /// later time finds too.
    fn go_on(&self) -> Result<u64, Error>;
}

/// How long after a failed try to go on the next one may come.
const GO_ON_PAUSE: Duration = Duration::from_secs(1);

/// A write failed, and what it left is unknown.
struct Poison {
    /// The first reason.
    reason: String,
    revision: u64,
    /// What the failed write was to do, and whether it has to be done in any case.
    writes: Vec<Write>,
    must_happen: bool,
    /// When to try to go on; `None` for never.
    try_at: Option<Instant>,
}

impl Poison {
    fn error(&self) -> Error {
        let what = match self.try_at {
            Some(_) => "an earlier write found no space, it goes on when there is some",
            None => "an earlier write failed, reopen it to go on",
        };
        Error::new(ErrorKind::Poisoned, format!("use metadata store: {what}: {}", self.reason))
    }
}

pub(crate) struct Engine<R> {
    rows: R,
    /// The revision of the last commit; held while a commit is decided and written.
    writer: Mutex<u64>,
    /// Taken after `writer` where both are. Never held while rows are written, so that keeping a lease alive waits for no disk.
    leases: Mutex<Leases>,
    /// Taken after `writer` where both are.
    poison: Mutex<Option<Poison>>,
    hub: Hub,
    /// Tells the timer that an earlier deadline has come up.
    deadline_changed: Arc<Notify>,
    timer: Mutex<Option<JoinHandle<()>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while one of these is held is a bug that has been reported already; the data itself is changed only in steps
    // that cannot panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R: Rows> Engine<R> {
    /// Whether the rows are known and can be written; goes on after missing space when it is time to.
    fn check_usable(&self, revision: &mut u64) -> Result<(), Error> {
        match locked(&self.poison).as_ref() {
            None => return Ok(()),
            Some(found) if found.try_at.is_none_or(|try_at| Instant::now() < try_at) => return Err(found.error()),
            Some(_) => {}
        }
        // Not under the lock, which callers that must not wait for a disk take too; the caller's lock of `writer` keeps the order.
        let outcome = self.rows.go_on();
        let mut poison = locked(&self.poison);
        let Some(found) = poison.as_mut() else { return Ok(()) };
        let at = match outcome {
            Ok(at) => at,
            Err(error) if self.rows.is_full(&error) => {
                found.try_at = Some(Instant::now() + GO_ON_PAUSE);
                return Err(found.error());
            }
            Err(error) => {
                found.reason = format!("{error}{}", error_sources(&error));
                found.try_at = None;
                tracing::error!(reason = found.reason, "metadata cannot go on after it found no space");
                return Err(found.error());
            }
        };
        let Some(Poison { revision: failed, writes, must_happen, .. }) = poison.take() else { return Ok(()) };
        drop(poison);
        let happened = at == failed;
        tracing::info!(happened, "metadata can be written again");
        if happened {
            self.tell(Version::new(failed), &writes);
        } else if must_happen {
            self.write(revision, &writes, must_happen)?;
        }
        Ok(())
    }

    fn is_poisoned(&self) -> bool {
        locked(&self.poison).is_some()
    }

    /// Writes rows as the next revision. On failure the store is poisoned and that revision is never given again.
    fn write(&self, revision: &mut u64, writes: &[Write], must_happen: bool) -> Result<Version, Error> {
        *revision += 1;
        if let Err(error) = self.rows.apply(*revision, writes) {
            let reason = format!("{error}{}", error_sources(&error));
            tracing::error!(reason, "metadata write failed, no more writes are taken");
            let try_at = self.rows.is_full(&error).then(|| Instant::now() + GO_ON_PAUSE);
            let (revision, writes) = (*revision, writes.to_vec());
            *locked(&self.poison) = Some(Poison { reason, revision, writes, must_happen, try_at });
            return Err(error);
        }
        let version = Version::new(*revision);
        self.tell(version, writes);
        Ok(version)
    }

    /// Binds leases to what was written, and tells watchers.
    fn tell(&self, version: Version, writes: &[Write]) {
        let mut leases = locked(&self.leases);
        let told: Vec<_> = writes
            .iter()
            .map(|write| {
                leases.bind(&write.key, write.value.as_ref().and_then(|(_, lease)| *lease));
                (write.key.clone(), write.value.is_some().then_some(version))
            })
            .collect();
        drop(leases);
        self.hub.publish(&told);
    }

    fn commit(&self, transaction: &Transaction, now: Instant) -> Result<Committed, CommitError> {
        transaction.validate().map_err(CommitError::NotDone)?;
        let mut revision = locked(&self.writer);
        self.check_usable(&mut revision).map_err(CommitError::NotDone)?;
        self.expire(&mut revision, now).map_err(CommitError::NotDone)?;
        let alive = |lease| locked(&self.leases).is_alive(lease, now);
        let changes = decide(transaction, |key| self.rows.get(key), alive).map_err(|refusal| match refusal {
            Refusal::Conflict { op, found } => CommitError::Conflict { op, found },
            Refusal::LeaseGone(lease) => CommitError::NotDone(lease_gone(lease)),
            Refusal::Lookup(error) => CommitError::NotDone(error),
        })?;
        let written = if changes.writes.is_empty() {
            None
        } else {
            Some(self.write(&mut revision, &changes.writes, false).map_err(CommitError::Unknown)?)
        };
        let versions = changes
            .after
            .into_iter()
            .map(|after| match after {
                After::Absent => None,
                After::Unchanged(version) => Some(version),
                After::Written => written,
            })
            .collect();
        Ok(Committed { versions })
    }

    /// Ends the leases that are due.
    fn expire(&self, revision: &mut u64, now: Instant) -> Result<(), Error> {
        let due = locked(&self.leases).due(now);
        for lease in due {
            self.end(revision, lease)?;
        }
        Ok(())
    }

    fn end(&self, revision: &mut u64, lease: LeaseId) -> Result<(), Error> {
        let Some(keys) = locked(&self.leases).remove(lease) else { return Ok(()) };
        if keys.is_empty() {
            return Ok(());
        }
        tracing::debug!(?lease, keys = keys.len(), "lease ended");
        let writes: Vec<_> = keys.into_iter().map(|key| Write { key, value: None }).collect();
        // The lease is over in any case, and with this its keys are known to nobody else.
        self.write(revision, &writes, true).map(drop)
    }

    fn end_due(&self, now: Instant) {
        let mut revision = locked(&self.writer);
        if self.check_usable(&mut revision).is_ok() {
            // A failure is kept in `poison` and logged there.
            let _ = self.expire(&mut revision, now);
        }
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let mut revision = locked(&self.writer);
        self.check_usable(&mut revision)?;
        self.end(&mut revision, lease)
    }

    fn prove(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        if self.is_poisoned() {
            self.check_usable(&mut locked(&self.writer))?;
        }
        self.rows.get(key)
    }
}

impl<R> Drop for Engine<R> {
    fn drop(&mut self) {
        if let Some(timer) = locked(&self.timer).take() {
            timer.abort();
        }
    }
}

fn lease_gone(lease: LeaseId) -> Error {
    Error::new(ErrorKind::LeaseGone, format!("use lease {lease}: it has ended"))
}

fn error_sources(error: &Error) -> String {
    let mut text = String::new();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

/// A [`MetadataStore`] in this process, over rows in memory or on disk.
pub struct LocalStore<R: Rows> {
    engine: Arc<Engine<R>>,
}

impl<R: Rows> LocalStore<R> {
    /// `revision` is the highest that rows have ever had.
    pub(crate) fn over(rows: R, revision: u64) -> Self {
        let engine = Engine {
            rows,
            writer: Mutex::new(revision),
            leases: Mutex::default(),
            poison: Mutex::default(),
            hub: Hub::default(),
            deadline_changed: Arc::default(),
            timer: Mutex::default(),
        };
        Self { engine: Arc::new(engine) }
    }

    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Engine<R>) -> T + Send + 'static,
    ) -> T {
        run(Arc::clone(&self.engine), name, work).await
    }

    /// The timer starts with the first lease, because only then a runtime is sure to be there.
    fn start_timer(&self) {
        let mut timer = locked(&self.engine.timer);
        if timer.as_ref().is_none_or(JoinHandle::is_finished) {
            let changed = Arc::clone(&self.engine.deadline_changed);
            *timer = Some(tokio::spawn(end_leases(Arc::downgrade(&self.engine), changed)));
        }
    }
}

async fn run<R: Rows, T: Send + 'static>(
    engine: Arc<Engine<R>>,
    name: &'static str,
    work: impl FnOnce(&Engine<R>) -> T + Send + 'static,
) -> T {
    if R::BLOCKING { run_blocking(name, move || work(&engine)).await } else { work(&engine) }
}

/// Ends leases when they are due. Belongs to the engine, which stops it when dropped.
async fn end_leases<R: Rows>(engine: Weak<Engine<R>>, changed: Arc<Notify>) {
    loop {
        let Some(next) = engine.upgrade().map(|engine| locked(&engine.leases).next_deadline()) else { return };
        match next {
            None => changed.notified().await,
            Some(deadline) => tokio::select! {
                () = changed.notified() => {}
                () = tokio::time::sleep_until(deadline) => {
                    let Some(engine) = engine.upgrade() else { return };
                    let poisoned = run(engine, "end leases", |engine| {
                        engine.end_due(Instant::now());
                        engine.is_poisoned()
                    });
                    if poisoned.await {
                        // The deadline stays where it is, so that it is no wait any more.
                        tokio::time::sleep(GO_ON_PAUSE).await;
                    }
                }
            },
        }
    }
}

#[async_trait]
impl<R: Rows> MetadataStore for LocalStore<R> {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let key = key.clone();
        self.run("get metadata", move |engine| engine.rows.get(&key)).await
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let key = key.clone();
        self.run("get metadata", move |engine| engine.prove(&key)).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        let now = Instant::now();
        self.run("commit metadata", move |engine| engine.commit(&transaction, now)).await
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        if limit == 0 {
            return Err(Error::new(ErrorKind::Invalid, "list keys: the limit is 0"));
        }
        let (prefix, after) = (prefix.clone(), after.cloned());
        self.run("list metadata", move |engine| engine.rows.list(&prefix, after.as_ref(), limit)).await
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        Ok(self.engine.hub.watch(prefix))
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        if self.engine.is_poisoned() {
            self.run("go on with metadata", |engine| engine.check_usable(&mut locked(&engine.writer))).await?;
        }
        let lease = locked(&self.engine.leases).grant(ttl, Instant::now());
        self.start_timer();
        self.engine.deadline_changed.notify_one();
        Ok(lease)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let kept = locked(&self.engine.leases).keep_alive(lease, Instant::now());
        if kept { Ok(()) } else { Err(lease_gone(lease)) }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.run("revoke lease", move |engine| engine.revoke(lease)).await
    }
}

/// The half-open range of names strictly below `prefix`.
pub(crate) fn subtree(prefix: &Key) -> (String, String) {
    // '0' is the character after '/'.
    (format!("{prefix}/"), format!("{prefix}0"))
}

/// Collects one page; shared so that every store cuts pages alike.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) rows: Vec<(Key, Versioned)>,
    bytes: usize,
}

impl Page {
    /// Takes a row if it fits; false when the page is full.
    pub(crate) fn push(&mut self, key: Key, value: Versioned, limit: usize) -> bool {
        let bytes = self.bytes.saturating_add(value.value.len());
        if self.rows.len() >= limit || (bytes > PAGE_BYTES_MAX && !self.rows.is_empty()) {
            return false;
        }
        self.bytes = bytes;
        self.rows.push((key, value));
        true
    }
}

pub(crate) fn row(value: Bytes, revision: u64, lease: Option<LeaseId>) -> Versioned {
    Versioned { value, version: Version::new(revision), lease }
}
