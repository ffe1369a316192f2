use std::collections::BTreeSet;

use ::ledger::LedgerId;
use proptest::prelude::*;

use super::*;
use crate::etcd::LAYOUTS;
use crate::layout;

const LONG: LedgerLayout = LedgerLayout::LongHierarchical;

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn ledger(id: u64) -> Key {
    layout::ledger_key(LedgerId::new(id).unwrap())
}

#[test]
fn ours_are_keys_behind_the_root() {
    let rooted = Names::new("/one".into());
    assert_eq!(rooted.name(&key("/a/b"), LONG).unwrap(), b"/one/a/b");
    assert_eq!(rooted.key(b"/one/a/b", LONG), Some(key("/a/b")));
    for foreign in [&b"/onea"[..], b"/one", b"/one/a/", b"/two/a", b"/one/\xff", b""] {
        assert_eq!(rooted.key(foreign, LONG), None, "{foreign:?}");
    }
    let span = |from: &str, end: &str| Span { from: from.into(), end: end.into() };
    let below = |prefix: &str, after: Option<&str>| {
        let found = rooted.below(&key(prefix), after.map(key).as_ref(), LONG);
        found.into_iter().map(|stretch| stretch.span).collect::<Vec<_>>()
    };
    assert_eq!(below("/a", None), [span("/one/a/", "/one/a0")]);
    assert_eq!(below("/a", Some("/a")), [span("/one/a/", "/one/a0")]);
    assert_eq!(below("/a", Some("/a/x")), [span("/one/a/x\0", "/one/a0")]);
    assert_eq!(below("/a", Some("/b")), []);
    let plain = Names::new(String::new());
    assert_eq!(plain.name(&key("/a"), LONG).unwrap(), b"/a");
    assert_eq!(plain.watched(&key("/a"), LONG), span("/a", "/a0"));
}

/// Byte for byte what the driver makes: the names of its class `EtcdUtils`.
#[test]
fn the_drivers_names_are_its_own() {
    let names = Names::new("/s".into());
    for (key, name) in [
        (layout::layout_key(), "/s/layout"),
        (layout::instance_key(), "/s/instanceid"),
        (ledger(1), "/s/ledgers/00000000-0000-0000-0000-000000000001"),
        (ledger(5 << 56 | 1), "/s/ledgers/00000000-0000-0000-0500-000000000001"),
        (key("/ledgers/available/10.0.0.1:3181"), "/s/bookies/writable/10.0.0.1:3181"),
        (key("/ledgers/available/readonly/10.0.0.1:3181"), "/s/bookies/readonly/10.0.0.1:3181"),
        (key("/ledgers/cookies/b-1"), "/s/cookies/b-1"),
        (key("/ledgers/underreplication/disable"), "/s/underreplication/disable"),
        (layout::idgen_key(), "/s/thermocline/idgen"),
    ] {
        assert_eq!(names.name(&key, LedgerLayout::Etcd).unwrap(), name.as_bytes());
        assert_eq!(names.key(name.as_bytes(), LedgerLayout::Etcd), Some(key));
    }
    for none in ["/ledgers", "/ledgers/x", "/ledgers/available/readonly", "/ledgers/idgen/x", "/cookies/x", "/buckets"]
    {
        let error = names.name(&key(none), LedgerLayout::Etcd).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{none}");
    }
    for foreign in [
        "/s",
        "/s/ledgers",
        "/s/ledgers/00000000-0000-0000-8000-000000000001",
        "/s/ledgers/000/0000/0000/0000/L0001",
        "/s/ledgers/LAYOUT",
        "/s/bookies/writable",
        "/s/bookies/readable/10.0.0.1:3181",
        "/s/bookies/writable/a/b",
        "/s/buckets/007",
        "/s/underreplication",
    ] {
        assert_eq!(names.key(foreign.as_bytes(), LedgerLayout::Etcd), None, "{foreign}");
    }
    let founding = names.founding(LedgerLayout::Etcd);
    let texts: Vec<_> = founding.markers.iter().map(|name| std::str::from_utf8(name).unwrap()).collect();
    assert_eq!(
        texts,
        [
            "/s",
            "/s/cookies",
            "/s/bookies",
            "/s/bookies/writable",
            "/s/bookies/readonly",
            "/s/ledgers",
            "/s/buckets",
            "/s/underreplication"
        ]
    );
    let span = |from: &str, end: &str| Span { from: from.into(), end: end.into() };
    let leaving = names.leaving(LedgerLayout::Etcd).spans;
    assert_eq!(
        (leaving.first(), leaving.last()),
        (Some(&span("/s", "/s\0")), Some(&span("/s/buckets/", "/s/buckets0")))
    );
    assert_eq!((names.marks(LedgerLayout::Etcd), names.leaving(LONG).spans), (Vec::new(), Vec::new()));
}

/// What Pulsar's and BookKeeper's tools look for before they set up a cluster of their own, and format what they find.
#[test]
fn clusters_of_keys_are_marked_for_others() {
    let all: [&[u8]; 4] = [b"/r", b"/r/ledgers", b"/r/ledgers/available", b"/r/ledgers/available/readonly"];
    for layout in [LONG, LedgerLayout::Hierarchical] {
        let (rooted, plain) = (Names::new("/r".into()), Names::new(String::new()));
        assert_eq!(rooted.founding(layout).marks, all);
        assert_eq!(rooted.leaving(layout).marks, all);
        assert_eq!(plain.marks(layout), all[1..].iter().map(|name| &name[2..]).collect::<Vec<_>>());
        for mark in all {
            assert_eq!(rooted.key(mark, layout), None, "no bookie is called readonly");
        }
        let error = rooted.name(&key("/ledgers/available/readonly"), layout).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        // The driver has no cluster at an empty root.
        assert_eq!((rooted.signs().len(), plain.signs().len()), (4, 2));
        assert_eq!((rooted.founding(layout).guards.len(), plain.founding(layout).guards.len()), (4, 2));
    }
    let others = Names::new("/r".into()).leaving(LedgerLayout::Hierarchical).spans;
    let span = |from: &str, end: &str| Span { from: from.into(), end: end.into() };
    assert!(others.contains(&span("/r/ledgers/idgen", "/r/ledgers/idgen\0")));
    assert!(others.contains(&span("/r/ledgers/idgen-long/", "/r/ledgers/idgen-long0")));
    assert!(others.contains(&span("/r/ledgers/underreplication/", "/r/ledgers/underreplication0")));
}

#[test]
fn pulsars_names_are_those_of_the_tree() {
    let names = Names::new(String::new());
    for (key, name) in [
        (ledger(1), "/ledgers/00/0000/L0001"),
        (ledger(2_147_483_647), "/ledgers/000/0000/0021/4748/L3647"),
        (layout::layout_key(), "/ledgers/LAYOUT"),
        (key("/ledgers/available/b-1"), "/ledgers/available/b-1"),
    ] {
        assert_eq!(names.name(&key, LedgerLayout::Hierarchical).unwrap(), name.as_bytes());
        assert_eq!(names.key(name.as_bytes(), LedgerLayout::Hierarchical), Some(key));
    }
    for foreign in ["/ledgers", "/ledgers/idgen", "/ledgers/000/0000/0000/0000/L0001", "/ledgers/00/0000/0001"] {
        assert_eq!(names.key(foreign.as_bytes(), LedgerLayout::Hierarchical), None, "{foreign}");
    }
}

fn any_id() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..40_u64,
        0..=i64::MAX.unsigned_abs(),
        2_147_483_600..2_147_483_700_u64,
        0..5_000_000_000_u64,
        (0..128_u64, 1..5_u64).prop_map(|(bucket, number)| bucket << 56 | number),
    ]
}

/// Keys that any cluster may have.
fn any_key() -> impl Strategy<Value = Key> {
    let name = "[-!a-z0-9.:]{1,12}";
    prop_oneof![
        4 => any_id().prop_map(ledger),
        1 => Just(layout::layout_key()),
        1 => Just(layout::instance_key()),
        2 => name.prop_map(|name| key(&format!("/ledgers/available/r{name}"))),
        2 => name.prop_map(|name| key(&format!("/ledgers/available/{name}"))),
        2 => name.prop_map(|name| key(&format!("/ledgers/available/readonly/{name}"))),
        2 => name.prop_map(|name| key(&format!("/ledgers/cookies/{name}"))),
        2 => any_id().prop_map(|id| layout::mark_key(LedgerId::new(id).unwrap())),
        1 => any_id().prop_map(|id| layout::repair_lock_key(LedgerId::new(id).unwrap())),
        1 => Just(layout::recovery_disabled_key()),
        1 => name.prop_map(|name| key(&format!("/thermocline/x/{name}"))),
    ]
    .prop_filter("no bookie has this name", |key| key.as_str() != "/ledgers/available/readonly")
}

const ROOTS: [&str; 7] = [
    "/ledgers",
    "/ledgers/available",
    "/ledgers/available/readonly",
    "/ledgers/cookies",
    "/ledgers/underreplication",
    "/ledgers/underreplication/ledgers",
    "/thermocline",
];
const PARTS: [&str; 5] = ["/ledgers/000", "/ledgers/000/0000/0021", "/ledgers/922/3372", "/ledgers/x", "/cookies"];

fn any_prefix() -> impl Strategy<Value = Key> {
    prop_oneof![3 => prop::sample::select(&ROOTS[..]), 1 => prop::sample::select(&PARTS[..])].prop_map(key)
}

/// A listing as the store makes it, over names in the place of etcd.
fn list(names: &Names, there: &BTreeSet<Vec<u8>>, prefix: &Key, after: Option<&Key>, layout: LedgerLayout) -> Vec<Key> {
    let mut found = Vec::new();
    for stretch in names.below(prefix, after, layout) {
        let mut from = stretch.span.from.clone();
        'again: while from < stretch.span.end {
            for name in there.range(from.clone()..stretch.span.end.clone()) {
                if let Some(behind) = names.behind(name, &stretch) {
                    assert!(behind > *name, "a listing goes on");
                    from = behind;
                    continue 'again;
                }
                found.extend(names.key(name, layout));
            }
            break;
        }
    }
    found
}

proptest! {
    #[test]
    fn keys_have_one_name_and_names_one_key(key in any_key(), text in "[-/a-z0-9L]{0,40}") {
        let names = Names::new("/r".into());
        for layout in LAYOUTS {
            let name = names.name(&key, layout).unwrap();
            prop_assert_eq!(names.key(&name, layout), Some(key.clone()), "{:?}", layout);
            for prefix in ["", "/ledgers/", "/bookies/writable/", "/cookies/", "/"] {
                let name = format!("/r{prefix}{text}").into_bytes();
                if let Some(key) = names.key(&name, layout) {
                    prop_assert_eq!(names.name(&key, layout).unwrap(), name);
                }
            }
        }
    }

    #[test]
    fn listings_are_in_the_order_of_keys(
        keys in prop::collection::btree_set(any_key(), 0..40),
        foreign in prop::collection::vec("/(ledgers|bookies|cookies|buckets|idgen)(/[a-z0-9:]{1,6}){0,2}", 0..10),
        prefix in any_prefix(),
        after in prop::option::of(any_key()),
    ) {
        let names = Names::new("/r".into());
        for layout in LAYOUTS {
            let mut there: BTreeSet<Vec<u8>> = keys.iter().map(|key| names.name(key, layout).unwrap()).collect();
            let others = foreign.iter().map(|name| format!("/r{name}").into_bytes());
            there.extend(others.filter(|name| names.key(name, layout).is_none()));
            let wanted: Vec<Key> = keys
                .iter()
                .filter(|key| key.below(&prefix).is_some() && after.as_ref().is_none_or(|after| *key > after))
                .cloned()
                .collect();
            prop_assert_eq!(list(&names, &there, &prefix, after.as_ref(), layout), wanted, "{:?}", layout);
        }
    }

    #[test]
    fn a_watch_sees_all_that_lies_below(key in any_key(), prefix in any_prefix()) {
        let names = Names::new("/r".into());
        for layout in LAYOUTS {
            let name = names.name(&key, layout).unwrap();
            let itself = names.watched(&key, layout);
            prop_assert!(itself.from <= name && name < itself.end);
            let span = names.watched(&prefix, layout);
            if key.below(&prefix).is_some() {
                prop_assert!(span.from <= name && name < span.end, "{:?} {}", layout, key);
            }
        }
    }
}
