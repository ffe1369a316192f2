//! BookKeeper's own Java client against our bookies: Maven compiles and runs `tests/interop/java`; and BookKeeper's own tests, in
//! [`official`].
//!
//! What the tests need from Maven's registry is fetched before they run, so that a registry which cannot be reached is told from a
//! test that fails. Only the former is a reason to skip.

mod official;
mod results;
mod suite;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lanes::{Context, Outcome};
use crate::members;
use crate::run::{self, Counts};

const PROJECT: &str = "tests/interop/java";
/// An integration test of the program's crate: compiling it compiles the program with the features that all tests have.
const PROGRAM: &str = "test --workspace --locked --no-run --test process";

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    /// BookKeeper's bookies instead of ours.
    apache: bool,
    /// The client of the old profile.
    old: bool,
    /// BookKeeper's own tests instead of ours.
    official: Option<official::Options>,
}

/// The lane of CI: the current client against our bookies, with our tests and with those of BookKeeper's that are quick.
pub(crate) fn lane(context: &Context<'_>, counts: &mut Counts) -> Result<Outcome, String> {
    match interop(context, &Options::default(), counts)? {
        Outcome::Done => official::official(context, &official::Options { fast: true, ..Default::default() }, counts),
        skipped @ Outcome::Skipped(_) => Ok(skipped),
    }
}

/// `interop [--bookies apache|thermocline] [--old] [--official [--fast] [--only CLASS] [--write-docs]]`
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<(), String> {
    let context = Context { root, members: members::read(root)?, variables: Vec::new() };
    let mut counts = Counts::default();
    let options = parse(options)?;
    let outcome = match &options.official {
        Some(official) => official::official(&context, official, &mut counts)?,
        None => interop(&context, &options, &mut counts)?,
    };
    match outcome {
        Outcome::Done => {
            println!("\n{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.ignored);
            Ok(())
        }
        // Who asks for it wants it run.
        Outcome::Skipped(reason) => Err(reason),
    }
}

fn parse(words: &[&str]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut official = official::Options::default();
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        let mut value = |names: &str| rest.next().ok_or_else(|| format!("{word} needs {names}"));
        match word {
            "--old" => options.old = true,
            "--official" => options.official = Some(official::Options::default()),
            "--bookies" => match value("apache or thermocline")? {
                kind @ ("apache" | "thermocline") => options.apache = kind == "apache",
                kind => return Err(format!("--bookies {kind}: use apache or thermocline")),
            },
            "--fast" => official.fast = true,
            "--write-docs" => official.write_docs = true,
            "--only" => official.only.push(value("a class of the list")?.to_owned()),
            _ => {
                let known = "--bookies apache|thermocline, --old, --official, --fast, --only CLASS or --write-docs";
                return Err(format!("unknown option {word}; use {known}"));
            }
        }
    }
    let asked = official != official::Options::default();
    match &mut options.official {
        Some(_) if options.old => return Err("--official and --old do not go together".to_owned()),
        Some(to) => *to = official::Options { apache: options.apache, ..official },
        None if asked => return Err("--fast, --only and --write-docs go with --official".to_owned()),
        None => {}
    }
    Ok(options)
}

fn interop(context: &Context<'_>, options: &Options, counts: &mut Counts) -> Result<Outcome, String> {
    let target = target(context.root);
    let version = if options.old { "old" } else { "current" };
    let mut arguments = vec![format!("-Dbuild.dir={}", target.join("interop-java").join(version).display())];
    arguments.extend(options.old.then(|| "-Pold".to_owned()));
    let fetching: Vec<String> = arguments.iter().cloned().chain(["-DskipTests".to_owned()]).collect();
    if let Fetched::Unreachable(reason) = fetch(context.root, PROJECT, &fetching, "test")? {
        return Ok(Outcome::Skipped(reason));
    }
    let bookies = if options.apache { "apache" } else { "thermocline" };
    if !options.apache {
        context.cargo(PROGRAM, &[], counts)?;
    }
    let program = target.join("debug/thermocline");
    arguments.extend([format!("-Dbookies={bookies}"), format!("-Dthermocline={}", program.display())]);
    let before = *counts;
    maven(context.root, PROJECT, &arguments, "test", |line| counts.add(counted(line)))?;
    if *counts == before { Err("Maven ran no test".to_owned()) } else { Ok(Outcome::Done) }
}

/// Whether Maven has all it needs.
enum Fetched {
    All,
    /// It has not, for a reason that is none of ours.
    Unreachable(String),
}

/// Runs Maven up to `phase`, so that what it needs is there and compiled.
fn fetch(root: &Path, project: &str, arguments: &[String], phase: &str) -> Result<Fetched, String> {
    for tool in ["mvn", "javac"] {
        if !starts(tool) {
            return Ok(Fetched::Unreachable(format!("no {tool}; scripts/setup --tests installs it")));
        }
    }
    let mut unreachable = false;
    let arguments: Vec<String> = ["-U".to_owned()].into_iter().chain(arguments.iter().cloned()).collect();
    match maven(root, project, &arguments, phase, |line| unreachable |= is_unreachable(line)) {
        Err(_) if unreachable => {
            let reason = "Maven's registry is not reachable, and its local copy lacks something";
            Ok(Fetched::Unreachable(reason.to_owned()))
        }
        other => other.map(|()| Fetched::All),
    }
}

/// Runs Maven up to `phase`. Nothing is written into the clone.
fn maven(root: &Path, project: &str, arguments: &[String], phase: &str, look: impl FnMut(&str)) -> Result<(), String> {
    let mut command = Command::new("mvn");
    command.args(["-B", "-ntp", "-Dstyle.color=never", "-f"]).arg(root.join(project).join("pom.xml"));
    command.args(arguments).arg(phase);
    let shown = format!("mvn -f {project}/pom.xml {} {phase}", arguments.join(" "));
    println!("$ {shown}");
    run::watched(&mut command, &shown, look)
}

/// Where cargo builds, and so does Maven.
fn target(root: &Path) -> PathBuf {
    // A relative one is meant from the folder that cargo runs in, which is the root.
    root.join(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

fn starts(tool: &str) -> bool {
    let version = Command::new(tool).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Whether Maven says that it could not ask its registry; that the registry has not got something reads otherwise.
fn is_unreachable(line: &str) -> bool {
    ["Could not transfer artifact", "Unknown host", "Connection refused", "Connect timed out"]
        .iter()
        .any(|words| line.contains(words))
}

/// The summary of a run: `[INFO] Tests run: 42, Failures: 0, Errors: 0, Skipped: 0`. Lines of single classes say the time as well.
fn counted(line: &str) -> Counts {
    let Some((_, rest)) = line.trim().split_once("] Tests run: ").filter(|_| !line.contains("Time elapsed")) else {
        return Counts::default();
    };
    let mut numbers = rest.split(", ").map(|part| {
        let number = part.rsplit(' ').next().unwrap_or(part);
        number.parse::<u64>().unwrap_or(0)
    });
    let mut next = || numbers.next().unwrap_or(0);
    let (run, failures, errors, skipped) = (next(), next(), next(), next());
    let failed = failures + errors;
    Counts { passed: run.saturating_sub(failed + skipped), failed, ignored: skipped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_counted_once() {
        let summary = "[INFO] Tests run: 42, Failures: 1, Errors: 2, Skipped: 3\n";
        assert_eq!(counted(summary), Counts { passed: 36, failed: 3, ignored: 3 });
        let class = "[INFO] Tests run: 8, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 3.4 s -- in interop.A";
        for other in [class, "[INFO] Tests are skipped.", "Tests run: x", ""] {
            assert_eq!(counted(other), Counts::default(), "{other}");
        }
    }

    #[test]
    fn only_an_unreachable_registry_is_a_reason_to_skip() {
        assert!(is_unreachable("[ERROR] Could not transfer artifact a:b:jar:1 from/to central: Unknown host"));
        assert!(!is_unreachable("[ERROR] Could not find artifact a:b:jar:1 in central"));
        assert!(!is_unreachable("[ERROR] COMPILATION ERROR : "));
    }

    #[test]
    fn options_are_read_in_any_order() {
        let ours = |apache, old| Ok(Options { apache, old, official: None });
        assert_eq!(parse(&[]), ours(false, false));
        assert_eq!(parse(&["--old", "--bookies", "apache"]), ours(true, true));
        assert_eq!(parse(&["--bookies", "thermocline", "--old"]), ours(false, true));
        let official = |words: &[&str]| parse(words).unwrap().official.unwrap();
        let only = vec!["a".to_owned(), "b".to_owned()];
        let expected = official::Options { apache: true, fast: true, only, write_docs: true };
        let words = ["--only", "a", "--fast", "--official", "--only", "b", "--bookies", "apache", "--write-docs"];
        assert_eq!(official(&words), expected);
        assert_eq!(official(&["--official"]), official::Options::default());
        for wrong in [&["--bookies", "other"][..], &["--odd"], &["--fast"], &["--official", "--old"], &["--only"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
