//! The main job, whole, on real logs: write to bookies, settle into Parquet, release, replay from either tier, compare.

mod cluster;
mod input;
mod report;
mod steps;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use input::{Input, LINE_BYTES_MAX, Lines};
pub use report::{ColdProof, Rate, Report};
use steps::Demo;

use crate::args::{DemoArgs, Output};
use crate::standalone::Node;
use crate::{Fault, Settings, output};

/// How long bookies keep a settled ledger in the demo.
const HOT_RETENTION: Duration = Duration::from_secs(2);
const ROLL_BYTES_MIN: u64 = 256 * 1024;
const ROLL_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Runs the demo. Ok means that the verdict is a pass.
pub async fn run(args: DemoArgs) -> Result<(), Fault> {
    if args.cluster {
        return cluster::run(args).await;
    }
    let remote_store = args.cold.as_ref().is_some_and(|url| url.scheme() != "file");
    let input = if args.input.is_empty() {
        if remote_store {
            return Err(Fault::usage(
                "the default input is this machine's own logs, and they do not leave it unasked: name what to write to the remote store with --input",
            ));
        }
        Input::default_logs()?
    } else {
        Input::named(&args.input)?
    };
    tell_input(&input);

    let home = Home::prepare(args.dir.as_deref())?;
    let roll_bytes = (input.bytes() / 16).clamp(ROLL_BYTES_MIN, ROLL_BYTES_MAX);
    let settings = Settings::for_demo(home.path(), args.cold.as_ref(), roll_bytes, HOT_RETENTION);
    let node = Node::start(settings).await?;
    tell(&format!(
        "node: 3 bookies, offloader and gateway in this process, data in {}, cold store {}",
        home.path().display(),
        node.cold_store()
    ));

    let demo = Demo { input, roll_bytes, prove_cold: args.prove_cold };
    // A dead critical task must end the run with its cause, not with a time-out.
    let failed = node.failed();
    let outcome = tokio::select! {
        outcome = demo.run(&node) => outcome,
        cause = failed => Err(Fault::failed(format!("the node stopped: {cause}"))),
    };
    let report = match outcome {
        Ok(report) => report,
        Err(fault) => {
            let refusals = node.read_only_bookies().await;
            let _ = node.stop().await;
            let refusals: String = refusals.iter().map(|refusal| format!("; {refusal}")).collect();
            let kept = home.path().display();
            return Err(Fault::failed(format!("{fault}{refusals} (the node's data is kept in {kept} for a look)")));
        }
    };
    match args.output {
        Output::Table => println!("\n{}", report.to_table()),
        Output::Json => output::json(&report.to_json()),
    }
    let shortcomings = report.shortcomings();
    if args.keep {
        keep_running(node, &home, report.first_ledger).await?;
    } else {
        node.stop().await?;
        home.remove()?;
    }
    if shortcomings.is_empty() {
        Ok(())
    } else {
        Err(Fault::failed(format!("the demo failed: {}", shortcomings.join("; "))))
    }
}

/// Progress and facts go to standard error; standard output has the result alone.
fn tell(line: &str) {
    eprintln!("{line}");
}

/// Lists what will be read and what was passed over: each file while they are few, each folder otherwise.
fn tell_input(input: &Input) {
    tell(&format!("input: {} in {} files", output::bytes(input.bytes()), output::count(input.files.len() as u64)));
    if input.files.len() <= 24 {
        for (path, bytes) in &input.files {
            tell(&format!("  {:>11}  {}", output::bytes(*bytes), output::printable(&path.display().to_string())));
        }
    } else {
        for (folder, (files, bytes)) in by_folder(&input.files) {
            tell(&format!(
                "  {:>11}  {} ({files} files)",
                output::bytes(bytes),
                output::printable(&folder.display().to_string())
            ));
        }
    }
    let mut reasons: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
    for (path, reason) in &input.skipped {
        reasons.entry(reason).or_default().push(path);
    }
    for (reason, paths) in reasons {
        let names: Vec<String> =
            paths.iter().take(3).map(|path| output::printable(&path.display().to_string())).collect();
        let more = if paths.len() > 3 { format!(" and {} more", paths.len() - 3) } else { String::new() };
        tell(&format!("  skipped ({reason}): {}{more}", names.join(", ")));
    }
}

/// Sums files by a folder near the root of the list: four levels below / say where something is without drowning the reader.
fn by_folder(files: &[(PathBuf, u64)]) -> BTreeMap<PathBuf, (u64, u64)> {
    let mut folders = BTreeMap::new();
    let common = files.iter().map(|(path, _)| path.parent().unwrap_or(path)).fold(None::<PathBuf>, |common, folder| {
        Some(match common {
            None => folder.to_owned(),
            Some(common) => {
                common.components().zip(folder.components()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
            }
        })
    });
    let depth = common.map_or(0, |common| common.components().count()) + 3;
    for (path, bytes) in files {
        let folder: PathBuf = path.parent().unwrap_or(path).components().take(depth).collect();
        let sum = folders.entry(folder).or_insert((0, 0));
        sum.0 += 1;
        sum.1 += bytes;
    }
    folders
}

/// Where the demo's node keeps its data: a folder the user named, or one of ours under /var/tmp. (Not /tmp, which is memory on
/// many systems.)
struct Home {
    path: PathBuf,
    ours: bool,
}

impl Home {
    fn prepare(named: Option<&Path>) -> Result<Self, Fault> {
        match named {
            Some(path) => {
                std::fs::create_dir_all(path)
                    .map_err(|error| Fault::usage(format!("--dir {}: {error}", path.display())))?;
                let mut entries = std::fs::read_dir(path)
                    .map_err(|error| Fault::usage(format!("--dir {}: {error}", path.display())))?;
                if entries.next().is_some() {
                    return Err(Fault::usage(format!(
                        "--dir {} is not empty: name a new folder, the demo must not touch what is there",
                        path.display()
                    )));
                }
                let path =
                    path.canonicalize().map_err(|error| Fault::usage(format!("--dir {}: {error}", path.display())))?;
                Ok(Self { path, ours: false })
            }
            None => {
                let base = Path::new("/var/tmp");
                let base = if base.is_dir() { base.to_owned() } else { std::env::temp_dir() };
                let path = base.join(format!("thermocline-demo-{}", std::process::id()));
                std::fs::create_dir(&path).map_err(|error| {
                    Fault::usage(format!("create {}: {error}; name a folder with --dir", path.display()))
                })?;
                Ok(Self { path, ours: true })
            }
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn remove(&self) -> Result<(), Fault> {
        if !self.ours {
            return Ok(());
        }
        std::fs::remove_dir_all(&self.path)
            .map_err(|error| Fault::failed(format!("remove {}: {error}", self.path.display())))
    }
}

/// Prints only commands that work on this machine, then waits for Ctrl-C.
async fn keep_running(node: Node, home: &Home, ledger: u64) -> Result<(), Fault> {
    let program = std::env::current_exe().map_or_else(|_| "thermocline".to_owned(), |path| path.display().to_string());
    let endpoint = node.endpoint();
    let mut lines = vec![
        format!("{program} status --endpoint {endpoint}"),
        format!("{program} ledger ls --endpoint {endpoint}"),
        format!("{program} ledger show {ledger} --endpoint {endpoint}"),
        format!("{program} ledger read {ledger} --to 5 --framing raw --endpoint {endpoint}"),
        format!("du -sh {}", home.path().join("bookie-*").display()),
    ];
    if let Some(folder) = node.cold_store().strip_prefix("file://") {
        lines.push(format!("find {folder} -name '*.parquet' -ls"));
        if let Some(object) = first_object(Path::new(folder)) {
            if runs("duckdb", &["--version"]) {
                lines.push(format!(
                    "duckdb -c \"select ledger_id, entry_id, payload from '{}' limit 5\"",
                    object.display()
                ));
            }
            if runs("python3", &["-c", "import pyarrow.parquet"]) {
                lines.push(format!(
                    "python3 -c \"import pyarrow.parquet as p; print(p.read_table('{}').slice(0, 5).to_pylist())\"",
                    object.display()
                ));
            }
        }
    }
    tell("\nthe node is still running; in another terminal:");
    for line in lines {
        tell(&format!("  {line}"));
    }
    tell(&format!("Ctrl-C stops it; its data stays in {} (remove it when done)", home.path().display()));
    if std::io::stderr().is_terminal() {
        tell("");
    }
    node.run_until_interrupted().await
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    let quiet = std::process::Stdio::null;
    std::process::Command::new(program)
        .args(arguments)
        .stdin(quiet())
        .stdout(quiet())
        .stderr(quiet())
        .status()
        .is_ok_and(|status| status.success())
}

fn first_object(folder: &Path) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
        .iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "parquet"))
        .cloned()
        .or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|path| first_object(path)))
}
