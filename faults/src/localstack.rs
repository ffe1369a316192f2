//! A real LocalStack for tests: the pinned Python environment that `scripts/setup --tests` makes, run by `localstack/run.py` with all
//! its files in a folder of its own. It takes a second opinion on S3 from code that is not ours.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Python reads some thousand files before it serves, on a machine that builds meanwhile.
const READY_DEADLINE: Duration = Duration::from_secs(180);
const READY_POLL: Duration = Duration::from_millis(100);
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
const STARTS_MAX: usize = 3;

/// Why there is no LocalStack.
#[derive(Debug, thiserror::Error)]
pub enum LocalStackError {
    /// The environment is not there.
    #[error("run LocalStack: its Python environment is not there; scripts/setup --tests makes it, with Python 3.11")]
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
    #[error("start LocalStack: {0}")]
    NotReady(String),
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> LocalStackError {
    move |source| LocalStackError::Io { what, source }
}

/// A running LocalStack with one bucket. Dropping it kills it and removes all it wrote.
#[derive(Debug)]
pub struct LocalStack {
    home: TempDir,
    port: u16,
    child: Child,
}

impl LocalStack {
    /// The bucket that [`LocalStack::start`] makes.
    pub const BUCKET: &str = "thermocline";

    /// Whether its environment is there; a test that needs it is skipped otherwise.
    #[must_use]
    pub fn is_installed() -> bool {
        repository().join(".localstack/ready").is_file()
    }

    /// Starts it on a free port and makes a bucket.
    ///
    /// # Errors
    /// [`LocalStackError`].
    pub async fn start() -> Result<Self, LocalStackError> {
        if !Self::is_installed() {
            return Err(LocalStackError::NotInstalled);
        }
        let mut tried = 0;
        loop {
            tried += 1;
            let mut started = Self::spawn()?;
            match started.ready().await {
                Ok(()) => {
                    let bucket = format!("/{}", Self::BUCKET);
                    let made = request(started.port, "PUT", &bucket);
                    let answer = made.await.map_err(io_error("make a bucket in LocalStack"))?;
                    if !answer.starts_with("HTTP/1.1 200") {
                        return Err(LocalStackError::NotReady(format!("it made no bucket: {answer}")));
                    }
                    return Ok(started);
                }
                // The port was free a moment ago.
                Err(LocalStackError::NotReady(reason)) if tried < STARTS_MAX && reason.contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where clients connect: `http://127.0.0.1:port`. Any access key is taken.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn spawn() -> Result<Self, LocalStackError> {
        let home = tempfile::Builder::new().prefix("localstack-").tempdir_in("/var/tmp");
        let home = home.map_err(io_error("make a folder for LocalStack"))?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io_error("find a free port"))?;
        let port = listener.local_addr().map_err(io_error("find a free port"))?.port();
        drop(listener);
        let log = File::create(home.path().join("log")).map_err(io_error("make the log of LocalStack"))?;
        let child = Command::new(repository().join(".localstack/bin/python"))
            .arg(repository().join("localstack/run.py"))
            .env("LOCALSTACK_HOME", home.path())
            .env("GATEWAY_LISTEN", format!("127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(io_error("make the log of LocalStack"))?)
            .stderr(log)
            // What it starts goes with it.
            .process_group(0)
            .spawn()
            .map_err(io_error("run LocalStack"))?;
        Ok(Self { home, port, child })
    }

    async fn ready(&mut self) -> Result<(), LocalStackError> {
        let give_up = Instant::now() + READY_DEADLINE;
        loop {
            let health = request(self.port, "GET", "/_localstack/health").await;
            if health.is_ok_and(|answer| answer.contains(r#""s3": "running""#)) {
                return Ok(());
            }
            let ended = !matches!(self.child.try_wait(), Ok(None));
            if ended || Instant::now() > give_up {
                let what = if ended { "it ended" } else { "it does not serve" };
                let log = std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
                let tail = log.char_indices().rev().nth(2000).map_or(0, |(place, _)| place);
                return Err(LocalStackError::NotReady(format!("{what}; it said: {}", log[tail..].trim())));
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }
}

impl Drop for LocalStack {
    fn drop(&mut self) {
        // Not waited for yet, so the group is still this child's.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// A request without a body over plain HTTP: the whole answer.
async fn request(port: u16, method: &str, path: &str) -> io::Result<String> {
    let whole = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    tokio::time::timeout(REQUEST_DEADLINE, whole).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
