//! Damaged objects: an error that names the object, never a wrong or short answer.

use proto::v1::Tier;
use tonic::Code;

use crate::support::{TestNode, objects, payloads};

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_truncated_or_missing_object_is_named() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(30, 800);
    let ledger = calls.written(&payloads).await;
    calls.offload(ledger, true).await.unwrap();
    let object = objects(&test.cold_dir()).pop().unwrap();
    let name = object.file_name().unwrap().to_str().unwrap().to_owned();
    let good = std::fs::read(&object).unwrap();

    // A new node for each case: caches must not hide the damage.
    let mut test = test;
    let spread = [5, good.len() / 3, good.len() / 2, good.len() - 200, good.len() - 20];
    for place in spread {
        let mut bad = good.clone();
        bad[place] ^= 0x40;
        std::fs::write(&object, &bad).unwrap();
        test = test.restart().await;
        let error = test.calls().await.read(ledger, 0, None, Tier::Unspecified).await.unwrap_err();
        assert_eq!(error.code(), Code::DataLoss, "byte {place}: {error}");
        assert!(error.message().contains(&name), "byte {place}: {error}");
    }
    std::fs::write(&object, &good[..good.len() - 1]).unwrap();
    test = test.restart().await;
    let error = test.calls().await.read(ledger, 0, None, Tier::Unspecified).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "truncated: {error}");
    assert!(error.message().contains(&name), "{error}");

    std::fs::rename(&object, object.with_extension("away")).unwrap();
    test = test.restart().await;
    let error = test.calls().await.read(ledger, 0, None, Tier::Unspecified).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "missing: {error}");
    assert!(error.message().contains(&name), "{error}");

    // Damage is not an end state: with the object back, everything is readable again.
    std::fs::write(&object, &good).unwrap();
    test = test.restart().await;
    test.calls().await.assert_holds(ledger, &payloads, Tier::Cold).await;
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settled_ledger_is_not_released_on_a_damaged_object() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(31, 300);
    let ledger = calls.written(&payloads).await;
    calls.offload(ledger, false).await.unwrap();
    let object = objects(&test.cold_dir()).pop().unwrap();
    let good = std::fs::read(&object).unwrap();
    std::fs::write(&object, &good[..good.len() / 2]).unwrap();
    let error = calls.offload(ledger, true).await.unwrap_err();
    assert!(error.message().contains(object.file_name().unwrap().to_str().unwrap()), "{error}");
    // The bookies still have it.
    calls.assert_holds(ledger, &payloads, Tier::Hot).await;
    test.node.stop().await.unwrap();
}
