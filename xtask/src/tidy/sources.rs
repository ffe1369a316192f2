//! What may not stand in a source file, and how long one may be.

use std::path::Path;

use super::{Violation, violation};

/// Longer files have a seam somewhere.
const LINES_MAX: usize = 800;

/// Words that mean "not finished". Written in halves, since this file is checked too.
const UNFINISHED: [&str; 6] = [
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
    concat!("db", "g!"),
    concat!("#[ign", "ore"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
];

/// The names of metadata drivers and engines, and where each may stand: a new driver must change only `metadata` and the
/// place where stores are opened by URI.
const DRIVERS: [(&str, &[&str]); 6] = [
    (concat!("rocks", "db::"), &["metadata/", "bookie/src/index"]),
    (concat!("Embedded", "Store"), &["metadata/", "cli/src/"]),
    (concat!("Etcd", "Store"), &["metadata/", "cli/src/"]),
    (concat!("ZooKeeper", "Store"), &["metadata/", "cli/src/"]),
    (concat!("etcd_", "client::"), &["metadata/"]),
    (concat!("zookeeper_", "client::"), &["metadata/"]),
];

/// The lint that keeps time, randomness and threads behind `common`, and who may step around it.
const DISALLOWED: &str = concat!("allow(clippy::disallowed", "_methods");
const DISALLOWED_USERS: [&str; 4] = ["common/src/", "bookie/src/disk", "xtask/", "bench/"];

pub(super) fn check(file: &Path, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let path = file.to_string_lossy().replace('\\', "/");
    let is_test = is_test_file(&path);
    for (number, line) in text.lines().enumerate() {
        let mut report = |message: String| found.push(violation(file, number + 1, message));
        for word in UNFINISHED {
            if contains_word(line, word) {
                report(format!("{word} is not allowed: finish it or leave it out"));
            }
        }
        for (name, places) in DRIVERS {
            if !is_test && line.contains(name) && !starts_with_any(&path, places) {
                report(format!("{name} may stand only in {}: others use the trait", places.join(", ")));
            }
        }
        if !is_test && line.contains(DISALLOWED) && !starts_with_any(&path, &DISALLOWED_USERS) {
            report("take the clock, the randomness or the thread from common instead".to_owned());
        }
    }
    let lines = body_lines(text);
    if !is_test && lines > LINES_MAX {
        found.push(violation(
            file,
            LINES_MAX,
            format!("{lines} lines without tests, at most {LINES_MAX}: look for the seam"),
        ));
    }
    found
}

fn starts_with_any(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs")
        || path.starts_with("tests/")
        || path.split('/').any(|part| part == "tests" || part == "benches")
}

/// Whether `word` stands in `line` and is not the end of a longer name.
fn contains_word(line: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(part_of_name);
        let after = line[at + word.len()..].chars().next().is_some_and(part_of_name);
        !before && !after
    })
}

/// Lines before a test module that stands in the file itself.
fn body_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let opens_tests = |at: usize| {
        let mut after = lines[at + 1..].iter().skip_while(|line| line.starts_with("#["));
        lines[at] == "#[cfg(test)]" && after.next().is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    };
    (0..lines.len()).find(|at| opens_tests(*at)).unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(file: &str, text: &str) -> Vec<String> {
        check(Path::new(file), text).into_iter().map(|found| format!("{}: {}", found.line, found.message)).collect()
    }

    #[test]
    fn unfinished_work_is_found() {
        for word in UNFINISHED {
            assert_eq!(messages("client/src/read.rs", &format!("ok\n    {word}(1)\n")).len(), 1, "{word}");
            assert!(messages("client/src/read.rs", &format!("my_{word}")).is_empty() || word.starts_with('#'));
        }
    }

    #[test]
    fn driver_names_stay_in_their_places() {
        let name = DRIVERS[1].0;
        assert_eq!(messages("offloader/src/plan.rs", name).len(), 1);
        for place in
            ["metadata/src/embedded.rs", "cli/src/standalone.rs", "tests/it/road.rs", "client/src/read/tests.rs"]
        {
            assert!(messages(place, name).is_empty(), "{place}");
        }
        assert_eq!(messages("bookie/src/ledger.rs", DRIVERS[0].0).len(), 1);
        assert!(messages("bookie/src/index/rocks.rs", DRIVERS[0].0).is_empty());
    }

    #[test]
    fn steps_around_the_clock_are_found() {
        let line = format!("#[{DISALLOWED})]");
        assert_eq!(messages("client/src/read.rs", &line).len(), 1);
        assert!(messages("common/src/clock.rs", &line).is_empty());
    }

    #[test]
    fn length_is_counted_without_tests() {
        let body = "x\n".repeat(LINES_MAX);
        let tests = "#[cfg(test)]\n#[allow(x)]\nmod tests {\n".to_owned() + &body;
        assert!(messages("a/src/b.rs", &(body.clone() + &tests)).is_empty());
        assert_eq!(messages("a/src/b.rs", &(body.clone() + "x\n" + &tests)).len(), 1);
        assert_eq!(messages("a/src/b.rs", &("#[cfg(test)]\nmod tests;\n".to_owned() + &body)).len(), 1);
        assert!(messages("a/src/b/tests.rs", &(body.clone() + &body)).is_empty());
    }
}
