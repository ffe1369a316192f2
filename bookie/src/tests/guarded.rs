//! A bookie behind a guard.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::net::{Connector as _, Offer};
use common::shutdown::TaskTree;
use guard::{ConnectConfig, ConnectMetrics, ConnectTls, Guard, GuardConfig, GuardTls, Introduced, TOKEN_PLUGIN};
use metadata::Bookies;
use proto::{ReadTarget, Status};
use rcgen::{CertificateParams, KeyPair};

use super::support::*;
use crate::Bookie;

const TOKEN: &str = "0123456789abcdef";
/// `TOKEN` as a server knows it.
const TOKENS: &str = "writer-1 9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f\n";

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// What fits together: a server that demands TLS and a token, and a client that has both.
fn configs(dir: &Path) -> (GuardConfig, ConnectConfig) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["bk1".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let server = GuardConfig {
        tls: GuardTls::Required,
        certificate: write(dir, "server.pem", &certificate),
        key: write(dir, "server.key", &key.serialize_pem()),
        tokens: write(dir, "tokens", TOKENS),
        ..GuardConfig::default()
    };
    let client = ConnectConfig {
        tls: ConnectTls::Required,
        ca: server.certificate.clone(),
        token: write(dir, "token", TOKEN),
        ..ConnectConfig::default()
    };
    (server, client)
}

#[tokio::test]
async fn what_is_written_under_tls_with_a_token_is_read_back_and_strangers_write_nothing() {
    let (world, files) = (World::new(), tempfile::tempdir().unwrap());
    let (server, client) = configs(files.path());
    let guard = Guard::open(&server, &world.clock).await.unwrap().unwrap();
    let tasks = TaskTree::root("test");
    let mut parts = world.parts(&tasks);
    parts.listener = guard.listen(parts.listener, &tasks);
    let bookie = Bookie::start_with_index(world.config.clone(), parts, Arc::new(world.index.clone())).await.unwrap();
    let offer = Offer { tls: true, auth: Some(TOKEN_PLUGIN.to_owned()) };
    let (info, _) = Bookies::new(world.metadata.clone()).get(&world.id).await.unwrap().unwrap();
    assert_eq!((info.address.as_str(), info.offer), ("bk1:3181", offer));

    let mut stranger = Wire::new(world.network.connect("bk1:3181").await.unwrap());
    assert_eq!(stranger.add(1, 0, b"stranger").await, Status::Unauthorized);

    let connector =
        Introduced::over(Arc::new(world.network.clone()), &client, &world.clock, &ConnectMetrics::default())
            .await
            .unwrap();
    let mut wire = Wire::new(connector.connect("bk1:3181").await.unwrap());
    let payload = vec![7; 100_000];
    for number in 0..24 {
        assert_eq!(wire.add(1, number, &payload).await, Status::Ok);
    }
    // Several megabytes of answers wait for their turn in the TLS session.
    for number in 0..24 {
        wire.put_read(1, ReadTarget::Entry(entry(number)), None);
    }
    wire.send().await;
    for number in 0..24 {
        let read = wire.reply().await;
        assert_eq!((read.status, read.entry), (Status::Ok, number as i64));
        assert_eq!(read.body, body(1, number, &payload));
    }
    bookie.stop(PATIENCE).await.unwrap();
    tasks.stop(Duration::from_secs(5)).await.unwrap();
    assert_eq!(tasks.failure(), None);
}
