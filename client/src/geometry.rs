//! Sets of ensemble indices, and where entries go.

use ledger::{EntryId, Quorums};

use crate::error::{Error, ErrorKind};

/// The largest ensemble this client handles: a set of indices is one machine word.
pub(crate) const ENSEMBLE_MAX: u32 = 64;

/// A set of ensemble indices below [`ENSEMBLE_MAX`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IndexSet(u64);

impl IndexSet {
    pub(crate) const EMPTY: Self = Self(0);

    pub(crate) fn contains(self, index: usize) -> bool {
        index < 64 && self.0 & (1 << index) != 0
    }

    /// Adds `index`; false when it was there already or can never be.
    pub(crate) fn insert(&mut self, index: usize) -> bool {
        let is_new = index < 64 && !self.contains(index);
        if is_new {
            self.0 |= 1 << index;
        }
        is_new
    }

    /// Takes `index` out; false when it was not there.
    pub(crate) fn remove(&mut self, index: usize) -> bool {
        let was_there = self.contains(index);
        if was_there {
            self.0 &= !(1 << index);
        }
        was_there
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let index = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(index)
        })
    }
}

impl FromIterator<usize> for IndexSet {
    fn from_iter<I: IntoIterator<Item = usize>>(indices: I) -> Self {
        let mut set = Self::EMPTY;
        for index in indices {
            set.insert(index);
        }
        set
    }
}

impl std::fmt::Debug for IndexSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Quorum sizes whose ensemble fits an [`IndexSet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry(Quorums);

impl Geometry {
    pub(crate) fn new(quorums: Quorums) -> Result<Self, Error> {
        if quorums.ensemble() > ENSEMBLE_MAX {
            let message =
                format!("use an ensemble of {}: this client handles up to {ENSEMBLE_MAX}", quorums.ensemble());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(Self(quorums))
    }

    pub(crate) fn ack(self) -> u32 {
        self.0.ack()
    }

    /// The members that hold `entry`.
    pub(crate) fn write_set(self, entry: EntryId) -> IndexSet {
        self.0.write_set(entry).collect()
    }

    /// The members that hold `entry`, preferred one first.
    pub(crate) fn in_order(self, entry: EntryId) -> impl Iterator<Item = usize> {
        self.0.write_set(entry)
    }

    /// Every member.
    pub(crate) fn all(self) -> IndexSet {
        (0..self.0.ensemble() as usize).collect()
    }

    pub(crate) fn negatives_needed(self) -> u32 {
        self.0.negatives_needed()
    }

    /// Whether no write set has enough members outside `known` to confirm an add.
    pub(crate) fn covered(self, known: IndexSet) -> bool {
        let mut flags = [false; ENSEMBLE_MAX as usize];
        for index in known.iter() {
            flags[index] = true;
        }
        self.0.fence_covered(&flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_keeps_what_it_was_given() {
        let mut set: IndexSet = [3, 0, 63].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 63]);
        assert!(!set.insert(3) && !set.insert(64) && set.insert(1));
        assert!(set.remove(0) && !set.remove(0));
        assert_eq!(set.len(), 3);
        assert!(set.without(set).is_empty());
    }

    #[test]
    fn coverage_needs_every_write_set() {
        let quorums = Quorums::new(3, 2, 2).expect("valid sizes");
        let geometry = Geometry::new(quorums).expect("small ensemble");
        assert!(!geometry.covered([0].into_iter().collect()), "entry 1 may still be confirmed on 1 and 2");
        assert!(geometry.covered([0, 1].into_iter().collect()));
        assert!(Geometry::new(Quorums::new(65, 2, 2).expect("valid sizes")).is_err());
    }
}
