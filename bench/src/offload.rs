//! `offload`: what it costs to turn a closed ledger into a Parquet object, and to read it back (P8).
//!
//! A client writes ledgers to a real bookie, the real offloader settles them: it reads the entries through the client, checks every digest,
//! encodes, uploads, reads the object back and compares, commits. Its processor time, the client's part included, is measured step by step
//! and apart from the bookie's. The limit is the least that must be done: the same payload compressed page by page by one plain thread,
//! written to a file and synced; and read back and decompressed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use client::{Client, CreateOptions};
use cold::{ColdStore, StoreOptions};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::TcpConnector;
use common::rng::Rng;
use common::shutdown::TaskTree;
use config::ByteSize;
use futures::StreamExt as _;
use ledger::{ColdRecord, DigestType, LedgerId, Password, Quorums};
use metadata::{Cluster, Ledgers, MetadataStore};
use offloader::{ClientSource, Offloader, OffloaderConfig, OffloaderParts, Step, StepObserver, Verdict, WireProbe};
use url::Url;

use crate::append::bookie_config;
use crate::content::{Content, Pool};
use crate::cpu::{CpuTimes, OFFLOAD};
use crate::node::{self, Node, chain, runtime};
use crate::plan::{Error, Plan, Result};
use crate::raw_pages;
use crate::row::{Better, Head, Pair, Row, Target, fact};
use crate::timing::now;

/// What P8 asks for, in payload bytes.
const MB_PER_CORE_SECOND_MIN: f64 = 150.0;
const MB: f64 = 1e6;
const ENTRY_BYTES: usize = 1 << 10;
/// Appends under way while a ledger is written.
const APPENDS: usize = 2048;

/// Measures P8 with log lines and, at full scale, with incompressible payload.
///
/// # Errors
/// When bookie, store or offloader fail.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    let contents: &[Content] =
        plan.scale.pick(&[Content::LogLines, Content::Incompressible], &[Content::LogLines], &[Content::LogLines]);
    let mut rows = Vec::new();
    for content in contents {
        rows.extend(measure(plan, *content)?);
    }
    Ok(rows)
}

fn measure(plan: &Plan, content: Content) -> Result<Vec<Row>> {
    let (wanted, entries) = plan.scale.pick((5, 200_000), (3, 60_000), (1, 3_000));
    let pool = Pool::new(content, ENTRY_BYTES);
    let node = Node::start(&plan.scratch.join("bookie"), bookie_config(ByteSize::mib(256)))?;
    let (mut write, mut read_back) = (Vec::new(), Vec::new());
    while plan.go_on(write.len(), wanted) {
        let number = write.len() + 1;
        plan.say(format!("offload {} of 1 KiB, {entries} entries, pair {number} of {wanted}", content.name()));
        let settled = settle(plan, &node, &pool, entries)?;
        let raw = raw_pages::write_and_read(&plan.scratch, &pool, entries, content == Content::LogLines)?;
        let payload = entries as f64 * ENTRY_BYTES as f64 / MB;
        let pair = |step: &Taken, raw: Duration, mut facts: Vec<_>| {
            let (cpu, seconds) = (step.cpu.as_secs_f64(), step.wall.as_secs_f64());
            facts.push(fact("by the clock", payload / seconds, "MB/s"));
            facts.push(fact("cores of the offloader", cpu / seconds, "cores"));
            facts.push(fact("cores of the bookie", step.bookie.as_secs_f64() / seconds, "cores"));
            Pair { value: payload / cpu.max(1e-9), limit: payload / raw.as_secs_f64().max(1e-9), facts }
        };
        let stored = fact("object bytes per payload byte", settled.object_bytes as f64 / (payload * MB), "");
        write.push(pair(&settled.upload, raw.write, vec![stored]));
        read_back.push(pair(&settled.read_back, raw.read, Vec::new()));
    }
    node.stop(true)?;
    let what = format!("1 KiB entries, {}, in payload MB for each second of a core", content.name());
    let head = Head {
        id: "P8",
        what: format!("offload, ledger to Parquet object, {what}"),
        unit: "MB/s",
        better: Better::Higher,
        limit_is: "the same payload in 128 KiB pages, zstd level 1 where that pays, written to a file of the same directory and synced by one thread",
    };
    let mut rows: Vec<Row> = Vec::new();
    rows.extend(Row::of(head, &write, plan.scale, |pair, _| {
        Some(Target { text: "≥ 150 MB/s a core".to_owned(), met: pair.value >= MB_PER_CORE_SECOND_MIN })
    }));
    let head = Head {
        id: "P8",
        what: format!("offload, read-back and comparison, {what}"),
        unit: "MB/s",
        better: Better::Higher,
        limit_is: "the raw object read from its file and decompressed by one thread, nothing compared",
    };
    rows.extend(Row::of(head, &read_back, plan.scale, |_, _| None));
    Ok(rows)
}

/// What a step took.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    wall: Duration,
    cpu: Duration,
    bookie: Duration,
}

struct Settled {
    upload: Taken,
    read_back: Taken,
    object_bytes: u64,
}

/// Notes time and processor times before and after each step.
#[derive(Default)]
struct Marks(Mutex<Vec<(Step, Instant, CpuTimes)>>);

impl Marks {
    fn note(&self, step: Step) {
        let mark = (step, now(), CpuTimes::now());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
    }

    fn taken(&self, wanted: Step) -> Taken {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_step = marks.iter().filter(|(step, ..)| *step == wanted);
        let (Some((_, begun, before)), Some((_, ended, after))) = (of_step.next(), of_step.next()) else {
            return Taken::default();
        };
        Taken { wall: *ended - *begun, cpu: after.since(before, &[OFFLOAD]), bookie: after.node_since(before) }
    }
}

#[async_trait]
impl StepObserver for Marks {
    async fn before(&self, _: LedgerId, step: Step) -> Verdict {
        self.note(step);
        Verdict::Go
    }

    async fn after(&self, _: LedgerId, step: Step) -> Verdict {
        self.note(step);
        Verdict::Go
    }
}

/// Writes a ledger to the bookie and settles it.
fn settle(plan: &Plan, node: &Node, pool: &Pool, entries: u64) -> Result<Settled> {
    let runtime = runtime(OFFLOAD)?;
    let objects = plan.scratch.join("objects");
    let url = match &plan.store {
        Some(url) => url.clone(),
        None => Url::from_file_path(&objects)
            .map_err(|()| Error::new("name a store", format!("{} is not absolute", objects.display())))?,
    };
    let settled = runtime.block_on(async {
        let tasks = TaskTree::root("bench-offload");
        let client = node.client(&tasks);
        let ledger = write_ledger(&client, pool, entries).await?;
        let settled = offload(node.metadata(), &client, &url, ledger, &tasks).await;
        tasks.stop(Duration::from_secs(20)).await.map_err(Error::at("stop the offloader"))?;
        settled
    });
    runtime.shutdown_timeout(Duration::from_secs(20));
    if plan.store.is_none() {
        std::fs::remove_dir_all(&objects).map_err(Error::at(format!("remove {}", objects.display())))?;
    }
    settled
}

async fn write_ledger(client: &Client, pool: &Pool, entries: u64) -> Result<LedgerId> {
    const PLACE: &str = "write a ledger";
    let failed = |error: client::Error| Error::new(PLACE, chain(&error));
    let options = CreateOptions {
        quorums: Quorums::new(1, 1, 1).map_err(Error::at(PLACE))?,
        digest: DigestType::Crc32c,
        password: Password::empty(),
        custom: Vec::new(),
    };
    let writer = client.create(options).await.map_err(failed)?;
    let appends = futures::stream::iter(0..entries)
        .then(|entry| writer.append(pool.payload(entry)))
        .map(|append| async move { append?.await })
        .buffered(APPENDS);
    let mut appends = std::pin::pin!(appends);
    while let Some(appended) = appends.next().await {
        appended.map_err(failed)?;
    }
    writer.close().await.map_err(failed)?;
    Ok(writer.id())
}

async fn offload(
    metadata: Arc<dyn MetadataStore>,
    client: &Client,
    url: &Url,
    ledger: LedgerId,
    tasks: &TaskTree,
) -> Result<Settled> {
    const PLACE: &str = "offload a ledger";
    let rng = Rng::from_os();
    let instance_id =
        Cluster::init_or_open(metadata.as_ref(), &rng).await.map_err(|error| Error::new(PLACE, chain(&error)))?;
    let cold =
        ColdStore::open(url, StoreOptions::default(), rng.clone()).map_err(|error| Error::new(PLACE, chain(&error)))?;
    let marks = Arc::new(Marks::default());
    let parts = OffloaderParts {
        metadata: metadata.clone(),
        cold,
        instance_id,
        entries: Arc::new(ClientSource::new(client.clone())),
        // Nothing is released here, so it is never asked.
        probe: Arc::new(WireProbe::new(metadata.clone(), Arc::new(TcpConnector), Duration::ZERO)),
        clock: Clock::system(),
        rng,
        budget: ByteBudget::new("bench-offloader", node::BUDGET_BYTES),
        tasks: tasks.clone(),
        observer: marks.clone(),
    };
    let failed = |error: offloader::Error| Error::new(PLACE, chain(&error));
    let offloader = Offloader::new(parts, OffloaderConfig::default()).map_err(failed)?;
    offloader.offload_now(ledger, false).await.map_err(failed)?;
    let record = Ledgers::new(metadata).get(ledger).await.map_err(Error::at(PLACE))?;
    let record = record.ok_or_else(|| Error::new(PLACE, "its record is gone"))?;
    let object_bytes =
        ColdRecord::from_metadata(&record.metadata).map_err(Error::at(PLACE))?.map_or(0, |cold| cold.object_bytes);
    Ok(Settled { upload: marks.taken(Step::Upload), read_back: marks.taken(Step::ReadBack), object_bytes })
}
