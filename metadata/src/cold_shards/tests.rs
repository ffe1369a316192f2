use std::time::Duration;

use super::*;
use crate::{Bookies, MemoryStore};

const TTL: Duration = Duration::from_secs(6);

fn names(members: u32) -> ColdNames {
    ColdNames { domain: "cold.thermocline".to_owned(), port: 3181, members }
}

fn info(address: &str) -> BookieInfo {
    BookieInfo::at(address)
}

fn setup() -> (Arc<dyn MetadataStore>, ColdShards) {
    let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
    (store.clone(), ColdShards::new(store))
}

#[test]
fn golden() {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let encoded = names(3).encode();
    let fields = "01010010636f6c642e746865726d6f636c696e65020008000000000000 0c6d0300080000000000000003";
    assert_eq!(hex(&encoded[..encoded.len() - 4]), fields.replace(' ', ""));
    assert_eq!(ColdNames::decode(&encoded).unwrap(), names(3));
    let ids: Vec<String> = names(2).of_shard(7).map(|id| id.to_string()).collect();
    assert_eq!(ids, ["c7-0.cold.thermocline:3181", "c7-1.cold.thermocline:3181"]);
}

#[tokio::test]
async fn names_are_chosen_once_and_their_members_only_grow() {
    let (store, cold) = setup();
    assert_eq!(cold.names().await.unwrap(), None);
    assert_eq!(cold.ensure_names(&names(3)).await.unwrap(), names(3));
    assert_eq!(cold.ensure_names(&names(5)).await.unwrap(), names(5));
    assert_eq!(cold.ensure_names(&names(2)).await.unwrap(), names(5));
    for other in [ColdNames { port: 1, ..names(3) }, ColdNames { domain: "elsewhere".to_owned(), ..names(3) }] {
        let error = cold.ensure_names(&other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("end in .cold.thermocline:3181"), "{error}");
    }
    assert_eq!(cold.names().await.unwrap(), Some(names(5)));
    for bad in [names(64), ColdNames { port: 0, ..names(3) }, ColdNames { domain: "a b".to_owned(), ..names(3) }] {
        assert_eq!(cold.ensure_names(&bad).await.unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
    store.put_if(&layout::cold_names_key(), Bytes::from_static(b"?"), Expect::Any).await.unwrap();
    assert_eq!(cold.names().await.unwrap_err().kind(), ErrorKind::Damaged);
}

#[tokio::test(start_paused = true)]
async fn a_shard_has_one_owner_until_its_lease_ends() {
    let (store, cold) = setup();
    let (one, two) = (store.grant_lease(TTL).await.unwrap(), store.grant_lease(TTL * 9).await.unwrap());
    let claimed = cold.claim(&[3, 5], "a", one).await.unwrap();
    assert_eq!(claimed.iter().map(|owned| owned.shard).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(cold.claim(&[5], "b", two).await.unwrap(), []);
    let owners = cold.owners().await.unwrap();
    assert_eq!(owners[&5], ShardOwner { gateway: "a".to_owned(), version: claimed[1].version, lease: Some(one) });
    cold.give_up(claimed[1]).await.unwrap();
    assert_eq!(cold.claim(&[5], "b", two).await.unwrap().len(), 1);
    // What was given up is not given up again from under its new owner.
    cold.give_up(claimed[1]).await.unwrap();
    assert_eq!(cold.owners().await.unwrap()[&5].gateway, "b");
    tokio::time::sleep(TTL + Duration::from_secs(1)).await;
    assert_eq!(cold.owners().await.unwrap().into_keys().collect::<Vec<_>>(), [5]);
    assert_eq!(cold.claim(&[3], "a", one).await.unwrap_err().kind(), ErrorKind::LeaseGone);
}

#[tokio::test]
async fn only_the_owner_moves_registrations_and_they_outlive_it() {
    let (store, cold) = setup();
    let (one, two) = (store.grant_lease(TTL).await.unwrap(), store.grant_lease(TTL).await.unwrap());
    let old = cold.claim(&[9], "a", one).await.unwrap()[0];
    let register = async |owned, address: &str| {
        let now = cold.registrations().await.unwrap();
        cold.register(owned, &names(3), &info(address), &now).await.unwrap()
    };
    assert_eq!(register(old, "a:1").await, Some(3));
    assert_eq!(register(old, "a:1").await, Some(0), "nothing is written that stands there already");
    store.revoke(one).await.unwrap();
    let listed = Bookies::new(store.clone()).list().await.unwrap();
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|(_, found, writable)| *found == info("a:1") && !writable), "{listed:?}");
    let new = cold.claim(&[9], "b", two).await.unwrap()[0];
    assert_eq!(register(old, "a:1").await, None, "a gateway that lost the shard cannot bring clients back to itself");
    let before = cold.registrations().await.unwrap();
    assert_eq!(register(new, "b:1").await, Some(3));
    assert_eq!(cold.register(new, &names(3), &info("b:2"), &before).await.unwrap(), None, "an old view moves nothing");
    let listed = cold.registrations().await.unwrap();
    assert!(listed.iter().all(|(id, found)| BookieInfo::decode(id, &found.value).unwrap() == info("b:1")));
    assert!(listed.values().all(|found| found.lease.is_none()));
}
