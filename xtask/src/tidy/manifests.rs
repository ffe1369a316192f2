//! Versions stand in the root manifest only, arrows between crates go down only, and each outside system has one door.

use std::path::Path;

use super::{Violation, violation};
use crate::members::{Member, text_of};

/// Which of our crates each crate may use. `ANY` is for those at the top.
const ARROWS: [(&str, &[&str]); 16] = [
    ("bench", ANY),
    ("bookie", &["common", "config", "ledger", "metadata", "proto"]),
    ("cli", ANY),
    ("client", &["common", "config", "ledger", "metadata", "proto"]),
    ("cold", &["common", "ledger"]),
    ("common", &[]),
    ("config", &["common"]),
    ("faults", &["common"]),
    ("guard", &["common", "proto"]),
    ("ledger", &[]),
    ("metadata", &["common", "ledger"]),
    ("offloader", &["client", "cold", "common", "config", "ledger", "metadata", "proto"]),
    ("proto", &["ledger"]),
    ("read-gateway", &["client", "cold", "common", "config", "ledger", "metadata", "proto"]),
    ("tests", ANY),
    ("xtask", &[]),
];

const ANY: &[&str] = &["*"];

/// Outside crates that only some of ours may name, and why. Tests may: a faulty object store is put under a reader there.
const DOORS: [(&str, &[&str], &str); 8] = [
    ("rocksdb", &["metadata", "bookie"], "RocksDB serves the embedded metadata and the bookie's index"),
    ("etcd-client", &["metadata"], "only metadata speaks etcd"),
    ("zookeeper", &["metadata"], "only metadata speaks ZooKeeper"),
    ("zookeeper-client", &["metadata"], "only metadata speaks ZooKeeper"),
    ("rustls", &["guard"], "only guard speaks TLS on BookKeeper's wire"),
    ("tokio-rustls", &["guard"], "only guard speaks TLS on BookKeeper's wire"),
    ("object_store", &["cold"], "only cold reaches the object store"),
    ("parquet", &["cold"], "only cold knows the object's format"),
];

pub(super) fn check(root: &Path, members: &[Member]) -> Result<Vec<Violation>, String> {
    let mut found = Vec::new();
    let own: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    for member in members {
        found.extend(check_member(member, &own));
    }
    found.extend(same_rocksdb(root)?);
    Ok(found)
}

fn check_member(member: &Member, own: &[&str]) -> Vec<Violation> {
    let manifest = member.dir.join("Cargo.toml");
    let name = member.name.as_str();
    let mut found = Vec::new();
    let Some((_, allowed)) = ARROWS.iter().find(|(crate_name, _)| *crate_name == name) else {
        let message = format!("{name} has no place among the crates: give it one in xtask/src/tidy/manifests.rs");
        return vec![violation(manifest, 1, message)];
    };
    for dependency in &member.dependencies {
        let wanted = dependency.name.as_str();
        let mut report = |message: String| found.push(violation(&manifest, dependency.line, message));
        if !dependency.from_workspace {
            report(format!("{wanted}: write {wanted}.workspace = true and put the version in the root manifest"));
        }
        // What makes tests fail on purpose, and what stands before a server, is below everything that is tested with it.
        let test_tool = dependency.for_tests && matches!(wanted, "faults" | "guard");
        if own.contains(&wanted) && *allowed != ANY && !allowed.contains(&wanted) && !test_tool {
            report(format!("{name} must not depend on {wanted}: arrows between crates go down only"));
        }
        let door = DOORS.iter().find(|(crate_name, _, _)| *crate_name == wanted && !dependency.for_tests);
        if let Some((_, users, why)) = door.filter(|(_, users, _)| !users.contains(&name)) {
            report(format!("{name} must not depend on {wanted}: {why} (allowed in {})", users.join(", ")));
        }
    }
    found
}

/// The library that `rocksdb-build` compiles is linked by the workspace: both must mean the same one.
fn same_rocksdb(root: &Path) -> Result<Vec<Violation>, String> {
    let mut found = Vec::new();
    let helper = root.join("rocksdb-build");
    let ours = entry(&text_of(&root.join("Cargo.toml"))?, "rocksdb = ");
    let theirs = entry(&text_of(&helper.join("Cargo.toml"))?, "rocksdb = ");
    if ours.as_ref().map(|(_, text)| text) != theirs.as_ref().map(|(_, text)| text) {
        let line = theirs.map_or(1, |(line, _)| line);
        let message =
            format!("rocksdb must be as in the root manifest: {}", ours.map_or(String::new(), |(_, text)| text));
        found.push(violation(helper.join("Cargo.toml"), line, message));
    }
    let locked = locked_version(&text_of(&root.join("Cargo.lock"))?, "librocksdb-sys");
    let built = locked_version(&text_of(&helper.join("Cargo.lock"))?, "librocksdb-sys");
    let version =
        |found: &Option<(usize, String)>| found.as_ref().map_or("missing".to_owned(), |(_, text)| text.clone());
    if locked.is_none() || version(&locked) != version(&built) {
        let line = built.as_ref().map_or(1, |(line, _)| *line);
        let (here, there) = (version(&built), version(&locked));
        let message =
            format!("librocksdb-sys is {here} here and {there} in the workspace's Cargo.lock: they must be the same");
        found.push(violation(helper.join("Cargo.lock"), line, message));
    }
    Ok(found)
}

/// The first line that begins with `start`, with its number.
fn entry(text: &str, start: &str) -> Option<(usize, String)> {
    let mut lines = text.lines().enumerate();
    lines.find(|(_, line)| line.starts_with(start)).map(|(number, line)| (number + 1, line.trim().to_owned()))
}

/// The version line that follows a package's name in a lock file, with its number.
fn locked_version(lock: &str, package: &str) -> Option<(usize, String)> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().enumerate().skip_while(|(_, line)| *line != name);
    lines.next()?;
    lines.next().map(|(number, line)| (number + 1, line.trim_start_matches("version = ").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members;

    fn messages(name: &str, manifest: &str) -> Vec<String> {
        let dir = std::env::temp_dir().join(format!("thermocline-tidy-{}-{name}", std::process::id()));
        std::fs::create_dir_all(dir.join(name)).unwrap();
        std::fs::write(dir.join("Cargo.toml"), format!("members = [\"{name}\"]\n")).unwrap();
        std::fs::write(dir.join(name).join("Cargo.toml"), manifest).unwrap();
        let members = members::read(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let own = ["bookie", "client", "cold", "common", "ledger"];
        check_member(&members[0], &own).into_iter().map(|found| format!("{}: {}", found.line, found.message)).collect()
    }

    #[test]
    fn upward_arrows_are_found() {
        let manifest = "[dependencies]\ncommon.workspace = true\nclient.workspace = true\n[dev-dependencies]\ncold.workspace = true\n";
        let expected = [
            "3: bookie must not depend on client: arrows between crates go down only",
            "5: bookie must not depend on cold: arrows between crates go down only",
        ];
        assert_eq!(messages("bookie", manifest), expected);
    }

    #[test]
    fn doors_and_versions_are_found() {
        let manifest = "[dependencies]\nobject_store.workspace = true\nserde = \"1\"\n";
        let expected = [
            "2: client must not depend on object_store: only cold reaches the object store (allowed in cold)",
            "3: serde: write serde.workspace = true and put the version in the root manifest",
        ];
        assert_eq!(messages("client", manifest), expected);
        assert_eq!(messages("client", "[dev-dependencies]\nobject_store.workspace = true\n"), Vec::<String>::new());
        assert_eq!(messages("cold", "[dependencies]\nobject_store.workspace = true\n"), Vec::<String>::new());
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert!(messages("novel", "[dependencies]\n")[0].contains("novel has no place among the crates"));
    }

    #[test]
    fn locked_versions_are_found() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";
        assert_eq!(locked_version(lock, "b"), Some((7, "\"2.0.0\"".to_owned())));
        assert_eq!(locked_version(lock, "c"), None);
    }
}
