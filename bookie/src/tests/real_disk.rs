use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use crate::{Bookie, BookieConfig, BookieParts, LocalDisk};
use ::config::ByteSize;
use common::net::{Connector as _, TcpConnector, TcpListener};
use common::shutdown::TaskTree;
use metadata::MetadataStore;
use proto::client::AddFlags;
use proto::{ReadTarget, Status};
use tokio::time::Instant;

fn config() -> BookieConfig {
    BookieConfig { segment_bytes: ByteSize::mib(4), ..small_config() }
}

async fn start(world: &World, dir: &Path, tasks: &TaskTree, metadata: Arc<dyn MetadataStore>) -> Bookie {
    let disk = LocalDisk::open(dir).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let parts = BookieParts {
        dir: dir.to_path_buf(),
        disk: Arc::new(disk),
        listener: Box::new(listener),
        metadata,
        ..world.parts(tasks)
    };
    Bookie::start(config(), parts).await.unwrap()
}

async fn connect(bookie: &Bookie) -> Wire {
    Wire::new(TcpConnector.connect(&bookie.address()).await.unwrap())
}

/// Runs a bookie in a runtime of its own and ends it without any farewell, as a killed process would.
fn killed_after<T: Send>(
    dir: &Path,
    metadata: &Arc<dyn MetadataStore>,
    work: impl AsyncFnOnce(&Bookie, Wire) -> T + Send,
) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let result = runtime.block_on(async {
        let world = World::new();
        let tasks = TaskTree::root("test");
        let bookie = start(&world, dir, &tasks, metadata.clone()).await;
        let wire = connect(&bookie).await;
        let result = work(&bookie, wire).await;
        // The lease of a dead process runs out by itself; here that takes too long.
        let key = metadata::layout::available_key(&world.id);
        metadata.delete_if(&key, metadata::Expect::Any).await.unwrap();
        result
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    result
}

#[test]
fn acknowledged_entries_survive_a_kill_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let metadata: Arc<dyn MetadataStore> = Arc::new(metadata::MemoryStore::new());
    let root = dir.path().join("bookie");
    for round in 0..3_u64 {
        killed_after(&root, &metadata, async |_, mut wire| {
            for e in 0..round * 3_000 {
                wire.put_read(e % 5, ReadTarget::Entry(entry(e)), None);
            }
            wire.send().await;
            for _ in 0..round * 3_000 {
                let reply = wire.reply().await;
                let e = reply.entry as u64;
                assert_eq!((reply.status, reply.body), (Status::Ok, body(e % 5, e, &payload(e % 5, e))));
            }
            for e in round * 3_000..(round + 1) * 3_000 {
                wire.put_add(e % 5, e, &payload(e % 5, e), &key(), AddFlags::default());
            }
            wire.send().await;
            for _ in 0..3_000 {
                assert_eq!(wire.reply().await.status, Status::Ok);
            }
            assert_eq!(wire.fence(100 + round, &key()).await, Err(Status::NoEntry));
            for fenced in 0..=round {
                assert_eq!(wire.add(100 + fenced, 0, b"late").await, Status::Fenced);
            }
        });
    }
    killed_after(&root, &metadata, async |bookie, mut wire| {
        assert_eq!(bookie.stats().entries, 9_000);
        let report = bookie.collect_now().await.unwrap();
        assert!(report.segments_removed >= 2, "{report:?}");
        assert_eq!(wire.read(0, 0).await, Err(Status::NoLedger));
        assert!(bookie.stats().allocated_bytes <= 3 * (4 << 20));
    });
}

/// Prints what one connection reaches; asserts only that it is not absurd.
#[test]
fn small_adds_are_fast() {
    let dir = tempfile::tempdir().unwrap();
    let metadata: Arc<dyn MetadataStore> = Arc::new(metadata::MemoryStore::new());
    killed_after(&dir.path().join("bookie"), &metadata, async |_, mut wire| {
        const COUNT: u64 = 50_000;
        const WINDOW: u64 = 1_000;
        let started = Instant::now();
        for first in (0..COUNT).step_by(WINDOW as usize) {
            for e in first..first + WINDOW {
                wire.put_add(e % 3, e, &[7; 100], &key(), AddFlags::default());
            }
            wire.send().await;
            for _ in 0..WINDOW {
                assert_eq!(wire.reply().await.status, Status::Ok);
            }
        }
        let rate = COUNT as f64 / started.elapsed().as_secs_f64();
        println!("adds of 100 bytes, window {WINDOW}: {rate:.0} a second");
        let started = Instant::now();
        for first in (0..COUNT).step_by(WINDOW as usize) {
            for e in first..first + WINDOW {
                wire.put_read(e % 3, ReadTarget::Entry(entry(e)), None);
            }
            wire.send().await;
            for _ in 0..WINDOW {
                assert_eq!(wire.reply().await.status, Status::Ok);
            }
        }
        println!("reads of the same: {:.0} a second", COUNT as f64 / started.elapsed().as_secs_f64());
        assert!(rate > 1_000.0, "{rate} adds a second");
    });
}
