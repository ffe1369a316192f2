//! `bookie`, its last part: how long a bookie takes to serve again after it was killed (P11).
//!
//! A bookie is filled with a journal of many ledgers and ended without a farewell: its tasks are dropped where they are, and what it would
//! write at an orderly stop is not written. Then one is started on the same directory, its files dropped from the page cache, and the time
//! until it is registered and serves counts. The registration of the one that was killed has ended by then: that wait is metadata's.
//!
//! The limit is reading the part of the journal that has no index yet: whatever a bookie does, it must look at that.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bookie::BookieConfig;
use config::{ByteSize, Span};
use ledger::LedgerId;

use crate::append::{bookie_config, ledger_id};
use crate::load;
use crate::node::{Node, Remains};
use crate::plan::{Error, Plan, Result};
use crate::raw_files::{drop_from_page_cache, read_through};
use crate::row::{Better, Head, Pair, Row, Target, fact};
use crate::timing::{join, now, thread};

const ENTRY_BYTES: usize = 1 << 10;
/// Ledgers that are written to at the same time.
const TOGETHER: u64 = 1000;

const WHOLE_JOURNAL: &str = "raw read of the whole journal";

struct Sizes {
    restarts: usize,
    ledgers: u64,
    entries_each: u64,
    segment: ByteSize,
}

fn sizes(plan: &Plan) -> Sizes {
    let (restarts, ledgers, entries_each) = plan.scale.pick((3, 1_000_000, 10), (2, 50_000, 10), (1, 500, 8));
    let segment = plan.scale.pick(ByteSize::mib(256), ByteSize::mib(64), ByteSize::mib(2));
    Sizes { restarts, ledgers, entries_each, segment }
}

/// The journal's files: how many bytes of each hold groups, and of which a restart must read the groups.
struct Journal {
    files: Vec<(PathBuf, u64)>,
    unsealed: Vec<(PathBuf, u64)>,
}

/// Measures P11.
///
/// # Errors
/// When the bookie cannot be started or fails a request, or the directory cannot be read.
pub(crate) fn rows(plan: &Plan) -> Result<Vec<Row>> {
    let sizes = sizes(plan);
    // The wait for the end of a killed bookie's registration is not measured, so it may be short.
    let config = BookieConfig { registration_ttl: Span::secs(1), ..bookie_config(sizes.segment) };
    let dir = plan.scratch.join("bookie");
    let (ledgers, entries) = (sizes.ledgers, sizes.ledgers * sizes.entries_each);
    plan.say(format!("restart: write {entries} entries of 1 KiB to {ledgers} ledgers"));
    let node = Node::start(&dir, config.clone())?;
    fill(&node, 0..ledgers, sizes.entries_each)?;
    let (mut pairs, mut node) = (Vec::new(), Some(node));
    while let Some(killed) = node.take() {
        if !plan.go_on(pairs.len(), sizes.restarts) {
            killed.stop(true)?;
            break;
        }
        plan.say(format!("restart {} of {}", pairs.len() + 1, sizes.restarts));
        // Each time the last segments are not sealed yet.
        let tail = ledgers + pairs.len() as u64 * TOGETHER;
        let each = (sizes.segment.bytes() * 3 / 2 / ENTRY_BYTES as u64).div_ceil(TOGETHER);
        fill(&killed, tail..tail + TOGETHER, each)?;
        let journal = journal(&killed, sizes.segment)?;
        let remains = killed.kill()?;
        let (pair, started) = restart(&config, remains, &journal, &dir, ledgers)?;
        pairs.push(pair);
        node = Some(started);
    }
    let head = Head {
        id: "P11",
        what: format!("restart after a kill, {ledgers} ledgers known, {:.1} GiB of journal", gib(entries)),
        unit: "s",
        better: Better::Lower,
        limit_is: "reading the part of the journal that has no index yet, in 1 MiB reads",
    };
    let row = Row::of(head, &pairs, plan.scale, |pair, _| {
        Some(Target {
            text: "no longer than the disk takes to give the whole journal".to_owned(),
            met: pair.value <= pair.fact(WHOLE_JOURNAL),
        })
    });
    Ok(row.into_iter().collect())
}

fn gib(entries: u64) -> f64 {
    (entries * ENTRY_BYTES as u64) as f64 / f64::from(1 << 30)
}

fn fill(node: &Node, ids: Range<u64>, entries_each: u64) -> Result<()> {
    let payload = crate::payload(ENTRY_BYTES);
    for first in ids.clone().step_by(TOGETHER as usize) {
        let ids = first..ids.end.min(first + TOGETHER);
        let ledgers: Vec<LedgerId> = ids.map(ledger_id).collect::<Result<_>>()?;
        load::add_all(&node.address(), &ledgers, &payload, ledgers.len() as u64 * entries_each)?;
    }
    Ok(())
}

/// What the journal consists of. Names rise as files are made, so the last ones are those that this bookie has made; what was there
/// when it started has an index since. A file that is done is cut to its length.
fn journal(node: &Node, segment: ByteSize) -> Result<Journal> {
    let (paths, written) = (node.journal_files()?, node.written());
    let before = paths.len().saturating_sub(written.files.len());
    let mut journal = Journal { files: Vec::new(), unsealed: Vec::new() };
    for (place, path) in paths.into_iter().enumerate() {
        let facts = path.metadata().map_err(Error::at(format!("look at {}", path.display())))?;
        if facts.len() < segment.bytes() {
            journal.files.push((path, facts.len()));
        } else if let Some(number) = place.checked_sub(before) {
            let groups = written.groups.iter().filter(|group| group.file == number);
            // One that was reserved in advance has none.
            if let Some(used) = groups.map(|group| group.offset + group.bytes as u64).max() {
                journal.files.push((path.clone(), used));
                journal.unsealed.push((path, used));
            }
        }
    }
    Ok(journal)
}

fn restart(
    config: &BookieConfig,
    remains: Remains,
    journal: &Journal,
    dir: &Path,
    ledgers: u64,
) -> Result<(Pair, Node)> {
    let cold = || drop_all(journal, dir);
    cold()?;
    let begun = now();
    let node = Node::start_again(remains, config.clone())?;
    let elapsed = begun.elapsed();
    let known = node.ledgers();
    if known < ledgers {
        return Err(Error::new("start the bookie again", format!("it knows {known} of {ledgers} ledgers")));
    }
    cold()?;
    let whole = read_raw(&journal.files)?;
    cold()?;
    let unsealed = read_raw(&journal.unsealed)?;
    let bytes = |files: &[(PathBuf, u64)]| files.iter().map(|(_, bytes)| *bytes).sum::<u64>() as f64;
    let facts = vec![
        fact("journal", bytes(&journal.files) / f64::from(1 << 20), "MiB"),
        fact("of it without an index", bytes(&journal.unsealed) / f64::from(1 << 20), "MiB"),
        fact("index", folder_bytes(&dir.join("index"))? / f64::from(1 << 20), "MiB"),
        fact(WHOLE_JOURNAL, whole.as_secs_f64(), "s"),
    ];
    Ok((Pair { value: elapsed.as_secs_f64(), limit: unsealed.as_secs_f64(), facts }, node))
}

fn drop_all(journal: &Journal, dir: &Path) -> Result<()> {
    drop_from_page_cache(journal.files.iter().map(|(path, _)| path.as_path()))?;
    let index = files_of(&dir.join("index"))?;
    drop_from_page_cache(index.iter().map(PathBuf::as_path))
}

fn files_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(dir).map_err(Error::at(format!("list {}", dir.display())))?;
    Ok(listed.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect())
}

fn folder_bytes(dir: &Path) -> Result<f64> {
    let mut bytes = 0;
    for file in files_of(dir)? {
        // A file that has just been compacted away is no error.
        bytes += file.metadata().map_or(0, |facts| facts.len());
    }
    Ok(bytes as f64)
}

fn read_raw(files: &[(PathBuf, u64)]) -> Result<Duration> {
    let mut opened = Vec::new();
    for (path, bytes) in files {
        opened.push((File::open(path).map_err(Error::at(format!("open {}", path.display())))?, *bytes));
    }
    let reader = thread("load-raw", move || {
        let begun = now();
        opened.iter().try_for_each(|(file, bytes)| read_through(file, *bytes)).map(|()| begun.elapsed())
    })?;
    join(reader).map_err(Error::at("read the journal's files raw"))
}
