use ledger::Quorums;
use proptest::prelude::*;

use super::*;

fn id(entry: u64) -> EntryId {
    EntryId::new(entry).expect("small id")
}

fn set(indices: &[usize]) -> IndexSet {
    indices.iter().copied().collect()
}

struct Run {
    machine: WriterMachine,
    actions: Vec<WriterAction>,
}

impl Run {
    fn new(ensemble: u32, write: u32, ack: u32) -> Self {
        let quorums = Quorums::new(ensemble, write, ack).expect("valid sizes");
        let geometry = Geometry::new(quorums).expect("small ensemble");
        Self { machine: WriterMachine::new(geometry), actions: Vec::new() }
    }

    fn on(&mut self, event: WriterEvent) -> Vec<WriterAction> {
        self.machine.on(event, &mut self.actions);
        std::mem::take(&mut self.actions)
    }

    fn append(&mut self) -> Vec<WriterAction> {
        self.on(WriterEvent::Append { payload_bytes: 10 })
    }

    fn answer(&mut self, index: usize, entry: u64, answer: AddAnswer) -> Vec<WriterAction> {
        self.on(WriterEvent::Answered { index, entry: id(entry), answer })
    }
}

use WriterAction::{Confirm, End, Fail, Send, WriteClosed};

#[test]
fn entries_are_confirmed_in_order_at_the_ack_quorum() {
    let mut run = Run::new(3, 3, 2);
    let to = set(&[0, 1, 2]);
    assert_eq!(run.append(), [Send { entry: id(0), last_confirmed: None, length: 10, to }]);
    assert_eq!(run.append(), [Send { entry: id(1), last_confirmed: None, length: 20, to }]);
    assert!(run.answer(0, 1, AddAnswer::Stored).is_empty());
    assert!(run.answer(1, 1, AddAnswer::Stored).is_empty(), "complete, but not at the head");
    assert!(run.answer(1, 0, AddAnswer::Stored).is_empty());
    assert!(run.answer(1, 0, AddAnswer::Stored).is_empty(), "one member counts once");
    assert_eq!(run.answer(2, 0, AddAnswer::Stored), [Confirm { entry: id(0) }, Confirm { entry: id(1) }]);
    assert_eq!(run.append(), [Send { entry: id(2), last_confirmed: Some(id(1)), length: 30, to }]);
}

#[test]
fn a_failed_member_gets_nothing_more_and_the_writer_goes_on() {
    let mut run = Run::new(3, 3, 2);
    run.append();
    assert!(run.answer(1, 0, AddAnswer::NotStored).is_empty());
    assert_eq!(run.machine.failed(), set(&[1]));
    let next = run.append();
    assert_eq!(next, [Send { entry: id(1), last_confirmed: None, length: 20, to: set(&[0, 2]) }]);
    run.answer(0, 0, AddAnswer::Stored);
    assert_eq!(run.answer(2, 0, AddAnswer::Stored), [Confirm { entry: id(0) }]);
}

#[test]
fn an_entry_that_cannot_reach_the_quorum_ends_the_writer() {
    let mut run = Run::new(2, 2, 2);
    run.append();
    run.append();
    run.answer(0, 0, AddAnswer::Stored);
    let end = WriterEnd::QuorumUnreachable { entry: id(0), acked: 1 };
    let expected = [End(end), Fail { entry: id(0), may_be_stored: true }, Fail { entry: id(1), may_be_stored: true }];
    assert_eq!(run.answer(1, 0, AddAnswer::NotStored), expected);
    assert!(run.answer(1, 0, AddAnswer::Stored).is_empty(), "nothing is confirmed after the end");
    // What was confirmed can still be sealed.
    assert_eq!(run.on(WriterEvent::Close), [WriteClosed { last_entry: None, length: 0 }]);
}

#[test]
fn an_entry_that_nobody_took_is_surely_not_stored() {
    let mut run = Run::new(1, 1, 1);
    run.append();
    let end = WriterEnd::QuorumUnreachable { entry: id(0), acked: 0 };
    assert_eq!(run.answer(0, 0, AddAnswer::NotStored), [End(end), Fail { entry: id(0), may_be_stored: false }]);

    let mut run = Run::new(1, 1, 1);
    run.append();
    assert_eq!(run.answer(0, 0, AddAnswer::Unknown), [End(end), Fail { entry: id(0), may_be_stored: true }]);
}

#[test]
fn a_fence_ends_the_writer_even_when_the_quorum_acknowledged() {
    let mut run = Run::new(3, 3, 2);
    run.append();
    run.append();
    run.answer(0, 0, AddAnswer::Stored);
    let fail = |entry| Fail { entry: id(entry), may_be_stored: true };
    assert_eq!(run.answer(1, 1, AddAnswer::Fenced), [End(WriterEnd::Fenced), fail(0), fail(1)]);
    assert!(run.answer(2, 0, AddAnswer::Stored).is_empty());
    assert!(run.on(WriterEvent::Close).is_empty(), "the end belongs to whoever fenced it");
}

#[test]
fn closing_stops_confirmation_and_then_decides_what_was_pending() {
    for closed in [true, false] {
        let mut run = Run::new(3, 3, 2);
        run.append();
        run.append();
        run.answer(0, 0, AddAnswer::Stored);
        run.answer(1, 0, AddAnswer::Stored);
        let expected = [End(WriterEnd::Closing), WriteClosed { last_entry: Some(id(0)), length: 10 }];
        assert_eq!(run.on(WriterEvent::Close), expected);
        run.answer(0, 1, AddAnswer::Stored);
        assert!(run.answer(1, 1, AddAnswer::Stored).is_empty());
        let over = run.on(WriterEvent::CloseOver { closed });
        assert_eq!(over, [Fail { entry: id(1), may_be_stored: !closed }]);
    }
}

#[test]
fn a_length_that_no_metadata_can_hold_is_refused() {
    let mut run = Run::new(1, 1, 1);
    run.on(WriterEvent::Append { payload_bytes: i64::MAX as u64 });
    let refused = run.append();
    assert_eq!(refused[0], End(WriterEnd::Full));
}

proptest! {
    /// Any order of answers: confirmed in order, only with enough acknowledgements, each entry ends exactly once.
    #[test]
    fn every_entry_ends_once_and_in_order(
        write in 1u32..5, spare in 0u32..3, ack_drop in 0u32..4,
        steps in prop::collection::vec((0u8..8, any::<prop::sample::Index>()), 1..120),
        last in any::<prop::sample::Index>(),
    ) {
        let ack = write.saturating_sub(ack_drop).max(1);
        let mut run = Run::new(write + spare, write, ack);
        let mut outstanding: Vec<(usize, EntryId)> = Vec::new();
        let mut acked: std::collections::BTreeMap<EntryId, IndexSet> = std::collections::BTreeMap::new();
        let (mut appended, mut confirmed, mut failed) = (0u64, 0u64, 0u64);
        let finish = [(7u8, last)];
        for (what, which) in steps.iter().chain(&finish) {
            let actions = match what {
                0..=2 if run.machine.end().is_none() => { appended += 1; run.append() }
                7 => run.on(WriterEvent::Close),
                _ if outstanding.is_empty() => continue,
                _ => {
                    let (index, entry) = outstanding.swap_remove(which.index(outstanding.len()));
                    let answer = if *what == 6 { AddAnswer::Unknown } else { AddAnswer::Stored };
                    if answer == AddAnswer::Stored {
                        acked.entry(entry).or_default().insert(index);
                    }
                    run.answer(index, entry.get(), answer)
                }
            };
            for action in actions {
                match action {
                    Send { entry, to, .. } => outstanding.extend(to.iter().map(|index| (index, entry))),
                    Confirm { entry } => {
                        prop_assert_eq!(entry.get(), confirmed);
                        prop_assert_eq!(failed, 0);
                        prop_assert!(acked[&entry].len() >= ack);
                        confirmed += 1;
                    }
                    Fail { entry, .. } => {
                        prop_assert_eq!(entry.get(), confirmed + failed);
                        failed += 1;
                    }
                    End(_) => {}
                    WriteClosed { last_entry, length } => {
                        prop_assert_eq!(last_entry.map_or(0, |last| last.get() + 1), confirmed);
                        prop_assert_eq!(length, confirmed * 10);
                        for action in run.on(WriterEvent::CloseOver { closed: true }) {
                            let is_absent = matches!(action, Fail { may_be_stored: false, .. });
                            prop_assert!(is_absent);
                            failed += 1;
                        }
                    }
                }
            }
        }
        prop_assert_eq!(confirmed + failed, appended);
    }
}
