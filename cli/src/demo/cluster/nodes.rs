//! The processes of the demo's cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use faults::Etcd;
use tokio::sync::watch;
use url::Url;

use super::load::Endpoints;
use crate::Fault;
use crate::cluster::Process;
use crate::fault::chain;

pub(super) const BOOKIES: usize = 3;
const OFFLOADERS: usize = 2;
const GATEWAYS: usize = 2;
/// How long a role may take for an orderly stop.
const STOP_DEADLINE: Duration = Duration::from_secs(25);

/// Ledgers move in seconds here, and a dead process' leases end in seconds.
const BOOKIE_SETTINGS: [&str; 3] =
    ["bookie.segment_bytes=4MiB", "bookie.collect_interval=1s", "bookie.registration_ttl=3s"];
const OFFLOADER_SETTINGS: [&str; 5] = [
    "offloader.settle_after=1s",
    "offloader.hot_retention=5s",
    "offloader.scan_interval=500ms",
    "offloader.owner_ttl=3s",
    "offloader.failure_pause_max=2s",
];

/// The cluster. Dropping it kills every process.
pub(super) struct Nodes {
    pub(super) etcd: Etcd,
    pub(super) bookies: Vec<Process>,
    pub(super) offloaders: Vec<Process>,
    pub(super) gateways: Vec<Process>,
    endpoints: Vec<watch::Sender<String>>,
}

/// Where the cluster keeps what.
pub(super) struct Places<'a> {
    /// This program.
    pub(super) program: PathBuf,
    /// Data and logs.
    pub(super) home: &'a Path,
    pub(super) cold: &'a Url,
}

impl Nodes {
    /// Starts etcd, then bookies, gateways and offloaders, each when those before it serve.
    pub(super) async fn start(etcd: Etcd, at: &Places<'_>) -> Result<Self, Fault> {
        let metadata = etcd.uri("");
        let (cold, logs) = (at.cold.as_str(), at.home.join("logs"));
        std::fs::create_dir_all(&logs).map_err(|error| Fault::failed(format!("create {}: {error}", logs.display())))?;
        let spawn = async |role: &str, number: usize, own: Vec<String>, settings: &[&str]| {
            let mut arguments = vec![role.to_owned()];
            arguments.extend(["--listen", "127.0.0.1:0", "--metadata", &metadata].map(str::to_owned));
            arguments.extend(own);
            arguments.extend(settings.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
            Process::spawn(&at.program, &arguments, &logs.join(format!("{role}-{number}.log"))).await
        };
        let (mut bookies, mut offloaders, mut gateways) = (Vec::new(), Vec::new(), Vec::new());
        for number in 1..=BOOKIES {
            let id = format!("bookie-{number}");
            let dir = at.home.join(&id).display().to_string();
            let own = vec!["--id".to_owned(), id, "--dir".to_owned(), dir];
            bookies.push(spawn("bookie", number, own, &BOOKIE_SETTINGS).await?);
        }
        for number in 1..=GATEWAYS {
            let own = ["--id", &format!("gateway-{number}"), "--cold", cold].map(str::to_owned);
            gateways.push(spawn("gateway", number, own.to_vec(), &[]).await?);
        }
        for number in 1..=OFFLOADERS {
            let own = ["--cold", cold].map(str::to_owned);
            offloaders.push(spawn("offloader", number, own.to_vec(), &OFFLOADER_SETTINGS).await?);
        }
        let mut endpoints = Vec::new();
        for gateway in &gateways {
            endpoints.push(watch::Sender::new(gateway.endpoint()?.to_owned()));
        }
        Ok(Self { etcd, bookies, offloaders, gateways, endpoints })
    }

    /// Where the gateways are, now and after their restarts.
    pub(super) fn endpoints(&self) -> Endpoints {
        self.endpoints.iter().map(watch::Sender::subscribe).collect()
    }

    /// Starts a gateway again, and tells its callers where it is now.
    pub(super) async fn restart_gateway(&mut self, index: usize) -> Result<(), Fault> {
        self.gateways[index].restart().await?;
        let endpoint = self.gateways[index].endpoint()?.to_owned();
        self.endpoints[index].send_replace(endpoint);
        Ok(())
    }

    /// Starts etcd again on its data.
    pub(super) async fn restart_etcd(&mut self) -> Result<(), Fault> {
        self.etcd.restart().await.map_err(|error| Fault::failed(chain(&error)))
    }

    fn roles(&mut self) -> impl Iterator<Item = &mut Process> {
        self.gateways.iter_mut().chain(&mut self.offloaders).chain(&mut self.bookies)
    }

    /// Whether all processes that should run do.
    ///
    /// # Errors
    /// The one that ended by itself, with the end of its log.
    pub(super) fn check(&mut self) -> Result<(), Fault> {
        for process in self.roles() {
            if let Some(status) = process.ended()? {
                let (log, tail) = (process.log().display().to_string(), process.log_tail());
                return Err(Fault::failed(format!(
                    "a process ended by itself, {status}; its log {log} ends with:\n{tail}"
                )));
            }
        }
        Ok(())
    }

    /// Asks every process to stop, callers first; says which did not end well.
    pub(super) async fn stop(mut self) -> Result<(), Fault> {
        let mut first = None;
        for process in self.roles() {
            let fault = match process.terminate(STOP_DEADLINE).await {
                Ok(status) if status.success() => continue,
                Ok(status) => Fault::failed(format!(
                    "a process did not stop well, {status}; its log {} ends with:\n{}",
                    process.log().display(),
                    process.log_tail()
                )),
                Err(fault) => fault,
            };
            first.get_or_insert(fault);
        }
        self.etcd.kill();
        first.map_or(Ok(()), Err)
    }
}
