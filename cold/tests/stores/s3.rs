//! S3: the suite, and what happens when single requests fail before or after they were carried out.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use cold::{
    AccessKey, Capability, ChecksumHeader, CloudOptions, ColdStore, ErrorKind, Finding, Result, StoreOptions, Uploaded,
    suite,
};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::retry::RetryPolicy;
use common::rng::Rng;
use faults::http::{Fault, Operation, Proxy, Rule};
use faults::s3::{Options, Server};
use url::Url;

const PART: u64 = 1_000;

/// Options for a store at an endpoint; quick to give up.
fn options(server: &Server, endpoint: &str) -> StoreOptions {
    StoreOptions {
        retry: RetryPolicy {
            initial: Duration::from_millis(1),
            factor: 2.0,
            max: Duration::from_millis(5),
            deadline: Duration::from_millis(50),
        },
        request_deadline: Duration::from_secs(20),
        cloud: CloudOptions {
            endpoint: Some(endpoint.to_owned()),
            region: Some("us-east-1".to_owned()),
            access_key: Some(AccessKey { id: server.access_key().to_owned(), secret: server.secret_key().to_owned() }),
            request_retries: Some(0),
            ..CloudOptions::default()
        },
        ..StoreOptions::default()
    }
}

fn open(server: &Server, path: &str, options: StoreOptions) -> ColdStore {
    let url = Url::parse(&format!("s3://{}/{path}", server.bucket())).unwrap();
    ColdStore::open(&url, options, Rng::seeded(1)).unwrap()
}

/// A server behind a proxy, and a store with small parts on it.
async fn world() -> (Server, Proxy, ColdStore) {
    let server = Server::start(Options { part_bytes_min: 1, ..Options::default() }).await.unwrap();
    let proxy = Proxy::start(server.endpoint()).await.unwrap();
    let options = StoreOptions { part_bytes: PART, ..options(&server, &proxy.endpoint()) };
    let store = open(&server, "pre/fix", options);
    (server, proxy, store)
}

async fn put(store: &ColdStore, key: &str, bytes: &[u8]) -> Result<Uploaded> {
    let mut upload = store.upload(key, &ByteBudget::new("test", 1 << 20)).unwrap();
    upload.write(Bytes::copy_from_slice(bytes)).await?;
    upload.finish().await
}

/// The error with all its causes.
fn explained(error: &cold::Error) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_with_every_checksum() {
    for checksum in [None, Some(ChecksumHeader::Sha256), Some(ChecksumHeader::Crc64Nvme)] {
        // A server that knows no checksums serves who sends none.
        let server =
            Server::start(Options { checksum_headers: checksum.is_some(), ..Options::default() }).await.unwrap();
        let count = Cell::new(0);
        suite::run(async || {
            count.set(count.get() + 1);
            let mut options = StoreOptions { part_bytes: 5 << 20, ..options(&server, server.endpoint()) };
            options.cloud.checksum = checksum;
            open(&server, &format!("suite/{}", count.get()), options)
        })
        .await;
        assert_eq!(server.history().replaced, 0, "{checksum:?}");
    }
}

#[tokio::test]
async fn an_endpoint_in_the_url_is_enough() {
    let server = Server::start(Options::default()).await.unwrap();
    let mut options = options(&server, "http://127.0.0.1:1");
    options.cloud.region = None;
    let url = format!("s3://{}/a?endpoint={}&region=eu-west-1&addressing=path", server.bucket(), server.endpoint());
    let store = ColdStore::open(&Url::parse(&url).unwrap(), options, Rng::seeded(1)).unwrap();
    store.check().await.unwrap();
    assert_eq!(store.name(), "s3://bucket/a", "messages do not show the parameters");
}

/// A small object is written in one request: whatever becomes of it, the outcome is the truth.
#[tokio::test]
async fn a_put_that_failed_is_looked_up() {
    let failed = |code: &str| Fault::Status(500, code.to_owned());
    for (fault, done) in [
        (Fault::DropReply, true),
        (Fault::StatusAfter(500, "InternalError".to_owned()), true),
        (Fault::StatusAfter(503, "SlowDown".to_owned()), true),
        (Fault::StatusAfter(409, "ConditionalRequestConflict".to_owned()), true),
        (Fault::StatusAfter(412, "PreconditionFailed".to_owned()), true),
        // Nobody else's write was there: it is begun again.
        (Fault::conflict(), true),
        (Fault::Reset, false),
        (failed("InternalError"), false),
        (Fault::slow_down(), false),
        (Fault::CutRequest(3), false),
    ] {
        let (server, proxy, store) = world().await;
        proxy.add(Rule::on(Operation::Put).nth(1).fault(fault.clone()));
        let outcome = put(&store, "key", b"0123456789").await;
        assert_eq!(proxy.done(), [1]);
        assert_eq!(server.object("pre/fix/key").is_some(), done, "{fault:?}");
        match outcome {
            Ok(uploaded) => assert!(done && uploaded.bytes == 10, "{fault:?}"),
            Err(error) => {
                assert!(!done, "{fault:?}: {}", explained(&error));
                assert_eq!(error.kind(), ErrorKind::Unknown, "{fault:?}: {}", explained(&error));
            }
        }
        let history = server.history();
        assert_eq!((history.replaced, history.deleted), (0, 0), "{fault:?}");
    }
}

/// The joining of parts, with the client's own retries: a repeated request finds the upload gone, and that is no failure.
#[tokio::test]
async fn a_join_that_failed_is_looked_up() {
    for retries in [0, 3] {
        for (fault, done) in [
            (Fault::DropReply, true),
            (Fault::StatusAfter(500, "InternalError".to_owned()), true),
            (Fault::ErrorInOk { code: "InternalError".to_owned(), applied: true }, true),
            (Fault::ErrorInOk { code: "AccessDenied".to_owned(), applied: true }, true),
            (Fault::error_in_ok(), false),
            (Fault::Reset, false),
            (Fault::slow_down(), false),
        ] {
            let (server, proxy, _) = world().await;
            let mut options = StoreOptions { part_bytes: PART, ..options(&server, &proxy.endpoint()) };
            options.cloud.request_retries = Some(retries);
            let store = open(&server, "pre/fix", options);
            proxy.add(Rule::on(Operation::CompleteMultipart).nth(1).fault(fault.clone()));
            let outcome = put(&store, "key", &[7; 3_500]).await;
            assert_eq!(proxy.done(), [1]);
            let what = format!("{fault:?}, {retries} retries");
            let there = server.object("pre/fix/key").is_some();
            match &outcome {
                Ok(uploaded) => assert!(there && uploaded.bytes == 3_500, "{what}"),
                Err(error) => {
                    assert!(!there && !done && retries == 0, "{what}: {}", explained(error));
                    assert_eq!(error.kind(), ErrorKind::Unknown, "{what}: {}", explained(error));
                }
            }
            assert_eq!(server.history().replaced, 0, "{what}");
        }
    }
}

#[tokio::test]
async fn an_upload_that_the_store_forgot_surely_failed() {
    let (server, proxy, store) = world().await;
    proxy.add(Rule::on(Operation::UploadPart).nth(2).fault(Fault::Status(404, "NoSuchUpload".to_owned())));
    let error = put(&store, "key", &[7; 3_500]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{}", explained(&error));
    assert!(error.to_string().contains("forgotten the upload"), "{error}");
    proxy.clear_rules();
    proxy.add(Rule::on(Operation::CompleteMultipart).nth(1).fault(Fault::Status(404, "NoSuchUpload".to_owned())));
    let error = put(&store, "key", &[7; 3_500]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{}", explained(&error));
    assert_eq!(server.objects(), []);
}

#[tokio::test]
async fn a_missing_bucket_is_a_setting() {
    let server = Server::start(Options { part_bytes_min: 1, ..Options::default() }).await.unwrap();
    let url = Url::parse("s3://nowhere/a").unwrap();
    let options = StoreOptions { part_bytes: PART, ..options(&server, server.endpoint()) };
    let store = ColdStore::open(&url, options, Rng::seeded(1)).unwrap();
    for size in [10, 3_500] {
        let error = put(&store, "key", &vec![1; size]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{}", explained(&error));
        assert!(error.to_string().contains("the bucket is missing"), "{error}");
    }
    let report = store.probe(&Clock::system(), |_| {}).await;
    assert!(!report.is_usable());
    assert!(report.findings[0].1.detail().contains("does not exist: create it"), "{report:?}");
}

/// A body that ends early, or is slow, is read again; bytes are never missing.
#[tokio::test]
async fn reads_are_repeated_until_they_are_whole() {
    let (_server, proxy, store) = world().await;
    put(&store, "key", &[7; 900]).await.unwrap();
    for fault in [Fault::CutReply(100), Fault::CutReply(0), Fault::Reset, Fault::DropReply, Fault::slow_down()] {
        proxy.clear_rules();
        proxy.add(Rule::on(Operation::Get).nth(1).fault(fault.clone()));
        let found = store.get_range("key", 0..900, Some(900)).await;
        assert_eq!(found.unwrap_or_else(|error| panic!("{fault:?}: {}", explained(&error))), vec![7; 900]);
        assert_eq!(proxy.done(), [1]);
    }
}

#[tokio::test]
async fn a_wrong_region_key_or_secret_is_told_at_the_start() {
    let server =
        Server::start(Options { region: Some("eu-central-1".to_owned()), ..Options::default() }).await.unwrap();
    let mut wrong = options(&server, server.endpoint());
    let error = open(&server, "", wrong.clone()).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{}", explained(&error));
    assert!(explained(&error).contains("AWS_REGION=eu-central-1"), "{}", explained(&error));
    let report = open(&server, "", wrong.clone()).probe(&Clock::system(), |_| {}).await;
    assert!(report.findings[0].1.detail().contains("the bucket is in eu-central-1"), "{report:?}");

    wrong.cloud.region = Some("eu-central-1".to_owned());
    open(&server, "", wrong.clone()).check().await.unwrap();
    let right = wrong.cloud.access_key.clone().unwrap();
    wrong.cloud.access_key = Some(AccessKey { secret: "wrong".to_owned(), ..right.clone() });
    let error = open(&server, "", wrong.clone()).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(explained(&error).contains("check the secret key"), "{}", explained(&error));
    wrong.cloud.access_key = Some(AccessKey { id: "nobody".to_owned(), ..right });
    let error = open(&server, "", wrong).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(explained(&error).contains("does not know this access key"), "{}", explained(&error));
}

fn finding(report: &cold::StoreReport, capability: Capability) -> &Finding {
    &report.findings.iter().find(|(found, _)| *found == capability).unwrap().1
}

#[tokio::test]
async fn a_probe_names_what_a_store_lacks() {
    let lacking = Options { conditional_writes: false, clock_ahead_ms: -120_000, ..Options::default() };
    let server = Server::start(lacking).await.unwrap();
    let report = open(&server, "a", options(&server, server.endpoint())).probe(&Clock::system(), |_| {}).await;
    assert!(report.is_usable(), "{report:?}");
    let Finding::Lacks(what) = finding(&report, Capability::CreateOnly) else { panic!("{report:?}") };
    assert!(what.contains("IGNORED"), "{what}");
    let Finding::Lacks(what) = finding(&report, Capability::Clock) else { panic!("{report:?}") };
    assert!(what.contains("behind") && report.clock_ahead_ms.unwrap() < -110_000, "{what}");
    assert_eq!(server.objects(), [], "the probes are gone, the replaced one too");

    // Each right that is refused is found, and only that.
    for (operation, capability, usable) in [
        (Operation::Put, Capability::Write, false),
        (Operation::Head, Capability::LookUp, false),
        (Operation::Get, Capability::ReadRange, false),
        (Operation::List, Capability::List, false),
        (Operation::CreateMultipart, Capability::Multipart, false),
        (Operation::AbortMultipart, Capability::AbortMultipart, true),
        (Operation::Delete, Capability::Delete, true),
    ] {
        let server = Server::start(Options::default()).await.unwrap();
        let proxy = Proxy::start(server.endpoint()).await.unwrap();
        proxy.add(Rule::on(operation).fault(Fault::Status(403, "AccessDenied".to_owned())));
        let store = open(&server, "a", options(&server, &proxy.endpoint()));
        let report = store.probe(&Clock::system(), |_| {}).await;
        assert!(matches!(finding(&report, capability), Finding::Lacks(_)), "{operation}: {report:?}");
        assert_eq!(report.is_usable(), usable, "{operation}: {report:?}");
        let left = server.objects().len();
        match operation {
            Operation::Delete => assert_eq!(report.left_behind.len(), left, "{report:?}"),
            _ => assert_eq!((left, &report.left_behind[..]), (0, &[][..]), "{operation}"),
        }
    }
}

#[tokio::test]
async fn a_checksum_that_a_store_refuses_is_named() {
    let server = Server::start(Options { checksum_headers: false, ..Options::default() }).await.unwrap();
    let mut summing = options(&server, server.endpoint());
    summing.cloud.checksum = Some(ChecksumHeader::Sha256);
    let error = open(&server, "a", summing).check().await.unwrap_err();
    assert!(explained(&error).contains("?checksum=none"), "{}", explained(&error));
    open(&server, "a", options(&server, server.endpoint())).check().await.unwrap();
}
