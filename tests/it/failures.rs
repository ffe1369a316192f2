//! Bad requests and lost bookies: the right error, never a wrong or short answer.

use proto::v1::{DeleteLedgerRequest, ReadStart, Tier};
use tonic::Code;

use crate::support::{TestNode, payloads};

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_served_say_why() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(10, 50);
    let closed = calls.written(&payloads).await;
    let open = calls.create().await;

    let error = calls.get(999).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let error = calls.read(999, 0, None, Tier::Unspecified).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let error = calls.offload(999, false).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let error = calls.close(999).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");

    for tier in [Tier::Unspecified, Tier::Hot] {
        let error = calls.read(closed, 0, Some(51), tier).await.unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange, "{error}");
        assert!(error.message().contains("50") || error.message().contains("49"), "names the end: {error}");
    }
    let error = calls.read(closed, 0, None, Tier::Cold).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "no cold copy yet: {error}");

    let error = calls.append(closed, &payloads, 10).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    let error = calls.offload(open, false).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(error.message().contains("close"), "says what to do: {error}");

    calls.ledgers.delete_ledger(DeleteLedgerRequest { ledger_id: closed }).await.unwrap();
    let error = calls.read(closed, 0, None, Tier::Unspecified).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_streams_are_refused() {
    use proto::v1::read_entries_request::Message;
    use proto::v1::{AppendEntries, AppendRequest, ReadCredit, ReadEntriesRequest};
    let test = TestNode::start().await;
    let mut calls = test.calls().await;

    let credit_first = ReadEntriesRequest { message: Some(Message::Credit(ReadCredit { bytes: 1 })) };
    let refused = async {
        let mut answers = calls.ledgers.read_entries(tokio_stream::iter([credit_first])).await?.into_inner();
        answers.message().await
    };
    assert_eq!(refused.await.unwrap_err().code(), Code::InvalidArgument);

    let entries_first = AppendRequest {
        message: Some(proto::v1::append_request::Message::Entries(AppendEntries { payloads: vec!["x".into()] })),
    };
    let refused = async {
        let mut answers = calls.ledgers.append(tokio_stream::iter([entries_first])).await?.into_inner();
        answers.message().await
    };
    assert_eq!(refused.await.unwrap_err().code(), Code::InvalidArgument);

    let ledger = calls.written(&payloads(11, 5)).await;
    let backwards = ReadStart { ledger_id: ledger, first_entry_id: 3, end_entry_id: Some(1), ..ReadStart::default() };
    let start = ReadEntriesRequest { message: Some(Message::Start(backwards)) };
    let refused = async {
        let mut answers = calls.ledgers.read_entries(tokio_stream::iter([start])).await?.into_inner();
        answers.message().await
    };
    assert_eq!(refused.await.unwrap_err().code(), Code::InvalidArgument);
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_bookie_gone_writes_go_on_and_reads_fail_over() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(12, 400);
    let before = calls.written(&payloads).await;
    let during = calls.create().await;
    assert_eq!(calls.append(during, &payloads[..200], 50).await.unwrap(), 200);
    test.node.stop_bookie(0).await.unwrap();
    // The ack quorum of two still answers.
    assert_eq!(calls.append(during, &payloads[200..], 50).await.unwrap(), 200);
    calls.close(during).await.unwrap();
    calls.assert_holds(before, &payloads, Tier::Hot).await;
    calls.assert_holds(during, &payloads, Tier::Hot).await;
    // Settling needs one good copy of each entry, not all of them.
    calls.offload(during, true).await.unwrap();
    calls.assert_holds(during, &payloads, Tier::Cold).await;
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_two_bookies_gone_nothing_is_acknowledged_and_the_error_says_so() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(13, 20);
    let ledger = calls.create().await;
    assert_eq!(calls.append(ledger, &payloads, 10).await.unwrap(), 20);
    test.node.stop_bookie(0).await.unwrap();
    test.node.stop_bookie(1).await.unwrap();
    let error = calls.append(ledger, &payloads, 10).await.unwrap_err();
    assert!(matches!(error.code(), Code::Unavailable | Code::Unknown | Code::Aborted), "{error}");
    // What was acknowledged is still readable from the one that is left.
    let entries = calls.read(ledger, 0, Some(20), Tier::Hot).await;
    let entries = entries.unwrap();
    assert_eq!(entries.len(), 20);
    test.node.stop().await.unwrap();
}
