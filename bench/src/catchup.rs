//! `catchup`: how fast a reader that fell behind gets entries from a bookie (P4).
//!
//! The entries are in journal segments, sealed ones and the open one, and no longer in the bookie's write buffer. One connection reads them
//! in order with many entries in flight, with a request for each or, as BookKeeper's clients do from 4.17 on, in batches. The limit is the slower of two
//! raw things: reading the same bytes from the same files with large reads, and sending the bytes of the replies over one loopback connection.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bookie::BookieConfig;
use client::{OpenMode, Opened};
use common::shutdown::TaskTree;
use config::ByteSize;
use futures::StreamExt as _;
use ledger::{BODY_HEADER_BYTES, BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Password, Quorums};
use metadata::Ledgers;

use crate::append::{bookie_config, ledger_id};
use crate::cpu::CpuTimes;
use crate::load;
use crate::node::{Node, runtime};
use crate::plan::{Error, Plan, Result};
use crate::raw_files::{drop_from_page_cache, read_through};
use crate::reader::{self, Ask};
use crate::row::{Better, Fact, Head, Pair, Row, Target, fact};
use crate::timing::{join, now, thread};
use crate::{cpu, raw_net};

/// What P4 asks for.
const ENTRIES_PER_SECOND_MIN: f64 = 250_000.0;
const ENTRY_BYTES: usize = 1 << 10;
/// A reply before its body: length word, header, status, ledger, entry.
const REPLY_HEAD_BYTES: u64 = 28;

/// The filled bookie.
struct Filled {
    node: Node,
    ledger: LedgerId,
    entries: u64,
    /// Each file of the journal and how many bytes of it hold groups.
    files: Vec<(PathBuf, u64)>,
}

/// Measures P4: entry by entry, in batches, and through the client library; with the journal's files in the system's page cache, and after
/// they were dropped from it.
///
/// # Errors
/// When the bookie cannot be started, fails a request or gives wrong bytes.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    run_with(plan, &WAYS)
}

/// A way to read: how it is called, whether the page cache is warm, and who asks.
pub(crate) type Way = (&'static str, bool, Asker);

/// All ways.
pub(crate) const WAYS: [Way; 5] = [
    ("page cache warm", true, Asker::Wire(Ask::Singly)),
    ("page cache dropped", false, Asker::Wire(Ask::Singly)),
    ("batch reads, page cache warm", true, Asker::Wire(Ask::InBatches)),
    ("batch reads, page cache dropped", false, Asker::Wire(Ask::InBatches)),
    ("client library, page cache warm", true, Asker::Client),
];

/// The same for some ways.
pub(crate) fn run_with(plan: &Plan, ways: &[Way]) -> Result<Vec<Row>> {
    let entries = plan.scale.pick(600_000, 200_000, 4_000);
    let pairs = plan.scale.pick(5, 3, 1);
    plan.say(format!("catchup: write {entries} entries of 1 KiB"));
    let filled = fill(plan, entries)?;
    let mut rows = Vec::new();
    for &way in ways {
        rows.extend(measure(plan, &filled, pairs, way)?);
    }
    filled.node.stop(true)?;
    Ok(rows)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Wire(Ask),
    Client,
}

fn fill(plan: &Plan, entries: u64) -> Result<Filled> {
    let segment = plan.scale.pick(ByteSize::mib(256), ByteSize::mib(64), ByteSize::mib(4));
    let config = BookieConfig { write_buffer_bytes: ByteSize::new(0), ..bookie_config(segment) };
    let node = Node::start(&plan.scratch.join("bookie"), config)?;
    let ledger = ledger_id(1)?;
    load::add_all(&node.address(), &[ledger], &crate::payload(ENTRY_BYTES), entries)?;
    let written = node.written();
    let paths = node.journal_files()?;
    let used = |number: usize| {
        let groups = written.groups.iter().filter(|group| group.file == number);
        groups.map(|group| group.offset + group.bytes as u64).max()
    };
    // Files are numbered as they were created, and their names rise with that; one that was reserved in advance has no group.
    let files = paths.into_iter().enumerate().filter_map(|(number, path)| Some((path, used(number)?))).collect();
    Ok(Filled { node, ledger, entries, files })
}

fn measure(plan: &Plan, filled: &Filled, wanted: usize, (how, cached, asker): Way) -> Result<Option<Row>> {
    let mut pairs = Vec::new();
    while plan.go_on(pairs.len(), wanted) {
        plan.say(format!("catchup, {how}, pair {} of {wanted}", pairs.len() + 1));
        prepare(filled, cached)?;
        let (elapsed, mut facts) = match asker {
            Asker::Wire(ask) => timed(|| read_wire(filled, ask))?,
            Asker::Client => timed(|| read_client(filled))?,
        };
        prepare(filled, cached)?;
        let from_files = read_raw(filled)?;
        let reply_bytes = REPLY_HEAD_BYTES + (BODY_HEADER_BYTES + ENTRY_BYTES) as u64;
        let over_loopback = raw_net::send_over_loopback(filled.entries * reply_bytes)?;
        let per_second = |time: Duration| filled.entries as f64 / time.as_secs_f64();
        facts.push(fact("raw reads of the files", per_second(from_files), "entries/s"));
        facts.push(fact("raw loopback", per_second(over_loopback), "entries/s"));
        let limit = per_second(from_files.max(over_loopback));
        pairs.push(Pair { value: per_second(elapsed), limit, facts });
    }
    let head = Head {
        id: "P4",
        what: format!("hot sequential read, 1 KiB entries, one connection, {how}"),
        unit: "entries/s",
        better: Better::Higher,
        limit_is: "the slower of: the same bytes read from the same files in 1 MiB reads; the replies' bytes over one loopback connection",
    };
    Ok(Row::of(head, &pairs, plan.scale, |pair, _| {
        (asker != Asker::Client)
            .then(|| Target { text: "≥ 250,000 entries/s".to_owned(), met: pair.value >= ENTRIES_PER_SECOND_MIN })
    }))
}

/// Runs a product pass, which reads the processor times at its end, and tells who used the processor.
fn timed(pass: impl FnOnce() -> Result<CpuTimes>) -> Result<(Duration, Vec<Fact>)> {
    let (before, begun) = (CpuTimes::now(), now());
    let after = pass()?;
    let elapsed = begun.elapsed();
    let seconds = elapsed.as_secs_f64();
    let facts = vec![
        fact("cores of the bookie", after.node_since(&before).as_secs_f64() / seconds, "cores"),
        fact("cores of the reader", after.load_since(&before).as_secs_f64() / seconds, "cores"),
    ];
    Ok((elapsed, facts))
}

/// Puts all files into the page cache, or drops them from it.
fn prepare(filled: &Filled, cached: bool) -> Result<()> {
    if !cached {
        return drop_from_page_cache(filled.files.iter().map(|(path, _)| path.as_path()));
    }
    for (path, bytes) in &filled.files {
        let place = || format!("prepare {}", path.display());
        let file = File::open(path).map_err(Error::at(place()))?;
        read_through(&file, *bytes).map_err(Error::at(place()))?;
    }
    Ok(())
}

fn read_raw(filled: &Filled) -> Result<Duration> {
    let mut opened = Vec::new();
    for (path, bytes) in &filled.files {
        opened.push((File::open(path).map_err(Error::at(format!("open {}", path.display())))?, *bytes));
    }
    let reader = thread("load-raw", move || {
        let begun = now();
        opened.iter().try_for_each(|(file, bytes)| read_through(file, *bytes)).map(|()| begun.elapsed())
    })?;
    join(reader).map_err(Error::at("read the journal's files raw"))
}

fn read_wire(filled: &Filled, ask: Ask) -> Result<CpuTimes> {
    let range = reader::Range { ledger: filled.ledger, entries: filled.entries, payload_bytes: ENTRY_BYTES };
    reader::read(&filled.node.address(), range, ask, &Arc::default())
}

/// Reads the ledger as a program does, with the client library, which checks each header (the ledger has no digest).
fn read_client(filled: &Filled) -> Result<CpuTimes> {
    const PLACE: &str = "read through the client";
    let Filled { ledger, entries, .. } = *filled;
    let last = entries.checked_sub(1).and_then(EntryId::new).ok_or_else(|| Error::new(PLACE, "no entries"))?;
    let metadata = filled.node.metadata();
    let runtime = runtime(cpu::LOAD)?;
    let outcome = runtime.block_on(async {
        let describe = || -> std::result::Result<LedgerMetadata, ledger::Error> {
            let members = vec![BookieId::for_real_bookie("bench")?];
            let open = LedgerMetadata::open(Quorums::new(1, 1, 1)?, members, DigestType::Dummy, Password::empty())?;
            open.closed(Some(last), entries * ENTRY_BYTES as u64)
        };
        let described = describe().map_err(Error::at(PLACE))?;
        let ledgers = Ledgers::new(metadata.clone());
        if ledgers.get(ledger).await.map_err(Error::at(PLACE))?.is_none() {
            ledgers.create(ledger, &described).await.map_err(Error::at(PLACE))?;
        }
        let tasks = TaskTree::root("bench-client");
        let client = filled.node.client(&tasks);
        let Opened::Hot(reader) = client.open(ledger, OpenMode::ReadOnly, None).await.map_err(Error::at(PLACE))? else {
            return Err(Error::new(PLACE, "the ledger is not on bookies"));
        };
        let end = EntryId::new(entries).ok_or_else(|| Error::new(PLACE, "too many entries"))?;
        let read = tokio::spawn(async move {
            let mut stream = std::pin::pin!(reader.read(EntryId::ZERO..end));
            let mut count = 0_u64;
            while let Some(entry) = stream.next().await {
                entry.map_err(Error::at(PLACE))?;
                count += 1;
            }
            Ok(count)
        });
        let count = read.await.map_err(Error::at(PLACE))??;
        tasks.stop(Duration::from_secs(10)).await.map_err(Error::at(PLACE))?;
        if count == entries {
            Ok(CpuTimes::now())
        } else {
            Err(Error::new(PLACE, format!("{count} of {entries} entries came")))
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    outcome
}
