use proptest::prelude::*;

use super::super::*;
use super::{members, open_ledger};

const OPEN_V3: &str = concat!(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a",
    "3d08021003180020ffffffffffffffffff01280132200a08626b313a333138310a08626b323a333138310a08626b333a333138311000",
    "3803420048026000"
);

/// The value that the Java implementation's own test reads: ctime -1 and creation token 0 are written.
const JAVA_V3: &str = concat!(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a60",
    "08021003180020ffffffffffffffffff01280132320a0e3139322e302e322e313a333138310a0e3139322e302e322e323a333138310a0e",
    "3139322e302e322e333a33313831100038034206666f6f626172480150ffffffffffffffffff016000"
);

const V1_IN_RECOVERY: &str = "BookieMetadataFormatVersion\t1\n2\n3\n0\n0\tbk1:3181\tbk2:3181\tbk3:3181\n-102\tCLOSED";
const V1_CLOSED: &str =
    "BookieMetadataFormatVersion\t1\n2\n2\n4096\n0\tbk1:3181\tbk2:3181\n17\tbk1:3181\tbk9:3181\n40\tCLOSED";
const V1_OPEN: &str = "BookieMetadataFormatVersion\t1\n1\n1\n0\n0\tbk1:3181\n";

const V2: &str = "BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 3\nlength: 0\nlastEntryId: -1\n\
    state: IN_RECOVERY\nsegment {\n  ensembleMember: \"bk1:3181\"\n  ensembleMember: \"bk2:3181\"\n  ensembleMember: \
    \"bk3:3181\"\n  firstEntryId: 0\n}\ndigestType: CRC32\npassword: \"pa\\\"ss\\000\\377\\n\"\nackQuorumSize: 2\n";

fn same_bytes(value: &[u8]) -> LedgerMetadata {
    let metadata = LedgerMetadata::decode(value).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&metadata.encode()),
        String::from_utf8_lossy(value),
        "a value read is written with the same bytes"
    );
    assert_eq!(metadata.encode(), value);
    metadata
}

fn why(value: &[u8]) -> String {
    let error = LedgerMetadata::decode(value).unwrap_err();
    assert!(error.kind() != ErrorKind::Transition, "{error}");
    error.to_string()
}

#[test]
fn a_new_ledger_has_the_known_bytes() {
    let metadata = open_ledger().with_ctoken(0).unwrap();
    assert_eq!(hex::encode(metadata.encode()), OPEN_V3);
    assert_eq!(same_bytes(&hex::decode(OPEN_V3).unwrap()), metadata);
}

#[test]
fn the_java_value_comes_out_with_the_same_bytes() {
    let metadata = same_bytes(&hex::decode(JAVA_V3).unwrap());
    assert_eq!(metadata.quorums(), Quorums::new(3, 2, 1).unwrap());
    assert_eq!(metadata.password().unwrap().as_bytes(), b"foobar");
    assert_eq!((metadata.ctime_ms(), metadata.ctoken()), (Some(-1), Some(0)));
    assert_eq!(metadata.ensemble_of(EntryId::ZERO), members(&["192.0.2.1:3181", "192.0.2.2:3181", "192.0.2.3:3181"]));
}

#[test]
fn what_is_absent_stays_absent() {
    let metadata = open_ledger();
    let read = same_bytes(&metadata.encode());
    assert_eq!((read.ctime_ms(), read.ctoken()), (None, None));
    let unsealed = LedgerMetadata { sealing: None, ..metadata };
    assert_eq!(same_bytes(&unsealed.encode()).digest_type(), None);
}

#[test]
fn format_1_round_trips() {
    let recovering = same_bytes(V1_IN_RECOVERY.as_bytes());
    assert_eq!(recovering.state(), LedgerState::InRecovery);
    assert_eq!(recovering.quorums(), Quorums::new(3, 2, 2).unwrap());
    let closed = same_bytes(V1_CLOSED.as_bytes());
    assert_eq!(closed.state(), LedgerState::Closed { last_entry: EntryId::new(40), length: 4096 });
    assert_eq!(closed.segments().len(), 2);
    assert_eq!(same_bytes(V1_OPEN.as_bytes()).state(), LedgerState::Open);
}

#[test]
fn format_1_holds_nothing_else() {
    let old = LedgerMetadata::decode(V1_CLOSED.as_bytes()).unwrap();
    assert!(old.with_custom("a", "b").is_err());
    assert!(old.clone().with_ctime_ms(1).is_err());
    let new = old.upgraded(DigestType::Hmac, Password::new("p")).unwrap().with_custom("a", "b").unwrap();
    assert_eq!((new.format(), new.digest_type()), (MetadataFormat::V3, Some(DigestType::Hmac)));
    assert_eq!(same_bytes(&new.encode()), new);
    assert_eq!(new.state(), old.state());
}

#[test]
fn format_2_round_trips() {
    let metadata = same_bytes(V2.as_bytes());
    assert_eq!(metadata.format(), MetadataFormat::V2);
    assert_eq!(metadata.password().unwrap().as_bytes(), b"pa\"ss\0\xff\n");
    same_bytes(format!("{V2}ctime: 1544002383075\n").as_bytes());
    let custom = metadata.with_custom("k\t", vec![0, 7, 8, 11, 12, 13, 92, 39, 200]).unwrap();
    assert_eq!(same_bytes(&custom.encode()), custom);
}

#[test]
fn format_2_is_read_in_any_spelling() {
    let value = "BookieMetadataFormatVersion\t2\nstate:CLOSED # a comment\nquorumSize:0x1,ensembleSize:01;length:5 lastEntryId: 3
        segment: < ensembleMember:'bk' \"1\\x3a3181\" firstEntryId:0 > digestType:3 password:'\\141\\x62\\n'";
    let metadata = LedgerMetadata::decode(value.as_bytes()).unwrap();
    assert_eq!(metadata.state(), LedgerState::Closed { last_entry: EntryId::new(3), length: 5 });
    assert_eq!(metadata.ensemble_of(EntryId::ZERO), members(&["bk1:3181"]));
    assert_eq!(metadata.password().unwrap().as_bytes(), b"ab\n");
    assert_eq!(metadata.digest_type(), Some(DigestType::Crc32c));
}

#[test]
fn malformed_text_is_refused() {
    let with = |tail: &str| why(format!("{V2}{tail}").as_bytes());
    for tail in [
        "x: 1",
        "ctime:",
        "ctime: x",
        "ctime: --1",
        "ctime: 0x",
        "segment {",
        "}",
        "segment { a: 1 }",
        "ctime: \"1\"",
        "[a]: 1",
    ] {
        let _ = with(tail);
    }
    for tail in
        ["password: \"a", "password: \"\\q\"", "password: \"\\777\"", "segment { segment { } }", "ctime { }", "\u{e4}"]
    {
        let _ = with(tail);
    }
    assert!(with("quorumSize: 9999999999").contains("out of range"));
}

#[test]
fn junk_is_refused() {
    for value in [
        &b""[..],
        b"BookieMetadataFormatVersion",
        b"BookieMetadataFormatVersion\tfoobar\nblahblah",
        b"BookieMetadataFormatVersion\t123456789123456789\nblahblah",
        b"BookieMetadataFormatVersion\t4\n",
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t3\n\x05\x08",
        b"BookieMetadataFormatVersion\t3\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"BookieMetadataFormatVersion\t1\n",
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n",
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\n",
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\tb:1\n5\tCLOSED\n5\tCLOSED",
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\tb:1\n-7\tCLOSED",
        b"BookieMetadataFormatVersion\t2\n",
    ] {
        why(value);
    }
}

#[test]
fn bytes_after_the_message_are_ignored() {
    let mut value = open_ledger().encode();
    value.extend_from_slice(b"later");
    assert_eq!(LedgerMetadata::decode(&value).unwrap(), open_ledger());
}

#[test]
fn the_rules_are_checked_when_reading() {
    let good = open_ledger();
    let broken = |change: &dyn Fn(&mut LedgerMetadata)| {
        let mut metadata = good.clone();
        change(&mut metadata);
        why(&metadata.encode())
    };
    assert!(broken(&|m| m.segments.clear()).contains("no segment"));
    assert!(broken(&|m| drop(m.segments[0].ensemble.pop())).contains("has 2 members"));
    assert!(broken(&|m| m.segments.push(m.segments[0].clone())).contains("segment 0 follows segment 0"));
    let value = |hex_tail: &str| {
        let message = hex::decode(hex_tail.replace(' ', "")).unwrap();
        [&b"BookieMetadataFormatVersion\t3\n"[..], &[message.len() as u8], &message].concat()
    };
    let segment = "32060a02623a 1000";
    LedgerMetadata::decode(&value(&format!("0801 1001 1800 2801 {segment}"))).unwrap();
    let check = |message: String, expected: &str| {
        let found = why(&value(&message));
        assert!(found.contains(expected), "{found}");
    };
    check(format!("0801 1001 1800 2803 {segment}"), "no last entry");
    check(format!("0801 1001 2801 {segment}"), "length is missing");
    check(format!("0801 1001 1800 {segment}"), "state is missing");
    check(format!("0801 1001 1800 2804 {segment}"), "state 4 is not known");
    check(format!("1001 1800 2801 {segment}"), "quorumSize is missing");
    check(format!("0802 1001 1800 2801 {segment}"), "check quorums");
    check(format!("0801 1001 1800 2801 {segment} 4800"), "check quorums");
    check(format!("0801 1001 1800 2801 {segment} 3803"), "without the other");
    check(format!("0801 1001 1800 2801 {segment} 4200"), "without the other");
    check(format!("0801 1001 1800 2801 {segment} 3809 4200"), "digest type 9");
    check("0801 1001 1800 2801 32060a0262201000".to_owned(), "bookie id");
    check("0801 1001 1800 2801 32040a02623a".to_owned(), "no first entry");
    check(format!("0801 1001 18ffffffffffffffffff01 2803 2000 {segment}"), "length is -1");
}

fn any_metadata() -> impl Strategy<Value = LedgerMetadata> {
    let quorums = (1_u32..5).prop_flat_map(|e| (Just(e), 1..=e)).prop_flat_map(|(e, w)| (Just(e), Just(w), 1..=w));
    let segments = proptest::collection::btree_set(0_u64..1000, 1..4);
    let state = prop_oneof![
        Just(LedgerState::Open),
        Just(LedgerState::InRecovery),
        (-1..5000_i64, 0..=i64::MAX as u64).prop_map(|(last, length)| LedgerState::Closed {
            last_entry: EntryId::option_from_i64(last).unwrap(),
            length,
        }),
    ];
    let sealing = proptest::option::of((1..5_i32, proptest::collection::vec(any::<u8>(), 0..9)));
    let custom = proptest::collection::vec((".{0,6}", proptest::collection::vec(any::<u8>(), 0..9)), 0..4);
    let times = (proptest::option::of(any::<i64>()), proptest::option::of(any::<i64>()));
    (quorums, segments, state, sealing, custom, times, any::<bool>()).prop_map(
        |((e, w, a), firsts, state, sealing, custom, (ctime_ms, ctoken), binary)| {
            let segment = |first: u64| Segment {
                first_entry: EntryId::new(first).unwrap(),
                ensemble: (0..e).map(|i| BookieId::new(&format!("bk{}:{i}", first % 7)).unwrap()).collect(),
            };
            LedgerMetadata {
                quorums: Quorums::new(e, w, a).unwrap(),
                state,
                segments: firsts.into_iter().map(segment).collect(),
                sealing: sealing.map(|(n, p)| (DigestType::from_number(n).unwrap(), Password::new(p))),
                ctime_ms,
                custom: custom.into_iter().map(|(k, v)| (k, v.into())).collect(),
                ctoken: ctoken.filter(|_| binary),
                format: if binary { MetadataFormat::V3 } else { MetadataFormat::V2 },
            }
        },
    )
}

proptest! {
    #[test]
    fn metadata_round_trips(metadata in any_metadata()) {
        let value = metadata.encode();
        let read = LedgerMetadata::decode(&value).unwrap();
        prop_assert_eq!(read.encode(), value);
        prop_assert_eq!(read, metadata);
    }

    #[test]
    fn format_1_values_round_trip(metadata in any_metadata()) {
        let quorums = Quorums::new(metadata.quorums.ensemble(), metadata.quorums.write(), metadata.quorums.write()).unwrap();
        let old = LedgerMetadata {
            quorums, sealing: None, ctime_ms: None, custom: Vec::new(), ctoken: None, format: MetadataFormat::V1, ..metadata
        };
        prop_assert_eq!(LedgerMetadata::decode(&old.encode()).unwrap(), old);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), version in 1..4_u8) {
        let _ = LedgerMetadata::decode(&bytes);
        let line = format!("BookieMetadataFormatVersion\t{version}\n");
        let _ = LedgerMetadata::decode(&[line.as_bytes(), &bytes].concat());
    }

    #[test]
    fn damaged_values_never_panic(metadata in any_metadata(), at in any::<proptest::sample::Index>(), byte: u8) {
        let mut value = metadata.encode();
        let place = at.index(value.len());
        value[place] = byte;
        let _ = LedgerMetadata::decode(&value);
        let _ = LedgerMetadata::decode(&value[..place]);
    }

    #[test]
    fn damaged_text_never_panics(text in "[a-z:{}<>\"'\\\\#0-9\\n ,;]{0,80}") {
        let _ = LedgerMetadata::decode(format!("BookieMetadataFormatVersion\t2\n{text}").as_bytes());
        let _ = LedgerMetadata::decode(format!("{V2}{text}").as_bytes());
    }
}
