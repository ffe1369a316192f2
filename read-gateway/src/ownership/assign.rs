//! Which gateway is to own which shard: values in, values out.
//!
//! Every gateway computes the same assignment from the same view, and does its own part of it. A shard keeps its owner unless that
//! is gone, or has two more than another gateway. So the sets stay apart by one at most, and a gateway that comes or goes moves no
//! shard that need not move.

use std::collections::{BTreeMap, BTreeSet};

use ledger::COLD_SHARDS;

/// What one gateway is to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Shards without an owner that it is to take.
    pub(crate) claim: Vec<u8>,
    /// Shards of its own that it is to give up; whoever is to have them takes them then.
    pub(crate) give_up: Vec<u8>,
}

/// What `me` is to do, when these gateways live and own these shards. It lives itself, whatever the view says.
pub(crate) fn moves(me: &str, live: &BTreeSet<String>, owners: &BTreeMap<u8, String>) -> Moves {
    let mut live: BTreeSet<&str> = live.iter().map(String::as_str).collect();
    live.insert(me);
    let mut moves = Moves::default();
    for (shard, target) in assign(&live, owners) {
        match owners.get(&shard) {
            // One whose owner is gone is free when its key is, and not before.
            None if target == me => moves.claim.push(shard),
            Some(owner) if owner == me && target != me => moves.give_up.push(shard),
            _ => {}
        }
    }
    moves
}

/// The owner that each shard is to have. `live` is not empty.
fn assign<'a>(live: &BTreeSet<&'a str>, owners: &BTreeMap<u8, String>) -> BTreeMap<u8, &'a str> {
    let mut held: BTreeMap<&'a str, BTreeSet<u8>> = live.iter().map(|gateway| (*gateway, BTreeSet::new())).collect();
    let mut free = Vec::new();
    for shard in 0..COLD_SHARDS {
        let owner = owners.get(&shard).and_then(|owner| held.get_mut(owner.as_str()));
        match owner {
            Some(shards) => drop(shards.insert(shard)),
            None => free.push(shard),
        }
    }
    for shard in free {
        give(&mut held, shard);
    }
    while let Some(shard) = take_one_too_many(&mut held) {
        give(&mut held, shard);
    }
    held.into_iter().flat_map(|(gateway, shards)| shards.into_iter().map(move |shard| (shard, gateway))).collect()
}

/// Gives a shard to the gateway that has the fewest; of several to the first by name.
fn give(held: &mut BTreeMap<&str, BTreeSet<u8>>, shard: u8) {
    if let Some(shards) = held.values_mut().min_by_key(|shards| shards.len()) {
        shards.insert(shard);
    }
}

/// Takes the highest shard from the gateway that has the most, if that is two more than another has.
fn take_one_too_many(held: &mut BTreeMap<&str, BTreeSet<u8>>) -> Option<u8> {
    let fewest = held.values().map(BTreeSet::len).min()?;
    let most = held.values_mut().max_by_key(|shards| shards.len())?;
    if most.len() > fewest + 1 { most.pop_last() } else { None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
