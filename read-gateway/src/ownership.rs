//! Owning shards of cold ids: taking them, registering their ids at this gateway, giving them up.
//!
//! # Consistency
//! What a gateway owns is what it holds keys of under its present lease. Views of the cluster are hints: a claim is decided by the
//! store, and a registration moves only in one transaction with the shard's key. A gateway that owns nothing, or does not know what it
//! owns, serves all the same.
//!
//! # Crash and stop
//! The shards go with the lease; the registrations stand, and clients that follow them meet a closed port until the next owner has
//! moved them.

mod assign;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::metrics::Counter;
use common::shutdown::TaskTree;
use futures::FutureExt as _;
use metadata::{
    BookieInfo, ColdNames, ColdShards, Error, GatewayInfo, Gateways, LeaseId, MetadataStore, OwnedShard, ShardOwner,
    Version, WatchEvent, WatchStream,
};
use tokio::sync::watch;
use tokio::time::Instant;

/// How often the cluster is looked at, changes or not: the backstop of the watches.
const LOOK: Duration = Duration::from_secs(2);
/// Pause after a look that failed or was overtaken by a change.
const RETRY: Duration = Duration::from_millis(200);
/// Changes come in bursts: what else changes within this time is looked at together.
const BURST: Duration = Duration::from_millis(20);
/// How often registrations are compared with what they should be.
const COMPARE: Duration = Duration::from_secs(60);

/// The shards that a gateway owns now, for whoever serves them. Cheap to clone; clones are the same set.
#[derive(Debug, Clone, Default)]
pub struct Shards {
    owned: Arc<AtomicU64>,
    moved: Counter,
}

impl Shards {
    /// Whether the gateway owns a shard.
    pub fn contains(&self, shard: u8) -> bool {
        self.owned.load(Ordering::Relaxed) & bit(shard) != 0
    }

    /// How many it owns.
    pub fn len(&self) -> usize {
        self.owned.load(Ordering::Relaxed).count_ones() as usize
    }

    /// Whether it owns none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many registrations were made or moved.
    pub(crate) fn moved(&self) -> &Counter {
        &self.moved
    }

    fn set(&self, shards: impl Iterator<Item = u8>) {
        self.owned.store(shards.fold(0, |all, shard| all | bit(shard)), Ordering::Relaxed);
    }
}

fn bit(shard: u8) -> u64 {
    1_u64.checked_shl(u32::from(shard)).unwrap_or_default()
}

/// The part of a gateway's registration that owns shards.
pub(crate) struct Ownership {
    cold: ColdShards,
    gateways: Gateways,
    me: String,
    info: BookieInfo,
    shards: Shards,
    /// Of each owned shard the claim and the names for which its ids are known to be registered here.
    registered: BTreeMap<u8, (Version, ColdNames)>,
    compared: Option<Instant>,
}

/// How a look at the cluster ended.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// All is as it should be.
    Settled,
    /// Something changed meanwhile: look again.
    Again,
}

impl Ownership {
    /// Of a gateway, which answers BookKeeper's protocol as `info` says; tells `shards` what it owns.
    pub(crate) fn new(store: Arc<dyn MetadataStore>, gateway: &GatewayInfo, info: BookieInfo, shards: Shards) -> Self {
        Self {
            cold: ColdShards::new(Arc::clone(&store)),
            gateways: Gateways::new(store),
            me: gateway.id.clone(),
            info,
            shards,
            registered: BTreeMap::new(),
            compared: None,
        }
    }

    /// Owns what it should under the lease of the moment until `tasks` is asked to stop.
    pub(crate) async fn run(mut self, mut lease: watch::Receiver<Option<LeaseId>>, tasks: &TaskTree) {
        let mut changes = Changes::default();
        let mut told = false;
        while !tasks.is_stopping() {
            // Watching begins before the look, so that nothing is missed in between.
            changes.begin(&self.cold, &self.gateways).await;
            let held = *lease.borrow_and_update();
            let looked = match held {
                Some(held) => self.look(held).await,
                None => Ok(self.without_lease()),
            };
            let wait = match looked {
                Ok(Look::Settled) => LOOK,
                Ok(Look::Again) => RETRY,
                Err(error) => {
                    // Once: an outage of metadata may last.
                    if !told {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(gateway = self.me, error, "cold ids are not looked after; it tries again");
                    }
                    told = true;
                    RETRY
                }
            };
            told &= wait == RETRY;
            tokio::select! {
                () = tasks.stopping() => {}
                () = tokio::time::sleep(wait) => {}
                _ = lease.changed() => {}
                () = changes.next(), if wait == LOOK => {}
            }
        }
        self.without_lease();
    }

    fn without_lease(&mut self) -> Look {
        self.shards.set(std::iter::empty());
        self.registered.clear();
        Look::Settled
    }

    /// One look at the cluster, and what follows from it.
    async fn look(&mut self, lease: LeaseId) -> Result<Look, Error> {
        let gateways = self.gateways.list().await?;
        let live: BTreeSet<String> =
            gateways.into_iter().filter(|gateway| gateway.bookkeeper.is_some()).map(|gateway| gateway.id).collect();
        let owners = self.cold.owners().await?;
        let mut owned = mine(&owners, lease);
        let names = owners.iter().map(|(shard, owner)| (*shard, owner.gateway.clone())).collect();
        let moves = assign::moves(&self.me, &live, &names);
        // A shard under an earlier lease of this name is another's until that lease has ended.
        let given: Vec<OwnedShard> = moves.give_up.iter().filter_map(|shard| owned.remove(shard)).collect();
        self.shards.set(owned.keys().copied());
        for shard in given {
            self.cold.give_up(shard).await?;
        }
        let claimed = self.cold.claim(&moves.claim, &self.me, lease).await?;
        let all_claimed = claimed.len() == moves.claim.len();
        owned.extend(claimed.into_iter().map(|claimed| (claimed.shard, claimed)));
        self.shards.set(owned.keys().copied());
        self.registered.retain(|shard, (version, _)| owned.get(shard).is_some_and(|owned| owned.version == *version));
        let registered = self.register(&owned).await?;
        Ok(if all_claimed && registered { Look::Settled } else { Look::Again })
    }

    /// Registers the ids of the owned shards where they are not known to be. False when something changed meanwhile.
    async fn register(&mut self, owned: &BTreeMap<u8, OwnedShard>) -> Result<bool, Error> {
        // Without names no ledger can be released. Where some were all the same, offloaders write the names that those have.
        let Some(names) = self.cold.names().await? else { return Ok(true) };
        if self.compared.is_none_or(|compared| compared.elapsed() >= COMPARE) {
            self.registered.clear();
        }
        let is_registered =
            |shard: &OwnedShard| self.registered.get(&shard.shard).is_some_and(|(_, registered)| *registered == names);
        let missing: Vec<OwnedShard> = owned.values().filter(|shard| !is_registered(shard)).copied().collect();
        if missing.is_empty() {
            return Ok(true);
        }
        let now = self.cold.registrations().await?;
        for shard in missing {
            match self.cold.register(shard, &names, &self.info, &now).await? {
                None => return Ok(false),
                Some(moved) => {
                    self.shards.moved().add(moved as u64);
                    self.registered.insert(shard.shard, (shard.version, names.clone()));
                }
            }
        }
        self.compared = Some(Instant::now());
        Ok(true)
    }
}

/// The shards that are held under this lease.
fn mine(owners: &BTreeMap<u8, ShardOwner>, lease: LeaseId) -> BTreeMap<u8, OwnedShard> {
    let mine = owners.iter().filter(|(_, owner)| owner.lease == Some(lease));
    mine.map(|(shard, owner)| (*shard, OwnedShard { shard: *shard, version: owner.version })).collect()
}

/// Whether a watch has to begin anew.
fn is_lost(event: &Option<WatchEvent>) -> bool {
    matches!(event, None | Some(WatchEvent::Lost))
}

/// Watches on what a look depends on.
#[derive(Default)]
struct Changes {
    streams: Option<(WatchStream, WatchStream)>,
}

impl Changes {
    async fn begin(&mut self, cold: &ColdShards, gateways: &Gateways) {
        if self.streams.is_some() {
            return;
        }
        match (cold.watch().await, gateways.watch().await) {
            (Ok(cold), Ok(gateways)) => self.streams = Some((cold, gateways)),
            (Err(error), _) | (_, Err(error)) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "changes of gateways are not watched");
            }
        }
    }

    /// Waits for a burst of changes. Dropping it loses at most changes that the next look sees. Without watches it waits for ever:
    /// looks come by time then.
    async fn next(&mut self) {
        let Some((cold, gateways)) = &mut self.streams else { return std::future::pending().await };
        let first = tokio::select! {
            event = cold.next() => event,
            event = gateways.next() => event,
        };
        tokio::time::sleep(BURST).await;
        let mut lost = is_lost(&first);
        for stream in [cold, gateways] {
            while let Some(event) = stream.next().now_or_never() {
                lost |= is_lost(&event);
                if lost {
                    break;
                }
            }
        }
        if lost {
            self.streams = None;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
