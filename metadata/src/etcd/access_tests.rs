//! Users and TLS, on a real etcd.

use std::time::Duration;

use common::rng::Rng;
use etcd_client::{Client, ConnectOptions, Permission, PermissionType};
use faults::Etcd;

use super::{Access, EtcdStore, Target};
use crate::{Cluster, ErrorKind, Expect, Key, MetadataStore, Transaction, WatchEvent, admin};

const ROOT: &str = "/clusters/one";

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// Uses every kind of call once.
async fn use_all(store: &EtcdStore, name: &str) {
    let name = key(name);
    let mut watch = store.watch(&name).await.unwrap();
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    let done = store.commit(Transaction::new().put_leased(name.clone(), "x", Expect::Absent, lease)).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap();
    assert_eq!(told, Some(WatchEvent::Put { key: name.clone(), version: done.put_version(0) }));
    store.keep_alive(lease).await.unwrap();
    assert_eq!(store.get_quorum(&name).await.unwrap().unwrap().version, done.put_version(0));
    assert_eq!(store.list(&key("/a"), None, 10).await.unwrap().len(), 1);
    store.revoke(lease).await.unwrap();
    assert_eq!(store.get(&name).await.unwrap(), None);
}

fn as_user(user: &str, password: &str) -> Access {
    Access { user: Some((user.into(), password.into())), ..Access::default() }
}

/// Turns users on: `ann` may use what lies below the root.
async fn turn_users_on(etcd: &Etcd) {
    let mut admin = Client::connect([etcd.endpoint()], None).await.unwrap();
    admin.user_add("root", "first", None).await.unwrap();
    admin.role_add("root").await.unwrap();
    admin.user_grant_role("root", "root").await.unwrap();
    admin.role_add("thermocline").await.unwrap();
    let below = Permission::new(PermissionType::Readwrite, format!("{ROOT}/")).with_prefix();
    admin.role_grant_permission("thermocline", below).await.unwrap();
    admin.user_add("ann", "hunter2", None).await.unwrap();
    admin.user_grant_role("ann", "thermocline").await.unwrap();
    admin.auth_enable().await.unwrap();
}

#[tokio::test]
async fn users_are_checked_and_tokens_renewed() {
    if Etcd::is_missing_for("etcd-access") {
        return;
    }
    let mut etcd = Etcd::start().await.unwrap();
    let target = Target::parse(&etcd.uri(ROOT)).unwrap();
    let early = EtcdStore::open_as(target.clone(), as_user("ann", "hunter2")).await.err().unwrap();
    assert_eq!(early.kind(), ErrorKind::Invalid, "users are not turned on: {early}");
    turn_users_on(&etcd).await;
    for access in [Access::default(), as_user("ann", "guess"), as_user("bob", "hunter2")] {
        let error = EtcdStore::open_as(target.clone(), access).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("THERMOCLINE_ETCD_USER"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let elsewhere = Target::parse(&etcd.uri("/clusters/two")).unwrap();
    let error = EtcdStore::open_as(elsewhere, as_user("ann", "hunter2")).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "another root is not ours: {error}");

    let store = EtcdStore::open_as(target, as_user("ann", "hunter2")).await.unwrap();
    use_all(&store, "/a/1").await;
    etcd.restart().await.unwrap();
    // The tokens of the first process are gone with it.
    use_all(&store, "/a/2").await;

    // A cluster is made and removed by who has no right to the root itself.
    let identity = admin::init(&store, &Rng::seeded(1), None).await.unwrap();
    assert_eq!(Cluster::init_or_open(&store, &Rng::seeded(2)).await.unwrap(), identity.instance);
    let found = admin::state(&store).await.unwrap();
    let options = admin::FormatOptions { run: Rng::seeded(3).uuid(), now_ms: 1, force: false };
    admin::format(&store, &found, options, &|_| {}).await.unwrap();
    assert_eq!(admin::state(&store).await.unwrap(), admin::State::Empty);
}

#[tokio::test]
async fn tls_trusts_whom_it_is_told_to() {
    if Etcd::is_missing_for("etcd-access") {
        return;
    }
    let etcd = Etcd::start_with(&["--auto-tls"]).await.unwrap();
    let pem = etcd.dir().join("data/fixtures/client/cert.pem");
    let give_up = tokio::time::Instant::now() + Duration::from_secs(30);
    while !pem.exists() && tokio::time::Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let target = Target::parse(&format!("etcds://{}{ROOT}", etcd.endpoint())).unwrap();
    let access = Access { ca: Some(std::fs::read(pem).unwrap()), ..Access::default() };
    let store = EtcdStore::open_as(target.clone(), access).await.unwrap();
    use_all(&store, "/a/1").await;

    let stranger = EtcdStore::open_as(target, Access::default()).await.err().unwrap();
    assert_eq!(stranger.kind(), ErrorKind::Unavailable, "{stranger}");
    let mut chain = String::new();
    let mut cause = std::error::Error::source(&stranger);
    while let Some(error) = cause {
        chain.push_str(&format!(": {error}"));
        cause = error.source();
    }
    assert!(chain.contains("certificate"), "the cause is told: {stranger}{chain}");
}

#[tokio::test]
async fn plain_and_tls_do_not_mix_silently() {
    if Etcd::is_missing_for("etcd-access") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    drop(Client::connect([etcd.endpoint()], Some(ConnectOptions::new())).await.unwrap());
    let target = Target::parse(&format!("etcds://{}", etcd.endpoint())).unwrap();
    let error = EtcdStore::open_as(target, Access::default()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&etcd.endpoint()), "{error}");
}
