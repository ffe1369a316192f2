//! Processes of the program.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::DEADLINE;
use crate::counts;

/// One process; killed when dropped.
pub struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// The line it printed when it was ready.
    ready: String,
}

/// How a process is started.
#[derive(Clone)]
pub struct Spec {
    /// What it is called in counts and failures.
    pub name: &'static str,
    /// A command that runs the program in another place; empty for here.
    pub within: Vec<String>,
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// Standard error is appended to it.
    pub log: PathBuf,
}

impl Spec {
    /// The same with more arguments.
    pub fn and(&self, more: &[&str]) -> Self {
        let more = more.iter().map(|word| (*word).to_owned());
        Self { arguments: self.arguments.iter().cloned().chain(more).collect(), ..self.clone() }
    }

    fn command(&self) -> Command {
        let stderr: File = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let program = env!("CARGO_BIN_EXE_thermocline").to_owned();
        let words: Vec<&String> = self.within.iter().chain([&program]).chain(&self.arguments).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("THERMOCLINE_")) {
            command.env_remove(variable);
        }
        command.env("THERMOCLINE_LOG", "info").env("NO_COLOR", "1").stdin(Stdio::null()).stderr(stderr);
        command
    }
}

impl Process {
    /// Starts the program and waits until it serves.
    pub fn start(spec: &Spec) -> Self {
        let Spec { name, log, .. } = spec;
        let mut child = spec.command().stdout(Stdio::piped()).spawn().unwrap();
        let (sender, receiver) = mpsc::channel();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::Builder::new()
            .name(format!("stdout of {name}"))
            .spawn(move || {
                let says_ready = |line: &String| line.starts_with("ready ") || line.starts_with("serving at ");
                let _ = sender.send(lines.find_map(|line| line.ok().filter(says_ready)));
                // Keep reading, so that the process never blocks on a full pipe.
                lines.for_each(drop);
            })
            .unwrap();
        match receiver.recv_timeout(DEADLINE) {
            Ok(Some(ready)) => Self { name, child, log: log.clone(), ready },
            other => {
                let _ = child.kill();
                let status = child.wait().unwrap();
                panic!("{name} is not ready ({other:?}, {status})\n{}", tail(log));
            }
        }
    }

    /// Starts a program that is to end by itself, ready or not.
    pub async fn start_to_end(spec: &Spec) -> ExitStatus {
        let child = spec.command().stdout(Stdio::null()).spawn().unwrap();
        Self { name: spec.name, child, log: spec.log.clone(), ready: String::new() }.ended().await
    }

    /// Starts the program and kills it, ready or not.
    pub async fn start_and_kill(spec: &Spec, after: Duration) {
        let mut child = spec.command().stdout(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(after).await;
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{} ended by itself: {status}\n{}", spec.name, tail(&spec.log));
        counts::add(format!("kills of {} while it starts", spec.name), 1);
    }

    /// The first URL of the ready line: where its gRPC front is.
    pub fn endpoint(&self) -> String {
        let word = self.ready.split_whitespace().find_map(|word| word.find("http://").map(|at| &word[at..]));
        word.unwrap_or_else(|| panic!("no endpoint in {:?}", self.ready)).to_owned()
    }

    /// The value of `key=value` in the ready line.
    pub fn said(&self, key: &str) -> Option<&str> {
        self.ready.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill9(mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{} ended by itself: {status}\n{}", self.name, tail(&self.log));
        counts::add(format!("kills of {}", self.name), 1);
    }

    /// SIGTERM, and waits until the process has come to its end: its registration goes with it.
    pub async fn terminate(mut self) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let status = self.ended().await;
        assert!(status.success(), "{}: {status}\n{}", self.name, tail(&self.log));
    }

    /// Waits for it to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let pid = self.pid();
        let wait = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let ended = tokio::time::timeout(DEADLINE, wait).await;
        ended.unwrap_or_else(|_| panic!("process {pid} does not end"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of a log, for failures.
pub fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    format!("-- end of {}:\n{}", log.display(), lines[lines.len().saturating_sub(25)..].join("\n"))
}

/// No process may have panicked, and each line of level ERROR must be one that the test expects.
pub fn check_log(log: &Path, expected: &[&str]) {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    for line in text.lines() {
        assert!(!line.contains("panicked"), "a process panicked: {line}\n{}", tail(log));
        let is_error = line.split_whitespace().nth(1) == Some("ERROR");
        assert!(
            !is_error || expected.iter().any(|text| line.contains(text)),
            "an unexpected error: {line}\n{}",
            log.display()
        );
    }
}
