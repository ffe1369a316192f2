//! An HTTP/1.1 proxy before an object store that knows the store's requests and makes chosen ones fail in a chosen way.
//!
//! A [`Rule`] picks requests by operation, key and occurrence, and says what goes wrong with them. Everything else passes, with its
//! bytes untouched and its `Host` as the client signed it. Each request is logged with what it was, what became of it, its bytes
//! each way and how long it took.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use faults::http::{Fault, Operation, Proxy, Rule};
//! let proxy = Proxy::start("127.0.0.1:9000").await?;
//! // The second part arrives and its answer does not; the object's last step fails with a reply that says 200.
//! proxy.add(Rule::on(Operation::UploadPart).nth(2).fault(Fault::DropReply));
//! proxy.add(Rule::on(Operation::CompleteMultipart).nth(1).fault(Fault::error_in_ok()));
//! println!("AWS_ENDPOINT=http://{}", proxy.address());
//! # Ok(()) }
//! ```

mod body;
mod operation;
mod relay;
mod rule;
mod socket;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::rng::Rng;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::model::StoreModel;
use body::RequestBody;
use socket::Socket;

pub use operation::{Operation, Request};
pub use rule::{Fault, Rule};

/// One request as it went through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What was asked for.
    pub request: Request,
    /// The status the client was sent; `None` when its connection was reset before, or it has none yet.
    pub status: Option<u16>,
    /// Bytes of the request's body that were passed on.
    pub bytes_up: u64,
    /// Bytes of the answer's body that were passed on.
    pub bytes_down: u64,
    /// From the request's arrival to the end of its answer; `None` while it is under way.
    pub duration: Option<Duration>,
    /// What was done to it.
    pub faults: Vec<Fault>,
}

/// Sums over the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Requests, those under way included.
    pub requests: u64,
    /// Bytes of request bodies.
    pub bytes_up: u64,
    /// Bytes of answers.
    pub bytes_down: u64,
}

struct State {
    rules: Vec<rule::Armed>,
    log: Vec<Record>,
    model: StoreModel,
    rng: Rng,
}

struct Shared {
    target: String,
    client: Client<HttpConnector, RequestBody>,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proxy on a free port of 127.0.0.1. Dropping it closes the port and every connection.
pub struct Proxy {
    address: String,
    shared: Arc<Shared>,
    _listener: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Begins to pass requests on to `target`, a host and port (a leading `http://` is taken off).
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(target: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(10)));
        // A retry of the proxy's own would hide what the client's request met.
        let client = Client::builder(TokioExecutor::new()).retry_canceled_requests(false).build(connector);
        let state = State { rules: Vec::new(), log: Vec::new(), model: StoreModel::none(), rng: Rng::seeded(0) };
        let target = target.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let shared = Arc::new(Shared { target, client, state: Mutex::new(state) });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, _listener: AbortOnDropHandle::new(task) })
    }

    /// Where clients connect: `127.0.0.1:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The same as a URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a rule. Rules are asked in the order they were added, and every one that picks a request does its fault.
    pub fn add(&self, rule: Rule) {
        self.shared.state().rules.push(rule::Armed::new(rule));
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        self.shared.state().rules.clear();
    }

    /// How often the rules did their fault, in their order.
    pub fn done(&self) -> Vec<u64> {
        self.shared.state().rules.iter().map(|armed| armed.done).collect()
    }

    /// Makes reads (GET of objects) as slow as the model says, from a seed.
    pub fn set_model(&self, model: StoreModel, seed: u64) {
        let mut state = self.shared.state();
        state.model = model;
        state.rng = Rng::seeded(seed);
    }

    /// The requests so far, in the order they arrived.
    pub fn log(&self) -> Vec<Record> {
        self.shared.state().log.clone()
    }

    /// Sums over the requests so far.
    pub fn traffic(&self) -> Traffic {
        self.shared.state().log.iter().fold(Traffic::default(), |sum, record| Traffic {
            requests: sum.requests + 1,
            bytes_up: sum.bytes_up + record.bytes_up,
            bytes_down: sum.bytes_down + record.bytes_down,
        })
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({} -> {})", self.address, self.shared.target)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Ok((stream, _)) = stream else { continue };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        let (socket, reset) = Socket::new(stream);
        connections.spawn(async move {
            let service =
                hyper::service::service_fn(move |request| relay::relay(Arc::clone(&shared), request, reset.clone()));
            // An error is a fault that was wanted, or a client that went away.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}
