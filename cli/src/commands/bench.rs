//! `thermocline bench …`: runs a bench of the `bench` crate, prints its rows, writes them as JSON.

use std::path::{Path, PathBuf};

use bench::{Machine, Plan, Row, Scale, report};
use common::blocking::run_blocking;
use url::Url;

use crate::args::{BenchArgs, BenchCommand};
use crate::{Fault, output};

type Bench = fn(&Plan) -> bench::Result<Vec<Row>>;

/// Exit code 1 also says that a figure cannot be true.
pub(super) async fn run(command: BenchCommand) -> Result<(), Fault> {
    match command {
        BenchCommand::Append(args) => measure(args, None, bench::append::run).await,
        BenchCommand::Catchup(args) => measure(args, None, bench::catchup::run).await,
        BenchCommand::Bookie(args) => measure(args, None, bench::bookie_node::run).await,
        BenchCommand::ColdRead(args) => measure(args.common, args.store, bench::cold_read::run).await,
        BenchCommand::Offload(args) => measure(args.common, args.store, bench::offload::run).await,
        BenchCommand::Report { files, json } => write_report(&files, json.as_deref()),
    }
}

/// The bench's own folder; removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make(dir: &Path) -> Result<Self, Fault> {
        let path = dir.join(format!("thermocline-bench-{}", std::process::id()));
        let made = std::fs::create_dir_all(&path).and_then(|()| path.canonicalize());
        made.map(Self)
            .map_err(|error| Fault::usage(format!("make {}: {error}; choose another with --dir", path.display())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("bench: remove {}: {error}", self.0.display());
        }
    }
}

async fn measure(args: BenchArgs, store: Option<Url>, bench: Bench) -> Result<(), Fault> {
    let build = if cfg!(debug_assertions) { "dev" } else { "release" };
    if build == "dev" {
        eprintln!(
            "bench: warning: this is a development build, its figures mean nothing (rows are marked \"build\": \"dev\"); use `cargo xtask bench` or a release build"
        );
    }
    let scale = match (args.smoke, args.quick) {
        (true, _) => Scale::Smoke,
        (_, true) => Scale::Quick,
        _ => Scale::Full,
    };
    let scratch = Scratch::make(&args.dir)?;
    let machine = Machine::read(&scratch.0).to_string();
    let load_before = bench::load_average();
    eprintln!("bench: {machine}; load average {load_before:.1}");
    let mut plan = Plan::new(scratch.0.clone(), scale, Box::new(|step| eprintln!("bench: {step}")));
    plan.store = store;
    let work = run_blocking("bench", move || bench(&plan));
    let outcome = tokio::select! {
        outcome = work => outcome,
        _ = tokio::signal::ctrl_c() => return Err(Fault::failed("bench: interrupted")),
    };
    let mut rows = outcome.map_err(|error| Fault::failed(format!("bench: {error}")))?;
    drop(scratch);
    let (commit, load) = (bench::commit(), [load_before, bench::load_average()]);
    for row in &mut rows {
        row.stamp(&machine, &commit, build, load);
    }
    print_rows(&rows);
    if let Some(path) = &args.json {
        write_json(path, &rows)?;
    }
    refuse_the_impossible(&rows)
}

fn print_rows(rows: &[Row]) {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| report::cells(row).to_vec()).collect();
    println!("{}", output::table(&report::COLUMNS, &cells, &[2, 3, 4]));
    let mut limit = "";
    for row in rows {
        println!("\n{} {}", row.id, row.what);
        if limit != row.limit_is {
            limit = &row.limit_is;
            println!("  limit: {limit}");
        }
        println!("  {}", report::facts(row));
    }
}

fn write_json(path: &Path, rows: &[Row]) -> Result<(), Fault> {
    let mut text = serde_json::to_string_pretty(rows).map_err(|error| Fault::failed(format!("write JSON: {error}")))?;
    text.push('\n');
    std::fs::write(path, text).map_err(|error| Fault::usage(format!("write {}: {error}", path.display())))
}

fn write_report(files: &[PathBuf], json: Option<&Path>) -> Result<(), Fault> {
    let mut rows: Vec<Row> = Vec::new();
    for path in files {
        let text = std::fs::read(path).map_err(|error| Fault::usage(format!("read {}: {error}", path.display())))?;
        let read: Vec<Row> = serde_json::from_slice(&text)
            .map_err(|error| Fault::usage(format!("read {}: these are no rows of a bench: {error}", path.display())))?;
        rows.extend(read);
    }
    if let Some(path) = json {
        write_json(path, &rows)?;
    }
    print!("{}", report::markdown(&rows));
    refuse_the_impossible(&rows)
}

fn refuse_the_impossible(rows: &[Row]) -> Result<(), Fault> {
    let faults: Vec<String> = rows.iter().filter_map(Row::fault).collect();
    if faults.is_empty() { Ok(()) } else { Err(Fault::failed(faults.join("\n"))) }
}
