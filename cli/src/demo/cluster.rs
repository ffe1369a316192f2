//! The cluster demo: processes on this machine, written to and read from while one of each kind is killed with -9.
//!
//! The judge is the acknowledgement log that the writers keep (`acks`). Writers and readers (`load`) run while `chaos` kills; then
//! the writers stop, what is left is settled, and `proof` reads everything back and looks at metadata and objects itself.

mod acks;
mod chaos;
mod load;
mod nodes;
mod proof;
mod report;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::rng::Rng;
use common::shutdown::TaskTree;
use faults::{Etcd, EtcdError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use self::acks::AckLog;
use self::load::{Compared, Load};
use self::nodes::{Nodes, Places};
use self::proof::Evidence;
use self::report::Report;
use super::{Home, tell};
use crate::args::{DemoArgs, Output};
use crate::fault::chain;
use crate::roles::Signals;
use crate::{Fault, output};

const WRITERS: usize = 4;
const READERS: usize = 2;
const SECONDS: u64 = 40;
const ROUNDS: u32 = 2;
/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(5);

/// What happens, told with the time since the beginning.
struct Story {
    begun: Instant,
}

impl Story {
    fn tell(&self, line: &str) {
        tell(&format!("{:6.1} s  {line}", self.begun.elapsed().as_secs_f64()));
    }
}

/// Runs the cluster demo. Ok means that the verdict is a pass.
pub(super) async fn run(args: DemoArgs) -> Result<(), Fault> {
    let etcd = start_etcd(args.etcd.as_deref()).await?;
    let home = Home::prepare(args.dir.as_deref())?;
    let mut signals = Signals::listen()?;
    // The processes are in groups of their own: a terminal that closes reaches this one only.
    let mut hangup =
        signal(SignalKind::hangup()).map_err(|error| Fault::failed(format!("listen for signals: {error}")))?;
    // Dropping the demo kills every process it started.
    let outcome = tokio::select! {
        outcome = demo(&args, etcd, home.path()) => Some(outcome),
        () = signals.asked() => None,
        _ = hangup.recv() => None,
    };
    let Some(outcome) = outcome else {
        let _ = home.remove();
        return Err(Fault::failed("interrupted: every process of the demo is ended"));
    };
    let report = match outcome {
        Ok(report) => report,
        Err(fault) => {
            let kept = home.path().display();
            return Err(Fault::failed(format!("{fault} (data and logs of every role are kept in {kept})")));
        }
    };
    match args.output {
        Output::Table => println!("\n{}", report.to_table()),
        Output::Json => output::json(&report.to_json()),
    }
    match report.shortcomings().as_slice() {
        [] => home.remove(),
        shortcomings => Err(Fault::failed(format!(
            "the demo failed: {} (data and logs are kept in {})",
            shortcomings.join("; "),
            home.path().display()
        ))),
    }
}

async fn demo(args: &DemoArgs, etcd: Etcd, home: &Path) -> Result<Report, Fault> {
    let story = Story { begun: Instant::now() };
    let program = std::env::current_exe().map_err(|error| Fault::failed(format!("find this program: {error}")))?;
    let cold = match &args.cold {
        Some(cold) => cold.clone(),
        None => Url::from_directory_path(home.join("cold")).map_err(|()| Fault::usage("--dir is not a usable path"))?,
    };
    let metadata = etcd.uri("");
    story.tell(&format!("etcd serves at {metadata}; starting 3 bookies, 2 gateways and 2 offloaders as processes"));
    let mut nodes = Nodes::start(etcd, &Places { program, home, cold: &cold }).await?;
    story.tell(&format!("the cluster serves; data and logs in {}, objects in {cold}", home.display()));
    let evidence = Evidence::open(&metadata, &cold).await?;

    let load = Load {
        endpoints: nodes.endpoints(),
        acks: Arc::new(AckLog::create(&home.join("acknowledged.log"))?),
        tallies: Arc::default(),
        rng: Rng::from_os(),
        stop: TaskTree::root("load"),
    };
    let mut workers = JoinSet::new();
    for number in 0..WRITERS {
        workers.spawn(load.clone().write(number));
    }
    for _ in 0..READERS {
        workers.spawn(load.clone().read());
    }
    let (rounds, span) = (args.rounds.unwrap_or(ROUNDS), Duration::from_secs(args.seconds.unwrap_or(SECONDS)));
    let kills = tokio::select! {
        kills = chaos::run(&mut nodes, &story, &evidence, &load.tallies, rounds, span) => kills?,
        ended = workers.join_next() => {
            return Err(ended.map_or(Ok(()), joined).err().unwrap_or_else(|| Fault::failed("a writer or reader ended by itself")));
        }
        never = progress(&load, &evidence, &story) => match never {},
    };
    story.tell("the writers stop; each closes its ledger");
    load.stop.ask_to_stop();
    while let Some(ended) = workers.join_next().await {
        joined(ended)?;
    }
    load.acks.flush()?;
    let (entries, bytes) = load.acks.totals();
    story.tell(&format!("{} entries are acknowledged; waiting until every ledger is settled", output::count(entries)));
    evidence.wait_settled().await?;
    nodes.check()?;
    let read_back = proof::read_all(&load.acks, &load.endpoints, &story).await?;
    let found = evidence.examine(&load.acks).await?;
    story.tell(&format!("{} objects verified, each is named by one ledger", output::count(found.objects)));
    nodes.stop().await?;
    story.tell("every process has stopped in order");
    let tallies = &load.tallies;
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    Ok(Report {
        took: story.begun.elapsed(),
        entries,
        bytes,
        ledgers: load.acks.known().len() as u64,
        recovered: count(&tallies.recovered),
        read_meanwhile: Compared { hot: count(&tallies.read_hot), cold: count(&tallies.read_cold) },
        read_back,
        found,
        kills,
        longest: tallies.longest(),
        write_retries: count(&tallies.write_retries),
        read_retries: count(&tallies.read_retries),
    })
}

/// Starts the metadata store of the cluster, or says how to get it.
async fn start_etcd(program: Option<&Path>) -> Result<Etcd, Fault> {
    let started = match program {
        Some(program) => Etcd::start_program(program).await,
        None => Etcd::start().await,
    };
    started.map_err(|error| match (error, program) {
        (EtcdError::NotInstalled, None) => Fault::usage(
            "the cluster demo needs the program etcd: apt-get install -y --no-install-recommends etcd-server, or name it with --etcd PATH",
        ),
        (EtcdError::NotInstalled, Some(program)) => {
            Fault::usage(format!("--etcd {}: there is no such program", program.display()))
        }
        (other, _) => Fault::failed(chain(&other)),
    })
}

/// What a writer or reader ended with.
fn joined(ended: Result<Result<(), Fault>, JoinError>) -> Result<(), Fault> {
    ended.unwrap_or_else(|error| Err(Fault::failed(format!("a writer or reader panicked: {error}"))))
}

/// Tells now and then how far it is.
async fn progress(load: &Load, evidence: &Evidence, story: &Story) -> Infallible {
    loop {
        sleep(PROGRESS).await;
        let (entries, _) = load.acks.totals();
        let read = load.tallies.read_hot.load(Ordering::Relaxed) + load.tallies.read_cold.load(Ordering::Relaxed);
        let tiers = match timeout(PROGRESS, evidence.count()).await {
            Ok(Ok(found)) => format!(
                "ledgers: {} open, {} hot, {} settled, {} released",
                found.open, found.hot, found.settled, found.released
            ),
            _ => "metadata gives no answer".to_owned(),
        };
        story.tell(&format!(
            "{} entries acknowledged, {} read back; {tiers}",
            output::count(entries),
            output::count(read)
        ));
    }
}
