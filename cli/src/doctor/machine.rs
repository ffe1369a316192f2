//! What the operating system says about this machine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use common::clock::Clock;
use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;

use super::facts::{FileSystem, Machine};

/// Sees the wall clock jump: by how much it moves against the monotonic one.
pub(super) struct ClockWatch {
    start: Instant,
    wall_ms: u64,
}

impl ClockWatch {
    pub(super) fn start(clock: &Clock) -> Self {
        Self { start: clock.now(), wall_ms: clock.wall_ms() }
    }

    /// Milliseconds that the wall clock gained (or lost) since the start.
    pub(super) fn jump(&self, clock: &Clock) -> i64 {
        let whole = |ms: u128| i64::try_from(ms).unwrap_or(i64::MAX);
        let wall = whole(u128::from(clock.wall_ms())) - whole(u128::from(self.wall_ms));
        wall - whole((clock.now() - self.start).as_millis())
    }
}

pub(super) fn look(place: &Path, clock_jump_ms: i64) -> Machine {
    let free_bytes = rustix::fs::statvfs(place).map_or(0, |facts| facts.f_bavail.saturating_mul(facts.f_frsize));
    Machine {
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_bytes: memory_line("MemTotal:").unwrap_or(0),
        memory_available_bytes: memory_line("MemAvailable:"),
        memory_limit_bytes: control_group_limit(),
        open_files_max: getrlimit(Resource::Nofile).current,
        file_system: file_system(place),
        rotates: fs::metadata(place).ok().and_then(|facts| rotates(Path::new("/sys/dev/block"), facts.dev())),
        free_bytes,
        clock_jump_ms,
    }
}

fn memory_line(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Of version 2, then of version 1; a number as large as the machine means none.
fn control_group_limit() -> Option<u64> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit: u64 = files.iter().find_map(|file| fs::read_to_string(file).ok())?.trim().parse().ok()?;
    Some(limit).filter(|limit| memory_line("MemTotal:").is_none_or(|all| *limit < all))
}

/// Whether a device turns, as the kernel has it; a partition says what the disk says that it is on. `None` for file systems over
/// several devices, which have a number of no device.
fn rotates(devices: &Path, device: u64) -> Option<bool> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let device = fs::canonicalize(devices.join(number)).ok()?;
    let read = |of: &Path| fs::read_to_string(of.join("queue/rotational")).ok();
    let text = read(&device).or_else(|| device.parent().and_then(read))?;
    match text.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn file_system(place: &Path) -> FileSystem {
    let Ok(facts) = rustix::fs::statfs(place) else { return FileSystem::Other(0) };
    // The field's type differs between platforms; the numbers have 32 bits.
    named(facts.f_type as u64 & 0xffff_ffff)
}

fn named(number: u64) -> FileSystem {
    match number {
        0xef53 => FileSystem::Local("ext4"),
        0x5846_5342 => FileSystem::Local("xfs"),
        0x9123_683e => FileSystem::Local("btrfs"),
        0xf2f5_2010 => FileSystem::Local("f2fs"),
        0x2fc1_2fc1 => FileSystem::Local("zfs"),
        0xca45_1a4e => FileSystem::Local("bcachefs"),
        0x0102_1994 | 0x8584_58f6 => FileSystem::Memory,
        0x6969 => FileSystem::Network("NFS"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => FileSystem::Network("SMB"),
        0x0102_1997 => FileSystem::Network("9p"),
        0x00c3_6400 => FileSystem::Network("Ceph"),
        0x794c_7630 => FileSystem::Overlay,
        other => FileSystem::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn file_systems_that_lose_data_are_known() {
        assert_eq!(named(0x0102_1994), FileSystem::Memory);
        assert_eq!(named(0x6969), FileSystem::Network("NFS"));
        assert_eq!(named(0x794c_7630), FileSystem::Overlay);
        assert_eq!(named(0xef53), FileSystem::Local("ext4"));
        assert_eq!(named(1), FileSystem::Other(1));
    }

    #[test]
    fn a_partition_turns_as_its_disk_does() {
        let sys = tempfile::tempdir().unwrap();
        let (devices, disk) = (sys.path().join("dev"), sys.path().join("pci/block/sda"));
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::create_dir_all(&devices).unwrap();
        std::os::unix::fs::symlink(&disk, devices.join("8:0")).unwrap();
        std::os::unix::fs::symlink(disk.join("sda1"), devices.join("8:1")).unwrap();
        let says = |minor| rotates(&devices, rustix::fs::makedev(8, minor));
        for (text, expected) in [("1\n", Some(true)), ("0\n", Some(false)), ("maybe\n", None)] {
            fs::write(disk.join("queue/rotational"), text).unwrap();
            assert_eq!((says(0), says(1)), (expected, expected), "{text}");
        }
        assert_eq!(says(2), None, "no such device");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_jumps_is_seen() {
        let (clock, hand) = Clock::manual(1_000_000);
        let watch = ClockWatch::start(&clock);
        tokio::time::advance(Duration::from_millis(300)).await;
        hand.advance(Duration::from_millis(300));
        assert_eq!(watch.jump(&clock), 0);
        hand.set(1_000_000);
        assert_eq!(watch.jump(&clock), -300);
    }
}
