use super::*;
use crate::{FaultKind, FaultyStore, MemoryStore};

const HOUR: Duration = Duration::from_secs(3600);

fn id(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

fn info(address: &str) -> BookieInfo {
    BookieInfo::at(address)
}

async fn setup() -> (Bookies, Arc<FaultyStore>, LeaseId, LeaseId) {
    let store = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let one = store.grant_lease(HOUR).await.unwrap();
    let two = store.grant_lease(HOUR).await.unwrap();
    (Bookies::new(store.clone()), store, one, two)
}

#[test]
fn the_stored_form_is_bookkeepers() {
    let relaying = BookieInfo { relays: true, ..info("bk1:3181") };
    let plain = "321c0a06626f6f6b696510ed181a03626b31220a626f6f6b69652d727063";
    let relay = "3a160a11746865726d6f636c696e652e72656c6179120131";
    for (info, expected) in [(info("bk1:3181"), plain.to_owned()), (relaying, format!("{plain}{relay}"))] {
        let hex: String = info.encode().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
        assert_eq!(BookieInfo::decode(&id("x"), &info.encode().unwrap()).unwrap(), info);
    }
    for address in ["bk1:3181", "127.0.0.1:1", "[::1]:3181"] {
        let value = info(address).encode().unwrap();
        assert_eq!(BookieInfo::decode(&id("x"), &value).unwrap(), info(address));
    }
    let offer = Offer { tls: true, auth: Some("a-plugin".to_owned()) };
    let asking = BookieInfo { relays: true, offer, ..info("bk1:3181") };
    let hex: String = asking.encode().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    let more = "2a08612d706c7567696e 3203746c73 3a160a11746865726d6f636c696e652e72656c6179120131".replace(' ', "");
    assert_eq!(hex, format!("322b0a06626f6f6b696510ed181a03626b31220a626f6f6b69652d727063{more}"));
    assert_eq!(BookieInfo::decode(&id("x"), &asking.encode().unwrap()).unwrap(), asking);
    for address in ["bk1", ":3181", "bk1:port", "bk1:70000", ""] {
        assert_eq!(info(address).encode().unwrap_err().kind(), ErrorKind::Invalid, "{address}");
    }
    assert_eq!(BookieInfo::decode(&id("bk1:3181"), b"").unwrap(), info("bk1:3181"), "legacy: the id is the address");
    assert_eq!(BookieInfo::decode(&id("bk1:3181"), b"\xff").unwrap_err().kind(), ErrorKind::Damaged);
    let silent = BookieServiceInfo::default();
    let mut silent_value = silent.encode();
    assert!(silent_value.is_empty());
    silent_value = BookieServiceInfo { properties: vec![("a".into(), "b".into())], ..silent }.encode();
    assert_eq!(BookieInfo::decode(&id("bk1:3181"), &silent_value).unwrap_err().kind(), ErrorKind::Damaged);
}

#[tokio::test]
async fn two_live_processes_cannot_carry_one_id() {
    let (bookies, store, one, two) = setup().await;
    let first = bookies.register(&id("b1"), &info("h:1"), one).await.unwrap();
    assert_eq!(bookies.register(&id("b1"), &info("h:1"), one).await.unwrap(), first, "again under the same lease");
    let error = bookies.register(&id("b1"), &info("h:2"), two).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "register bookie b1: another live process has this id, at h:1; stop it, or give this bookie another id"
    );
    let readonly = bookies.register_as(&id("b1"), &info("h:2"), two, Mode::ReadOnly).await;
    assert!(matches!(readonly, Err(RegisterError::Taken { .. })), "{readonly:?}");
    store.revoke(one).await.unwrap();
    bookies.register(&id("b1"), &info("h:2"), two).await.unwrap();
    assert_eq!(bookies.get(&id("b1")).await.unwrap(), Some((info("h:2"), true)));
}

#[tokio::test]
async fn lost_answers_are_settled_by_the_lease() {
    let (bookies, store, one, two) = setup().await;
    store.fail_next(FaultKind::AppliedUnknown);
    bookies.register(&id("b1"), &info("h:1"), one).await.unwrap();
    store.fail_next(FaultKind::NotAppliedUnknown);
    bookies.register(&id("b2"), &info("h:2"), two).await.unwrap();
    store.fail_next(FaultKind::FailBefore);
    assert!(matches!(bookies.register(&id("b3"), &info("h:3"), two).await, Err(RegisterError::NotDone(_))));
    assert_eq!(bookies.get(&id("b3")).await.unwrap(), None);
    store.revoke(one).await.unwrap();
    match bookies.register(&id("b1"), &info("h:1"), one).await {
        Err(RegisterError::NotDone(error)) => assert_eq!(error.kind(), ErrorKind::LeaseGone),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn modes_change_in_one_step() {
    let (bookies, _, one, _) = setup().await;
    bookies.register(&id("b1"), &info("h:1"), one).await.unwrap();
    bookies.register_as(&id("b1"), &info("h:1"), one, Mode::ReadOnly).await.unwrap();
    assert_eq!(bookies.list().await.unwrap(), [(id("b1"), info("h:1"), false)]);
    assert_eq!(bookies.get(&id("b1")).await.unwrap(), Some((info("h:1"), false)));
    bookies.register(&id("b1"), &info("h:9"), one).await.unwrap();
    assert_eq!(bookies.list().await.unwrap(), [(id("b1"), info("h:9"), true)]);
    assert_eq!(bookies.get(&id("b2")).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn registering_waits_for_a_dead_holder_and_not_for_ever() {
    let (bookies, store, _, two) = setup().await;
    let dying = store.grant_lease(Duration::from_secs(5)).await.unwrap();
    bookies.register(&id("b1"), &info("h:1"), dying).await.unwrap();
    let short = bookies.register_within(&id("b1"), &info("h:2"), two, Duration::from_secs(3)).await;
    assert!(matches!(short, Err(RegisterError::Taken { .. })), "{short:?}");
    bookies.register_within(&id("b1"), &info("h:2"), two, Duration::from_secs(3)).await.unwrap();
    assert_eq!(bookies.get(&id("b1")).await.unwrap(), Some((info("h:2"), true)));
}

#[tokio::test]
async fn the_listing_is_complete_and_survives_a_bad_registration() {
    let (bookies, store, one, _) = setup().await;
    for index in 0..3 {
        bookies.register(&id(&format!("b{index}:1")), &info("h:1"), one).await.unwrap();
    }
    bookies.register_as(&id("a-readonly"), &info("h:1"), one, Mode::ReadOnly).await.unwrap();
    store.create(&layout::available_key(&id("bad")), "\u{ff}".into()).await.unwrap();
    let mut changes = bookies.watch().await.unwrap();
    let listed: Vec<_> =
        bookies.list().await.unwrap().into_iter().map(|(id, _, writable)| (id.to_string(), writable)).collect();
    let want = [("b0:1", true), ("b1:1", true), ("b2:1", true), ("a-readonly", false)];
    assert_eq!(listed, want.map(|(id, writable)| (id.to_owned(), writable)));
    store.revoke(one).await.unwrap();
    assert!(changes.next().await.is_some());
}

#[tokio::test]
async fn who_relays_says_so() {
    let (bookies, store, one, _) = setup().await;
    bookies.register(&id("ours"), &BookieInfo { relays: true, ..info("ours:3181") }, one).await.unwrap();
    bookies.register(&id("off"), &info("off:3181"), one).await.unwrap();
    let apache = BookieServiceInfo::of_bookie("apache", 3181).encode();
    let cold = id("c0-0.cold.thermocline:3181");
    for (key, value) in [
        (layout::readonly_key(&id("apache")), apache.clone()),
        (layout::available_key(&id("legacy:3181")), Vec::new()),
        (layout::available_key(&id("damaged")), vec![0xff]),
        (layout::readonly_key(&cold), apache),
    ] {
        store.create(&key, value.into()).await.unwrap();
    }
    let found: Vec<_> = bookies.relaying().await.unwrap().into_iter().collect();
    let want = [("apache", false), ("damaged", false), ("legacy:3181", false), ("off", false), ("ours", true)];
    assert_eq!(found, want.map(|(name, relays)| (id(name), relays)));
}
