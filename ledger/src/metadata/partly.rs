//! A release in two steps: first all members become cold ids but one for each write set, later the rest.
//!
//! Bookies that cannot send readers on to the cold tier drop what metadata does not name any more, and readers that opened the ledger
//! before know no other place. So one bookie of each write set stays for a while. Until when, and how many stay, stands in the ledger's
//! custom metadata, in the same record as the members: wall-clock milliseconds since 1970, a space, and a number, both in decimal.

use super::{LedgerMetadata, transition};
use crate::cold_id::{ColdId, is_cold};
use crate::error::Error;
use crate::ids::BookieId;
use crate::quorum::Quorums;

/// The custom value that says until when bookies stay, and how many.
const KEY: &str = "thermocline/partly-released";

/// The members that stay: of those that `is_hot` says are bookies, at least one in each write set that has any, and one that is `there`
/// in each write set that has any of these. No more than that needs, going through the write sets in order.
fn kept(quorums: Quorums, is_hot: impl Fn(usize) -> bool, is_there: impl Fn(usize) -> bool) -> Vec<usize> {
    let ensemble = quorums.ensemble() as usize;
    let mut kept: Vec<usize> = Vec::new();
    // Those that are there first: what they cover needs nobody else.
    for of_those_there in [true, false] {
        for first in 0..ensemble {
            let write_set = || (first..first + quorums.write() as usize).map(|index| index % ensemble);
            let may_stay = |index: &usize| is_hot(*index) && (!of_those_there || is_there(*index));
            if !write_set().any(|index| kept.contains(&index))
                && let Some(last) = write_set().filter(may_stay).last()
            {
                kept.push(last);
            }
        }
    }
    kept
}

impl LedgerMetadata {
    /// The ledger after the first step of a release in two: in every segment all members become `ids` but one bookie for each write
    /// set, one of those that are there where the write set has any. They stay until `until_ms`, wall-clock milliseconds since 1970.
    ///
    /// # Errors
    /// Those of [`LedgerMetadata::released_to`], and when the format cannot hold custom values.
    pub fn partly_released_to(
        &self,
        ids: &[ColdId],
        until_ms: u64,
        is_there: impl Fn(&BookieId) -> bool,
    ) -> Result<Self, Error> {
        let mut next = self.released_to(ids)?;
        let mut stay = 0_usize;
        for (segment, before) in next.segments.iter_mut().zip(&self.segments) {
            let before = &before.ensemble;
            for index in kept(self.quorums, |index| !is_cold(&before[index]), |index| is_there(&before[index])) {
                segment.ensemble[index].clone_from(&before[index]);
                stay += 1;
            }
        }
        if stay == 0 {
            return Err(transition("release in part: no bookie is among its members"));
        }
        next.with_custom(KEY, format!("{until_ms} {stay}"))?.checked()
    }

    /// Until when the bookies stay that the first step of a release has left, wall-clock milliseconds since 1970. `None` when the
    /// ledger is not as that step leaves it; after a repair has brought bookies back, for one.
    pub fn partly_released_until(&self) -> Option<u64> {
        let (until_ms, stay) = std::str::from_utf8(self.custom(KEY)?).ok()?.split_once(' ')?;
        let (until_ms, stay): (u64, usize) = (until_ms.parse().ok()?, stay.parse().ok()?);
        let members = self.segments.iter().flat_map(|segment| &segment.ensemble);
        let as_left = members.filter(|member| !is_cold(member)).count() <= stay;
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
    use crate::{DigestType, EntryId, LedgerId, Password, Segment};
    use proptest::prelude::*;

    fn covers(
        ensemble: u32,
        write: u32,
        is_hot: impl Fn(usize) -> bool + Copy,
        is_there: impl Fn(usize) -> bool + Copy,
    ) -> Vec<usize> {
        let quorums = Quorums::new(ensemble, write, 1).unwrap();
        let kept = kept(quorums, is_hot, is_there);
        assert!(kept.iter().all(|index| is_hot(*index)));
        for entry in 0..u64::from(ensemble) * 2 {
            let write_set: Vec<usize> = quorums.write_set(EntryId::new(entry).unwrap()).collect();
            let has_hot = write_set.iter().any(|index| is_hot(*index));
            let has_kept = write_set.iter().any(|index| kept.contains(index));
            assert_eq!(has_hot, has_kept, "E {ensemble}, Qw {write}, entry {entry}: {kept:?}");
            let has_there = write_set.iter().any(|index| is_hot(*index) && is_there(*index));
            let keeps_there = write_set.iter().any(|index| kept.contains(index) && is_there(*index));
            assert_eq!(has_there, keeps_there, "E {ensemble}, Qw {write}, entry {entry}: {kept:?}");
        }
        kept
    }

    #[test]
    fn every_write_set_keeps_a_bookie_and_no_more_stay_than_needed() {
        for ensemble in 1..=12_u32 {
            for write in 1..=ensemble {
                for all_there in [true, false] {
                    let kept = covers(ensemble, write, |_| true, |_| all_there);
                    assert_eq!(kept.len(), ensemble.div_ceil(write) as usize, "E {ensemble}, Qw {write}: {kept:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_hot_is_covered_by_those_that_are_there(ensemble in 1..13_u32, write in 1..13_u32, hot: u16, there: u16) {
            covers(ensemble, write.min(ensemble), |index| hot >> index & 1 == 1, |index| there >> index & 1 == 1);
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
        let partly = closed().partly_released_to(&ids, 1_700_000_000_000, |_| true).unwrap();
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
        whole.partly_released_to(&ids, 1, |_| true).unwrap_err();
    }

    #[test]
    fn a_bookie_stays_that_is_there() {
        let ids = ColdId::for_ledger(LedgerId::new(7).unwrap(), 3, "cold.thermocline", 3181).unwrap();
        let quorums = Quorums::new(3, 3, 2).unwrap();
        let members = ["a", "b", "c"].map(bookie).to_vec();
        let open = LedgerMetadata::open(quorums, members, DigestType::Crc32c, Password::empty()).unwrap();
        let closed = open.closed(EntryId::new(9), 10).unwrap();
        for there in ["a", "b", "c"] {
            let partly = closed.partly_released_to(&ids, 5, |member| *member == bookie(there)).unwrap();
            let hot: Vec<_> = partly.segments()[0].ensemble.iter().filter(|member| !is_cold(member)).collect();
            assert_eq!(hot, [&bookie(there)]);
            assert_eq!(partly.partly_released_until(), Some(5));
        }
        // The one that is there covers two of the four write sets of two; the others keep what they have.
        let (four, quorums) = (["a", "b", "c", "d"].map(bookie).to_vec(), Quorums::new(4, 2, 2).unwrap());
        let open = LedgerMetadata::open(quorums, four, DigestType::Crc32c, Password::empty()).unwrap();
        let ids = ColdId::for_ledger(LedgerId::new(7).unwrap(), 4, "cold.thermocline", 3181).unwrap();
        let there = [bookie("a"), bookie("d")];
        let partly =
            open.closed(EntryId::new(9), 10).unwrap().partly_released_to(&ids, 5, |member| there.contains(member));
        let partly = partly.unwrap();
        assert_eq!(partly.segments()[0].ensemble.iter().filter(|member| !is_cold(member)).count(), 3);
        assert_eq!(partly.partly_released_until(), Some(5), "however many were needed");
    }

    #[test]
    fn a_repair_that_brings_bookies_back_makes_it_begin_again() {
        let ids = ColdId::for_ledger(LedgerId::new(7).unwrap(), 3, "cold.thermocline", 3181).unwrap();
        let mut repaired = closed().partly_released_to(&ids, 5, |_| true).unwrap();
        repaired.segments[1].ensemble[2] = bookie("e");
        assert_eq!(repaired.partly_released_until(), None);
        assert_eq!(repaired.partly_released_to(&ids, 9, |_| true).unwrap().partly_released_until(), Some(9));
        let malformed = closed().partly_released_to(&ids, 5, |_| true).unwrap().with_custom(KEY, "5 soon").unwrap();
        assert_eq!(malformed.partly_released_until(), None);
    }
}
