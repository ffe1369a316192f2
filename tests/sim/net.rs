//! The network: pipes between each client and each bookie, with latency, that can be cut or stalled one by one.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use common::net::{BoxStream, Connector, MemoryNetwork};
use common::rng::Rng;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

const PIPE_BYTES: usize = 256 * 1024;
/// What a connection attempt to a silent peer costs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of the way from one client to one bookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// Connections break and new ones are refused.
    Cut,
    /// Nothing gets through, and nobody is told.
    Stalled,
}

type Links = BTreeMap<(String, String), watch::Sender<Link>>;

/// The whole network. Clones are the same network.
#[derive(Clone)]
pub struct SimNet {
    /// Where bookies listen; faults of a bookie's own link are made here.
    pub memory: MemoryNetwork,
    links: Arc<Mutex<Links>>,
    rng: Rng,
}

impl SimNet {
    pub fn new(rng: Rng) -> Self {
        Self { memory: MemoryNetwork::new(), links: Arc::default(), rng }
    }

    /// The way out for one client.
    pub fn connector(&self, client: &str) -> Arc<dyn Connector> {
        Arc::new(SimConnector { net: self.clone(), client: client.to_owned() })
    }

    /// Changes the way from a client to a bookie.
    pub fn set(&self, client: &str, address: &str, link: Link) {
        self.link(client, address).send_replace(link);
    }

    fn link(&self, client: &str, address: &str) -> watch::Sender<Link> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (client.to_owned(), address.to_owned());
        links.entry(key).or_insert_with(|| watch::Sender::new(Link::Up)).clone()
    }

    fn latency(&self) -> Duration {
        let micros = if self.rng.below(200) == 0 { self.rng.below(150_000) } else { 100 + self.rng.below(3_000) };
        Duration::from_micros(micros)
    }
}

struct SimConnector {
    net: SimNet,
    client: String,
}

#[async_trait]
impl Connector for SimConnector {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let link = self.net.link(&self.client, address).subscribe();
        tokio::time::sleep(self.net.latency()).await;
        let state = *link.borrow();
        match state {
            Link::Cut => return Err(io::ErrorKind::ConnectionRefused.into()),
            Link::Stalled => {
                tokio::time::sleep(CONNECT_TIMEOUT).await;
                return Err(io::ErrorKind::TimedOut.into());
            }
            Link::Up => {}
        }
        let far = self.net.memory.connect(address).await?;
        let (near, middle) = tokio::io::duplex(PIPE_BYTES);
        let (middle_in, middle_out) = tokio::io::split(middle);
        let (far_in, far_out) = tokio::io::split(far);
        tokio::spawn(carry(middle_in, far_out, link.clone(), self.net.clone()));
        tokio::spawn(carry(far_in, middle_out, link, self.net.clone()));
        Ok(Box::new(near))
    }
}

/// Carries bytes one way, in order and late, until either end goes or the link is cut.
async fn carry(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    mut link: watch::Receiver<Link>,
    net: SimNet,
) {
    let (sender, receiver) = mpsc::channel(64);
    let mut cut = link.clone();
    tokio::select! {
        biased;
        _ = cut.wait_for(|link| *link == Link::Cut) => {}
        _ = async { tokio::join!(take(from, sender, net), deliver(receiver, to, &mut link)) } => {}
    }
}

async fn take(mut from: impl AsyncRead + Unpin, sender: mpsc::Sender<(Instant, Bytes)>, net: SimNet) {
    let mut due = Instant::now();
    loop {
        let mut buffer = BytesMut::with_capacity(16 * 1024);
        match from.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        due = due.max(Instant::now() + net.latency());
        if sender.send((due, buffer.freeze())).await.is_err() {
            return;
        }
    }
}

async fn deliver(
    mut receiver: mpsc::Receiver<(Instant, Bytes)>,
    mut to: impl AsyncWrite + Unpin,
    link: &mut watch::Receiver<Link>,
) {
    while let Some((due, bytes)) = receiver.recv().await {
        tokio::time::sleep_until(due).await;
        // The sender lives in the network, so waiting cannot fail.
        let _ = link.wait_for(|link| *link != Link::Stalled).await;
        if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    // The other end may be gone already.
    let _ = to.shutdown().await;
}
