//! A release in two steps: first all members become cold ids but one for each write set, later the rest.
//!
//! Bookies that cannot send readers on to the cold tier drop what metadata does not name any more, and readers that opened the ledger
//! before know no other place. So one bookie of each write set stays for a while, until when stands in the ledger's custom metadata,
//! in the same record as the members: wall-clock milliseconds since 1970, in decimal.

use super::{LedgerMetadata, transition};
use crate::cold_id::{ColdId, is_cold};
use crate::error::Error;
use crate::quorum::Quorums;

/// The custom value that says until when bookies stay.
const KEY: &str = "thermocline/partly-released";

/// The members that stay: of those that `is_hot` says are bookies, at least one in each write set that has any, and no more than
/// needed. The same again for what is left of them.
fn kept(quorums: Quorums, is_hot: impl Fn(usize) -> bool) -> Vec<usize> {
    let ensemble = quorums.ensemble() as usize;
    let mut kept: Vec<usize> = Vec::new();
    for first in 0..ensemble {
        let write_set = || (first..first + quorums.write() as usize).map(|index| index % ensemble);
        if !write_set().any(|index| kept.contains(&index))
            && let Some(last) = write_set().filter(|index| is_hot(*index)).last()
        {
            kept.push(last);
        }
    }
    kept
}

impl LedgerMetadata {
    /// The ledger after the first step of a release in two: in every segment all members become `ids` but one bookie for each write
    /// set. They stay until `until_ms`, wall-clock milliseconds since 1970.
    ///
    /// # Errors
    /// Those of [`LedgerMetadata::released_to`], and when the format cannot hold custom values.
    pub fn partly_released_to(&self, ids: &[ColdId], until_ms: u64) -> Result<Self, Error> {
        let released = self.released_to(ids)?;
        let mut next = released.with_custom(KEY, until_ms.to_string())?;
        for (segment, before) in next.segments.iter_mut().zip(&self.segments) {
            for index in kept(self.quorums, |index| !is_cold(&before.ensemble[index])) {
                segment.ensemble[index].clone_from(&before.ensemble[index]);
            }
        }
        if next.is_released() {
            return Err(transition("release in part: no bookie is among its members"));
        }
        next.checked()
    }

    /// Until when the bookies stay that the first step of a release has left, wall-clock milliseconds since 1970. `None` when the
    /// ledger is not as that step leaves it; after a repair has brought bookies back, for one.
    pub fn partly_released_until(&self) -> Option<u64> {
        let until_ms = std::str::from_utf8(self.custom(KEY)?).ok()?.parse().ok()?;
        let as_left = self.segments.iter().all(|segment| {
            let is_hot = |index: usize| segment.ensemble.get(index).is_some_and(|member| !is_cold(member));
            let mut kept = kept(self.quorums, is_hot);
            kept.sort_unstable();
            kept.into_iter().eq((0..segment.ensemble.len()).filter(|index| is_hot(*index)))
        });
        (self.is_closed() && !self.is_released() && as_left).then_some(until_ms)
    }

    /// Takes away what the first step left in the custom values.
    pub(super) fn forget_partial_release(&mut self) {
        self.custom.retain(|(key, _)| key != KEY);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{BookieId, DigestType, EntryId, LedgerId, Password, Segment};
    use proptest::prelude::*;

    fn covers(ensemble: u32, write: u32, is_hot: impl Fn(usize) -> bool + Copy) -> Vec<usize> {
        let quorums = Quorums::new(ensemble, write, 1).unwrap();
        let kept = kept(quorums, is_hot);
        assert!(kept.iter().all(|index| is_hot(*index)));
        for entry in 0..u64::from(ensemble) * 2 {
            let write_set: Vec<usize> = quorums.write_set(EntryId::new(entry).unwrap()).collect();
            let has_hot = write_set.iter().any(|index| is_hot(*index));
            let has_kept = write_set.iter().any(|index| kept.contains(index));
            assert_eq!(has_hot, has_kept, "E {ensemble}, Qw {write}, entry {entry}: {kept:?}");
        }
        kept
    }

    #[test]
    fn every_write_set_keeps_a_bookie_and_no_more_stay_than_needed() {
        for ensemble in 1..=12_u32 {
            for write in 1..=ensemble {
                let kept = covers(ensemble, write, |_| true);
                assert_eq!(kept.len(), ensemble.div_ceil(write) as usize, "E {ensemble}, Qw {write}: {kept:?}");
                let again = covers(ensemble, write, |index| kept.contains(&index));
                assert_eq!(again, kept, "nothing more goes of what is left");
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_hot_is_covered(ensemble in 1..13_u32, write in 1..13_u32, hot: u16) {
            covers(ensemble, write.min(ensemble), |index| hot >> index & 1 == 1);
        }
    }

    fn bookie(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn closed() -> LedgerMetadata {
        let members = |names: [&str; 3]| names.map(bookie).to_vec();
        let quorums = Quorums::new(3, 2, 2).unwrap();
        let open = LedgerMetadata::open(quorums, members(["a", "b", "c"]), DigestType::Crc32c, Password::empty());
        let second = Segment { first_entry: EntryId::new(5).unwrap(), ensemble: members(["a", "d", "c"]) };
        open.unwrap().with_segment(second).unwrap().closed(EntryId::new(9), 10).unwrap()
    }

    #[test]
    fn members_go_in_two_steps_and_nothing_of_the_first_is_left_after_the_second() {
        let ids = ColdId::for_ledger(LedgerId::new(7).unwrap(), 3, "cold.thermocline", 3181).unwrap();
        let cold: Vec<BookieId> = ids.iter().map(ColdId::to_bookie_id).collect();
        let partly = closed().partly_released_to(&ids, 1_700_000_000_000).unwrap();
        let members: Vec<_> = partly.segments().iter().map(|segment| segment.ensemble.clone()).collect();
        assert_eq!(
            members,
            [vec![bookie("a"), bookie("b"), cold[2].clone()], vec![bookie("a"), bookie("d"), cold[2].clone()]]
        );
        assert_eq!(LedgerMetadata::decode(&partly.encode()).unwrap(), partly);
        assert_eq!((partly.partly_released_until(), partly.is_released()), (Some(1_700_000_000_000), false));
        assert_eq!((partly.last_entry(), partly.quorums()), (closed().last_entry(), closed().quorums()));
        let whole = partly.released_to(&ids).unwrap();
        assert_eq!((whole.partly_released_until(), whole.custom(KEY), whole.is_released()), (None, None, true));
        assert_eq!(closed().partly_released_until(), None);
        whole.partly_released_to(&ids, 1).unwrap_err();
    }

    #[test]
    fn a_repair_that_brings_bookies_back_makes_it_begin_again() {
        let ids = ColdId::for_ledger(LedgerId::new(7).unwrap(), 3, "cold.thermocline", 3181).unwrap();
        let mut repaired = closed().partly_released_to(&ids, 5).unwrap();
        repaired.segments[1].ensemble[2] = bookie("e");
        assert_eq!(repaired.partly_released_until(), None);
        assert_eq!(repaired.partly_released_to(&ids, 9).unwrap().partly_released_until(), Some(9));
        let malformed = closed().partly_released_to(&ids, 5).unwrap().with_custom(KEY, "soon").unwrap();
        assert_eq!(malformed.partly_released_until(), None);
    }
}
