//! What the documents must say.

use std::fs;
use std::path::Path;

use super::{Violation, violation};

/// The commands a new user runs first.
const FIRST_COMMANDS: [&str; 2] = ["make demo", "make test"];

pub(super) fn check(root: &Path) -> Vec<Violation> {
    let mut found = Vec::new();
    let readme = fs::read_to_string(root.join("README.md")).unwrap_or_default();
    for command in FIRST_COMMANDS {
        if !readme.contains(command) {
            found.push(violation("README.md", 1, format!("the README must show `{command}`")));
        }
    }
    for path in fs::read_dir(root.join("docs/decisions")).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        if is_page && !has_status(&fs::read_to_string(&path).unwrap_or_default()) {
            found.push(violation(path, 1, "a decision needs a line that begins with \"Status:\""));
        }
    }
    found
}

fn has_status(text: &str) -> bool {
    text.lines().any(|line| line.trim_start_matches(['*', '-', ' ']).starts_with("Status"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_line_is_found() {
        assert!(has_status("# 1. x\n\nStatus: accepted\n"));
        assert!(has_status("- **Status**: accepted\n"));
        assert!(!has_status("the Status: is in the text\n"));
    }
}
