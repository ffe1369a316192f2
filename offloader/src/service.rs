use std::sync::Arc;

use async_trait::async_trait;
use common::budget::ByteBudget;
use ledger::{BookieId, ColdRecord, LedgerId, LedgerState, Tier};
use metadata::Bookies;
use proto::v1;
use proto::v1::tiering_server::{Tiering, TieringServer};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::error::{Error, ErrorKind};
use crate::offloader::Offloader;

const PAGE: usize = 256;

/// What only the process around an offloader knows.
#[async_trait]
pub trait StatusSource: Send + Sync + 'static {
    /// Bytes that a bookie's files take on disk; `None` when this process cannot know.
    async fn disk_bytes(&self, bookie: &BookieId) -> Option<u64>;

    /// The memory budgets to show.
    fn budgets(&self) -> Vec<ByteBudget>;
}

/// The gRPC front of an offloader.
pub struct TieringService {
    offloader: Offloader,
    bookies: Bookies,
    source: Arc<dyn StatusSource>,
    version: String,
    started: Instant,
}

impl TieringService {
    /// The front of `offloader`; `version` is that of the program.
    pub fn new(offloader: Offloader, source: Arc<dyn StatusSource>, version: impl Into<String>) -> Self {
        let bookies = Bookies::new(Arc::clone(&offloader.inner.store));
        let started = offloader.inner.clock.now();
        Self { offloader, bookies, source, version: version.into(), started }
    }

    /// The service to add to a server.
    pub fn into_server(self) -> TieringServer<Self> {
        TieringServer::new(self)
    }

    async fn count(&self, status: &mut v1::StatusResponse) -> Result<(), Status> {
        let mut counts = v1::LedgerCounts::default();
        let mut after = None;
        loop {
            let page = self
                .offloader
                .inner
                .ledgers
                .list(after, PAGE)
                .await
                .map_err(|error| unavailable("list ledgers", &error))?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            for (_, record) in &page {
                let metadata = &record.metadata;
                let LedgerState::Closed { length, .. } = metadata.state() else {
                    counts.open += 1;
                    continue;
                };
                match metadata.tier() {
                    Tier::Hot => counts.hot += 1,
                    Tier::Settled => {
                        counts.settled += 1;
                        counts.partly_released += u64::from(metadata.partly_released_until().is_some());
                    }
                    Tier::Released => counts.released += 1,
                }
                if metadata.tier() != Tier::Released {
                    status.hot_payload_bytes += length;
                }
                // A record that cannot be read is the affair of whoever reads the ledger.
                if let Ok(Some(cold)) = ColdRecord::from_metadata(metadata) {
                    status.cold_payload_bytes += cold.payload_bytes;
                    status.object_bytes += cold.object_bytes;
                    status.objects += 1;
                }
            }
        }
        status.ledgers = Some(counts);
        Ok(())
    }

    async fn bookies(&self) -> Result<Vec<v1::BookieStatus>, Status> {
        let mut out = Vec::new();
        let listed = self.bookies.list().await.map_err(|error| unavailable("list bookies", &error))?;
        for (id, info, writable) in listed.into_iter().filter(|(id, ..)| !ledger::is_cold(id)) {
            let disk_bytes = self.source.disk_bytes(&id).await;
            out.push(v1::BookieStatus { bookie_id: id.to_string(), address: info.address, writable, disk_bytes });
        }
        Ok(out)
    }
}

#[async_trait]
impl Tiering for TieringService {
    async fn offload_ledger(
        &self,
        request: Request<v1::OffloadLedgerRequest>,
    ) -> Result<Response<v1::OffloadResult>, Status> {
        let request = request.into_inner();
        let ledger = LedgerId::new(request.ledger_id).ok_or_else(|| {
            Status::invalid_argument(format!("ledger id {} is above {}", request.ledger_id, LedgerId::MAX))
        })?;
        let report = self.offloader.offload_now(ledger, request.release).await.map_err(|error| status_of(&error))?;
        let instance_id = self.offloader.inner.instance_id.as_str();
        let cold = report.cold.map(|cold| v1::ColdCopy {
            object_key: cold.object_key(instance_id, ledger),
            object_bytes: cold.object_bytes,
            entries: cold.entries,
            payload_bytes: cold.payload_bytes,
            object_crc32c: cold.object_crc32c,
            commit_counter: cold.commit_counter,
        });
        let tier = match report.tier {
            Tier::Hot => v1::LedgerTier::Hot,
            Tier::Settled => v1::LedgerTier::Settled,
            Tier::Released => v1::LedgerTier::Released,
        };
        Ok(Response::new(v1::OffloadResult {
            ledger_id: ledger.get(),
            tier: tier.into(),
            uploaded: report.uploaded,
            released: report.released,
            cold,
            elapsed_ms: millis(report.elapsed),
            partly_released_until_ms: report.partly_released_until_ms,
        }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let inner = &self.offloader.inner;
        let budgets = self.source.budgets().into_iter().map(|budget| v1::BudgetStatus {
            name: budget.name().to_owned(),
            used_bytes: budget.used_bytes(),
            limit_bytes: budget.limit_bytes(),
            peak_bytes: budget.peak_bytes(),
        });
        let mut status = v1::StatusResponse {
            instance_id: inner.instance_id.as_str().to_owned(),
            version: self.version.clone(),
            uptime_ms: millis(inner.clock.now() - self.started),
            bookies: self.bookies().await?,
            cold_store: inner.cold.name().to_owned(),
            offloads_running: self.offloader.running(),
            budgets: budgets.collect(),
            releases_wait_for: self.offloader.releases_wait_for(),
            ..v1::StatusResponse::default()
        };
        self.count(&mut status).await?;
        Ok(Response::new(status))
    }
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn unavailable(doing: &str, error: &metadata::Error) -> Status {
    Status::unavailable(format!("{doing}: {error}"))
}

fn status_of(error: &Error) -> Status {
    let code = match error.kind() {
        ErrorKind::NoSuchLedger => tonic::Code::NotFound,
        ErrorKind::NotClosed | ErrorKind::Unsuitable | ErrorKind::Config => tonic::Code::FailedPrecondition,
        ErrorKind::Busy | ErrorKind::Waiting | ErrorKind::Unavailable | ErrorKind::Stopped => tonic::Code::Unavailable,
        ErrorKind::Unknown => tonic::Code::Unknown,
        ErrorKind::Damaged => tonic::Code::DataLoss,
        ErrorKind::Timeout => tonic::Code::DeadlineExceeded,
        ErrorKind::Halted => tonic::Code::Aborted,
    };
    Status::new(code, error.chain())
}
