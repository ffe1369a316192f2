//! The network seam over the simulator's TCP, in the forms that the product and tonic take.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use common::net::{BoxStream, Connector, Listener};
use futures::Stream;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::{Service, http::Uri};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use turmoil::net::{TcpListener, TcpStream};

/// What a connection attempt to a silent peer costs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Opens connections from the host that runs.
pub struct SimConnector;

#[async_trait]
impl Connector for SimConnector {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(stream) => Ok(Box::new(stream?)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Takes connections in at the host that runs.
pub struct SimListener {
    inner: TcpListener,
    address: String,
}

impl SimListener {
    /// Listens at `host:port`, where `host` is the name of the host that runs.
    pub async fn bind(host: &str, port: u16) -> io::Result<Self> {
        Ok(Self { inner: TcpListener::bind(("0.0.0.0", port)).await?, address: format!("{host}:{port}") })
    }

    /// The next connection.
    pub async fn next(&self) -> io::Result<TcpStream> {
        Ok(self.inner.accept().await?.0)
    }

    /// Its connections as the stream that a gRPC server takes.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Connection>> {
        futures::stream::unfold(self, |listener| async move {
            let next = listener.next().await.map(Connection);
            Some((next, listener))
        })
    }
}

#[async_trait]
impl Listener for SimListener {
    async fn accept(&mut self) -> io::Result<(BoxStream, String)> {
        let (stream, peer) = self.inner.accept().await?;
        Ok((Box::new(stream), peer.to_string()))
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

/// A gRPC channel from the host that runs to `host:port`; connects when it is used.
pub fn channel(address: &'static str) -> Channel {
    Endpoint::from_static("http://simulated")
        .connect_timeout(CONNECT_TIMEOUT)
        .connect_with_connector_lazy(Dialer(address))
}

#[derive(Clone)]
struct Dialer(&'static str);

impl Service<Uri> for Dialer {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let address = self.0;
        Box::pin(async move { Ok(TokioIo::new(TcpStream::connect(address).await?)) })
    }
}

/// A connection in the form that a gRPC server takes.
pub struct Connection(TcpStream);

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

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
