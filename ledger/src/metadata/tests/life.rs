use super::super::*;
use super::{members, open_ledger};
use crate::ids::LedgerId;

fn entry(id: u64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn cold_ids() -> Vec<ColdId> {
    ColdId::for_ledger(LedgerId::new(1).unwrap(), 3, "cold.thermocline", 3181).unwrap()
}

#[test]
fn a_ledger_closes_once() {
    let open = open_ledger();
    let recovering = open.in_recovery().unwrap();
    assert_eq!(recovering.state(), LedgerState::InRecovery);
    assert_eq!(recovering.in_recovery().unwrap(), recovering);
    let closed = recovering.closed(Some(entry(9)), 100).unwrap();
    assert_eq!(closed.last_entry(), Some(entry(9)));
    assert_eq!(closed.closed(Some(entry(9)), 100).unwrap(), closed);
    for (last, length) in [(Some(entry(8)), 100), (None, 100), (Some(entry(9)), 99)] {
        assert_eq!(closed.closed(last, length).unwrap_err().kind(), ErrorKind::Transition);
    }
    assert_eq!(closed.in_recovery().unwrap_err().kind(), ErrorKind::Transition);
    assert!(open.closed(None, u64::MAX).is_err());
    let empty = open.closed(None, 0).unwrap();
    assert!(empty.is_closed() && empty.last_entry().is_none());
}

#[test]
fn changes_clear_the_creation_token() {
    let made = open_ledger().with_ctoken(77).unwrap();
    assert_eq!(made.in_recovery().unwrap().ctoken(), Some(0));
    assert_eq!(open_ledger().in_recovery().unwrap().ctoken(), None);
}

#[test]
fn segments_follow_each_other() {
    let open = open_ledger();
    let later = Segment { first_entry: entry(10), ensemble: members(&["bk1:3181", "bk4:3181", "bk3:3181"]) };
    let two = open.with_segment(later.clone()).unwrap();
    assert_eq!(two.segments().len(), 2);
    assert_eq!(two.segment_for(entry(9)), &open.segments()[0]);
    assert_eq!(two.segment_for(entry(10)), &later);
    assert_eq!(two.last_segment(), &later);
    assert_eq!(two.ensemble_of(EntryId::MAX), &later.ensemble[..]);
    let replaced = Segment { ensemble: members(&["bk5:3181", "bk4:3181", "bk3:3181"]), ..later.clone() };
    assert_eq!(two.with_segment(replaced.clone()).unwrap().segments(), &[open.segments()[0].clone(), replaced]);
    assert!(two.with_segment(Segment { first_entry: entry(5), ..later.clone() }).is_err());
    assert!(two.with_segment(Segment { first_entry: entry(20), ensemble: members(&["bk1:3181"]) }).is_err());
    assert!(two.closed(None, 0).unwrap().with_segment(later).is_err());
}

#[test]
fn wrong_ensembles_are_refused() {
    let quorums = Quorums::new(3, 2, 2).unwrap();
    let made = LedgerMetadata::open(quorums, members(&["bk1:3181"]), DigestType::Dummy, Password::empty());
    assert_eq!(made.unwrap_err().kind(), ErrorKind::Metadata);
}

#[test]
fn custom_values_keep_their_order() {
    let with = |m: &LedgerMetadata, k: &str, v: &'static str| m.with_custom(k, v).unwrap();
    let metadata = with(&with(&with(&open_ledger(), "b", "1"), "a", "2"), "c", "3");
    let changed = with(&metadata, "a", "4");
    let keys: Vec<&str> = changed.custom_values().iter().map(|(k, _)| k.as_str()).collect();
    assert_eq!(keys, ["b", "a", "c"]);
    assert_eq!(changed.custom("a"), Some(&b"4"[..]));
    assert_eq!(changed.custom("z"), None);
    // A foreign value may name a key twice: the last one counts, and a change leaves one.
    let mut twice = changed;
    twice.custom.push(("b".to_owned(), "9".into()));
    assert_eq!(twice.custom("b"), Some(&b"9"[..]));
    let changed = with(&twice, "b", "0");
    assert_eq!(changed.custom_values().len(), 3);
    assert_eq!(changed.custom("b"), Some(&b"0"[..]));
}

#[test]
fn release_replaces_members_one_for_one() {
    let later = Segment { first_entry: entry(4), ensemble: members(&["bk1:3181", "bk4:3181", "bk3:3181"]) };
    let open = open_ledger().with_segment(later).unwrap();
    assert!(open.released_to(&cold_ids()).is_err(), "an open ledger cannot be released");
    let closed = open.closed(Some(entry(9)), 100).unwrap();
    let released = closed.released_to(&cold_ids()).unwrap();
    assert!(released.is_released() && !closed.is_released());
    assert_eq!((closed.tier(), released.tier()), (Tier::Hot, Tier::Released));
    assert_eq!(released.state(), closed.state());
    assert_eq!(released.quorums(), closed.quorums());
    assert_eq!(released.segments().len(), 2);
    for (segment, before) in released.segments().iter().zip(closed.segments()) {
        assert_eq!(segment.first_entry, before.first_entry);
        let expected: Vec<BookieId> = cold_ids().iter().map(ColdId::to_bookie_id).collect();
        assert_eq!(segment.ensemble, expected);
    }
    assert_eq!(LedgerMetadata::decode(&released.encode()).unwrap(), released);
}

#[test]
fn a_mixed_ensemble_is_not_released() {
    let closed = open_ledger().closed(Some(entry(9)), 100).unwrap();
    let mut mixed = closed.released_to(&cold_ids()).unwrap();
    mixed.segments[0].ensemble[1] = BookieId::new("bk2:3181").unwrap();
    assert!(!mixed.is_released());
    assert_eq!(mixed.tier(), Tier::Hot);
    assert!(mixed.released_to(&cold_ids()).unwrap().is_released(), "it can be released again");
}

#[test]
fn cold_ids_must_name_the_members_in_order() {
    let closed = open_ledger().closed(Some(entry(9)), 100).unwrap();
    let mut ids = cold_ids();
    assert!(closed.released_to(&ids[..2]).is_err());
    ids.swap(0, 1);
    assert!(closed.released_to(&ids).is_err());
}

#[test]
fn passwords_can_be_left_out_and_stay_hidden() {
    let ensemble = members(&["bk1:3181"]);
    let sealed =
        LedgerMetadata::open(Quorums::new(1, 1, 1).unwrap(), ensemble, DigestType::Hmac, Password::new("hush"));
    let sealed = sealed.unwrap();
    assert!(!format!("{sealed:?}").contains("hush"));
    let open_to_all = sealed.without_password();
    assert!(open_to_all.password().unwrap().is_empty());
    assert_eq!(open_to_all.digest_type(), Some(DigestType::Hmac));
    assert_eq!(sealed.master_key(), Some(MasterKey::derive(b"hush")));
    assert_eq!(sealed.digester().unwrap().digest_type(), DigestType::Hmac);
}
