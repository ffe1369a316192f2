//! One run: a seed in, what happened out.

use std::any::Any;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use turmoil::{Builder, Sim};

use crate::actors::{self, READERS, RECOVERERS, WRITERS};
use crate::bookies;
use crate::disk::{DISK_FAILURE, Honesty};
use crate::history::{Counts, Violation};
use crate::judge::{self, JUDGE, Order, Orders};
use crate::nemesis::{Nemesis, Schedule, crash};
use crate::store::METADATA;
use crate::tiering::{self, GATEWAY, OFFLOADER};
use crate::trace::{LogCapture, Messages, Trace};
use crate::world::{BOOKIES, World};

/// Lines of the trace that a failure prints, unless more are asked for.
const TAIL_LINES: usize = 40;
/// How much simulated time passes between two looks at the network.
const TICK: Duration = Duration::from_millis(4);
/// How often [`Plan::lag`] is wasted.
const LAG_STEPS: u64 = 32;
/// How long starting everything may take: an old registration ends by itself first.
const START_LIMIT: Duration = Duration::from_secs(180);
/// How long those who use the world may take to end what they do.
const END_LIMIT: Duration = Duration::from_secs(300);
/// How long the judge may take.
const JUDGE_LIMIT: Duration = Duration::from_secs(3_600);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub schedule: Schedule,
    pub honesty: Honesty,
    /// Simulated time under faults.
    pub span: Duration,
    /// Real time that is wasted now and then: nothing may depend on how fast the machine is.
    pub lag: Duration,
}

impl Plan {
    /// The usual run of a seed.
    pub fn of(seed: u64) -> Self {
        let schedule = if seed % 3 == 2 { Schedule::ManyAway } else { Schedule::OneAway };
        Self { seed, schedule, honesty: Honesty::Honest, span: Duration::from_secs(20), lag: Duration::ZERO }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub plan: Plan,
    pub lines: Vec<String>,
    pub messages: Messages,
    pub violations: Vec<Violation>,
    pub counts: Counts,
}

impl Outcome {
    /// Everything a person needs to begin with: the last `lines` of the trace above all.
    pub fn report(&self, lines: Option<u64>) -> String {
        let count = lines.map_or(TAIL_LINES, |lines| usize::try_from(lines).unwrap_or(usize::MAX));
        let mut text = format!("{:?}\n{:?}\n{:?}\n", self.plan, self.counts, self.messages);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "trace of {} lines, digest {:016x}, its last lines:",
            self.lines.len(),
            Trace::digest(&self.lines)
        );
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

/// Runs a plan in a simulation of its own, in which nothing but the seed decides.
pub fn run(plan: Plan) -> Outcome {
    let trace = Trace::new();
    let (capture, errors) = LogCapture::new(&trace);
    let logs = tracing::subscriber::set_default(capture);
    let world = World::new(plan.seed, plan.honesty, &trace);
    // A panic of a host stops the simulation; it is what happened.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| simulate(plan, &world))) {
        world.history.violation(9, format!("a host panicked: {}", panic_text(&*panic)));
    }
    for line in errors.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // A bookie must say so when its disk has failed.
        if !line.contains(DISK_FAILURE) {
            world.history.violation(9, format!("an ERROR was logged: {line}"));
        }
    }
    drop(logs);
    let messages = trace.messages();
    let answers = world.metadata_faults.get().map(|store| store.hits()).unwrap_or_default();
    world.history.count(|counts| {
        counts.lost = messages.lost;
        counts.unknown_applied = answers.applied_unknown;
        counts.unknown_not_applied = answers.not_applied_unknown;
        // Those that were injected and not met yet have done nothing.
        counts.object_faults -= world.objects.outstanding() as u64;
    });
    let (violations, counts) = (world.history.violations(), world.history.counts());
    Outcome { plan, lines: trace.lines(), messages, violations, counts }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// A simulation under way.
struct Running<'a> {
    sim: Sim<'a>,
    world: World,
    lag: Duration,
    steps: u64,
}

fn simulate(plan: Plan, world: &World) {
    let orders = Orders::default();
    let sim = build(plan, world, &orders);
    let mut running = Running { sim, world: world.clone(), lag: plan.lag, steps: 0 };
    if !running.until("start", START_LIMIT, |running| running.all_serve()) {
        return;
    }

    let mut nemesis = Nemesis::new(world, &orders, plan.schedule, running.sim.elapsed());
    let end = running.sim.elapsed() + plan.span;
    while running.sim.elapsed() < end && running.step() {
        nemesis.act(&mut running.sim);
    }
    world.end();
    nemesis.finish(&mut running.sim);
    running.sim.set_fail_rate(0.0);
    let users: Vec<&str> = WRITERS.into_iter().chain(RECOVERERS).chain(READERS).collect();
    let ended =
        |running: &mut Running<'_>| running.all_serve() && users.iter().all(|user| !running.sim.is_host_running(*user));
    if !running.until("end what is under way", END_LIMIT, ended) {
        return;
    }

    if !running.judge(&orders, Order::ReadEverything("judge")) {
        return;
    }
    // What was true must be so after the power failed once more, for everyone.
    for node in world.nodes.iter() {
        running.restart(&node.name);
        node.ended();
    }
    world.gateway_serves.store(false, std::sync::atomic::Ordering::Relaxed);
    running.restart(GATEWAY);
    running.restart(OFFLOADER);
    let judged = running.until("start again", START_LIMIT, |running| running.all_serve())
        && running.judge(&orders, Order::ReadEverything("second judge"))
        && running.judge(&orders, Order::TryOldWriters);
    if !judged {
        return;
    }
    for node in world.nodes.iter() {
        node.stop.send_replace(true);
    }
    let stopped = |running: &mut Running<'_>| {
        let world = running.world.clone();
        world.nodes.iter().all(|node| !running.sim.is_host_running(node.name.as_str()))
    };
    running.until("stop", bookies::STOP_LIMIT * 2, stopped);
}

/// The hosts and the network between them.
fn build(plan: Plan, world: &World, orders: &Orders) -> Sim<'static> {
    let mut builder = Builder::new();
    builder
        .rng_seed(plan.seed)
        .epoch(SystemTime::UNIX_EPOCH)
        .tick_duration(TICK)
        .min_message_latency(Duration::ZERO)
        .max_message_latency(Duration::from_millis(40))
        .tcp_capacity(4096)
        .enable_random_order();
    // Half of the runs lose a message now and then, and with it the connection.
    if plan.seed % 2 == 1 {
        builder.fail_rate(0.0005);
    }
    builder.fs().block_size(bookie::disk::BLOCK_BYTES as u64);
    let mut sim = builder.build();
    // Where every host has an address before anyone looks it up, the order of look-ups decides nothing.
    let at = world.clone();
    sim.host(METADATA, move || tiering::metadata_host(at.clone()));
    for number in 0..BOOKIES {
        let at = world.clone();
        sim.host(world.nodes[number].name.as_str(), move || bookies::run(at.clone(), number));
    }
    let at = world.clone();
    sim.host(GATEWAY, move || tiering::gateway_host(at.clone()));
    let at = world.clone();
    sim.host(OFFLOADER, move || tiering::offloader_host(at.clone()));
    for name in WRITERS {
        let at = world.clone();
        sim.host(name, move || actors::writer(at.clone(), name));
    }
    for name in RECOVERERS {
        let at = world.clone();
        sim.host(name, move || actors::recoverer(at.clone(), name));
    }
    let [hot, gateway] = READERS;
    let at = world.clone();
    sim.host(hot, move || actors::reader(at.clone(), hot));
    let at = world.clone();
    sim.host(gateway, move || actors::gateway_reader(at.clone(), gateway));
    let (at, orders) = (world.clone(), orders.clone());
    sim.host(JUDGE, move || judge::run(at.clone(), orders.clone()));
    sim
}

impl Running<'_> {
    /// Lets every host run for a tick; false when there is a violation, so that a trace ends where it went wrong.
    fn step(&mut self) -> bool {
        self.steps += 1;
        if self.steps.is_multiple_of(LAG_STEPS) && !self.lag.is_zero() {
            std::thread::sleep(self.lag);
        }
        self.world.trace.outside(None);
        let stepped = self.sim.step();
        self.world.trace.outside(Some(self.sim.elapsed()));
        if let Err(error) = &stepped {
            self.world.history.violation(9, format!("a host gave up: {error}"));
        }
        self.world.history.is_clean()
    }

    /// Runs until something holds; false, and a violation, when it does not within `limit`.
    fn until(&mut self, what: &str, limit: Duration, holds: impl Fn(&mut Self) -> bool) -> bool {
        let end = self.sim.elapsed() + limit;
        while !holds(self) {
            if !self.step() {
                return false;
            }
            if self.sim.elapsed() > end {
                self.world.history.violation(8, format!("{what}: not within {limit:?}"));
                return false;
            }
        }
        true
    }

    fn all_serve(&self) -> bool {
        let gateway = self.world.gateway_serves.load(std::sync::atomic::Ordering::Relaxed);
        gateway && self.world.nodes.iter().all(|node| node.serves())
    }

    fn judge(&mut self, orders: &Orders, order: Order) -> bool {
        orders.give(order);
        self.until("judge", JUDGE_LIMIT, |_| orders.are_done())
    }

    fn restart(&mut self, host: &str) {
        self.world.trace.note(format_args!("{host} crashes at the end"));
        crash(&mut self.sim, &self.world, host, |_| false);
        self.sim.bounce(host);
    }
}
