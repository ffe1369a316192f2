//! Metrics of the process itself and of its memory budgets.

use std::fs;
use std::time::Duration;

use common::budget::ByteBudget;
use common::clock::Clock;
use common::labels;
use common::metrics::{Def, Set};

use crate::health::{Condition, Health};

const RESIDENT: Def = Def::new("thermocline_process_resident_bytes", "Memory of the process that is in RAM.");
const OPEN_FILES: Def = Def::new("thermocline_process_open_files", "File descriptors the process has open.");
const OPEN_FILES_MAX: Def =
    Def::new("thermocline_process_open_files_max", "File descriptors the process may open (ulimit -n).");
const UPTIME: Def = Def::new("thermocline_process_uptime_seconds", "Time since the role was started.");
const BUILD: Def = Def::new("thermocline_build_info", "Always 1; the version and the role are in the labels.");
const CONDITION: Def = Def::new(
    "thermocline_process_condition",
    "1 for what the role is doing now, as /readyz tells it, 0 for everything else.",
);
const BUDGET_USED: Def = Def::new("thermocline_budget_used_bytes", "Memory admitted now by the budget of this name.");
const BUDGET_PEAK: Def =
    Def::new("thermocline_budget_peak_bytes", "Most memory ever admitted at one time by the budget of this name.");
const BUDGET_MAX: Def = Def::new("thermocline_budget_max_bytes", "Most memory the budget of this name admits.");
const BUDGET_WAITING: Def =
    Def::new("thermocline_budget_waiting_requests", "Requests that wait now for memory of the budget of this name.");
const BUDGET_WAITS: Def = Def::new(
    "thermocline_budget_waits",
    "Requests that had to wait, because the budget of this name was spent when they came.",
);

labels! {
    /// The conditions of [`Condition`], in the same order.
    enum State("condition") {
        Starting = "starting",
        Ready = "ready",
        ReadOnly = "read-only",
        Stalled = "stalled",
        Stopping = "stopping",
        Failed = "failed",
    }
}

impl From<&Condition> for State {
    fn from(condition: &Condition) -> Self {
        match condition {
            Condition::Starting => Self::Starting,
            Condition::Ready => Self::Ready,
            Condition::ReadOnly { .. } => Self::ReadOnly,
            Condition::Stalled { .. } => Self::Stalled,
            Condition::Stopping => Self::Stopping,
            Condition::Failed { .. } => Self::Failed,
        }
    }
}

/// The process: memory, descriptors, uptime, build, and what the role is doing.
pub(crate) fn process(health: &Health) -> Set {
    let mut set = Set::new();
    set.computed(RESIDENT, resident_bytes);
    set.computed(OPEN_FILES, || Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64));
    set.computed(OPEN_FILES_MAX, || {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.map(|max| max as f64)
    });
    let clock = Clock::system();
    let start = clock.now();
    set.computed(UPTIME, move || Some(clock.now().duration_since(start).max(Duration::ZERO).as_secs_f64()));
    let health = health.clone();
    let role = health.role();
    set.computed_by(CONDITION, move |state: State| Some(f64::from(State::from(&health.condition()) == state)));
    let mut build = Set::new();
    build.computed(BUILD, || Some(1.0));
    set.add(build.with_label("version", env!("CARGO_PKG_VERSION")).with_label("role", role));
    set
}

/// Memory budgets, told apart by their names. Budgets of one name are added up.
pub fn budgets(budgets: &[ByteBudget]) -> Set {
    let mut by_name: Vec<(&'static str, Vec<ByteBudget>)> = Vec::new();
    for budget in budgets {
        match by_name.iter_mut().find(|(name, _)| *name == budget.name()) {
            Some((_, same)) => same.push(budget.clone()),
            None => by_name.push((budget.name(), vec![budget.clone()])),
        }
    }
    let mut set = Set::new();
    for (name, same) in by_name {
        let sum = |value: fn(&ByteBudget) -> u64| {
            let same = same.clone();
            move || Some(same.iter().map(value).sum::<u64>() as f64)
        };
        let mut one = Set::new();
        one.computed(BUDGET_USED, sum(ByteBudget::used_bytes));
        one.computed(BUDGET_PEAK, sum(ByteBudget::peak_bytes));
        one.computed(BUDGET_MAX, sum(ByteBudget::limit_bytes));
        one.computed(BUDGET_WAITING, sum(|budget| budget.waiting() as u64));
        one.computed_counter(BUDGET_WAITS, sum(ByteBudget::waits));
        set.add(one.with_label("budget", name));
    }
    set
}

/// From /proc; nothing where there is none.
fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}
