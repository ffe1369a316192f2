//! A TCP proxy that knows only bytes: what is put before a metadata server or a bookie to make the network between fail.
//!
//! Its behaviour can be changed at any time and holds for open connections too. Each direction of a connection is carried by a
//! reader and a writer with a bounded queue between, so that a delay makes bytes late without making them few.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use faults::tcp::{Behaviour, Proxy};
//! let proxy = Proxy::start("127.0.0.1:2379").await?;
//! let endpoint = format!("http://{}", proxy.address());
//! // Requests arrive and are carried out, nobody hears of it; then everything breaks off.
//! proxy.set(Behaviour::swallow_replies());
//! proxy.reset_connections();
//! # Ok(()) }
//! ```

mod pump;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// How long the target may take to accept a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// What becomes of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connect {
    /// It is carried to the target.
    #[default]
    Carry,
    /// It is reset at once, as by a machine on which nothing listens.
    Refuse,
    /// It is accepted and never answered; the target does not hear of it until this changes.
    Stall,
}

/// What becomes of the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fate {
    /// They arrive.
    #[default]
    Pass,
    /// They are taken from the sender and thrown away.
    Swallow,
    /// They are left with the sender until this changes: a network without an answer and without a reset.
    Stall,
    /// They arrive up to this many bytes of a connection's direction, counted from its beginning; then the connection is reset.
    CutAfter(u64),
}

/// One direction of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    /// What becomes of the bytes.
    pub fate: Fate,
    /// How much later they arrive.
    pub delay: Duration,
    /// What a connection carries a second; `None` is as much as it can.
    pub bytes_per_second: Option<u64>,
}

/// How the proxy behaves. The default passes everything on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Behaviour {
    /// New connections.
    pub connect: Connect,
    /// From the client to the target.
    pub up: Flow,
    /// From the target to the client.
    pub down: Flow,
}

impl Behaviour {
    /// Everything arrives.
    pub fn pass() -> Self {
        Self::default()
    }

    /// Everything arrives, `delay` later in each direction.
    pub fn delay(delay: Duration) -> Self {
        let flow = Flow { delay, ..Flow::default() };
        Self { up: flow, down: flow, ..Self::default() }
    }

    /// New connections are reset; open ones go on (see [`Proxy::reset_connections`]).
    pub fn refuse() -> Self {
        Self { connect: Connect::Refuse, ..Self::default() }
    }

    /// Requests are carried out and their replies are lost.
    pub fn swallow_replies() -> Self {
        Self { down: Flow { fate: Fate::Swallow, ..Flow::default() }, ..Self::default() }
    }

    /// Nothing gets through either way, and nothing says so.
    pub fn blackhole() -> Self {
        let flow = Flow { fate: Fate::Stall, ..Flow::default() };
        Self { connect: Connect::Stall, up: flow, down: flow }
    }

    /// Connections are reset once `bytes` have gone from the client to the target.
    pub fn cut_requests_after(bytes: u64) -> Self {
        Self { up: Flow { fate: Fate::CutAfter(bytes), ..Flow::default() }, ..Self::default() }
    }

    /// Connections are reset once `bytes` have gone from the target to the client.
    pub fn cut_replies_after(bytes: u64) -> Self {
        Self { down: Flow { fate: Fate::CutAfter(bytes), ..Flow::default() }, ..Self::default() }
    }

    /// Each connection carries this much a second in each direction.
    pub fn bandwidth(bytes_per_second: u64) -> Self {
        let flow = Flow { bytes_per_second: Some(bytes_per_second), ..Flow::default() };
        Self { up: flow, down: flow, ..Self::default() }
    }
}

/// What went through so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Connections that clients opened, refused ones included.
    pub connections: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Connections that the proxy refused, reset, or could not carry on because the target did not accept.
    pub broken: u64,
    /// Bytes handed to the target.
    pub bytes_up: u64,
    /// Bytes handed to clients.
    pub bytes_down: u64,
    /// Bytes that were taken and thrown away, both ways.
    pub bytes_swallowed: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Orders {
    behaviour: Behaviour,
    /// Grows with each reset; a connection older than the newest reset is reset.
    resets: u64,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    open: AtomicU64,
    broken: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    bytes_swallowed: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<String>,
    counters: Counters,
}

/// A TCP proxy on a free port of 127.0.0.1. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    orders: watch::Sender<Orders>,
    shared: Arc<Shared>,
    // Its tasks live in a set that this task owns, so that they go with it.
    _listener: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Begins to carry connections to `target`, a host and port. The target need not listen yet.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(target: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (orders, seen) = watch::channel(Orders::default());
        let shared = Arc::new(Shared { target: Mutex::new(target.into()), counters: Counters::default() });
        let task = tokio::spawn(accept(listener, seen, Arc::clone(&shared)));
        Ok(Self { address, orders, shared, _listener: AbortOnDropHandle::new(task) })
    }

    /// Where clients connect: `127.0.0.1:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Changes the behaviour, also of open connections.
    pub fn set(&self, behaviour: Behaviour) {
        self.orders.send_modify(|orders| orders.behaviour = behaviour);
    }

    /// The present behaviour.
    pub fn behaviour(&self) -> Behaviour {
        self.orders.borrow().behaviour
    }

    /// Resets all open connections (RST on both sides).
    pub fn reset_connections(&self) {
        self.orders.send_modify(|orders| orders.resets += 1);
    }

    /// Carries connections opened from now on to another target: a server that came back on another port, or another member.
    pub fn set_target(&self, target: impl Into<String>) {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = target.into();
    }

    /// What went through so far.
    pub fn traffic(&self) -> Traffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        Traffic {
            connections: read(&counters.connections),
            open: read(&counters.open),
            broken: read(&counters.broken),
            bytes_up: read(&counters.bytes_up),
            bytes_down: read(&counters.bytes_down),
            bytes_swallowed: read(&counters.bytes_swallowed),
        }
    }
}

async fn accept(listener: TcpListener, orders: watch::Receiver<Orders>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        // Out of descriptors: the next one may do.
        let Ok((client, _)) = client else { continue };
        shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(connection(client, orders.clone(), Arc::clone(&shared)));
    }
}

/// One connection, from its first byte to its end.
async fn connection(client: TcpStream, mut orders: watch::Receiver<Orders>, shared: Arc<Shared>) {
    let _open = Open::count(&shared);
    let resets = orders.borrow().resets;
    let mut reset_orders = orders.clone();
    let reset = async move {
        // The proxy is gone when this fails, and this task with it.
        let _ = reset_orders.wait_for(|now| now.resets > resets).await;
    };
    let work = async {
        let allowed = orders.wait_for(|now| now.behaviour.connect != Connect::Stall || now.resets > resets).await;
        let refused = allowed.map_or(true, |now| now.behaviour.connect != Connect::Carry);
        if refused {
            return Err(client);
        }
        let target = shared.target.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match tokio::time::timeout(CONNECT_DEADLINE, TcpStream::connect(target)).await {
            Ok(Ok(server)) => Ok(pump::carry(client, server, &orders, &shared.counters, reset).await),
            _ => Err(client),
        }
    };
    let broken = match work.await {
        Ok(broken) => broken,
        Err(client) => {
            let _ = client.set_zero_linger();
            true
        }
    };
    if broken {
        shared.counters.broken.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a connection as open while it lives.
struct Open<'a>(&'a Shared);

impl<'a> Open<'a> {
    fn count(shared: &'a Shared) -> Self {
        shared.counters.open.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.counters.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
