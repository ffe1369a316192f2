//! The program as a user runs it: a process with arguments, outputs and an exit code.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

fn thermocline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    // The developer's own settings must not leak into the tests.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("THERMOCLINE_")) {
        command.env_remove(name);
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    thermocline().args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Logs with every oddity a log can have, a little over what the demo needs.
fn odd_logs(dir: &Path) {
    let mut plain = Vec::new();
    for line in 0..14_000u32 {
        writeln!(
            plain,
            "2026-11-30T12:00:00.{line:06}Z INFO worker-{} handled request {line} in {} us",
            line % 7,
            line * 37 % 9973
        )
        .unwrap();
    }
    fs::write(dir.join("plain.log"), &plain).unwrap();
    let mut odd = Vec::new();
    odd.extend_from_slice(b"crlf line\r\n\n\n\nlone\rreturn\n\xff\xfe\x00 invalid utf-8 \xc3\x28\n");
    odd.extend_from_slice(&vec![b'm'; 1024 * 1024]);
    odd.extend_from_slice(b"\n\r\n");
    odd.extend_from_slice(b"the last line has no feed");
    fs::write(dir.join("odd.log"), &odd).unwrap();
    // Incompressible bytes, so that stored pages are met as well.
    let noise: Vec<u8> = (0..600_000u64).map(|place| (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
    fs::create_dir(dir.join("deeper")).unwrap();
    fs::write(dir.join("deeper/noise.bin"), noise).unwrap();
    fs::write(dir.join("empty.log"), b"").unwrap();
}

#[test]
fn the_demo_proves_itself_on_odd_logs() {
    let logs = folder();
    odd_logs(logs.path());
    let home = folder();
    let dir = home.path().join("node");
    let answer = run(&[
        "demo",
        "--input",
        logs.path().to_str().unwrap(),
        "--dir",
        dir.to_str().unwrap(),
        "--prove-cold",
        "--output",
        "json",
    ]);
    assert!(answer.status.success(), "{}\n{}", text(&answer.stdout), text(&answer.stderr));
    let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let number = |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("{key} in {report}"));
    let written: u64 = ["plain.log", "odd.log", "deeper/noise.bin"]
        .iter()
        .map(|name| fs::metadata(logs.path().join(name)).unwrap().len())
        .sum();
    assert_eq!(number("bytes_in"), written);
    assert_eq!(report["sha_equal"], true);
    assert!(number("objects") >= 4);
    assert!(number("entries_hot") > 0 && number("entries_cold") > 0);
    assert_eq!(number("entries_hot") + number("entries_cold"), number("entries"));
    assert!(number("bytes_bookies_before") >= 3 * written);
    assert!(number("bytes_bookies_after") <= number("bytes_bookies_allowed"));
    assert!(number("bytes_objects") > 0 && number("peak_rss_bytes") < 1 << 30);
    assert!(report["rates"]["write"]["entries_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(report["prove_cold"]["sha_equal"], true);
    assert!(!dir.join("bookie-1").exists(), "the proof had no bookie left");
    assert!(text(&answer.stderr).contains("skipped (empty)"), "{}", text(&answer.stderr));
}

#[test]
fn wrong_requests_get_one_sentence_and_exit_code_2() {
    let home = folder();
    fs::write(home.path().join("file"), b"x").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap().to_string();
    let node = home.path().join("node");
    let (home, node) = (home.path().to_str().unwrap(), node.to_str().unwrap());
    let file = format!("{home}/file");
    let cases: &[(&[&str], &str)] = &[
        (&["demo", "--input", "/no/such/place"], "/no/such/place: no such file"),
        (&["demo", "--input", &file], "needs at least"),
        (&["demo", "--cold", "s3://bucket/x"], "--input"),
        (&["standalone", "--dir", node, "--listen", "127.0.0.1:0", "--cold", "ftp://x/y"], "s3://"),
        (&["demo", "--dir", home], "is not empty"),
        (&["standalone", "--dir", node, "--listen", &busy], "in use"),
        (&["standalone", "--dir", node, "--listen", "nonsense"], "nonsense"),
        (&["standalone", "--dir", &file, "--listen", "127.0.0.1:0"], &file),
        (&["standalone", "--dir", node, "--set", "offloader.hot_retentoin=1h"], "hot_retention"),
        (&["standalone", "--dir", node, "--set", "memory_max=lots"], "memory_max"),
        (&["standalone", "--dir", node, "--set", "novalue"], "key=value"),
        (&["standalone", "--dir", node, "--config", "/no/such.toml"], "/no/such.toml"),
        (&["ledger", "write", "7up"], "the word new"),
    ];
    for (arguments, word) in cases {
        let answer = run(arguments);
        let said = text(&answer.stderr);
        assert_eq!(answer.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?} does not say {word:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    }
}

#[test]
fn without_a_node_the_sentence_says_how_to_start_one() {
    let answer = run(&["ledger", "ls", "--endpoint", "http://127.0.0.1:1"]);
    assert_eq!(answer.status.code(), Some(1));
    assert!(text(&answer.stderr).contains("thermocline standalone"), "{}", text(&answer.stderr));
}

#[test]
fn version_completions_and_configuration_print() {
    assert!(text(&run(&["version"]).stdout).starts_with("thermocline "));
    assert!(text(&run(&["completions", "bash"]).stdout).contains("_thermocline"));
    let shown = thermocline()
        .args(["config", "show", "--output", "json", "--set", "offloader.hot_retention=1h"])
        .env("THERMOCLINE_MEMORY_MAX", "256MiB")
        .output()
        .unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&shown.stdout).unwrap();
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key} in {rows:?}"));
    assert!(row("memory_max")["origin"].as_str().unwrap().contains("THERMOCLINE_MEMORY_MAX"));
    assert!(row("offloader.hot_retention")["origin"].as_str().unwrap().contains("command line"));
    assert!(row("listen")["origin"].as_str().unwrap().contains("default"));
}

/// A standalone node as a process; killed when dropped.
struct Standalone {
    child: Child,
    endpoint: String,
}

impl Standalone {
    fn start(dir: &Path) -> Self {
        let mut child = thermocline()
            .args(["standalone", "--listen", "127.0.0.1:0", "--dir", dir.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The node prints its endpoint once it serves.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let endpoint = lines
            .find_map(|line| {
                line.unwrap().split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
            })
            .expect("the node says where it serves");
        // Keep reading, so that the node never blocks on a full pipe.
        std::thread::Builder::new().spawn(move || lines.for_each(drop)).unwrap();
        Self { child, endpoint }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let answer =
            thermocline().args(arguments).args(["--endpoint", &self.endpoint]).stdin(Stdio::null()).output().unwrap();
        assert!(answer.status.success(), "{arguments:?}: {}", text(&answer.stderr));
        answer
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn acknowledged_entries_survive_kill_9_and_the_commands_show_them() {
    let home = folder();
    let dir = home.path().join("node");
    let input: Vec<u8> = (0..5000).flat_map(|line| format!("line {line}\r\n").into_bytes()).collect();
    let file = home.path().join("input.log");
    fs::write(&file, &input).unwrap();
    let file = file.to_str().unwrap();

    let node = Standalone::start(&dir);
    let written = node.run(&["ledger", "write", "new", file, "--keep-open", "--output", "json"]);
    let written: serde_json::Value = serde_json::from_slice(&written.stdout).unwrap();
    assert_eq!(written["entries"], 5000);
    let open = written["ledger_id"].to_string();
    let closed = node.run(&["ledger", "write", "new", file, "--output", "json"]);
    let closed = serde_json::from_slice::<serde_json::Value>(&closed.stdout).unwrap()["ledger_id"].to_string();
    drop(node); // SIGKILL

    let node = Standalone::start(&dir);
    assert_eq!(text(&node.run(&["ledger", "read", &closed]).stdout).as_bytes(), input);
    // The open ledger's writer died with the node; its acknowledged entries did not.
    node.run(&["ledger", "close", &open]);
    assert_eq!(node.run(&["ledger", "read", &open]).stdout, input);
    let settled = node.run(&["offload", "now", &closed, "--release", "--output", "json"]);
    assert!(text(&settled.stdout).contains("\"released\""), "{}", text(&settled.stdout));
    assert_eq!(node.run(&["ledger", "read", &closed]).stdout, input);
    assert!(text(&node.run(&["ledger", "ls"]).stdout).contains("released"));
    assert!(text(&node.run(&["ledger", "show", &closed]).stdout).contains(".parquet"));
    assert!(text(&node.run(&["status"]).stdout).contains("bookie-1"));
    assert!(text(&node.run(&["offload", "status"]).stdout).contains("released"));
    node.run(&["ledger", "rm", &closed]);
}

#[test]
fn length_prefixed_records_come_back_as_they_went_in() {
    let home = folder();
    let node = Standalone::start(&home.path().join("node"));
    let mut records = Vec::new();
    for record in [&b"a\nb"[..], b"", b"\0\xff", &[7; 300_000]] {
        records.extend_from_slice(&(record.len() as u32).to_be_bytes());
        records.extend_from_slice(record);
    }
    let file = home.path().join("records");
    fs::write(&file, &records).unwrap();
    let written =
        node.run(&["ledger", "write", "new", file.to_str().unwrap(), "--framing", "length", "--output", "json"]);
    let ledger = serde_json::from_slice::<serde_json::Value>(&written.stdout).unwrap()["ledger_id"].to_string();
    assert_eq!(node.run(&["ledger", "read", &ledger, "--framing", "length"]).stdout, records);
}

#[test]
fn a_pipe_that_closes_early_is_no_fault() {
    let home = folder();
    let node = Standalone::start(&home.path().join("node"));
    let file = home.path().join("input.log");
    fs::write(&file, "x".repeat(80).repeat(10) + "\n").unwrap();
    let big: String = (0..40_000).map(|line| format!("{line} some text to fill the pipe with\n")).collect();
    fs::write(&file, big).unwrap();
    let written = node.run(&["ledger", "write", "new", file.to_str().unwrap(), "--output", "json"]);
    let ledger = serde_json::from_slice::<serde_json::Value>(&written.stdout).unwrap()["ledger_id"].to_string();
    let mut reader = thermocline()
        .args(["ledger", "read", &ledger, "--endpoint", &node.endpoint])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    reader.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let answer = reader.wait_with_output().unwrap();
    assert!(answer.status.success(), "{}", text(&answer.stderr));
    assert!(answer.stderr.is_empty(), "{}", text(&answer.stderr));
}
