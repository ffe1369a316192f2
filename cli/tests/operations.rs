//! What operators do with processes: scrape each role, ask for its health, and measure a machine.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cli::cluster::Process;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PROGRAM: &str = env!("CARGO_BIN_EXE_thermocline");
const DEADLINE: Duration = Duration::from_secs(60);

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

async fn get(address: &str, path: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    tokio::time::timeout(DEADLINE, exchange).await.expect("an answer in time")
}

/// The names that docs/metrics.md has, as they stand in `# TYPE` lines of a scrape.
fn documented() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next().map(str::to_owned)).collect()
}

#[tokio::test]
async fn every_role_shows_its_own_part_and_is_ready_until_it_is_killed() {
    let home = folder();
    let cold = format!("file://{}", home.path().join("cold").display());
    let dir = home.path().join("data").display().to_string();
    let documented = documented();
    let roles: [(&str, &[&str], &[&str]); 3] = [
        ("bookie", &["--dir", &dir, "--id", "b-1"], &["bookie", "metadata"]),
        ("gateway", &["--cold", &cold], &["gateway", "client", "cold", "metadata"]),
        ("offloader", &["--cold", &cold], &["offloader", "client", "cold", "metadata"]),
    ];
    for (role, own, parts) in roles {
        let mut arguments = vec![role, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--metadata", "memory:"];
        arguments.extend_from_slice(own);
        let log = home.path().join(format!("{role}.log"));
        let mut process = Process::spawn(Path::new(PROGRAM), &arguments, &log).await.unwrap();
        let admin = process.fact("admin").unwrap().to_owned();
        let ready = get(&admin, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 200") && ready.contains(&format!("\"role\":\"{role}\"")), "{ready}");
        let healthy = get(&admin, "/healthz").await;
        assert!(healthy.starts_with("HTTP/1.1 200"), "{healthy}");
        let metrics = get(&admin, "/metrics").await;
        let names: Vec<&str> =
            metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        for name in &names {
            assert!(documented.iter().any(|known| known == name), "{role} shows {name}, which docs/metrics.md lacks");
        }
        for part in parts.iter().chain(&["budget", "process"]) {
            let start = format!("thermocline_{part}_");
            assert!(names.iter().any(|name| name.starts_with(&start)), "{role} shows nothing of {part}");
        }
        // Start-up itself is counted: the cluster was made.
        let made = "thermocline_metadata_operations_total{operation=\"get-quorum\",outcome=\"failed\"} 0";
        assert!(metrics.lines().any(|line| line == made), "{metrics}");
        assert!(process.terminate(DEADLINE).await.unwrap().success(), "{}", process.log_tail());
        assert!(TcpStream::connect(&admin).await.is_err(), "nothing listens after the end");
    }
}

#[tokio::test]
async fn a_running_bookie_is_made_read_only_and_writable_by_hand() {
    let home = folder();
    let dir = home.path().join("data").display().to_string();
    let run = |arguments: &[&str]| {
        let answer = Command::new(PROGRAM).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
        (answer.status.code(), said)
    };
    let (code, said) = run(&["bookie", "read-only", "--dir", &dir]);
    assert!(code == Some(2) && said.contains("no bookie's directory"), "{said}");
    let metadata = format!("embedded:{}", home.path().join("metadata").display());
    let arguments = ["bookie", "--listen", "127.0.0.1:0", "--metadata", &metadata, "--dir", &dir, "--id", "b-1"];
    let mut bookie = Process::spawn(Path::new(PROGRAM), &arguments, &home.path().join("bookie.log")).await.unwrap();
    let admin = bookie.fact("admin").unwrap().to_owned();
    let reaches = async |word: &str| {
        let reached = async {
            loop {
                let answer = get(&admin, "/readyz").await;
                if answer.contains(word) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, reached).await.expect(word)
    };
    let (code, said) = run(&["bookie", "read-only", "--dir", &dir, "--reason", "a new disk"]);
    assert!(code == Some(0) && said.contains("bookie b-1 takes no entries"), "{said}");
    let answer = reaches("\"read-only\"").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("a new disk"), "{answer}");
    bookie.kill9().await.unwrap();
    bookie.restart().await.unwrap();
    let admin = bookie.fact("admin").unwrap().to_owned();
    assert!(get(&admin, "/readyz").await.contains("a new disk"), "from the start");
    let (code, said) = run(&["bookie", "writable", "--dir", &dir, "--output", "json"]);
    assert!(code == Some(0) && said.contains("\"was_read_only\":true"), "{said}");
    let ready = async {
        while !get(&admin, "/readyz").await.contains("\"ready\"") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, ready).await.expect("it takes entries again");
    bookie.kill9().await.unwrap();
}

#[test]
fn the_doctor_says_what_the_machine_can_do_and_leaves_nothing() {
    let home = folder();
    let cold = home.path().join("cold");
    let answer = Command::new(PROGRAM)
        .args(["doctor", "--seconds", "2", "--output", "json", "--metadata", "memory:", "--set", "memory_max=472MiB"])
        .args(["--set", "bookie.disk_free_bytes_min=1MiB", "--set", "bookie.segment_bytes=1MiB"])
        .args(["--dir", home.path().join("not-there").to_str().unwrap()])
        .args(["--cold", &format!("file://{}", cold.display())])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&answer.stderr);
    let report: serde_json::Value =
        serde_json::from_slice(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let blocking = |finding: &&serde_json::Value| finding["severity"] == "blocks";
    let blocks: Vec<_> = report["findings"].as_array().unwrap().iter().filter(blocking).collect();
    // Whatever this machine is like, the exit code says whether a role could run on it.
    assert_eq!(answer.status.code(), Some(i32::from(!blocks.is_empty())), "{blocks:?} {said}");
    assert!(report["disk"]["sync_4k"]["samples"].as_u64().unwrap() > 0, "{report}");
    assert!(report["ingest"]["bookie_bytes_per_second"].as_u64().unwrap() > 0, "{report}");
    assert!(report["object_store"]["put_bytes_per_second"].as_u64().unwrap() > 0, "{report}");
    assert!(report["metadata"]["commit"]["p99_us"].is_u64(), "{report}");
    assert_ne!(report["profile"]["name"], "ephemeral", "{report}");
    assert!(!report["profile"]["why"].as_str().unwrap().is_empty(), "{report}");
    assert!(report["disk"]["written_bytes"].as_u64().unwrap() <= 850 << 20, "{report}");
    for row in report["measurements"].as_array().unwrap() {
        assert!(!row["how"].as_str().unwrap().is_empty() && !row["value"].as_str().unwrap().is_empty(), "{row}");
    }
    let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["cold"], "neither the scratch folder nor the node's");
    let probes = cold.join(".thermocline-check");
    assert!(!probes.exists() || std::fs::read_dir(probes).unwrap().count() == 0);
}
