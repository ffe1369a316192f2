//! A commit: read what the keys are, assert it and change it in one request, and begin again when it was not so any more.
//!
//! Nothing is done before that request, and a refused one does nothing; so beginning again is safe, and only an answer that did not
//! come leaves the outcome unknown. A refused request is a barrier as well: what is read next is not older than the refusal, and a
//! condition that does not hold then is told as a conflict. Without a refusal before, a member that lags may have shown the old
//! state, so the keys are read again behind a barrier first.

use std::collections::BTreeSet;

use futures::future::{join_all, try_join_all};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{
    Acls, Client, CreateMode, CreateOptions, Error as ClientError, MultiWriteError, MultiWriteResult,
};

use super::Shared;
use super::fault::Failure;
use super::links::{CALL_DEADLINE, barrier};
use super::names::{COLLECTIONS, Place};
use super::request::{self, Plan, Seen, Step, plan};
use crate::{CommitError, Committed, Error, ErrorKind, Expect, LeaseId, Op, Transaction, Versioned, layout};

/// Being refused means that someone else went on, so only a broken store comes near this.
const TRIES_MAX: usize = 100;

pub(super) const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());

/// How the keys are read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// As the member has them: they may be old.
    First,
    /// Behind a barrier, since what was read first does not hold.
    BehindBarrier,
    /// After a refusal, which is a barrier; `find_missing`: perhaps of a directory that is not there.
    AfterRefusal { find_missing: bool },
}

pub(super) async fn commit(shared: &Shared, transaction: &Transaction) -> Result<Committed, CommitError> {
    transaction.validate().map_err(CommitError::NotDone)?;
    let lease = lease_of(transaction).map_err(CommitError::NotDone)?;
    let keys = transaction.ops().iter().map(Op::key);
    let layout = shared.layout_for(keys).await.map_err(CommitError::NotDone)?;
    let place = |op: &Op| shared.names.place(op.key(), layout);
    let places = transaction.ops().iter().map(place).collect::<Result<Vec<_>, _>>().map_err(CommitError::NotDone)?;
    let give_up = Instant::now() + CALL_DEADLINE;
    let work = Work { shared, transaction, places: &places, lease, give_up };
    let done = work.run().await;
    if lease.is_some() {
        shared.links.shown_elsewhere();
    }
    done
}

/// The one lease of a transaction: what is held by a session can only be made on it.
fn lease_of(transaction: &Transaction) -> Result<Option<LeaseId>, Error> {
    let leases: BTreeSet<_> = transaction
        .ops()
        .iter()
        .filter_map(|op| match op {
            Op::Put { lease, .. } => *lease,
            Op::Check { .. } | Op::Delete { .. } => None,
        })
        .collect();
    match leases.len() {
        0 | 1 => Ok(leases.into_iter().next()),
        _ => {
            let message = "commit metadata: one transaction cannot put under two leases of ZooKeeper";
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

struct Work<'a> {
    shared: &'a Shared,
    transaction: &'a Transaction,
    places: &'a [Place],
    lease: Option<LeaseId>,
    give_up: Instant,
}

/// A session in use for a commit.
struct Link {
    client: Client,
    /// Set when it is the session that others share.
    shared: Option<std::sync::Arc<super::links::Session>>,
}

impl Work<'_> {
    async fn run(&self) -> Result<Committed, CommitError> {
        let what = "commit metadata";
        let mut reading = Reading::First;
        let mut passing: Option<Failure> = None;
        for tried in 0..TRIES_MAX {
            // Nothing was sent that may have been done, up to the request below.
            let read = timeout_at(self.give_up, async {
                let link = self.link().await?;
                let seen = self.read(&link.client, reading).await;
                Ok::<_, Failure>((link, seen))
            });
            let (link, seen) = match read.await {
                Ok(Ok((link, Ok(seen)))) => (link, seen),
                Ok(Ok((link, Err(error)))) => {
                    let failure = self.failed(&error);
                    self.discard(&link);
                    if !failure.is_passing() || passing.is_some() || self.lease.is_some() {
                        return Err(not_done(passing.unwrap_or(failure)));
                    }
                    passing = Some(failure);
                    reading = Reading::First;
                    continue;
                }
                Ok(Err(failure)) => return Err(not_done(passing.unwrap_or(failure))),
                Err(_) => return Err(not_done(passing.unwrap_or_else(|| Failure::silent(what, CALL_DEADLINE)))),
            };
            let steps = match plan(self.transaction, self.places, &seen) {
                Plan::Send(steps) => steps,
                Plan::Broken(_) if reading == Reading::First => {
                    reading = Reading::BehindBarrier;
                    continue;
                }
                Plan::Broken(op) => return Err(self.conflict(&link.client, op).await),
            };
            match timeout_at(self.give_up, send(&link.client, &steps)).await {
                Ok(Ok(results)) => return self.settle(&link.client, &seen, &results).await,
                Ok(Err(MultiWriteError::OperationFailed { source, .. })) => {
                    let find_missing = source == ClientError::NoNode;
                    if !matches!(source, ClientError::NoNode | ClientError::NodeExists | ClientError::BadVersion) {
                        return Err(not_done(self.failed(&source)));
                    }
                    if find_missing {
                        let made = timeout_at(self.give_up, make_directories(&link.client, self.puts())).await;
                        if let Ok(Err(error)) = made {
                            return Err(not_done(Failure::answered("make directories of metadata", &error)));
                        }
                    }
                    reading = Reading::AfterRefusal { find_missing };
                    if tried > 3 {
                        tokio::time::sleep(self.shared.pause()).await;
                    }
                }
                Ok(Err(MultiWriteError::RequestFailed { source })) => {
                    self.discard(&link);
                    return Err(self.failed(&source).of_commit());
                }
                Err(_) => {
                    self.discard(&link);
                    return Err(Failure::silent(what, CALL_DEADLINE).of_commit());
                }
            }
        }
        let message = format!("{what}: {TRIES_MAX} tries each met another change");
        Err(CommitError::NotDone(Error::new(ErrorKind::Unavailable, message)))
    }

    async fn link(&self) -> Result<Link, Failure> {
        match self.lease {
            Some(lease) => {
                let client = self.shared.leases.client(lease).await.map_err(Failure::unsent)?;
                Ok(Link { client, shared: None })
            }
            None => {
                let session = self.shared.links.session().await?;
                Ok(Link { client: session.client.clone(), shared: Some(session) })
            }
        }
    }

    fn discard(&self, link: &Link) {
        if let Some(session) = &link.shared {
            self.shared.links.give_back(session);
        }
    }

    /// A request that failed as a whole. The end of a lease's session is the end of the lease.
    fn failed(&self, error: &ClientError) -> Failure {
        let failure = Failure::answered("commit metadata", error);
        match (self.lease, error) {
            (Some(lease), ClientError::SessionExpired | ClientError::ClientClosed) => {
                Failure { error: super::leases::gone(lease), ..failure }
            }
            _ => failure,
        }
    }

    /// What the keys are, in the order of the operations.
    async fn read(&self, client: &Client, reading: Reading) -> Result<Vec<Seen>, ClientError> {
        if reading == Reading::BehindBarrier {
            barrier(client).await?;
        }
        let find_missing = reading == Reading::AfterRefusal { find_missing: true };
        try_join_all(self.transaction.ops().iter().zip(self.places).map(|(op, place)| async move {
            match reading {
                Reading::First if request::may_stay_unread(op) => Ok(Seen::Unread),
                _ => see(client, place, find_missing).await,
            }
        }))
        .await
    }

    /// The znodes that are written, and whose directories must be there.
    fn puts(&self) -> impl Iterator<Item = &str> {
        self.transaction.ops().iter().zip(self.places).filter_map(|(op, place)| match op {
            Op::Put { .. } => Some(place.path()),
            Op::Check { .. } | Op::Delete { .. } => None,
        })
    }

    /// A condition that does not hold, with what is there instead. When that cannot be read, nothing is told of the key: callers
    /// take "nothing there" for a deletion.
    async fn conflict(&self, client: &Client, op: usize) -> CommitError {
        match timeout_at(self.give_up, super::listing::read_value(client, &self.places[op])).await {
            Ok(Ok(found)) => CommitError::Conflict { op, found },
            Ok(Err(error)) => not_done(self.failed(&error)),
            Err(_) => not_done(Failure::silent("read what a commit met", CALL_DEADLINE)),
        }
    }

    async fn settle(
        &self,
        client: &Client,
        seen: &[Seen],
        results: &[MultiWriteResult],
    ) -> Result<Committed, CommitError> {
        // All that one request writes gets the number of its transaction.
        let written = results.iter().find_map(|result| match result {
            MultiWriteResult::Create { stat, .. } | MultiWriteResult::SetData { stat } if !stat.is_invalid() => {
                Some(request::version(stat))
            }
            _ => None,
        });
        let after = |op: &Op, seen: &Seen| match op {
            Op::Check { .. } => seen.version(),
            Op::Put { .. } => written,
            Op::Delete { .. } => None,
        };
        let versions = self.transaction.ops().iter().zip(seen).map(|(op, seen)| after(op, seen)).collect();
        self.prune(client).await;
        if written.is_none() && self.puts().next().is_some() {
            let message = "commit metadata: ZooKeeper's answer does not fit the request";
            return Err(CommitError::Unknown(Error::new(ErrorKind::Damaged, message)));
        }
        Ok(Committed { versions })
    }

    /// Removes the empty directories of deleted ledgers and marks, as Java does. Whoever makes one there makes them again.
    async fn prune(&self, client: &Client) {
        let deleted = self.transaction.ops().iter().zip(self.places).filter_map(|(op, place)| match (op, place) {
            (Op::Delete { .. }, place) if place.pruned() > 0 => Some((place.path(), place.pruned())),
            _ => None,
        });
        for (path, levels) in deleted {
            let own: Vec<&str> = request::parents(path).collect();
            let below_root = own.into_iter().rev().take_while(|parent| *parent != self.shared.names.root());
            for parent in below_root.take(levels) {
                if !matches!(timeout_at(self.give_up, client.delete(parent, None)).await, Ok(Ok(()))) {
                    break;
                }
            }
        }
    }
}

/// A failure before anything was sent that could be done.
fn not_done(failure: Failure) -> CommitError {
    CommitError::NotDone(failure.error)
}

pub(super) fn versioned(value: Vec<u8>, stat: &zookeeper_client::Stat) -> Versioned {
    Versioned { value: value.into(), version: request::version(stat), lease: request::lease(stat) }
}

/// The state of one key. The directory is read before the key, so that a key made again in between is noticed.
async fn see(client: &Client, place: &Place, find_missing: bool) -> Result<Seen, ClientError> {
    'again: loop {
        let bucket = place.bucket().map(|bucket| client.check_stat(bucket));
        let paths = std::iter::once(place.path()).chain(place.other());
        let stats: Vec<_> = paths.map(|path| (path, client.check_stat(path))).collect();
        let bucket_version = match bucket {
            Some(bucket) => bucket.await?.map(|stat| stat.version),
            None => Some(-1),
        };
        for (path, stat) in stats {
            if let Some(stat) = stat.await? {
                // Both were made between the two reads; directories of ours stay, so the next round has it.
                let Some(bucket_version) = bucket_version else { continue 'again };
                return Ok(Seen::Present { path: path.to_owned(), stat, bucket_version });
            }
        }
        break;
    }
    let mut missing = place.path();
    if find_missing {
        for parent in request::parents(place.path()) {
            if client.check_stat(parent).await?.is_none() {
                missing = parent;
                break;
            }
        }
    }
    Ok(Seen::Absent { missing: missing.to_owned() })
}

fn send<'a>(
    client: &'a Client,
    steps: &[Step],
) -> impl Future<Output = Result<Vec<MultiWriteResult>, MultiWriteError>> + Send + 'a {
    let mut writer = client.new_multi_writer();
    let added = steps.iter().try_for_each(|step| match step {
        Step::Check { path, version } => writer.add_check_version(path, *version),
        Step::Create { path, value, ephemeral } => {
            writer.add_create(path, value, if *ephemeral { &EPHEMERAL } else { &PERSISTENT })
        }
        Step::Set { path, value, version } => {
            writer.add_set_data(path, value, Some(*version).filter(|version| *version >= 0))
        }
        Step::Delete { path, version } => writer.add_delete(path, Some(*version)),
    });
    let sent = added.map(|()| writer.commit());
    async move {
        match sent {
            Ok(answer) => answer.await,
            Err(source) => Err(MultiWriteError::RequestFailed { source }),
        }
    }
}

/// Makes the directories above `paths`.
async fn make_directories(client: &Client, paths: impl Iterator<Item = &str>) -> Result<(), ClientError> {
    let directories: BTreeSet<&str> =
        paths.filter_map(|path| path.rsplit_once('/')).map(|(parent, _)| parent).filter(|p| !p.is_empty()).collect();
    let made = join_all(directories.into_iter().map(|directory| client.mkdir(directory, &PERSISTENT))).await;
    made.into_iter().collect()
}

/// What a cluster has besides LAYOUT and INSTANCEID when it is made: others list these directories and do not expect them to miss.
pub(super) async fn make_collections(shared: &Shared, transaction: &Transaction) -> Result<(), CommitError> {
    let makes_cluster =
        |op: &Op| matches!(op, Op::Put { expect: Expect::Absent, .. }) && *op.key() == layout::instance_key();
    if !transaction.ops().iter().any(makes_cluster) {
        return Ok(());
    }
    let make = |client: Client| {
        let paths: Vec<String> = COLLECTIONS.iter().map(|name| shared.names.shared(name)).collect();
        async move {
            for path in paths {
                client.mkdir(&path, &PERSISTENT).await?;
            }
            Ok(())
        }
    };
    let made = shared.links.repeatable("make the directories of a cluster", make).await;
    made.map_err(|failure| CommitError::NotDone(failure.error))
}
