//! Which replica of an entry to ask next, and what to say when none of them has it.
//!
//! Members of the write set are asked one after the other, those last that are suspected to be down. An error of one is never
//! taken for absence: only answers of *all* of them can say that, and then it is for the caller to judge by the ledger's end
//! (a confirmed entry that every replica denies is damage).

use ledger::EntryId;

use crate::geometry::{Geometry, IndexSet};

/// Why a replica's answer says nothing about the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    Unauthorized,
    /// The body is not that entry's, or its digest does not match.
    Damaged,
    TooManyRequests,
    TimedOut,
    /// The connection could not be opened or was lost.
    Disconnected,
    /// The bookie does not know.
    Unknown,
}

/// How a replica answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaAnswer {
    Found,
    Absent,
    Problem(Problem),
}

/// What to do after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadStep {
    Ask(usize),
    Found,
    /// Not the answer that was waited for.
    Ignore,
    /// Nobody is left to ask; the first problem.
    Failed(Problem),
    /// Every replica that could be asked says that it never had the entry. `all`: that is the whole write set.
    Denied {
        all: bool,
    },
    /// Every replica is in the cold tier.
    NotHot,
}

/// The search for one entry.
#[derive(Debug)]
pub(crate) struct EntryRead {
    geometry: Geometry,
    entry: EntryId,
    /// Hot members not asked yet.
    left: IndexSet,
    asked: Option<usize>,
    first_problem: Option<Problem>,
    denied: u32,
}

impl EntryRead {
    /// `hot`: the members that are not cold ids.
    pub(crate) fn new(geometry: Geometry, entry: EntryId, hot: IndexSet) -> Self {
        let left = geometry.write_set(entry).and(hot);
        Self { geometry, entry, left, asked: None, first_problem: None, denied: 0 }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn entry(&self) -> EntryId {
        self.entry
    }

    /// The member whose answer is waited for.
    pub(crate) fn asked(&self) -> Option<usize> {
        self.asked
    }

    /// The first step. `suspects`: members to ask last.
    pub(crate) fn start(&mut self, suspects: IndexSet) -> ReadStep {
        if self.left.is_empty() { ReadStep::NotHot } else { self.next(suspects) }
    }

    /// Takes in the answer of member `index`.
    pub(crate) fn on(&mut self, index: usize, answer: ReplicaAnswer, suspects: IndexSet) -> ReadStep {
        if self.asked != Some(index) {
            return ReadStep::Ignore;
        }
        self.asked = None;
        match answer {
            ReplicaAnswer::Found => return ReadStep::Found,
            ReplicaAnswer::Absent => self.denied += 1,
            ReplicaAnswer::Problem(problem) => {
                self.first_problem.get_or_insert(problem);
            }
        }
        self.next(suspects)
    }

    fn next(&mut self, suspects: IndexSet) -> ReadStep {
        let left = self.left;
        let choose = |from: IndexSet| self.geometry.in_order(self.entry).find(|index| from.contains(*index));
        match choose(left.without(suspects)).or_else(|| choose(left)) {
            Some(index) => {
                self.left.remove(index);
                self.asked = Some(index);
                ReadStep::Ask(index)
            }
            None => match self.first_problem {
                Some(problem) => ReadStep::Failed(problem),
                None => ReadStep::Denied { all: self.denied == self.geometry.write_set(self.entry).len() },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use ledger::Quorums;

    use super::*;

    fn read(entry: u64, hot: &[usize]) -> EntryRead {
        let geometry = Geometry::new(Quorums::new(5, 3, 2).expect("valid sizes")).expect("small ensemble");
        EntryRead::new(geometry, EntryId::new(entry).expect("small id"), hot.iter().copied().collect())
    }

    #[test]
    fn replicas_are_asked_in_order_and_suspects_last() {
        let none = IndexSet::EMPTY;
        let mut search = read(4, &[0, 1, 2, 3, 4]);
        assert_eq!(search.start([4].into_iter().collect()), ReadStep::Ask(0));
        assert_eq!(search.on(4, ReplicaAnswer::Found, none), ReadStep::Ignore);
        assert_eq!(search.on(0, ReplicaAnswer::Problem(Problem::TimedOut), none), ReadStep::Ask(4));
        assert_eq!(search.on(4, ReplicaAnswer::Absent, none), ReadStep::Ask(1));
        assert_eq!(search.on(1, ReplicaAnswer::Found, none), ReadStep::Found);
    }

    #[test]
    fn a_problem_is_never_absence() {
        let none = IndexSet::EMPTY;
        let mut search = read(0, &[0, 1, 2, 3, 4]);
        assert_eq!(search.start(none), ReadStep::Ask(0));
        search.on(0, ReplicaAnswer::Absent, none);
        search.on(1, ReplicaAnswer::Problem(Problem::Damaged), none);
        let end = search.on(2, ReplicaAnswer::Problem(Problem::TimedOut), none);
        assert_eq!(end, ReadStep::Failed(Problem::Damaged));
    }

    #[test]
    fn only_the_whole_write_set_can_deny() {
        let none = IndexSet::EMPTY;
        let mut search = read(0, &[1]);
        assert_eq!(search.start(none), ReadStep::Ask(1));
        assert_eq!(search.on(1, ReplicaAnswer::Absent, none), ReadStep::Denied { all: false });
        assert_eq!(read(0, &[3, 4]).start(none), ReadStep::NotHot);
    }
}
