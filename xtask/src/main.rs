//! `cargo xtask`: the one entry to everything that checks this repository. It launches the tools and needs nothing but `std`.

mod ci;
mod interop;
mod lanes;
mod members;
mod run;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask <command>

  ci                      formatting, lints, house rules, then every test lane; what `make test` runs
  test                    only the test lanes: tests, one run of each benchmark, simulation, crashes, Java client
  tidy                    house rules: manifests, arrows between crates, forbidden words, docs
  sim [--minutes N | --seeds N | --seed S]
                          the simulation for N minutes of new seeds, for the first N seeds, or for one seed again
  sim [--disk-seeds N | --disk-seed S]
                          bookies whose lives end at any call to their disk, for the first N seeds, or for one seed again
  crash [--rounds N] [--seed S]
                          processes killed at random moments (N rounds) and at each step, full disks
  interop [--bookies apache] [--old]
                          BookKeeper's Java client against our bookies, or as a control against its own; --old: version 4.14
  interop --official [--bookies apache] [--fast | --only CLASS] [--write-docs]
                          BookKeeper's own tests, all, those that CI runs, or those of one class; --write-docs: the table
                          in docs/compatibility.md, from what these and earlier runs left
  bench NAME [OPTIONS]    `thermocline bench NAME` from a release build: append, catchup, bookie, cold-read, offload, report
  bench micro [NAME] [-- ARGS]
                          the benchmarks of hot pure code, or the one named

A test that must skip a lane (a tool is missing) appends a line to the file named by THERMOCLINE_SKIPS, if that is set:
  SKIPPED lane=<name> reason=<text>
`ci`, `test` and `crash` set it and report these lines in their last lines.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words = arguments.iter().map(String::as_str);
    let command = words.next().unwrap_or("help");
    let rest: Vec<&str> = words.collect();
    let root = root();
    let outcome = match (command, rest.as_slice()) {
        ("ci", []) => ci::run(&root, lanes::Selection::All),
        ("test", []) => ci::run(&root, lanes::Selection::Tests),
        ("tidy", []) => tidy::run(&root),
        ("sim", options) => lanes::simulate(&root, options),
        ("crash", options) => lanes::crash(&root, options),
        ("interop", options) => interop::run(&root, options),
        ("bench", ["micro", options @ ..]) => lanes::bench_micro(&root, options),
        ("bench", [name, options @ ..]) => lanes::bench(&root, name, options),
        ("help" | "--help" | "-h", _) => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("unknown command: {}\n\n{USAGE}", arguments.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The repository: cargo tells a running binary where its manifest is now; the path at compile time may be another clone's.
fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let mut root = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    root.pop();
    root
}
