//! The scripts of `localstack/`, as someone uses them who tries things out.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use faults::{Etcd, LocalStack, ZooKeeper, skipped};

/// A script with a folder and a port of its own. Whatever it started is stopped when this is dropped.
struct Script {
    path: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
}

impl Script {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../localstack").join(name);
        // etcd's members talk on the port after it.
        let port = (0..100).find_map(|_| {
            let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = first.local_addr().unwrap().port();
            std::net::TcpListener::bind(("127.0.0.1", port.checked_add(1)?)).is_ok().then_some(port)
        });
        Self { path, dir: tempfile::tempdir().unwrap(), port: port.unwrap() }
    }

    fn run(&self, words: &[&str]) -> Output {
        let (dir, port) = (self.dir.path().join("state"), self.port.to_string());
        let mut command = Command::new(&self.path);
        command.args(words).arg("--dir").arg(dir).args(["--port", &port]);
        command.output().unwrap()
    }

    /// Runs a command that is to succeed; its standard output.
    fn done(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        said
    }

    fn is_running(&self) -> bool {
        let output = self.run(&["status"]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        output.status.success()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.run(&["stop"]);
    }
}

/// What holds of each of them, with its own name for what it runs.
fn begins_and_ends(script: &Script, name: &str) {
    assert!(!script.is_running());
    assert!(script.done(&["stop"]).contains("does not run"), "stopping what does not run is no error");
    let started = script.done(&["start"]);
    assert!(started.contains(&format!("{name} runs, pid ")) && started.contains(&script.port.to_string()), "{started}");
    assert!(script.is_running());
    let pid = |said: &str| said.split("pid ").nth(1).unwrap().split([':', ' ', '\n']).next().unwrap().to_owned();
    assert_eq!(pid(&script.done(&["start"])), pid(&started), "a second start finds the first");
    assert_eq!(script.run(&["start", "--nonsense"]).status.code(), Some(2));
    assert!(script.done(&["stop"]).contains("stopped"));
    assert!(!script.is_running());
}

#[test]
fn the_etcd_script_begins_and_ends_and_keeps_its_data() {
    if Etcd::is_missing_for("etcd-script") {
        return;
    }
    let script = Script::new("etcd");
    begins_and_ends(&script, "etcd");
    let data = script.dir.path().join("state/data");
    assert!(data.is_dir(), "the data stays");
    script.done(&["start"]);
    assert!(script.is_running(), "on what the one before left");
}

#[test]
fn the_zookeeper_script_begins_and_ends() {
    if ZooKeeper::is_missing_for("zookeeper-script") {
        return;
    }
    begins_and_ends(&Script::new("zookeeper"), "ZooKeeper");
}

#[test]
fn the_localstack_script_begins_and_ends() {
    if !LocalStack::is_installed() {
        return skipped("localstack-script", "the Python environment of scripts/setup --tests is not there");
    }
    let script = Script::new("localstack");
    begins_and_ends(&script, "LocalStack");
}
