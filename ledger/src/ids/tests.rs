use super::*;

#[test]
fn ids_take_what_the_wire_can_carry() {
    assert_eq!(LedgerId::new(0), Some(LedgerId::ZERO));
    assert_eq!(LedgerId::new(-1_i64), None);
    assert_eq!(LedgerId::new(i64::MAX), Some(LedgerId::MAX));
    assert_eq!(LedgerId::new(i64::MAX as u64 + 1), None);
    assert_eq!(EntryId::new(7_u64).unwrap().get(), 7);
    assert_eq!(EntryId::new(7).unwrap().as_i64(), 7);
}

#[test]
fn ids_print_and_parse() {
    let id: LedgerId = "12".parse().unwrap();
    assert_eq!(id.to_string(), "12");
    assert_eq!(format!("{id:>5}"), "   12");
    for bad in ["", "-1", "x", "9223372036854775808", "1 "] {
        let error = bad.parse::<EntryId>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Id, "{bad}");
    }
}

#[test]
fn entry_ids_step() {
    let five = EntryId::new(5).unwrap();
    assert_eq!(five.next().get(), 6);
    assert_eq!(five.prev().unwrap().get(), 4);
    assert_eq!(EntryId::ZERO.prev(), None);
    assert_eq!(EntryId::MAX.next(), EntryId::MAX);
    assert_eq!(five.checked_add(3).unwrap().get(), 8);
    assert_eq!(EntryId::MAX.checked_add(1), None);
    assert_eq!(five.checked_add(u64::MAX), None);
    assert_eq!(five.since(EntryId::new(2).unwrap()), 3);
    assert_eq!(EntryId::ZERO.since(five), 0);
    assert_eq!(EntryId::option_to_i64(None), -1);
    assert_eq!(EntryId::option_from_i64(-1), Some(None));
    assert_eq!(EntryId::option_from_i64(-2), None);
    assert_eq!(EntryId::option_from_i64(5), Some(Some(five)));
}

#[test]
fn bookie_ids_have_their_characters() {
    for good in ["bk1:3181", "192.0.2.1:3181", "a_b-c.d", "c64-0.cold.thermocline:3181"] {
        assert_eq!(BookieId::for_real_bookie(good).unwrap().as_str(), good);
    }
    for bad in ["", "readonly", "a/b", "a b", "ä", "a\t", "a\n"] {
        assert!(BookieId::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn cold_names_are_refused_to_real_bookies() {
    let cold = "c9-0.cold.thermocline:3181";
    assert!(BookieId::new(cold).is_ok());
    let error = BookieId::for_real_bookie(cold).unwrap_err();
    assert!(error.to_string().contains("reserved for the cold tier"), "{error}");
}
