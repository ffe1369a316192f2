use ledger::{BookieId, DigestType, Password, Quorums, Segment};

use super::*;

fn id(entry: u64) -> EntryId {
    EntryId::new(entry).expect("small id")
}

fn set(indices: &[usize]) -> IndexSet {
    indices.iter().copied().collect()
}

fn bookies(first: u32, count: u32) -> Vec<BookieId> {
    (first..first + count).map(|index| BookieId::new(&format!("bk{index}:3181")).expect("valid id")).collect()
}

fn open(ensemble: u32, write: u32, ack: u32) -> LedgerMetadata {
    let quorums = Quorums::new(ensemble, write, ack).expect("valid sizes");
    LedgerMetadata::open(quorums, bookies(0, ensemble), DigestType::Crc32c, Password::empty()).expect("valid")
}

struct Run {
    machine: RecoveryMachine,
    actions: Vec<RecoveryAction>,
}

impl Run {
    fn new(metadata: LedgerMetadata) -> Self {
        Self { machine: RecoveryMachine::new(metadata).expect("small ensemble"), actions: Vec::new() }
    }

    fn on(&mut self, event: RecoveryEvent) -> Vec<RecoveryAction> {
        self.machine.on(event, &mut self.actions);
        std::mem::take(&mut self.actions)
    }

    /// Up to the fencing round.
    fn fencing(metadata: LedgerMetadata) -> Self {
        let mut run = Self::new(metadata);
        assert!(matches!(run.on(RecoveryEvent::Start)[..], [RecoveryAction::WriteMetadata(_)]));
        assert!(matches!(run.on(RecoveryEvent::Written)[..], [RecoveryAction::FenceAndReadLast { .. }]));
        run
    }

    fn lac(&mut self, index: usize, last_confirmed: Option<u64>) -> Vec<RecoveryAction> {
        let answer = LacAnswer::Confirmed(last_confirmed.map(id));
        self.on(RecoveryEvent::LacAnswered { index, answer })
    }

    fn read(&mut self, index: usize, entry: u64, answer: RecoveryRead) -> Vec<RecoveryAction> {
        self.on(RecoveryEvent::ReadAnswered { entry: id(entry), index, answer })
    }

    fn found(&mut self, index: usize, entry: u64, length: u64) -> Vec<RecoveryAction> {
        self.read(index, entry, RecoveryRead::Found { payload: Bytes::from_static(b"x"), length })
    }

    fn added(&mut self, index: usize, entry: u64, answer: AddAnswer) -> Vec<RecoveryAction> {
        self.on(RecoveryEvent::AddAnswered { entry: id(entry), index, answer })
    }
}

fn reads(actions: &[RecoveryAction]) -> Vec<(u64, IndexSet)> {
    let of = |action: &RecoveryAction| match action {
        RecoveryAction::FenceAndRead { entry, to } => Some((entry.get(), *to)),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

fn written_end(actions: &[RecoveryAction]) -> (Option<u64>, u64) {
    let [RecoveryAction::WriteMetadata(metadata)] = actions else { panic!("no close in {actions:?}") };
    let LedgerState::Closed { last_entry, length } = metadata.state() else { panic!("not closed: {metadata:?}") };
    (last_entry.map(EntryId::get), length)
}

#[test]
fn a_closed_ledger_is_done_at_once() {
    let closed = open(3, 3, 2).closed(Some(id(4)), 50).expect("from open");
    let mut run = Run::new(closed.clone());
    let actions = run.on(RecoveryEvent::Start);
    assert!(matches!(&actions[..], [RecoveryAction::Done(metadata)] if **metadata == closed));
}

#[test]
fn the_tail_is_added_again_and_the_ledger_closed_behind_it() {
    let mut run = Run::fencing(open(3, 3, 2));
    assert!(run.lac(0, Some(3)).is_empty(), "one answer does not cover");
    assert_eq!(reads(&run.lac(2, Some(4))), [(5, set(&[2]))]);
    let actions = run.found(2, 5, 60);
    assert!(matches!(
        &actions[0],
        RecoveryAction::AddAgain { entry, last_confirmed: Some(confirmed), length: 60, to, .. }
            if *entry == id(5) && *confirmed == id(4) && *to == set(&[0, 1, 2])
    ));
    let ahead = reads(&actions);
    assert_eq!(ahead[0], (6, set(&[0])), "the next entry is read while this one is added");
    assert!(run.added(1, 5, AddAnswer::Stored).is_empty());
    assert_eq!(reads(&run.read(0, 6, RecoveryRead::Absent)), [(6, set(&[1, 2]))], "one denial proves nothing");
    assert!(run.read(1, 6, RecoveryRead::Absent).is_empty(), "the end is known, entry 5 is not confirmed yet");
    assert_eq!(written_end(&run.added(0, 5, AddAnswer::Stored)), (Some(5), 60));
    assert!(matches!(run.on(RecoveryEvent::Written)[..], [RecoveryAction::Done(_)]));
}

#[test]
fn what_is_added_does_not_claim_what_only_a_close_makes_final() {
    let mut run = Run::fencing(open(1, 1, 1));
    run.lac(0, None);
    run.found(0, 0, 10);
    let actions = run.added(0, 0, AddAnswer::Stored);
    assert!(actions.iter().all(|action| !matches!(action, RecoveryAction::AddAgain { .. })));
    let actions = run.found(0, 1, 20);
    assert!(actions.iter().any(|action| matches!(action, RecoveryAction::AddAgain { last_confirmed: None, .. })));
}

#[test]
fn an_error_is_not_a_denial() {
    let mut run = Run::fencing(open(3, 3, 2));
    run.lac(0, None);
    run.lac(1, None);
    run.read(0, 0, RecoveryRead::Absent);
    run.read(1, 0, RecoveryRead::Problem(Problem::TimedOut));
    let actions = run.read(2, 0, RecoveryRead::Problem(Problem::Damaged));
    assert!(matches!(
        actions[..],
        [RecoveryAction::Failed(RecoveryFailure::EntryUnknown { problem: Problem::TimedOut, .. })]
    ));
}

#[test]
fn one_copy_is_enough_to_recover_an_entry() {
    let mut run = Run::fencing(open(3, 3, 2));
    run.lac(0, None);
    run.lac(1, None);
    run.read(0, 0, RecoveryRead::Absent);
    run.read(1, 0, RecoveryRead::Problem(Problem::Damaged));
    let actions = run.found(2, 0, 7);
    assert!(matches!(actions[0], RecoveryAction::AddAgain { length: 7, .. }));
}

#[test]
fn a_quorum_that_cannot_be_reached_leaves_the_ledger_in_recovery() {
    let mut run = Run::fencing(open(3, 3, 2));
    run.lac(0, None);
    run.lac(1, None);
    run.found(0, 0, 7);
    run.added(0, 0, AddAnswer::Stored);
    run.added(1, 0, AddAnswer::Unknown);
    let actions = run.added(2, 0, AddAnswer::NotStored);
    assert!(matches!(actions[..], [RecoveryAction::Failed(RecoveryFailure::QuorumUnreachable { acked: 1, .. })]));
    assert!(run.added(1, 0, AddAnswer::Stored).is_empty(), "nothing follows a failure");
}

#[test]
fn the_length_comes_from_the_last_entry_when_nothing_was_recovered() {
    let mut run = Run::fencing(open(3, 3, 2));
    // The answers come from entry 8, which is beyond the end; its length must not be used.
    run.lac(0, Some(6));
    run.lac(1, Some(6));
    run.read(1, 7, RecoveryRead::Absent);
    let actions = run.read(2, 7, RecoveryRead::Absent);
    assert_eq!(reads(&actions), [(6, set(&[0]))]);
    assert_eq!(reads(&run.read(0, 6, RecoveryRead::Problem(Problem::Damaged))), [(6, set(&[1]))]);
    assert_eq!(written_end(&run.found(1, 6, 70)), (Some(6), 70));
}

#[test]
fn a_confirmed_last_entry_that_nobody_has_fails_the_recovery() {
    let mut run = Run::fencing(open(1, 1, 1));
    run.lac(0, Some(6));
    run.read(0, 7, RecoveryRead::Absent);
    let actions = run.read(0, 6, RecoveryRead::Absent);
    assert!(matches!(actions[..], [RecoveryAction::Failed(RecoveryFailure::EndUnreadable { problem: None, .. })]));
}

#[test]
fn an_empty_ledger_closes_empty() {
    let mut run = Run::fencing(open(3, 3, 2));
    run.on(RecoveryEvent::LacAnswered { index: 0, answer: LacAnswer::Absent });
    run.on(RecoveryEvent::LacAnswered { index: 1, answer: LacAnswer::Absent });
    run.read(0, 0, RecoveryRead::Absent);
    assert_eq!(written_end(&run.read(1, 0, RecoveryRead::Absent)), (None, 0));
}

#[test]
fn an_empty_last_segment_ends_before_itself() {
    let segment = Segment { first_entry: id(10), ensemble: bookies(5, 3) };
    let mut run = Run::fencing(open(3, 3, 2).with_segment(segment).expect("later segment"));
    run.on(RecoveryEvent::LacAnswered { index: 0, answer: LacAnswer::Absent });
    let actions = run.on(RecoveryEvent::LacAnswered { index: 1, answer: LacAnswer::Absent });
    assert_eq!(reads(&actions), [(10, set(&[1]))]);
    run.read(1, 10, RecoveryRead::Absent);
    assert_eq!(reads(&run.read(2, 10, RecoveryRead::Absent)), [(9, set(&[0]))]);
    assert_eq!(written_end(&run.found(0, 9, 100)), (Some(9), 100));
}

#[test]
fn too_few_fenced_members_fail() {
    let mut run = Run::fencing(open(3, 3, 2));
    for index in 0..2 {
        let answer = LacAnswer::Problem(Problem::Disconnected);
        assert!(run.on(RecoveryEvent::LacAnswered { index, answer }).is_empty());
    }
    let actions = run.lac(2, Some(4));
    assert!(matches!(actions[..], [RecoveryAction::Failed(RecoveryFailure::NotCovered(Problem::Disconnected))]));
}

#[test]
fn an_unknown_write_is_read_back() {
    let metadata = open(3, 3, 2);
    let mut run = Run::new(metadata.clone());
    run.on(RecoveryEvent::Start);
    assert!(matches!(run.on(RecoveryEvent::WriteUnknown)[..], [RecoveryAction::ReadMetadata]));
    // It had not happened.
    let again = run.on(RecoveryEvent::MetadataRead(Some(metadata.clone())));
    assert!(matches!(again[..], [RecoveryAction::WriteMetadata(_)]));
    assert!(matches!(run.on(RecoveryEvent::WriteUnknown)[..], [RecoveryAction::ReadMetadata]));
    // It had.
    let marked = metadata.in_recovery().expect("from open");
    let actions = run.on(RecoveryEvent::MetadataRead(Some(marked)));
    assert!(matches!(actions[..], [RecoveryAction::FenceAndReadLast { .. }]));
}

#[test]
fn the_close_of_another_is_accepted() {
    let metadata = open(1, 1, 1);
    let mut run = Run::fencing(metadata.clone());
    run.lac(0, None);
    run.read(0, 0, RecoveryRead::Absent);
    let theirs = metadata.closed(Some(id(3)), 30).expect("from open");
    let actions = run.on(RecoveryEvent::Conflict(Some(theirs.clone())));
    assert!(matches!(&actions[..], [RecoveryAction::Done(done)] if **done == theirs));
}

#[test]
fn endless_conflicts_end() {
    let metadata = open(1, 1, 1);
    let mut run = Run::new(metadata.clone());
    run.on(RecoveryEvent::Start);
    let mut rounds = 0;
    loop {
        let actions = run.on(RecoveryEvent::Conflict(Some(metadata.clone())));
        match &actions[..] {
            [RecoveryAction::WriteMetadata(_)] => rounds += 1,
            [RecoveryAction::Failed(RecoveryFailure::Contention)] => break,
            other => panic!("unexpected {other:?}"),
        }
        assert!(rounds < 100);
    }
}
