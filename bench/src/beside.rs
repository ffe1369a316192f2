//! `bookie`, the part about late consumers: how long appends take while readers that fell behind read at full speed (P7).
//!
//! Two readers get ledgers of their own, in batches, from the journal's files, which are dropped from the page cache before every pass, so
//! that they come from the disk that the appends are written to. Turns with and without readers alternate, at the same steady rate of
//! appends, half of what the bookie takes at full speed.
//!
//! The limit is that of P1: the journal's own groups of the turns with readers, written and synced raw at the same times with nobody reading.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use bookie::BookieConfig;
use config::ByteSize;
use hdrhistogram::Histogram;
use ledger::LedgerId;

use crate::append::{bookie_config, journal_writes, ledger_id};
use crate::disk_record::GroupWrite;
use crate::load;
use crate::node::Node;
use crate::plan::{Error, Plan, Result};
use crate::raw_disk::{self, Pace};
use crate::raw_files::drop_from_page_cache;
use crate::reader::{self, Ask, Watch};
use crate::row::{Better, Head, Pair, Row, Target, fact};
use crate::timing::{join, latencies, now, quantile_ms, thread};

/// What P7 asks for.
const LATENCY_TIMES_MAX: f64 = 1.3;
const ENTRY_BYTES: usize = 1 << 10;
const READERS: u64 = 2;

const WITHOUT: &str = "p99 without readers";
const READ_PER_SECOND: &str = "entries read per second";
const ADDED_PER_SECOND: &str = "entries appended per second";

struct Sizes {
    pairs: usize,
    /// Turns of each kind in a pair.
    turns: usize,
    turn: Duration,
    /// Entries of each reader's ledger.
    behind: u64,
    full_speed: (Duration, Duration),
    segment: ByteSize,
}

fn sizes(plan: &Plan) -> Sizes {
    let ms = Duration::from_millis;
    let (pairs, turns, turn) = plan.scale.pick((5, 5, 2000), (2, 2, 1000), (1, 1, 300));
    let behind = plan.scale.pick(2_000_000, 250_000, 4_000);
    let (warm_up, measured) = plan.scale.pick((500, 2000), (200, 800), (50, 200));
    let segment = plan.scale.pick(ByteSize::mib(256), ByteSize::mib(64), ByteSize::mib(4));
    Sizes { pairs, turns, turn: ms(turn), behind, full_speed: (ms(warm_up), ms(measured)), segment }
}

/// Measures P7.
///
/// # Errors
/// When the bookie cannot be started, fails a request or gives wrong bytes.
pub(crate) fn rows(plan: &Plan) -> Result<Vec<Row>> {
    let sizes = sizes(plan);
    let config = BookieConfig { write_buffer_bytes: ByteSize::new(0), ..bookie_config(sizes.segment) };
    plan.say(format!("late readers: write {} entries of 1 KiB", READERS * sizes.behind));
    let node = Node::start(&plan.scratch.join("bookie"), config)?;
    let payload = crate::payload(ENTRY_BYTES);
    for reader in 0..READERS {
        load::add_all(&node.address(), &[ledger_id(reader + 1)?], &payload, sizes.behind)?;
    }
    let mut next_ledger = READERS + 1;
    let mut ledger = || {
        next_ledger += 1;
        ledger_id(next_ledger)
    };
    let speed = load::add_at_full_speed(&node.address(), &[ledger()?], &payload, sizes.full_speed)?;
    let per_second = speed.stretch.entries as f64 / speed.stretch.seconds() / 2.0;
    let mut pairs = Vec::new();
    while plan.go_on(pairs.len(), sizes.pairs) {
        plan.say(format!("late readers, {per_second:.0} appends/s, pair {} of {}", pairs.len() + 1, sizes.pairs));
        let mut turns = Turns::new()?;
        for _ in 0..sizes.turns {
            turns.without(&node, ledger()?, &payload, per_second, sizes.turn)?;
            turns.with(plan, &node, ledger()?, &payload, per_second, &sizes)?;
        }
        pairs.push(turns.pair(per_second));
    }
    node.stop(true)?;
    let head = Head {
        id: "P7",
        what: format!("durable append latency p99, 1 KiB entries, beside {READERS} late readers at full speed"),
        unit: "ms",
        better: Better::Lower,
        limit_is: "write and sync of the journal's own groups of the same run, raw and at the same times, with nobody reading",
    };
    let row = Row::of(head, &pairs, plan.scale, |pair, _| {
        Some(Target {
            text: "≤ 1.3 × without readers, which read as fast as appends arrive or faster".to_owned(),
            met: is_met(pair.value, pair.fact(WITHOUT), pair.fact(READ_PER_SECOND), pair.fact(ADDED_PER_SECOND)),
        })
    });
    Ok(row.into_iter().collect())
}

fn is_met(with_ms: f64, without_ms: f64, read_per_second: f64, added_per_second: f64) -> bool {
    with_ms <= LATENCY_TIMES_MAX * without_ms && read_per_second >= added_per_second
}

/// Turns with and without readers, each kind taken together.
struct Turns {
    with: Histogram<u64>,
    without: Histogram<u64>,
    raw: Histogram<u64>,
    read: u64,
    reading: Duration,
}

impl Turns {
    fn new() -> Result<Self> {
        let (with, without, raw) = (latencies()?, latencies()?, latencies()?);
        Ok(Self { with, without, raw, read: 0, reading: Duration::ZERO })
    }

    fn without(&mut self, node: &Node, to: LedgerId, payload: &[u8], per_second: f64, turn: Duration) -> Result<()> {
        let steady = load::add_steadily(&node.address(), to, payload, per_second, (turn / 4, turn))?;
        self.without.add(&steady.latency).map_err(Error::at("add up latencies"))
    }

    fn with(
        &mut self,
        plan: &Plan,
        node: &Node,
        to: LedgerId,
        payload: &[u8],
        per_second: f64,
        sizes: &Sizes,
    ) -> Result<()> {
        let readers = Readers::start(node, sizes.behind)?;
        let (came, begun) = (readers.came(), now());
        let steady = load::add_steadily(&node.address(), to, payload, per_second, (sizes.turn / 4, sizes.turn));
        self.read += readers.came() - came;
        self.reading += begun.elapsed();
        readers.stop()?;
        let steady = steady?;
        let stretch = steady.stretch;
        let within = |group: &GroupWrite| group.begun >= stretch.begun && group.done <= stretch.ended;
        let place = plan.scratch.join("raw");
        let raw = raw_disk::repeat(&place, &node.written(), within, (Pace::AsRecorded, journal_writes()))?;
        let added = self.with.add(&steady.latency).and_then(|()| self.raw.add(&raw.latency));
        added.map_err(Error::at("add up latencies"))
    }

    fn pair(&self, per_second: f64) -> Pair {
        let p99 = |histogram| quantile_ms(histogram, 0.99);
        let (value, limit, without) = (p99(&self.with), p99(&self.raw), p99(&self.without));
        let facts = vec![
            fact(WITHOUT, without, "ms"),
            fact("times that without readers", value / without, "×"),
            fact(READ_PER_SECOND, self.read as f64 / self.reading.as_secs_f64(), "1/s"),
            fact(ADDED_PER_SECOND, per_second, "1/s"),
        ];
        Pair { value, limit, facts }
    }
}

/// Readers that go through their ledgers again and again.
struct Readers {
    watch: Arc<Watch>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Readers {
    fn start(node: &Node, behind: u64) -> Result<Self> {
        let mut readers = Self { watch: Arc::default(), threads: Vec::new() };
        for reader in 0..READERS {
            let (address, files, watch) = (node.address(), node.journal_files()?, readers.watch.clone());
            let range = reader::Range { ledger: ledger_id(reader + 1)?, entries: behind, payload_bytes: ENTRY_BYTES };
            readers.threads.push(thread("load-reader", move || again_and_again(&address, range, &files, &watch))?);
        }
        Ok(readers)
    }

    fn came(&self) -> u64 {
        self.watch.came.load(Ordering::Relaxed)
    }

    fn stop(self) -> Result<()> {
        self.watch.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().try_for_each(join)
    }
}

fn again_and_again(address: &str, range: reader::Range, files: &[PathBuf], watch: &Arc<Watch>) -> Result<()> {
    while !watch.stop.load(Ordering::Relaxed) {
        drop_from_page_cache(files.iter().map(PathBuf::as_path))?;
        reader::read(address, range, Ask::InBatches, watch)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_that_lag_behind_have_not_met_p7() {
        assert!(is_met(1.3, 1.0, 2.0, 2.0));
        assert!(!is_met(1.31, 1.0, 2.0, 2.0), "appends wait too long");
        assert!(!is_met(1.0, 1.0, 1.9, 2.0), "they never catch up");
    }
}
