use std::convert::Infallible;

use super::*;

const SOON: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn stop_asks_and_waits_for_the_whole_subtree() {
    let root = TaskTree::root("node");
    let child = root.child("bookie");
    for tree in [&root, &child] {
        let inside = tree.clone();
        tree.spawn("worker", async move { inside.stopping().await });
    }
    assert_eq!(root.running(), ["node/worker", "node/bookie/worker"]);
    assert!(!child.is_stopping());
    assert_eq!(root.stop(SOON).await, Ok(()));
    assert!(child.is_stopping() && root.running().is_empty() && child.running().is_empty());
    assert_eq!(root.stop(SOON).await, Ok(()), "again");
}

#[tokio::test(start_paused = true)]
async fn a_child_stops_alone() {
    let root = TaskTree::root("node");
    let child = root.child("bookie");
    let inside = child.clone();
    child.spawn("worker", async move { inside.stopping().await });
    let inside = root.clone();
    root.spawn("other", async move { inside.stopping().await });
    assert_eq!(child.stop(SOON).await, Ok(()));
    assert!(!root.is_stopping());
    assert_eq!(root.running(), ["node/other"]);
}

#[tokio::test(start_paused = true)]
async fn those_that_do_not_stop_are_named() {
    let root = TaskTree::root("node");
    let bookie = root.child("bookie");
    bookie.spawn("journal", std::future::pending());
    (0..3).for_each(|_| bookie.spawn("connection", std::future::pending()));
    let inside = root.clone();
    root.spawn("good", async move { inside.stopping().await });
    let error = root.stop(SOON).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "stop node: still running after 5s: node/bookie/connection (3 times), node/bookie/journal"
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_may_start_others_while_it_stops_but_none_start_after() {
    let root = TaskTree::root("node");
    let (done, ended) = tokio::sync::oneshot::channel();
    let inside = root.clone();
    root.spawn("drainer", async move {
        inside.stopping().await;
        inside.spawn("flush", async move {
            tokio::task::yield_now().await;
            let _ = done.send(());
        });
    });
    assert_eq!(root.stop(SOON).await, Ok(()));
    assert_eq!(ended.await, Ok(()));
    let (late, dropped) = tokio::sync::oneshot::channel::<()>();
    root.child("later").spawn("late", async move { drop(late) });
    assert!(dropped.await.is_err());
    assert!(root.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_critical_error_stops_the_root_and_is_kept() {
    let root = TaskTree::root("node");
    let child = root.child("bookie");
    let inside = root.clone();
    root.spawn("other", async move { inside.stopping().await });
    assert_eq!(root.failure(), None);
    child.spawn_critical("journal", async { Err("fsync: disk is gone") });
    assert_eq!(root.failed().await, "node/bookie/journal: fsync: disk is gone");
    root.spawn_critical("later", async { Err("an echo") });
    assert!(root.is_stopping());
    assert_eq!(root.stop(SOON).await, Ok(()));
    assert_eq!(child.failure().as_deref(), Some("node/bookie/journal: fsync: disk is gone"));
}

#[tokio::test(start_paused = true)]
async fn a_critical_panic_stops_the_root_and_is_kept() {
    let root = TaskTree::root("node");
    root.spawn_critical::<_, Infallible>("journal", async { panic!("index {} is missing", 7) });
    assert_eq!(root.failed().await, "node/journal: panicked: index 7 is missing");
    assert_eq!(root.stop(SOON).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_end_and_a_best_effort_panic_stop_nothing() {
    let root = TaskTree::root("node");
    root.spawn_critical::<_, Infallible>("quiet", async { Ok(()) });
    root.spawn("unlucky", async { panic!("oh") });
    while !root.running().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(!root.is_stopping());
    assert_eq!(root.failure(), None);
    let never = tokio::time::timeout(SOON, root.failed()).await;
    assert!(never.is_err());
}
