//! Files that change, and files that cannot be used.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::net::Connector;

use super::support::{ADDRESS, Authority, HOST, Raw, TOKEN, World, line, replace};
use crate::files::LOOK_INTERVAL;
use crate::{ConnectConfig, ConnectMetrics, Guard, GuardConfig, GuardTls, Introduced};

const NEW_TOKEN: &str = "a newer token of the first writer";

async fn connector(world: &World, config: &ConnectConfig) -> Arc<dyn Connector> {
    Introduced::over(Arc::new(world.network.clone()), config, &world.clock, &ConnectMetrics::default()).await.unwrap()
}

async fn look_again() {
    tokio::time::sleep(LOOK_INTERVAL + Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn tokens_change_without_a_restart() {
    let world = World::new();
    let guard = world.guard(GuardTls::Required, true);
    let mut served = world.serve(&guard).await;
    let (old, new) = (world.connect(true, Some(TOKEN)), {
        let mut new = world.connect(true, None);
        new.token = world.file("new-token", NEW_TOKEN);
        new
    });
    let (old, new) = (connector(&world, &old).await, connector(&world, &new).await);
    let mut open = Raw::new(old.connect(ADDRESS).await.unwrap());
    assert!(new.connect(ADDRESS).await.is_err());

    replace(&guard.tokens, &(line("writer-1", TOKEN) + &line("writer-1", NEW_TOKEN)));
    look_again().await;
    assert!(old.connect(ADDRESS).await.is_ok() && new.connect(ADDRESS).await.is_ok());

    replace(&guard.tokens, &line("writer-1", NEW_TOKEN));
    look_again().await;
    assert!(old.connect(ADDRESS).await.is_err() && new.connect(ADDRESS).await.is_ok());
    open.is_served(b"connections that are open stay").await;

    // What cannot be used changes nothing.
    for broken in ["", "writer-1 half a line"] {
        replace(&guard.tokens, broken);
        look_again().await;
        assert!(new.connect(ADDRESS).await.is_ok());
    }
    std::fs::remove_file(&guard.tokens).unwrap();
    look_again().await;
    assert!(new.connect(ADDRESS).await.is_ok());
    replace(&guard.tokens, &line("writer-1", TOKEN));
    look_again().await;
    assert!(old.connect(ADDRESS).await.is_ok() && new.connect(ADDRESS).await.is_err());
    assert!(!served.peer().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn certificates_change_without_a_restart_at_either_end() {
    let world = World::new();
    let guard = world.guard(GuardTls::Required, false);
    let _served = world.serve(&guard).await;
    let config = world.connect(true, None);
    let client = connector(&world, &config).await;
    assert!(client.connect(ADDRESS).await.is_ok());

    let new = Authority::new("new authority");
    let (certificate, key) = new.issue(&[HOST]);
    // Two files do not change at one moment: between them, the old pair counts.
    replace(&guard.certificate, &certificate);
    look_again().await;
    assert!(client.connect(ADDRESS).await.is_ok());
    replace(&guard.key, &key);
    look_again().await;
    assert!(client.connect(ADDRESS).await.is_err(), "of an authority that is not known yet");
    replace(&config.ca, &(world.authority.pem() + &new.pem()));
    look_again().await;
    assert!(client.connect(ADDRESS).await.is_ok());
}

/// 2032-12-31 00:00 UTC.
const END_OF_2032: u64 = 1_988_064_000;
/// 2031-12-31 00:00 UTC.
const END_OF_2031: u64 = 1_956_441_600;

#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_not_valid_now_replaces_none_at_either_end() {
    let world = World::new();
    let mut config = world.guard(GuardTls::Required, false);
    let clients = Authority::new("clients");
    config.client_ca = world.file("clients.pem", &clients.pem());
    let guard = Guard::open(&config, &world.clock).await.unwrap().unwrap();
    let mut client = world.connect(true, None);
    (client.certificate, client.key) = world.issued(&clients, "client", &["writer-1"]);
    let metrics = ConnectMetrics::default();
    let connector = Introduced::over(Arc::new(world.network.clone()), &client, &world.clock, &metrics).await.unwrap();
    let _served = world.serve_behind(&guard);
    assert!(connector.connect(ADDRESS).await.is_ok());
    let seen = || (guard.counts().files.counts(), metrics.0.counts());
    assert_eq!(seen(), ((0, 0, END_OF_2031), (0, 0, END_OF_2031)));

    for (round, years) in [2027..=2028, 2031..=2032].into_iter().enumerate() {
        for (by, certificate, key, name) in [
            (&world.authority, &config.certificate, &config.key, HOST),
            (&clients, &client.certificate, &client.key, "writer-1"),
        ] {
            let (new_certificate, new_key) = by.issue_for(&[name], years.clone());
            replace(certificate, &new_certificate);
            replace(key, &new_key);
        }
        look_again().await;
        assert!(connector.connect(ADDRESS).await.is_ok(), "round {round}");
        let failed = round as u64 + 1;
        assert_eq!(seen(), ((0, failed, END_OF_2031), (0, failed, END_OF_2031)));
    }

    let (certificate, key) = world.authority.issue_for(&[HOST], 2029..=2032);
    replace(&config.certificate, &certificate);
    replace(&config.key, &key);
    look_again().await;
    assert!(connector.connect(ADDRESS).await.is_ok());
    assert_eq!(seen().0, (1, 2, END_OF_2032));
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_ends_no_start() {
    let world = World::new();
    let config = world.guard(GuardTls::Offered, false);
    let (certificate, key) = world.authority.issue_for(&[HOST], 2027..=2028);
    replace(&config.certificate, &certificate);
    replace(&config.key, &key);
    let guard = Guard::open(&config, &world.clock).await.unwrap().unwrap();
    let _served = world.serve_behind(&guard);
    // In clear it serves; who verifies refuses it.
    let mut clear = Raw::new(connector(&world, &ConnectConfig::default()).await.connect(ADDRESS).await.unwrap());
    clear.is_served(b"in clear as before").await;
    let verifying = connector(&world, &world.connect(true, None)).await;
    assert!(verifying.connect(ADDRESS).await.err().unwrap().to_string().contains("TLS was not set up"));
}

async fn told(world: &World, config: GuardConfig) -> String {
    Guard::open(&config, &world.clock).await.err().unwrap().to_string()
}

#[tokio::test]
async fn files_that_cannot_be_used_end_the_start_and_are_named() {
    let world = World::new();
    let good = world.guard(GuardTls::Required, true);
    let missing = || PathBuf::from("/nowhere/at.all");
    let (_, foreign) = world.issued(&world.authority, "foreign", &[HOST]);
    let empty = world.file("empty", "\n");
    let secret = world.file("secret", "-----BEGIN hunter2hunter2-----\n");
    for (config, named) in [
        (GuardConfig { certificate: missing(), ..good.clone() }, "certificate /nowhere/at.all: No such file"),
        (GuardConfig { key: missing(), ..good.clone() }, "private key /nowhere/at.all: No such file"),
        (GuardConfig { client_ca: missing(), ..good.clone() }, "authorities of clients' certificates /nowhere/at.all"),
        (GuardConfig { tokens: missing(), ..good.clone() }, "tokens /nowhere/at.all: No such file"),
        (GuardConfig { certificate: empty.clone(), ..good.clone() }, "BEGIN CERTIFICATE"),
        (GuardConfig { key: empty.clone(), ..good.clone() }, "BEGIN PRIVATE KEY"),
        (GuardConfig { key: secret, ..good.clone() }, "BEGIN PRIVATE KEY"),
        (GuardConfig { key: foreign, ..good.clone() }, "set up TLS with"),
        (GuardConfig { tokens: empty.clone(), ..good.clone() }, "has no token"),
        (GuardConfig { client_ca: empty.clone(), ..good.clone() }, "BEGIN CERTIFICATE"),
        (GuardConfig { key: PathBuf::new(), ..good.clone() }, "guard.key"),
    ] {
        let told = told(&world, config).await;
        assert!(told.contains(named) && !told.contains("hunter2"), "{told}");
    }
    let client = world.connect(true, Some(TOKEN));
    for (config, named) in [
        (ConnectConfig { ca: missing(), ..client.clone() }, "authorities of servers' certificates /nowhere/at.all"),
        (ConnectConfig { token: missing(), ..client.clone() }, "token /nowhere/at.all"),
        (ConnectConfig { token: empty, ..client.clone() }, "a token has 16 to 4096"),
        (ConnectConfig { key: missing(), ..client }, "connect.key"),
    ] {
        let told = Introduced::over(Arc::new(world.network.clone()), &config, &world.clock, &ConnectMetrics::default())
            .await
            .err()
            .unwrap();
        assert!(told.to_string().contains(named), "{told}");
    }
}
