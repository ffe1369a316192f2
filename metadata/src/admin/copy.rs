//! Moving a cluster's metadata to another store, of whatever driver.
//!
//! # What goes along
//! Every key that outlives processes: ledgers, cookies, counters, abandoned attempts, the catalog, cold ids, the name, and keys of ours
//! that this release does not know. Never: what is held under a lease, running attempts (their version is their fence), other keys of
//! BookKeeper's tree. Values go byte for byte; versions do not, and no value that goes along holds one.
//!
//! # Order
//! 1. In the target, which must hold nothing: one transaction puts the marker and LAYOUT. Nobody can open it, or make a cluster in it.
//! 2. Both stores are read side by side in the order of keys; what is missing, other or too much in the target is made equal, in
//!    batches that check the marker.
//! 3. Both are read side by side again: every key and value must be equal.
//! 4. If the source still has nobody registered: the marker in the target says *closing*, and is not removed by a format from then on.
//!    Then one transaction at the source takes INSTANCEID away and puts a marker that says *moved*. No role starts on it any more.
//! 5. The target's ids are made to begin behind all that the source has given, whatever either makes them of. This is done after step 1
//!    as well, so that a target that cannot is found out before anything is copied; from step 4 on nobody is given one at the source.
//! 6. In the target: one transaction puts INSTANCEID and takes the marker away.
//!
//! # One target
//! Step 1 gives the copy an id, which stays when another run goes on, and which both markers have. A source that was moved by one copy
//! is taken by no other: two targets of one identity would both open, and the bookies of one would drop what the other creates.
//!
//! # Crash
//! There is no record of progress that could be wrong: a run that goes on begins at the first key and finds what is equal already.
//! After step 6 the same call only compares.

mod ends;

use std::cmp::Ordering;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::walk::{Row, Walk};
use super::{
    BATCH_BYTES, BATCH_KEYS, Counts, Identity, Kind, Live, Marker, State, Told, Work, live, live_sentence, refused,
    state, step_failed,
};
use crate::{AttemptError, Attempts, CommitError, Error, Expect, MetadataStore, Op, Transaction, Version, layout};

const WHAT: &str = "copy metadata";
const NAMED_MAX: usize = 5;
/// What to do about ids that cannot be moved, before the source is left and after.
const GIVE_UP: &str = "What was begun in the target is given up with `thermocline cluster format`";
const GO_ON: &str = "The source is left already: do not format the target, it has everything but these ids";

/// Both ends, looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// What the source holds.
    pub source: State,
    /// Who is registered there.
    pub live: Vec<Live>,
    /// Its running attempts.
    pub attempts: u64,
    /// What would go along.
    pub carried: Counts,
    /// What would stay.
    pub left: Counts,
    /// What the target holds.
    pub target: State,
    /// A key of the target, when there is one and no cluster or marker.
    pub stranger: Option<String>,
    /// Whether both hold the cluster's identity under one version: they are one store, named twice.
    pub same_store: bool,
}

/// What may be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Everything.
    Begin,
    /// What a run that did not end has left; with the version of its marker.
    GoOn(Marker, Version),
    /// The target holds the cluster already: nothing is written, only compared.
    Compare,
}

/// Looks at both ends; tells how many keys were counted.
///
/// # Errors
/// Those of the stores.
pub async fn survey(from: &dyn MetadataStore, to: &dyn MetadataStore, told: Told<'_>) -> Result<Survey, Error> {
    let (source, target) = (state(from).await?, state(to).await?);
    let (mut carried, mut left) = (Counts::default(), Counts::default());
    for root in roots() {
        let mut walk = Walk::all(from, root);
        while let Some((key, row)) = walk.next().await? {
            let counts = if Kind::is_carried(&key, &row) { &mut carried } else { &mut left };
            counts.add(Kind::of(&key));
            told(carried.total() + left.total());
        }
    }
    let mut stranger = None;
    if target == State::Empty {
        for root in roots() {
            let first = to.list(&root, None, 1).await?;
            stranger = stranger.or(first.into_iter().next().map(|(key, _)| key.to_string()));
        }
    }
    let mut same_store = false;
    if let (State::Cluster(_), State::Cluster(_)) = (&source, &target) {
        let key = layout::instance_key();
        let found = from.get_quorum(&key).await?;
        same_store = found.is_some() && found == to.get_quorum(&key).await?;
    }
    let attempts = left.of(Kind::Attempt);
    Ok(Survey { source, live: live(from).await?, attempts, carried, left, target, stranger, same_store })
}

impl Survey {
    /// The cluster to copy and the way to do it: pure. `abandon`: running attempts may be abandoned.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Refused`] with what stands in the way and what to do.
    pub fn way(&self, abandon: bool) -> Result<(Identity, Way), Error> {
        let (source, moved) = match &self.source {
            State::Cluster(source) => (source, None),
            State::Unfinished(marker @ Marker { work: Work::Moved, identity, .. }, _) => (identity, Some(marker)),
            other => return Err(refused(format!("nothing to copy from: {}", other.no_cluster()))),
        };
        if self.same_store {
            return Err(refused(format!(
                "source and target are one store, named twice: both hold cluster {source} under the same version"
            )));
        }
        let way = match &self.target {
            // Where it was moved to, it goes on.
            State::Empty if moved.is_some() => {
                return Err(refused(format!("nothing to copy from: {}", self.source.no_cluster())));
            }
            State::Empty => match &self.stranger {
                None => Way::Begin,
                Some(key) => {
                    return Err(refused(format!(
                        "the target is not empty: it holds {key}, and no cluster; name an empty place"
                    )));
                }
            },
            State::Cluster(found) if found.instance == source.instance => return Ok((source.clone(), Way::Compare)),
            State::Cluster(found) => return Err(refused(format!("the target holds another cluster, {found}"))),
            State::Unfinished(marker, version)
                if marker.work == Work::Copy && marker.identity.instance == source.instance =>
            {
                if moved.is_some_and(|moved| moved.copy != marker.copy) {
                    return Err(left_for_another(source));
                }
                Way::GoOn(marker.clone(), *version)
            }
            State::Unfinished(..) | State::Headless => {
                return Err(refused(format!("the target cannot be used: {}", self.target.no_cluster())));
            }
        };
        if !self.live.is_empty() {
            return Err(in_use(&self.live));
        }
        if self.attempts > 0 && !abandon {
            return Err(refused(format!(
                "attempts to settle a ledger that have not ended at the source: {}. Their fence is a version, which does not move. Let \
                 an offloader finish them, or say --abandon-attempts: their objects are condemned, and the ledgers settled anew",
                self.attempts
            )));
        }
        Ok((source.clone(), way))
    }
}

fn left_for_another(identity: &Identity) -> Error {
    refused(format!(
        "cluster {identity} was moved from the source by another copy than the one that was begun in this target, and may be at work \
         where that one went. Find it there; what was begun here can be removed with `thermocline cluster format`, with --force where it \
         asks for that"
    ))
}

fn in_use(found: &[Live]) -> Error {
    refused(format!(
        "the source is in use by {}; stop them first (the registration of one that died ends by itself, in seconds)",
        live_sentence(found)
    ))
}

/// How to copy.
#[derive(Debug, Clone, Copy)]
pub struct CopyOptions {
    /// A random one.
    pub run: Uuid,
    /// Wall-clock milliseconds since 1970, for people.
    pub now_ms: u64,
    /// Abandons running attempts at the source first.
    pub abandon_attempts: bool,
}

/// What a copy did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The cluster.
    pub identity: Identity,
    /// Whether the target held it already, so that nothing was written.
    pub only_compared: bool,
    /// Keys this run wrote.
    pub written: u64,
    /// Keys that were equal already.
    pub equal: u64,
    /// Keys of an earlier run that the source has no more.
    pub removed: u64,
    /// Attempts this run abandoned at the source.
    pub abandoned: u64,
    /// The second reading.
    pub verified: Verified,
}

/// What both sides have, read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Keys by kind.
    pub keys: Counts,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// SHA-256 over all of them in order, each behind its length in 4 bytes, big-endian: the same on both sides.
    pub sha256: [u8; 32],
}

/// Copies the cluster as [`Survey::way`] allows, proves that both sides are equal, and opens the target. `copied` and `compared` are
/// told how many keys are done.
///
/// Not cancel-safe in the sense of work done; a dropped call is gone on with by the next.
///
/// # Errors
/// [`crate::ErrorKind::Refused`] for what stands in the way, and when the source changes meanwhile; those of the stores.
pub async fn copy(
    from: &Arc<dyn MetadataStore>,
    to: &Arc<dyn MetadataStore>,
    survey: &Survey,
    options: CopyOptions,
    copied: Told<'_>,
    compared: Told<'_>,
) -> Result<Copied, Error> {
    let (identity, way) = survey.way(options.abandon_attempts)?;
    let mut done = Copied {
        identity,
        only_compared: way == Way::Compare,
        written: 0,
        equal: 0,
        removed: 0,
        abandoned: 0,
        verified: Verified { keys: Counts::default(), bytes: 0, sha256: [0; 32] },
    };
    if way == Way::Compare {
        let differ = "the target was copied from this source, and roles have been at work on one of them since";
        done.verified = verify(&**from, &**to, differ, compared).await?;
        return Ok(done);
    }
    let begun = ends::begin(&**to, &done.identity, &way, options).await?;
    let marker = begun.version;
    ends::move_ids(&**from, &**to, GIVE_UP).await?;
    done.abandoned = abandon_all(from, options.abandon_attempts).await?;
    make_equal(&**from, &**to, marker, &mut done, copied).await?;
    let differ = "someone writes to one of them; stop every role and run it again";
    done.verified = verify(&**from, &**to, differ, compared).await?;
    let live = live(&**from).await?;
    if !live.is_empty() {
        return Err(in_use(&live));
    }
    let closing = ends::close(&**to, begun, options).await?;
    ends::leave(&**from, &closing, options).await?;
    ends::move_ids(&**from, &**to, GO_ON).await?;
    ends::end(&**to, &closing).await?;
    Ok(done)
}

fn roots() -> [crate::Key; 2] {
    [layout::ledgers_root(), layout::thermocline_root()]
}

/// Ends the source's running attempts. Their owners are gone, or [`live`] would know them.
async fn abandon_all(from: &Arc<dyn MetadataStore>, allowed: bool) -> Result<u64, Error> {
    let attempts = Attempts::new(from.clone());
    let mut abandoned = 0;
    if allowed {
        let mut after = None;
        loop {
            let page = attempts.list(after, super::PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.attempt.ledger);
            for record in &page {
                match attempts.abandon(record).await {
                    Ok(()) => abandoned += 1,
                    // It ended by itself, in a commit.
                    Err(AttemptError::Lost) => {}
                    Err(AttemptError::NotDone(error) | AttemptError::Unknown(error)) => return Err(error),
                    Err(error @ AttemptError::Busy(_)) => return Err(refused(error.to_string())),
                }
            }
        }
    }
    // One that cannot be read is left out of listings of attempts, not of this one.
    let left = from.list(&layout::attempts_root(), None, 1).await?;
    match left.first() {
        None => Ok(abandoned),
        Some((key, _)) => Err(refused(format!("an attempt at the source has not ended: {key}"))),
    }
}

/// What to do about the next key of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Both are at their end.
    End,
    /// Both have it, equal.
    Equal,
    /// Both have it, with other values.
    Replace,
    /// Only the source has it.
    Put,
    /// Only the target has it.
    Remove,
}

/// Pure: rows come in the order of keys.
fn step(source: Option<&Row>, target: Option<&Row>) -> Step {
    match (source, target) {
        (None, None) => Step::End,
        (Some(_), None) => Step::Put,
        (None, Some(_)) => Step::Remove,
        (Some((key, row)), Some((other, found))) => match key.cmp(other) {
            Ordering::Less => Step::Put,
            Ordering::Greater => Step::Remove,
            Ordering::Equal if row.value == found.value => Step::Equal,
            Ordering::Equal => Step::Replace,
        },
    }
}

/// Step 2.
async fn make_equal(
    from: &dyn MetadataStore,
    to: &dyn MetadataStore,
    marker: Version,
    done: &mut Copied,
    told: Told<'_>,
) -> Result<(), Error> {
    let mut batch = Batch { marker, ops: Vec::new(), bytes: 0 };
    for root in roots() {
        let mut source = Walk::of(from, root.clone(), Kind::is_carried);
        let mut target = Walk::of(to, root, Kind::is_carried);
        loop {
            source.fill().await?;
            target.fill().await?;
            let step = step(source.head(), target.head());
            let (wanted, found) = match step {
                Step::End => break,
                Step::Put => (source.take(), None),
                Step::Remove => (None, target.take()),
                Step::Equal | Step::Replace => (source.take(), target.take()),
            };
            match (step, wanted, found) {
                (Step::Remove, _, Some((key, found))) => {
                    done.removed += 1;
                    batch.add(to, Op::Delete { key, expect: Expect::At(found.version) }, 0).await?;
                }
                (Step::Put | Step::Replace, Some((key, row)), found) => {
                    done.written += 1;
                    let expect = found.map_or(Expect::Absent, |(_, found)| Expect::At(found.version));
                    let bytes = row.value.len();
                    batch.add(to, Op::Put { key, value: row.value, expect, lease: None }, bytes).await?;
                }
                _ => done.equal += 1,
            }
            told((done.written + done.equal).saturating_sub(batch.ops.len() as u64));
        }
    }
    batch.send(to).await?;
    told(done.written + done.equal);
    Ok(())
}

/// Operations on the target that go together, while the marker stands.
struct Batch {
    marker: Version,
    ops: Vec<Op>,
    bytes: usize,
}

impl Batch {
    /// Sends what is there first when `op` does not fit any more: a value larger than a batch goes by itself.
    async fn add(&mut self, to: &dyn MetadataStore, op: Op, bytes: usize) -> Result<(), Error> {
        if self.ops.len() == BATCH_KEYS || self.bytes + bytes > BATCH_BYTES {
            self.send(to).await?;
        }
        self.ops.push(op);
        self.bytes += bytes;
        Ok(())
    }

    async fn send(&mut self, to: &dyn MetadataStore) -> Result<(), Error> {
        self.bytes = 0;
        let ops = std::mem::take(&mut self.ops);
        if ops.is_empty() {
            return Ok(());
        }
        let check = Transaction::new().check(layout::maintenance_key(), Expect::At(self.marker));
        match to.commit(ops.into_iter().fold(check, Transaction::with)).await {
            Ok(_) => Ok(()),
            Err(CommitError::Conflict { op: 0, .. }) => Err(refused(format!("{WHAT}: another run took over"))),
            Err(error) => Err(step_failed(WHAT, error)),
        }
    }
}

/// Step 3: reads both sides again. `why` says what it means when they differ.
async fn verify(
    from: &dyn MetadataStore,
    to: &dyn MetadataStore,
    why: &str,
    told: Told<'_>,
) -> Result<Verified, Error> {
    let (mut keys, mut bytes, mut differing, mut named) = (Counts::default(), 0, 0_u64, Vec::new());
    let (mut one, mut two) = (Sha256::new(), Sha256::new());
    for root in roots() {
        let mut source = Walk::of(from, root.clone(), Kind::is_carried);
        let mut target = Walk::of(to, root, Kind::is_carried);
        loop {
            source.fill().await?;
            target.fill().await?;
            let step = step(source.head(), target.head());
            let (left, right) = match step {
                Step::End => break,
                Step::Put => (source.take(), None),
                Step::Remove => (None, target.take()),
                Step::Equal | Step::Replace => (source.take(), target.take()),
            };
            if let Some(row) = &left {
                keys.add(Kind::of(&row.0));
                bytes += (row.0.as_str().len() + row.1.value.len()) as u64;
                hash(&mut one, row);
            }
            right.iter().for_each(|row| hash(&mut two, row));
            if step != Step::Equal {
                differing += 1;
                if named.len() < NAMED_MAX {
                    named.extend(left.or(right).map(|(key, _)| key.to_string()));
                }
            }
            told(keys.total());
        }
    }
    let (one, two): ([u8; 32], [u8; 32]) = (one.finalize().into(), two.finalize().into());
    if differing > 0 || one != two {
        return Err(refused(format!(
            "source and target differ in {differing} keys, first {}: {why}",
            named.join(", ")
        )));
    }
    Ok(Verified { keys, bytes, sha256: one })
}

fn hash(hash: &mut Sha256, (key, row): &Row) {
    for part in [key.as_str().as_bytes(), &row.value] {
        let length = u32::try_from(part.len()).expect("keys and values are far below 4 GiB");
        hash.update(length.to_be_bytes());
        hash.update(part);
    }
}

#[cfg(test)]
mod tests;
