use std::path::PathBuf;

use super::super::facts::{Asked, Latency, Machine, Metadata};
use super::*;

const GIB: u64 = 1 << 30;

/// What is expected to be found, and what is changed for it.
type Change = (&'static str, fn(&mut Facts));

pub(in crate::doctor) fn latency(p50_us: u64, p99_us: u64) -> Latency {
    let us = Duration::from_micros;
    Latency { samples: 100, p50: us(p50_us), p99: us(p99_us), longest: us(p99_us * 2) }
}

/// A machine with which nothing is wrong: 100 MiB/s of synced groups.
pub(in crate::doctor) fn good() -> Facts {
    let rate = |mib: u64| Rate { bytes: mib << 20, elapsed: Duration::from_secs(1) };
    Facts {
        asked: Asked {
            dir: PathBuf::from("/data"),
            memory_max: GIB / 2,
            disk_bytes_max: 500 * GIB,
            takes_whole_disk: false,
            disk_free_bytes_min: GIB,
            segment_bytes: GIB / 4,
        },
        machine: Machine {
            cores: 8,
            memory_bytes: 16 * GIB,
            memory_available_bytes: Some(8 * GIB),
            memory_limit_bytes: None,
            open_files_max: Some(65_536),
            file_system: FileSystem::Local("xfs"),
            rotates: Some(false),
            free_bytes: 1_000 * GIB,
            clock_jump_ms: 0,
        },
        disk: Ok(Disk {
            direct: true,
            sync_4k: latency(500, 2_000),
            sync_64k: latency(700, 3_000),
            sync_1m: latency(5_000, 12_000),
            fsync_growing: latency(1_000, 4_000),
            alone: rate(80),
            together: rate(200),
            journal: rate(100),
            stream: rate(180),
            buffered: rate(200),
            written_bytes: 500 << 20,
        }),
        metadata: Some(Ok(Metadata { get: latency(300, 900), commit: latency(1_500, 6_000) })),
        cold: Some(Ok(StoreSpeed {
            put_small: vec![Duration::from_millis(20)],
            get_small: vec![Duration::from_millis(10)],
            large_bytes: 32 << 20,
            put_large: Duration::from_millis(400),
            get_large: Duration::from_millis(300),
            clock_ahead_ms: -400,
        })),
    }
}

fn topics(facts: &Facts, severity: Severity) -> Vec<&'static str> {
    diagnose(facts).iter().filter(|finding| finding.severity == severity).map(|finding| finding.topic).collect()
}

#[test]
fn a_good_machine_has_no_findings_and_a_number() {
    assert_eq!(diagnose(&good()), []);
    let said = verdict(&good()).join("\n");
    assert!(said.contains("can sustain 100.0 MiB/s") && said.contains("As a standalone node 33.3 MiB/s"), "{said}");
    assert!(said.contains("at most 2000 entries a second"), "{said}");
    assert!(said.contains("What hurts first: the disk's bandwidth. There is space for 85 minutes"), "{said}");
}

#[test]
fn what_keeps_a_role_from_running_blocks() {
    let changes: [Change; 6] = [
        ("disk", |facts| facts.disk = Err("permission denied".to_owned())),
        ("space", |facts| facts.machine.free_bytes = GIB),
        ("memory", |facts| facts.machine.memory_limit_bytes = Some(GIB / 4)),
        ("open-files", |facts| facts.machine.open_files_max = Some(64)),
        ("metadata", |facts| facts.metadata = Some(Err("no answer".to_owned()))),
        ("object-store", |facts| facts.cold = Some(Err("no such bucket".to_owned()))),
    ];
    for (topic, change) in changes {
        let mut facts = good();
        change(&mut facts);
        assert_eq!(topics(&facts, Severity::Blocks), [topic]);
        let worst = &diagnose(&facts)[0];
        assert_eq!(worst.severity, Severity::Blocks, "the worst comes first");
    }
}

#[test]
fn what_will_hurt_warns() {
    let changes: [Change; 9] = [
        ("file-system", |facts| facts.machine.file_system = FileSystem::Memory),
        ("file-system", |facts| facts.machine.file_system = FileSystem::Network("NFS")),
        ("file-system", |facts| facts.machine.file_system = FileSystem::Overlay),
        ("sync", |facts| facts.disk.as_mut().unwrap().sync_4k = latency(20_000, 80_000)),
        ("memory", |facts| facts.machine.memory_available_bytes = Some(GIB / 2)),
        ("open-files", |facts| facts.machine.open_files_max = Some(1_024)),
        ("cores", |facts| facts.machine.cores = 1),
        ("clock", |facts| facts.machine.clock_jump_ms = -2_000),
        ("metadata", |facts| {
            facts.metadata = Some(Ok(Metadata { get: latency(300, 900), commit: latency(50_000, 400_000) }));
        }),
    ];
    for (topic, change) in changes {
        let mut facts = good();
        change(&mut facts);
        assert_eq!(topics(&facts, Severity::Warns), [topic]);
        assert_eq!(topics(&facts, Severity::Blocks), [""; 0]);
        assert!(diagnose(&facts).iter().all(|finding| !finding.advice.is_empty()), "{topic}");
    }
}

#[test]
fn a_store_whose_clock_is_wrong_is_told() {
    let mut facts = good();
    let Some(Ok(speed)) = &mut facts.cold else { panic!("the good machine has a store") };
    speed.clock_ahead_ms = -60_000;
    assert_eq!(topics(&facts, Severity::Warns), ["clock"]);
}

#[test]
fn the_first_limit_is_the_one_that_is_met_first() {
    let first = |facts: &Facts| verdict(facts).pop().unwrap();
    let mut facts = good();
    let Some(Ok(speed)) = &mut facts.cold else { panic!("the good machine has a store") };
    speed.put_large = Duration::from_secs(4);
    assert!(first(&facts).contains("the object store takes 8.0 MiB/s"), "{}", first(&facts));
    assert_eq!(topics(&facts, Severity::Notes), ["object-store"]);

    let mut facts = good();
    facts.machine.free_bytes = 101 * GIB;
    assert!(first(&facts).contains("space. At full speed 100.0 GiB are full in 17 minutes"), "{}", first(&facts));

    let mut facts = good();
    facts.disk.as_mut().unwrap().sync_4k = latency(500, 20_000);
    assert!(first(&facts).contains("the tail of the disk") && first(&facts).contains("40 times"), "{}", first(&facts));
}

#[test]
fn a_burst_that_a_cache_took_is_not_promised() {
    let mut facts = good();
    facts.disk.as_mut().unwrap().journal = Rate { bytes: 256 << 20, elapsed: Duration::from_millis(100) };
    assert!(verdict(&facts)[0].contains("can sustain 180.0 MiB/s"), "{}", verdict(&facts)[0]);
}

#[test]
fn a_sync_that_is_too_fast_to_be_true_is_noted() {
    let mut facts = good();
    facts.disk.as_mut().unwrap().sync_4k = latency(5, 40);
    assert_eq!(topics(&facts, Severity::Notes), ["sync"]);
}

#[test]
fn a_profile_that_takes_the_whole_disk_is_not_told_to_take_less() {
    let mut facts = good();
    facts.asked.disk_bytes_max = 64 << 40;
    assert_eq!(topics(&facts, Severity::Notes), ["space"]);
    facts.asked.takes_whole_disk = true;
    assert_eq!(diagnose(&facts), []);
}
