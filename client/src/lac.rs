//! How far a ledger is confirmed, from the answers of its last ensemble.

use ledger::EntryId;

use crate::geometry::{Geometry, IndexSet};
use crate::read::Problem;

/// How a member answered the question for its last entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LacAnswer {
    /// Its last entry, digest checked, says that this much is confirmed.
    Confirmed(Option<EntryId>),
    /// It has no entry of the ledger.
    Absent,
    /// Nothing is known. A body with a bad digest belongs here: it says nothing about what its bookie holds.
    Problem(Problem),
}

/// What is known after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LacStep {
    Wait,
    /// Enough members answered: no write set has an ack quorum of silent ones.
    Covered(Option<EntryId>),
    Unauthorized,
    /// All answers are in and they are not enough; the first problem.
    NotCovered(Problem),
}

/// Collects the answers of one round.
#[derive(Debug)]
pub(crate) struct LacRead {
    geometry: Geometry,
    waiting: IndexSet,
    known: IndexSet,
    highest: Option<EntryId>,
    first_problem: Option<Problem>,
    over: bool,
}

impl LacRead {
    /// `last_segment_start`: the first entry of the last segment. Everything before it is confirmed, or the segment could not
    /// begin there; when the whole last ensemble is empty this alone says so.
    pub(crate) fn new(geometry: Geometry, last_segment_start: EntryId) -> Self {
        Self {
            geometry,
            waiting: geometry.all(),
            known: IndexSet::EMPTY,
            highest: last_segment_start.prev(),
            first_problem: None,
            over: false,
        }
    }

    /// Takes in the answer of member `index`; only the first one of each counts.
    pub(crate) fn on(&mut self, index: usize, answer: LacAnswer) -> LacStep {
        if self.over || !self.waiting.remove(index) {
            return LacStep::Wait;
        }
        match answer {
            LacAnswer::Confirmed(last_confirmed) => {
                self.known.insert(index);
                self.highest = self.highest.max(last_confirmed);
            }
            LacAnswer::Absent => {
                self.known.insert(index);
            }
            LacAnswer::Problem(Problem::Unauthorized) => {
                self.over = true;
                return LacStep::Unauthorized;
            }
            LacAnswer::Problem(problem) => {
                self.first_problem.get_or_insert(problem);
            }
        }
        if self.geometry.covered(self.known) {
            self.over = true;
            LacStep::Covered(self.highest)
        } else if self.waiting.is_empty() {
            self.over = true;
            LacStep::NotCovered(self.first_problem.unwrap_or(Problem::Unknown))
        } else {
            LacStep::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use ledger::Quorums;

    use super::*;

    fn id(entry: u64) -> EntryId {
        EntryId::new(entry).expect("small id")
    }

    fn read(ensemble: u32, write: u32, ack: u32, start: u64) -> LacRead {
        let quorums = Quorums::new(ensemble, write, ack).expect("valid sizes");
        LacRead::new(Geometry::new(quorums).expect("small ensemble"), id(start))
    }

    #[test]
    fn the_highest_answer_wins_once_covered() {
        let mut lac = read(3, 3, 2, 0);
        assert_eq!(lac.on(0, LacAnswer::Confirmed(Some(id(4)))), LacStep::Wait);
        assert_eq!(lac.on(0, LacAnswer::Confirmed(Some(id(9)))), LacStep::Wait, "one answer a member");
        assert_eq!(lac.on(2, LacAnswer::Absent), LacStep::Covered(Some(id(4))));
    }

    #[test]
    fn an_empty_last_segment_does_not_forget_the_ones_before() {
        let mut lac = read(1, 1, 1, 10);
        assert_eq!(lac.on(0, LacAnswer::Absent), LacStep::Covered(Some(id(9))));
    }

    #[test]
    fn problems_do_not_cover() {
        let mut lac = read(3, 3, 2, 0);
        assert_eq!(lac.on(0, LacAnswer::Problem(Problem::TimedOut)), LacStep::Wait);
        assert_eq!(lac.on(1, LacAnswer::Problem(Problem::Damaged)), LacStep::Wait);
        assert_eq!(lac.on(2, LacAnswer::Absent), LacStep::NotCovered(Problem::TimedOut));
    }

    #[test]
    fn a_wrong_key_ends_it() {
        let mut lac = read(3, 3, 2, 0);
        assert_eq!(lac.on(1, LacAnswer::Problem(Problem::Unauthorized)), LacStep::Unauthorized);
    }
}
