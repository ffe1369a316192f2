//! Programs that are not ours: an independent Parquet reader, and a plain BookKeeper v2 socket.

use std::path::{Path, PathBuf};
use std::process::Command;

use ::faults::skipped;
use sha2::{Digest, Sha256};

use crate::support::{TestNode, objects, payloads};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn pyarrow_reads_the_same_payloads() {
    let python = repository().join(".venv/bin/python");
    if !python.exists() || !repository().join(".venv/ready").exists() {
        return skipped("parquet-python", "the Python environment of scripts/setup --tests is not there");
    }
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(40, 2500);
    let ledger = calls.written(&payloads).await;
    calls.offload(ledger, true).await.unwrap();
    let object = objects(&test.cold_dir()).pop().unwrap();
    let answer =
        Command::new(python).arg(repository().join("tests/python/check_object.py")).arg(&object).output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let facts: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let mut sha = Sha256::new();
    for payload in &payloads {
        sha.update(payload);
        sha.update(b"\n");
    }
    let expected: String = sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(facts["rows"], payloads.len());
    assert_eq!(facts["entry_ids_contiguous"], true);
    assert_eq!(facts["payload_sha256"], expected.as_str());
    test.node.stop().await.unwrap();
}
