//! The in-process S3 server under the client that the product uses: everything a real store must do, done.

use std::sync::Arc;

use bytes::Bytes;
use faults::s3::{Options, Server};
use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, RetryConfig, UpdateVersion,
};

pub(crate) fn builder(server: &Server) -> AmazonS3Builder {
    AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_bucket_name(server.bucket())
        .with_access_key_id(server.access_key())
        .with_secret_access_key(server.secret_key())
        .with_region("us-east-1")
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
}

async fn world_with(options: Options) -> (Server, AmazonS3) {
    let server = Server::start(options).await.unwrap();
    let store = builder(&server).build().unwrap();
    (server, store)
}

async fn world() -> (Server, AmazonS3) {
    world_with(Options::default()).await
}

pub(crate) fn path(key: &str) -> Path {
    Path::parse(key).unwrap()
}

async fn put(store: &AmazonS3, key: &str, body: &'static [u8], mode: PutMode) -> object_store::Result<UpdateVersion> {
    let options = PutOptions { mode, ..PutOptions::default() };
    store.put_opts(&path(key), PutPayload::from_static(body), options).await.map(UpdateVersion::from)
}

async fn keys(store: &AmazonS3, prefix: &str) -> Vec<String> {
    let listed: Vec<_> = store.list(Some(&path(prefix))).try_collect().await.unwrap();
    listed.into_iter().map(|meta| meta.location.to_string()).collect()
}

#[tokio::test]
async fn objects_are_put_looked_up_read_and_removed() {
    let (server, store) = world().await;
    put(&store, "a/b", b"0123456789", PutMode::Overwrite).await.unwrap();
    let meta = store.head(&path("a/b")).await.unwrap();
    assert_eq!(meta.size, 10);
    let get = |range: GetRange| {
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        let store = store.clone();
        async move { store.get_opts(&path("a/b"), options).await?.bytes().await }
    };
    assert_eq!(store.get(&path("a/b")).await.unwrap().bytes().await.unwrap(), "0123456789");
    assert_eq!(get(GetRange::Bounded(2..5)).await.unwrap(), "234");
    assert_eq!(get(GetRange::Bounded(8..50)).await.unwrap(), "89");
    assert_eq!(get(GetRange::Offset(7)).await.unwrap(), "789");
    assert_eq!(get(GetRange::Suffix(3)).await.unwrap(), "789");
    assert_eq!(get(GetRange::Suffix(30)).await.unwrap(), "0123456789");
    let ranges = store.get_ranges(&path("a/b"), &[0..1, 4..6, 9..10]).await.unwrap();
    assert_eq!(ranges, ["0", "45", "9"].map(Bytes::from));
    // Beyond the end.
    let error = get(GetRange::Bounded(10..12)).await.unwrap_err();
    assert!(error.to_string().contains("416") || error.to_string().contains("InvalidRange"), "{error}");

    assert!(matches!(store.head(&path("a/c")).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.get(&path("a/c")).await, Err(Error::NotFound { .. })));
    store.delete(&path("a/b")).await.unwrap();
    store.delete(&path("a/b")).await.unwrap();
    assert!(matches!(store.head(&path("a/b")).await, Err(Error::NotFound { .. })));
    assert_eq!((server.history().created, server.history().deleted, server.used_bytes()), (1, 1, 0));
}

#[tokio::test]
async fn conditions_of_reads_hold() {
    let (_server, store) = world().await;
    let first = put(&store, "key", b"first", PutMode::Overwrite).await.unwrap().e_tag.unwrap();
    let modified = store.head(&path("key")).await.unwrap().last_modified;
    let get = |options: GetOptions| {
        let store = store.clone();
        async move { store.get_opts(&path("key"), options).await }
    };
    let if_none_match = GetOptions { if_none_match: Some(first.clone()), ..GetOptions::default() };
    assert!(matches!(get(if_none_match.clone()).await, Err(Error::NotModified { .. })));
    get(GetOptions { if_match: Some(first.clone()), ..GetOptions::default() }).await.unwrap();
    let since = GetOptions { if_modified_since: Some(modified), ..GetOptions::default() };
    assert!(matches!(get(since).await, Err(Error::NotModified { .. })));
    get(GetOptions { if_unmodified_since: Some(modified), ..GetOptions::default() }).await.unwrap();
    put(&store, "key", b"second", PutMode::Overwrite).await.unwrap();
    get(if_none_match).await.unwrap();
    let stale = GetOptions { if_match: Some(first), ..GetOptions::default() };
    assert!(matches!(get(stale).await, Err(Error::Precondition { .. })));
}

#[tokio::test]
async fn conditions_of_writes_hold() {
    let (server, store) = world().await;
    let version = put(&store, "key", b"one", PutMode::Create).await.unwrap();
    assert!(matches!(put(&store, "key", b"two", PutMode::Create).await, Err(Error::AlreadyExists { .. })));
    let newer = put(&store, "key", b"three", PutMode::Update(version.clone())).await.unwrap();
    assert!(matches!(
        put(&store, "key", b"four", PutMode::Update(version.clone())).await,
        Err(Error::Precondition { .. })
    ));
    assert!(put(&store, "none", b"five", PutMode::Update(newer)).await.is_err());
    assert_eq!(server.object("key").unwrap(), "three");
    let history = server.history();
    assert_eq!((history.created, history.replaced, history.refused), (1, 1, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_creators_one_wins() {
    let (server, store) = world().await;
    for round in 0..20 {
        let key = format!("race/{round}");
        let writers = (0..16u8).map(|writer| {
            let (store, key) = (store.clone(), path(&key));
            tokio::spawn(async move {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                store.put_opts(&key, PutPayload::from(vec![writer; 1_000]), options).await
            })
        });
        let done = futures::future::join_all(writers).await;
        let winners: Vec<usize> = done
            .iter()
            .enumerate()
            .filter(|(_, done)| done.as_ref().unwrap().is_ok())
            .map(|(place, _)| place)
            .collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(server.object(&key).unwrap(), vec![winners[0] as u8; 1_000]);
    }
    assert_eq!(server.history().replaced, 0);
}

#[tokio::test]
async fn uploads_in_parts_are_joined_or_forgotten() {
    for checksum in [None, Some(Checksum::SHA256), Some(Checksum::CRC64NVME)] {
        let (server, store) = world_with(Options { part_bytes_min: 1_000, ..Options::default() }).await;
        let store = match checksum {
            Some(checksum) => builder(&server).with_checksum_algorithm(checksum).build().unwrap(),
            None => store,
        };
        let mut upload = store.put_multipart(&path("large")).await.unwrap();
        for part in 0..5u8 {
            upload.put_part(PutPayload::from(vec![part; 1_000])).await.unwrap();
        }
        upload.put_part(PutPayload::from_static(b"the end")).await.unwrap();
        assert_eq!(server.unfinished()[0].parts, 6);
        upload.complete().await.unwrap();
        assert_eq!((server.objects(), server.unfinished()), (vec![("large".to_owned(), 5_007)], vec![]));
        let read = store.get_range(&path("large"), 990..1_010).await.unwrap();
        assert_eq!(read, [[0; 10], [1; 10]].concat());
        let whole = store.get(&path("large")).await.unwrap().bytes().await.unwrap();
        assert_eq!(whole.len(), 5_007);
        assert!(whole.ends_with(b"the end"));

        let mut upload = store.put_multipart(&path("stopped")).await.unwrap();
        upload.put_part(PutPayload::from(vec![1; 1_000])).await.unwrap();
        upload.abort().await.unwrap();
        assert_eq!((server.unfinished(), server.used_bytes()), (vec![], 5_007));
        assert!(matches!(store.head(&path("stopped")).await, Err(Error::NotFound { .. })));
    }
}

#[tokio::test]
async fn parts_that_are_too_small_are_refused() {
    let (server, store) = world().await;
    let mut upload = store.put_multipart_opts(&path("small"), PutMultipartOptions::default()).await.unwrap();
    for _ in 0..2 {
        upload.put_part(PutPayload::from(vec![1; 1_000])).await.unwrap();
    }
    let error = upload.complete().await.unwrap_err();
    assert!(error.to_string().contains("EntityTooSmall"), "{error}");
    assert_eq!(server.objects(), []);
}

#[tokio::test]
async fn listings_have_pages_folders_and_a_beginning() {
    let (_server, store) = world().await;
    let all: Vec<String> = (0..1_200).map(|number| format!("list/{number:04}")).collect();
    let writes = all.iter().map(|key| put(&store, key, b"x", PutMode::Create));
    futures::stream::iter(writes).buffer_unordered(32).try_collect::<Vec<_>>().await.unwrap();
    put(&store, "other/1", b"x", PutMode::Create).await.unwrap();
    put(&store, "list/deep/er/1", b"x", PutMode::Create).await.unwrap();
    assert_eq!(keys(&store, "list").await.len(), 1_201);
    assert_eq!(keys(&store, "list").await[..1_200], all);
    let behind: Vec<_> =
        store.list_with_offset(Some(&path("list")), &path("list/1197")).try_collect::<Vec<_>>().await.unwrap();
    let behind: Vec<_> = behind.iter().map(|meta| meta.location.as_ref()).collect();
    assert_eq!(behind, ["list/1198", "list/1199", "list/deep/er/1"]);
    let folders = store.list_with_delimiter(Some(&path("list"))).await.unwrap();
    assert_eq!((folders.objects.len(), folders.common_prefixes), (1_200, vec![path("list/deep")]));
    let top = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(top.common_prefixes, [path("list"), path("other")]);

    let locations = futures::stream::iter(all.into_iter().map(|key| Ok(path(&key)))).boxed();
    let gone: Vec<_> = store.delete_stream(locations).try_collect().await.unwrap();
    assert_eq!(gone.len(), 1_200);
    assert_eq!(keys(&store, "list").await, ["list/deep/er/1"]);
}

#[tokio::test]
async fn objects_are_copied() {
    let (server, store) = world().await;
    put(&store, "from", b"body", PutMode::Create).await.unwrap();
    store.copy(&path("from"), &path("to")).await.unwrap();
    assert_eq!(server.object("to").unwrap(), "body");
    assert!(store.copy(&path("none"), &path("to")).await.is_err());
}

#[tokio::test]
async fn keys_of_all_letters_come_back() {
    let (server, store) = world().await;
    for key in ["a b+c/d%e", "ä/ö=ü&é", "x/(1)!~'*"] {
        let path = Path::from(key);
        store.put(&path, PutPayload::from_static(b"x")).await.unwrap();
        assert_eq!(store.head(&path).await.unwrap().size, 1);
        assert!(server.objects().iter().any(|(found, _)| found == path.as_ref()), "{key}: {:?}", server.objects());
    }
    assert_eq!(store.list(None).try_collect::<Vec<_>>().await.unwrap().len(), 3);
}

#[tokio::test]
async fn strangers_other_regions_and_too_many_bytes_are_refused() {
    let options = Options { region: Some("eu-central-1".to_owned()), bytes_max: 1_000, ..Options::default() };
    let (server, store) = world_with(options).await;
    let error = store.head(&path("x")).await.unwrap_err();
    assert!(!matches!(error, Error::NotFound { .. }), "{error}");
    let error = put(&store, "x", b"x", PutMode::Create).await.unwrap_err();
    assert!(error.to_string().contains("expecting &apos;eu-central-1&apos;"), "{error}");

    let there = builder(&server).with_region("eu-central-1").build().unwrap();
    put(&there, "x", &[1; 1_000], PutMode::Create).await.unwrap();
    let error = put(&there, "y", b"2", PutMode::Create).await.unwrap_err();
    assert!(error.to_string().contains("QuotaExceeded"), "{error}");
    there.delete(&path("x")).await.unwrap();
    put(&there, "y", &[2; 1_000], PutMode::Create).await.unwrap();
    put(&there, "y", &[3; 1_000], PutMode::Overwrite).await.unwrap();

    let forged = builder(&server).with_region("eu-central-1").with_secret_access_key("wrong").build().unwrap();
    assert!(matches!(put(&forged, "z", b"z", PutMode::Create).await, Err(Error::PermissionDenied { .. })));
    let unsigned = builder(&server).with_skip_signature(true).build().unwrap();
    assert!(matches!(put(&unsigned, "z", b"z", PutMode::Create).await, Err(Error::PermissionDenied { .. })));
    let elsewhere = builder(&server).with_region("eu-central-1").with_bucket_name("nowhere").build().unwrap();
    assert!(matches!(put(&elsewhere, "z", b"z", PutMode::Create).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn a_store_can_lack_conditions_and_checksums() {
    let options = Options { conditional_writes: false, checksum_headers: false, ..Options::default() };
    let (server, store) = world_with(options).await;
    put(&store, "key", b"one", PutMode::Create).await.unwrap();
    put(&store, "key", b"two", PutMode::Create).await.unwrap();
    assert_eq!(server.object("key").unwrap(), "two");
    let summing = builder(&server).with_checksum_algorithm(Checksum::SHA256).build().unwrap();
    let error = put(&summing, "other", b"x", PutMode::Create).await.unwrap_err();
    assert!(error.to_string().contains("x-amz-checksum-sha256") || error.to_string().contains("501"), "{error}");
}

#[tokio::test]
async fn the_server_is_gone_when_it_is_dropped() {
    let (server, store) = world().await;
    put(&store, "key", b"one", PutMode::Create).await.unwrap();
    drop(server);
    assert!(store.head(&path("key")).await.is_err());
    let _: Arc<dyn ObjectStore> = Arc::new(store);
}
