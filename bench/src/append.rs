//! `append`: how much a bookie makes durable (P2), and how soon at half of that (P1).
//!
//! The whole road is measured: frames over loopback TCP, the bookie's real journal on the real directory with a sync before each
//! acknowledgement. The limit repeats the groups that the journal wrote in that very run: same sizes, one sync each, as many in flight as the
//! journal may have, into files reserved in the same way.

use std::time::Duration;

use bookie::BookieConfig;
use bookie::format::Record;
use config::{ByteSize, Span};
use hdrhistogram::Histogram;
use ledger::{BODY_HEADER_BYTES, LedgerId};

use crate::disk_record::{GroupWrite, Written};
use crate::load::{self, FullSpeed};
use crate::node::Node;
use crate::plan::{Error, Plan, Result};
use crate::raw_disk::{self, Pace};
use crate::row::{Better, Head, Pair, Row, Target, fact, median_pair};
use crate::timing::{latencies, quantile_ms};

/// What P2 asks for.
const THROUGHPUT_SHARE_MIN: f64 = 0.90;
const PER_CORE_MIN: f64 = 300_000.0;
/// From which share of the machine's cores on a run counts as bound by the processor.
const CPU_BOUND_SHARE_MIN: f64 = 0.90;
/// What P1 asks for: a latency of so many times the raw one, where several syncs are in flight.
const LATENCY_TIMES_MAX: f64 = 1.5;
const MIB: f64 = (1 << 20) as f64;

const PER_CORE: &str = "entries per second and core of the bookie";
const BOOKIE_CORES: &str = "cores of the bookie";
const LOAD_CORES: &str = "cores of the load generator";

/// Whether P2 is met: near the machine's limit, or held up by nothing but the processor and frugal with that.
fn throughput_met(ratio: f64, per_core: f64, cores_used: f64, cores: usize) -> bool {
    let cpu_bound = cores_used >= CPU_BOUND_SHARE_MIN * cores as f64;
    ratio >= THROUGHPUT_SHARE_MIN || (cpu_bound && per_core >= PER_CORE_MIN)
}

struct Sizes {
    /// Pairs at full speed, and the time of each.
    pairs: usize,
    warm_up: Duration,
    measured: Duration,
    /// Pairs of the steady load, how often product and raw alternate in each, and the time of a turn.
    steady_pairs: usize,
    turns: usize,
    turn: Duration,
    segment: ByteSize,
}

fn sizes(plan: &Plan) -> Sizes {
    let ms = Duration::from_millis;
    let (full, quick, smoke) = ((7, 500, 2000), (3, 200, 800), (1, 50, 200));
    let (pairs, warm_up, measured) = plan.scale.pick(full, quick, smoke);
    let (steady_pairs, turns, turn) = plan.scale.pick((5, 10, 1000), (3, 4, 800), (1, 2, 200));
    let segment = plan.scale.pick(ByteSize::mib(256), ByteSize::mib(256), ByteSize::mib(16));
    Sizes { pairs, warm_up: ms(warm_up), measured: ms(measured), steady_pairs, turns, turn: ms(turn), segment }
}

/// Settings of the bookies measured: the shipped ones, without a collector that would drop ledgers no metadata knows.
pub(crate) fn bookie_config(segment: ByteSize) -> BookieConfig {
    BookieConfig { segment_bytes: segment, collect_interval: Span::secs(24 * 3600), ..BookieConfig::default() }
}

pub(crate) fn ledger_id(number: u64) -> Result<LedgerId> {
    LedgerId::new(number).ok_or_else(|| Error::new("make a ledger id", number))
}

/// Measures P2 at each entry size, then P1 at half of the 1 KiB rate.
///
/// # Errors
/// When the bookie cannot be started or fails a request, or the directory cannot be written.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    run_with(plan, plan.scale.pick(&[1 << 10, 4 << 10, 64 << 10], &[1 << 10, 64 << 10], &[1 << 10]))
}

/// The same with entries of these sizes.
pub(crate) fn run_with(plan: &Plan, entry_bytes: &[usize]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut half_rate = 0.0;
    for &bytes in entry_bytes {
        let pairs = throughput_pairs(plan, bytes, 1)?;
        if bytes == 1 << 10 {
            let median = median_pair(Better::Higher, &pairs).map_or(0.0, |pair| pair.value * MIB / bytes as f64);
            half_rate = median / 2.0;
        }
        let what = format!("durable append throughput, {} KiB entries, one bookie, one connection", bytes >> 10);
        rows.extend(throughput_row(plan, what, &pairs));
    }
    rows.extend(latency_rows(plan, 1 << 10, half_rate)?);
    Ok(rows)
}

/// Measures P2 with 1 KiB entries that go to many ledgers in turn.
pub(crate) fn to_many_ledgers(plan: &Plan, ledgers: &[u64]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &ledgers in ledgers {
        let pairs = throughput_pairs(plan, 1 << 10, ledgers)?;
        let what = format!("durable append throughput, 1 KiB entries, {ledgers} ledgers in turn, one connection");
        rows.extend(throughput_row(plan, what, &pairs));
    }
    Ok(rows)
}

fn throughput_row(plan: &Plan, what: String, pairs: &[Pair]) -> Option<Row> {
    let head = Head {
        id: "P2",
        what,
        unit: "MiB/s",
        better: Better::Higher,
        limit_is: "the journal's own groups of the same run written raw: same sizes, one sync each, as many in flight as it may have",
    };
    Row::of(head, pairs, plan.scale, |pair, ratio| {
        let cores_used = pair.fact(BOOKIE_CORES) + pair.fact(LOAD_CORES);
        Some(Target {
            text: "≥ 0.90 of the limit, or CPU-bound at ≥ 300,000 entries/s a core".to_owned(),
            met: throughput_met(ratio, pair.fact(PER_CORE), cores_used, machine_cores()),
        })
    })
}

fn throughput_pairs(plan: &Plan, entry_bytes: usize, ledgers: u64) -> Result<Vec<Pair>> {
    let sizes = sizes(plan);
    let payload = crate::payload(entry_bytes);
    let ids: Vec<LedgerId> = (1..=ledgers).map(ledger_id).collect::<Result<_>>()?;
    let to = if ledgers == 1 { String::new() } else { format!(" to {ledgers} ledgers") };
    let mut pairs = Vec::new();
    while plan.go_on(pairs.len(), sizes.pairs) {
        plan.say(format!(
            "append {} KiB{to} at full speed, pair {} of {}",
            entry_bytes >> 10,
            pairs.len() + 1,
            sizes.pairs
        ));
        let node = Node::start(&plan.scratch.join("bookie"), bookie_config(sizes.segment))?;
        let times = (sizes.warm_up, sizes.measured);
        let speed = load::add_at_full_speed(&node.address(), &ids, &payload, times)?;
        let written = node.written();
        node.stop(true)?;
        pairs.push(throughput_pair(plan, entry_bytes, &speed, &written)?);
    }
    Ok(pairs)
}

fn throughput_pair(plan: &Plan, entry_bytes: usize, speed: &FullSpeed, written: &Written) -> Result<Pair> {
    let FullSpeed { stretch, cpu: [before, after] } = speed;
    let within = |group: &GroupWrite| group.begun >= stretch.begun && group.done <= stretch.ended;
    let raw = raw_disk::repeat(&plan.scratch.join("raw"), written, within, (Pace::FullSpeed, journal_writes()))?;
    let seconds = stretch.seconds();
    let payload_bytes = stretch.entries as f64 * entry_bytes as f64;
    let groups: Vec<&GroupWrite> = written.groups.iter().filter(|group| within(group)).collect();
    let group_bytes: f64 = groups.iter().map(|group| group.bytes as f64).sum();
    let at_disk = time_at_disk(&groups);
    let (node, load) = (after.node_since(before).as_secs_f64(), after.load_since(before).as_secs_f64());
    let facts = vec![
        fact("entries per second", stretch.entries as f64 / seconds, "1/s"),
        fact(PER_CORE, stretch.entries as f64 / node.max(1e-9), "1/s"),
        fact(BOOKIE_CORES, node / seconds, "cores"),
        fact(LOAD_CORES, load / seconds, "cores"),
        fact("groups per second", groups.len() as f64 / seconds, "1/s"),
        fact("mean group", group_bytes / groups.len().max(1) as f64 / 1024.0, "KiB"),
        fact("journal bytes per payload byte", group_bytes / payload_bytes.max(1.0), ""),
        fact("share of the time a group is at the disk", at_disk.as_secs_f64() / seconds, ""),
        fact("raw write and sync p50", quantile_ms(&raw.latency, 0.5), "ms"),
    ];
    // A group at either end belongs to the stretch in part: its bytes may count for the product and not for the raw run, never the other way.
    let limit = payload_bytes.max(group_bytes * share_of_payload(entry_bytes)) / raw.elapsed.as_secs_f64() / MIB;
    Ok(Pair { value: payload_bytes / seconds / MIB, limit, facts })
}

/// How many groups the journal of a bookie with [`bookie_config`] may have at the disk.
pub(crate) fn journal_writes() -> usize {
    BookieConfig::default().journal_writes
}

/// The time in which at least one group was at the disk.
fn time_at_disk(groups: &[&GroupWrite]) -> Duration {
    let mut stays: Vec<_> = groups.iter().map(|group| (group.begun, group.done)).collect();
    stays.sort_unstable();
    let (mut total, mut until) = (Duration::ZERO, None);
    for (begun, done) in stays {
        let from = until.map_or(begun, |until| begun.max(until));
        total += done.saturating_duration_since(from);
        until = Some(until.map_or(done, |until| done.max(until)));
    }
    total
}

fn machine_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The part of a full group that is payload.
fn share_of_payload(entry_bytes: usize) -> f64 {
    entry_bytes as f64 / (Record::encoded_bytes(BODY_HEADER_BYTES + entry_bytes)) as f64
}

/// Rows of P1: three quantiles of one series of pairs.
fn latency_rows(plan: &Plan, entry_bytes: usize, per_second: f64) -> Result<Vec<Row>> {
    let wanted = sizes(plan).steady_pairs;
    let quantiles = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
    let mut series: [Vec<Pair>; 3] = Default::default();
    while plan.go_on(series[0].len(), wanted) {
        let number = series[0].len() + 1;
        plan.say(format!("append {} KiB steadily at {per_second:.0}/s, pair {number} of {wanted}", entry_bytes >> 10));
        let turns = steady_turns(plan, entry_bytes, per_second)?;
        for (pairs, (_, quantile)) in series.iter_mut().zip(quantiles) {
            pairs.push(turns.pair(quantile));
        }
    }
    let mut rows = Vec::new();
    for (pairs, (name, _)) in series.iter().zip(quantiles) {
        let head = Head {
            id: "P1",
            what: format!(
                "durable append latency {name}, {} KiB entries, steady at half of maximum",
                entry_bytes >> 10
            ),
            unit: "ms",
            better: Better::Lower,
            limit_is: "write and sync of the journal's own groups of the same run, raw and at the same times",
        };
        rows.extend(Row::of(head, pairs, plan.scale, |pair, _| {
            (name == "p99")
                .then(|| Target {
                    text: "≤ 1.5 × raw".to_owned(), met: pair.value <= LATENCY_TIMES_MAX * pair.limit
                })
        }));
    }
    Ok(rows)
}

/// Turns of steady load, each followed by its raw repetition, taken together.
struct Turns {
    per_second: f64,
    product: Histogram<u64>,
    raw: Histogram<u64>,
    lateness: Histogram<u64>,
    entries: u64,
    groups: usize,
    seconds: f64,
}

fn steady_turns(plan: &Plan, entry_bytes: usize, per_second: f64) -> Result<Turns> {
    let sizes = sizes(plan);
    let payload = crate::payload(entry_bytes);
    let (product, raw, lateness) = (latencies()?, latencies()?, latencies()?);
    let mut turns = Turns { per_second, product, raw, lateness, entries: 0, groups: 0, seconds: 0.0 };
    let node = Node::start(&plan.scratch.join("bookie"), bookie_config(sizes.segment))?;
    for turn in 0..sizes.turns {
        let times = (sizes.warm_up.min(sizes.turn / 4), sizes.turn);
        let ledger = ledger_id(turn as u64 + 1)?;
        let steady = load::add_steadily(&node.address(), ledger, &payload, per_second, times)?;
        let stretch = steady.stretch;
        let within = |group: &GroupWrite| group.begun >= stretch.begun && group.done <= stretch.ended;
        let written = node.written();
        let raw = raw_disk::repeat(&plan.scratch.join("raw"), &written, within, (Pace::AsRecorded, journal_writes()))?;
        let place = "add up latencies";
        turns.product.add(&steady.latency).map_err(Error::at(place))?;
        turns.lateness.add(&steady.lateness).map_err(Error::at(place))?;
        turns.raw.add(&raw.latency).map_err(Error::at(place))?;
        turns.entries += stretch.entries;
        turns.groups += written.groups.iter().filter(|group| within(group)).count();
        turns.seconds += stretch.seconds();
    }
    node.stop(true)?;
    Ok(turns)
}

impl Turns {
    fn pair(&self, quantile: f64) -> Pair {
        let (value, limit) = (quantile_ms(&self.product, quantile), quantile_ms(&self.raw, quantile));
        let facts = vec![
            fact("times the raw latency", value / limit, "×"),
            fact("entries per second", self.per_second, "1/s"),
            fact("share of them acknowledged in the time", self.entries as f64 / self.seconds / self.per_second, ""),
            fact("groups per second", self.groups as f64 / self.seconds, "1/s"),
            fact("lateness of the load generator itself p50", quantile_ms(&self.lateness, 0.5), "ms"),
            fact("lateness of the load generator itself p99", quantile_ms(&self.lateness, 0.99), "ms"),
        ];
        Pair { value, limit, facts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_bookie_far_from_the_limit_has_not_met_p2() {
        assert!(throughput_met(0.95, 0.0, 0.5, 2), "near the limit");
        assert!(throughput_met(0.30, 310_000.0, 1.9, 2), "the processor is all used, and well");
        assert!(!throughput_met(0.30, 321_000.0, 0.6, 2), "it waits for something else");
        assert!(!throughput_met(0.30, 200_000.0, 2.0, 2), "it takes too much of the processor");
    }
}
