use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Node {
    dir: PathBuf,
    memory: ByteSize,
    bookie: Bookie,
    #[serde(rename = "read-gateway")]
    gateway: Gateway,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Bookie {
    listen: String,
    port: u16,
    sync: bool,
    ratio: f64,
    disk_limit: Option<ByteSize>,
    mode: Mode,
    roots: Vec<String>,
    labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Gateway {
    idle: Span,
    admin_password: String,
    cold_url: String,
    retries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Direct,
    Buffered,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            dir: "data".into(),
            memory: ByteSize::mib(512),
            bookie: Bookie { listen: "127.0.0.1".into(), port: 3181, ..Bookie::default() },
            gateway: Gateway { idle: Span::secs(90), ..Gateway::default() },
        }
    }
}

impl Default for Bookie {
    fn default() -> Self {
        Self {
            listen: "::1".into(),
            port: 1,
            sync: true,
            ratio: 0.5,
            disk_limit: None,
            mode: Mode::Direct,
            roots: vec!["a".into()],
            labels: BTreeMap::new(),
        }
    }
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn from_file(text: &str) -> Result<Loaded<Node>, ConfigError> {
    from_all(Some(text), &[], &[])
}

fn from_all(file: Option<&str>, env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Loaded<Node>, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.toml");
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
    }
    load(None, file.is_some().then_some(path.as_path()), &pairs(env), &pairs(flags))
}

/// The message, with the temporary folder cut out of it.
fn refusal(outcome: Result<Loaded<Node>, ConfigError>) -> String {
    let text = outcome.unwrap_err().to_string();
    match (text.find("file /"), text.find("node.toml")) {
        (Some(start), Some(end)) => format!("{}file {}", &text[..start], &text[end..]),
        _ => text,
    }
}

#[test]
fn nothing_given_is_the_defaults() {
    let loaded = from_all(None, &[("HOME", "/root"), ("PATH", "")], &[]).unwrap();
    assert_eq!(loaded.value, Node::default());
    assert!(loaded.origins.iter().all(|(_, _, origin)| *origin == Origin::Default));
    assert_eq!(from_file("").unwrap().value, Node::default());
    assert_eq!(from_file("[bookie]\n").unwrap().value, Node::default());
}

#[test]
fn later_layers_win_and_are_remembered() {
    let file = "dir = '/file'\nmemory = '1GiB'\n[bookie]\nport = 10\nsync = false\nratio = 1.5\n";
    let env =
        [("THERMOCLINE_MEMORY", "2GiB"), ("THERMOCLINE_BOOKIE__PORT", "20"), ("THERMOCLINE_READ_GATEWAY__IDLE", "5s")];
    let flags = [("bookie.port", "30"), ("bookie.disk_limit", "1GB")];
    let loaded = from_all(Some(file), &env, &flags).unwrap();
    let value = &loaded.value;
    assert_eq!((value.dir.as_path(), value.memory), (Path::new("/file"), ByteSize::gib(2)));
    assert_eq!((value.bookie.port, value.bookie.sync, value.bookie.ratio), (30, false, 1.5));
    assert_eq!(value.bookie.listen, "127.0.0.1", "the section's other defaults are the whole struct's");
    assert_eq!(value.bookie.disk_limit, Some(ByteSize::new(1_000_000_000)));
    assert_eq!(value.gateway.idle, Span::secs(5));
    let origin = |key| loaded.origin_of(key).unwrap();
    assert!(matches!(origin("dir"), Origin::File(path) if path.ends_with("node.toml")));
    assert_eq!(origin("memory"), &Origin::Environment("THERMOCLINE_MEMORY".into()));
    assert_eq!(origin("bookie.port"), &Origin::Flag("bookie.port".into()));
    assert_eq!(origin("read-gateway.idle"), &Origin::Environment("THERMOCLINE_READ_GATEWAY__IDLE".into()));
    assert_eq!(origin("bookie.listen"), &Origin::Default);
    let row = loaded.rows().into_iter().find(|row| row.key == "memory").unwrap();
    let expected = Row { key: "memory".into(), value: "2GiB".into(), origin: "environment THERMOCLINE_MEMORY".into() };
    assert_eq!(row, expected);
}

#[test]
fn a_profile_is_above_the_defaults_and_below_everything_that_is_said() {
    let text = "[bookie]\nport = 1\nratio = 9.5\nsync = false\nlisten = 'profile'\nmode = 'buffered'\n";
    let profile = Profile { name: "fast", text, except: &["bookie.mode"] };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.toml");
    std::fs::write(&path, "[bookie]\nport = 2\n").unwrap();
    let env = pairs(&[("THERMOCLINE_BOOKIE__RATIO", "2.5")]);
    let flags = pairs(&[("bookie.sync", "true")]);
    let loaded = load::<Node>(Some(profile), Some(&path), &env, &flags).unwrap();
    let bookie = &loaded.value.bookie;
    assert_eq!((bookie.port, bookie.ratio, bookie.sync, bookie.listen.as_str()), (2, 2.5, true, "profile"));
    assert_eq!(bookie.mode, Mode::Direct, "it keeps the default of this configuration");
    assert_eq!(loaded.origin_of("bookie.listen"), Some(&Origin::Profile("fast".into())));
    assert_eq!(loaded.origin_of("bookie.mode"), Some(&Origin::Default));
    assert!(matches!(loaded.origin_of("bookie.port"), Some(Origin::File(_))));
    let row = loaded.rows().into_iter().find(|row| row.key == "bookie.listen").unwrap();
    assert_eq!(row.origin, "profile fast");
    let slip = Profile { name: "fast", text: "[bookie]\nprot = 1\n", except: &[] };
    let refused = load::<Node>(Some(slip), None, &[], &[]).unwrap_err().to_string();
    assert_eq!(refused, "unknown key bookie.prot (profile fast); did you mean bookie.port?");
}

#[test]
fn an_unknown_key_is_named_with_the_nearest() {
    for (file, message) in [
        ("bookie.prot = 1", "unknown key bookie.prot (file node.toml); did you mean bookie.port?"),
        ("bookie.disk-limit = 1", "unknown key bookie.disk-limit (file node.toml); did you mean bookie.disk_limit?"),
        ("[boookie]\nport = 1", "unknown key boookie (file node.toml); did you mean bookie?"),
        ("[boookie]", "unknown key boookie (file node.toml); did you mean bookie?"),
        ("port = 1", "unknown key port (file node.toml); did you mean bookie.port?"),
        ("colour = 1", "unknown key colour (file node.toml); known here: dir, memory, bookie, read-gateway"),
    ] {
        assert_eq!(refusal(from_file(file)), message);
    }
    let flags = [("read-gateway.idel", "5s")];
    assert_eq!(
        refusal(from_all(None, &[], &flags)),
        "unknown key read-gateway.idel (command line); did you mean read-gateway.idle?"
    );
    let env = [("THERMOCLINE_BOOKIE__SNYC", "true")];
    assert_eq!(
        refusal(from_all(None, &env, &[])),
        "unknown key bookie.snyc (environment THERMOCLINE_BOOKIE__SNYC); did you mean bookie.sync?"
    );
}

#[test]
fn other_programs_variables_are_left_alone_but_slips_are_not() {
    let env = [
        ("THERMOCLINE_SERVICE_HOST", "10.0.0.1"),
        ("THERMOCLINE_CACHE", "/x"),
        ("THERMOCLINE_PORT", "tcp://10.0.0.1:1"),
        ("THERMOCLINE_BOOKIE", "x"),
    ];
    let loaded = from_all(None, &env, &[]).unwrap();
    assert_eq!(loaded.value, Node::default());
    assert_eq!(
        loaded.ignored_variables,
        ["THERMOCLINE_BOOKIE", "THERMOCLINE_CACHE", "THERMOCLINE_PORT", "THERMOCLINE_SERVICE_HOST"]
    );
    let text = refusal(from_all(None, &[("THERMOCLINE_MEMROY", "1GiB")], &[]));
    assert_eq!(text, "unknown key memroy (environment THERMOCLINE_MEMROY); did you mean memory?");
}

#[test]
fn a_bad_value_is_named_with_what_is_accepted() {
    let write_size = "write a size such as 64MiB, 1GB, 4KiB, or a number of bytes";
    for (file, message) in [
        ("memory = '64XB'", format!("set memory to \"64XB\" (file node.toml): unknown unit \"XB\"; {write_size}")),
        ("memory = -1", format!("set memory to -1 (file node.toml): expected {}", &write_size[6..])),
        ("bookie.port = 70000", "set bookie.port to 70000 (file node.toml): expected a whole number from 0 to 65535".into()),
        ("bookie.port = 'x'", "set bookie.port to \"x\" (file node.toml): expected a whole number from 0 to 65535".into()),
        ("bookie.sync = 'maybe'", "set bookie.sync to \"maybe\" (file node.toml): expected true or false".into()),
        ("bookie.mode = 'fast'", "set bookie.mode to \"fast\" (file node.toml): write direct or buffered".into()),
        ("bookie.listen = 5", "set bookie.listen to 5 (file node.toml): expected text".into()),
        ("bookie = 5", "set bookie to 5 (file node.toml): it is a section, set its keys, such as bookie.labels".into()),
        ("bookie.port.x = 5", "set bookie.port.x to 5 (file node.toml): bookie.port is a single value and has no keys below it".into()),
        ("read-gateway.idle = '5'", "set read-gateway.idle to \"5\" (file node.toml): \"5\" has no unit; write a time such as 250ms, 5s, 10m, 2h, 7d".into()),
        ("read-gateway.idle = 5", "set read-gateway.idle to 5 (file node.toml): expected a time with its unit, such as \"250ms\", \"5s\", \"10m\", \"2h\", \"7d\"".into()),
    ] {
        assert_eq!(refusal(from_file(file)), message);
    }
    let text = refusal(from_all(None, &[("THERMOCLINE_BOOKIE__PORT", "many")], &[]));
    assert_eq!(
        text,
        "set bookie.port to \"many\" (environment THERMOCLINE_BOOKIE__PORT): expected a whole number from 0 to 65535"
    );
}

#[test]
fn texts_become_what_the_key_expects() {
    let flags = [
        ("bookie.listen", "5"),
        ("bookie.sync", "false"),
        ("bookie.ratio", "2.0"),
        ("bookie.roots", "x, y"),
        ("bookie.disk_limit", "4096"),
        ("bookie.labels.zone", "true"),
        ("bookie.mode", "buffered"),
        ("read-gateway.cold_url", "s3://bucket/a=b"),
        ("memory", "1048576"),
    ];
    let value = from_all(None, &[], &flags).unwrap().value;
    assert_eq!((value.bookie.listen.as_str(), value.bookie.sync, value.bookie.ratio), ("5", false, 2.0));
    assert_eq!(value.bookie.roots, ["x", "y"]);
    assert_eq!(value.bookie.disk_limit, Some(ByteSize::kib(4)));
    assert_eq!(value.bookie.labels.get("zone").map(String::as_str), Some("true"));
    assert_eq!((value.bookie.mode, value.memory), (Mode::Buffered, ByteSize::mib(1)));
    assert_eq!(value.gateway.cold_url, "s3://bucket/a=b");
    let listed = from_all(None, &[("THERMOCLINE_BOOKIE__ROOTS", "[\"p\", \"q\"]")], &[]).unwrap();
    assert_eq!(listed.value.bookie.roots, ["p", "q"]);
}

#[test]
fn arrays_are_replaced_whole_and_maps_are_merged() {
    let file = "[bookie]\nroots = ['x', 'y']\n[bookie.labels]\nzone = 'a'\nrack = '1'\n";
    let loaded = from_all(Some(file), &[], &[("bookie.labels.rack", "2")]).unwrap();
    assert_eq!(loaded.value.bookie.roots, ["x", "y"]);
    let labels: Vec<_> = loaded.value.bookie.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(labels, ["rack=2", "zone=a"]);
    assert_eq!(loaded.origin_of("bookie.labels.rack"), Some(&Origin::Flag("bookie.labels.rack".into())));
}

#[test]
fn secrets_are_redacted() {
    let flags = [("read-gateway.admin_password", "hunter2"), ("read-gateway.cold_url", "s3://key:hunter2@host/b")];
    let loaded = from_all(None, &[], &flags).unwrap();
    assert_eq!(loaded.value.gateway.admin_password, "hunter2");
    assert!(!format!("{:?}", loaded.origins).contains("hunter2"));
    let text = refusal(from_file("read-gateway.admin_password = ['hunter2']"));
    assert_eq!(text, "set read-gateway.admin_password to <redacted> (file node.toml): expected text");
}

#[test]
fn unreadable_files_are_sentences() {
    let missing = load::<Node>(None, Some(Path::new("/no/such.toml")), &[], &[]).unwrap_err().to_string();
    assert_eq!(missing, "read config file /no/such.toml: no such file; give the path of an existing one");
    let text = refusal(from_file("dir = 'x'\n[bookie\nport = 1\n"));
    assert!(text.contains("node.toml: line 2, column "), "{text}");
    assert!(!text.contains('\n'), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let text = load::<Node>(None, Some(dir.path()), &[], &[]).unwrap_err().to_string();
    assert!(text.ends_with("it is a folder; give a file"), "{text}");
}

#[test]
fn malformed_keys_are_sentences() {
    let text = refusal(from_all(None, &[], &[("bookie..port", "1")]));
    assert_eq!(text, "read key \"bookie..port\" (command line): write names joined with dots, such as bookie.listen");
    assert!(refusal(from_all(None, &[("THERMOCLINE_", "1")], &[])).starts_with("read key \"THERMOCLINE_\""));
}

#[test]
fn defaults_survive_a_trip_through_toml() {
    let text = to_toml(&Node::default()).unwrap();
    assert_eq!(from_file(&text).unwrap().value, Node::default());
    assert_eq!(differences_from_defaults::<Node>(Path::new("x.toml"), &text).unwrap(), Vec::<String>::new());
    let changed = text.replace("512MiB", "1GiB").replace("sync = true\n", "");
    let differences = differences_from_defaults::<Node>(Path::new("x.toml"), &changed).unwrap();
    assert_eq!(differences, ["bookie.sync is missing", "memory is 1GiB, the default is 512MiB"]);
}

/// A struct that forgot `deny_unknown_fields` still does not swallow keys.
#[test]
fn a_lenient_struct_refuses_too() {
    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Lenient {
        port: u16,
    }
    let error = load::<Lenient>(None, None, &[], &pairs(&[("prt", "1")])).unwrap_err().to_string();
    assert_eq!(error, "unknown key prt (command line); did you mean port?");
}
