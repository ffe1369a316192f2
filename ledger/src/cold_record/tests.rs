use proptest::prelude::*;

use super::*;
use crate::{BookieId, DigestType, EntryId, Password, Quorums, Tier};

const GOLDEN_FULL: &str = concat!(
    "01",
    "0104",
    "00000000",
    "0210",
    "000102030405060708090a0b0c0d0e0f",
    "0308",
    "00000000000003e8",
    "0404",
    "deadbeef",
    "0508",
    "0000000000000384",
    "0604",
    "00000064",
    "0708",
    "0000000000000007",
    "0808",
    "0000000000000280",
    "0920",
    "abababababababababababababababababababababababababababababababab",
    "0a08",
    "0000000000000003",
    "0b10",
    "00000002000000000000032000000032",
    "0c08",
    "000000000000028a",
    "0d04",
    "0badcafe",
);

fn full() -> ColdRecord {
    ColdRecord {
        store_id: 0,
        object: Uuid::from_bytes(std::array::from_fn(|i| i as u8)),
        object_bytes: 1000,
        object_crc32c: 0xdead_beef,
        footer_offset: 900,
        footer_bytes: 100,
        footer_crc32c: 0x0bad_cafe,
        entries: 7,
        payload_bytes: 640,
        ledger_digest: Some([0xab; 32]),
        commit_counter: 3,
        pack: Some(PackPlace { first_row_group: 2, mini_footer_offset: 800, mini_footer_bytes: 50 }),
        length_differs: Some(650),
    }
}

fn minimal() -> ColdRecord {
    ColdRecord { ledger_digest: None, pack: None, length_differs: None, ..full() }
}

fn why(bytes: &[u8]) -> String {
    let error = ColdRecord::decode(bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ColdRecord);
    error.to_string()
}

#[test]
fn the_stored_form_is_frozen() {
    assert_eq!(hex::encode(full().encode()), GOLDEN_FULL);
    assert_eq!(ColdRecord::decode(&hex::decode(GOLDEN_FULL).unwrap()).unwrap(), full());
    let minimal_bytes = minimal().encode();
    assert_eq!((minimal_bytes.len(), full().encode().len()), (93, 155));
    assert_eq!(ColdRecord::decode(&minimal_bytes).unwrap(), minimal());
}

#[test]
fn fields_of_later_writers_are_passed_over() {
    let mut bytes = full().encode();
    bytes.extend_from_slice(&[14, 3, 1, 2, 3, 255, 0, 14, 0]);
    assert_eq!(ColdRecord::decode(&bytes).unwrap(), full());
}

#[test]
fn malformed_records_are_refused() {
    let good = minimal().encode();
    assert!(why(&[]).contains("empty"));
    assert!(why(&[2, 1, 4]).contains("version 2 is not known"));
    assert!(why(&good[..good.len() - 1]).contains("cut short"));
    assert!(why(&[&good[..], &[1, 4, 0, 0, 0, 0]].concat()).contains("field 1 is present twice"));
    assert!(why(&[&good[..], &[12, 4, 0, 0, 0, 0]].concat()).contains("field 12 has 4 bytes, not 8"));
    assert!(why(&[&good[..], &[77; 1]].concat()).contains("field 77 is cut short"));
    assert!(why(&[&good[..], &[77, 200][..], &[0; 200]].concat()).contains("at most 256"));
    let shifted = ColdRecord { footer_offset: 901, ..minimal() };
    assert!(why(&shifted.encode()).contains("does not end where the object ends"));
    let wrapped = ColdRecord { footer_offset: u64::MAX, ..minimal() };
    assert!(why(&wrapped.encode()).contains("does not end where the object ends"));
}

#[test]
fn each_required_field_is_required() {
    let good = minimal().encode();
    let mut at = 1;
    while at < good.len() {
        let (tag, end) = (good[at], at + 2 + usize::from(good[at + 1]));
        let without = [&good[..at], &good[end..]].concat();
        assert!(why(&without).contains(&format!("field {tag} is missing")));
        at = end;
    }
}

#[test]
fn keys_spread_by_the_ledger_hash() {
    let record = full();
    assert_eq!(
        record.object_key("6a1f", LedgerId::new(1).unwrap()),
        "91/6a1f/0000000000000001-00010203-0405-0607-0809-0a0b0c0d0e0f.parquet"
    );
    let key = ColdRecord::key_of("i", LedgerId::new(42).unwrap(), record.object);
    assert!(key.starts_with("bd/i/000000000000002a-"), "{key}");
}

#[test]
fn records_live_in_ledger_metadata() {
    let members = vec![BookieId::new("bk1:3181").unwrap()];
    let open =
        LedgerMetadata::open(Quorums::new(1, 1, 1).unwrap(), members, DigestType::Crc32c, Password::empty()).unwrap();
    assert!(open.with_cold_record(&full()).is_err(), "an open ledger cannot settle");
    let closed = open.closed(EntryId::new(6), 650).unwrap();
    assert_eq!(ColdRecord::from_metadata(&closed).unwrap(), None);
    assert!(closed.with_cold_record(&ColdRecord { entries: 8, ..full() }).is_err(), "another number of entries");
    let settled = closed.with_cold_record(&full()).unwrap();
    assert_eq!(settled.tier(), Tier::Settled);
    assert_eq!(ColdRecord::from_metadata(&settled).unwrap(), Some(full()));
    let read_again = LedgerMetadata::decode(&settled.encode()).unwrap();
    assert_eq!(ColdRecord::from_metadata(&read_again).unwrap(), Some(full()));
    let damaged = closed.with_custom(ColdRecord::KEY, vec![1, 2]).unwrap();
    assert!(ColdRecord::from_metadata(&damaged).is_err());
}

fn any_record() -> impl Strategy<Value = ColdRecord> {
    let pack = (any::<u32>(), any::<u64>(), any::<u32>()).prop_map(|(first, offset, bytes)| PackPlace {
        first_row_group: first,
        mini_footer_offset: offset,
        mini_footer_bytes: bytes,
    });
    let numbers = (any::<u32>(), any::<u128>(), any::<u32>(), 0..u64::MAX / 2, any::<u32>());
    let counts = (any::<u64>(), any::<u64>(), any::<u64>());
    let options =
        (proptest::option::of(any::<[u8; 32]>()), proptest::option::of(pack), proptest::option::of(any::<u64>()));
    (numbers, counts, options).prop_map(|(n, c, o)| ColdRecord {
        store_id: n.0,
        object: Uuid::from_u128(n.1),
        object_bytes: n.3 + u64::from(n.4),
        object_crc32c: n.2,
        footer_offset: n.3,
        footer_bytes: n.4,
        footer_crc32c: n.2.rotate_left(7),
        entries: c.0,
        payload_bytes: c.1,
        ledger_digest: o.0,
        commit_counter: c.2,
        pack: o.1,
        length_differs: o.2,
    })
}

proptest! {
    #[test]
    fn records_round_trip(record in any_record()) {
        let bytes = record.encode();
        prop_assert!(bytes.len() <= COLD_RECORD_BYTES_MAX);
        prop_assert_eq!(ColdRecord::decode(&bytes).unwrap(), record);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = ColdRecord::decode(&bytes);
        let _ = ColdRecord::decode(&[&[1][..], &bytes].concat());
    }
}
