use std::sync::Arc;

use async_trait::async_trait;
use common::budget::ByteBudget;
use ledger::{BookieId, DigestType};
use proto::v1;
use proto::v1::tiering_server::Tiering;
use tonic::{Code, Request};

use super::world::{World, id, open_metadata};
use crate::{StatusSource, TieringService};

struct Source;

#[async_trait]
impl StatusSource for Source {
    async fn disk_bytes(&self, _: &BookieId) -> Option<u64> {
        Some(4096)
    }

    fn budgets(&self) -> Vec<ByteBudget> {
        vec![ByteBudget::new("node", 1000)]
    }
}

fn order(ledger_id: u64, release: bool) -> Request<v1::OffloadLedgerRequest> {
    Request::new(v1::OffloadLedgerRequest { ledger_id, release })
}

#[tokio::test(start_paused = true)]
async fn orders_and_status_over_the_service() {
    let world = World::new().await;
    let service = TieringService::new(world.offloader.clone(), Arc::new(Source), "1.2.3");
    let hot = world.ledger(1, 10).await;
    world.ledger(2, 10).await;
    world.ledger(3, 10).await;
    world.ledgers.create(id(4), &open_metadata(DigestType::Crc32c)).await.unwrap();

    let settled = service.offload_ledger(order(2, false)).await.unwrap().into_inner();
    assert_eq!((settled.tier(), settled.uploaded, settled.released), (v1::LedgerTier::Settled, true, false));
    let copy = settled.cold.unwrap();
    assert_eq!(vec![copy.object_key], world.keys().await);
    let released = service.offload_ledger(order(3, true)).await.unwrap().into_inner();
    assert_eq!((released.tier(), released.uploaded, released.released), (v1::LedgerTier::Released, true, true));

    let status = service.status(Request::new(v1::StatusRequest {})).await.unwrap().into_inner();
    let counts = status.ledgers.unwrap();
    assert_eq!((counts.open, counts.hot, counts.settled, counts.released), (1, 1, 1, 1));
    assert_eq!((status.objects, status.offloads_running), (2, 0));
    assert_eq!(status.instance_id, world.instance.as_str());
    assert_eq!(status.version, "1.2.3");
    let record = world.cold_record(id(2)).await.unwrap();
    assert_eq!(status.cold_payload_bytes, 2 * record.payload_bytes);
    assert_eq!(status.hot_payload_bytes, 2 * record.payload_bytes);
    assert_eq!((status.budgets[0].name.as_str(), status.budgets[0].limit_bytes), ("node", 1000));
    assert_eq!(world.record(hot).await.metadata.tier(), ledger::Tier::Hot);
}

#[tokio::test(start_paused = true)]
async fn refusals_have_their_codes() {
    let world = World::new().await;
    let service = TieringService::new(world.offloader.clone(), Arc::new(Source), "1.2.3");
    let code = async |ledger_id| service.offload_ledger(order(ledger_id, false)).await.unwrap_err().code();
    assert_eq!(code(u64::MAX).await, Code::InvalidArgument);
    assert_eq!(code(404).await, Code::NotFound);
    world.ledgers.create(id(4), &open_metadata(DigestType::Crc32c)).await.unwrap();
    assert_eq!(code(4).await, Code::FailedPrecondition);
    let ledger = world.ledger(5, 10).await;
    world.bookies.tables.lock().unwrap().get_mut(&ledger).unwrap().pop();
    assert_eq!(code(5).await, Code::DataLoss);
}
