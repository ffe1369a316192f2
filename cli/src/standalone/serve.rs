//! The gRPC front: gateway, tiering, health and reflection behind one listener.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use client::Client;
use cold::ColdStore;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{BoxStream, Listener, TcpListener};
use common::rng::Rng;
use common::shutdown::TaskTree;
use futures::Stream;
use metadata::{InstanceId, Ledgers, MetadataStore};
use offloader::{ClientSource, GatewayProbe, Offloader, OffloaderParts, StepObserver, TieringService};
use read_gateway::{GatewayParts, LedgersService};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::Server;
use tonic::transport::server::Connected;

use super::status::{NodeStatus, SharedBookies};
use super::{failed, usage};
use crate::{Fault, Settings};

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Binds the front's address, before anything else of the node exists.
pub(super) async fn bind(address: &str) -> Result<TcpListener, Fault> {
    TcpListener::bind(address).await.map_err(|error| Fault::usage(error.to_string()))
}

/// What the front is made of.
pub(super) struct FrontParts {
    pub(super) listener: TcpListener,
    pub(super) metadata: Arc<dyn MetadataStore>,
    pub(super) instance: InstanceId,
    pub(super) cold: ColdStore,
    pub(super) client: Client,
    pub(super) bookies: SharedBookies,
    pub(super) clock: Clock,
    pub(super) rng: Rng,
    pub(super) budget: ByteBudget,
    pub(super) tasks: TaskTree,
    pub(super) observer: Arc<dyn StepObserver>,
}

/// Where the front is reached, and the gateway whose writers an orderly stop closes.
pub(super) struct Front {
    pub(super) endpoint: String,
    pub(super) gateway: LedgersService,
    /// The budgets of all roles.
    pub(super) budgets: Vec<ByteBudget>,
}

/// Builds the services and serves them until `tasks` is asked to stop.
pub(super) async fn start(settings: &Settings, parts: FrontParts) -> Result<Front, Fault> {
    let FrontParts { listener, metadata, instance, cold, client, bookies, clock, rng, budget, tasks, observer } = parts;
    let endpoint = format!("http://{}", listener.address());

    settings.gateway.validate().map_err(usage)?;
    let gateway = LedgersService::new(
        GatewayParts {
            client: client.clone(),
            ledgers: Ledgers::new(metadata.clone()),
            cold: cold.clone(),
            instance_id: instance.as_str().to_owned(),
            budget: budget.clone(),
            tasks: tasks.clone(),
        },
        settings.gateway.clone(),
    );
    let offloader = Offloader::new(
        OffloaderParts {
            metadata,
            cold,
            instance_id: instance,
            entries: Arc::new(ClientSource::new(client)),
            probe: Arc::new(GatewayProbe::new(&endpoint).map_err(usage)?),
            clock,
            rng,
            budget: budget.clone(),
            tasks: tasks.clone(),
            observer,
        },
        settings.offloader.clone(),
    )
    .map_err(usage)?;

    let mut budgets = vec![budget];
    budgets.extend(gateway.budgets().iter().cloned());
    budgets.push(offloader.budget().clone());
    let status = Arc::new(NodeStatus::new(bookies, budgets.clone()));
    let tiering = TieringService::new(offloader.clone(), status, env!("CARGO_PKG_VERSION"));

    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<proto::v1::ledgers_server::LedgersServer<LedgersService>>().await;
    health.set_serving::<proto::v1::tiering_server::TieringServer<TieringService>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(failed)?;
    let router = Server::builder()
        // A peer that vanished without a word must not hold its stream, and with it the place of its successor.
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(gateway.clone().into_server())
        .add_service(tiering.into_server())
        .add_service(health_service)
        .add_service(reflection);

    let stopping = tasks.clone();
    tasks.spawn_critical("grpc", async move {
        router.serve_with_incoming_shutdown(connections(listener), async move { stopping.stopping().await }).await
    });
    offloader.start();
    Ok(Front { endpoint, gateway, budgets })
}

/// The listener's connections as the stream that tonic takes. Ends when the listener does.
fn connections(listener: TcpListener) -> impl Stream<Item = io::Result<Connection>> {
    futures::stream::unfold(listener, |mut listener| async move {
        match listener.accept().await {
            Ok((stream, _peer)) => Some((Ok(Connection(stream)), listener)),
            Err(error) => {
                tracing::error!(%error, "the gRPC listener ended");
                None
            }
        }
    })
}

/// A connection of the network seam, in the form that tonic takes.
struct Connection(BoxStream);

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
