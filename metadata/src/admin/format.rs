//! Removing a cluster from its store.
//!
//! # Order
//! 1. One transaction: the marker stands, INSTANCEID is gone. From here on nobody opens the cluster.
//! 2. Every other key below both roots, in batches that check the marker; again until a pass finds none.
//! 3. One transaction: LAYOUT and the marker are gone. The store is as if there had never been a cluster.
//!
//! # Crash
//! Before 1 nothing happened. Between 1 and 3 the marker says so, and the same command goes on. Objects in the object store and the
//! bookies' directories are not touched by any of it.

use uuid::Uuid;

use super::walk::Walk;
use super::{BATCH_KEYS, Counts, Kind, Live, Marker, State, Told, Work, live, live_sentence, refused, step_failed};
use crate::{CommitError, Error, Expect, Key, MetadataStore, Transaction, Version, layout};

/// A writer that is faster than this many passes is no remainder of the past.
const PASSES_MAX: usize = 10;
const WHAT: &str = "format cluster";

/// How to format.
#[derive(Debug, Clone, Copy)]
pub struct FormatOptions {
    /// A random one.
    pub run: Uuid,
    /// Wall-clock milliseconds since 1970, for people.
    pub now_ms: u64,
    /// Goes on although processes are registered, and removes their registrations; and removes the target of a copy whose source may be
    /// left already.
    pub force: bool,
}

/// Removes the cluster that `found` says is in `store`, or goes on with that; tells how many keys are gone. Gives what was removed by
/// this run.
///
/// # Errors
/// [`crate::ErrorKind::Refused`] when processes are registered or a copy into the store was about to leave its source (unless forced),
/// when there is no cluster, or when someone else changes it meanwhile; those of the store. After any error the same call goes on.
pub async fn format(
    store: &dyn MetadataStore,
    found: &State,
    options: FormatOptions,
    told: Told<'_>,
) -> Result<Counts, Error> {
    refuse_live(store, options.force).await?;
    let marker = begin(store, found, options).await?;
    // Who opened the cluster before the marker stood may have registered since.
    refuse_live(store, options.force).await?;
    let mut removed = Counts::default();
    let mut passes = 0;
    while pass(store, marker, options.force, &mut removed, told).await? {
        passes += 1;
        if passes == PASSES_MAX {
            return Err(refused(format!("{WHAT}: someone goes on writing keys; stop every role, then run it again")));
        }
    }
    end(store, marker, &mut removed).await?;
    told(removed.total());
    Ok(removed)
}

async fn refuse_live(store: &dyn MetadataStore, force: bool) -> Result<(), Error> {
    if force {
        return Ok(());
    }
    let found = live(store).await?;
    if found.is_empty() { Ok(()) } else { Err(in_use(&found)) }
}

fn in_use(found: &[Live]) -> Error {
    refused(format!(
        "the cluster is in use by {}; stop them first (the registration of one that died ends by itself, in seconds)",
        live_sentence(found)
    ))
}

/// Step 1, or the take-over of a run that did not end.
async fn begin(store: &dyn MetadataStore, found: &State, options: FormatOptions) -> Result<Version, Error> {
    let new = |identity, begun_ms| Marker {
        work: Work::Format,
        identity,
        begun_ms,
        run: options.run,
        copy: options.run,
        closing: false,
    };
    let key = layout::maintenance_key();
    let (marker, transaction) = match found {
        State::Cluster(identity) => {
            let instance = store.get_quorum(&layout::instance_key()).await?;
            let Some(instance) = instance.filter(|row| row.value == identity.instance.as_str()) else {
                return Err(refused(format!("{WHAT}: the cluster has just changed; look again")));
            };
            let marker = new(identity.clone(), options.now_ms);
            let transaction = Transaction::new()
                .put(key, marker.encode(), Expect::Absent)
                .delete(layout::instance_key(), Expect::At(instance.version))
                .check(layout::layout_key(), Expect::Present);
            (marker, transaction)
        }
        State::Unfinished(Marker { work: Work::Copy, closing: true, .. }, _) if !options.force => {
            return Err(refused(format!("{WHAT}: {}", found.no_cluster())));
        }
        State::Unfinished(old, version) => {
            let marker = new(old.identity.clone(), old.begun_ms);
            let transaction = Transaction::new()
                .put(key, marker.encode(), Expect::At(*version))
                .check(layout::instance_key(), Expect::Absent);
            (marker, transaction)
        }
        State::Empty | State::Headless => return Err(refused(found.no_cluster())),
    };
    marker.put_in(WHAT, store, transaction).await
}

/// Removes what it finds; false when there was nothing.
async fn pass(
    store: &dyn MetadataStore,
    marker: Version,
    force: bool,
    removed: &mut Counts,
    told: Told<'_>,
) -> Result<bool, Error> {
    let mut found_any = false;
    for root in [layout::ledgers_root(), layout::thermocline_root()] {
        let mut walk = Walk::of(store, root, |key, _| !matches!(Kind::of(key), Kind::Layout | Kind::Marker));
        let mut batch: Vec<(Key, Version)> = Vec::new();
        loop {
            let row = walk.next().await?;
            let is_last = row.is_none();
            if let Some((key, row)) = row {
                if row.lease.is_some() && !force {
                    return Err(in_use(&[Live::at(&key)]));
                }
                found_any = true;
                batch.push((key, row.version));
            }
            if batch.len() == BATCH_KEYS || (is_last && !batch.is_empty()) {
                remove(store, marker, std::mem::take(&mut batch), removed).await?;
                told(removed.total());
            }
            if is_last {
                break;
            }
        }
    }
    Ok(found_any)
}

async fn remove(
    store: &dyn MetadataStore,
    marker: Version,
    batch: Vec<(Key, Version)>,
    removed: &mut Counts,
) -> Result<(), Error> {
    let mut transaction = Transaction::new().check(layout::maintenance_key(), Expect::At(marker));
    for (key, version) in &batch {
        transaction = transaction.delete(key.clone(), Expect::At(*version));
    }
    match store.commit(transaction).await {
        Ok(_) => {
            batch.iter().for_each(|(key, _)| removed.add(Kind::of(key)));
            Ok(())
        }
        Err(CommitError::Conflict { op: 0, .. }) => Err(refused(format!("{WHAT}: another run took over"))),
        // One of them changed or went (a lease that ended): the next pass sees what is left.
        Err(CommitError::Conflict { .. }) => Ok(()),
        Err(error) => Err(step_failed(WHAT, error)),
    }
}

/// Step 3.
async fn end(store: &dyn MetadataStore, marker: Version, removed: &mut Counts) -> Result<(), Error> {
    let transaction = Transaction::new()
        .delete(layout::maintenance_key(), Expect::At(marker))
        .delete(layout::layout_key(), Expect::Any)
        .check(layout::instance_key(), Expect::Absent);
    if let Err(error) = store.commit(transaction).await
        && Marker::read(store).await?.is_some()
    {
        return Err(step_failed(WHAT, error));
    }
    removed.add(Kind::Instance);
    removed.add(Kind::Layout);
    Ok(())
}
