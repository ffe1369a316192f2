use proptest::prelude::*;

use super::*;

fn set(quorums: Quorums, entry: u64) -> Vec<usize> {
    quorums.write_set(EntryId::new(entry).unwrap()).collect()
}

#[test]
fn sizes_are_checked() {
    assert!(Quorums::new(3, 3, 2).is_ok());
    for (e, w, a) in [(3, 2, 0), (3, 2, 3), (2, 3, 2), (0, 0, 0), (u32::MAX, 3, 2)] {
        assert_eq!(Quorums::new(e, w, a).unwrap_err().kind(), ErrorKind::Quorum);
    }
}

#[test]
fn write_sets_stripe_by_absolute_id() {
    let quorums = Quorums::new(3, 2, 2).unwrap();
    assert_eq!(set(quorums, 0), [0, 1]);
    assert_eq!(set(quorums, 2), [2, 0]);
    // Ids above 2^31 are not truncated: 2^32 mod 3 = 1, and 0 mod 3 would be 0.
    assert_eq!(set(quorums, 1 << 32), [1, 2]);
    assert_eq!(set(quorums, i64::MAX as u64), [1, 2]);
}

#[test]
fn negatives_needed_leave_less_than_an_ack_quorum() {
    assert_eq!(Quorums::new(3, 3, 2).unwrap().negatives_needed(), 2);
    assert_eq!(Quorums::new(5, 3, 1).unwrap().negatives_needed(), 3);
    assert_eq!(Quorums::new(5, 3, 3).unwrap().negatives_needed(), 1);
}

#[test]
fn fence_coverage_examples() {
    let quorums = Quorums::new(3, 3, 2).unwrap();
    assert!(quorums.fence_covered(&[true, true, false]));
    assert!(!quorums.fence_covered(&[true, false, false]));
    assert!(!quorums.fence_covered(&[]));
    let striped = Quorums::new(4, 2, 2).unwrap();
    assert!(striped.fence_covered(&[true, false, true, false]));
    assert!(!striped.fence_covered(&[true, false, false, true]));
}

proptest! {
    #[test]
    fn coverage_is_that_of_every_write_set(
        (e, w, a, known) in (1_u32..9).prop_flat_map(|e| (Just(e), 1..=e))
            .prop_flat_map(|(e, w)| (Just(e), Just(w), 1..=w, proptest::collection::vec(any::<bool>(), e as usize)))
    ) {
        let quorums = Quorums::new(e, w, a).unwrap();
        let expected = (0..u64::from(e)).all(|entry| {
            let unknown = set(quorums, entry).into_iter().filter(|i| !known[*i]).count();
            unknown < a as usize
        });
        prop_assert_eq!(quorums.fence_covered(&known), expected);
    }

    #[test]
    fn write_sets_are_distinct_members_and_holds_agrees(
        (e, w) in (1_u32..9).prop_flat_map(|e| (Just(e), 1..=e)), entry in 0..=i64::MAX as u64
    ) {
        let quorums = Quorums::new(e, w, 1).unwrap();
        let members = set(quorums, entry);
        prop_assert_eq!(members.len(), w as usize);
        for index in 0..=e as usize {
            let held = quorums.holds(index, EntryId::new(entry).unwrap());
            prop_assert_eq!(held, members.iter().filter(|m| **m == index).count() == 1);
        }
    }
}
