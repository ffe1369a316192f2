//! What the relay decides: whom to ask for an entry, what an answer is worth, what is told in the end. Values in, values out.

use std::time::Duration;

use ledger::{BookieId, EntryId, LedgerMetadata, LedgerState, Quorums, Segment};
use proto::{ReadTarget, Status};

/// What the relay needs of the metadata of a closed ledger, whose end never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClosedLedger {
    quorums: Quorums,
    segments: Vec<Segment>,
    /// Its last entry; `None`: it is empty.
    pub(crate) last: Option<EntryId>,
}

impl ClosedLedger {
    /// `None` when the ledger is not closed.
    pub(crate) fn of(metadata: &LedgerMetadata) -> Option<Self> {
        let LedgerState::Closed { last_entry, .. } = metadata.state() else { return None };
        Some(Self { quorums: metadata.quorums(), segments: metadata.segments().to_vec(), last: last_entry })
    }

    /// Names of members that it holds: nearly all of its memory.
    pub(crate) fn members(&self) -> usize {
        self.segments.iter().map(|segment| segment.ensemble.len()).sum()
    }

    /// Whether a member is to hold an entry.
    pub(crate) fn is_held_by(&self, entry: EntryId, member: &BookieId) -> bool {
        let after = self.segments.partition_point(|segment| segment.first_entry <= entry);
        let Some(segment) = self.segments.get(after.saturating_sub(1)) else { return false };
        self.quorums.write_set(entry).any(|index| segment.ensemble.get(index) == Some(member))
    }

    /// Whether it is a member.
    pub(crate) fn names(&self, member: &BookieId) -> bool {
        self.segments.iter().any(|segment| segment.ensemble.contains(member))
    }

    /// The members that hold an entry, in the order in which readers ask them, each once and without `me`.
    pub(crate) fn holders(&self, entry: EntryId, me: &BookieId) -> Vec<BookieId> {
        let after = self.segments.partition_point(|segment| segment.first_entry <= entry);
        let Some(segment) = self.segments.get(after.saturating_sub(1)) else { return Vec::new() };
        let mut holders: Vec<BookieId> = Vec::new();
        for member in self.quorums.write_set(entry).filter_map(|index| segment.ensemble.get(index)) {
            if member != me && !holders.contains(member) {
                holders.push(member.clone());
            }
        }
        holders
    }
}

/// What a caller wants of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// An entry, or the last one.
    Read(ReadTarget),
    /// The entry behind this one.
    After(Option<EntryId>),
}

impl Want {
    /// The entry that is meant in a closed ledger; `None`: the ledger ends before it.
    pub(crate) fn within(self, last: Option<EntryId>) -> Option<EntryId> {
        let last = last?;
        let entry = match self {
            Self::Read(ReadTarget::Last) => last,
            Self::Read(ReadTarget::Entry(entry)) => entry,
            Self::After(previous) => previous.map_or(EntryId::ZERO, EntryId::next),
        };
        // Behind the highest id there is comes none.
        let is_behind = !matches!(self, Self::After(Some(previous)) if previous == entry);
        (entry <= last && is_behind).then_some(entry)
    }
}

/// What an answer without an entry is worth. The entry lies within the end of a closed ledger, so none of them can say that there is
/// no such entry or ledger: it is not with that member, no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hearsay {
    /// The member has it and cannot read it.
    Damaged,
    /// The key that was shown is not the ledger's.
    Denied,
    /// It says nothing about the entry.
    Nothing,
}

impl Hearsay {
    /// What `status` says in answer to a read that did or did not show a key.
    pub(crate) fn of(status: Status, fenced: bool) -> Self {
        match status {
            Status::Io => Self::Damaged,
            // Without a key it is this bookie that the member does not let in, and not its caller.
            Status::Unauthorized if fenced => Self::Denied,
            _ => Self::Nothing,
        }
    }
}

/// What a round of questions to the members of an entry came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Members nobody knows the address of, and places with too many questions already.
    pub(crate) unasked: usize,
    pub(crate) asked: usize,
    pub(crate) damaged: usize,
}

impl Tally {
    /// Whether every member there is has the entry and cannot read it.
    pub(crate) fn is_damage(self) -> bool {
        self.asked > 0 && self.damaged == self.asked && self.unasked == 0
    }
}

/// How many of `turns` may be under way at one place: one that is slow or dead leaves the others to those who ask elsewhere.
pub(crate) fn place_part(turns: usize) -> usize {
    (turns / 2).max(1)
}

/// Whether one of `turns` may go to what could be asked for again: while others may come for the `free` ones, half are theirs.
pub(crate) fn has_spare(free: usize, turns: usize) -> bool {
    free > turns.div_ceil(2)
}

/// The time that one of `places` that are left to ask may take: an equal share of what is left. The others may have the entry.
pub(crate) fn share(left: Duration, places: usize) -> Duration {
    left / u32::try_from(places.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ledger::{ColdId, DigestType, LedgerId, Password};

    use super::*;

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn entry(id: u64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    fn open(members: &[&str], write: u32) -> LedgerMetadata {
        let quorums = Quorums::new(u32::try_from(members.len()).unwrap(), write, 1).unwrap();
        let members = members.iter().map(|name| id(name)).collect();
        LedgerMetadata::open(quorums, members, DigestType::Crc32c, Password::empty()).unwrap()
    }

    fn names(found: &[BookieId]) -> Vec<&str> {
        found.iter().map(BookieId::as_str).collect()
    }

    #[test]
    fn the_write_set_of_the_entrys_segment_is_asked_in_order_and_never_oneself() {
        let second = Segment { first_entry: entry(10), ensemble: vec![id("d"), id("b"), id("c")] };
        let metadata = open(&["a", "b", "c"], 2).with_segment(second).unwrap().closed(Some(entry(20)), 1).unwrap();
        let ledger = ClosedLedger::of(&metadata).unwrap();
        let me = id("me");
        assert_eq!(names(&ledger.holders(entry(0), &me)), ["a", "b"]);
        assert_eq!(names(&ledger.holders(entry(2), &me)), ["c", "a"]);
        assert_eq!(names(&ledger.holders(entry(9), &me)), ["a", "b"]);
        assert_eq!(names(&ledger.holders(entry(12), &me)), ["d", "b"]);
        assert_eq!(names(&ledger.holders(entry(12), &id("d"))), ["b"]);
        assert_eq!(ledger.members(), 6);
        assert!(ledger.names(&id("d")) && !ledger.names(&me));
        assert_eq!(ClosedLedger::of(&open(&["a"], 1)), None, "its end may still move");
    }

    #[test]
    fn a_released_ledger_leads_to_its_cold_ids() {
        let ledger = LedgerId::new(5_u64).unwrap();
        let ids: Vec<ColdId> =
            (0..2).map(|i| ColdId::for_member(ledger, i, "cold.thermocline", 3181).unwrap()).collect();
        let metadata = open(&["a", "b"], 2).closed(Some(entry(3)), 1).unwrap().released_to(&ids).unwrap();
        let found = ClosedLedger::of(&metadata).unwrap().holders(entry(1), &id("a"));
        assert_eq!(found, [ids[1].to_bookie_id(), ids[0].to_bookie_id()]);
    }

    #[test]
    fn only_what_lies_beyond_the_end_is_not_there() {
        let (last, read) = (Some(entry(7)), |id| Want::Read(ReadTarget::Entry(entry(id))));
        assert_eq!(read(0).within(last), Some(entry(0)));
        assert_eq!(read(7).within(last), Some(entry(7)));
        assert_eq!(read(8).within(last), None);
        assert_eq!(Want::Read(ReadTarget::Last).within(last), last);
        assert_eq!(Want::After(None).within(last), Some(entry(0)));
        assert_eq!(Want::After(Some(entry(6))).within(last), last);
        assert_eq!(Want::After(last).within(last), None);
        let end = Some(EntryId::MAX);
        assert_eq!(Want::After(end).within(end), None, "nothing is behind the highest id");
        for want in [read(0), Want::Read(ReadTarget::Last), Want::After(None)] {
            assert_eq!(want.within(None), None, "an empty ledger has none");
        }
    }

    #[test]
    fn no_members_word_makes_an_entry_absent() {
        for status in Status::ALL {
            let expected = match status {
                Status::Io => Hearsay::Damaged,
                _ => Hearsay::Nothing,
            };
            assert_eq!(Hearsay::of(status, false), expected, "{status:?}");
            let expected = if status == Status::Unauthorized { Hearsay::Denied } else { expected };
            assert_eq!(Hearsay::of(status, true), expected, "{status:?} to a key");
        }
    }

    #[test]
    fn damage_takes_the_word_of_every_member() {
        let tally = |unasked, asked, damaged| Tally { unasked, asked, damaged }.is_damage();
        assert!(tally(0, 1, 1) && tally(0, 3, 3));
        assert!(!tally(0, 3, 2) && !tally(1, 2, 2) && !tally(0, 0, 0) && !tally(3, 0, 0));
    }

    #[test]
    fn what_need_not_be_leaves_half_of_the_turns() {
        assert!(has_spare(16, 16) && has_spare(9, 16) && !has_spare(8, 16) && !has_spare(0, 16));
        assert!(!has_spare(1, 1) && !has_spare(1, 2) && has_spare(3, 3) && !has_spare(2, 3));
        assert_eq!([1, 2, 3, 16].map(place_part), [1, 1, 1, 8]);
    }

    #[test]
    fn time_is_shared_by_those_who_are_left() {
        let second = Duration::from_secs(1);
        assert_eq!(share(3 * second, 3), second);
        assert_eq!(share(second, 1), second);
        assert_eq!(share(second, 0), second);
    }
}
