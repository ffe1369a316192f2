use proptest::prelude::*;

use super::*;
use crate::{ErrorKind, FaultKind, FaultyStore, MemoryStore};

fn cookie() -> Cookie {
    let dirs = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    Cookie::new(
        BookieId::new("b1:3181").unwrap(),
        dirs(&["/j1", "/j2"]),
        dirs(&["/l1", "/l2"]),
        "0d6f1a3e-0000-4000-8000-000000000001",
    )
    .unwrap()
}

const TEXT: &str = "5\nbookieHost: \"b1:3181\"\njournalDir: \"/j1,/j2\"\nledgerDirs: \"2\\t/l1\\t/l2\"\n\
                    instanceId: \"0d6f1a3e-0000-4000-8000-000000000001\"\n";

#[test]
fn golden() {
    assert_eq!(cookie().encode(), TEXT);
    assert_eq!(Cookie::decode(TEXT.as_bytes()).unwrap(), cookie());
    let indexed = Cookie { index_dirs: Some(vec!["/i".into()]), ..cookie() };
    assert_eq!(indexed.encode(), format!("{TEXT}indexDirs: \"1\\t/i\"\n"));
}

#[test]
fn older_versions_are_read() {
    let old = Cookie { instance: None, journal_dirs: vec!["/j".into()], ..cookie() };
    assert_eq!(Cookie::decode(b"3\nb1:3181\n/j\n2\t/l1\t/l2\n").unwrap(), old);
    let text = "4\nbookieHost: \"b1:3181\"\njournalDir: \"/j\"\nledgerDirs: \"2\\t/l1\\t/l2\"\n";
    assert_eq!(Cookie::decode(text.as_bytes()).unwrap(), old);
    let later = format!("{TEXT}someField: \"x\"\n");
    assert_eq!(Cookie::decode(later.as_bytes()).unwrap(), cookie(), "fields of later releases are skipped");
    let octal = TEXT.replace("/j1", "/j\\303\\244\\x31");
    assert_eq!(Cookie::decode(octal.as_bytes()).unwrap().journal_dirs[0], "/jä1");
}

#[test]
fn other_text_is_refused() {
    let kind = |text: &[u8]| Cookie::decode(text).unwrap_err().kind();
    assert_eq!(kind(b"2\nx\n"), ErrorKind::Unsupported);
    assert_eq!(kind(b"6\nx\n"), ErrorKind::Unsupported);
    for text in [
        String::new(),
        "5".into(),
        "5\n".into(),
        "3\nb1\n/j\n".into(),
        "3\nb1\n/j\n1\t/a\t/b\n".into(),
        TEXT.replace("2\\t", "3\\t"),
        TEXT.replace("b1:3181", "b 1"),
        TEXT.replace("\"/j1,/j2\"", "/j1,/j2"),
        TEXT.replace("/j1", "\\q"),
        TEXT.replace("/j1", "\\777"),
        TEXT.replace("/j1", "\\xff"),
        TEXT.replace("/j1", "a\"b"),
        TEXT.replace("journalDir", "ledgerDirs"),
        "x".repeat(1 << 20),
    ] {
        assert_eq!(kind(text.as_bytes()), ErrorKind::Damaged, "{text:.60}");
    }
    assert_eq!(kind(b"5\n\xff\n"), ErrorKind::Damaged);
}

proptest! {
    #[test]
    fn round_trip(
        id in "[A-Za-z0-9:_.-]{1,20}",
        journal in prop::collection::vec("[^,\u{0}]{1,20}", 1..3),
        ledgers in prop::collection::vec("[^\t\u{0}]{1,20}", 1..4),
        index in prop::option::of(prop::collection::vec("[^\t]{1,9}", 1..3)),
        instance in "[a-f0-9-]{1,36}",
    ) {
        prop_assume!(id != "readonly");
        let cookie = Cookie::new(BookieId::new(&id).unwrap(), journal, ledgers, &instance).unwrap();
        let cookie = Cookie { index_dirs: index, ..cookie };
        prop_assert_eq!(Cookie::decode(cookie.encode().as_bytes()).unwrap(), cookie);
    }

    #[test]
    fn any_bytes_are_an_answer(bytes: Vec<u8>, text in "[345]\n(\\PC|\n|\"|\\\\){0,60}") {
        let _ = Cookie::decode(&bytes);
        let _ = Cookie::decode(text.as_bytes());
    }
}

#[test]
fn directories_must_be_told_apart() {
    let make = |journal: &str, ledger: &str| {
        Cookie::new(BookieId::new("b").unwrap(), vec![journal.into()], vec![ledger.into()], "i").map_err(|e| e.kind())
    };
    assert!(make("/j", "/l,1").is_ok());
    for (journal, ledger) in [("/a,b", "/l"), ("/j", "/a\tb"), ("", "/l"), ("/j", "")] {
        assert_eq!(make(journal, ledger), Err(ErrorKind::Invalid));
    }
}

#[test]
fn verdicts() {
    let expected = cookie();
    let at = |dir: &str, cookie: Option<Cookie>| LocalCookie { dir: dir.into(), cookie };
    let have = || Some(cookie());
    assert_eq!(verify(&[at("/j1", None), at("/l1", None)], None, &expected), Ok(CookieVerdict::NewBookie));
    assert_eq!(verify(&[at("/j1", have()), at("/l1", have())], Some(&cookie()), &expected), Ok(CookieVerdict::Known));
    let reordered = Cookie { ledger_dirs: vec!["/l2".into(), "/l1".into()], ..cookie() };
    assert_eq!(verify(&[at("/j1", Some(reordered))], Some(&cookie()), &expected), Ok(CookieVerdict::Known));

    let check = |local: &[LocalCookie], stored: Option<&Cookie>, want: &str| {
        let error = verify(local, stored, &expected).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
    };
    check(
        &[at("/j1", have()), at("/l1", None)],
        Some(&cookie()),
        "directory /l1 has no cookie, but the cluster knows bookie b1:3181",
    );
    check(&[at("/j1", None)], Some(&cookie()), "its data is not here");
    check(&[at("/j1", have())], None, "this cluster does not know it");
    let foreign = Cookie { bookie: BookieId::new("b2").unwrap(), ..cookie() };
    check(
        &[at("/j1", Some(foreign.clone()))],
        Some(&cookie()),
        "the cookie in directory /j1 is of bookie b2, not of b1:3181",
    );
    check(&[], Some(&foreign), "the cookie in the metadata store is of bookie b2");
    let other = Cookie { instance: Some("other".into()), ..cookie() };
    check(&[at("/j1", Some(other))], None, "is of cluster other");
    let moved = Cookie { ledger_dirs: vec!["/elsewhere".into()], ..cookie() };
    check(&[at("/j1", Some(moved))], Some(&cookie()), "names the ledger directories [\"/elsewhere\"]");
}

#[tokio::test]
async fn the_store_has_one_cookie_a_bookie() {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let cookies = Cookies::new(store.clone());
    let id = cookie().bookie;
    assert_eq!(cookies.get(&id).await.unwrap(), None);
    store.fail_next(FaultKind::AppliedUnknown);
    let version = cookies.create(&cookie()).await.unwrap();
    assert_eq!(cookies.get(&id).await.unwrap(), Some((cookie(), version)));
    assert!(matches!(cookies.create(&cookie()).await, Err(WriteError::Conflict(Some(found))) if *found == cookie()));
    let grown = Cookie { journal_dirs: vec!["/j3".into()], ..cookie() };
    store.fail_next(FaultKind::NotAppliedUnknown);
    let newer = cookies.update(&grown, version).await.unwrap();
    assert!(newer > version);
    assert!(matches!(cookies.update(&cookie(), version).await, Err(WriteError::Conflict(_))));
}
