//! What each lane runs. One set of features serves all of them (`--workspace` always), so that no lane compiles the
//! dependencies anew; the targets are named, so that no test runs in two lanes.

use std::path::Path;
use std::process::Command;

use crate::ci;
use crate::interop;
use crate::members::{self, Member};
use crate::run::{self, Counts};
use crate::tidy;

/// The lives of one bookie that end at any call to its disk.
const DISK_LIVES: &str =
    "test --workspace --locked --lib -- --nocapture --exact tests::cuts::lives_that_end_at_any_call_to_the_disk";
/// The integration test that is the simulation; it has a lane of its own.
const SIMULATION: &str = "sim";
/// The one that kills processes; it has a lane of its own too.
const CRASH: &str = "crash";
/// One after the other, so that each kind of kill has the machine to itself, and with their counts shown.
const CRASH_TESTS: &str = "test --workspace --locked --test crash -- --nocapture --test-threads 1";
/// The variable that names the file in which the crash tests leave their counts.
const CRASH_COUNTS: &str = "THERMOCLINE_CRASH_COUNTS";

/// Which lanes to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    Tests,
}

/// What a lane came to.
pub(crate) enum Outcome {
    Done,
    Skipped(String),
}

/// Everything a lane needs.
pub(crate) struct Context<'a> {
    pub(crate) root: &'a Path,
    pub(crate) members: Vec<Member>,
    /// Variables for the tools.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// A lane: its name and what it does.
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Context<'_>, &mut Counts) -> Result<Outcome, String>,
}

/// The lanes in the order of how soon they find a fault.
pub(crate) fn lanes(selection: Selection) -> Vec<Lane> {
    let checks =
        [Lane { name: "fmt", run: fmt }, Lane { name: "tidy", run: house_rules }, Lane { name: "clippy", run: clippy }];
    let tests = [
        Lane { name: "test", run: tests },
        Lane { name: "bench-once", run: bench_once },
        Lane { name: "sim", run: simulation },
        Lane { name: "crash", run: crash_lane },
        Lane { name: "interop", run: interop::lane },
    ];
    match selection {
        Selection::All => checks.into_iter().chain(tests).collect(),
        Selection::Tests => tests.into(),
    }
}

fn fmt(context: &Context<'_>, counts: &mut Counts) -> Result<Outcome, String> {
    context.cargo("fmt --all --check", &[], counts)
}

fn clippy(context: &Context<'_>, counts: &mut Counts) -> Result<Outcome, String> {
    context.cargo("clippy --workspace --all-targets --locked -- -D warnings", &[], counts)
}

fn house_rules(context: &Context<'_>, _: &mut Counts) -> Result<Outcome, String> {
    tidy::run(context.root)?;
    Ok(Outcome::Done)
}

/// Unit, property, conformance and end-to-end tests, then the examples in the documentation.
fn tests(context: &Context<'_>, counts: &mut Counts) -> Result<Outcome, String> {
    let targets =
        context.members.iter().flat_map(Member::test_targets).filter(|name| *name != SIMULATION && *name != CRASH);
    let named: Vec<String> = targets.flat_map(|name| ["--test".to_owned(), name.clone()]).collect();
    context.cargo("test --workspace --locked --no-fail-fast --lib --bins", &named, counts)?;
    context.cargo("test --workspace --locked --no-fail-fast --doc", &[], counts)
}

/// Each benchmark once, as a test, so that none rots.
fn bench_once(context: &Context<'_>, counts: &mut Counts) -> Result<Outcome, String> {
    let targets = context.members.iter().flat_map(Member::bench_targets);
    let named: Vec<String> = targets.flat_map(|name| ["--bench".to_owned(), name.clone()]).collect();
    if named.is_empty() {
        return Ok(Outcome::Skipped("there are no benchmarks yet".to_owned()));
    }
    context.cargo("test --workspace --locked", &named, counts)
}

fn simulation(context: &Context<'_>, counts: &mut Counts) -> Result<Outcome, String> {
    let exists = context.members.iter().flat_map(Member::test_targets).any(|name| name == SIMULATION);
    if !exists {
        return Ok(Outcome::Skipped("there is no simulation yet".to_owned()));
    }
    context.cargo("test --workspace --locked --test sim", &[], counts)
}

fn crash_lane(context: &Context<'_>, counts: &mut Counts) -> Result<Outcome, String> {
    context.cargo(CRASH_TESTS, &[], counts)
}

impl Context<'_> {
    pub(crate) fn cargo(&self, words: &str, more: &[String], counts: &mut Counts) -> Result<Outcome, String> {
        let arguments: Vec<String> = words.split(' ').map(str::to_owned).chain(more.iter().cloned()).collect();
        run::cargo(self.root, &arguments, &self.variables, counts)?;
        Ok(Outcome::Done)
    }
}

/// `sim [--minutes N | --seeds N | --seed S | --disk-seeds N | --disk-seed S]`
pub(crate) fn simulate(root: &Path, options: &[&str]) -> Result<(), String> {
    let (mut variables, mut disk) = (Vec::new(), false);
    for pair in options.chunks(2) {
        let (name, wanted) = match pair.first() {
            Some(&"--disk-seeds") => ("THERMOCLINE_DISK_SEEDS", "a number of seeds"),
            Some(&"--disk-seed") => ("THERMOCLINE_DISK_SEED", "a seed"),
            Some(&"--minutes") => ("SIM_MINUTES", "a number of minutes"),
            Some(&"--seeds") => ("SIM_SEEDS", "a number of seeds"),
            Some(&"--seed") => ("SIM_SEED", "a seed"),
            _ => {
                return Err(format!(
                    "unknown option {:?}; use --minutes N, --seeds N, --seed S, --disk-seeds N or --disk-seed S",
                    pair.join(" ")
                ));
            }
        };
        disk |= name.starts_with("THERMOCLINE_DISK");
        let value = pair.get(1).and_then(|text| text.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("{} needs {wanted}", pair.join(" ")))?;
        variables.push((name, value.to_string()));
    }
    let context = Context { root, members: members::read(root)?, variables };
    let mut counts = Counts::default();
    if disk {
        return context.cargo(DISK_LIVES, &[], &mut counts).map(|_| ());
    }
    let exists = context.members.iter().flat_map(Member::test_targets).any(|name| name == SIMULATION);
    if !exists {
        return Err("there is no simulation: tests/sim/main.rs is missing".to_owned());
    }
    // Only the seeds: that a seed repeats itself, and that the judge convicts, is tested with everything else.
    let seeds =
        "test --workspace --locked --test sim -- --nocapture --exact what_was_acknowledged_is_there_through_faults";
    context.cargo(seeds, &[], &mut counts).map(|_| ())
}

/// `crash [--rounds N] [--seed S]`: the crash tests one after the other; what they did and what they skipped in the last lines.
pub(crate) fn crash(root: &Path, options: &[&str]) -> Result<(), String> {
    let counts_file = std::env::temp_dir().join(format!("thermocline-crash-{}", std::process::id()));
    let skips_file = counts_file.with_extension("skips");
    let mut variables =
        vec![(CRASH_COUNTS, counts_file.display().to_string()), (ci::SKIPS, skips_file.display().to_string())];
    for pair in options.chunks(2) {
        let (name, wanted) = match pair.first() {
            Some(&"--rounds") => ("CRASH_ROUNDS", "a number of rounds"),
            Some(&"--seed") => ("CRASH_SEED", "a seed"),
            _ => return Err(format!("unknown option {:?}; use --rounds N or --seed S", pair.join(" "))),
        };
        let value = pair.get(1).and_then(|text| text.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("{} needs {wanted}", pair.join(" ")))?;
        variables.push((name, value.to_string()));
    }
    let context = Context { root, members: members::read(root)?, variables };
    let done = context.cargo(CRASH_TESTS, &[], &mut Counts::default());
    let told = std::fs::read_to_string(&counts_file).unwrap_or_default();
    let skips = ci::noted_skips(&std::fs::read_to_string(&skips_file).unwrap_or_default());
    for file in [&counts_file, &skips_file] {
        let _ = std::fs::remove_file(file);
    }
    done?;
    println!("{told}");
    for skip in &skips {
        println!("skipped: {skip}");
    }
    // Who asks for rounds gets them, or hears that there were none.
    if !skips.is_empty() && options.contains(&"--rounds") {
        return Err(format!("rounds were asked for and not all could run: {}", skips.join("; ")));
    }
    Ok(())
}

/// `bench NAME [OPTIONS]`: the program's own benches, as users run them. Figures of another build mean nothing.
pub(crate) fn bench(root: &Path, name: &str, options: &[&str]) -> Result<(), String> {
    let described = Command::new("git")
        .args(["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"])
        .current_dir(root)
        .output();
    let commit = described.ok().filter(|output| output.status.success());
    let commit = commit.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let variables = vec![("THERMOCLINE_COMMIT", commit)];
    let context = Context { root, members: Vec::new(), variables };
    let more: Vec<String> = std::iter::once(&name).chain(options).map(|word| (*word).to_owned()).collect();
    let words = "run --release --locked --package cli --bin thermocline -- bench";
    context.cargo(words, &more, &mut Counts::default()).map(|_| ())
}

/// `bench micro [NAME] [-- ARGS]`
pub(crate) fn bench_micro(root: &Path, options: &[&str]) -> Result<(), String> {
    let context = Context { root, members: members::read(root)?, variables: Vec::new() };
    let known: Vec<&String> = context.members.iter().flat_map(Member::bench_targets).collect();
    let mut more = Vec::new();
    let mut rest = options;
    if let Some((first, others)) = options.split_first()
        && *first != "--"
    {
        if !known.iter().any(|name| name == first) {
            let known: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
            return Err(format!("no benchmark {first:?}; there are: {}", known.join(", ")));
        }
        more.extend(["--bench".to_owned(), (*first).to_owned()]);
        rest = others;
    } else {
        more.extend(known.iter().flat_map(|name| ["--bench".to_owned(), (*name).clone()]));
    }
    if more.is_empty() {
        return Err("there are no benchmarks yet".to_owned());
    }
    more.extend(rest.iter().map(|word| (*word).to_owned()));
    context.cargo("bench --workspace --locked", &more, &mut Counts::default()).map(|_| ())
}
