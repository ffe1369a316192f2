//! The bookies of a run: started, crashed and started again on what their disks kept.
//!
//! A crash is a power cut at one instant: the disk is copied as the cut would leave it, the network breaks, and the old process
//! loses its way to metadata. What its tasks still do, they do to the old disk, which nobody will see again. The index is copied
//! as a whole: its writes are durable when they return, and it is never lost alone (a bookie refuses to start without it).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bookie::index::MemoryIndex;
use bookie::{Bookie, BookieConfig, BookieParts, ErrorKind, MemoryDisk};
use common::budget::ByteBudget;
use common::shutdown::TaskTree;
use config::{ByteSize, Span};
use ledger::BookieId;
use tokio::task::JoinHandle;

use crate::storage::{Honesty, SimDisk, SimIndex};
use crate::store::NodeStore;
use crate::trace::with_causes;
use crate::world::World;

/// How long a start may take: an old registration ends by itself first.
const START_LIMIT: Duration = Duration::from_secs(180);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// What a disk says that was made to fail.
pub const DISK_FAILURE: &str = "simulated disk failure";

/// One storage node.
struct Node {
    id: BookieId,
    address: String,
    disk: MemoryDisk,
    index: MemoryIndex,
    process: Option<Process>,
}

/// A process of a node, starting or running.
struct Process {
    tasks: TaskTree,
    store: Arc<NodeStore>,
    bookie: JoinHandle<Result<Bookie, bookie::Error>>,
}

/// All bookies.
pub struct Cluster {
    world: World,
    honesty: Honesty,
    nodes: Vec<Node>,
}

impl Cluster {
    /// `count` new bookies, starting.
    pub fn start(world: &World, count: usize, honesty: Honesty) -> Self {
        let node = |number: usize| Node {
            id: format!("bookie-{number}").parse().expect("a valid id"),
            address: format!("bookie-{number}:3181"),
            disk: MemoryDisk::new(),
            index: MemoryIndex::new(),
            process: None,
        };
        let mut cluster = Self { world: world.clone(), honesty, nodes: (0..count).map(node).collect() };
        (0..count).for_each(|number| cluster.restart(number));
        cluster
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn address(&self, number: usize) -> &str {
        &self.nodes[number].address
    }

    pub fn is_down(&self, number: usize) -> bool {
        self.nodes[number].process.is_none()
    }

    /// Whether it is down or starting.
    pub fn is_away(&self, number: usize) -> bool {
        self.nodes[number].process.as_ref().is_none_or(|process| !process.bookie.is_finished())
    }

    /// The way to metadata of a node's process.
    pub fn store(&self, number: usize) -> Option<&Arc<NodeStore>> {
        self.nodes[number].process.as_ref().map(|process| &process.store)
    }

    /// Starts a node that is down, without waiting for it.
    pub fn restart(&mut self, number: usize) {
        let (world, node) = (&self.world, &mut self.nodes[number]);
        assert!(node.process.is_none(), "a node has one process at a time");
        world.trace.note(format_args!("{} starts", node.id));
        world.net.memory.heal(&node.address);
        let tasks = TaskTree::root(node.id.as_str());
        let store = NodeStore::new(world.metadata.clone(), world.rng.fork());
        let start = Start {
            world: world.clone(),
            id: node.id.clone(),
            address: node.address.clone(),
            disk: Arc::new(SimDisk { inner: node.disk.clone(), rng: world.rng.fork(), honesty: self.honesty }),
            index: Arc::new(SimIndex { inner: node.index.clone(), rng: world.rng.fork() }),
            tasks: tasks.clone(),
            store: store.clone(),
        };
        node.process = Some(Process { tasks, store, bookie: tokio::spawn(start.run()) });
    }

    /// Cuts the power of a node, in whatever it is doing.
    pub fn crash(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(process) = node.process.take() else { return };
        self.world.trace.note(format_args!("{} crashes", node.id));
        node.disk = node.disk.crash();
        node.index = node.index.crash();
        process.store.kill();
        process.bookie.abort();
        self.world.net.memory.cut(&node.address);
        // Its tasks end in their own time; they reach nothing and nobody any more.
        process.tasks.ask_to_stop();
        if let Some(cause) = process.tasks.failure() {
            self.world.history.violation(9, format!("{}: {cause}", node.id));
        }
    }

    /// Makes every sync of a node's disk fail until its next crash.
    pub fn break_disk(&mut self, number: usize) {
        self.nodes[number].disk.fail_syncs(Some(DISK_FAILURE));
    }

    /// Stops a node in order.
    pub async fn stop(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(process) = node.process.take() else { return };
        self.world.trace.note(format_args!("{} stops", node.id));
        if let Some(bookie) = settled(&self.world, process.bookie).await
            && let Err(error) = bookie.stop(STOP_LIMIT).await
        {
            self.world.history.violation(9, format!("{}: {error}", node.id));
        }
        if let Some(cause) = process.tasks.failure() {
            self.world.history.violation(9, format!("{}: {cause}", node.id));
        }
        process.store.kill();
        self.world.trace.note(format_args!("{} has stopped", node.id));
    }

    /// Starts what is down and waits until every node runs.
    pub async fn heal(&mut self) {
        for number in 0..self.nodes.len() {
            self.world.net.memory.heal(&self.nodes[number].address);
            if self.is_down(number) {
                self.restart(number);
            }
            let Some(process) = &mut self.nodes[number].process else { continue };
            process.store.set_reachable(true);
            let limit = tokio::time::Instant::now() + START_LIMIT;
            while !process.bookie.is_finished() {
                if tokio::time::Instant::now() >= limit {
                    let text = format!("{} has not started within {START_LIMIT:?}", self.nodes[number].id);
                    return self.world.history.violation(8, text);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

async fn settled(world: &World, start: JoinHandle<Result<Bookie, bookie::Error>>) -> Option<Bookie> {
    match tokio::time::timeout(START_LIMIT, start).await {
        Ok(Ok(Ok(bookie))) => Some(bookie),
        // A failed start is a violation already.
        Ok(Ok(Err(_))) => None,
        Ok(Err(panic)) => {
            world.history.violation(9, format!("a start panicked: {panic}"));
            None
        }
        Err(_) => {
            world.history.violation(8, format!("a start has not ended within {START_LIMIT:?}"));
            None
        }
    }
}

/// What a process is started with.
struct Start {
    world: World,
    id: BookieId,
    address: String,
    disk: Arc<SimDisk>,
    index: Arc<SimIndex>,
    tasks: TaskTree,
    store: Arc<NodeStore>,
}

impl Start {
    /// Starts the bookie, again and again while metadata is the reason that it does not.
    async fn run(self) -> Result<Bookie, bookie::Error> {
        loop {
            let parts = BookieParts {
                id: self.id.clone(),
                dir: PathBuf::from(format!("/{}", self.id)),
                disk: self.disk.clone(),
                metadata: self.store.clone(),
                listener: Box::new(self.world.net.memory.listen(&self.address)),
                clock: self.world.clock.clone(),
                rng: self.world.rng.fork(),
                budget: ByteBudget::new("bookie", 64 << 20),
                tasks: self.tasks.clone(),
            };
            let trace = &self.world.trace;
            match Bookie::start_with_index(bookie_config(), parts, self.index.clone()).await {
                Ok(bookie) => {
                    trace.note(format_args!("{} runs: {:?}", self.id, bookie.stats()));
                    return Ok(bookie);
                }
                Err(error) if error.kind() == ErrorKind::Metadata => {
                    trace.note(format_args!("{} cannot start yet: {error}", self.id));
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => {
                    let text = format!("{} does not start: {}", self.id, with_causes(&error));
                    self.world.history.violation(1, text);
                    return Err(error);
                }
            }
        }
    }
}

/// Small segments and a busy collector, so that a short run sees many of both.
fn bookie_config() -> BookieConfig {
    BookieConfig {
        segment_bytes: ByteSize::kib(128),
        write_buffer_bytes: ByteSize::kib(64),
        index_cache_bytes: ByteSize::kib(64),
        collect_interval: Span::secs(3),
        recovery_grace: Span::secs(2),
        registration_ttl: Span::secs(2),
        ..BookieConfig::default()
    }
}
