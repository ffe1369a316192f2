//! Which ids of ledgers were given: what a cluster takes along when it moves to a store that makes ids in another way. An id that was
//! given once must not come back, even where its ledger is deleted: bookies and the cold store remember it.

use std::ops::RangeInclusive;

/// Ids that may have been given: none outside was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenIds(Vec<RangeInclusive<u64>>);

impl GivenIds {
    /// None yet.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// All up to `last`: of a generator that only goes up.
    #[must_use]
    pub fn up_to(last: u64) -> Self {
        Self(vec![0..=last])
    }

    /// Those of several generators, each of which goes up in a range of its own.
    #[must_use]
    pub fn of(ranges: impl IntoIterator<Item = RangeInclusive<u64>>) -> Self {
        Self(ranges.into_iter().filter(|range| !range.is_empty()).collect())
    }

    /// The highest.
    #[must_use]
    pub fn highest(&self) -> Option<u64> {
        self.highest_in(0..=u64::MAX)
    }

    /// The highest of those that lie in `range`.
    #[must_use]
    pub fn highest_in(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let within = self.0.iter().filter(|given| given.start() <= range.end() && range.start() <= given.end());
        within.map(|given| *given.end().min(range.end())).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_found_in_every_range() {
        assert_eq!(GivenIds::none().highest(), None);
        assert_eq!(GivenIds::up_to(0).highest(), Some(0));
        let given = GivenIds::of([100..=107, 200..=201, RangeInclusive::new(300, 299)]);
        assert_eq!(given.highest(), Some(201));
        for (range, want) in [
            (0..=99, None),
            (0..=100, Some(100)),
            (101..=150, Some(107)),
            (101..=103, Some(103)),
            (108..=199, None),
            (300..=400, None),
        ] {
            assert_eq!(given.highest_in(range.clone()), want, "{range:?}");
        }
    }
}
