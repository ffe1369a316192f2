//! What an administrator does to whole clusters, cookies and bookies' directories, as processes: what people and scripts see.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cli::cluster::Process;
use common::rng::Rng;
use faults::Etcd;
use ledger::{BookieId, DigestType, LedgerId, LedgerMetadata, Password, Quorums};
use metadata::{
    Attempts, BookieInfo, Bookies, Cookie, Cookies, GatewayInfo, Gateways, Key, Ledgers, MetadataStore, NewAttempt,
};
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_thermocline");
const STOP_DEADLINE: Duration = Duration::from_secs(25);
const HOUR: Duration = Duration::from_secs(3600);
const LEDGERS: u64 = 400;

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("THERMOCLINE_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command prints when all is well.
fn good(arguments: &[&str]) -> String {
    let answer = run(arguments);
    assert!(answer.status.success(), "{arguments:?}: {}", text(&answer.stderr));
    text(&answer.stdout)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&good(&[arguments, &["--output", "json"]].concat())).unwrap()
}

/// A refusal: exit code 2, one sentence with every one of `words`.
fn refused(arguments: &[&str], words: &[&str]) {
    let answer = run(arguments);
    let said = text(&answer.stderr);
    assert_eq!(answer.status.code(), Some(2), "{arguments:?}: {said}{}", text(&answer.stdout));
    for word in words {
        assert!(said.contains(word), "{arguments:?} does not say {word:?}: {said}");
    }
    assert_eq!(said.lines().filter(|line| line.starts_with("thermocline: ")).count(), 1, "{said}");
}

/// A command that kills itself.
fn killed(arguments: &[&str]) {
    use std::os::unix::process::ExitStatusExt as _;
    let answer = run(arguments);
    assert_eq!(answer.status.signal(), Some(9), "{arguments:?}: {}{}", text(&answer.stdout), text(&answer.stderr));
}

fn embedded(home: &Path, name: &str) -> String {
    format!("embedded:{}", home.join(name).display())
}

fn bookie(number: u64) -> BookieId {
    BookieId::new(&format!("bookie-{number}")).unwrap()
}

/// Makes a cluster with the command and puts into it what outlives processes. Gives its identity.
async fn filled(uri: &str) -> String {
    let made = json(&["cluster", "init", "--metadata", uri, "--name", "logs"]);
    let instance = made["instance_id"].as_str().unwrap().to_owned();
    let store = metadata::open(uri).await.unwrap();
    let ledgers = Ledgers::new(store.clone());
    for number in 0..LEDGERS {
        let id = ledgers.allocate_id().await.unwrap();
        let members = (1..=3).map(bookie).collect();
        let quorums = Quorums::new(3, 3, 2).unwrap();
        let open = LedgerMetadata::open(quorums, members, DigestType::Crc32c, Password::empty()).unwrap();
        let open = open.with_ctoken(i64::try_from(number).unwrap() + 1).unwrap();
        let value = if number % 4 == 0 { open } else { open.in_recovery().unwrap().closed(None, 0).unwrap() };
        ledgers.create(id, &value).await.unwrap();
    }
    let cookies = Cookies::new(store);
    for number in 1..=3 {
        let dirs = || vec!["journal".to_owned()];
        cookies.create(&Cookie::new(bookie(number), dirs(), dirs(), &instance).unwrap()).await.unwrap();
    }
    instance
}

/// Every key and value of a store.
async fn rows(uri: &str) -> Vec<(String, Bytes)> {
    let store = metadata::open(uri).await.unwrap();
    let mut rows = Vec::new();
    for root in ["/ledgers", "/thermocline"] {
        let (root, mut after) = (Key::new(root).unwrap(), None);
        loop {
            let page = store.list(&root, after.as_ref(), 100).await.unwrap();
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            rows.extend(page.into_iter().map(|(key, row)| (key.to_string(), row.value)));
        }
    }
    rows
}

/// Without the keys that say whether a cluster is open in the store.
async fn carried(uri: &str) -> Vec<(String, Bytes)> {
    let mut rows = rows(uri).await;
    rows.retain(|(key, _)| key != "/ledgers/INSTANCEID" && key != "/thermocline/maintenance");
    rows
}

/// Registers a bookie, a gateway and an offloader, as processes that live would be.
async fn live_ones(store: &Arc<dyn MetadataStore>) -> metadata::LeaseId {
    let lease = store.grant_lease(HOUR).await.unwrap();
    let info = BookieInfo::at("127.0.0.1:3181");
    Bookies::new(store.clone()).register(&bookie(1), &info, lease).await.unwrap();
    Attempts::new(store.clone()).register_owner("offloader", lease).await.unwrap();
    let gateway = GatewayInfo { id: "gateway-1".into(), endpoint: "http://127.0.0.1:9600".into(), bookkeeper: None };
    Gateways::new(store.clone()).register(&gateway, lease).await.unwrap();
    lease
}

#[tokio::test]
async fn a_cluster_is_made_shown_and_removed() {
    let home = folder();
    let uri = &embedded(home.path(), "metadata");
    refused(&["cluster", "show", "--metadata", uri], &["no metadata in this directory"]);
    assert!(!home.path().join("metadata").exists(), "looking makes nothing");
    refused(&["cluster", "init", "--metadata", uri, "--name", "a b"], &["--name", "letters, digits"]);
    refused(&["cluster", "init", "--metadata", "zookeeper:x"], &["zookeeper:x"]);

    let instance = &filled(uri).await;
    refused(&["cluster", "init", "--metadata", uri, "--name", "other"], &["a cluster already", "logs", instance]);
    let shown = good(&["cluster", "show", "--metadata", uri]);
    for word in ["logs", instance, "LongHierarchical", "400: 100 open, 0 in recovery, 300 hot", "cookie only"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let view = json(&["cluster", "show", "--metadata", uri]);
    assert_eq!((&view["name"], &view["instance_id"]), (&"logs".into(), &instance.as_str().into()));
    assert_eq!((&view["driver"], &view["ledgers"]["open"]), (&"embedded".into(), &100.into()));
    assert_eq!(view["bookies"].as_array().unwrap().len(), 3);
    assert_eq!(view["bookies"][0]["state"], "cookie only");

    let format = ["cluster", "format", "--metadata", uri];
    let before = rows(uri).await;
    let plan = json(&[&format[..], &["--dry-run"]].concat());
    assert_eq!((&plan["keys"], &plan["by_kind"]["ledgers"]), (&before.len().into(), &LEDGERS.into()));
    assert!(good(&[&format[..], &["--dry-run"]].concat()).contains("All 407 keys of cluster logs"));
    refused(&format, &["--confirm logs", "Nothing was changed"]);
    refused(&[&format[..], &["--confirm", instance]].concat(), &["is not the cluster's name", "Nothing was changed"]);
    assert_eq!(rows(uri).await, before);
    let removed = good(&[&format[..], &["--confirm", "logs"]].concat());
    assert!(removed.contains("407 keys") && removed.contains(instance), "{removed}");
    assert_eq!(rows(uri).await, []);
    for command in [&["cluster", "show", "--metadata", uri][..], &format, &["cookie", "list", "--metadata", uri]] {
        refused(command, &["holds no cluster", "thermocline cluster init"]);
    }
    // A new one has another identity; without a name its identity confirms.
    let nameless = json(&["cluster", "init", "--metadata", uri]);
    let second = nameless["instance_id"].as_str().unwrap();
    assert!(nameless["name"].is_null() && second != instance.as_str());
    assert_eq!(json(&[&format[..], &["--confirm", second]].concat())["keys"], 2);
}

#[tokio::test]
async fn a_removal_that_is_killed_anywhere_is_seen_and_ended() {
    let (home, rng) = (folder(), Rng::from_os());
    for round in 0..3 {
        let uri = &embedded(home.path(), &format!("metadata-{round}"));
        let instance = &filled(uri).await;
        let at = if round == 0 { 1 } else { 1 + rng.below(400) };
        println!("round {round}: killed after {at} keys");
        let format = ["cluster", "format", "--metadata", uri, "--confirm", "logs"];
        killed(&[&format[..], &["--kill-after", &at.to_string()]].concat());

        refused(&["cluster", "show", "--metadata", uri], &["removal of cluster logs", instance, "cluster format"]);
        refused(&["cluster", "init", "--metadata", uri], &["removal of cluster logs"]);
        let dir = home.path().join("bookie").display().to_string();
        let bookie = run(&["bookie", "--metadata", uri, "--dir", &dir, "--listen", "127.0.0.1:0", "--admin", "off"]);
        assert_eq!(bookie.status.code(), Some(1), "{}", text(&bookie.stderr));
        assert!(text(&bookie.stderr).contains("the removal of cluster logs"), "{}", text(&bookie.stderr));
        refused(&["cluster", "format", "--metadata", uri, "--confirm", "other"], &["Nothing was changed"]);
        assert!(good(&["cluster", "format", "--metadata", uri, "--dry-run"]).contains("was cut short"));
        good(&format);
        assert_eq!(rows(uri).await, []);
    }
}

#[tokio::test]
async fn what_is_in_use_is_not_touched() {
    if Etcd::is_missing_for("administration") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let uri = &etcd.uri("/test");
    filled(uri).await;
    let store = metadata::open(uri).await.unwrap();
    let lease = live_ones(&store).await;
    let before = rows(uri).await;
    let view = json(&["cluster", "show", "--metadata", uri]);
    assert_eq!((&view["offloaders"], &view["gateways"][0]["id"]), (&1.into(), &"gateway-1".into()));
    assert_eq!(
        (&view["bookies"][0]["state"], &view["bookies"][1]["state"]),
        (&"writable".into(), &"cookie only".into())
    );
    let busy = ["in use by 1 bookie (bookie-1), 1 gateway (gateway-1), 1 offloader (offloader)"];
    refused(&["cluster", "format", "--metadata", uri, "--confirm", "logs"], &busy);
    let other = etcd.uri("/other");
    refused(&["metadata", "copy", "--from", uri, "--to", &other], &busy);
    let version = version_of(uri, "bookie-1");
    refused(
        &["cookie", "delete", "bookie-1", "--version", &version, "--metadata", uri],
        &["bookie-1 is registered, at 127.0.0.1:3181"],
    );
    assert_eq!(rows(uri).await, before);
    assert_eq!(rows(&other).await, []);

    let forced = json(&["cluster", "format", "--metadata", uri, "--confirm", "logs", "--force"]);
    assert_eq!(forced["keys"], before.len());
    assert_eq!(rows(uri).await, []);
    store.revoke(lease).await.unwrap();
}

fn version_of(uri: &str, bookie: &str) -> String {
    let all = json(&["cookie", "list", "--metadata", uri]);
    let found = all.as_array().unwrap().iter().find(|cookie| cookie["bookie"] == bookie);
    found.unwrap_or_else(|| panic!("{bookie} in {all}"))["version"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn cookies_are_listed_shown_generated_stored_and_removed() {
    let home = folder();
    let uri = &embedded(home.path(), "metadata");
    let instance = &filled(uri).await;
    let at = ["--metadata", uri];
    let with = |arguments: &[&str]| -> Vec<String> {
        [arguments, &at].concat().iter().map(|word| (*word).to_owned()).collect()
    };
    let words = |arguments: &[&str]| with(arguments);
    let good_at = |arguments: &[&str]| good(&words(arguments).iter().map(String::as_str).collect::<Vec<_>>());
    let refused_at = |arguments: &[&str], say: &[&str]| {
        refused(&words(arguments).iter().map(String::as_str).collect::<Vec<_>>(), say);
    };

    let listed = good_at(&["cookie", "list"]);
    assert!(listed.contains("bookie-2") && listed.contains("not registered") && listed.contains(instance), "{listed}");
    let shown = good_at(&["cookie", "show", "bookie-2"]);
    assert!(shown.contains("bookieHost: \"bookie-2\"") && shown.contains("version"), "{shown}");
    let one = json(&["cookie", "show", "bookie-2", "--metadata", uri]);
    assert_eq!((&one["bookie"], &one["instance_id"]), (&"bookie-2".into(), &instance.as_str().into()));
    refused_at(&["cookie", "show", "bookie-9"], &["no cookie of bookie bookie-9", "cookie list"]);
    refused_at(&["cookie", "show", "a b"], &["bookie id"]);

    // What a bookie has is what is generated for it.
    let generated = good_at(&["cookie", "generate", "bookie-2"]);
    assert_eq!(generated, one["text"].as_str().unwrap());
    let file = home.path().join("cookie").display().to_string();
    good_at(&["cookie", "generate", "bookie-2", "--out", &file]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), generated);
    refused_at(&["cookie", "generate", "bookie-2", "--out", &file], &["--out"]);

    refused_at(&["cookie", "create", "bookie-2", "--file", &file], &["has a cookie already"]);
    refused_at(&["cookie", "create", "bookie-7", "--file", &file], &["is the cookie of bookie bookie-2"]);
    refused_at(&["cookie", "create", "bookie-2", "--file", "/no/such/file"], &["/no/such/file"]);
    let wrong = home.path().join("wrong").display().to_string();
    std::fs::write(&wrong, generated.replace(instance, "another-cluster")).unwrap();
    refused_at(&["cookie", "create", "bookie-2", "--file", &wrong], &["is of cluster another-cluster"]);
    std::fs::write(&wrong, "no cookie").unwrap();
    refused_at(&["cookie", "create", "bookie-2", "--file", &wrong], &["read cookie"]);

    let needed = ["bookie-2 is a member of 400 ledgers (", "…", "another id", "Nothing was changed"];
    refused_at(&["cookie", "delete", "bookie-2", "--version", &version_of(uri, "bookie-2")], &needed);
    refused_at(&["cookie", "delete", "bookie-2", "--confirm", "bookie-2"], &needed);
    good_at(&["cookie", "show", "bookie-2"]);

    std::fs::remove_file(&file).unwrap();
    good_at(&["cookie", "generate", "bookie-8", "--out", &file]);
    good_at(&["cookie", "create", "bookie-8", "--file", &file]);
    let version = &version_of(uri, "bookie-8");
    refused_at(&["cookie", "delete", "bookie-8"], &["--confirm bookie-8", "Nothing was changed"]);
    refused_at(&["cookie", "delete", "bookie-8", "--confirm", "bookie-1"], &["Nothing was changed"]);
    refused_at(&["cookie", "delete", "bookie-8", "--version", "0"], &[&format!("has version {version}, not 0")]);
    good_at(&["cookie", "delete", "bookie-8", "--version", version]);
    refused_at(&["cookie", "delete", "bookie-8", "--version", version], &["no cookie of bookie"]);
    let stored = json(&["cookie", "create", "bookie-8", "--file", &file, "--metadata", uri]);
    assert_ne!(stored["version"].as_str().unwrap(), version, "a version never comes back");
    refused_at(&["cookie", "delete", "bookie-8", "--version", version], &["not the one you looked at"]);
    let deleted = json(&["cookie", "delete", "bookie-8", "--confirm", "bookie-8", "--metadata", uri]);
    assert_eq!(deleted["deleted"], true);
    assert!(!good_at(&["cookie", "list"]).contains("bookie-8"));
}

/// A bookie that has run in `home/bookie` with the cluster's metadata, and stopped.
async fn used_bookie(home: &Path, uri: &str, id: &str) -> PathBuf {
    let dir = home.join(id);
    let mut process = start_bookie(home, uri, id).await;
    let at = dir.display().to_string();
    refused(&["bookie", "format", "--dir", &at, "--force", "--confirm", id], &["a bookie runs in it"]);
    assert!(process.terminate(STOP_DEADLINE).await.unwrap().success(), "{}", process.log_tail());
    dir
}

async fn start_bookie(home: &Path, uri: &str, id: &str) -> Process {
    let dir = home.join(id).display().to_string();
    let arguments =
        ["bookie", "--listen", "127.0.0.1:0", "--admin", "off", "--metadata", uri, "--id", id, "--dir", &dir];
    let small = ["--set", "bookie.segment_bytes=1MiB"];
    Process::spawn(Path::new(PROGRAM), &[&arguments[..], &small].concat(), &home.join("bookie.log")).await.unwrap()
}

#[tokio::test]
async fn a_bookie_that_is_needed_is_not_formatted() {
    let home = folder();
    let uri = &embedded(home.path(), "metadata");
    let instance = &filled(uri).await;
    let dir = used_bookie(home.path(), uri, "bookie-4").await;
    let at = dir.display().to_string();
    let format = ["bookie", "format", "--dir", at.as_str()];
    let known = ["bookie", "format", "--dir", at.as_str(), "--metadata", uri];

    refused(&["bookie", "format", "--dir", "/no/such/place"], &["/no/such/place is not a directory"]);
    let empty = folder();
    refused(&["bookie", "format", "--dir", empty.path().to_str().unwrap()], &["holds no bookie's data"]);
    assert_eq!(
        run(&["bookie", "--id", "x", "format", "--dir", &at]).status.code(),
        Some(2),
        "the role's options are not its"
    );
    refused(&format, &["known only to its cluster", "--metadata"]);
    let elsewhere = &embedded(home.path(), "elsewhere");
    good(&["cluster", "init", "--metadata", elsewhere]);
    refused(
        &["bookie", "format", "--dir", &at, "--metadata", elsewhere],
        &["wrong directory or the wrong store", instance],
    );

    {
        let store = metadata::open(uri).await.unwrap();
        let quorums = Quorums::new(1, 1, 1).unwrap();
        let needed = LedgerMetadata::open(quorums, vec![bookie(4)], DigestType::Crc32c, Password::empty()).unwrap();
        Ledgers::new(store).create(LedgerId::new(9000_u64).unwrap(), &needed).await.unwrap();
    }
    refused(
        &[&known[..], &["--confirm", "bookie-4"]].concat(),
        &["bookie-4 is a member of 1 ledger (9000)", "--force"],
    );
    let plan = run(&[&known[..], &["--dry-run", "--output", "json"]].concat());
    assert_eq!(plan.status.code(), Some(2));
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!((&plan["ledgers"], &plan["registered"], &plan["cookie"]), (&1.into(), &false.into(), &true.into()));
    // Forced: the data goes, the id stays taken, and its directory is not accepted blank.
    let forced = good(&[&known[..], &["--force", "--confirm", "bookie-4"]].concat());
    assert!(forced.contains("1 ledger (9000): its cookie stays") && forced.contains("another id"), "{forced}");
    good(&["cookie", "show", "bookie-4", "--metadata", uri]);
    let blank = run(&["bookie", "--metadata", uri, "--id", "bookie-4", "--dir", &at, "--listen", "127.0.0.1:0"]);
    assert!(!blank.status.success() && text(&blank.stderr).contains("bookie-4"), "{}", text(&blank.stderr));
    {
        let store = metadata::open(uri).await.unwrap();
        Ledgers::new(store).delete(LedgerId::new(9000_u64).unwrap(), None).await.unwrap();
    }
    good(&["cookie", "delete", "bookie-4", "--confirm", "bookie-4", "--metadata", uri]);
    used_bookie(home.path(), uri, "bookie-4").await;
    let plan = good(&[&known[..], &["--dry-run"]].concat());
    assert!(plan.contains("member of ledgers  0") && plan.contains("bookie-4"), "{plan}");
    refused(&known, &["--confirm bookie-4", "Nothing was changed"]);
    refused(&[&known[..], &["--confirm", "bookie-1"]].concat(), &["Nothing was changed"]);
    assert!(dir.join("VERSION").exists());

    let done = good(&[&known[..], &["--confirm", "bookie-4"]].concat());
    assert!(done.contains("removed its cookie"), "{done}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    refused(&["cookie", "show", "bookie-4", "--metadata", uri], &["no cookie of bookie"]);
    // Id and directory are free again.
    let mut again = start_bookie(home.path(), uri, "bookie-4").await;
    assert!(again.terminate(STOP_DEADLINE).await.unwrap().success());

    // The cluster is gone: nobody can be asked.
    good(&["cluster", "format", "--metadata", uri, "--confirm", "logs"]);
    refused(&known, &["holds no cluster", "--force"]);
    let forced = json(&[&format[..], &["--force", "--confirm", "bookie-4"]].concat());
    assert_eq!((&forced["bookie"], &forced["cookie_deleted"]), (&"bookie-4".into(), &false.into()));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[tokio::test]
async fn a_registered_bookie_is_not_formatted() {
    if Etcd::is_missing_for("administration") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let (home, uri) = (folder(), &etcd.uri("/test"));
    good(&["cluster", "init", "--metadata", uri, "--name", "logs"]);
    let dir = used_bookie(home.path(), uri, "bookie-4").await;
    let at = dir.display().to_string();
    let store = metadata::open(uri).await.unwrap();
    let lease = store.grant_lease(HOUR).await.unwrap();
    let info = BookieInfo::at("127.0.0.1:3181");
    Bookies::new(store.clone()).register(&bookie(4), &info, lease).await.unwrap();
    let format = ["bookie", "format", "--dir", &at, "--metadata", uri, "--force", "--confirm", "bookie-4"];
    refused(&format, &["bookie-4 is registered", "Nothing was changed"]);
    assert!(dir.join("VERSION").exists());
    store.revoke(lease).await.unwrap();
    good(&format);
}

#[tokio::test]
async fn metadata_goes_from_embedded_to_etcd_and_back_and_is_equal() {
    if Etcd::is_missing_for("administration") {
        return;
    }
    let etcd = Etcd::start().await.unwrap();
    let (home, there) = (folder(), &etcd.uri("/test"));
    let (first, last) = (&embedded(home.path(), "first"), &embedded(home.path(), "last"));
    let instance = &filled(first).await;
    let want = rows(first).await;

    let there_and = ["metadata", "copy", "--from", first, "--to", there];
    let plan = json(&[&there_and[..], &["--dry-run"]].concat());
    assert_eq!((&plan["keys"], &plan["by_kind"]["ledgers"]), (&(want.len() - 3).into(), &LEDGERS.into()));
    assert_eq!(rows(there).await, []);
    let copied = good(&there_and);
    for word in ["404 keys written", "verified: 404 keys", "SHA-256", &format!("none with {first}"), instance] {
        assert!(copied.contains(word), "{word}: {copied}");
    }
    assert_eq!(rows(there).await, want);
    assert_eq!(json(&["cluster", "show", "--metadata", there])["instance_id"], instance.as_str());

    // Again: only compared; and what differs is told.
    let again = json(&there_and);
    assert_eq!((&again["only_compared"], &again["written"]), (&true.into(), &0.into()));
    let store = metadata::open(there).await.unwrap();
    let made = metadata::layout::ledger_key(Ledgers::new(store.clone()).allocate_id().await.unwrap());
    store.create(&made, Bytes::from_static(b"?")).await.unwrap();
    refused(&there_and, &[&format!("differ in 1 keys, first {made}"), "have been at work"]);

    // Cut short at random keys until it ends, at every start from a little further.
    let back = ["metadata", "copy", "--from", there, "--to", last];
    let rng = Rng::from_os();
    for round in 0..3 {
        let at = 1 + rng.below(400);
        println!("round {round}: killed after {at} keys");
        killed(&[&back[..], &["--kill-after", &at.to_string()]].concat());
        refused(&["cluster", "show", "--metadata", last], &["the copy of cluster logs", "metadata copy"]);
    }
    let done = json(&back);
    assert!(done["equal_before"].as_u64().unwrap() > 0, "{done}");
    assert_eq!(done["written"].as_u64().unwrap() + done["equal_before"].as_u64().unwrap(), 405);
    assert_eq!(carried(last).await, carried(there).await);
    assert_ne!(rows(last).await, want, "one id was given meanwhile");
    // Nobody goes on with what was left.
    for left in [first, there] {
        refused(&["cluster", "show", "--metadata", left], &["was moved from here", "cluster format"]);
        refused(
            &["metadata", "copy", "--from", left, "--to", &embedded(home.path(), "more")],
            &["was moved from here"],
        );
    }
}

#[tokio::test]
async fn a_copy_is_refused_where_it_would_mix_or_lose() {
    let home = folder();
    let place = |name: &str| embedded(home.path(), name);
    let (from, other, strange, to) = (&place("from"), &place("other"), &place("strange"), &place("to"));
    filled(from).await;
    let copy = |to: &str, more: &[&str]| -> Vec<String> {
        let words = [&["metadata", "copy", "--from", from.as_str(), "--to", to][..], more].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let refused_copy = |to: &str, more: &[&str], say: &[&str]| {
        refused(&copy(to, more).iter().map(String::as_str).collect::<Vec<_>>(), say);
    };
    refused_copy(from, &[], &["name the same store"]);
    refused(&["metadata", "copy", "--from", to, "--to", other], &["no metadata in this directory"]);
    assert!(!home.path().join("to").exists() && !home.path().join("other").exists());
    good(&["cluster", "init", "--metadata", other, "--name", "other"]);
    refused_copy(other, &[], &["holds another cluster, other"]);
    {
        let store = metadata::open(strange).await.unwrap();
        store.create(&Key::new("/thermocline/x").unwrap(), Bytes::new()).await.unwrap();
    }
    refused_copy(strange, &[], &["it holds /thermocline/x"]);
    refused(&["metadata", "copy", "--from", strange, "--to", to], &["nothing to copy from"]);

    {
        let store = metadata::open(from).await.unwrap();
        let uuid = Rng::from_os().uuid();
        let (ledger, key) = (LedgerId::new(2_u64).unwrap(), "ab/x.parquet".to_owned());
        let new = NewAttempt { uuid, ledger, key, owner: "gone".into(), started_ms: 1 };
        Attempts::new(store).begin(new).await.unwrap();
    }
    refused_copy(to, &[], &["have not ended at the source: 1", "--abandon-attempts"]);
    refused_copy(to, &["--dry-run"], &["have not ended at the source: 1"]);
    assert_eq!(rows(to).await, []);
    let done = copy(to, &["--abandon-attempts", "--output", "json"]);
    let done: Value = serde_json::from_str(&good(&done.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    assert_eq!(
        (&done["abandoned_attempts"], &done["verified"]["by_kind"]["abandoned_attempts"]),
        (&1.into(), &1.into())
    );
    assert_eq!(carried(to).await, carried(from).await);
}

/// A copy that is cut short is no cluster for any role, and is given up with `cluster format`.
#[tokio::test]
async fn half_a_copy_does_not_open() {
    let home = folder();
    let (from, to) = (&embedded(home.path(), "from"), &embedded(home.path(), "to"));
    filled(from).await;
    killed(&["metadata", "copy", "--from", from, "--to", to, "--kill-after", "200"]);
    let dir = home.path().join("bookie").display().to_string();
    let bookie = run(&["bookie", "--metadata", to, "--dir", &dir, "--listen", "127.0.0.1:0", "--admin", "off"]);
    assert_eq!(bookie.status.code(), Some(1), "{}", text(&bookie.stderr));
    refused(&["cluster", "init", "--metadata", to], &["the copy of cluster logs"]);
    refused(&["cookie", "list", "--metadata", to], &["the copy of cluster logs"]);
    assert!(good(&["cluster", "format", "--metadata", to, "--dry-run"]).contains("the copy is given up"));
    good(&["cluster", "format", "--metadata", to, "--confirm", "logs"]);
    assert_eq!(rows(to).await, []);
    assert_eq!(json(&["metadata", "copy", "--from", from, "--to", to])["written"], 404);
}
