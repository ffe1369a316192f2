//! Runs a tool, shows what it prints while it prints it, and counts the tests in it.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Tests counted in the output of the standard test harness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// Runs `cargo` with `arguments` in `root`. Its output passes through; `Err` says how it ended.
pub(crate) fn cargo(
    root: &Path,
    arguments: &[String],
    variables: &[(&str, String)],
    counts: &mut Counts,
) -> Result<(), String> {
    let shown = format!("cargo {}", arguments.join(" "));
    println!("$ {shown}");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root).envs(variables.iter().map(|(name, value)| (name, value)));
    // Set by the cargo that runs this program; the next one would take them for its own crate's.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(name);
    }
    if let Some(flags) = std::env::var_os("RUSTFLAGS").and_then(|flags| flags.into_string().ok())
        && !flags.contains("tokio_unstable")
    {
        // The variable replaces the flags of .cargo/config.toml, and the simulation needs this one.
        command.env("RUSTFLAGS", format!("{flags} --cfg tokio_unstable"));
    }
    watched(&mut command, &shown, |line| counts.add(counted(line)))
}

/// Runs `command`, shown to people as `shown`; its output passes through, and each line of it to `look`. `Err` says how it ended.
pub(crate) fn watched(command: &mut Command, shown: &str, look: impl FnMut(&str)) -> Result<(), String> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("start {shown}: {error}"))?;
    if let Some(output) = child.stdout.take() {
        pass_on(output, &mut std::io::stdout().lock(), look);
    }
    let status = child.wait().map_err(|error| format!("wait for {shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}

fn pass_on(output: impl Read, screen: &mut impl Write, mut look: impl FnMut(&str)) {
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    // Bytes, not text: tests may print anything.
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let _ = screen.write_all(&line);
        let _ = screen.flush();
        look(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

/// `test result: ok. 42 passed; 0 failed; 0 ignored; …`
fn counted(line: &str) -> Counts {
    let Some((_, rest)) = line.trim().strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
        return Counts::default();
    };
    let count = |what: &str| {
        let part = rest.split("; ").find_map(|part| part.trim().strip_suffix(what));
        part.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    };
    Counts { passed: count("passed"), failed: count("failed"), ignored: count("ignored") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let line = "test result: FAILED. 42 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(counted(line), Counts { passed: 42, failed: 2, ignored: 1 });
        for other in ["test result: odd", "test a ... ok", "", "test result: ok. x passed"] {
            assert_eq!(counted(other), Counts::default());
        }
    }

    #[test]
    fn output_of_any_bytes_is_summed() {
        let mut counts = Counts::default();
        let output =
            b"\xff\xfe\ntest result: ok. 1 passed; 0 failed\nx\ntest result: ok. 2 passed; 0 failed; 0 ignored";
        let mut screen = Vec::new();
        pass_on(&output[..], &mut screen, |line| counts.add(counted(line)));
        assert_eq!(counts.passed, 3);
        assert_eq!(screen, output);
    }
}
