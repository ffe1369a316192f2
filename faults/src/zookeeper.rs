//! A real ZooKeeper for tests: processes of Java with the classes of the package `zookeeper`, with data in a folder of their own.
//!
//! Ports are chosen free and may be taken by someone else before ZooKeeper binds them; it then ends at once, and the start is tried
//! again with others. Nothing here is told about as started before it answers that it serves.

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

/// How long a start waits for an answer, on a machine that builds meanwhile.
const HEALTH_DEADLINE: Duration = Duration::from_secs(60);
const HEALTH_POLL: Duration = Duration::from_millis(50);
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
const STARTS_MAX: usize = 5;
/// Where Debian's packages put the classes of Java's libraries.
const CLASSES: &str = "/usr/share/java";
const MAIN_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// The shortest and the longest time-out of a session that the servers allow, in milliseconds.
const SESSION_MS: (u32, u32) = (500, 600_000);

/// Why there is no ZooKeeper.
#[derive(Debug, thiserror::Error)]
pub enum ZooKeeperError {
    /// Java or the classes are not there.
    #[error("run ZooKeeper: Java or its classes are not here; install the package zookeeper")]
    NotInstalled,
    /// A process or folder could not be made.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// It ran and did not serve; its last words are in the message.
    #[error("start ZooKeeper: {0}")]
    Unhealthy(String),
}

/// One member, running or killed. Dropping it kills the process and removes its data.
#[derive(Debug)]
pub struct ZooKeeper {
    dir: TempDir,
    client_port: u16,
    child: Option<Child>,
}

impl ZooKeeper {
    /// Whether Java and the classes are here; a test that needs them is skipped otherwise.
    #[must_use]
    pub fn is_installed() -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let java = std::env::split_paths(&path).any(|dir| dir.join("java").is_file());
        java && Path::new(CLASSES).join("zookeeper.jar").is_file()
    }

    /// Whether Java or the classes are missing; then it is noted that tests of `lane` are skipped.
    #[must_use]
    pub fn is_missing_for(lane: &str) -> bool {
        let missing = !Self::is_installed();
        if missing {
            crate::skipped(lane, "Java and the package zookeeper are not installed");
        }
        missing
    }

    /// Starts a server of one and waits until it serves.
    ///
    /// # Errors
    /// [`ZooKeeperError`]; not cancel-safe only in that a start cancelled half-way kills what it started.
    pub async fn start() -> Result<Self, ZooKeeperError> {
        Ok(start_members(1).await?.remove(0))
    }

    /// Where clients connect: `127.0.0.1:port`. Stays the same over restarts.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// The URI of a metadata store at `root` (beginning with a slash).
    #[must_use]
    pub fn uri(&self, root: &str) -> String {
        format!("zk://{}{root}", self.endpoint())
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

    /// Goes on after [`ZooKeeper::pause`].
    ///
    /// # Panics
    /// As [`ZooKeeper::pause`].
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a member that is signalled runs");
        kill_process(Pid::from_child(child), signal).expect("a child that was not waited for can be signalled");
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
    /// As [`ZooKeeper::start`].
    pub async fn restart(&mut self) -> Result<(), ZooKeeperError> {
        self.kill();
        self.spawn()?;
        self.healthy().await
    }

    fn spawn(&mut self) -> Result<(), ZooKeeperError> {
        let io = |what| move |source| ZooKeeperError::Io { what, source };
        let log = File::options().create(true).append(true).open(self.dir.path().join("log"));
        let log = log.map_err(io("open the log of ZooKeeper"))?;
        let child = Command::new("java")
            .args([
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Dzookeeper.admin.enableServer=false",
                "-cp",
            ])
            .arg(class_path().map_err(io("list the classes of Java"))?)
            .arg(MAIN_CLASS)
            .arg(self.dir.path().join("zoo.cfg"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(io("open the log of ZooKeeper"))?)
            .stderr(log)
            .spawn()
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => ZooKeeperError::NotInstalled,
                _ => ZooKeeperError::Io { what: "run ZooKeeper", source },
            })?;
        self.child = Some(child);
        Ok(())
    }

    async fn healthy(&mut self) -> Result<(), ZooKeeperError> {
        let give_up = Instant::now() + HEALTH_DEADLINE;
        loop {
            if tokio::time::timeout(PROBE_DEADLINE, probe(self.client_port)).await.is_ok_and(|answer| answer.is_ok()) {
                return Ok(());
            }
            let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || Instant::now() > give_up {
                let what = if ended { "it ended" } else { "it does not serve" };
                let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                let tail = log.char_indices().rev().nth(2000).map_or(0, |(place, _)| place);
                return Err(ZooKeeperError::Unhealthy(format!("{what}; it said: {}", log[tail..].trim())));
            }
            tokio::time::sleep(HEALTH_POLL).await;
        }
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Several members that form one ensemble.
#[derive(Debug)]
pub struct ZooKeeperCluster {
    /// The members.
    pub members: Vec<ZooKeeper>,
}

impl ZooKeeperCluster {
    /// Starts `count` members and waits until each serves, which takes a leader.
    ///
    /// # Errors
    /// As [`ZooKeeper::start`].
    pub async fn start(count: usize) -> Result<Self, ZooKeeperError> {
        Ok(Self { members: start_members(count).await? })
    }

    /// The URI of a metadata store at `root` that knows every member.
    #[must_use]
    pub fn uri(&self, root: &str) -> String {
        let endpoints: Vec<_> = self.members.iter().map(ZooKeeper::endpoint).collect();
        format!("zk://{}{root}", endpoints.join(","))
    }
}

async fn start_members(count: usize) -> Result<Vec<ZooKeeper>, ZooKeeperError> {
    let mut tried = 0;
    loop {
        tried += 1;
        match try_start(count).await {
            Err(ZooKeeperError::Unhealthy(reason))
                if tried < STARTS_MAX && reason.contains("Address already in use") => {}
            done => return done,
        }
    }
}

async fn try_start(count: usize) -> Result<Vec<ZooKeeper>, ZooKeeperError> {
    let io = |what| move |source| ZooKeeperError::Io { what, source };
    let ports = free_ports(3 * count).map_err(io("find free ports"))?;
    let (client_ports, peer_ports) = ports.split_at(count);
    let mut members = Vec::with_capacity(count);
    for (place, client_port) in client_ports.iter().enumerate() {
        let dir = tempfile::Builder::new().prefix("zookeeper-").tempdir_in("/var/tmp");
        let dir = dir.map_err(io("make a folder for ZooKeeper"))?;
        let data = dir.path().join("data");
        std::fs::create_dir(&data).map_err(io("make a folder for ZooKeeper"))?;
        std::fs::write(data.join("myid"), (place + 1).to_string()).map_err(io("configure ZooKeeper"))?;
        let settings = settings(&data, *client_port, peer_ports);
        std::fs::write(dir.path().join("zoo.cfg"), settings).map_err(io("configure ZooKeeper"))?;
        let mut member = ZooKeeper { dir, client_port: *client_port, child: None };
        member.spawn()?;
        members.push(member);
    }
    for member in &mut members {
        member.healthy().await?;
    }
    Ok(members)
}

/// The server's settings; two of `peer_ports` for each member.
fn settings(data: &Path, client_port: u16, peer_ports: &[u16]) -> String {
    let (shortest, longest) = SESSION_MS;
    let mut text = format!(
        "tickTime=500\ninitLimit=20\nsyncLimit=10\ndataDir={}\nclientPort={client_port}\nclientPortAddress=127.0.0.1\n\
         minSessionTimeout={shortest}\nmaxSessionTimeout={longest}\nmaxClientCnxns=0\nadmin.enableServer=false\n\
         4lw.commands.whitelist=*\nadmin.serverPort=0\n",
        data.display(),
    );
    if peer_ports.len() > 2 {
        for (place, ports) in peer_ports.chunks(2).enumerate() {
            text.push_str(&format!("server.{}=127.0.0.1:{}:{}\n", place + 1, ports[0], ports[1]));
        }
    }
    text
}

/// The archives that the server needs, as the package has them, with those of the libraries around it.
fn class_path() -> io::Result<std::ffi::OsString> {
    let mut archives: Vec<PathBuf> = std::fs::read_dir(CLASSES)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "jar"))
        .collect();
    archives.sort();
    std::env::join_paths(archives).map_err(io::Error::other)
}

/// Different ports that were free a moment ago.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect::<io::Result<_>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Asks whether it serves, which a member without a leader does not.
async fn probe(port: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"srvr").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let serves = String::from_utf8_lossy(&answer).contains("Mode: ");
    if serves { Ok(()) } else { Err(io::Error::other("not serving yet")) }
}
