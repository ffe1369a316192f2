//! Which tier a batch of entries is read from: values in, values out.
//!
//! A released ledger is cold. A settled one has both copies: a scan takes the cold one and spares the bookies, a single entry the
//! hot one, which is nearer. Everything else is hot. After a miss the metadata has been read again, so the choice is made anew
//! among what exists now, and the tier that missed last is not asked again unless the metadata has changed.

use ledger::Tier;

/// Where entries can come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The bookies.
    Hot,
    /// The object store.
    Cold,
}

/// What the caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// Whatever is best.
    Any,
    /// One tier and no other.
    Only(Source),
}

/// How much the whole read asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One entry.
    Point,
    /// More than one.
    Scan,
}

/// What is known of a read when its next batch is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation<'a> {
    /// Tiers the ledger is on, by the newest metadata read.
    pub tier: Tier,
    /// What the caller asks for.
    pub wanted: Wanted,
    /// How much it asks for.
    pub shape: Shape,
    /// The tier that served this read after the other one missed; it is kept to.
    pub proven: Option<Source>,
    /// Tiers that missed for this batch, in order.
    pub misses: &'a [Source],
    /// The metadata changed with the last miss.
    pub changed: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Ask this tier.
    Read(Source),
    /// Refuse the read: the tier asked for has no copy.
    Refuse(Refusal),
    /// Answer with the errors of the misses.
    GiveUp,
}

/// Why a read is refused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The cold tier was asked for, and the ledger has not been settled.
    NotSettled,
    /// The hot tier was asked for, and the ledger has been released from it.
    Released,
}

/// Retries after misses, for one batch.
const RETRIES_MAX: usize = 2;

/// Decides where the next batch is read.
pub fn route(at: Situation<'_>) -> Step {
    let mut order: [Option<Source>; 2] = match (at.tier, at.shape) {
        (Tier::Hot, _) => [Some(Source::Hot), None],
        (Tier::Released, _) => [Some(Source::Cold), None],
        (Tier::Settled, Shape::Scan) => [Some(Source::Cold), Some(Source::Hot)],
        (Tier::Settled, Shape::Point) => [Some(Source::Hot), Some(Source::Cold)],
    };
    if let Wanted::Only(source) = at.wanted {
        if !order.contains(&Some(source)) {
            return Step::Refuse(match source {
                Source::Cold => Refusal::NotSettled,
                Source::Hot => Refusal::Released,
            });
        }
        order = [Some(source), None];
    }
    if at.proven.is_some() && order[1] == at.proven {
        order.swap(0, 1);
    }
    let Some(last_miss) = at.misses.last() else {
        return order[0].map_or(Step::GiveUp, Step::Read);
    };
    if at.misses.len() > RETRIES_MAX {
        return Step::GiveUp;
    }
    let other = order.into_iter().flatten().find(|source| source != last_miss);
    match other {
        Some(source) => Step::Read(source),
        None if at.changed => order[0].map_or(Step::GiveUp, Step::Read),
        None => Step::GiveUp,
    }
}

#[cfg(test)]
mod tests;
