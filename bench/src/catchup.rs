//! `catchup`: how fast a reader that fell behind gets entries from a bookie (P4).
//!
//! The entries are in journal segments, sealed ones and the open one, and no longer in the bookie's write buffer. One connection reads them
//! in order with many requests in flight: there are no batch reads on the wire yet, so each entry is a request. The limit is the slower of two raw things: reading the same bytes from the same files with large
//! reads, and sending the bytes of the replies over one loopback connection.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bookie::BookieConfig;
use bytes::BytesMut;
use client::{OpenMode, Opened};
use common::shutdown::TaskTree;
use config::ByteSize;
use futures::StreamExt as _;
use ledger::{
    BODY_HEADER_BYTES, BookieId, DigestType, EntryHeader, EntryId, LedgerId, LedgerMetadata, Password, Quorums,
};
use metadata::Ledgers;
use proto::ReadTarget;
use proto::client::encode_read_v2;

use crate::append::{bookie_config, ledger_id};
use crate::cpu::CpuTimes;
use crate::load::{self, Replies, Window};
use crate::node::{Node, runtime};
use crate::plan::{Error, Plan, Result};
use crate::row::{Better, Fact, Head, Pair, Row, Target, fact};
use crate::timing::{join, now, thread};
use crate::{cpu, raw_net};

/// What P4 asks for.
const ENTRIES_PER_SECOND_MIN: f64 = 250_000.0;
const ENTRY_BYTES: usize = 1 << 10;
/// Requests in flight: about a megabyte of replies.
const WINDOW: u64 = 1024;
const BATCH: u64 = 128;
/// A reply before its body: length word, header, status, ledger, entry.
const REPLY_HEAD_BYTES: u64 = 28;
const RAW_READ_BYTES: usize = 1 << 20;

/// The filled bookie.
struct Filled {
    node: Node,
    ledger: LedgerId,
    entries: u64,
    /// Each file of the journal and how many bytes of it hold groups.
    files: Vec<(PathBuf, u64)>,
}

/// Measures P4: with the journal's files in the system's page cache, after they were dropped from it, and through the client library.
///
/// # Errors
/// When the bookie cannot be started, fails a request or gives wrong bytes.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    let entries = plan.scale.pick(600_000, 200_000, 4_000);
    let pairs = plan.scale.pick(5, 3, 1);
    plan.say(format!("catchup: write {entries} entries of 1 KiB"));
    let filled = fill(plan, entries)?;
    let mut rows = Vec::new();
    rows.extend(measure(plan, &filled, pairs, "page cache warm", true, Way::Wire)?);
    rows.extend(measure(plan, &filled, pairs, "page cache dropped", false, Way::Wire)?);
    rows.extend(measure(plan, &filled, pairs, "client library, page cache warm", true, Way::Client)?);
    filled.node.stop(true)?;
    Ok(rows)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Wire,
    Client,
}

fn fill(plan: &Plan, entries: u64) -> Result<Filled> {
    let segment = plan.scale.pick(ByteSize::mib(256), ByteSize::mib(64), ByteSize::mib(4));
    let config = BookieConfig { write_buffer_bytes: ByteSize::new(0), ..bookie_config(segment) };
    let node = Node::start(&plan.scratch.join("bookie"), config)?;
    let ledger = ledger_id(1)?;
    load::add_all(&node.address(), ledger, &crate::payload(ENTRY_BYTES), entries)?;
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

fn measure(plan: &Plan, filled: &Filled, wanted: usize, how: &str, cached: bool, way: Way) -> Result<Option<Row>> {
    let mut pairs = Vec::new();
    while plan.go_on(pairs.len(), wanted) {
        plan.say(format!("catchup, {how}, pair {} of {wanted}", pairs.len() + 1));
        prepare(filled, cached)?;
        let (elapsed, mut facts) = match way {
            Way::Wire => timed(|| read_wire(filled))?,
            Way::Client => timed(|| read_client(filled))?,
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
        (way == Way::Wire)
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
    for (path, bytes) in &filled.files {
        let place = || format!("prepare {}", path.display());
        let file = File::open(path).map_err(Error::at(place()))?;
        if cached {
            read_through(&file, *bytes).map_err(Error::at(place()))?;
        } else {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(Error::at(place()))?;
        }
    }
    Ok(())
}

fn read_through(file: &File, bytes: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; RAW_READ_BYTES];
    let mut at = 0;
    while at < bytes {
        let part = (bytes - at).min(RAW_READ_BYTES as u64);
        file.read_exact_at(&mut buffer[..part as usize], at)?;
        at += part;
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

fn read_wire(filled: &Filled) -> Result<CpuTimes> {
    let Filled { ledger, entries, .. } = *filled;
    let stream = load::connect(&filled.node.address())?;
    let mut replies = Replies::new(stream.try_clone().map_err(Error::at("clone a socket"))?);
    let window = Arc::new(Window::default());
    let sender = {
        let (window, mut stream) = (window.clone(), stream);
        thread("load-send", move || -> Result<()> {
            let (mut sent, mut frames) = (0, BytesMut::new());
            while sent < entries && window.wait(sent + BATCH, WINDOW) {
                frames.clear();
                let end = entries.min(sent + BATCH);
                for entry in (sent..end).filter_map(EntryId::new) {
                    encode_read_v2(ledger, ReadTarget::Entry(entry), None, false, &mut frames);
                }
                stream.write_all(&frames).map_err(Error::at("send reads to the bookie"))?;
                sent = end;
            }
            Ok(())
        })?
    };
    let receiver = thread("load-receive", move || -> Result<CpuTimes> {
        // Every entry once: the sum of their ids tells a reply that came twice in the place of another.
        let (mut answered, mut wrong, mut ids) = (0, 0_u64, 0_u64);
        while answered < entries {
            let before = answered;
            let received = replies.receive(|reply| {
                answered += 1;
                let whole = reply.body.len() == BODY_HEADER_BYTES + ENTRY_BYTES;
                let own = EntryHeader::from_body(&reply.body).is_ok_and(|header| header.entry.as_i64() == reply.entry);
                wrong += u64::from(!whole || !own);
                ids = ids.wrapping_add(reply.entry.cast_unsigned());
            });
            window.answered(answered - before);
            received.inspect_err(|_| window.end())?;
        }
        if wrong > 0 {
            return Err(Error::new("read entries", format!("{wrong} are not the entry that was asked for")));
        }
        if ids != entries * (entries - 1) / 2 {
            return Err(Error::new("read entries", "some came twice and others not at all"));
        }
        Ok(CpuTimes::now())
    })?;
    let (received, sent) = (join(receiver), join(sender));
    sent.and(received)
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
