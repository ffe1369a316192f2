use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::{BoxStream, Connector, Listener};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after "too many open files": connections that end meanwhile make room.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// After so long without a word the system asks whether the peer is still there, and asks again so often, this far apart. So a peer
/// that went away without a word, as with its machine or a firewall's table, is known to be gone after two minutes of silence;
/// while something sent to it is not acknowledged, the system's own patience counts, which is longer.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEPALIVE_TRIES: u32 = 4;

/// Connects over TCP, without Nagle's delay, within five seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector;

#[async_trait::async_trait]
impl Connector for TcpConnector {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let attempt = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(address)).await;
        let stream = match attempt {
            Ok(outcome) => outcome.map_err(|error| named(&error, format!("connect to {address}")))?,
            Err(_) => {
                let text = format!("connect to {address}: no answer within {CONNECT_TIMEOUT:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        };
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// Listens on a TCP address. Peers that went away without a word are noticed within two minutes of silence: what waits for
/// them gets an error.
#[derive(Debug)]
pub struct TcpListener {
    inner: tokio::net::TcpListener,
    address: String,
}

impl TcpListener {
    /// Binds `address` (`host:port`; port 0 lets the system choose).
    ///
    /// # Errors
    ///
    /// One sentence that names the address and says what to do.
    pub async fn bind(address: &str) -> io::Result<Self> {
        let refused = |error: io::Error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => "; stop the other process or choose another port",
                io::ErrorKind::AddrNotAvailable => "; this machine has no such address, choose one it has or 127.0.0.1",
                io::ErrorKind::PermissionDenied => "; choose a port of 1024 or higher",
                io::ErrorKind::InvalidInput => "; write host:port, for example 127.0.0.1:3181",
                _ => "",
            };
            let cause = plain(&error);
            io::Error::new(error.kind(), format!("listen on {address}: {cause}{hint}"))
        };
        let inner = tokio::net::TcpListener::bind(address).await.map_err(refused)?;
        let address = inner.local_addr().map_err(refused)?.to_string();
        Ok(Self { inner, address })
    }
}

impl TcpListener {
    async fn take(&mut self) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
        loop {
            match self.inner.accept().await {
                Ok((stream, peer)) => {
                    // A peer that is gone already shows itself at the first read.
                    let _ = stream.set_nodelay(true);
                    let _ = SockRef::from(&stream).set_tcp_keepalive(
                        &TcpKeepalive::new()
                            .with_time(KEEPALIVE_AFTER)
                            .with_interval(KEEPALIVE_EVERY)
                            .with_retries(KEEPALIVE_TRIES),
                    );
                    return Ok((stream, peer));
                }
                // The peer left before it was taken: its trouble, not the listener's.
                Err(error) if is_of_one_peer(&error) => {}
                Err(error) if is_exhaustion(&error) => {
                    tracing::warn!(address = %self.address, "accept delayed: {error}; raise the limit of open files (ulimit -n)");
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
                Err(error) => return Err(named(&error, format!("accept on {}", self.address))),
            }
        }
    }
}

#[async_trait::async_trait]
impl Listener for TcpListener {
    async fn accept(&mut self) -> io::Result<(BoxStream, String)> {
        let (stream, peer) = self.take().await?;
        Ok((Box::new(stream), peer.to_string()))
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

fn is_of_one_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    // Linux hands out the pending error of the new connection too: EPERM (a packet filter), ENONET, EPROTO, ENOPROTOOPT,
    // EOPNOTSUPP, ENETDOWN, ENETUNREACH, ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH; accept(2) asks to go on.
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
        || matches!(error.raw_os_error(), Some(1 | 64 | 71 | 92 | 95 | 100 | 101 | 110 | 112 | 113))
}

/// EMFILE, ENFILE, ENOBUFS, ENOMEM: no descriptor or buffer now, perhaps soon.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12))
}

fn named(error: &io::Error, what: String) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {}", plain(error)))
}

/// The cause in plain words where the system's are not.
fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "address already in use".to_owned(),
        io::ErrorKind::AddrNotAvailable => "address not available".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn peers_are_asked_whether_they_are_still_there() {
        let mut listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.address();
        let (near, far) = tokio::join!(TcpConnector.connect(&address), listener.take());
        let (_near, (far, _)) = (near.unwrap(), far.unwrap());
        let socket = SockRef::from(&far);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_AFTER);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_EVERY);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_TRIES);
    }

    #[test]
    fn a_peers_trouble_ends_no_listener() {
        // EPERM, EPROTO, ENETDOWN, ENETUNREACH, ECONNABORTED, ETIMEDOUT, EHOSTUNREACH.
        for number in [1, 71, 100, 101, 103, 110, 113] {
            assert!(is_of_one_peer(&io::Error::from_raw_os_error(number)), "{number}");
        }
        // EBADF and EINVAL are the listener's own; EMFILE is waited for.
        for number in [9, 22, 24] {
            assert!(!is_of_one_peer(&io::Error::from_raw_os_error(number)), "{number}");
        }
    }
}
