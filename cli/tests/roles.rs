//! The roles as processes, each by itself; `cluster.rs` runs them together.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cli::cluster::Process;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_thermocline");
const STOP_DEADLINE: Duration = Duration::from_secs(25);

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("THERMOCLINE_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn spawn(home: &Path, role: &str, own: &[&str]) -> Process {
    let mut arguments = vec![role, "--listen", "127.0.0.1:0"];
    arguments.extend_from_slice(own);
    Process::spawn(Path::new(PROGRAM), &arguments, &home.join(format!("{role}.log"))).await.unwrap()
}

fn embedded(home: &Path) -> String {
    format!("embedded:{}", home.join("metadata").display())
}

#[tokio::test]
async fn a_bookie_keeps_its_id_and_stops_in_order() {
    let home = folder();
    let (metadata, dir) = (embedded(home.path()), home.path().join("data").display().to_string());
    let mut bookie = spawn(
        home.path(),
        "bookie",
        &["--metadata", &metadata, "--dir", &dir, "--id", "b-7", "--advertise", "db7.example:3181"],
    )
    .await;
    assert_eq!((bookie.fact("role"), bookie.fact("id")), (Some("bookie"), Some("b-7")));
    assert_eq!(bookie.fact("address"), Some("db7.example:3181"));
    assert!(bookie.fact("admin").is_some_and(|admin| admin.starts_with("127.0.0.1:")));
    // A second process that wants the same metadata.
    let other = run(&["bookie", "--listen", "127.0.0.1:0", "--metadata", &metadata, "--dir", &format!("{dir}-2")]);
    assert_eq!(other.status.code(), Some(2));
    let said = text(&other.stderr);
    assert!(said.contains("another process") && said.contains("etcd://"), "{said}");
    assert!(bookie.terminate(STOP_DEADLINE).await.unwrap().success(), "{}", bookie.log_tail());

    // Without an id the directory's counts, also after a crash.
    let mut again = spawn(home.path(), "bookie", &["--metadata", &metadata, "--dir", &dir]).await;
    assert_eq!(again.fact("id"), Some("b-7"));
    again.kill9().await.unwrap();
    again.restart().await.unwrap();
    assert_eq!(again.fact("id"), Some("b-7"));
    again.kill9().await.unwrap();
    let other = run(&["bookie", "--listen", "127.0.0.1:0", "--metadata", &metadata, "--dir", &dir, "--id", "b-8"]);
    assert_ne!(other.status.code(), Some(0));
    assert!(text(&other.stderr).contains("b-7"), "{}", text(&other.stderr));
}

#[tokio::test]
async fn an_endpoint_says_what_it_is_not_good_for() {
    let home = folder();
    let cold = format!("file://{}", home.path().join("cold").display());
    let mut gateway =
        spawn(home.path(), "gateway", &["--metadata", "memory:", "--cold", &cold, "--admin", "off"]).await;
    assert_eq!(gateway.fact("admin"), None);
    let endpoint = gateway.endpoint().unwrap().to_owned();
    for command in [&["status"][..], &["offload", "now", "1"], &["offload", "status"]] {
        let answer = run(&[command, &["--endpoint", &endpoint]].concat());
        let said = text(&answer.stderr);
        assert_eq!(answer.status.code(), Some(2), "{said}");
        assert!(said.contains("is a gateway") && said.contains("offloader"), "{said}");
    }
    assert!(run(&["ledger", "ls", "--endpoint", &endpoint]).status.success());
    assert!(gateway.terminate(STOP_DEADLINE).await.unwrap().success(), "{}", gateway.log_tail());

    let mut offloader = spawn(home.path(), "offloader", &["--metadata", "memory:", "--cold", &cold]).await;
    let endpoint = offloader.endpoint().unwrap().to_owned();
    let answer = run(&["ledger", "ls", "--endpoint", &endpoint]);
    assert_eq!(answer.status.code(), Some(2));
    assert!(text(&answer.stderr).contains("is an offloader"), "{}", text(&answer.stderr));
    assert!(text(&run(&["status", "--endpoint", &endpoint]).stdout).contains("cluster "));
    assert!(offloader.terminate(STOP_DEADLINE).await.unwrap().success(), "{}", offloader.log_tail());
}

#[test]
fn wrong_requests_get_one_sentence_and_exit_code_2() {
    let home = folder();
    let dir = home.path().join("data").display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["bookie", "--metadata", "memory:", "--dir", &dir, "--listen", "0.0.0.0:0"], "--advertise HOST:PORT"),
        (
            &["bookie", "--metadata", "memory:", "--dir", &dir, "--listen", "127.0.0.1:0", "--advertise", "x"],
            "10.0.0.7:3181",
        ),
        (&["bookie", "--metadata", "memory:", "--dir", &dir, "--listen", "127.0.0.1:0", "--id", "a b"], "bookie id"),
        (&["bookie", "--metadata", "nonsense", "--dir", &dir, "--listen", "127.0.0.1:0"], "nonsense"),
        (&["gateway", "--metadata", "memory:", "--listen", "127.0.0.1:0"], "--cold"),
        (&["offloader", "--metadata", "memory:", "--listen", "127.0.0.1:0"], "--cold"),
        (&["gateway", "--cold", "file:///x", "--set", "memory_max=64MiB"], "memory_max is 64.0 MiB"),
        (&["offloader", "--cold", "file:///x", "--set", "offloader.ledgers_in_flight=0"], "ledgers_in_flight"),
        (&["config", "show", "--role", "bookie", "--set", "gateway.cache_bytes=1MiB"], "gateway"),
    ];
    for (arguments, word) in cases {
        let answer = run(arguments);
        let said = text(&answer.stderr);
        assert_eq!(answer.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?} does not say {word:?}: {said}");
        assert_eq!(said.lines().filter(|line| line.starts_with("thermocline: ")).count(), 1, "{said}");
    }
}

#[test]
fn the_configuration_of_each_role_is_shown() {
    for (role, key) in
        [("bookie", "bookie.segment_bytes"), ("gateway", "gateway.cache_bytes"), ("offloader", "offloader.owner_ttl")]
    {
        let file = format!("{}/../config/{role}.toml", env!("CARGO_MANIFEST_DIR"));
        let shown =
            run(&["config", "show", "--role", role, "--config", &file, "--output", "json", "--set", "listen=h:1"]);
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&shown.stdout).unwrap();
        let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key} in {rows:?}"));
        assert!(row(key)["origin"].as_str().unwrap().contains(&format!("{role}.toml")), "{:?}", row(key));
        assert!(row("listen")["origin"].as_str().unwrap().contains("command line"));
    }
}
