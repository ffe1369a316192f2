//! The demo's verdict, as a table or one JSON object.

use std::time::Duration;

use serde_json::json;

use crate::output;

/// One step's work and time.
#[derive(Debug, Clone)]
pub struct Rate {
    /// The step, as the JSON key: `write`, `offload`, …
    pub step: &'static str,
    /// Payload bytes that went through it.
    pub bytes: u64,
    /// Entries that went through it.
    pub entries: u64,
    /// How long it took.
    pub took: Duration,
}

impl Rate {
    fn mib_per_second(&self) -> f64 {
        self.bytes as f64 / (1024.0 * 1024.0) / self.took.as_secs_f64().max(1e-9)
    }

    fn entries_per_second(&self) -> f64 {
        self.entries as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// What a replay of ledgers from objects alone showed.
#[derive(Debug, Clone)]
pub struct ColdProof {
    /// Entries replayed with the bookies stopped and their directories deleted.
    pub entries: u64,
    /// Whether their SHA-256 equals that of the same part of the input.
    pub sha_equal: bool,
}

/// What the demo did and found.
#[derive(Debug, Clone)]
pub struct Report {
    /// Files read.
    pub files: u64,
    /// Payload bytes written.
    pub bytes_in: u64,
    /// Allocated bytes of all bookie directories after writing.
    pub bytes_bookies_before: u64,
    /// The same after release.
    pub bytes_bookies_after: u64,
    /// The most that `bytes_bookies_after` may be: a tenth of three copies of the payload, the hot ledger's share of what the
    /// bookies held after writing, and an open segment a bookie.
    pub bytes_bookies_allowed: u64,
    /// Bytes of all objects.
    pub bytes_objects: u64,
    /// Objects written.
    pub objects: u64,
    /// Ledgers written.
    pub ledgers: u64,
    /// The id of the first of them.
    pub first_ledger: u64,
    /// Entries written.
    pub entries: u64,
    /// Entries of the replay that bookies served.
    pub entries_hot: u64,
    /// Entries of the replay that objects served.
    pub entries_cold: u64,
    /// SHA-256 of what was written, in hex.
    pub sha_in: String,
    /// SHA-256 of what was replayed, in hex.
    pub sha_out: String,
    /// Whether every ledger came back with all its entries in order.
    pub in_order: bool,
    /// The process's peak resident memory.
    pub peak_rss_bytes: u64,
    /// Step by step.
    pub rates: Vec<Rate>,
    /// The proof without bookies, when asked for.
    pub prove_cold: Option<ColdProof>,
}

impl Report {
    /// Whether what came back is what went in.
    pub fn sha_equal(&self) -> bool {
        self.sha_in == self.sha_out
    }

    /// What is not as it must be; empty for a pass.
    pub fn shortcomings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !self.sha_equal() {
            found.push(format!("the replay's SHA-256 is {}, the input's {}", self.sha_out, self.sha_in));
        }
        if !self.in_order || self.entries_hot + self.entries_cold != self.entries {
            found.push(format!(
                "{} entries were written, {} came back{}",
                self.entries,
                self.entries_hot + self.entries_cold,
                if self.in_order { "" } else { ", not in order" }
            ));
        }
        if self.objects < 4 {
            found.push(format!("{} objects were written, at least 4 are needed", self.objects));
        }
        if self.entries_hot == 0 || self.entries_cold == 0 {
            found
                .push(format!("entries came from one tier only: {} hot, {} cold", self.entries_hot, self.entries_cold));
        }
        if self.bytes_bookies_after > self.bytes_bookies_allowed {
            found.push(format!(
                "the bookies still hold {}, allowed are {}",
                output::bytes(self.bytes_bookies_after),
                output::bytes(self.bytes_bookies_allowed)
            ));
        }
        if self.prove_cold.as_ref().is_some_and(|proof| !proof.sha_equal) {
            found.push("the replay from objects alone differs from the input".to_owned());
        }
        found
    }

    /// One JSON object.
    pub fn to_json(&self) -> serde_json::Value {
        let rates: serde_json::Map<_, _> = self
            .rates
            .iter()
            .map(|rate| {
                let row = json!({
                    "seconds": rate.took.as_secs_f64(),
                    "mib_per_second": rate.mib_per_second(),
                    "entries_per_second": rate.entries_per_second(),
                });
                (rate.step.to_owned(), row)
            })
            .collect();
        let mut value = json!({
            "passed": self.shortcomings().is_empty(),
            "files": self.files,
            "bytes_in": self.bytes_in,
            "bytes_bookies_before": self.bytes_bookies_before,
            "bytes_bookies_after": self.bytes_bookies_after,
            "bytes_bookies_allowed": self.bytes_bookies_allowed,
            "bytes_objects": self.bytes_objects,
            "objects": self.objects,
            "ledgers": self.ledgers,
            "entries": self.entries,
            "entries_hot": self.entries_hot,
            "entries_cold": self.entries_cold,
            "sha256": self.sha_in,
            "sha_equal": self.sha_equal(),
            "peak_rss_bytes": self.peak_rss_bytes,
            "rates": rates,
        });
        if let Some(proof) = &self.prove_cold {
            value["prove_cold"] = json!({ "entries": proof.entries, "sha_equal": proof.sha_equal });
        }
        value
    }

    /// The table for people, ending with the verdict.
    pub fn to_table(&self) -> String {
        let mut rows = vec![
            row(
                "input",
                format!(
                    "{} in {} files, {} entries",
                    output::bytes(self.bytes_in),
                    output::count(self.files),
                    output::count(self.entries)
                ),
            ),
            row("ledgers", output::count(self.ledgers)),
            row(
                "bookies, after writing",
                format!("{} (three copies, allocated)", output::bytes(self.bytes_bookies_before)),
            ),
            row(
                "bookies, after release",
                format!(
                    "{} (at most {} allowed)",
                    output::bytes(self.bytes_bookies_after),
                    output::bytes(self.bytes_bookies_allowed)
                ),
            ),
            row(
                "objects",
                format!(
                    "{} in {}, {:.2} × smaller than the input",
                    output::bytes(self.bytes_objects),
                    self.objects,
                    self.bytes_in as f64 / self.bytes_objects.max(1) as f64
                ),
            ),
            row(
                "replayed",
                format!("{} entries hot, {} cold", output::count(self.entries_hot), output::count(self.entries_cold)),
            ),
        ];
        if let Some(proof) = &self.prove_cold {
            let verdict = if proof.sha_equal { "equal" } else { "DIFFERENT" };
            rows.push(row(
                "from objects alone",
                format!("{} entries with no bookie left, SHA-256 {verdict}", output::count(proof.entries)),
            ));
        }
        rows.push(row("peak memory", output::bytes(self.peak_rss_bytes)));
        rows.push(row("SHA-256", format!("{} {}", self.sha_in, if self.sha_equal() { "equal" } else { "DIFFERENT" })));
        let rates: Vec<Vec<String>> = self
            .rates
            .iter()
            .map(|rate| {
                vec![
                    rate.step.to_owned(),
                    output::duration(rate.took),
                    format!("{:.1}", rate.mib_per_second()),
                    output::count(rate.entries_per_second() as u64),
                ]
            })
            .collect();
        let facts = output::table(&["", ""], &rows, &[]);
        let steps = output::table(&["step", "time", "MiB/s", "entries/s"], &rates, &[1, 2, 3]);
        let shortcomings = self.shortcomings();
        let verdict = if shortcomings.is_empty() {
            "PASSED: everything written came back equal, from both tiers, and the bookies' space is free again."
                .to_owned()
        } else {
            format!("FAILED: {}.", shortcomings.join("; "))
        };
        format!("{}\n\n{steps}\n\n{verdict}", facts.trim_start_matches(['\n', ' ']))
    }
}

fn row(name: &str, value: String) -> Vec<String> {
    vec![name.to_owned(), value]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Report {
        Report {
            files: 2,
            bytes_in: 1000,
            bytes_bookies_before: 6000,
            bytes_bookies_after: 400,
            bytes_bookies_allowed: 500,
            bytes_objects: 200,
            objects: 4,
            ledgers: 5,
            first_ledger: 1,
            entries: 10,
            entries_hot: 2,
            entries_cold: 8,
            sha_in: "ab".into(),
            sha_out: "ab".into(),
            in_order: true,
            peak_rss_bytes: 1 << 20,
            rates: vec![Rate { step: "write", bytes: 1000, entries: 10, took: Duration::from_secs(1) }],
            prove_cold: None,
        }
    }

    #[test]
    fn a_good_run_passes_and_says_so() {
        let report = good();
        assert!(report.shortcomings().is_empty());
        assert!(report.to_table().ends_with("space is free again."));
        assert_eq!(report.to_json()["sha_equal"], true);
        assert_eq!(report.to_json()["rates"]["write"]["entries_per_second"], 10.0);
    }

    #[test]
    fn each_requirement_fails_the_verdict_on_its_own() {
        type Spoil = fn(&mut Report);
        let cases: [(&str, Spoil); 7] = [
            ("SHA-256", |report| report.sha_out = "cd".into()),
            ("came back", |report| report.entries_cold = 7),
            ("not in order", |report| report.in_order = false),
            ("at least 4", |report| report.objects = 3),
            ("one tier only", |report| (report.entries_hot, report.entries_cold) = (0, 10)),
            ("still hold", |report| report.bytes_bookies_after = 501),
            ("objects alone", |report| report.prove_cold = Some(ColdProof { entries: 8, sha_equal: false })),
        ];
        for (word, spoil) in cases {
            let mut report = good();
            spoil(&mut report);
            let found = report.shortcomings();
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert!(found[0].contains(word), "{word}: {found:?}");
            assert!(report.to_table().contains("FAILED"));
        }
    }
}
