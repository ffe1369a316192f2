use proptest::prelude::*;

use super::*;
use crate::digest::DigestType;
use crate::keys::Password;

const TYPES: [DigestType; 4] = [DigestType::Crc32, DigestType::Hmac, DigestType::Crc32c, DigestType::Dummy];

fn header() -> EntryHeader {
    EntryHeader { ledger: LedgerId::new(1).unwrap(), entry: EntryId::ZERO, last_confirmed: None, length: 5 }
}

fn digester(digest_type: DigestType, password: &str) -> Digester {
    Digester::new(digest_type, &Password::new(password.to_owned()))
}

fn any_header() -> impl Strategy<Value = EntryHeader> {
    let id = 0..=i64::MAX as u64;
    (id.clone(), id.clone(), proptest::option::of(id.clone()), id).prop_map(|(ledger, entry, lac, length)| {
        EntryHeader {
            ledger: LedgerId::new(ledger).unwrap(),
            entry: EntryId::new(entry).unwrap(),
            last_confirmed: lac.and_then(EntryId::new),
            length,
        }
    })
}

#[test]
fn known_bodies() {
    let head = "0000000000000001 0000000000000000 ffffffffffffffff 0000000000000005";
    let check = |digest_type, password: &str, digest: &str| {
        let body = digester(digest_type, password).seal(&header(), b"hello");
        assert_eq!(hex::encode(&body), format!("{head}{digest}68656c6c6f").replace(' ', ""), "{digest_type}");
    };
    check(DigestType::Crc32c, "", "e3a5f74d");
    check(DigestType::Crc32, "", "0000000030a56872");
    check(DigestType::Hmac, "passwd", "2c5f3dbb8c95c515351daad95c129012c5d7a5f9");
    check(DigestType::Hmac, "", "00107b7f219e26462e04e16e6e7a7f41e046e090");
    check(DigestType::Dummy, "", "");
}

#[test]
fn known_lac_body() {
    let digester = digester(DigestType::Crc32c, "");
    let (ledger, lac) = (LedgerId::new(1).unwrap(), EntryId::new(41));
    let body = digester.seal_lac(ledger, lac);
    assert_eq!(hex::encode(&body), "00000000000000010000000000000029ee4119b0");
    assert_eq!(digester.open_lac(ledger, &body), Ok(lac));
    assert_eq!(digester.open_lac(ledger, &digester.seal_lac(ledger, None)), Ok(None));
    assert!(digester.open_lac(LedgerId::ZERO, &body).is_err());
    assert!(digester.open_lac(ledger, &body[..19]).is_err());
    assert!(digester.open_lac(ledger, &[&body[..], b"x"].concat()).is_err());
}

#[test]
fn bodies_of_others_are_refused() {
    let digester = digester(DigestType::Crc32c, "");
    let body = digester.seal(&header(), b"hello");
    let ledger = header().ledger;
    assert!(digester.open(ledger, None, &body).is_ok());
    let other = LedgerId::new(2).unwrap();
    assert_eq!(digester.open(other, None, &body), Err(BodyError::WrongLedger { expected: other, found: ledger }));
    let entry = EntryId::new(9).unwrap();
    let expected = BodyError::WrongEntry { expected: entry, found: EntryId::ZERO };
    assert_eq!(digester.open(ledger, Some(entry), &body), Err(expected));
    let short = body.slice(..35);
    assert_eq!(digester.open(ledger, None, &short), Err(BodyError::TooShort { found: 35, needed: 36 }));
}

#[test]
fn malformed_numbers_are_refused_even_under_a_good_digest() {
    let digester = digester(DigestType::Crc32c, "");
    let check = |offset: usize, value: i64, field: &str| {
        let mut head = header().to_bytes();
        head[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
        let body = [&head[..], digester.digest(&head, b"x").as_slice(), b"x"].concat();
        let error = digester.open(header().ledger, None, &body.into()).unwrap_err();
        assert!(matches!(error, BodyError::BadField { field: f, value: v } if f == field && v == value), "{error}");
    };
    check(0, -1, "ledger id");
    check(8, -1, "entry id");
    check(16, -2, "last confirmed");
    check(24, -1, "length");
}

#[test]
fn peek_reads_the_first_24_bytes_only() {
    let body = digester(DigestType::Hmac, "x").seal(&header(), b"hello");
    let expected = Peek { ledger: header().ledger, entry: EntryId::ZERO, last_confirmed: None };
    assert_eq!(peek(&body[..24]), Ok(expected));
    assert_eq!(peek(&body[..23]), Err(BodyError::TooShort { found: 23, needed: 24 }));
    assert!(peek(&[]).is_err());
}

proptest! {
    #[test]
    fn sealed_bodies_open_to_the_same(
        header in any_header(), payload in proptest::collection::vec(any::<u8>(), 0..200),
        which in 0..4_usize, password in "[a-z]{0,8}",
    ) {
        let digester = digester(TYPES[which], &password);
        let body = digester.seal(&header, &payload);
        let entry = digester.open(header.ledger, Some(header.entry), &body).unwrap();
        prop_assert_eq!(entry.header, header);
        prop_assert_eq!(&entry.payload[..], &payload[..]);
        prop_assert_eq!(entry.digest.len(), digester.digest_len());
        prop_assert!(digester.verify_entry(&entry));
        prop_assert_eq!(entry.to_body(), body);
    }

    #[test]
    fn a_flipped_bit_never_opens(
        header in any_header(), payload in proptest::collection::vec(any::<u8>(), 0..100),
        which in 0..3_usize, at in any::<proptest::sample::Index>(), bit in 0..8_u8,
    ) {
        let digester = digester(TYPES[which], "p");
        let mut body = digester.seal(&header, &payload).to_vec();
        let place = at.index(body.len());
        body[place] ^= 1 << bit;
        prop_assert_eq!(digester.open(header.ledger, None, &body.into()), Err(BodyError::DigestMismatch));
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), which in 0..4_usize) {
        let digester = digester(TYPES[which], "");
        let _ = peek(&bytes);
        let _ = EntryHeader::from_body(&bytes);
        let _ = digester.open_lac(LedgerId::ZERO, &bytes);
        let _ = digester.open(LedgerId::ZERO, None, &bytes.into());
    }

    #[test]
    fn lac_bodies_round_trip(ledger in 0..=i64::MAX as u64, lac in -1..=i64::MAX, which in 0..4_usize) {
        let digester = digester(TYPES[which], "p");
        let ledger = LedgerId::new(ledger).unwrap();
        let lac = EntryId::option_from_i64(lac).unwrap();
        prop_assert_eq!(digester.open_lac(ledger, &digester.seal_lac(ledger, lac)), Ok(lac));
    }
}
