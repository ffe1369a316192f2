use proptest::prelude::*;

use super::*;

#[test]
fn known_value() {
    let info = BookieServiceInfo::of_bookie("bk1", 3181);
    assert_eq!(hex::encode(info.encode()), "321c0a06626f6f6b696510ed181a03626b31220a626f6f6b69652d727063");
    assert_eq!(BookieServiceInfo::decode(&info.encode()).unwrap(), info);
    assert_eq!(info.bookie_address().as_deref(), Some("bk1:3181"));
}

#[test]
fn addresses_come_from_the_entry_protocol_only() {
    let mut info = BookieServiceInfo::of_bookie("::1", 3181);
    assert_eq!(info.bookie_address().as_deref(), Some("[::1]:3181"));
    info.endpoints[0].protocol = "http".to_owned();
    assert_eq!(info.bookie_address(), None);
    assert_eq!(BookieServiceInfo::decode(&[]).unwrap().bookie_address(), None);
    info.properties = vec![("a".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())];
    assert_eq!(info.property("a"), Some("2"));
    assert_eq!(info.property("b"), None);
}

#[test]
fn malformed_values_are_refused() {
    let mut good = BookieServiceInfo::of_bookie("bk1", 3181).encode();
    good.truncate(good.len() - 1);
    assert_eq!(BookieServiceInfo::decode(&good).unwrap_err().kind(), ErrorKind::ServiceInfo);
    // An endpoint with an id only, and one with port 65536.
    for bytes in ["32030a0162", "321110808004 0a0162 1a0162 220162 2a0162"] {
        let bytes = hex::decode(bytes.replace(' ', "")).unwrap();
        assert!(BookieServiceInfo::decode(&bytes).is_err());
    }
}

fn any_endpoint() -> impl Strategy<Value = BookieEndpoint> {
    let words = || proptest::collection::vec("[a-z]{0,5}", 0..3);
    ("[a-z]{0,6}", any::<u16>(), "[a-z.:0-9]{0,9}", "[a-z-]{0,12}", words(), words()).prop_map(
        |(id, port, host, protocol, auth, extensions)| BookieEndpoint { id, port, host, protocol, auth, extensions },
    )
}

proptest! {
    #[test]
    fn values_round_trip(
        endpoints in proptest::collection::vec(any_endpoint(), 0..4),
        properties in proptest::collection::vec(("[a-z]{0,5}", ".{0,5}"), 0..4),
    ) {
        let info = BookieServiceInfo { endpoints, properties };
        prop_assert_eq!(BookieServiceInfo::decode(&info.encode()).unwrap(), info);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = BookieServiceInfo::decode(&bytes);
    }
}
