//! `thermocline store check` and the demo on an object store over HTTP, as processes: what people and scripts see.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Output, Stdio};

use faults::http::{Fault, Operation, Proxy, Rule};
use faults::s3::{Options, Server};
use tokio::process::Command;

async fn thermocline(server: &Server, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    for (variable, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("AWS_") || name.starts_with("THERMOCLINE_"))
    {
        command.env_remove(variable);
    }
    let run = command
        .args(arguments)
        .env("AWS_ACCESS_KEY_ID", server.access_key())
        .env("AWS_SECRET_ACCESS_KEY", server.secret_key())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    tokio::time::timeout(std::time::Duration::from_secs(300), run).await.unwrap().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn url(server: &Server, endpoint: &str) -> String {
    format!("s3://{}/a/b?endpoint={endpoint}&region=us-east-1", server.bucket())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_store_is_told_with_its_policy() {
    let server = Server::start(Options::default()).await.unwrap();
    let done = thermocline(&server, &["store", "check", &url(&server, server.endpoint())]).await;
    let shown = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{shown}{}", text(&done.stderr));
    for expected in [
        "Thermocline can use this store",
        "conditional write",
        "Nothing of this check was left behind",
        "arn:aws:s3:::bucket/a/b/*",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    assert!(!shown.contains(server.secret_key()) && !shown.contains("MISSING"), "{shown}");
    assert_eq!(server.objects(), []);

    let done = thermocline(&server, &["store", "check", &url(&server, server.endpoint()), "--output", "json"]).await;
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&report["usable"], &report["store"]), (&true.into(), &"s3://bucket/a/b".into()));
    assert_eq!(report["checks"].as_array().unwrap().len(), 11);
    assert!(report["checks"].as_array().unwrap().iter().all(|check| check["result"] == "ok"), "{report}");
    assert!(report["round_trip_p50_ms"].as_f64().unwrap() > 0.0);

    let done = thermocline(&server, &["store", "check", "s3://bucket/a/b", "--policy"]).await;
    let policy: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(policy["Statement"].as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_decides_the_exit_code() {
    let server = Server::start(Options { conditional_writes: false, ..Options::default() }).await.unwrap();
    let done = thermocline(&server, &["store", "check", &url(&server, server.endpoint())]).await;
    let shown = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{shown}");
    assert!(shown.contains("IGNORED: the second write of a key replaced the first"), "{shown}");

    let proxy = Proxy::start(server.endpoint()).await.unwrap();
    proxy.add(Rule::on(Operation::CreateMultipart).fault(Fault::Status(403, "AccessDenied".to_owned())));
    let done = thermocline(&server, &["store", "check", &url(&server, &proxy.endpoint())]).await;
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("it lacks multipart"), "{}", text(&done.stderr));

    for (url, advice) in [
        ("ftp://host", "write it as file:///"),
        ("s3://bucket?secret=x", "Keys do not belong in a URL"),
        ("s3://bucket?endpoint=http://192.0.2.1:9&region=a", "plain HTTP to another machine"),
    ] {
        let done = thermocline(&server, &["store", "check", url]).await;
        assert_eq!(done.status.code(), Some(2), "{url}");
        assert!(text(&done.stderr).contains(advice), "{url}: {}", text(&done.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_checked_too() {
    let server = Server::start(Options::default()).await.unwrap();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let url = format!("file://{}", dir.path().display());
    let done = thermocline(&server, &["store", "check", &url]).await;
    let shown = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{shown}{}", text(&done.stderr));
    assert!(shown.contains("must own"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_settles_into_s3() {
    let server = Server::start(Options::default()).await.unwrap();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let input = dir.path().join("some.log");
    let lines: String = (0..80_000).map(|line| format!("{line} a line of a log that says not much\n")).collect();
    std::fs::write(&input, lines).unwrap();
    let home = dir.path().join("home");
    let arguments = ["demo", "--cold", &url(&server, server.endpoint()), "--prove-cold", "--output", "json"];
    let places = ["--input", input.to_str().unwrap(), "--dir", home.to_str().unwrap()];
    let done = thermocline(&server, &[&arguments[..], &places[..]].concat()).await;
    assert_eq!(done.status.code(), Some(0), "{}{}", text(&done.stdout), text(&done.stderr));
    let objects = server.objects();
    assert!(!objects.is_empty() && objects.iter().all(|(key, _)| key.starts_with("a/b/")), "{objects:?}");
    assert_eq!((server.history().replaced, server.unfinished()), (0, vec![]));
}
