//! A whole node whose wire has TLS, certificates of both sides and tokens.

use std::path::{Path, PathBuf};

use cli::Settings;
use cli::standalone::Node;
use guard::{ConnectConfig, ConnectTls, GuardConfig, GuardTls};
use proto::v1::Tier;
use rcgen::{CertificateParams, KeyPair};

use crate::support::{Calls, payloads, settings};

const TOKEN: &str = "0123456789abcdef";
/// `TOKEN` as a server knows it.
const TOKENS: &str = "node 9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f\n";

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A node that demands all there is, of itself too: one certificate serves both ends.
fn guarded(dir: &Path, files: &Path) -> Settings {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let (certificate, key) = (write(files, "node.pem", &certificate), write(files, "node.key", &key.serialize_pem()));
    Settings {
        guard: GuardConfig {
            tls: GuardTls::Required,
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: certificate.clone(),
            tokens: write(files, "tokens", TOKENS),
        },
        connect: ConnectConfig {
            tls: ConnectTls::Required,
            ca: certificate.clone(),
            certificate,
            key,
            token: write(files, "token", TOKEN),
        },
        ..settings(dir)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_goes_its_whole_road_under_tls_with_certificates_and_tokens() {
    let (dir, files) = (tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir().unwrap());
    let settings = guarded(dir.path(), files.path());
    let node = Node::start(settings.clone()).await.unwrap();
    let mut calls = Calls::connect(&node.endpoint()).await;
    let payloads = payloads(1, 3000);
    let ledger = calls.written(&payloads).await;
    calls.assert_holds(ledger, &payloads, Tier::Hot).await;
    // A release is proved over the wire, through each of the ledger's cold ids.
    let released = calls.offload(ledger, true).await.unwrap();
    assert!(released.released && released.uploaded);
    calls.assert_holds(ledger, &payloads, Tier::Cold).await;
    node.stop().await.unwrap();

    // Nobody would be let in without a token, the node's own client included: that is told at the start.
    let silent =
        Settings { connect: ConnectConfig { token: PathBuf::new(), ..settings.connect.clone() }, ..settings.clone() };
    let fault = Node::start(silent).await.err().unwrap();
    assert!(fault.to_string().contains("connect.token"), "{fault}");
    let missing = GuardConfig { key: PathBuf::from("/nowhere/at.all"), ..settings.guard.clone() };
    let fault = Node::start(Settings { guard: missing, ..settings }).await.err().unwrap();
    assert!(fault.to_string().contains("private key /nowhere/at.all"), "{fault}");
}
