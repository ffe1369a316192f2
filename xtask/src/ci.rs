//! Runs the lanes one after the other and says what came of it.

use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::lanes::{self, Context, Outcome, Selection};
use crate::members;
use crate::run::Counts;

/// The variable that names the file in which tests note what they skip.
pub(crate) const SKIPS: &str = "THERMOCLINE_SKIPS";

/// Runs the lanes; stops at the first that fails.
pub(crate) fn run(root: &Path, selection: Selection) -> Result<(), String> {
    let skips_file = std::env::temp_dir().join(format!("thermocline-skips-{}", std::process::id()));
    let _ = fs::remove_file(&skips_file);
    let variables = vec![(SKIPS, skips_file.display().to_string())];
    let context = Context { root, members: members::read(root)?, variables };
    let mut counts = Counts::default();
    let mut skips: Vec<String> = Vec::new();
    let mut minutes: Vec<String> = Vec::new();
    for lane in lanes::lanes(selection) {
        println!("\n==== {} ====", lane.name);
        let started = now();
        let outcome = (lane.run)(&context, &mut counts);
        let took = format!("{} {:.1} min", lane.name, started.elapsed().as_secs_f64() / 60.0);
        match outcome {
            Ok(Outcome::Done) => minutes.push(took),
            Ok(Outcome::Skipped(reason)) => skips.push(format!("{}: {reason}", lane.name)),
            Err(cause) => {
                let _ = fs::remove_file(&skips_file);
                println!("\n{} passed, {} failed before the run stopped", counts.passed, counts.failed);
                return Err(format!("lane {took}: FAILED: {cause}"));
            }
        }
    }
    skips.extend(noted_skips(&fs::read_to_string(&skips_file).unwrap_or_default()));
    let _ = fs::remove_file(&skips_file);
    if counts.ignored > 0 {
        return Err(format!("{} tests are ignored; a test runs, notes its lane as skipped, or goes", counts.ignored));
    }
    print!("{}", summary(counts, &skips, &minutes));
    Ok(())
}

/// The lanes named in the skips file, each once.
pub(crate) fn noted_skips(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("SKIPPED lane=") else { continue };
        let (lane, reason) = rest.split_once(" reason=").unwrap_or((rest, "no reason given"));
        let skip = format!("{lane}: {reason}");
        if !found.contains(&skip) {
            found.push(skip);
        }
    }
    found
}

fn summary(counts: Counts, skips: &[String], minutes: &[String]) -> String {
    let Counts { passed, failed, .. } = counts;
    let lanes = if skips.len() == 1 { "lane" } else { "lanes" };
    let why = if skips.is_empty() { String::new() } else { format!(" ({})", skips.join("; ")) };
    format!(
        "\n{passed} passed, {failed} failed, {skipped} {lanes} skipped{why}\nlanes: {minutes}\n{passed} passed, {failed} failed, {skipped} skipped\n",
        skipped = skips.len(),
        minutes = minutes.join(", "),
    )
}

pub(crate) fn now() -> Instant {
    // This program runs tools by the wall; it is no part of what is simulated.
    #[allow(clippy::disallowed_methods)]
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_told_once_with_their_reason() {
        let noted = "SKIPPED lane=parquet-python reason=no pyarrow\nother\nSKIPPED lane=parquet-python reason=no pyarrow\nSKIPPED lane=s3\n";
        assert_eq!(noted_skips(noted), ["parquet-python: no pyarrow", "s3: no reason given"]);
    }

    #[test]
    fn the_last_line_is_plain() {
        let counts = Counts { passed: 317, failed: 0, ignored: 0 };
        let text = summary(
            counts,
            &["parquet-python: no pyarrow".to_owned()],
            &["fmt 0.1 min".to_owned(), "test 9.0 min".to_owned()],
        );
        let expected = "\n317 passed, 0 failed, 1 lane skipped (parquet-python: no pyarrow)\nlanes: fmt 0.1 min, test 9.0 min\n317 passed, 0 failed, 1 skipped\n";
        assert_eq!(text, expected);
        assert!(summary(counts, &[], &[]).contains("317 passed, 0 failed, 0 lanes skipped\n"));
    }
}
