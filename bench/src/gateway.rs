//! A read gateway to measure, behind its gRPC front on loopback, and a reader of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientConfig, ClientParts};
use cold::ColdStore;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::TcpConnector;
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::LedgerId;
use metadata::{InstanceId, Ledgers, MetadataStore};
use proto::v1::ledgers_client::LedgersClient;
use proto::v1::read_entries_request::Message;
use proto::v1::{ReadCredit, ReadEntriesRequest, ReadStart, Tier};
use read_gateway::{GatewayConfig, GatewayParts, LedgersService};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};

use crate::cpu;
use crate::node::{chain, runtime};
use crate::plan::{Error, Result};

/// Memory of the whole gateway; its own limits are what binds.
const BUDGET_BYTES: u64 = 512 << 20;
/// How far the gateway may run ahead of the reader, in payload bytes; what `thermocline ledger read` grants.
const WINDOW_BYTES: u64 = 4 << 20;
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// A gateway that runs in threads of its own.
pub(crate) struct Gateway {
    runtime: Runtime,
    tasks: TaskTree,
    address: SocketAddr,
}

impl Gateway {
    /// A gateway with an empty cache. Its front is as the program's, without health and reflection.
    pub(crate) fn start(metadata: Arc<dyn MetadataStore>, cold: ColdStore, instance: &InstanceId) -> Result<Self> {
        const PLACE: &str = "start a gateway";
        let runtime = runtime(cpu::NODE)?;
        let tasks = TaskTree::root("bench-gateway");
        let budget = ByteBudget::new("bench-gateway", BUDGET_BYTES);
        let client = ClientParts {
            metadata: metadata.clone(),
            connector: Arc::new(TcpConnector),
            clock: Clock::system(),
            rng: Rng::from_os(),
            budget: budget.clone(),
            tasks: tasks.clone(),
        };
        let started = runtime.block_on(async {
            let parts = GatewayParts {
                client: Client::new(client, ClientConfig::default()),
                ledgers: Ledgers::new(metadata),
                cold,
                instance_id: instance.as_str().to_owned(),
                budget,
                tasks: tasks.clone(),
            };
            let service = LedgersService::new(parts, GatewayConfig::default());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(Error::at(PLACE))?;
            let address = listener.local_addr().map_err(Error::at(PLACE))?;
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let router = Server::builder().add_service(service.into_server());
            let stopping = tasks.clone();
            tasks.spawn_critical("grpc", async move {
                router.serve_with_incoming_shutdown(incoming, async move { stopping.stopping().await }).await
            });
            Ok(address)
        });
        let address = started?;
        Ok(Self { runtime, tasks, address })
    }

    /// Where its front listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.runtime.block_on(self.tasks.stop(STOP_DEADLINE)).map_err(Error::at("stop the gateway"))?;
        self.runtime.shutdown_timeout(STOP_DEADLINE);
        Ok(())
    }
}

/// Reads a whole ledger from the cold tier as one reader and checks ids and lengths.
pub(crate) async fn read_cold(gateway: SocketAddr, ledger: LedgerId, entries: u64, entry_bytes: usize) -> Result<()> {
    const PLACE: &str = "read through the gateway";
    let endpoint = Endpoint::from_shared(format!("http://{gateway}")).map_err(Error::at(PLACE))?.tcp_nodelay(true);
    let channel = endpoint.connect().await.map_err(|error| Error::new(PLACE, chain(&error)))?;
    let mut ledgers = LedgersClient::new(channel).max_decoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX);
    let start = ReadStart {
        ledger_id: ledger.get(),
        first_entry_id: 0,
        end_entry_id: Some(entries),
        tier: Tier::Cold.into(),
        follow: false,
        initial_credit_bytes: WINDOW_BYTES,
        password: Bytes::new(),
    };
    let (credits, requests) = mpsc::channel(16);
    let request = |message| ReadEntriesRequest { message: Some(message) };
    credits.try_send(request(Message::Start(start))).map_err(Error::at(PLACE))?;
    let answers = ledgers.read_entries(ReceiverStream::new(requests)).await;
    let mut answers = answers.map_err(|status| Error::new(PLACE, status.message()))?.into_inner();
    let mut next = 0;
    while let Some(answer) = answers.message().await.map_err(|status| Error::new(PLACE, status.message()))? {
        let mut bytes = 0;
        for entry in &answer.entries {
            if entry.entry_id != next || entry.payload.len() != entry_bytes {
                return Err(Error::new(
                    PLACE,
                    format!("entry {} of {} bytes came for entry {next}", entry.entry_id, entry.payload.len()),
                ));
            }
            next += 1;
            bytes += entry.payload.len() as u64;
        }
        // A server that has sent everything no longer listens for credits; the stream's end says so next.
        let _ = credits.send(request(Message::Credit(ReadCredit { bytes }))).await;
    }
    if next == entries { Ok(()) } else { Err(Error::new(PLACE, format!("{next} of {entries} entries came"))) }
}
