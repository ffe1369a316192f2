//! An S3 server in this process: objects in memory, conditional writes that are atomic, multipart with its listings.
//!
//! It speaks enough of S3 for a conformance suite of a real client (see `tests/s3.rs`), verifies signatures, `Content-MD5` and the
//! checksum headers it is sent, and sets `TCP_NODELAY`, so that a small answer is not 40 ms late. What real stores lack can be
//! switched off: conditional writes, checksum headers, another region.
//!
//! Its ETags depend on the content but are not MD5 sums: nobody may rely on that, and the sums would cost more than all else.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use faults::{model::StoreModel, s3::{Options, Server}};
//! let server = Server::start(Options { model: StoreModel::cloud(), ..Options::default() }).await?;
//! println!("s3://{} at {} as {}", server.bucket(), server.endpoint(), server.access_key());
//! # Ok(()) }
//! ```

mod blob;
mod bucket;
mod checksum;
mod gate;
mod listing;
mod service;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use common::clock::Clock;
use common::rng::Rng;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::model::StoreModel;
use bucket::Store;

pub use bucket::History;

/// What the server is and lacks.
#[derive(Debug, Clone)]
pub struct Options {
    /// The bucket that exists from the beginning; clients may create others.
    pub bucket: String,
    /// The access key requests must be signed with.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// The only region whose signatures are taken; `None` takes any. A request for another region is refused with the name of this.
    pub region: Option<String>,
    /// What objects and parts may take; a write beyond it is refused (`QuotaExceeded`).
    pub bytes_max: u64,
    /// The least size of a part that is not an upload's last: 5 MiB as in the original, less for quick tests.
    pub part_bytes_min: u64,
    /// Whether `If-None-Match` and `If-Match` of writes are obeyed. A store that ignores them takes every write.
    pub conditional_writes: bool,
    /// Whether `x-amz-checksum-…` headers are understood. Without, a request that has one is refused (501), as by older stores.
    pub checksum_headers: bool,
    /// How far the server's clock is ahead, in milliseconds: seen in `Date` and the objects' times.
    pub clock_ahead_ms: i64,
    /// How long reads take.
    pub model: StoreModel,
    /// Decides the waits of `model` and the ids of uploads.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bucket: "bucket".to_owned(),
            access_key: "thermocline".to_owned(),
            secret_key: "in-process-secret".to_owned(),
            region: None,
            bytes_max: 4 << 30,
            part_bytes_min: 5 << 20,
            conditional_writes: true,
            checksum_headers: true,
            clock_ahead_ms: 0,
            model: StoreModel::none(),
            seed: 0,
        }
    }
}

/// An upload in parts that was neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// The key it is for.
    pub key: String,
    /// Its id.
    pub upload_id: String,
    /// The parts that arrived.
    pub parts: usize,
}

struct World {
    options: Options,
    clock: Clock,
    rng: Rng,
    store: Mutex<Store>,
}

impl World {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.clock.wall_ms().saturating_add_signed(self.options.clock_ahead_ms)
    }
}

/// A running server. Dropping it closes the port and every connection, and forgets the objects.
pub struct Server {
    endpoint: String,
    world: Arc<World>,
    _listener: AbortOnDropHandle<()>,
}

impl Server {
    /// Serves on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let store = Store::new(&options);
        let rng = Rng::seeded(options.seed);
        let world = Arc::new(World { options, clock: Clock::system(), rng, store: Mutex::new(store) });
        let task = tokio::spawn(serve(listener, Arc::clone(&world)));
        Ok(Self { endpoint, world, _listener: AbortOnDropHandle::new(task) })
    }

    /// Where the server is reached, as `http://127.0.0.1:port`; buckets are in the path.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The bucket that was there from the beginning.
    pub fn bucket(&self) -> &str {
        &self.world.options.bucket
    }

    /// The access key.
    pub fn access_key(&self) -> &str {
        &self.world.options.access_key
    }

    /// Its secret.
    pub fn secret_key(&self) -> &str {
        &self.world.options.secret_key
    }

    /// The keys of the bucket with the sizes of their objects, ascending.
    pub fn objects(&self) -> Vec<(String, u64)> {
        self.world.store().objects(self.bucket())
    }

    /// The bytes of an object of the bucket.
    pub fn object(&self, key: &str) -> Option<Bytes> {
        self.world.store().object(self.bucket(), key)
    }

    /// The uploads of the bucket that nobody finished, by key.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        self.world.store().unfinished(self.bucket())
    }

    /// What happened to the bucket's objects since the start.
    pub fn history(&self) -> History {
        self.world.store().history(self.bucket())
    }

    /// Bytes that objects and parts take now.
    pub fn used_bytes(&self) -> u64 {
        self.world.store().used_bytes()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({} at {})", self.bucket(), self.endpoint)
    }
}

async fn serve(listener: TcpListener, world: Arc<World>) {
    let service = gate::Gate::new(world);
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Ok((stream, _)) = stream else { continue };
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        connections.spawn(async move {
            // A client that goes away is not this server's trouble.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
