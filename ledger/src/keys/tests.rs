use super::*;

#[test]
fn keys_of_known_passwords() {
    let check = |password: &str, master: &str, mac: &str| {
        assert_eq!(hex::encode(MasterKey::derive(password.as_bytes()).as_bytes()), master);
        assert_eq!(hex::encode(mac_key(password.as_bytes())), mac);
    };
    check("", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f", "347ead6348e936507920c15d2ae8266ac6ce9b49");
    check("passwd", "9596625852f7fafc2c9cf0f9f7f3e5995206452b", "6c5d50401aaaf61cb32a1f11f123999a845fb706");
}

#[test]
fn keys_compare_and_hide_themselves() {
    let key = MasterKey::derive(b"secret");
    assert_eq!(key, MasterKey::from_slice(key.as_bytes()).unwrap());
    assert_ne!(key, MasterKey::derive(b""));
    assert!(!MasterKey::derive(b"").is_empty());
    assert!(MasterKey::EMPTY.is_empty());
    assert!(MasterKey::from_slice(&[0; 19]).is_none());
    assert_eq!(format!("{key:?}"), "MasterKey(redacted)");
    let password = Password::new("secret");
    assert_eq!(format!("{password:?}"), "Password(redacted)");
    assert!(password.ct_eq(&Password::new("secret")));
    assert!(!password.ct_eq(&Password::empty()));
}
