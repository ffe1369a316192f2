//! BookKeeper's own Java client against our bookies: Maven compiles and runs `tests/interop/java`.
//!
//! What the tests need from Maven's registry is fetched before they run, so that a registry which cannot be reached is told from a
//! test that fails. Only the former is a reason to skip.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lanes::{Context, Outcome};
use crate::members;
use crate::run::{self, Counts};

const PROJECT: &str = "tests/interop/java";
/// An integration test of the program's crate: compiling it compiles the program with the features that all tests have.
const PROGRAM: &str = "test --workspace --locked --no-run --test process";

/// What to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Options {
    /// BookKeeper's bookies instead of ours.
    apache: bool,
    /// The client of the old profile.
    old: bool,
}

/// The lane of CI: the current client against our bookies.
pub(crate) fn lane(context: &Context<'_>, counts: &mut Counts) -> Result<Outcome, String> {
    interop(context, Options::default(), counts)
}

/// `interop [--bookies apache|thermocline] [--old]`
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<(), String> {
    let context = Context { root, members: members::read(root)?, variables: Vec::new() };
    let mut counts = Counts::default();
    match interop(&context, parse(options)?, &mut counts)? {
        Outcome::Done => {
            println!("\n{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.ignored);
            Ok(())
        }
        // Who asks for it wants it run.
        Outcome::Skipped(reason) => Err(reason),
    }
}

fn parse(options: &[&str]) -> Result<Options, String> {
    match options {
        [] => Ok(Options::default()),
        ["--old", rest @ ..] => Ok(Options { old: true, ..parse(rest)? }),
        ["--bookies", kind @ ("apache" | "thermocline"), rest @ ..] => {
            Ok(Options { apache: *kind == "apache", ..parse(rest)? })
        }
        _ => Err(format!("unknown option {:?}; use --bookies apache|thermocline or --old", options.join(" "))),
    }
}

fn interop(context: &Context<'_>, options: Options, counts: &mut Counts) -> Result<Outcome, String> {
    for tool in ["mvn", "javac"] {
        if !starts(tool) {
            return Ok(Outcome::Skipped(format!("no {tool}; scripts/setup --tests installs it")));
        }
    }
    let target = target(context.root);
    let mut unreachable = false;
    let fetched = maven(context.root, &target, options, &["-U".to_owned(), "-DskipTests".to_owned()], |line| {
        unreachable |= is_unreachable(line);
    });
    match fetched {
        Err(_) if unreachable => {
            let reason = "Maven's registry is not reachable, and its local copy lacks something";
            return Ok(Outcome::Skipped(reason.to_owned()));
        }
        other => other?,
    }
    let bookies = if options.apache { "apache" } else { "thermocline" };
    if !options.apache {
        context.cargo(PROGRAM, &[], counts)?;
    }
    let program = target.join("debug/thermocline");
    let properties = [format!("-Dbookies={bookies}"), format!("-Dthermocline={}", program.display())];
    let before = *counts;
    maven(context.root, &target, options, &properties, |line| counts.add(counted(line)))?;
    if *counts == before { Err("Maven ran no test".to_owned()) } else { Ok(Outcome::Done) }
}

/// Runs Maven up to the tests. Nothing is written into the clone.
fn maven(
    root: &Path,
    target: &Path,
    options: Options,
    properties: &[String],
    look: impl FnMut(&str),
) -> Result<(), String> {
    let version = if options.old { "old" } else { "current" };
    let mut command = Command::new("mvn");
    command.args(["-B", "-ntp", "-Dstyle.color=never", "-f"]).arg(root.join(PROJECT).join("pom.xml"));
    command.arg(format!("-Dbuild.dir={}", target.join("interop-java").join(version).display()));
    command.args(options.old.then_some("-Pold")).args(properties).arg("test");
    let shown = format!("mvn -f {PROJECT}/pom.xml {} test", properties.join(" "));
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
        assert_eq!(parse(&[]), Ok(Options::default()));
        assert_eq!(parse(&["--old", "--bookies", "apache"]), Ok(Options { apache: true, old: true }));
        assert_eq!(parse(&["--bookies", "thermocline", "--old"]), Ok(Options { apache: false, old: true }));
        assert!(parse(&["--bookies", "other"]).is_err() && parse(&["--odd"]).is_err());
    }
}
