//! What people see: tables, sizes, progress bars.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A size for people: `12.3 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A count for people: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A duration for people: `1.24 s`.
pub(crate) fn duration(span: Duration) -> String {
    if span.as_secs() >= 3600 {
        format!("{} h {} min", span.as_secs() / 3600, span.as_secs() / 60 % 60)
    } else if span.as_secs() >= 60 {
        format!("{} min {:.0} s", span.as_secs() / 60, span.as_secs_f64() % 60.0)
    } else {
        format!("{:.2} s", span.as_secs_f64())
    }
}

/// Text from elsewhere made safe for a terminal: control characters are shown as escapes.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            let _ = write!(safe, "{}", character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// A table with a header; columns named in `right` are aligned right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], right: &[usize]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // The first column starts at the margin.
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 1));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Prints a value as one line of JSON.
pub(crate) fn json(value: &serde_json::Value) {
    println!("{value}");
}

/// A step of long work: a bar on a terminal, nothing elsewhere.
pub(crate) fn progress_bytes(step: &str, total_bytes: u64) -> ProgressBar {
    bar(step, total_bytes, "{msg:<28} [{bar:32}] {bytes:>11} of {total_bytes:<11} {bytes_per_sec}")
}

/// A step counted in things.
pub(crate) fn progress_count(step: &str, total: u64) -> ProgressBar {
    bar(step, total, "{msg:<28} [{bar:32}] {pos} of {len}")
}

/// A step of which nobody knows beforehand how many things there are.
pub(crate) fn progress_open(step: &str) -> ProgressBar {
    bar(step, 0, "{msg:<28} {pos}")
}

fn bar(step: &str, total: u64, template: &str) -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(step.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_counts_and_durations_read_well() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 * 1024 * 1024), "64.0 MiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(duration(Duration::from_millis(1240)), "1.24 s");
        assert_eq!(duration(Duration::from_secs(75)), "1 min 15 s");
        assert_eq!(duration(Duration::from_secs(48 * 3600 - 1)), "47 h 59 min");
    }

    #[test]
    fn control_characters_cannot_drive_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
    }

    #[test]
    fn a_table_has_no_trailing_blanks() {
        let text = table(&["name", "size"], &[vec!["a".into(), "1".into()], vec!["bb".into(), "1000".into()]], &[1]);
        assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
        assert!(text.contains("1000"));
    }
}
