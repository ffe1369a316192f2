//! The HTTP proxy: each fault as the client and the store see it.

use std::time::Duration;

use faults::http::{Fault, Operation, Proxy, Rule};
use faults::model::{StoreModel, Wait};
use faults::s3::{Options, Server};
use object_store::aws::AmazonS3;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::time::Instant;

use crate::s3::{builder, path};

async fn world() -> (Server, Proxy, AmazonS3) {
    let server = Server::start(Options { part_bytes_min: 1, ..Options::default() }).await.unwrap();
    let proxy = Proxy::start(server.endpoint()).await.unwrap();
    let store = builder(&server).with_endpoint(proxy.endpoint()).build().unwrap();
    (server, proxy, store)
}

async fn create(store: &AmazonS3, key: &str, body: &str) -> object_store::Result<()> {
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    store.put_opts(&path(key), PutPayload::from(body.to_owned()), options).await.map(drop)
}

async fn read(store: &AmazonS3, key: &str) -> object_store::Result<bytes::Bytes> {
    store.get(&path(key)).await?.bytes().await
}

#[tokio::test]
async fn everything_passes_and_is_logged() {
    let (server, proxy, store) = world().await;
    create(&store, "a/one", "12345").await.unwrap();
    assert_eq!(read(&store, "a/one").await.unwrap(), "12345");
    assert_eq!(store.get_range(&path("a/one"), 1..3).await.unwrap(), "23");
    assert!(store.head(&path("a/none")).await.is_err());
    let mut upload = store.put_multipart(&path("a/two")).await.unwrap();
    upload.put_part(PutPayload::from(vec![7; 300_000])).await.unwrap();
    upload.put_part(PutPayload::from(vec![8; 10])).await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(server.objects(), [("a/one".to_owned(), 5), ("a/two".to_owned(), 300_010)]);

    let log = proxy.log();
    let seen: Vec<_> = log.iter().map(|record| (record.request.operation, record.status)).collect();
    use Operation as O;
    assert_eq!(
        seen,
        [
            (O::Put, Some(200)),
            (O::Get, Some(200)),
            (O::Get, Some(206)),
            (O::Head, Some(404)),
            (O::CreateMultipart, Some(200)),
            (O::UploadPart, Some(200)),
            (O::UploadPart, Some(200)),
            (O::CompleteMultipart, Some(200)),
        ]
    );
    assert_eq!((log[0].bytes_up, log[1].bytes_down, log[2].bytes_down, log[5].bytes_up), (5, 5, 2, 300_000));
    assert_eq!((log[0].request.key.as_str(), log[0].request.condition.as_deref()), ("a/one", Some("*")));
    assert_eq!((log[2].request.range.as_deref(), log[6].request.part), (Some("bytes=1-2"), Some(2)));
    assert!(log.iter().all(|record| record.duration.is_some() && record.faults.is_empty()));
    assert_eq!(proxy.traffic().requests, 8);
}

#[tokio::test]
async fn a_request_fails_before_or_after_it_was_carried_out() {
    for (fault, happened) in [
        (Fault::slow_down(), false),
        (Fault::Reset, false),
        (Fault::CutRequest(3), false),
        (Fault::StatusAfter(500, "InternalError".to_owned()), true),
        (Fault::DropReply, true),
    ] {
        let (server, proxy, store) = world().await;
        proxy.add(Rule::on(Operation::Put).key("a/*").nth(2).fault(fault.clone()));
        create(&store, "a/first", "12345").await.unwrap();
        create(&store, "b/other", "12345").await.unwrap();
        let error = create(&store, "a/second", "12345").await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{fault:?}: {error:?}");
        create(&store, "a/third", "12345").await.unwrap();
        assert_eq!(server.object("a/second").is_some(), happened, "{fault:?}");
        assert_eq!(proxy.done(), [1]);
        assert_eq!(proxy.log()[2].faults, [fault]);
    }
}

#[tokio::test]
async fn statuses_are_those_of_s3() {
    let (_server, proxy, store) = world().await;
    proxy.add(Rule::on(Operation::Put).nth(1).fault(Fault::Status(412, "PreconditionFailed".to_owned())));
    assert!(matches!(create(&store, "key", "x").await, Err(Error::AlreadyExists { .. })));
    proxy.clear_rules();
    proxy.add(Rule::on(Operation::Head).fault(Fault::Status(403, "AccessDenied".to_owned())));
    assert!(matches!(store.head(&path("key")).await, Err(Error::PermissionDenied { .. })));
    proxy.clear_rules();
    proxy.add(Rule::on(Operation::Put).fault(Fault::conflict()));
    let error = create(&store, "key", "x").await.unwrap_err();
    assert!(error.to_string().contains("ConditionalRequestConflict") || matches!(error, Error::AlreadyExists { .. }));
}

#[tokio::test]
async fn an_error_can_come_with_status_200() {
    for applied in [false, true] {
        let (server, proxy, store) = world().await;
        let fault = Fault::ErrorInOk { code: "InternalError".to_owned(), applied };
        proxy.add(Rule::on(Operation::CompleteMultipart).nth(1).fault(fault));
        let mut upload = store.put_multipart(&path("key")).await.unwrap();
        upload.put_part(PutPayload::from(vec![1; 10])).await.unwrap();
        let error = upload.complete().await.unwrap_err();
        assert!(error.to_string().contains("InternalError"), "{error}");
        assert_eq!(server.object("key").is_some(), applied);
        assert_eq!(proxy.log().last().unwrap().status, Some(200));
    }
}

#[tokio::test]
async fn answers_are_cut() {
    let (_server, proxy, store) = world().await;
    create(&store, "key", &"x".repeat(200_000)).await.unwrap();
    proxy.add(Rule::on(Operation::Get).nth(1).fault(Fault::CutReply(70_000)));
    assert!(read(&store, "key").await.is_err());
    assert_eq!(proxy.log()[1].bytes_down, 70_000);
    assert_eq!(read(&store, "key").await.unwrap().len(), 200_000);
}

#[tokio::test]
async fn delays_bandwidth_and_the_model_take_their_time() {
    let (_server, proxy, store) = world().await;
    create(&store, "key", &"x".repeat(100_000)).await.unwrap();
    let timed = async || {
        let begun = Instant::now();
        read(&store, "key").await.unwrap();
        begun.elapsed()
    };
    proxy.add(Rule::on(Operation::Get).fault(Fault::Delay(Duration::from_millis(60))));
    assert!(timed().await >= Duration::from_millis(60));
    proxy.clear_rules();
    proxy.add(Rule::on(Operation::Get).fault(Fault::Bandwidth(1_000_000)));
    assert!(timed().await >= Duration::from_millis(100));
    proxy.clear_rules();
    let usual = Some(Wait { median: Duration::from_millis(50), sigma: 0.0 });
    proxy.set_model(StoreModel { usual, bytes_per_second: Some(2_000_000), ..StoreModel::none() }, 1);
    assert!(timed().await >= Duration::from_millis(100));
    // Writes are not slowed by the model.
    create(&store, "other", "x").await.unwrap();
    assert!(proxy.log().last().unwrap().duration.unwrap() < Duration::from_millis(50));
}

#[tokio::test]
async fn a_store_that_is_gone_ends_the_connection() {
    let (server, proxy, store) = world().await;
    create(&store, "key", "x").await.unwrap();
    drop(server);
    assert!(create(&store, "key2", "x").await.is_err());
    assert_eq!(proxy.log().last().unwrap().status, None);
}
