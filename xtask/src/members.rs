//! The workspace's member crates and their manifests, read line by line: the subset of TOML that our manifests use.

use std::fs;
use std::path::{Path, PathBuf};

/// A member crate.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    tests: Vec<String>,
    benches: Vec<String>,
}

/// A line in one of a manifest's dependency tables.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) line: usize,
    pub(crate) name: String,
    /// Whether the version comes from the root manifest.
    pub(crate) from_workspace: bool,
    /// Whether only tests use it.
    pub(crate) for_tests: bool,
}

/// All members, in the order of the root manifest.
pub(crate) fn read(root: &Path) -> Result<Vec<Member>, String> {
    let manifest = text_of(&root.join("Cargo.toml"))?;
    let members = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.ok_or("Cargo.toml names no members")?;
    members.split('"').skip(1).step_by(2).map(|name| Member::read(root, name)).collect()
}

pub(crate) fn text_of(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))
}

impl Member {
    fn read(root: &Path, name: &str) -> Result<Self, String> {
        let dir = root.join(name);
        let manifest = text_of(&dir.join("Cargo.toml"))?;
        let targets = |table: &str, folder: &str| {
            let mut found = named_targets(&manifest, table);
            found.extend(found_targets(&dir.join(folder)));
            found.sort();
            found.dedup();
            found
        };
        let (tests, benches) = (targets("[[test]]", "tests"), targets("[[bench]]", "benches"));
        Ok(Self { name: name.to_owned(), dependencies: dependencies(&manifest), tests, benches, dir })
    }

    /// The names of its integration tests.
    pub(crate) fn test_targets(&self) -> &[String] {
        &self.tests
    }

    /// The names of its benchmarks.
    pub(crate) fn bench_targets(&self) -> &[String] {
        &self.benches
    }
}

/// The entries of all dependency tables: `name.workspace = true`, `name = { workspace = true, … }`, `[dependencies.name]`.
pub(crate) fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    let mut table = Table::Other;
    let mut for_tests = false;
    let mut open_brackets = 0_usize;
    for (number, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        let inside = open_brackets > 0;
        let opened = line.matches(['[', '{']).count();
        let closed = line.matches([']', '}']).count();
        open_brackets = (open_brackets + opened).saturating_sub(closed);
        if line.is_empty() || inside {
            continue;
        }
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            table = Table::of(header.trim());
            for_tests = header.contains("dev-dependencies");
            if let Table::One(name) = &table {
                found.push(Dependency { line: number + 1, name: name.clone(), from_workspace: false, for_tests });
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        match &table {
            Table::All => {
                let (name, detail) = key.split_once('.').unwrap_or((key, ""));
                let dotted = detail == "workspace" && value == "true";
                let from_workspace = dotted || (detail.is_empty() && says_workspace(value));
                let name = name.trim_matches('"').to_owned();
                found.push(Dependency { line: number + 1, name, from_workspace, for_tests });
            }
            Table::One(_) if key == "workspace" && value == "true" => {
                if let Some(last) = found.last_mut() {
                    last.from_workspace = true;
                }
            }
            _ => {}
        }
    }
    found
}

fn says_workspace(value: &str) -> bool {
    let inner = value.strip_prefix('{').and_then(|value| value.strip_suffix('}')).unwrap_or("");
    inner.split(',').any(|part| part.split_whitespace().collect::<String>() == "workspace=true")
}

enum Table {
    /// `[dependencies]` and its kin.
    All,
    /// `[dependencies.name]` and its kin.
    One(String),
    Other,
}

impl Table {
    fn of(header: &str) -> Self {
        const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
        // The last parts decide; before them may stand `target.'cfg(…)'`. The root's own table is another thing.
        if header.starts_with("workspace") {
            return Self::Other;
        }
        let mut parts = header.rsplit('.').map(|part| part.trim().trim_matches('"'));
        let (last, above) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        if KINDS.contains(&last) {
            Self::All
        } else if KINDS.contains(&above) {
            Self::One(last.to_owned())
        } else {
            Self::Other
        }
    }
}

/// The names given in a manifest's `[[test]]` or `[[bench]]` tables.
fn named_targets(manifest: &str, table: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == table;
        } else if inside && let Some(value) = line.strip_prefix("name").map(str::trim_start) {
            found.extend(value.strip_prefix('=').map(|name| name.trim().trim_matches('"').to_owned()));
        }
    }
    found
}

/// The targets cargo finds by itself: `tests/x.rs` and `tests/x/main.rs`.
fn found_targets(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let target = |path: PathBuf| {
        let file = path.extension().is_some_and(|extension| extension == "rs");
        let name = if file { path.file_stem() } else { path.file_name().filter(|_| path.join("main.rs").is_file()) };
        name.and_then(|name| name.to_str()).map(str::to_owned)
    };
    entries.flatten().filter_map(|entry| target(entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_tables_are_read() {
        let manifest = r#"
[package]
name = "x" # workspace = true
[dependencies]
a.workspace = true
b = "1"
c = { workspace = true, features = ["d"] }
e = { version = "1", features = [
    "f", "workspace = true",
] }
[target.'cfg(unix)'.dev-dependencies]
g.version = "1"
[build-dependencies.h]
workspace = true
[dependencies.i]
version = "1"
[lints]
workspace = true
[[test]]
name = "it"
"#;
        let read = dependencies(manifest);
        let read: Vec<_> = read.iter().map(|found| (found.line, found.name.as_str(), found.from_workspace)).collect();
        let expected = [
            (5, "a", true),
            (6, "b", false),
            (7, "c", true),
            (8, "e", false),
            (12, "g", false),
            (13, "h", true),
            (15, "i", false),
        ];
        assert_eq!(read, expected);
        assert!(dependencies(manifest).iter().all(|found| found.for_tests == (found.name == "g")));
        assert_eq!(named_targets(manifest, "[[test]]"), ["it"]);
        assert!(named_targets(manifest, "[[bench]]").is_empty());
    }
}
