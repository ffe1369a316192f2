use std::io::Write as _;

/// The variable that names the file in which tests note what they skip; `cargo xtask` sets it and tells what stands there.
const FILE: &str = "THERMOCLINE_SKIPS";

/// Records that a lane of tests could not run here, for the closing summary of the test command: `SKIPPED lane=… reason=…` on
/// standard output, and in the file that `THERMOCLINE_SKIPS` names.
///
/// # Panics
/// When that file cannot be written: a skip that nobody is told of would pass for a test.
#[allow(clippy::print_stdout)]
pub fn skipped(lane: &str, reason: &str) {
    let line = format!("SKIPPED lane={lane} reason={reason}");
    println!("{line}");
    let Some(path) = std::env::var_os(FILE) else { return };
    let noted = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    if let Err(error) = noted.and_then(|mut file| writeln!(file, "{line}")) {
        panic!("note a skip in {}: {error}", path.display());
    }
}
