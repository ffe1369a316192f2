use super::*;

fn key(text: &str) -> MasterKey {
    MasterKey::derive(text.as_bytes())
}

const SEGMENT: SegmentId = SegmentId::new(1);

#[test]
fn the_first_key_is_learnt_and_written_once() {
    let mut state = LedgerState::default();
    assert_eq!(state.admit_add(&key("a"), false, 0), Ok(Admission { write_key: true, write_fence: false }));
    assert_eq!(state.admit_add(&key("a"), false, 0), Ok(Admission { write_key: false, write_fence: false }));
    assert_eq!(state.admit_add(&key("b"), false, 0), Err(Refusal::Unauthorized));
    assert_eq!(state.admit_add(&key("b"), true, 0), Err(Refusal::Unauthorized));
    assert_eq!(state.admit_fence(Some(&key("b"))), Err(Refusal::Unauthorized));
    assert_eq!(state.admit_fence(None), Err(Refusal::Unauthorized));
    assert!(!state.fenced, "a refused fence leaves no trace");
}

#[test]
fn a_key_that_was_not_written_is_written_with_the_next_request() {
    let mut state = LedgerState::default();
    state.admit_add(&key("a"), false, 0).expect("admitted");
    state.on_failed(true, false);
    assert_eq!(state.admit_add(&key("a"), false, 0), Ok(Admission { write_key: true, write_fence: false }));
    state.on_key(SEGMENT, key("a").as_bytes());
    assert_eq!(state.admit_add(&key("a"), false, 0), Ok(Admission { write_key: false, write_fence: false }));
}

#[test]
fn the_key_of_zeros_is_replaced_by_the_first_real_one() {
    let mut state = LedgerState::default();
    state.admit_add(&MasterKey::EMPTY, false, 0).expect("admitted");
    assert!(state.admit_add(&key("a"), false, 0).expect("adopted").write_key);
    assert_eq!(state.admit_add(&MasterKey::EMPTY, false, 0), Err(Refusal::Unauthorized));
}

#[test]
fn a_fence_stops_normal_adds_only_and_for_ever() {
    let mut state = LedgerState::default();
    assert_eq!(state.admit_fence(Some(&key("a"))), Ok(Admission { write_key: true, write_fence: true }));
    assert_eq!(state.admit_add(&key("a"), false, 0), Err(Refusal::Fenced));
    assert!(state.admit_add(&key("a"), true, 7).is_ok());
    assert_eq!(state.recovery_ms, 7);
    assert!(state.admit_fence(Some(&key("a"))).expect("again").write_fence, "not durable yet: written again");
    state.on_failed(false, true);
    assert!(state.fenced, "a failed write does not open the ledger");
    assert!(state.admit_fence(Some(&key("a"))).expect("again").write_fence);
    state.on_fence(SEGMENT);
    assert!(!state.admit_fence(Some(&key("a"))).expect("durable").write_fence);
    let state = LedgerState::restored(Some(&state.row()), None);
    assert!(state.fenced && state.fence_durability == Durability::Yes);
}

#[test]
fn a_key_shown_after_the_fence_is_written_and_waited_for() {
    let mut state = LedgerState::default();
    state.admit_fence(Some(&MasterKey::EMPTY)).expect("the key is not known yet");
    state.on_key(SEGMENT, MasterKey::EMPTY.as_bytes());
    state.on_fence(SEGMENT);
    let key_alone = Ok(Admission { write_key: true, write_fence: false });
    assert_eq!(state.admit_fence(Some(&key("a"))), key_alone);
    assert!(!state.is_fenced_with(&key("a")));
    assert_eq!(state.admit_fence(Some(&key("a"))), key_alone, "not durable yet: written again");
    assert_eq!(state.admit_fence(Some(&key("b"))), Err(Refusal::Unauthorized));
    state.on_key(SEGMENT, key("a").as_bytes());
    assert_eq!(state.admit_fence(Some(&key("a"))), Ok(Admission { write_key: false, write_fence: false }));
    assert!(state.is_fenced_with(&key("a")) && !state.is_fenced_with(&key("b")));
    assert!(state.is_clean(SEGMENT));
}

#[test]
fn tombstones_answer_as_the_protocol_asks() {
    let with = |tombstone| LedgerState::restored(None, Some(tombstone));
    for tombstone in [Tombstone::Deleted, Tombstone::Gone, Tombstone::Revived] {
        assert_eq!(with(tombstone).admit_add(&key("a"), false, 0), Err(Refusal::Fenced));
    }
    assert_eq!(with(Tombstone::Deleted).admit_add(&key("a"), true, 0), Err(Refusal::Fenced));
    assert_eq!(with(Tombstone::Gone).admit_add(&key("a"), true, 0), Err(Refusal::NeedsRevival));
    assert!(with(Tombstone::Revived).admit_add(&key("a"), true, 0).is_ok());
    assert_eq!(with(Tombstone::Deleted).admit_fence(Some(&key("a"))), Err(Refusal::NoLedger));
    let mut gone = with(Tombstone::Gone);
    assert!(gone.admit_fence(Some(&key("a"))).expect("a gone ledger is fenced as any other").write_fence);
    gone.on_fence(SEGMENT);
    assert!(!gone.admit_fence(Some(&key("a"))).expect("durable").write_fence);
    assert_eq!(gone.tombstone, Some(Tombstone::Gone), "fencing brings nothing back");
}

#[test]
fn a_state_with_open_records_is_not_forgotten() {
    let mut state = LedgerState::default();
    assert!(state.is_clean(SegmentId::NONE));
    state.admit_add(&key("a"), false, 0).expect("admitted");
    state.pending = 2;
    assert!(!state.is_clean(SEGMENT));
    state.on_key(SEGMENT, key("a").as_bytes());
    state.on_entry(SEGMENT, EntryId::ZERO, None);
    assert!(!state.is_clean(SegmentId::NONE) && state.is_clean(SEGMENT));
    assert_eq!((state.max_entry, state.last_confirmed), (Some(EntryId::ZERO), None));
}

fn lac_body(lac: i64, tail: &[u8]) -> Vec<u8> {
    [&7_i64.to_be_bytes()[..], &lac.to_be_bytes(), tail].concat()
}

#[test]
fn the_highest_explicit_last_confirmed_stays() {
    let mut state = LedgerState::default();
    assert_eq!(state.admit_write_lac(&key("a")), Ok(Admission { write_key: true, write_fence: false }));
    assert_eq!(state.admit_write_lac(&key("b")), Err(Refusal::Unauthorized));
    for (lac, tail, kept) in [(-1, 1_u8, (-1, 1)), (5, 2, (5, 2)), (3, 3, (5, 2)), (5, 4, (5, 4)), (6, 5, (6, 5))] {
        state.on_explicit_lac(SEGMENT, &lac_body(lac, &[tail]));
        assert_eq!(state.explicit_lac.as_deref(), Some(&lac_body(kept.0, &[kept.1])[..]), "after {lac}");
        assert_eq!(EntryId::option_to_i64(state.last_confirmed), kept.0);
    }
    state.on_entry(SEGMENT, EntryId::ZERO, EntryId::new(9_u64));
    assert_eq!(state.last_confirmed, EntryId::new(9_u64), "the highest of both");
    for broken in [&[][..], &lac_body(7, &[])[..15], &lac_body(-2, &[])] {
        state.on_explicit_lac(SEGMENT, broken);
        assert_eq!(state.explicit_lac.as_deref(), Some(&lac_body(6, &[5])[..]));
    }
    let restored = LedgerState::restored(Some(&state.row()), None);
    assert_eq!((restored.explicit_lac, restored.last_confirmed), (state.explicit_lac, state.last_confirmed));
}

#[test]
fn an_explicit_last_confirmed_passes_a_fence_and_no_tombstone() {
    let mut state = LedgerState::default();
    state.admit_fence(Some(&key("a"))).expect("fenced");
    assert!(state.admit_write_lac(&key("a")).is_ok());
    for (tombstone, expected) in [
        (Tombstone::Deleted, Refusal::NoLedger),
        (Tombstone::Gone, Refusal::Fenced),
        (Tombstone::Revived, Refusal::Fenced),
    ] {
        assert_eq!(LedgerState::restored(None, Some(tombstone)).admit_write_lac(&key("a")), Err(expected));
    }
}

#[test]
fn news_is_what_is_durable_and_was_not_known() {
    let mut state = LedgerState::default();
    assert!(state.has_news(None, false), "nothing is here that could be waited for");
    state.admit_add(&key("a"), false, 0).expect("admitted");
    assert!(!state.has_news(None, false));
    state.on_entry(SEGMENT, EntryId::new(1_u64).expect("an id"), Some(EntryId::ZERO));
    assert!(state.has_news(None, false) && !state.has_news(Some(EntryId::ZERO), false));
    state.admit_fence(Some(&key("a"))).expect("admitted");
    assert!(!state.has_news(Some(EntryId::ZERO), false), "the fence is not durable");
    state.on_fence(SEGMENT);
    assert!(state.has_news(Some(EntryId::ZERO), false) && !state.has_news(Some(EntryId::ZERO), true));
    state.tombstone = Some(Tombstone::Gone);
    assert!(state.has_news(Some(EntryId::ZERO), true));
    assert_eq!(state.is_whole(), Err(Absence::Unknown));
}
