//! The bookies of a run: hosts that crash and start again on what their disks kept.
//!
//! The index is copied at each start as a whole: its writes are durable when they return, and it is never lost alone (a bookie
//! refuses to start without it).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bookie::index::MemoryIndex;
use bookie::{Bookie, BookieConfig, BookieParts, ErrorKind};
use common::budget::ByteBudget;
use config::{ByteSize, Span};
use ledger::BookieId;
use tokio::sync::watch;

use crate::disk::{Honesty, SimDisk, SimIndex};
use crate::net::{SimConnector, SimListener};
use crate::trace::with_causes;
use crate::world::{Process, World};

/// Where bookies listen.
pub const BOOKIE_PORT: u16 = 3181;
/// How long an orderly stop may take.
pub const STOP_LIMIT: Duration = Duration::from_secs(60);

/// One storage node: what outlives its processes, and what others know of the one that runs.
pub struct Node {
    pub name: String,
    pub honesty: Honesty,
    index: MemoryIndex,
    /// Makes every sync of its disk fail.
    pub disk_fails: Arc<AtomicBool>,
    /// Whether any of its processes has started.
    has_run: Arc<AtomicBool>,
    /// Whether its process has started and serves.
    pub serves: AtomicBool,
    /// Asks its process to stop in order.
    pub stop: watch::Sender<bool>,
}

impl Node {
    pub fn new(number: usize, honesty: Honesty) -> Self {
        Self {
            name: format!("bookie-{number}"),
            honesty,
            index: MemoryIndex::new(),
            disk_fails: Arc::default(),
            has_run: Arc::default(),
            serves: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        }
    }

    /// Its process has ended, in whatever way.
    pub fn ended(&self) {
        self.serves.store(false, Ordering::Relaxed);
        self.disk_fails.store(false, Ordering::Relaxed);
        self.stop.send_replace(false);
    }

    pub fn serves(&self) -> bool {
        self.serves.load(Ordering::Relaxed)
    }
}

/// One process of a node, from its start to its orderly stop; a crash just drops it.
pub async fn run(world: World, number: usize) -> turmoil::Result {
    let node = &world.nodes[number];
    world.trace.note(format_args!("{} starts", node.name));
    let process = world.process(&node.name);
    let Some(bookie) = start(&world, node, &process).await else { return Ok(()) };
    node.serves.store(true, Ordering::Relaxed);
    let mut stop = node.stop.subscribe();
    let asked = tokio::select! {
        _ = stop.wait_for(|stop| *stop) => true,
        cause = process.tasks.failed() => {
            world.history.violation(9, format!("{}: {cause}", node.name));
            false
        }
    };
    if asked {
        world.trace.note(format_args!("{} stops", node.name));
        if let Err(error) = bookie.stop(STOP_LIMIT).await {
            world.history.violation(9, format!("{}: {error}", node.name));
        }
        world.trace.note(format_args!("{} has stopped", node.name));
    }
    Ok(())
}

/// Starts the bookie, again and again while metadata is the reason that it does not.
async fn start(world: &World, node: &Node, process: &Process) -> Option<Bookie> {
    let disk = SimDisk::new(process.rng.fork(), node.honesty, node.disk_fails.clone(), node.has_run.clone());
    let index = Arc::new(SimIndex { inner: node.index.clone(), rng: process.rng.fork() });
    loop {
        let listener = match SimListener::bind(&node.name, BOOKIE_PORT).await {
            Ok(listener) => listener,
            Err(error) => {
                world.history.violation(9, format!("{} cannot listen: {error}", node.name));
                return None;
            }
        };
        let parts = BookieParts {
            id: BookieId::for_real_bookie(&node.name).expect("a valid id"),
            dir: PathBuf::from("/data/bookie"),
            disk: Arc::new(disk.clone()),
            metadata: process.metadata.clone(),
            connector: Arc::new(SimConnector),
            listener: Box::new(listener),
            clock: process.clock.clone(),
            rng: process.rng.fork(),
            budget: ByteBudget::new("bookie", 64 << 20),
            tasks: process.tasks.clone(),
        };
        match Bookie::start_with_index(config(), parts, index.clone()).await {
            Ok(bookie) => {
                node.has_run.store(true, Ordering::Relaxed);
                world.trace.note(format_args!("{} runs: {:?}", node.name, bookie.stats()));
                return Some(bookie);
            }
            Err(error) if error.kind() == ErrorKind::Metadata => {
                world.trace.note(format_args!("{} cannot start yet: {error}", node.name));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => {
                world.history.violation(1, format!("{} does not start: {}", node.name, with_causes(&error)));
                return None;
            }
        }
    }
}

/// Small segments and a busy collector, so that a short run sees many of both.
fn config() -> BookieConfig {
    BookieConfig {
        segment_bytes: ByteSize::kib(128),
        write_buffer_bytes: ByteSize::kib(64),
        index_cache_bytes: ByteSize::kib(64),
        collect_interval: Span::secs(3),
        recovery_grace: Span::secs(2),
        registration_ttl: Span::secs(2),
        // Few turns, so that they are fought for. No gateway speaks the bookies' protocol here: what is in the cold tier alone is too
        // many requests by a bookie's word, and what another bookie has is its answer.
        relay_concurrency: 16,
        relay_deadline: Span::millis(500),
        ..BookieConfig::default()
    }
}
