//! What is there after a stop: everything acknowledged, and nothing that blocks going on.

use proto::v1::{LedgerState, LedgerTier, Tier};
use tonic::Code;

use crate::support::{TestNode, payloads, settings};

#[tokio::test(flavor = "multi_thread")]
async fn every_tier_is_whole_after_a_restart() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(20, 1200);
    let hot = calls.written(&payloads).await;
    let settled = calls.written(&payloads).await;
    let released = calls.written(&payloads).await;
    calls.offload(settled, false).await.unwrap();
    calls.offload(released, true).await.unwrap();

    let test = test.restart().await;
    let mut calls = test.calls().await;
    calls.assert_holds(hot, &payloads, Tier::Hot).await;
    calls.assert_holds(settled, &payloads, Tier::Cold).await;
    calls.assert_holds(released, &payloads, Tier::Cold).await;
    // Ids are never used again.
    assert!(calls.create().await > released);
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_whose_writer_went_with_the_node_is_recovered_by_closing_it() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(21, 700);
    let ledger = calls.create().await;
    assert_eq!(calls.append(ledger, &payloads, 100).await.unwrap(), 700);

    let test = test.restart().await;
    let mut calls = test.calls().await;
    let error = calls.append(ledger, &payloads, 100).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    let closed = calls.close(ledger).await.unwrap();
    assert_eq!(closed.state(), LedgerState::Closed);
    assert_eq!(closed.last_entry_id, Some(699), "everything acknowledged is in the closed ledger");
    calls.assert_holds(ledger, &payloads, Tier::Hot).await;
    assert_eq!(calls.offload(ledger, true).await.unwrap().tier(), LedgerTier::Released);
    calls.assert_holds(ledger, &payloads, Tier::Cold).await;
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_on_one_folder_are_refused() {
    let test = TestNode::start().await;
    let error = cli::standalone::Node::start(settings(test.dir.path())).await.err().unwrap();
    assert!(error.to_string().contains("open already"), "{error}");
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blank_bookie_folder_in_a_cluster_that_knows_the_bookie_is_refused() {
    let test = TestNode::start().await;
    test.node.stop().await.unwrap();
    std::fs::remove_dir_all(test.dir.path().join("bookie-2")).unwrap();
    let error = cli::standalone::Node::start(settings(test.dir.path())).await.err().unwrap();
    assert!(error.to_string().contains("bookie-2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_bookie_folder_is_refused() {
    let test = TestNode::start().await;
    let other = TestNode::start().await;
    test.node.stop().await.unwrap();
    other.node.stop().await.unwrap();
    let mine = test.dir.path().join("bookie-1");
    std::fs::remove_dir_all(&mine).unwrap();
    std::fs::rename(other.dir.path().join("bookie-1"), &mine).unwrap();
    let error = cli::standalone::Node::start(settings(test.dir.path())).await.err().unwrap();
    assert!(error.to_string().contains("bookie-1"), "{error}");
}
