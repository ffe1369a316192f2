//! The verdict of the cluster demo.

use std::time::Duration;

use serde_json::json;

use super::chaos::{Kills, Phase};
use super::load::Compared;
use super::proof::Found;
use crate::output;

/// What the demo did and found.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) took: Duration,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    pub(super) ledgers: u64,
    /// Ledgers that were closed by recovery.
    pub(super) recovered: u64,
    /// What readers compared while processes died.
    pub(super) read_meanwhile: Compared,
    /// What was read back at the end, through each gateway.
    pub(super) read_back: Vec<Compared>,
    pub(super) found: Found,
    pub(super) kills: Kills,
    pub(super) longest: [Duration; Phase::ALL.len()],
    pub(super) write_retries: u64,
    pub(super) read_retries: u64,
}

impl Report {
    /// What is not as it must be; empty for a pass. What was lost or wrong has ended the run before.
    pub(super) fn shortcomings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.entries == 0 {
            found.push("nothing was acknowledged".to_owned());
        }
        if self.read_meanwhile.hot + self.read_meanwhile.cold == 0 {
            found.push("nothing was read while processes died".to_owned());
        }
        if self.recovered == 0 {
            found.push("no ledger was closed by recovery, though a gateway was killed under its writers".to_owned());
        }
        for (number, read) in (1..).zip(&self.read_back) {
            let read = read.hot + read.cold;
            if read != self.entries {
                found.push(format!("{} entries were acknowledged, gateway-{number} gave {read}", self.entries));
            }
        }
        if self.found.objects != self.found.settled + self.found.released {
            found.push(format!(
                "{} ledgers are settled or released, {} objects are named",
                self.found.settled + self.found.released,
                self.found.objects
            ));
        }
        if self.found.objects == 0 {
            found.push("no ledger was settled".to_owned());
        }
        for phase in Phase::ALL.into_iter().filter(|phase| *phase != Phase::Calm) {
            if self.kills[phase as usize] == 0 {
                found.push(format!("no {} was killed", phase.name()));
            }
        }
        found
    }

    fn killed(&self) -> Vec<String> {
        let phases = Phase::ALL.into_iter().filter(|phase| *phase != Phase::Calm);
        phases.map(|phase| format!("{} {}", self.kills[phase as usize], phase.name())).collect()
    }

    fn waits(&self) -> Vec<String> {
        let phases = Phase::ALL.into_iter();
        phases.map(|phase| format!("{} {}", phase.name(), output::duration(self.longest[phase as usize]))).collect()
    }

    pub(super) fn to_table(&self) -> String {
        let count = output::count;
        let read = |read: &Compared| format!("{} hot, {} cold, all equal", count(read.hot), count(read.cold));
        let found = &self.found;
        let mut rows = vec![
            ("acknowledged", format!("{} entries, {}", count(self.entries), output::bytes(self.bytes))),
            ("killed with -9", self.killed().join(", ")),
            ("read meanwhile", read(&self.read_meanwhile)),
        ];
        let gateways: Vec<String> =
            (1..=self.read_back.len()).map(|number| format!("through gateway-{number}")).collect();
        rows.extend(gateways.iter().map(String::as_str).zip(self.read_back.iter().map(read)));
        let unknown = if found.unknown == 0 {
            String::new()
        } else {
            format!(" ({} more were created, but the answer was lost)", found.unknown)
        };
        rows.extend([
            (
                "ledgers",
                format!("{} written, {} of them recovered{unknown}", count(self.ledgers), count(self.recovered)),
            ),
            (
                "tiers",
                format!(
                    "{} open, {} hot, {} settled, {} released",
                    found.open, found.hot, found.settled, found.released
                ),
            ),
            (
                "objects",
                format!(
                    "{} of {}, each named by one ledger and verified; {} attempts abandoned, {} objects condemned by them",
                    count(found.objects),
                    output::bytes(found.object_bytes),
                    found.abandoned,
                    found.condemned
                ),
            ),
            ("longest wait", self.waits().join(", ")),
            ("tried again", format!("{} writes, {} reads", count(self.write_retries), count(self.read_retries))),
            ("time", output::duration(self.took)),
        ]);
        let rows: Vec<Vec<String>> = rows.into_iter().map(|(what, value)| vec![what.to_owned(), value]).collect();
        let table = output::table(&["", ""], &rows, &[]);
        let verdict = match self.shortcomings().as_slice() {
            [] => "PASSED: everything acknowledged came back equal through each gateway, and each settled ledger has its one object.".to_owned(),
            shortcomings => format!("FAILED: {}", shortcomings.join("; ")),
        };
        format!("{}\n\n{verdict}", table.trim_start())
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        let read = |read: &Compared| json!({ "entries_hot": read.hot, "entries_cold": read.cold });
        let by_phase = |value: &dyn Fn(Phase) -> serde_json::Value, with_calm: bool| {
            let phases = Phase::ALL.into_iter().filter(|phase| with_calm || *phase != Phase::Calm);
            phases.map(|phase| (phase.name().to_owned(), value(phase))).collect::<serde_json::Map<_, _>>()
        };
        let found = &self.found;
        json!({
            "passed": self.shortcomings().is_empty(),
            "shortcomings": self.shortcomings(),
            "seconds": self.took.as_secs_f64(),
            "entries_acknowledged": self.entries,
            "bytes_acknowledged": self.bytes,
            "read_meanwhile": read(&self.read_meanwhile),
            "read_back": self.read_back.iter().map(read).collect::<Vec<_>>(),
            "ledgers": {
                "written": self.ledgers,
                "recovered": self.recovered,
                "unknown": found.unknown,
                "open": found.open,
                "hot": found.hot,
                "settled": found.settled,
                "released": found.released,
            },
            "objects": found.objects,
            "object_bytes": found.object_bytes,
            "attempts_abandoned": found.abandoned,
            "objects_condemned": found.condemned,
            "kills": by_phase(&|phase| json!(self.kills[phase as usize]), false),
            "longest_wait_seconds": by_phase(&|phase| json!(self.longest[phase as usize].as_secs_f64()), true),
            "write_retries": self.write_retries,
            "read_retries": self.read_retries,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            took: Duration::from_secs(60),
            entries: 10,
            bytes: 1000,
            ledgers: 2,
            recovered: 1,
            read_meanwhile: Compared { hot: 3, cold: 4 },
            read_back: vec![Compared { hot: 4, cold: 6 }, Compared { hot: 0, cold: 10 }],
            found: Found { settled: 1, released: 1, objects: 2, ..Found::default() },
            kills: [0, 1, 1, 1, 1],
            longest: [Duration::from_millis(20); Phase::ALL.len()],
            write_retries: 2,
            read_retries: 3,
        }
    }

    #[test]
    fn a_whole_run_passes_and_says_so_in_both_forms() {
        let report = report();
        assert!(report.to_table().ends_with("each settled ledger has its one object."), "{}", report.to_table());
        assert_eq!(report.to_json()["passed"], true);
        assert_eq!(report.to_json()["kills"]["etcd"], 1);
    }

    #[test]
    fn what_is_missing_fails_it() {
        type Spoil = fn(&mut Report);
        let cases: [(Spoil, &str); 6] = [
            (|report| report.entries = 11, "11 entries were acknowledged, gateway-1 gave 10"),
            (|report| report.found.objects = 1, "1 objects are named"),
            (|report| report.kills[Phase::Etcd as usize] = 0, "no etcd was killed"),
            (|report| report.read_meanwhile = Compared { hot: 0, cold: 0 }, "nothing was read while processes died"),
            (|report| report.recovered = 0, "no ledger was closed by recovery"),
            (|report| report.found = Found::default(), "no ledger was settled"),
        ];
        for (spoil, why) in cases {
            let mut report = report();
            spoil(&mut report);
            let table = report.to_table();
            assert!(table.contains("FAILED: ") && table.contains(why), "{table}");
            assert_eq!(report.to_json()["passed"], false);
        }
    }
}
