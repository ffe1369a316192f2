//! Processes of a cluster on this machine: started, watched, killed and started again. For the cluster demo and for tests.
//!
//! A role says that it serves with one line on its standard output: `ready role=bookie id=bookie-1 address=127.0.0.1:41234`.
//! [`Process::spawn`] waits for it. Everything a process prints goes to its log file, whose end is part of every error here.
//!
//! # End
//! A process is killed when its [`Process`] is dropped, by its own id. It runs in a process group of its own, so that Ctrl-C on a
//! terminal reaches only whoever started it, who stops the processes in order.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::Fault;

/// How long a process may take until it serves, unless its starter says otherwise: a bookie waits for the lease of its predecessor.
pub const READY_DEADLINE: Duration = Duration::from_secs(60);
/// How long a killed process may take to be gone.
const GONE_DEADLINE: Duration = Duration::from_secs(20);
const TAIL_BYTES: usize = 2000;

/// A running process, or one that has ended and may be started again.
#[derive(Debug)]
pub struct Process {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    deadline: Duration,
    child: Child,
    facts: BTreeMap<String, String>,
}

impl Process {
    /// Starts `program` and waits up to [`READY_DEADLINE`] until it says that it serves. Output is appended to the file `log`.
    ///
    /// Not cancel-safe in the sense of work done, but a dropped call leaves no process behind.
    ///
    /// # Errors
    /// A sentence with the end of the log, when it cannot be started, ends, or says nothing in time.
    pub async fn spawn(program: &Path, arguments: &[impl AsRef<str>], log: &Path) -> Result<Self, Fault> {
        Self::spawn_within(program, arguments, log, READY_DEADLINE).await
    }

    /// As [`Process::spawn`], with another deadline.
    ///
    /// # Errors
    /// As [`Process::spawn`].
    pub async fn spawn_within(
        program: &Path,
        arguments: &[impl AsRef<str>],
        log: &Path,
        deadline: Duration,
    ) -> Result<Self, Fault> {
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.as_ref().to_owned()).collect();
        let (child, facts) = start(program, &arguments, log, deadline).await?;
        Ok(Self { program: program.to_owned(), arguments, log: log.to_owned(), deadline, child, facts })
    }

    /// What its ready line said under `key`, such as `endpoint`, `address`, `admin` or `id`.
    #[must_use]
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.facts.get(key).map(String::as_str)
    }

    /// The URL of its gRPC front.
    ///
    /// # Errors
    /// When it said none.
    pub fn endpoint(&self) -> Result<&str, Fault> {
        self.fact("endpoint").ok_or_else(|| self.fault("its ready line names no endpoint"))
    }

    /// Its id; `None` once it has ended and was waited for.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }

    /// How it ended, if it has: nothing for one that runs.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Fault> {
        self.child.try_wait().map_err(|error| self.fault(&format!("ask for its end: {error}")))
    }

    /// Kills it with SIGKILL, as a crash would, and waits until it is gone. One that has ended stays so.
    ///
    /// # Errors
    /// When it is not gone in time.
    pub async fn kill9(&mut self) -> Result<(), Fault> {
        self.child.start_kill().or_else(|error| {
            // It ended before the signal came.
            if error.kind() == std::io::ErrorKind::InvalidInput {
                Ok(())
            } else {
                Err(self.fault(&format!("kill: {error}")))
            }
        })?;
        self.wait(GONE_DEADLINE).await.map(drop)
    }

    /// Asks it to stop with SIGTERM and waits up to `deadline` until it has.
    ///
    /// # Errors
    /// When it does not end in time: it is killed then.
    pub async fn terminate(&mut self, deadline: Duration) -> Result<ExitStatus, Fault> {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|error| self.fault(&format!("send SIGTERM: {error}")))?;
        }
        let stopped = self.wait(deadline).await;
        if stopped.is_err() {
            self.kill9().await?;
        }
        stopped
    }

    /// Waits up to `deadline` until it has ended.
    ///
    /// # Errors
    /// When it has not by then.
    pub async fn wait(&mut self, deadline: Duration) -> Result<ExitStatus, Fault> {
        match tokio::time::timeout(deadline, self.child.wait()).await {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(error)) => Err(self.fault(&format!("wait for its end: {error}"))),
            Err(_) => Err(self.fault(&format!("it has not ended within {deadline:?}"))),
        }
    }

    /// Starts it again with the same arguments, and waits until it serves; kills it first if it still runs.
    ///
    /// # Errors
    /// As [`Process::spawn`].
    pub async fn restart(&mut self) -> Result<(), Fault> {
        self.kill9().await?;
        (self.child, self.facts) = start(&self.program, &self.arguments, &self.log, self.deadline).await?;
        Ok(())
    }

    fn fault(&self, what: &str) -> Fault {
        fault(&self.program, &self.arguments, &self.log, what)
    }
}

type Started = (Child, BTreeMap<String, String>);

async fn start(program: &Path, arguments: &[String], log: &Path, deadline: Duration) -> Result<Started, Fault> {
    let failed = |what: String| fault(program, arguments, log, &what);
    let opened = OpenOptions::new().create(true).append(true).open(log);
    let mut file = opened.map_err(|error| failed(format!("open its log: {error}")))?;
    let errors = file.try_clone().map_err(|error| failed(format!("open its log: {error}")))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    command.process_group(0).kill_on_drop(true);
    // Whoever starts this decides, not the variables of the shell around it.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("THERMOCLINE_") {
            command.env_remove(name);
        }
    }
    let mut child = command.spawn().map_err(|error| failed(format!("start it: {error}")))?;
    let output = child.stdout.take().ok_or_else(|| failed("it has no standard output".to_owned()))?;
    let mut lines = BufReader::new(output).lines();
    match tokio::time::timeout(deadline, read_until_ready(&mut lines, &mut file)).await {
        Ok(Some(facts)) => {
            // Goes on reading, so that the process never blocks on a full pipe; ends with it.
            tokio::spawn(drain(lines, file));
            Ok((child, facts))
        }
        Ok(None) => match tokio::time::timeout(GONE_DEADLINE, child.wait()).await {
            Ok(Ok(status)) => Err(failed(format!("it ended before it served: {status}"))),
            _ => Err(failed("it closed its output before it served".to_owned())),
        },
        Err(_) => Err(failed(format!("it did not say that it serves within {deadline:?}"))),
    }
}

/// The facts of the ready line; `None` when the output ends without one.
async fn read_until_ready(
    lines: &mut Lines<BufReader<ChildStdout>>,
    log: &mut File,
) -> Option<BTreeMap<String, String>> {
    while let Ok(Some(line)) = lines.next_line().await {
        let _ = writeln!(log, "{line}");
        if let Some(facts) = parse_ready(&line) {
            return Some(facts);
        }
    }
    None
}

async fn drain(mut lines: Lines<BufReader<ChildStdout>>, mut log: File) {
    while let Ok(Some(line)) = lines.next_line().await {
        let _ = writeln!(log, "{line}");
    }
}

/// The facts of a ready line; `None` for any other line.
#[must_use]
pub fn parse_ready(line: &str) -> Option<BTreeMap<String, String>> {
    let facts = line.strip_prefix("ready ")?;
    let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    facts.split_whitespace().map(pair).collect()
}

fn fault(program: &Path, arguments: &[String], log: &Path, what: &str) -> Fault {
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    let shown: Vec<&str> = arguments.iter().map(String::as_str).take(4).collect();
    let tail = tail(log);
    let end = if tail.is_empty() { "it is empty".to_owned() } else { format!("it ends with:\n{tail}") };
    Fault::failed(format!("{name} {}: {what}; its log is {}, {end}", shown.join(" "), log.display()))
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL_BYTES)..]).into_owned();
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> [String; 2] {
        ["-c".to_owned(), script.to_owned()]
    }

    #[test]
    fn a_ready_line_is_told_from_others() {
        let facts = parse_ready("ready role=gateway id=a:1 endpoint=http://a:1").unwrap();
        assert_eq!(facts["role"], "gateway");
        assert_eq!(facts["endpoint"], "http://a:1");
        assert!(parse_ready("serving at http://a:1").is_none() && parse_ready("ready when you are").is_none());
    }

    #[tokio::test]
    async fn a_process_is_waited_for_killed_and_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let script = sh("echo begun; echo ready role=test id=$$; exec sleep 600");
        let mut process = Process::spawn(Path::new("/bin/sh"), &script, &log).await.unwrap();
        let first = process.pid().unwrap();
        assert_eq!(process.fact("id").unwrap(), first.to_string());
        assert!(process.ended().unwrap().is_none());
        process.kill9().await.unwrap();
        assert!(process.ended().unwrap().is_some() && process.pid().is_none());
        process.restart().await.unwrap();
        assert_ne!(process.pid().unwrap(), first);
        let status = process.terminate(Duration::from_secs(20)).await.unwrap();
        assert!(!status.success(), "sleep ends by the signal");
        assert!(process.log_tail().contains("begun"));
    }

    #[tokio::test]
    async fn one_that_does_not_serve_is_told_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let ended = Process::spawn(Path::new("/bin/sh"), &sh("echo no port free >&2; exit 2"), &log).await.unwrap_err();
        assert!(
            ended.to_string().contains("ended before it served") && ended.to_string().contains("no port free"),
            "{ended}"
        );
        let script = sh("sleep 600");
        let silent = Process::spawn_within(Path::new("/bin/sh"), &script, &log, Duration::from_millis(200)).await;
        assert!(silent.unwrap_err().to_string().contains("did not say that it serves"));
        let missing = Process::spawn(Path::new("/no/such/program"), &sh(""), &log).await.unwrap_err();
        assert!(missing.to_string().contains("start it"), "{missing}");
    }
}
