//! The road of a ledger: written, settled, released, read from either tier.

use proto::v1::{LedgerState, LedgerTier, StatusRequest, Tier};

use crate::support::{TestNode, eventually, objects, payloads};

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_reads_the_same_hot_settled_and_released() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(1, 3000);
    let ledger = calls.written(&payloads).await;
    assert_eq!(calls.get(ledger).await.unwrap().tier(), LedgerTier::Hot);
    calls.assert_holds(ledger, &payloads, Tier::Hot).await;

    let settled = calls.offload(ledger, false).await.unwrap();
    assert!(settled.uploaded && !settled.released);
    assert_eq!(settled.tier(), LedgerTier::Settled);
    // A settled ledger is whole on both tiers.
    calls.assert_holds(ledger, &payloads, Tier::Hot).await;
    calls.assert_holds(ledger, &payloads, Tier::Cold).await;

    let released = calls.offload(ledger, true).await.unwrap();
    assert!(released.released && !released.uploaded);
    calls.assert_holds(ledger, &payloads, Tier::Cold).await;
    calls.assert_holds(ledger, &payloads, Tier::Unspecified).await;
    let described = calls.get(ledger).await.unwrap();
    assert_eq!(described.tier(), LedgerTier::Released);
    assert_eq!(described.state(), LedgerState::Closed);
    assert_eq!(described.last_entry_id, Some(payloads.len() as u64 - 1));
    let members = &described.segments[0].bookies;
    assert!(members.iter().all(|member| member.ends_with(".cold.thermocline:3181")), "{members:?}");
    assert_eq!(objects(&test.cold_dir()).len(), 1);
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_and_points_are_exact_on_both_tiers() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(2, 2000);
    let ledger = calls.written(&payloads).await;
    calls.offload(ledger, false).await.unwrap();
    for tier in [Tier::Hot, Tier::Cold] {
        for (from, to) in [(0, 1), (7, 8), (1999, 2000), (0, 2000), (990, 1313), (5, 5)] {
            let entries = calls.read(ledger, from, Some(to), tier).await.unwrap();
            assert_eq!(entries.len() as u64, to - from, "{from}..{to} {tier:?}");
            for (place, entry) in entries.iter().enumerate() {
                let id = from + place as u64;
                assert_eq!((entry.entry_id, &entry.payload), (id, &payloads[id as usize]), "{tier:?}");
            }
        }
    }
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_ledger_reads_up_to_its_last_confirmed_entry() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(3, 300);
    let ledger = calls.create().await;
    assert_eq!(calls.append(ledger, &payloads[..200], 7).await.unwrap(), 200);
    calls.assert_holds(ledger, &payloads[..200], Tier::Unspecified).await;
    // A second stream goes on where the first ended.
    assert_eq!(calls.append(ledger, &payloads[200..], 100).await.unwrap(), 100);
    calls.assert_holds(ledger, &payloads, Tier::Unspecified).await;
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_ledger_closes_and_needs_no_object() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let ledger = calls.create().await;
    let closed = calls.close(ledger).await.unwrap();
    assert_eq!((closed.state(), closed.last_entry_id), (LedgerState::Closed, None));
    let result = calls.offload(ledger, true).await.unwrap();
    assert!(!result.uploaded && result.cold.is_none());
    assert!(calls.read(ledger, 0, None, Tier::Unspecified).await.unwrap().is_empty());
    assert!(objects(&test.cold_dir()).is_empty());
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn released_ledgers_free_the_bookies_and_a_deleted_one_too() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    // Several segments' worth, so that sealed segments exist.
    let payloads = payloads(4, 6000);
    let released = calls.written(&payloads).await;
    let deleted = calls.written(&payloads).await;
    let stays = calls.written(&payloads).await;
    let disk = |status: &proto::v1::StatusResponse| -> u64 {
        status.bookies.iter().map(|bookie| bookie.disk_bytes.unwrap()).sum()
    };
    let before = disk(&calls.tiering.status(StatusRequest {}).await.unwrap().into_inner());
    calls.offload(released, true).await.unwrap();
    calls.ledgers.delete_ledger(proto::v1::DeleteLedgerRequest { ledger_id: deleted }).await.unwrap();
    let one_ledger: u64 = payloads.iter().map(|payload| payload.len() as u64).sum();
    eventually("two of three ledgers' space is free", async || {
        let now = disk(&calls.tiering.status(StatusRequest {}).await.unwrap().into_inner());
        before.saturating_sub(now) > 3 * one_ledger
    })
    .await;
    calls.assert_holds(released, &payloads, Tier::Cold).await;
    calls.assert_holds(stays, &payloads, Tier::Hot).await;
    assert_eq!(calls.get(deleted).await.unwrap_err().code(), tonic::Code::NotFound);
    test.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn settling_twice_and_from_two_sides_writes_one_object() {
    let test = TestNode::start().await;
    let mut calls = test.calls().await;
    let payloads = payloads(5, 500);
    let ledger = calls.written(&payloads).await;
    let (mut one, mut other) = (calls.clone(), calls.clone());
    let (first, second) = tokio::join!(one.offload(ledger, false), other.offload(ledger, false));
    let uploads = [first.unwrap(), second.unwrap()].iter().filter(|result| result.uploaded).count();
    assert!(uploads >= 1);
    assert!(!calls.offload(ledger, false).await.unwrap().uploaded, "there already");
    assert_eq!(objects(&test.cold_dir()).len(), 1);
    calls.assert_holds(ledger, &payloads, Tier::Cold).await;
    test.node.stop().await.unwrap();
}
