//! A transaction as one of ZooKeeper's: pure.
//!
//! ZooKeeper's conditions are the data versions of single znodes, which begin at 0 again when a znode is made again. So what a
//! transaction wants is compared with what was read, and the request then asserts that nothing of that has changed:
//! - a znode that is there is asserted by its data version; in our hash trees also by the version of its directory, which every
//!   make changes, so that one that was removed and made again in between cannot pass for the old one. Makes, since removals are
//!   not all ours: the end of a session removes what it held, and changes no directory;
//! - a znode that is absent is asserted by making and removing it, or its first missing parent.
//!
//! Whatever does not hold any more refuses the whole request, and nothing is done.

use std::collections::BTreeMap;

use bytes::Bytes;
use zookeeper_client::Stat;

use super::names::Place;
use crate::{Expect, LeaseId, Op, Transaction, Version, layout};

/// What was read of an operation's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing: the request itself will tell whether it is absent.
    Unread,
    /// There is none. `missing`: the znode whose absence says so.
    Absent { missing: String },
    /// It is there, at `path`; `bucket_version` is that of its directory, read before it.
    Present { path: String, stat: Stat, bucket_version: i32 },
}

impl Seen {
    pub(super) fn version(&self) -> Option<Version> {
        match self {
            Self::Unread | Self::Absent { .. } => None,
            Self::Present { stat, .. } => Some(version(stat)),
        }
    }
}

/// The version of a znode's value: the number of the transaction that wrote it, which never comes again.
pub(super) fn version(stat: &Stat) -> Version {
    Version::new(stat.mzxid.cast_unsigned())
}

/// The lease that holds a znode.
pub(super) fn lease(stat: &Stat) -> Option<LeaseId> {
    // The smallest number marks containers, which no session holds.
    (stat.ephemeral_owner != 0 && stat.ephemeral_owner != i64::MIN)
        .then(|| LeaseId::new(stat.ephemeral_owner.cast_unsigned()))
}

/// One operation of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Check { path: String, version: i32 },
    Create { path: String, value: Bytes, ephemeral: bool },
    Set { path: String, value: Bytes, version: i32 },
    Delete { path: String, version: i32 },
}

/// What to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// The condition of this operation does not hold by what was read.
    Broken(usize),
    Send(Vec<Step>),
}

#[derive(Debug, Default)]
struct Bucket {
    checked: Option<i32>,
    bumped: bool,
}

/// `seen` has one entry for each operation, `places` too. Creates are sent for what is [`Seen::Unread`].
pub(super) fn plan(transaction: &Transaction, places: &[Place], seen: &[Seen]) -> Plan {
    let ops = transaction.ops().iter().zip(places).zip(seen);
    let broken = ops.clone().position(|((op, _), seen)| *seen != Seen::Unread && !op.expect().allows(seen.version()));
    if let Some(op) = broken {
        return Plan::Broken(op);
    }
    let mut buckets: BTreeMap<&str, Bucket> = BTreeMap::new();
    let mut steps = Vec::new();
    for ((op, place), seen) in ops {
        let mut makes = false;
        if let (Seen::Present { bucket_version, .. }, Some(bucket)) = (seen, place.bucket()) {
            // Of several, the one that was read first: it was read before all of the keys.
            let checked = &mut buckets.entry(bucket).or_default().checked;
            *checked = Some(checked.map_or(*bucket_version, |first| first.min(*bucket_version)));
        }
        match (op, seen) {
            (Op::Put { value, lease, .. }, Seen::Unread | Seen::Absent { .. }) => {
                if let Some(other) = place.other() {
                    assert_absent(other, &mut steps);
                }
                let (path, value) = (place.path().to_owned(), value.clone());
                steps.push(Step::Create { path, value, ephemeral: lease.is_some() });
                makes = true;
            }
            (Op::Put { value, lease, .. }, Seen::Present { path, stat, .. })
                if self::lease(stat) == *lease && layout::parse_registration_key(op.key()).is_none() =>
            {
                steps.push(Step::Set { path: path.clone(), value: value.clone(), version: stat.version });
            }
            // Who holds a znode is decided when it is made. And BookKeeper's clients look for another address of a bookie only
            // when its registration has gone.
            (Op::Put { value, lease, .. }, Seen::Present { path, stat, .. }) => {
                steps.push(Step::Delete { path: path.clone(), version: stat.version });
                steps.push(Step::Create { path: path.clone(), value: value.clone(), ephemeral: lease.is_some() });
                makes = true;
            }
            (Op::Delete { .. }, Seen::Present { path, stat, .. }) => {
                steps.push(Step::Delete { path: path.clone(), version: stat.version });
            }
            (Op::Check { .. }, Seen::Present { path, stat, .. }) => {
                steps.push(Step::Check { path: path.clone(), version: stat.version });
            }
            (Op::Delete { .. } | Op::Check { .. }, Seen::Absent { missing }) => {
                assert_absent(missing, &mut steps);
                if let Some(other) = place.other().filter(|_| missing == place.path()) {
                    assert_absent(other, &mut steps);
                }
            }
            (Op::Delete { .. } | Op::Check { .. }, Seen::Unread) => assert_absent(place.path(), &mut steps),
        }
        if let Some(bucket) = place.bucket().filter(|_| makes) {
            buckets.entry(bucket).or_default().bumped = true;
        }
    }
    if !buckets.values().any(|bucket| bucket.bumped) {
        tell_the_number(&mut steps);
    }
    // Checks of directories come first, since a change of theirs would be seen by what follows.
    let mut all = Vec::with_capacity(steps.len() + 2 * buckets.len());
    for (path, bucket) in &buckets {
        all.extend(bucket.checked.map(|version| Step::Check { path: (*path).to_owned(), version }));
    }
    all.append(&mut steps);
    for (path, bucket) in buckets {
        if bucket.bumped {
            all.push(Step::Set { path: path.to_owned(), value: Bytes::new(), version: -1 });
        }
    }
    Plan::Send(all)
}

/// Servers leave the transaction's number out of their answer to a create in a request of several (ZOOKEEPER-4026). So where
/// nothing else is set, one new znode gets its value in a step of its own, whose answer has the number.
fn tell_the_number(steps: &mut Vec<Step>) {
    if steps.iter().any(|step| matches!(step, Step::Set { .. })) {
        return;
    }
    let asserts = |place: usize, path: &String| matches!(steps.get(place + 1), Some(Step::Delete { path: removed, .. }) if removed == path);
    let found = steps.iter().enumerate().find_map(|(place, step)| match step {
        Step::Create { path, .. } if !asserts(place, path) => Some(place),
        _ => None,
    });
    if let Some(place) = found
        && let Step::Create { path, value, .. } = &mut steps[place]
    {
        let set = Step::Set { path: path.clone(), value: std::mem::take(value), version: 0 };
        steps.insert(place + 1, set);
    }
}

fn assert_absent(path: &str, steps: &mut Vec<Step>) {
    steps.push(Step::Create { path: path.to_owned(), value: Bytes::new(), ephemeral: false });
    steps.push(Step::Delete { path: path.to_owned(), version: 0 });
}

/// Whether the request needs no read of the key: a create is refused by ZooKeeper itself.
pub(super) fn may_stay_unread(op: &Op) -> bool {
    matches!(op, Op::Put { expect: Expect::Absent, .. })
}

/// The directories above `path`, the nearest to the root of ZooKeeper first.
pub(super) fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').skip(1).map(|(place, _)| &path[..place])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
