//! The gRPC front: services, health and reflection behind one listener.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use common::net::{BoxStream, Listener, TcpListener};
use common::shutdown::TaskTree;
use futures::Stream;
use offloader::TieringService;
use proto::v1::ledgers_server::LedgersServer;
use proto::v1::tiering_server::TieringServer;
use read_gateway::LedgersService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use super::failed;
use crate::Fault;

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Binds an address, before anything else of a role exists.
pub(crate) async fn bind(address: &str) -> Result<TcpListener, Fault> {
    TcpListener::bind(address).await.map_err(|error| Fault::usage(error.to_string()))
}

/// Serves what is given until `tasks` is asked to stop. Health and reflection name exactly that, so that callers can find out what
/// an endpoint is good for.
pub(crate) async fn serve(
    listener: TcpListener,
    tasks: &TaskTree,
    ledgers: Option<LedgersService>,
    tiering: Option<TieringService>,
) -> Result<(), Fault> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let mut reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name("grpc.health.v1.Health");
    if ledgers.is_some() {
        health.set_serving::<LedgersServer<LedgersService>>().await;
        reflection = reflection.with_service_name(LedgersServer::<LedgersService>::NAME);
    }
    if tiering.is_some() {
        health.set_serving::<TieringServer<TieringService>>().await;
        reflection = reflection.with_service_name(TieringServer::<TieringService>::NAME);
    }
    let router = Server::builder()
        // A peer that vanished without a word must not hold its stream, and with it the place of its successor.
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(health_service)
        .add_service(reflection.build_v1().map_err(failed)?)
        .add_optional_service(ledgers.map(LedgersService::into_server))
        .add_optional_service(tiering.map(TieringService::into_server));
    let stopping = tasks.clone();
    tasks.spawn_critical("grpc", async move {
        let asked = stopping.clone();
        router
            .serve_with_incoming_shutdown(connections(listener), async move { asked.stopping().await })
            .await
            .map_err(|error| error.to_string())?;
        // The stream of connections ends only with its listener: a front that nobody reaches must not look alive.
        if stopping.is_stopping() { Ok(()) } else { Err("the gRPC listener ended".to_owned()) }
    });
    Ok(())
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
