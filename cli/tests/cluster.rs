//! The roles together, as processes over a real etcd. Skipped, and told so, where the program etcd is missing.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bytes::Bytes;
use cli::cluster::Process;
use faults::Etcd;
use proto::v1::append_request::Message;
use proto::v1::ledgers_client::LedgersClient;
use proto::v1::{
    AppendEntries, AppendOpen, AppendRequest, AppendResponse, CloseLedgerRequest, CreateLedgerRequest,
    GetLedgerRequest, LedgerState,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

const PROGRAM: &str = env!("CARGO_BIN_EXE_thermocline");
const DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(25);
/// Life of a bookie's registration here.
const TTL: Duration = Duration::from_secs(3);

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

#[test]
fn the_cluster_demo_passes() {
    if Etcd::is_missing_for("cluster") {
        return;
    }
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = home.path().join("demo");
    let answer = run(&[
        "demo",
        "--cluster",
        "--seconds",
        "12",
        "--rounds",
        "1",
        "--output",
        "json",
        "--dir",
        dir.to_str().unwrap(),
    ]);
    assert!(answer.status.success(), "{}\n{}", text(&answer.stdout), text(&answer.stderr));
    let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {report}"));
    assert_eq!(report["passed"], true);
    for kind in ["bookie", "gateway", "offloader", "etcd"] {
        assert_eq!(number(&report["kills"][kind]), 1, "{report}");
    }
    let entries = number(&report["entries_acknowledged"]);
    assert!(entries > 0);
    for through in report["read_back"].as_array().unwrap() {
        assert_eq!(number(&through["entries_hot"]) + number(&through["entries_cold"]), entries);
    }
    assert!(number(&report["objects"]) > 0);
    assert_eq!(number(&report["ledgers"]["hot"]), 0, "everything closed was settled: {report}");
    // The log of acknowledgements is there for whoever wants to look.
    let acknowledged = std::fs::read_to_string(dir.join("acknowledged.log")).unwrap();
    assert_eq!(acknowledged.lines().count() as u64, entries);
    // No process is left: each printed that it stopped, after its last start.
    for role in ["bookie-1", "bookie-2", "bookie-3", "gateway-1", "gateway-2", "offloader-1", "offloader-2"] {
        let log = std::fs::read_to_string(dir.join(format!("logs/{role}.log"))).unwrap();
        let (started, stopped) = (log.rfind("ready role=").unwrap(), log.rfind("stopping role="));
        assert!(stopped.is_some_and(|stopped| stopped > started), "{role}:\n{log}");
        let errors: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
        assert!(errors.is_empty(), "{role}: {errors:#?}");
    }
}

/// Processes of one cluster in a folder.
struct Cluster {
    home: TempDir,
    metadata: String,
}

impl Cluster {
    fn at(metadata: &str) -> Self {
        Self { home: tempfile::tempdir_in("/var/tmp").unwrap(), metadata: metadata.to_owned() }
    }

    fn arguments(&self, role: &str, name: &str) -> Vec<String> {
        let mut arguments: Vec<String> =
            [role, "--listen", "127.0.0.1:0", "--metadata", &self.metadata].map(str::to_owned).to_vec();
        let folder = |name: &str| self.home.path().join(name).display().to_string();
        match role {
            "bookie" => {
                let ttl = format!("bookie.registration_ttl={}s", TTL.as_secs());
                arguments.extend(["--id", name, "--dir", &folder(name), "--set", &ttl].map(str::to_owned));
            }
            _ => arguments.extend(["--cold", &format!("file://{}", folder("cold"))].map(str::to_owned)),
        }
        arguments
    }

    async fn spawn(&self, role: &str, name: &str) -> Process {
        let log = self.home.path().join(format!("{name}.log"));
        Process::spawn(Path::new(PROGRAM), &self.arguments(role, name), &log).await.unwrap()
    }

    async fn bookies(&self) -> Vec<Process> {
        let mut bookies = Vec::new();
        for name in ["bookie-1", "bookie-2", "bookie-3"] {
            bookies.push(self.spawn("bookie", name).await);
        }
        bookies
    }
}

async fn connect(gateway: &Process) -> LedgersClient<Channel> {
    let endpoint = Endpoint::from_shared(gateway.endpoint().unwrap().to_owned()).unwrap();
    LedgersClient::new(endpoint.connect().await.unwrap())
}

/// An append stream that stays open.
struct Appending {
    messages: mpsc::Sender<AppendRequest>,
    answers: Streaming<AppendResponse>,
    acknowledged: u64,
}

impl Appending {
    async fn open(client: &mut LedgersClient<Channel>) -> (u64, Self) {
        let created = timeout(DEADLINE, client.create_ledger(CreateLedgerRequest::default())).await.unwrap();
        let ledger_id = created.unwrap().into_inner().ledger_id;
        let (messages, requests) = mpsc::channel(4);
        let open = AppendOpen { ledger_id, password: Bytes::new() };
        messages.send(AppendRequest { message: Some(Message::Open(open)) }).await.unwrap();
        let answers = client.append(ReceiverStream::new(requests)).await.unwrap().into_inner();
        (ledger_id, Self { messages, answers, acknowledged: 0 })
    }

    async fn append(&mut self, payload: &str) {
        let entries = AppendEntries { payloads: vec![Bytes::copy_from_slice(payload.as_bytes())] };
        self.messages.send(AppendRequest { message: Some(Message::Entries(entries)) }).await.unwrap();
        let run = timeout(DEADLINE, self.answers.message()).await.unwrap().unwrap().unwrap();
        assert_eq!((run.first_entry_id, run.count), (self.acknowledged, 1));
        self.acknowledged += 1;
    }
}

#[tokio::test]
async fn bookies_and_writers_go_on_while_metadata_is_away_and_come_back_with_it() {
    if Etcd::is_missing_for("cluster") {
        return;
    }
    let mut etcd = Etcd::start().await.unwrap();
    let cluster = Cluster::at(&etcd.uri("/test"));
    let bookies = cluster.bookies().await;
    let gateway = cluster.spawn("gateway", "gateway-1").await;
    let mut client = connect(&gateway).await;
    let (ledger, mut appending) = Appending::open(&mut client).await;
    appending.append("before").await;

    etcd.kill();
    // Longer than every lease lives.
    let gone = Instant::now();
    while gone.elapsed() < TTL * 2 {
        appending.append("meanwhile").await;
        sleep(Duration::from_millis(200)).await;
    }
    assert!(bookies.iter().all(|bookie| bookie.pid().is_some()));
    etcd.restart().await.unwrap();

    appending.append("after").await;
    let request = CloseLedgerRequest { ledger_id: ledger, password: Bytes::new() };
    let closed = timeout(DEADLINE, client.close_ledger(request)).await.unwrap().unwrap().into_inner();
    assert_eq!(closed.last_entry_id, Some(appending.acknowledged - 1));
    // The bookies are registered, or are again: a ledger can be created and written.
    let deadline = Instant::now() + DEADLINE;
    loop {
        match client.create_ledger(CreateLedgerRequest::default()).await {
            Ok(_) => break,
            Err(status) => assert!(Instant::now() < deadline, "{status}"),
        }
        sleep(Duration::from_millis(200)).await;
    }
    let mut processes = bookies;
    processes.insert(0, gateway);
    for process in &mut processes {
        let status = process.terminate(STOP_DEADLINE).await.unwrap();
        assert!(status.success(), "{}", process.log_tail());
    }
}

#[tokio::test]
async fn bookies_are_restarted_one_after_the_other_while_ledgers_are_written() {
    if Etcd::is_missing_for("cluster") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let cluster = Cluster::at(&etcd.uri("/test"));
    let mut bookies = cluster.bookies().await;
    let mut gateway = cluster.spawn("gateway", "gateway-1").await;
    let mut client = connect(&gateway).await;
    for bookie in &mut bookies {
        let (ledger, mut appending) = Appending::open(&mut client).await;
        appending.append("with three").await;
        let begun = Instant::now();
        assert!(bookie.terminate(STOP_DEADLINE).await.unwrap().success(), "{}", bookie.log_tail());
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        appending.append("with two").await;
        bookie.restart().await.unwrap();
        appending.append("with three again").await;
        let request = CloseLedgerRequest { ledger_id: ledger, password: Bytes::new() };
        let closed = timeout(DEADLINE, client.close_ledger(request)).await.unwrap().unwrap().into_inner();
        assert_eq!(closed.last_entry_id, Some(2));
    }
    // A gateway that stops closes what is written through it.
    let (ledger, mut appending) = Appending::open(&mut client).await;
    appending.append("before the stop").await;
    assert!(gateway.terminate(STOP_DEADLINE).await.unwrap().success(), "{}", gateway.log_tail());
    gateway.restart().await.unwrap();
    let mut client = connect(&gateway).await;
    let found = client.get_ledger(GetLedgerRequest { ledger_id: ledger }).await.unwrap().into_inner();
    assert_eq!((found.state(), found.last_entry_id), (LedgerState::Closed, Some(0)));
}

#[tokio::test]
async fn a_demo_that_is_interrupted_leaves_no_process() {
    if Etcd::is_missing_for("cluster") {
        return;
    }
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = home.path().join("demo");
    let mut demo = Command::new(PROGRAM)
        .args(["demo", "--cluster", "--seconds", "60", "--dir", dir.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = demo.id();
    let deadline = Instant::now() + DEADLINE;
    // Bookies, gateways, offloaders and etcd.
    while children(pid).len() < 8 {
        assert!(Instant::now() < deadline && demo.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(50)).await;
    }
    let started = children(pid);
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(raw, rustix::process::Signal::INT).unwrap();
    loop {
        if let Some(status) = demo.try_wait().unwrap() {
            assert_eq!(status.code(), Some(1));
            break;
        }
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(50)).await;
    }
    while let Some(left) = started.iter().find(|pid| runs(**pid)) {
        assert!(Instant::now() < deadline, "process {left} still runs");
        sleep(Duration::from_millis(50)).await;
    }
}

/// The processes whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    pids.filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

fn runs(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z")
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(String, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = text.rsplit_once(") ")?.1.split(' ');
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

#[tokio::test]
async fn a_killed_bookie_waits_for_its_own_lease_and_a_stopped_one_does_not() {
    if Etcd::is_missing_for("cluster") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let cluster = Cluster::at(&etcd.uri("/test"));
    let mut bookie = cluster.spawn("bookie", "bookie-1").await;
    bookie.kill9().await.unwrap();
    bookie.restart().await.unwrap();
    assert!(bookie.log_tail().contains("ends with its lease, waiting up to"), "{}", bookie.log_tail());
    assert!(bookie.terminate(STOP_DEADLINE).await.unwrap().success(), "{}", bookie.log_tail());
    let begun = Instant::now();
    bookie.restart().await.unwrap();
    let waits = bookie.log_tail().matches("waiting up to").count();
    assert!(waits <= 1, "an orderly stop gives the lease back ({:?}): {}", begun.elapsed(), bookie.log_tail());
}

#[tokio::test]
async fn a_role_started_before_its_metadata_waits_for_it_and_not_for_ever() {
    if Etcd::is_missing_for("cluster") {
        return;
    }
    let mut etcd = Etcd::start().await.unwrap();
    etcd.kill();
    let cluster = Cluster::at(&etcd.uri("/test"));
    let begun = Instant::now();
    let arguments = cluster.arguments("bookie", "bookie-1");
    let refused = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("no answer within 20 s") && said.contains("--metadata"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());

    let waiting = cluster.spawn("bookie", "bookie-1");
    let starting = async {
        sleep(Duration::from_secs(1)).await;
        etcd.restart().await.unwrap();
    };
    let (bookie, ()) = tokio::join!(waiting, starting);
    assert!(bookie.fact("address").is_some());
}

#[tokio::test]
async fn the_commands_work_on_a_cluster() {
    if Etcd::is_missing_for("cluster") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let cluster = Cluster::at(&etcd.uri("/test"));
    let _bookies = cluster.bookies().await;
    let offloader = cluster.spawn("offloader", "offloader-1").await;
    let (first, second) = (cluster.spawn("gateway", "gateway-1").await, cluster.spawn("gateway", "gateway-2").await);
    let command = |endpoint: &str, arguments: &[&str]| {
        let answer = run(&[arguments, &["--endpoint", endpoint]].concat());
        assert!(answer.status.success(), "{arguments:?}: {}", text(&answer.stderr));
        answer.stdout
    };
    let (first, second, offloader) =
        (first.endpoint().unwrap(), second.endpoint().unwrap(), offloader.endpoint().unwrap());
    let file = cluster.home.path().join("lines");
    let lines: String = (0..5000).map(|line| format!("line {line}\n")).collect();
    std::fs::write(&file, &lines).unwrap();
    let written = command(first, &["ledger", "write", "new", file.to_str().unwrap(), "--output", "json"]);
    let ledger = serde_json::from_slice::<serde_json::Value>(&written).unwrap()["ledger_id"].to_string();
    assert_eq!(text(&command(second, &["ledger", "read", &ledger])), lines);
    let settled = text(&command(offloader, &["offload", "now", &ledger, "--release"]));
    assert!(settled.contains("released"), "{settled}");
    assert_eq!(text(&command(second, &["ledger", "read", &ledger, "--tier", "cold"])), lines);
    let status = text(&command(offloader, &["status"]));
    assert!(status.contains("1 released") && status.contains("bookie-3"), "{status}");
    let mut client = LedgersClient::connect(second.to_owned()).await.unwrap();
    let shown = client.get_ledger(GetLedgerRequest { ledger_id: ledger.parse().unwrap() }).await.unwrap().into_inner();
    assert_eq!(shown.last_entry_id, Some(4999));
}
