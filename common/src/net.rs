//! The seam to sockets: servers take a [`Listener`], clients a [`Connector`]; TCP and in-memory pipes stand behind both.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

mod memory;
mod peer;
mod tcp;

pub use memory::{MemoryListener, MemoryNetwork};
pub use peer::peer_host;
pub use tcp::{TcpConnector, TcpListener};

/// A connection: bytes in order, both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection of either kind.
pub type BoxStream = Box<dyn Stream>;

/// Opens connections.
#[async_trait::async_trait]
pub trait Connector: Send + Sync {
    /// Opens a connection to `address` (`host:port`). Implementations MUST bound the wait. Cancel-safe.
    async fn connect(&self, address: &str) -> io::Result<BoxStream>;
}

/// What a listener offers or asks of those who connect, for its registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Connections may have TLS, or must.
    pub tls: bool,
    /// The authentication plug-in that everybody has to satisfy.
    pub auth: Option<String>,
}

/// Takes connections in.
#[async_trait::async_trait]
pub trait Listener: Send {
    /// The next connection and its peer's address. An error means that no more will come. Cancel-safe.
    async fn accept(&mut self) -> io::Result<(BoxStream, String)>;

    /// The address clients connect to; a port that was given as 0 is the real one here.
    fn address(&self) -> String;

    /// What it offers or asks of those who connect: nothing, unless something stands before it that does.
    fn offer(&self) -> Offer {
        Offer::default()
    }
}

#[cfg(test)]
mod tests;
