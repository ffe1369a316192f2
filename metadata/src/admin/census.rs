//! Counting: all keys of a cluster by kind, its ledgers by state, and the ledgers that name a bookie.

use ::ledger::{BookieId, LedgerId, LedgerMetadata, LedgerState, Tier};

use super::walk::Walk;
use super::{Counts, Kind, PAGE, Told};
use crate::{Cluster, Error, MetadataStore, layout};

const NAMED_MAX: usize = 5;

/// Ledgers by what their metadata says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerCounts {
    /// Being written.
    pub open: u64,
    /// Somebody is finding the end in the writer's place.
    pub in_recovery: u64,
    /// Closed, on bookies only.
    pub hot: u64,
    /// Closed, on bookies and in the object store.
    pub settled: u64,
    /// Closed, in the object store only.
    pub released: u64,
    /// Their metadata cannot be read.
    pub unreadable: u64,
}

impl LedgerCounts {
    fn add(&mut self, value: &[u8]) {
        let slot = match LedgerMetadata::decode(value) {
            Err(_) => &mut self.unreadable,
            Ok(metadata) => match (metadata.state(), metadata.tier()) {
                (LedgerState::Open, _) => &mut self.open,
                (LedgerState::InRecovery, _) => &mut self.in_recovery,
                (LedgerState::Closed { .. }, Tier::Hot) => &mut self.hot,
                (LedgerState::Closed { .. }, Tier::Settled) => &mut self.settled,
                (LedgerState::Closed { .. }, Tier::Released) => &mut self.released,
            },
        };
        *slot += 1;
    }
}

/// What a cluster holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Keys by kind.
    pub keys: Counts,
    /// Ledgers by state.
    pub ledgers: LedgerCounts,
    /// Bytes of all values.
    pub bytes: u64,
}

/// Counts everything below both roots, page by page. A hint, as every listing.
///
/// # Errors
/// Those of the store.
pub async fn census(store: &dyn MetadataStore, told: Told<'_>) -> Result<Census, Error> {
    let mut census = Census::default();
    for root in [layout::ledgers_root(), layout::thermocline_root()] {
        let mut walk = Walk::all(store, root);
        while let Some((key, row)) = walk.next().await? {
            let kind = Kind::of(&key);
            census.keys.add(kind);
            census.bytes += row.value.len() as u64;
            if kind == Kind::Ledger {
                census.ledgers.add(&row.value);
            }
            tell(told, census.keys.total());
        }
    }
    Ok(census)
}

/// The ledgers that name a bookie as a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Naming {
    /// How many.
    pub count: u64,
    /// The first few of them.
    pub first: Vec<LedgerId>,
    /// Ledgers whose metadata cannot be read: they may name it too.
    pub unreadable: u64,
}

/// Looks through all ledgers for those that name `bookie`. Whoever decides by the answer must know that no ledger is created on the
/// bookie meanwhile: that it is not registered.
///
/// # Errors
/// Those of the store.
pub async fn ledgers_naming(store: &dyn MetadataStore, bookie: &BookieId, told: Told<'_>) -> Result<Naming, Error> {
    // A proof first: listings that follow are at least as fresh.
    Cluster::open(store).await?;
    let (mut naming, mut seen) = (Naming::default(), 0);
    let mut walk = Walk::all(store, layout::ledgers_root());
    while let Some((key, row)) = walk.next().await? {
        let Some(id) = layout::parse_ledger_key(&key) else {
            if layout::is_behind_ledgers(&key) {
                break;
            }
            continue;
        };
        seen += 1;
        tell(told, seen);
        match LedgerMetadata::decode(&row.value) {
            Ok(metadata) if metadata.segments().iter().any(|segment| segment.ensemble.contains(bookie)) => {
                naming.count += 1;
                if naming.first.len() < NAMED_MAX {
                    naming.first.push(id);
                }
            }
            Ok(_) => {}
            Err(_) => naming.unreadable += 1,
        }
    }
    Ok(naming)
}

/// Tells once a page.
fn tell(told: Told<'_>, done: u64) {
    if done.is_multiple_of(PAGE as u64) {
        told(done);
    }
}
