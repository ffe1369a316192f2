use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;

use super::{BoxStream, Connector, Listener};

/// Bytes a pipe holds per direction before a writer waits, about a socket buffer.
const PIPE_BYTES: usize = 256 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: usize = 128;

/// A network of in-memory pipes for tests: connections by address, and links that can be cut, frozen and healed.
///
/// Clones are the same network.
#[derive(Clone, Default)]
pub struct MemoryNetwork {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    hosts: BTreeMap<String, Host>,
    connections: u64,
    listeners: u64,
}

#[derive(Default)]
struct Host {
    link: LinkState,
    listener: Option<(u64, mpsc::Sender<(BoxStream, String)>)>,
    sides: Vec<Weak<Side>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkState {
    #[default]
    Up,
    Cut,
    Frozen,
}

impl MemoryNetwork {
    /// A network without hosts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes connections to `address` from now on; an earlier listener of the address gets no more.
    pub fn listen(&self, address: &str) -> MemoryListener {
        let (incoming, queue) = mpsc::channel(BACKLOG);
        let mut shared = self.lock();
        shared.listeners += 1;
        let id = shared.listeners;
        shared.hosts.entry(address.to_owned()).or_default().listener = Some((id, incoming));
        drop(shared);
        MemoryListener { network: self.clone(), address: address.to_owned(), id, queue }
    }

    /// Breaks every connection to `address` at once (both sides get `ConnectionReset`) and refuses new ones.
    pub fn cut(&self, address: &str) {
        self.set(address, LinkState::Cut);
    }

    /// Lets nothing through to or from `address`, and tells nobody: reads, writes and connects wait.
    pub fn freeze(&self, address: &str) {
        self.set(address, LinkState::Frozen);
    }

    /// Ends [`cut`](Self::cut) and [`freeze`](Self::freeze). Frozen connections go on; cut ones stay broken.
    pub fn heal(&self, address: &str) {
        self.set(address, LinkState::Up);
    }

    fn set(&self, address: &str, link: LinkState) {
        let mut shared = self.lock();
        let host = shared.hosts.entry(address.to_owned()).or_default();
        host.link = link;
        host.sides.retain(|side| side.upgrade().is_some_and(|side| side.set(link)));
    }

    fn open(&self, address: &str) -> io::Result<Opening> {
        let refused =
            || io::Error::new(io::ErrorKind::ConnectionRefused, format!("connect to {address}: connection refused"));
        let mut shared = self.lock();
        shared.connections += 1;
        let peer = format!("memory:{}", shared.connections);
        let host = shared.hosts.get_mut(address).ok_or_else(refused)?;
        let (_, incoming) = host.listener.as_ref().ok_or_else(refused)?;
        match host.link {
            LinkState::Cut => return Err(refused()),
            LinkState::Frozen => return Ok(Opening::Wait),
            LinkState::Up => {}
        }
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let (near, far) = (MemoryStream::new(near), MemoryStream::new(far));
        host.sides.retain(|side| side.strong_count() > 0);
        host.sides.extend([Arc::downgrade(&near.side), Arc::downgrade(&far.side)]);
        Ok(Opening::Ready { near, far, peer, incoming: incoming.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Opening {
    Wait,
    Ready { near: MemoryStream, far: MemoryStream, peer: String, incoming: mpsc::Sender<(BoxStream, String)> },
}

#[async_trait::async_trait]
impl Connector for MemoryNetwork {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        const LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
        match self.open(address)? {
            Opening::Wait => {
                tokio::time::sleep(LIMIT).await;
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("connect to {address}: no answer within {LIMIT:?}"),
                ))
            }
            Opening::Ready { near, far, peer, incoming } => {
                let sent = tokio::time::timeout(LIMIT, incoming.send((Box::new(far), peer))).await;
                if matches!(sent, Ok(Ok(()))) {
                    return Ok(Box::new(near));
                }
                Err(io::Error::new(
                    io::ErrorKind::ConnectionRefused,
                    format!("connect to {address}: connection refused"),
                ))
            }
        }
    }
}

impl std::fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.lock().hosts.keys()).finish()
    }
}

/// The listener of a [`MemoryNetwork`]; dropping it makes the address refuse connections.
#[derive(Debug)]
pub struct MemoryListener {
    network: MemoryNetwork,
    address: String,
    id: u64,
    queue: mpsc::Receiver<(BoxStream, String)>,
}

#[async_trait::async_trait]
impl Listener for MemoryListener {
    async fn accept(&mut self) -> io::Result<(BoxStream, String)> {
        let replaced = || io::Error::other(format!("accept on {}: another listener took the address", self.address));
        self.queue.recv().await.ok_or_else(replaced)
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        let mut shared = self.network.lock();
        if let Some(host) = shared.hosts.get_mut(&self.address)
            && host.listener.as_ref().is_some_and(|(id, _)| *id == self.id)
        {
            host.listener = None;
        }
    }
}

/// One side of a pipe.
struct MemoryStream {
    pipe: DuplexStream,
    side: Arc<Side>,
}

/// What the network can do to one side: change its state and wake whoever waits on it.
#[derive(Default)]
struct Side {
    state: Mutex<SideState>,
}

#[derive(Default)]
struct SideState {
    link: LinkState,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Side {
    /// Whether the side is still of use afterwards.
    fn set(&self, link: LinkState) -> bool {
        let mut state = self.lock();
        if state.link != LinkState::Cut {
            state.link = link;
        }
        let wakers = [state.reader.take(), state.writer.take()];
        let useful = state.link != LinkState::Cut;
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
        useful
    }

    fn lock(&self) -> MutexGuard<'_, SideState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when bytes may pass. The waker is kept in either case, so that a cut wakes a task that waits on the pipe.
    fn poll(&self, cx: &Context<'_>, slot: fn(&mut SideState) -> &mut Option<Waker>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        *slot(&mut state) = Some(cx.waker().clone());
        match state.link {
            LinkState::Up => Poll::Ready(Ok(())),
            LinkState::Frozen => Poll::Pending,
            LinkState::Cut => Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, "connection was cut"))),
        }
    }
}

impl MemoryStream {
    fn new(pipe: DuplexStream) -> Self {
        Self { pipe, side: Arc::default() }
    }
}

impl AsyncRead for MemoryStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.side.poll(cx, |state| &mut state.reader))?;
        Pin::new(&mut self.pipe).poll_read(cx, buf)
    }
}

impl AsyncWrite for MemoryStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.side.poll(cx, |state| &mut state.writer))?;
        Pin::new(&mut self.pipe).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.side.poll(cx, |state| &mut state.writer))?;
        Pin::new(&mut self.pipe).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.pipe.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.side.poll(cx, |state| &mut state.writer))?;
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}
