//! The objects through a reader that is not ours: pyarrow.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use faults::skipped;
use sha2::{Digest as _, Sha256};

use crate::acks::AckLog;
use crate::counts;

/// Reads the objects named by `objects`, below the folder `cold`, and compares their payloads with what was written.
pub fn check(cold: &Path, objects: &BTreeMap<u64, String>, log: &AckLog) {
    assert!(!objects.is_empty(), "no ledger was settled: there is no object for pyarrow to read");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let python = repository.join(".venv/bin/python");
    if !python.exists() || !repository.join(".venv/ready").exists() {
        return skipped("crash-python", "the Python environment of scripts/setup --tests is not there");
    }
    let script = repository.join("tests/python/check_object.py");
    let answer = Command::new(python).arg(script).args(objects.values().map(|key| cold.join(key))).output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let lines = String::from_utf8(answer.stdout).unwrap();
    let facts: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(facts.len(), objects.len());
    for ((ledger, key), facts) in objects.iter().zip(&facts) {
        let (last, _) = log.ledgers()[ledger].closed.expect("a settled ledger was seen closed");
        let entries = last.map_or(0, |last| last + 1);
        let mut sha = Sha256::new();
        for entry in 0..entries {
            sha.update(log.payload(*ledger, entry));
            sha.update(b"\n");
        }
        let expected: String = sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(facts["rows"], entries, "{key}");
        assert_eq!(facts["entry_ids_contiguous"], true, "{key}");
        assert_eq!(facts["payload_sha256"], expected.as_str(), "{key}");
        counts::add("entries read back, pyarrow", entries);
    }
}
