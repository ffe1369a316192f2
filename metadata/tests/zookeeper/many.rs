//! A collection of 200,000 keys: more than ZooKeeper can list in one answer.

use std::time::Duration;

use bytes::Bytes;
use faults::ZooKeeper;
use futures::stream::{self, StreamExt, TryStreamExt};
use metadata::{Expect, OPS_MAX, Transaction, scan};
use tokio::time::Instant;

use crate::{key, open};

const KEYS: usize = 200_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_thousand_keys_are_listed_in_order() {
    if ZooKeeper::is_missing_for("zookeeper") {
        return;
    }
    let server = ZooKeeper::start().await.unwrap();
    let store = open(&server.uri("/r")).await;
    let name = |index: usize| key(&format!("/thermocline/catalog/{index:016x}-00000000-0000-4000-8000-000000000000"));
    let began = Instant::now();
    stream::iter((0..KEYS).step_by(OPS_MAX))
        .map(|first| {
            let last = KEYS.min(first + OPS_MAX);
            let all = (first..last).fold(Transaction::new(), |all, index| all.put(name(index), "v", Expect::Absent));
            store.commit(all)
        })
        .buffer_unordered(8)
        .try_for_each(|_| async { Ok(()) })
        .await
        .unwrap();
    println!("{KEYS} keys written in {:?}", began.elapsed());

    let began = Instant::now();
    let root = key("/thermocline/catalog");
    let mut rows = std::pin::pin!(scan(&*store, &root, 1000));
    let mut seen = 0;
    while let Some((found, value)) = rows.try_next().await.unwrap() {
        assert_eq!((found, value.value), (name(seen), Bytes::from_static(b"v")), "in order, none twice, none left out");
        seen += 1;
    }
    assert_eq!(seen, KEYS);
    println!("{KEYS} keys listed in {:?}", began.elapsed());

    let began = Instant::now();
    let middle = store.list(&root, Some(&name(KEYS / 2)), 3).await.unwrap();
    let found: Vec<_> = middle.into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, [name(KEYS / 2 + 1), name(KEYS / 2 + 2), name(KEYS / 2 + 3)]);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
