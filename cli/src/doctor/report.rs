//! What the doctor prints: a table of numbers with how each was measured, the findings, and what follows.

use std::time::Duration;

use serde_json::json;

use super::advice::advise;
use super::facts::{Disk, Facts, FileSystem, Latency, Rate};
use super::findings::{Finding, Ingest, put_rate, rate, time, verdict};
use crate::args::Output;
use crate::output;
use crate::profile::Profile;

/// One number, and how it was measured.
struct Row {
    area: &'static str,
    what: &'static str,
    value: String,
    how: String,
}

pub(super) fn print(facts: &Facts, findings: &[Finding], form: Output) {
    let rows = rows(facts);
    match form {
        Output::Json => output::json(&as_json(facts, &rows, findings)),
        Output::Table => {
            match &facts.disk {
                Ok(disk) => println!(
                    "{}: wrote {} there and removed it\n",
                    facts.asked.dir.display(),
                    output::bytes(disk.written_bytes)
                ),
                Err(_) => println!("{}: not measured\n", facts.asked.dir.display()),
            }
            let cells: Vec<Vec<String>> = rows
                .into_iter()
                .map(|row| vec![row.area.to_owned(), row.what.to_owned(), row.value, row.how])
                .collect();
            println!("{}", output::table(&["", "what", "value", "how it was measured"], &cells, &[]));
            for sentence in verdict(facts) {
                println!("\n{sentence}");
            }
            if let Some(advice) = advise(facts) {
                println!("\n{}", advice.why);
            }
            for finding in findings {
                println!("\n{}: {}", finding.severity.name(), output::printable(&finding.text));
                if !finding.advice.is_empty() {
                    println!("  {}", finding.advice);
                }
            }
            if findings.is_empty() {
                println!("\nNothing has to be changed.");
            }
        }
    }
}

fn as_json(facts: &Facts, rows: &[Row], findings: &[Finding]) -> serde_json::Value {
    let ingest = facts.disk.as_ref().ok().map(|disk| {
        let ingest = Ingest::of(disk);
        json!({
            "bookie_bytes_per_second": ingest.one_bookie as u64,
            "standalone_payload_bytes_per_second": ingest.standalone as u64,
            "one_at_a_time_entries_per_second": ingest.one_at_a_time as u64,
        })
    });
    let rows: Vec<_> = rows
        .iter()
        .map(|row| json!({ "area": row.area, "what": row.what, "value": row.value, "how": row.how }))
        .collect();
    let findings: Vec<_> = findings
        .iter()
        .map(|finding| json!({ "severity": finding.severity.name(), "topic": finding.topic, "text": finding.text, "advice": finding.advice }))
        .collect();
    json!({
        "dir": facts.asked.dir,
        "measurements": rows,
        "disk": facts.disk.as_ref().ok().map(disk_json),
        "metadata": facts.metadata.as_ref().and_then(|measured| measured.as_ref().ok()).map(|measured| {
            json!({ "get": latency_json(&measured.get), "commit": latency_json(&measured.commit) })
        }),
        "object_store": facts.cold.as_ref().and_then(|measured| measured.as_ref().ok()).map(|speed| json!({
            "put_4k": Latency::of(speed.put_small.clone()).as_ref().map(latency_json),
            "get_4k": Latency::of(speed.get_small.clone()).as_ref().map(latency_json),
            "put_bytes_per_second": put_rate(speed).per_second() as u64,
            "get_bytes_per_second": (Rate { bytes: speed.large_bytes, elapsed: speed.get_large }).per_second() as u64,
            "clock_ahead_ms": speed.clock_ahead_ms,
        })),
        "ingest": ingest,
        "verdict": verdict(facts),
        "profile": advise(facts).map(|advice| {
            json!({ "name": advice.profile.map(Profile::name), "why": advice.why })
        }),
        "findings": findings,
    })
}

fn disk_json(disk: &Disk) -> serde_json::Value {
    json!({
        "direct": disk.direct,
        "sync_4k": latency_json(&disk.sync_4k),
        "sync_64k": latency_json(&disk.sync_64k),
        "sync_1m": latency_json(&disk.sync_1m),
        "fsync_growing_4k": latency_json(&disk.fsync_growing),
        "alone_64k_bytes_per_second": disk.alone.per_second() as u64,
        "together_64k_bytes_per_second": disk.together.per_second() as u64,
        "journal_bytes_per_second": disk.journal.per_second() as u64,
        "stream_bytes_per_second": disk.stream.per_second() as u64,
        "buffered_bytes_per_second": disk.buffered.per_second() as u64,
        "written_bytes": disk.written_bytes,
    })
}

fn latency_json(latency: &Latency) -> serde_json::Value {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    json!({
        "samples": latency.samples,
        "p50_us": micros(latency.p50),
        "p99_us": micros(latency.p99),
        "max_us": micros(latency.longest),
    })
}

fn rows(facts: &Facts) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |area, what, value: String, how: String| rows.push(Row { area, what, value, how });
    let machine = &facts.machine;
    add("machine", "cores", machine.cores.to_string(), "as the scheduler allows this process".to_owned());
    let available = machine
        .memory_available_bytes
        .map_or_else(String::new, |bytes| format!(", {} available", output::bytes(bytes)));
    add("machine", "memory", format!("{}{available}", output::bytes(machine.memory_bytes)), "/proc/meminfo".to_owned());
    if let Some(limit) = machine.memory_limit_bytes {
        add("machine", "memory limit", output::bytes(limit), "of the control group".to_owned());
    }
    add("machine", "memory_max", output::bytes(facts.asked.memory_max), "the setting of a standalone node".to_owned());
    let files = machine.open_files_max.map_or_else(|| "unlimited".to_owned(), output::count);
    add("machine", "open files", files, "the limit (ulimit -n)".to_owned());
    let jump = format!("{} ms", machine.clock_jump_ms);
    add("machine", "wall clock jump", jump, "against the monotonic clock, while this ran".to_owned());
    let (kind, of) = file_system(&machine.file_system);
    add("disk", "file system", kind, of);
    let turns = match machine.rotates {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    add("disk", "turns", turns.to_owned(), "queue/rotational in /sys; virtual disks often say yes".to_owned());
    add("disk", "free", output::bytes(machine.free_bytes), "statvfs, for this user".to_owned());
    if let Ok(disk) = &facts.disk {
        disk_rows(disk, &mut add);
    }
    if let Some(Ok(measured)) = &facts.metadata {
        let how =
            |what: &str, latency: &Latency| format!("{what} of a small key, {} one after the other", latency.samples);
        add("metadata", "read", both(&measured.get), how("reads by quorum", &measured.get));
        add("metadata", "commit", both(&measured.commit), how("commits", &measured.commit));
    }
    if let Some(Ok(speed)) = &facts.cold {
        let small = |times: &[Duration]| Latency::of(times.to_vec());
        if let (Some(put), Some(get)) = (small(&speed.put_small), small(&speed.get_small)) {
            add("object store", "PUT 4 KiB", both(&put), format!("{} one after the other", put.samples));
            add("object store", "GET 4 KiB", both(&get), format!("{} one after the other", get.samples));
        }
        let how = format!("{} in 4 objects at a time", output::bytes(speed.large_bytes));
        add("object store", "PUT", rate(put_rate(speed).per_second()), how.clone());
        let get = Rate { bytes: speed.large_bytes, elapsed: speed.get_large };
        add("object store", "GET", rate(get.per_second()), how);
        let ahead = format!("{} ms", speed.clock_ahead_ms);
        add(
            "object store",
            "clock ahead",
            ahead,
            "time of a fresh object against ours; ±1,000 ms is nothing".to_owned(),
        );
    }
    rows
}

fn disk_rows(disk: &Disk, add: &mut impl FnMut(&'static str, &'static str, String, String)) {
    let way = if disk.direct { "direct" } else { "through the page cache" };
    let synced = |size: &str, latency: &Latency| {
        format!("{} writes of {size}, {way}, fdatasync each, into reserved space", latency.samples)
    };
    add("disk", "sync 4 KiB", both(&disk.sync_4k), synced("4 KiB", &disk.sync_4k));
    add("disk", "sync 64 KiB", both(&disk.sync_64k), synced("64 KiB", &disk.sync_64k));
    add("disk", "sync 1 MiB", both(&disk.sync_1m), synced("1 MiB", &disk.sync_1m));
    let growing = format!("{} appends of 4 KiB to a growing file, fsync each", disk.fsync_growing.samples);
    add("disk", "fsync, growing", both(&disk.fsync_growing), growing);
    let wrote = |rate: &Rate, how: &str| format!("{} {how}", output::bytes(rate.bytes));
    let how = format!(
        "64 KiB synced, {} at a time, for each byte of one at a time ({})",
        Disk::AT_ONCE,
        rate(disk.alone.per_second())
    );
    add("disk", "overlap", format!("{:.1} times", disk.overlap_gain()), how);
    add("disk", "journal", rate(disk.journal.per_second()), wrote(&disk.journal, "in groups of 1 MiB, each synced"));
    let how = format!("in writes of 1 MiB, {way}, one sync at the end");
    add("disk", "stream", rate(disk.stream.per_second()), wrote(&disk.stream, &how));
    let how = "in writes of 1 MiB, through the page cache, one sync at the end";
    add("disk", "buffered", rate(disk.buffered.per_second()), wrote(&disk.buffered, how));
}

fn both(latency: &Latency) -> String {
    format!("p50 {}, p99 {}", time(latency.p50), time(latency.p99))
}

fn file_system(kind: &FileSystem) -> (String, String) {
    let (name, note) = match kind {
        FileSystem::Local(name) => ((*name).to_owned(), "a local one"),
        FileSystem::Memory => ("tmpfs".to_owned(), "in memory"),
        FileSystem::Network(name) => ((*name).to_owned(), "over the network"),
        FileSystem::Overlay => ("overlay".to_owned(), "a container's layer"),
        FileSystem::Other(number) => (format!("{number:#x}"), "not known here"),
    };
    (name, format!("statfs: {note}"))
}
