//! `thermocline bench` as a user runs it, with the least work: its form, not its figures.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Command, Output, Stdio};

use bench::{RATIO_MAX, Row};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("THERMOCLINE_")) {
        command.env_remove(name);
    }
    command.env("THERMOCLINE_COMMIT", "abc123").args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Runs a bench at the smallest scale and checks all that must hold on any machine; its rows' ids in order.
fn smoke(name: &str) -> Vec<String> {
    let dir = folder();
    let (json, data) = (dir.path().join("rows.json"), dir.path().join("data"));
    std::fs::create_dir(&data).unwrap();
    let json_text = json.to_str().unwrap();
    let output = run(&["bench", name, "--smoke", "--dir", data.to_str().unwrap(), "--json", json_text]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(json.exists(), "{name} wrote no rows: {err}");
    let rows: Vec<Row> = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for row in &rows {
        assert!(row.value > 0.0 && row.limit > 0.0 && row.ratio > 0.0, "{row:?}");
        assert!(!row.unit.is_empty() && !row.limit_is.is_empty() && !row.machine.is_empty(), "{row:?}");
        assert_eq!(row.met.is_some(), !row.target.is_empty(), "{row:?}");
        assert_eq!((row.commit.as_str(), row.scale.as_str()), ("abc123", "smoke"));
        assert_eq!(row.build, if cfg!(debug_assertions) { "dev" } else { "release" });
        assert!(out.contains(&row.what), "the table has every row: {out}");
    }
    // Beside other tests a raw run may be disturbed more than the product's; then the bench must say that it is wrong.
    let wrong = rows.iter().filter(|row| row.ratio > RATIO_MAX).count();
    assert_eq!(err.matches("the bench is wrong").count(), wrong, "{err}");
    assert_eq!(output.status.code(), Some(i32::from(wrong > 0)), "{err}");
    assert_eq!(err.contains("development build"), cfg!(debug_assertions), "{err}");
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "nothing is left");

    let report = run(&["bench", "report", json_text]);
    let report = String::from_utf8_lossy(&report.stdout);
    assert!(rows.iter().all(|row| report.contains(&row.what)), "{report}");
    rows.into_iter().map(|row| row.id).collect()
}

#[test]
fn append_gives_throughput_and_latency() {
    assert_eq!(smoke("append"), ["P2", "P1", "P1", "P1"]);
}

#[test]
fn catchup_gives_five_ways_to_read() {
    assert_eq!(smoke("catchup"), ["P4"; 5]);
}

#[test]
fn bookie_gives_all_figures_of_a_storage_node() {
    let rows = ["P2", "P1", "P1", "P1", "P2", "P4", "P4", "P4", "P7", "P11"];
    assert_eq!(smoke("bookie"), rows);
}

#[test]
fn cold_read_gives_one_reader() {
    assert_eq!(smoke("cold-read"), ["P5"]);
}

#[test]
fn offload_gives_writing_and_read_back() {
    assert_eq!(smoke("offload"), ["P8", "P8"]);
}

#[test]
fn a_directory_that_cannot_be_made_is_told() {
    let output = run(&["bench", "append", "--dir", "/dev/null/x"]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("/dev/null/x") && err.contains("--dir"), "{err}");
}

#[test]
fn a_report_of_something_else_is_refused() {
    let dir = folder();
    let file = dir.path().join("rows.json");
    std::fs::write(&file, "{}").unwrap();
    let output = run(&["bench", "report", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no rows of a bench"), "{output:?}");
}
