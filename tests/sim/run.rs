//! One run: a seed in, what happened out.

use std::fmt::Write as _;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::runtime::{Builder, RngSeed};

use crate::actors;
use crate::cluster::{Cluster, DISK_FAILURE};
use crate::history::{Counts, Violation};
use crate::judge;
use crate::nemesis::{Nemesis, Schedule};
use crate::storage::Honesty;
use crate::trace::{LogCapture, Trace};
use crate::world::World;

const BOOKIES: usize = 3;
/// Lines of the trace that a failure prints, unless more are asked for.
const TAIL_LINES: usize = 40;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub schedule: Schedule,
    pub honesty: Honesty,
    /// Simulated time under faults.
    pub span: Duration,
}

impl Plan {
    /// The usual run of a seed.
    pub fn of(seed: u64) -> Self {
        let schedule = if seed % 3 == 2 { Schedule::ManyAway } else { Schedule::OneAway };
        Self { seed, schedule, honesty: Honesty::Honest, span: Duration::from_secs(20) }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub plan: Plan,
    pub lines: Vec<String>,
    pub violations: Vec<Violation>,
    pub counts: Counts,
}

impl Outcome {
    /// Everything a person needs to begin with: the last `lines` of the trace above all.
    pub fn report(&self, lines: Option<u64>) -> String {
        let count = lines.map_or(TAIL_LINES, |lines| usize::try_from(lines).unwrap_or(usize::MAX));
        let mut text = format!("{:?}\n{:?}\n", self.plan, self.counts);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "trace digest {:016x}, its last lines:", Trace::digest(&self.lines));
        for line in &self.lines[self.lines.len().saturating_sub(count)..] {
            let _ = writeln!(text, "{line}");
        }
        for violation in &self.violations {
            let _ = writeln!(text, "{violation}");
        }
        let _ = writeln!(text, "replay with SIM_SEED={}", self.plan.seed);
        text
    }
}

/// Runs a plan on a runtime of its own, in which nothing but the seed decides.
pub fn run(plan: Plan) -> Outcome {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&plan.seed.to_be_bytes()))
        .build()
        .expect("a runtime without I/O needs nothing from the system");
    runtime.block_on(simulate(plan))
}

async fn simulate(plan: Plan) -> Outcome {
    let trace = Trace::new();
    let (capture, errors) = LogCapture::new(&trace);
    let logs = tracing::subscriber::set_default(capture);
    let world = World::new(plan.seed, &trace);
    let mut cluster = Cluster::start(&world, BOOKIES, plan.honesty);
    cluster.heal().await;

    let actors = [
        tokio::spawn(actors::writer(world.clone(), "writer-0")),
        tokio::spawn(actors::writer(world.clone(), "writer-1")),
        tokio::spawn(actors::recoverer(world.clone(), "recoverer-0")),
        tokio::spawn(actors::recoverer(world.clone(), "recoverer-1")),
        tokio::spawn(actors::reader(world.clone(), "reader")),
    ];
    Nemesis::new(&world, &mut cluster, plan.schedule).run(plan.span).await;
    world.end();
    cluster.heal().await;
    for actor in actors {
        if let Err(panic) = actor.await {
            world.history.violation(9, format!("a client's task panicked: {panic}"));
        }
    }

    judge::read_everything(&world, "judge").await;
    // What was true must be so after the power failed once more.
    (0..cluster.count()).for_each(|number| cluster.crash(number));
    cluster.heal().await;
    judge::read_everything(&world, "second judge").await;
    judge::try_old_writers(&world).await;
    for number in 0..cluster.count() {
        cluster.stop(number).await;
    }

    for line in errors.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // A bookie must say so when its disk has failed.
        if !line.contains(DISK_FAILURE) {
            world.history.violation(9, format!("an ERROR was logged: {line}"));
        }
    }
    drop(logs);
    Outcome { plan, lines: trace.lines(), violations: world.history.violations(), counts: world.history.counts() }
}
