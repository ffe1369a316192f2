//! Everything the doctor knows, as values.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::config::{Loaded, Origin};
use cold::StoreSpeed;

use crate::Settings;

/// What was found out.
pub(super) struct Facts {
    pub(super) asked: Asked,
    pub(super) machine: Machine,
    /// Or why it could not be measured.
    pub(super) disk: Result<Disk, String>,
    /// `None`: not asked for.
    pub(super) metadata: Option<Result<Metadata, String>>,
    /// `None`: not asked for.
    pub(super) cold: Option<Result<StoreSpeed, String>>,
}

/// What the settings want of the machine.
pub(super) struct Asked {
    pub(super) dir: PathBuf,
    pub(super) memory_max: u64,
    pub(super) disk_bytes_max: u64,
    /// Whether a profile set that so high that the file system is the limit.
    pub(super) takes_whole_disk: bool,
    pub(super) disk_free_bytes_min: u64,
    pub(super) segment_bytes: u64,
}

impl Asked {
    pub(super) fn of(loaded: &Loaded<Settings>, dir: &Path) -> Self {
        let settings = &loaded.value;
        Self {
            dir: dir.to_owned(),
            memory_max: settings.memory_max.bytes(),
            disk_bytes_max: settings.bookie.disk_bytes_max.bytes(),
            takes_whole_disk: matches!(loaded.origin_of("bookie.disk_bytes_max"), Some(Origin::Profile(_))),
            disk_free_bytes_min: settings.bookie.disk_free_bytes_min.bytes(),
            segment_bytes: settings.bookie.segment_bytes.bytes(),
        }
    }
}

/// What the operating system says.
pub(super) struct Machine {
    pub(super) cores: usize,
    pub(super) memory_bytes: u64,
    /// What can be had without pushing others out.
    pub(super) memory_available_bytes: Option<u64>,
    /// The limit of the control group, when there is one.
    pub(super) memory_limit_bytes: Option<u64>,
    pub(super) open_files_max: Option<u64>,
    pub(super) file_system: FileSystem,
    /// Whether the disk turns, as the kernel has it; `None`: it does not say. Virtual disks often say so wrongly.
    pub(super) rotates: Option<bool>,
    pub(super) free_bytes: u64,
    /// How far the wall clock moved against the monotonic one while the doctor looked.
    pub(super) clock_jump_ms: i64,
}

/// Kinds of file systems that matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// On a disk of this machine, by name.
    Local(&'static str),
    /// In memory.
    Memory,
    /// On another machine.
    Network(&'static str),
    /// A layer over others, as containers have.
    Overlay,
    /// Another one, by its number.
    Other(u64),
}

/// The disk, measured by writing.
pub(super) struct Disk {
    /// Whether direct writes work.
    pub(super) direct: bool,
    /// 4 KiB a write, each synced, as the journal writes.
    pub(super) sync_4k: Latency,
    /// 64 KiB a write, each synced.
    pub(super) sync_64k: Latency,
    /// 1 MiB a write, each synced: full groups of the journal.
    pub(super) sync_1m: Latency,
    /// A growing file, 4 KiB and fsync each: the log of embedded metadata and of the index.
    pub(super) fsync_growing: Latency,
    /// 64 KiB a write, each synced before the next begins.
    pub(super) alone: Rate,
    /// The same, [`Disk::AT_ONCE`] at a time.
    pub(super) together: Rate,
    /// Full groups of the journal, each synced.
    pub(super) journal: Rate,
    /// The same without a sync but the last, as the journal writes (direct where it works).
    pub(super) stream: Rate,
    /// The same through the page cache.
    pub(super) buffered: Rate,
    /// Everything that was written and removed.
    pub(super) written_bytes: u64,
}

impl Disk {
    /// Writes that are tried at the same time: as many as a bookie has in flight by default.
    pub(super) const AT_ONCE: usize = 4;

    /// How many times as much the disk takes when synced writes overlap.
    pub(super) fn overlap_gain(&self) -> f64 {
        self.together.per_second() / self.alone.per_second().max(1.0)
    }
}

/// Bytes in a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
}

impl Rate {
    pub(super) fn per_second(self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Times of one kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Latency {
    pub(super) samples: usize,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    pub(super) longest: Duration,
}

impl Latency {
    /// Of samples in any order; `None` without any.
    pub(super) fn of(mut samples: Vec<Duration>) -> Option<Self> {
        samples.sort_unstable();
        let last = samples.len().checked_sub(1)?;
        let at = |hundredths: usize| samples[last * hundredths / 100];
        Some(Self { samples: samples.len(), p50: at(50), p99: at(99), longest: samples[last] })
    }
}

/// The metadata store, measured by its interface.
pub(super) struct Metadata {
    pub(super) get: Latency,
    pub(super) commit: Latency,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_few_samples_are_among_them() {
        assert_eq!(Latency::of(Vec::new()), None);
        let ms = Duration::from_millis;
        let one = Latency::of(vec![ms(7)]).unwrap();
        assert_eq!((one.p50, one.p99, one.longest), (ms(7), ms(7), ms(7)));
        let hundred = Latency::of((1..=101).rev().map(ms).collect()).unwrap();
        assert_eq!((hundred.p50, hundred.p99, hundred.longest), (ms(51), ms(100), ms(101)));
    }
}
