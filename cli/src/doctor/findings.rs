//! From numbers to findings: what keeps a role from running, what will hurt, and what is well. Values in, values out.

use std::time::Duration;

use cold::StoreSpeed;

use super::facts::{Disk, Facts, FileSystem, Rate};
use crate::output;

const MIB: f64 = (1 << 20) as f64;
/// Connections, segments and the index together stay far below this.
const OPEN_FILES_WANTED: u64 = 4_096;
const OPEN_FILES_MIN: u64 = 256;
/// Above this, writers feel the disk at every add.
const SLOW_SYNC: Duration = Duration::from_millis(50);
const SLOW_METADATA: Duration = Duration::from_millis(100);
/// Stores tell whole seconds; beyond this the clocks differ.
const CLOCK_SKEW_MS: i64 = 5_000;
const CLOCK_JUMP_MS: i64 = 100;
/// What a standalone node writes of each byte: its three copies share the disk.
const STANDALONE_COPIES: f64 = 3.0;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// A role could not run here.
    Blocks,
    /// It will hurt.
    Warns,
    /// Worth knowing.
    Notes,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Warns => "warns",
            Self::Notes => "notes",
        }
    }
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// A short name, the same whenever the same thing is found.
    pub(super) topic: &'static str,
    /// What was found, as sentences.
    pub(super) text: String,
    /// What to do about it; empty when nothing has to be done.
    pub(super) advice: String,
}

/// All findings, worst first.
pub(super) fn diagnose(facts: &Facts) -> Vec<Finding> {
    let mut found = Findings::default();
    found.disk(facts);
    found.space(facts);
    found.memory(facts);
    found.process(facts);
    found.clocks(facts);
    found.metadata(facts);
    found.cold(facts);
    found.list.sort_by_key(|finding| finding.severity);
    found.list
}

/// What the disk can take of entries, journal overhead included: the slower of synced groups and a longer stream. A short series
/// of groups may end within a cache of the device, a stream shows what is behind it, and neither is faster than the disk.
pub(super) struct Ingest {
    /// As the only bookie on this disk, bytes a second.
    pub(super) one_bookie: f64,
    /// As a standalone node, whose three copies share the disk, bytes of payload a second.
    pub(super) standalone: f64,
    /// What one writer gets that waits for each entry, adds a second.
    pub(super) one_at_a_time: f64,
}

impl Ingest {
    pub(super) fn of(disk: &Disk) -> Self {
        let one_bookie = disk.journal.per_second().min(disk.stream.per_second());
        Self {
            one_bookie,
            standalone: one_bookie / STANDALONE_COPIES,
            one_at_a_time: 1.0 / disk.sync_4k.p50.as_secs_f64().max(1e-6),
        }
    }
}

/// The sentences about what this machine can sustain, with how that was computed.
pub(super) fn verdict(facts: &Facts) -> Vec<String> {
    let Ok(disk) = &facts.disk else { return Vec::new() };
    let ingest = Ingest::of(disk);
    let mut said = vec![
        format!(
            "As the only bookie on this disk this machine can sustain {} of entries: the slower of journal groups of 1 MiB, each synced before the next ({} in {}), and a stream of writes ({} in {}). Disks with credits or caches are slower for hours than for seconds.",
            rate(ingest.one_bookie),
            output::bytes(disk.journal.bytes),
            output::duration(disk.journal.elapsed),
            output::bytes(disk.stream.bytes),
            output::duration(disk.stream.elapsed),
        ),
        format!(
            "As a standalone node {} (its three bookies share the disk: a third). Processors and network were not loaded by this; `thermocline bench append` measures them too.",
            rate(ingest.standalone),
        ),
        format!(
            "A writer that waits for each entry gets at most {:.0} entries a second for each ledger (one sync of 4 KiB: {}); writers that keep many under way share syncs and are not bound by that.",
            ingest.one_at_a_time,
            time(disk.sync_4k.p50),
        ),
    ];
    said.push(first_limit(facts, disk, &ingest));
    said
}

/// What gives way first when entries come as fast as the disk takes them.
fn first_limit(facts: &Facts, disk: &Disk, ingest: &Ingest) -> String {
    let usable = usable_bytes(facts);
    let full_in = usable as f64 / ingest.one_bookie.max(1.0);
    if let Some(Ok(speed)) = &facts.cold {
        let put = put_rate(speed).per_second();
        if put < ingest.standalone {
            return format!(
                "What hurts first: the object store takes {} from here, less than the disk. Above that rate ledgers stay on the bookies longer and longer, until their space is used up ({} at full speed).",
                rate(put),
                long_time(full_in),
            );
        }
    }
    if full_in < 3_600.0 {
        return format!(
            "What hurts first: space. At full speed {} are full in {}, so ledgers must be settled and released faster than that.",
            output::bytes(usable),
            long_time(full_in),
        );
    }
    if disk.sync_4k.p99 > disk.sync_4k.p50 * 10 {
        return format!(
            "What hurts first: the tail of the disk. One sync in a hundred takes {}, {} times the usual, and every add of its group waits for it.",
            time(disk.sync_4k.p99),
            disk.sync_4k.p99.as_micros() / disk.sync_4k.p50.as_micros().max(1),
        );
    }
    format!(
        "What hurts first: the disk's bandwidth. There is space for {} of entries at full speed.",
        long_time(full_in)
    )
}

/// What a bookie may fill.
fn usable_bytes(facts: &Facts) -> u64 {
    facts.machine.free_bytes.saturating_sub(facts.asked.disk_free_bytes_min).min(facts.asked.disk_bytes_max)
}

pub(super) fn put_rate(speed: &StoreSpeed) -> Rate {
    Rate { bytes: speed.large_bytes, elapsed: speed.put_large }
}

/// Bytes a second, for people.
pub(super) fn rate(per_second: f64) -> String {
    format!("{:.1} MiB/s", per_second / MIB)
}

/// A short time, for people.
pub(super) fn time(time: Duration) -> String {
    let micros = time.as_micros();
    if micros < 1_000 { format!("{micros} µs") } else { format!("{:.2} ms", time.as_secs_f64() * 1e3) }
}

fn long_time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} minutes", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} hours", seconds / 3_600.0),
        seconds => format!("{:.0} days", seconds / 86_400.0),
    }
}

#[derive(Default)]
struct Findings {
    list: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, severity: Severity, topic: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.list.push(Finding { severity, topic, text: text.into(), advice: advice.into() });
    }

    fn disk(&mut self, facts: &Facts) {
        use Severity::{Blocks, Notes, Warns};
        match &facts.machine.file_system {
            FileSystem::Memory => self.add(
                Warns,
                "file-system",
                "The directory is in memory: everything acknowledged is gone with a restart of the machine, and it takes the memory of everything else.",
                "Choose a directory on a disk with --dir.",
            ),
            FileSystem::Network(name) => self.add(
                Warns,
                "file-system",
                format!("The directory is on {name}: what it says is synced may not be, locks may be lost, and every add waits for the network."),
                "Choose a local disk, or a block volume of the cloud.",
            ),
            FileSystem::Overlay => self.add(
                Warns,
                "file-system",
                "The directory is in a container's overlay: it goes with the container, and writes are slower.",
                "Mount a volume and choose a directory on it.",
            ),
            FileSystem::Other(number) => self.add(
                Notes,
                "file-system",
                format!("The file system has the number {number:#x}, which is not known here; whether it keeps what it syncs is for you to know."),
                "",
            ),
            FileSystem::Local(_) => {}
        }
        let disk = match &facts.disk {
            Ok(disk) => disk,
            Err(why) => return self.add(Blocks, "disk", format!("The disk cannot be used: {why}."), ""),
        };
        if !disk.direct {
            self.add(
                Notes,
                "direct-writes",
                "The file system does not take direct writes; journal writes go through the page cache, with the same promises and some more work.",
                "",
            );
        }
        if disk.sync_4k.p99 > SLOW_SYNC {
            self.add(
                Warns,
                "sync",
                format!(
                    "One sync in a hundred takes {} or more (usually {}), and every add of its group waits for it.",
                    time(disk.sync_4k.p99),
                    time(disk.sync_4k.p50)
                ),
                "Use a disk with power-loss protection or a faster volume, and nothing else that syncs on it.",
            );
        }
        if disk.sync_4k.p50 < Duration::from_micros(30) && matches!(facts.machine.file_system, FileSystem::Local(_)) {
            self.add(
                Notes,
                "sync",
                format!(
                    "A sync takes {}: either the disk keeps what it has in a power cut, or it does not tell the truth.",
                    time(disk.sync_4k.p50)
                ),
                "Make sure that the disk, or the host of this virtual machine, really syncs.",
            );
        }
        let (journal, buffered) = (disk.journal.per_second(), disk.buffered.per_second());
        if buffered > journal * 3.0 && disk.sync_1m.p50 > Duration::from_millis(10) {
            self.add(
                Notes,
                "sync",
                format!(
                    "The disk streams {} but only {} when every MiB is synced: syncs cost more than the bytes.",
                    rate(buffered),
                    rate(journal)
                ),
                "More bytes for each sync help: more writers, or bookie.group_bytes_max above 1MiB.",
            );
        }
    }

    fn space(&mut self, facts: &Facts) {
        let asked = &facts.asked;
        let needed = asked.disk_free_bytes_min + asked.segment_bytes;
        let free = facts.machine.free_bytes;
        if free < needed {
            self.add(
                Severity::Blocks,
                "space",
                format!(
                    "{} are free; a bookie needs {} for a first segment (bookie.segment_bytes) beside what it leaves to others (bookie.disk_free_bytes_min).",
                    output::bytes(free),
                    output::bytes(needed)
                ),
                "Make room, choose another directory with --dir, or lower these settings.",
            );
        } else if free - asked.disk_free_bytes_min < asked.disk_bytes_max && !asked.takes_whole_disk {
            self.add(
                Severity::Notes,
                "space",
                format!(
                    "bookie.disk_bytes_max is {}, but only {} can be had: the bookie is read-only before it reaches its limit.",
                    output::bytes(asked.disk_bytes_max),
                    output::bytes(usable_bytes(facts))
                ),
                "Set bookie.disk_bytes_max to what the bookie may really have.",
            );
        }
    }

    fn memory(&mut self, facts: &Facts) {
        let machine = &facts.machine;
        let wanted = facts.asked.memory_max;
        let limit = machine.memory_limit_bytes.unwrap_or(machine.memory_bytes).min(machine.memory_bytes);
        // What is not counted by budgets: the program, RocksDB, buffers of sockets.
        let with_overhead = wanted + wanted / 4;
        if limit > 0 && wanted > limit {
            self.add(
                Severity::Blocks,
                "memory",
                format!(
                    "memory_max is {}, the machine (or its control group) has {}.",
                    output::bytes(wanted),
                    output::bytes(limit)
                ),
                "Lower memory_max.",
            );
        } else if let Some(available) = machine.memory_available_bytes.filter(|available| with_overhead > *available) {
            self.add(
                Severity::Warns,
                "memory",
                format!(
                    "memory_max is {}, which takes up to {} with what budgets do not count; {} are available now.",
                    output::bytes(wanted),
                    output::bytes(with_overhead),
                    output::bytes(available)
                ),
                "Lower memory_max, or stop something else.",
            );
        }
    }

    fn process(&mut self, facts: &Facts) {
        let advice = "Raise it: `ulimit -n 65536`, or LimitNOFILE=65536 in the service file.";
        match facts.machine.open_files_max {
            Some(max) if max < OPEN_FILES_MIN => self.add(
                Severity::Blocks,
                "open-files",
                format!("This process may open {max} files; index, segments and connections need more."),
                advice,
            ),
            Some(max) if max < OPEN_FILES_WANTED => self.add(
                Severity::Warns,
                "open-files",
                format!("This process may open {max} files (ulimit -n); each connection and each segment takes one."),
                advice,
            ),
            _ => {}
        }
        if facts.machine.cores < 2 {
            self.add(
                Severity::Warns,
                "cores",
                "There is one core: requests wait while an object is encoded or a row group decoded.",
                "Use two cores or more for a node with all roles.",
            );
        }
    }

    fn clocks(&mut self, facts: &Facts) {
        let jump = facts.machine.clock_jump_ms;
        if jump.abs() > CLOCK_JUMP_MS {
            self.add(
                Severity::Warns,
                "clock",
                format!("The wall clock moved by {jump} ms against the monotonic one within seconds."),
                "Let it be slewed, not stepped (chrony does that). Nothing decides an interval by it, but records and logs do not agree.",
            );
        }
        if let Some(Ok(speed)) = &facts.cold
            && speed.clock_ahead_ms.abs() > CLOCK_SKEW_MS
        {
            self.add(
                Severity::Warns,
                "clock",
                format!("The object store's clock is {} ms ahead of this machine's.", speed.clock_ahead_ms),
                "Set this machine's clock (chrony, NTP): object stores refuse requests signed minutes away from their time.",
            );
        }
    }

    fn metadata(&mut self, facts: &Facts) {
        match &facts.metadata {
            None => {}
            Some(Err(why)) => self.add(Severity::Blocks, "metadata", format!("The metadata store cannot be used: {why}."), ""),
            Some(Ok(measured)) if measured.commit.p99 > SLOW_METADATA => self.add(
                Severity::Warns,
                "metadata",
                format!(
                    "The metadata store is slow: a commit takes {}, {} one time in a hundred. Creating and closing ledgers and every step of the offloader wait for it.",
                    time(measured.commit.p50),
                    time(measured.commit.p99)
                ),
                "Give its servers disks with fast syncs, and put them nearer.",
            ),
            Some(Ok(_)) => {}
        }
    }

    fn cold(&mut self, facts: &Facts) {
        match &facts.cold {
            None => {}
            Some(Err(why)) => {
                self.add(Severity::Blocks, "object-store", format!("The object store cannot be used: {why}."), "")
            }
            Some(Ok(speed)) => {
                let put = put_rate(speed).per_second();
                if let Ok(disk) = &facts.disk
                    && put < Ingest::of(disk).standalone
                {
                    self.add(
                        Severity::Notes,
                        "object-store",
                        format!(
                            "The object store takes {} from here, four parts at a time; the disk takes {} of a standalone node's payload.",
                            rate(put),
                            rate(Ingest::of(disk).standalone)
                        ),
                        "Several offloaders on several machines share the work; or expect ledgers to stay on bookies longer in busy hours.",
                    );
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
