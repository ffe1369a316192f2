//! The table of BookKeeper's own tests in `docs/compatibility.md`, made from the results of a run.

use super::results::Results;
use super::suite::Class;

/// The page, from the root.
pub(super) const PAGE: &str = "docs/compatibility.md";
const BEGIN: &str = "<!-- made by `cargo xtask interop --official --write-docs`; what is changed by hand is lost -->";
const END: &str = "<!-- end -->";

/// A class with what came of it.
pub(super) struct Row {
    pub(super) class: Class,
    /// With our bookies; none for a class that is not run.
    pub(super) ours: Option<Results>,
    /// With BookKeeper's bookies.
    pub(super) control: Option<Results>,
}

/// The page with its table replaced.
pub(super) fn replaced(page: &str, rows: &[Row]) -> Result<String, String> {
    let (before, rest) = page.split_once(BEGIN).ok_or_else(|| format!("{PAGE} lacks the line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| format!("{PAGE} lacks the line {END} after {BEGIN}"))?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", table(rows)))
}

/// What the page says of a class run with our bookies: `passed of run`.
pub(super) fn cell<'a>(page: &'a str, class: &str) -> Option<&'a str> {
    let row = page.lines().find_map(|line| line.strip_prefix(&format!("| `{class}` | ")))?;
    row.split(" | ").next()
}

fn table(rows: &[Row]) -> String {
    let ran: Vec<&Results> = rows.iter().filter_map(|row| row.ours.as_ref()).collect();
    let sum = |count: fn(&Results) -> u64| ran.iter().map(|results| count(results)).sum::<u64>();
    let mut text = format!(
        "{} of the {} methods that were run passed, in {} of {} classes.\n",
        sum(|results| results.passed),
        sum(Results::run),
        ran.len(),
        rows.len(),
    );
    let mut section = "";
    for row in rows {
        if row.class.section != section {
            section = &row.class.section;
            text += &format!(
                "\n| {section} | passed | with BookKeeper's bookies | what was not run or did not pass, and why |\n|---|---|---|---|\n"
            );
        }
        let shown = |results: &Option<Results>| results.as_ref().map_or_else(|| "not run".to_owned(), Results::cell);
        text +=
            &format!("| `{}` | {} | {} | {} |\n", row.class.name, shown(&row.ours), shown(&row.control), notes(row));
    }
    text
}

fn notes(row: &Row) -> String {
    let mut notes: Vec<String> = row.class.none.iter().cloned().collect();
    // Methods with one reason share it.
    for (index, (_, reason)) in row.class.left_out.iter().enumerate() {
        if row.class.left_out[..index].iter().any(|(_, earlier)| earlier == reason) {
            continue;
        }
        let same = row.class.left_out.iter().filter(|(_, other)| other == reason);
        let methods: Vec<String> = same.map(|(method, _)| format!("`{method}`")).collect();
        notes.push(format!("{}: {reason}", methods.join(", ")));
    }
    if let Some(ours) = &row.ours {
        notes.extend(ours.failed.iter().map(|(method, _)| format!("`{method}` failed")));
        notes.extend(
            ours.skipped.iter().map(|(method, why)| format!("`{method}`: left out by BookKeeper ({})", cleaned(why))),
        );
        if !ours.ended {
            notes.push("its time was over before it had ended".to_owned());
        }
        if ours.own > 0 {
            notes.push(format!("{} of {} bookies are the tests' own, which misbehave", ours.own, ours.own + ours.ours));
        }
    }
    notes.join("; ")
}

/// Text that breaks no row of a table.
fn cleaned(text: &str) -> String {
    text.replace('|', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str) -> Class {
        Class { name: name.to_owned(), section: "one".to_owned(), minutes: 1, ..Class::default() }
    }

    #[test]
    fn a_table_takes_the_place_of_the_old_one() {
        let left_out = ["m", "n"].map(|method| (method.to_owned(), "looks inside".to_owned())).to_vec();
        let rows = [
            Row {
                class: Class { left_out, ..class("a.B") },
                ours: Some(Results { passed: 3, ours: 4, own: 1, ended: true, ..Results::default() }),
                control: Some(Results { passed: 4, ended: true, ..Results::default() }),
            },
            Row { class: Class { none: Some("no plug-ins".to_owned()), ..class("c.D") }, ours: None, control: None },
        ];
        let page = replaced(&format!("before\n{BEGIN}\nold\n{END}\nafter\n"), &rows).unwrap();
        let first = "| `a.B` | 3 of 3 | 4 of 4 | `m`, `n`: looks inside; 1 of 5 bookies are the tests' own, which misbehave |\n";
        for expected in ["before\n", "3 of the 3 methods that were run passed, in 1 of 2 classes.\n", first, "after\n"]
        {
            assert!(page.contains(expected), "{expected} in {page}");
        }
        assert!(page.contains("| `c.D` | not run | not run | no plug-ins |\n") && !page.contains("old"));
        assert_eq!(
            (cell(&page, "a.B"), cell(&page, "c.D"), cell(&page, "e.F")),
            (Some("3 of 3"), Some("not run"), None)
        );
        // Twice is the same as once.
        assert_eq!(replaced(&page, &rows), Ok(page));
    }

    #[test]
    fn a_page_without_its_lines_is_refused() {
        assert!(replaced("nothing", &[]).is_err() && replaced(&format!("x\n{BEGIN}\n"), &[]).is_err());
    }
}
