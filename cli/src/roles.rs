//! The roles as processes of their own: what a cluster is made of. Each composes the same parts as the standalone node does, over
//! metadata that all of them share.
//!
//! Start order within a role: its listener first, so that a busy port is told before anything is touched; then metadata, for which
//! it waits a little, the object store, and what it serves. When it serves it prints one line: `ready role=… address=…`.
//! Stop order is the reverse, and all of it together ends within [`STOP_DEADLINE`].

mod bookie;
pub(crate) mod compose;
pub(crate) mod door;
pub(crate) mod front;
mod gateway;
mod offloader;

use std::net::IpAddr;
use std::time::Duration;

use common::shutdown::{StopError, TaskTree};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

pub(crate) use self::bookie::run as run_bookie;
pub(crate) use self::gateway::{bind_bookkeeper, memory as gateway_memory, run as run_gateway};
pub(crate) use self::offloader::run as run_offloader;
use crate::Fault;
use crate::admin::{self, Admin};
use crate::fault::chain;
use crate::health::Health;

/// How long the orderly stop of a role may take.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// The line that says that a role serves: the word `ready`, then `key=value` pairs. Scripts and supervisors wait for it.
pub(crate) fn print_ready(role: &str, facts: &[(&str, &str)]) {
    let facts: String = facts.iter().map(|(key, value)| format!(" {key}={value}")).collect();
    println!("ready role={role}{facts}");
}

/// The signals that ask for an orderly stop. From its creation on they no longer end the process by themselves.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Fault> {
        let listen = |kind| signal(kind).map_err(|error| Fault::failed(format!("listen for signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            // A closed terminal or a lost connection: what was started must be ended too.
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }

    /// Waits for a signal, or for the death of a critical task, whose cause it returns.
    pub(crate) async fn wait(&mut self, tasks: &TaskTree) -> Option<String> {
        tokio::select! {
            () = self.asked() => None,
            cause = tasks.failed() => Some(cause),
        }
    }
}

/// What is left of the time for an orderly stop.
pub(crate) struct Patience(Instant);

impl Patience {
    pub(crate) fn new() -> Self {
        Self(Instant::now() + STOP_DEADLINE)
    }

    pub(crate) fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Metrics and health of a role, shown from before it starts until after it has stopped.
pub(crate) struct Watched {
    pub(crate) admin: Admin,
    /// Where they are served, unless that is off.
    pub(crate) address: Option<String>,
    tasks: TaskTree,
}

impl Watched {
    /// Serves them at the setting `admin`, for a role whose tasks are `tasks` and whose front listens on `listen`.
    pub(crate) async fn start(role: &'static str, tasks: &TaskTree, admin: &str, listen: &str) -> Result<Self, Fault> {
        let shown = Admin::new(Health::starting(role, tasks));
        let tasks = TaskTree::root("admin");
        let address = match admin::address(admin, listen) {
            Some(address) => Some(admin::serve(admin::bind(&address).await?, shown.clone(), &tasks)),
            None => None,
        };
        Ok(Self { admin: shown, address, tasks })
    }

    pub(crate) async fn stop(&self, deadline: Duration) -> Result<(), StopError> {
        self.tasks.stop(deadline).await
    }
}

/// Says that a role serves, serves until a signal or the death of a critical task, then stops in the order that `stop` knows.
///
/// # Errors
/// The cause, when it was a task's death; or what would not stop in time.
async fn serve_until_told(
    role: &'static str,
    facts: &[(&str, &str)],
    watched: Watched,
    tasks: TaskTree,
    stop: impl AsyncFnOnce(&Patience) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut signals = Signals::listen()?;
    watched.admin.health.ready();
    let admin = watched.address.as_deref().map(|address| ("admin", address));
    print_ready(role, &facts.iter().copied().chain(admin).collect::<Vec<_>>());
    let died = signals.wait(&tasks).await;
    watched.admin.health.stopping();
    tracing::info!(role, "stopping");
    let patience = Patience::new();
    let stopped = stop(&patience).await;
    let stopped = match tasks.stop(patience.left()).await {
        Ok(()) => stopped,
        Err(late) => stopped.and(Err(failed(late))),
    };
    if let Err(late) = watched.stop(patience.left()).await {
        tracing::warn!(%late, "connections to metrics and health are cut off");
    }
    match died {
        Some(cause) => Err(Fault::failed(format!("the {role} stopped: {cause}"))),
        None => stopped,
    }
}

/// Whether a host stands for every address of the machine, which is none that others reach.
pub(crate) fn is_for_all(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
}

/// The address to tell others: the advertised one, or the one that was bound if others can reach it.
fn advertised(role: &str, bound: &str, advertise: &str) -> Result<String, Fault> {
    let Some((host, _)) = bound.rsplit_once(':') else { return Ok(bound.to_owned()) };
    if advertise.is_empty() {
        if is_for_all(host) {
            return Err(Fault::usage(format!(
                "--listen {bound} takes connections on every address, but others must be told one: give the {role} --advertise HOST:PORT"
            )));
        }
        return Ok(bound.to_owned());
    }
    let usable = advertise.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !is_for_all(host) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if !usable {
        return Err(Fault::usage(format!(
            "--advertise {advertise}: write the host and port that others reach, as in 10.0.0.7:3181"
        )));
    }
    Ok(advertise.to_owned())
}

fn failed(error: impl std::error::Error) -> Fault {
    Fault::failed(chain(&error))
}

fn usage(error: impl std::error::Error) -> Fault {
    Fault::usage(chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_an_address_that_they_can_reach() {
        assert_eq!(advertised("bookie", "127.0.0.1:3181", "").unwrap(), "127.0.0.1:3181");
        assert_eq!(advertised("bookie", "0.0.0.0:3181", "db1.example:3181").unwrap(), "db1.example:3181");
        for (bound, advertise) in [
            ("0.0.0.0:3181", ""),
            ("[::]:3181", ""),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("127.0.0.1:1", "host"),
            ("127.0.0.1:1", "host:0"),
        ] {
            let fault = advertised("bookie", bound, advertise).unwrap_err();
            assert_eq!(fault.exit_code(), 2);
            assert!(fault.to_string().contains("--advertise"), "{fault}");
        }
    }
}
