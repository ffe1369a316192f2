//! Rows for people: the cells of a table, and the document `docs/performance.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::row::Row;

/// The header of the table.
pub const COLUMNS: [&str; 7] = ["id", "what", "value", "limit", "of the limit", "target", "met"];

/// A row as cells under [`COLUMNS`].
pub fn cells(row: &Row) -> [String; 7] {
    let met = match row.met {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    };
    [
        row.id.clone(),
        row.what.clone(),
        format!("{} {}", number(row.value), row.unit),
        format!("{} {}", number(row.limit), row.unit),
        format!("{:.2}", row.ratio),
        row.target.clone(),
        met.to_owned(),
    ]
}

/// The numbers that explain a row, in one line.
pub fn facts(row: &Row) -> String {
    let [low, high] = row.ratio_spread;
    let facts = row.facts.iter().map(|fact| {
        let unit = if fact.unit.is_empty() { String::new() } else { format!(" {}", fact.unit) };
        format!("{} {}{unit}", fact.name, number(fact.value))
    });
    let pairs = match row.pairs {
        1 => "one pair".to_owned(),
        pairs => format!("median of {pairs} pairs, of the limit {low:.2} to {high:.2}"),
    };
    std::iter::once(pairs).chain(facts).collect::<Vec<_>>().join("; ")
}

/// A number with three digits or more, grouped in thousands.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size < 1000.0 {
        let decimals = if size >= 100.0 {
            0
        } else if size >= 10.0 {
            1
        } else if size >= 1.0 || size == 0.0 {
            2
        } else {
            3
        };
        return format!("{value:.decimals$}");
    }
    let digits = format!("{size:.0}");
    let mut grouped = String::from(if value < 0.0 { "-" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

const INTRODUCTION: &str = "\
# Performance

<!-- Generated from performance.json by `thermocline bench report docs/performance.json > docs/performance.md`. Do not edit. -->

Every figure stands beside what the machine could do at most for the same work: the *limit*. It is measured in the same run, on the same
directory, store and loopback, by doing the product's own pattern of sizes and syncs raw. *Of the limit* is the share that was reached: 1.00
means as good as the machine, for rates and for times alike. A share above 1.02 would be a mistake of the bench, and the bench then fails.
Product and raw runs alternate; the row is the median pair. Load generator, product and object store share the machine's cores.

Measure your own machine with `thermocline bench append`, `catchup`, `bookie`, `cold-read` or `offload` (`--quick` takes less than 50 seconds each), your
own disk with `--dir`, your own object store with `--store`.

";

const NOT_MEASURED: &str = "\
## What is not measured yet

- P2's comparison with Apache BookKeeper on the same machine.
- P3, P6, P9, P10 and P12 to P15.
- P7, P11, batch reads (P4) and many ledgers (P2) are measured by `thermocline bench bookie`; the table does not have them yet.
";

/// The document.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("## Figures\n\n");
    if rows.is_empty() {
        text.push_str("None were taken yet.\n\n");
        text.push_str(NOT_MEASURED);
        return text;
    }
    let columns = COLUMNS.join(" | ");
    let _ = writeln!(text, "| {columns} |\n|---|---|---:|---:|---:|---|---|");
    for row in rows {
        let _ = writeln!(text, "| {} |", cells(row).map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    text.push_str("\n## What explains them\n\n");
    let mut limits: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        limits.entry(&row.id).or_default().push(row);
    }
    for (id, rows) in limits {
        let mut said = "";
        let _ = writeln!(text, "**{id}**\n");
        for row in rows {
            if said != row.limit_is {
                said = &row.limit_is;
                let _ = writeln!(text, "- Limit: {said}.");
            }
            let _ = writeln!(text, "- {}: {}.", row.what, facts(row));
        }
        text.push('\n');
    }
    text.push_str("## Where\n\n");
    for (place, ids) in places(rows) {
        let _ = writeln!(text, "- {}: {place}", ids.join(", "));
    }
    text.push('\n');
    text.push_str(NOT_MEASURED);
    text
}

/// Where rows were measured, each place once with the ids of its rows.
fn places(rows: &[Row]) -> Vec<(String, Vec<&str>)> {
    let mut places: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows {
        let [before, after] = row.load;
        let warning = if row.build == "release" { "" } else { " (a development build: these figures mean nothing)" };
        let place = format!(
            "{}, commit {}, {} build{warning}, {} scale, load average {before:.1} at the start and {after:.1} at the end",
            row.machine, row.commit, row.build, row.scale
        );
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, ids)) if ids.contains(&row.id.as_str()) => {}
            Some((_, ids)) => ids.push(&row.id),
            None => places.push((place, vec![&row.id])),
        }
    }
    places
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0.00"),
            (0.01234, "0.012"),
            (1.5, "1.50"),
            (12.34, "12.3"),
            (999.0, "999"),
            (1000.0, "1,000"),
            (1_234_567.8, "1,234,568"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
    }

    /// The committed document is what the committed figures give.
    #[test]
    fn the_document_is_generated_from_the_figures() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let rows: Vec<Row> = serde_json::from_slice(&std::fs::read(docs.join("performance.json")).unwrap()).unwrap();
        let committed = std::fs::read_to_string(docs.join("performance.md")).unwrap();
        let hint = "run: thermocline bench report docs/performance.json > docs/performance.md";
        assert!(markdown(&rows) == committed, "docs/performance.md is not what docs/performance.json gives; {hint}");
        assert_eq!(rows.iter().filter_map(Row::fault).collect::<Vec<_>>(), Vec::<String>::new());
        assert!(rows.iter().all(|row| row.build == "release"), "figures come from a release build");
    }
}
