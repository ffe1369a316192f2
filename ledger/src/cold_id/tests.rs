use proptest::prelude::*;

use super::*;

#[test]
fn the_hash_is_frozen() {
    let check = |ledger: u64, hash: u64, shard: u8| {
        let ledger = LedgerId::new(ledger).unwrap();
        assert_eq!((ledger_hash(ledger), shard_of(ledger)), (hash, shard), "ledger {ledger}");
    };
    check(0, 0xe220_a839_7b1d_cdaf, 47);
    check(1, 0x910a_2dec_8902_5cc1, 1);
    check(2, 0x9758_35de_1c97_56ce, 14);
    check(42, 0xbdd7_3226_2feb_6e95, 21);
    check(i64::MAX as u64, 0x2a67_d755_2e03_9ea7, 39);
}

#[test]
fn names_have_one_form() {
    let ids = ColdId::for_ledger(LedgerId::new(1).unwrap(), 3, "cold.thermocline", 3181).unwrap();
    let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["c1-0.cold.thermocline:3181", "c1-1.cold.thermocline:3181", "c1-2.cold.thermocline:3181"]);
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(id.index() as usize, index);
        assert_eq!(ColdId::from_bookie_id(&id.to_bookie_id()).as_ref(), Some(id));
        assert!(is_cold(&id.to_bookie_id()));
    }
}

#[test]
fn other_names_are_not_cold() {
    for name in [
        "bk1:3181",
        "c64-0.cold.thermocline:3181",
        "c01-0.cold.thermocline:3181",
        "c1-00.cold.thermocline:3181",
        "c1-0.cold.thermocline:0",
        "c1-0.cold.thermocline:03181",
        "c1-0.cold.thermocline:65536",
        "c1-0.cold.thermocline",
        "c1-0:3181",
        "c1-0.:3181",
        "c1-0.a..b:3181",
        "c1-4294967296.cold:3181",
        "c-0.cold:3181",
        "C1-0.cold:3181",
        "c1.0-cold:3181",
        "cold-0:3181",
    ] {
        assert!(!is_cold(&BookieId::new(name).unwrap()), "{name}");
        assert!(name.parse::<ColdId>().is_err(), "{name}");
    }
    assert!(ColdId::for_member(LedgerId::ZERO, 0, "bad domain", 3181).is_err());
    assert!(ColdId::for_member(LedgerId::ZERO, 0, "cold", 0).is_err());
}

proptest! {
    #[test]
    fn names_round_trip(ledger in 0..=i64::MAX as u64, index: u32, domain in "[a-z][a-z0-9-]{0,9}(\\.[a-z0-9]{1,5}){0,3}", port in 1_u16..) {
        let id = ColdId::for_member(LedgerId::new(ledger).unwrap(), index, &domain, port).unwrap();
        prop_assert_eq!(id.to_string().parse::<ColdId>().unwrap(), id);
    }

    #[test]
    fn what_parses_prints_the_same(text in "c[0-9]{1,3}-[0-9]{1,3}\\.[a-z.]{1,6}:[0-9]{1,6}") {
        if let Ok(id) = text.parse::<ColdId>() {
            prop_assert_eq!(id.to_string(), text);
        }
    }
}
