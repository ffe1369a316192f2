//! A real etcd for tests: processes of the program `etcd` on the search path, with data in a folder of their own.
//!
//! Ports are chosen free and may be taken by someone else before etcd binds them; it then ends at once, and the start is tried
//! again with others. Nothing here is told about as started before it answers that it is healthy.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How long a start waits for health, on a machine that builds meanwhile.
const HEALTH_DEADLINE: Duration = Duration::from_secs(30);
const HEALTH_POLL: Duration = Duration::from_millis(20);
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
const STARTS_MAX: usize = 5;
const PROGRAM: &str = "etcd";

/// Why there is no etcd.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// The program is not on the search path.
    #[error("run etcd: the program is not on the search path; install the package etcd-server")]
    NotInstalled,
    /// A process or folder could not be made.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// It ran and did not get healthy; its last words are in the message.
    #[error("start etcd: {0}")]
    Unhealthy(String),
}

/// One member, running or killed. Dropping it kills the process and removes its data.
#[derive(Debug)]
pub struct Etcd {
    program: PathBuf,
    dir: TempDir,
    args: Vec<String>,
    client_port: u16,
    child: Option<Child>,
}

impl Etcd {
    /// Whether the program is on the search path; a test that needs it is skipped otherwise.
    #[must_use]
    pub fn is_installed() -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join("etcd").is_file())
    }

    /// Whether the program is missing; then it is noted that tests of `lane` are skipped.
    #[must_use]
    pub fn is_missing_for(lane: &str) -> bool {
        let missing = !Self::is_installed();
        if missing {
            crate::skipped(lane, "the program etcd is not on the search path (package etcd-server)");
        }
        missing
    }

    /// Starts a cluster of one and waits until it is healthy.
    ///
    /// # Errors
    /// [`EtcdError`]; not cancel-safe only in that a start cancelled half-way kills what it started.
    pub async fn start() -> Result<Self, EtcdError> {
        Self::start_with(&[]).await
    }

    /// As [`Etcd::start`], with the program at `program` in the place of the one on the search path.
    ///
    /// # Errors
    /// As [`Etcd::start`].
    pub async fn start_program(program: &Path) -> Result<Self, EtcdError> {
        let mut members = start_members(program, 1, &[]).await?;
        Ok(members.remove(0))
    }

    /// As [`Etcd::start`], with more flags for the program.
    ///
    /// # Errors
    /// As [`Etcd::start`].
    pub async fn start_with(flags: &[&str]) -> Result<Self, EtcdError> {
        let mut members = start_members(Path::new(PROGRAM), 1, flags).await?;
        Ok(members.remove(0))
    }

    /// Where clients connect: `127.0.0.1:port`. Stays the same over restarts.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// The URI of a metadata store below `root` (empty, or beginning with a slash).
    #[must_use]
    pub fn uri(&self, root: &str) -> String {
        format!("etcd://{}{root}", self.endpoint())
    }

    /// Its folder: the data is in `data`, what it printed in `log`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Stops the process where it stands, and returns when it does: connections stay open and nothing answers.
    ///
    /// # Panics
    /// When it does not run: a mistake of the test.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        crate::stopped::wait(self.child.as_ref().expect("a member that is paused runs"));
    }

    /// Goes on after [`Etcd::pause`].
    ///
    /// # Panics
    /// As [`Etcd::pause`].
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a member that is signalled runs");
        let pid = Pid::from_child(child);
        kill_process(pid, signal).expect("a child that was not waited for can be signalled");
    }

    /// Kills it as `kill -9` does. Its data stays; killing it twice does nothing.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it when it still runs and starts it again on the same data and ports.
    ///
    /// # Errors
    /// As [`Etcd::start`].
    pub async fn restart(&mut self) -> Result<(), EtcdError> {
        self.kill();
        self.spawn()?;
        self.healthy().await
    }

    fn spawn(&mut self) -> Result<(), EtcdError> {
        let io = |what| move |source| EtcdError::Io { what, source };
        let log = File::options().create(true).append(true).open(self.dir.path().join("log"));
        let log = log.map_err(io("open the log of etcd"))?;
        let child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(io("open the log of etcd"))?)
            .stderr(log)
            .spawn()
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => EtcdError::NotInstalled,
                _ => EtcdError::Io { what: "run etcd", source },
            })?;
        self.child = Some(child);
        Ok(())
    }

    async fn healthy(&mut self) -> Result<(), EtcdError> {
        let give_up = Instant::now() + HEALTH_DEADLINE;
        loop {
            if tokio::time::timeout(PROBE_DEADLINE, probe(self.client_port)).await.is_ok_and(|answer| answer.is_ok()) {
                return Ok(());
            }
            let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || Instant::now() > give_up {
                let what = if ended { "it ended" } else { "it does not get healthy" };
                let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                let tail = log.char_indices().rev().nth(2000).map_or(0, |(place, _)| place);
                return Err(EtcdError::Unhealthy(format!("{what}; it said: {}", log[tail..].trim())));
            }
            tokio::time::sleep(HEALTH_POLL).await;
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Several members that form one cluster.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members.
    pub members: Vec<Etcd>,
}

impl EtcdCluster {
    /// Starts `count` members and waits until each is healthy, which takes a leader.
    ///
    /// # Errors
    /// As [`Etcd::start`].
    pub async fn start(count: usize) -> Result<Self, EtcdError> {
        Ok(Self { members: start_members(Path::new(PROGRAM), count, &[]).await? })
    }

    /// The URI of a metadata store below `root` that knows every member.
    #[must_use]
    pub fn uri(&self, root: &str) -> String {
        let endpoints: Vec<_> = self.members.iter().map(Etcd::endpoint).collect();
        format!("etcd://{}{root}", endpoints.join(","))
    }
}

async fn start_members(program: &Path, count: usize, flags: &[&str]) -> Result<Vec<Etcd>, EtcdError> {
    let mut tried = 0;
    loop {
        tried += 1;
        match try_start(program, count, flags).await {
            Err(EtcdError::Unhealthy(reason)) if tried < STARTS_MAX && reason.contains("address already in use") => {}
            done => return done,
        }
    }
}

async fn try_start(program: &Path, count: usize, flags: &[&str]) -> Result<Vec<Etcd>, EtcdError> {
    let io = |what| move |source| EtcdError::Io { what, source };
    let ports = free_ports(2 * count).map_err(io("find free ports"))?;
    let (client_ports, peer_ports) = ports.split_at(count);
    let peers: Vec<_> =
        peer_ports.iter().enumerate().map(|(place, port)| format!("m{place}=http://127.0.0.1:{port}")).collect();
    let peers = peers.join(",");
    let scheme = if flags.contains(&"--auto-tls") { "https" } else { "http" };
    let mut members = Vec::with_capacity(count);
    for (place, (client_port, peer_port)) in client_ports.iter().zip(peer_ports).enumerate() {
        let dir =
            tempfile::Builder::new().prefix("etcd-").tempdir_in("/var/tmp").map_err(io("make a folder for etcd"))?;
        let (client, peer) = (format!("{scheme}://127.0.0.1:{client_port}"), format!("http://127.0.0.1:{peer_port}"));
        let data = dir.path().join("data").display().to_string();
        let mut args: Vec<String> = [
            ("--name", format!("m{place}").as_str()),
            ("--data-dir", &data),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &peers),
            ("--log-level", "error"),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()])
        .collect();
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let mut member = Etcd { program: program.to_owned(), dir, args, client_port: *client_port, child: None };
        member.spawn()?;
        members.push(member);
    }
    if scheme == "http" {
        for member in &mut members {
            member.healthy().await?;
        }
    }
    Ok(members)
}

/// Different ports that were free a moment ago.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect::<io::Result<_>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Asks for its health over plain HTTP.
async fn probe(port: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let healthy = String::from_utf8_lossy(&answer).contains(r#""health":"true""#);
    if healthy { Ok(()) } else { Err(io::Error::other("not healthy yet")) }
}
