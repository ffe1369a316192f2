//! The journal's own pattern done raw: the same sizes at the same places with the same syncs, as many in flight as the journal may have, each
//! from a plain thread, into files that were reserved in the same way. Nothing is computed, nobody is asked.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bookie::disk::{AlignedBuffer, BLOCK_BYTES};
use hdrhistogram::Histogram;
use rustix::fs::{FallocateFlags, OFlags};

use crate::disk_record::{GroupWrite, Written};
use crate::plan::{Error, Result};
use crate::timing::{join, latencies, now, record, sleep_closely, sleep_until, thread};

/// When a group is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As soon as fewer are in flight than may be.
    FullSpeed,
    /// At the time it was written in the recorded run, counted from the first, or later when as many are in flight as may be.
    AsRecorded,
}

/// How the raw run went.
pub(crate) struct RawWrites {
    pub(crate) elapsed: Duration,
    /// Of each write with its sync.
    pub(crate) latency: Histogram<u64>,
}

/// A file that takes direct writes where the file system allows them.
struct RawFile {
    direct: Option<File>,
    buffered: File,
}

impl RawFile {
    fn create(path: &Path, bytes: u64) -> std::io::Result<Self> {
        let buffered = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        match rustix::fs::fallocate(&buffered, FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => buffered.set_len(bytes)?,
            other => other?,
        }
        buffered.sync_all()?;
        let flags = i32::try_from(OFlags::DIRECT.bits()).map_err(std::io::Error::other)?;
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        // The product writes a header block before its groups; here it also shows whether direct writes work.
        let block = AlignedBuffer::zeroed(BLOCK_BYTES);
        let direct = direct.filter(|direct| direct.write_all_at(block.as_ref(), 0).is_ok());
        Ok(Self { direct, buffered })
    }

    fn write(&self, group: &GroupWrite, content: &[u8]) -> std::io::Result<()> {
        self.direct.as_ref().unwrap_or(&self.buffered).write_all_at(content, group.offset)?;
        if group.sync { self.buffered.sync_data() } else { Ok(()) }
    }
}

/// Repeats the groups of `written` that `chosen` picks in new files in `dir`, which is removed afterwards; `in_flight` of them at the same time.
pub(crate) fn repeat(
    dir: &Path,
    written: &Written,
    chosen: impl Fn(&GroupWrite) -> bool,
    (pace, in_flight): (Pace, usize),
) -> Result<RawWrites> {
    let mut groups: Vec<GroupWrite> = written.groups.iter().copied().filter(|group| chosen(group)).collect();
    groups.sort_by_key(|group| group.begun);
    let files = written.files.clone();
    let place = format!("raw writes in {}", dir.display());
    std::fs::create_dir_all(dir).map_err(Error::at(&place))?;
    let run = {
        let (dir, place) = (dir.to_path_buf(), place.clone());
        thread("load-raw", move || run(&dir, &place, &files, groups, (pace, in_flight)))?
    };
    let outcome = join(run);
    std::fs::remove_dir_all(dir).map_err(Error::at(place))?;
    outcome
}

fn run(
    dir: &Path,
    place: &str,
    files: &[u64],
    groups: Vec<GroupWrite>,
    (pace, in_flight): (Pace, usize),
) -> Result<RawWrites> {
    let first = groups.first().ok_or_else(|| Error::new(place, "the run wrote no group"))?.begun;
    let longest = groups.iter().map(|group| group.bytes).max().unwrap_or(0);
    // Random, so that no layer below can save itself the work.
    let mut buffer = AlignedBuffer::zeroed(longest);
    common::rng::Rng::seeded(1).fill(buffer.as_mut());
    // Reserved before the clock starts, as the product reserves its next segment while it writes the present one.
    let mut opened: Vec<Option<RawFile>> = Vec::new();
    for (number, bytes) in files.iter().enumerate() {
        let used = groups.iter().any(|group| group.file == number);
        let path: PathBuf = dir.join(format!("{number}.raw"));
        let file = used.then(|| RawFile::create(&path, *bytes)).transpose();
        opened.push(file.map_err(Error::at(place))?);
    }
    let start: Instant = now();
    let shared = Arc::new(Repeated {
        place: place.to_owned(),
        groups,
        opened,
        buffer,
        pace,
        first,
        start,
        next: AtomicUsize::new(0),
    });
    let mut writers = Vec::new();
    for _ in 0..in_flight.max(1) {
        let shared = shared.clone();
        writers.push(thread("load-raw", move || shared.write_some())?);
    }
    let mut latency = latencies()?;
    let mut elapsed = Duration::ZERO;
    for writer in writers {
        let part = join(writer)?;
        latency.add(&part.latency).map_err(Error::at(place))?;
        elapsed = elapsed.max(part.elapsed);
    }
    Ok(RawWrites { elapsed, latency })
}

/// What the writers of a raw run share.
struct Repeated {
    place: String,
    groups: Vec<GroupWrite>,
    opened: Vec<Option<RawFile>>,
    buffer: AlignedBuffer,
    pace: Pace,
    first: Instant,
    start: Instant,
    next: AtomicUsize,
}

impl Repeated {
    /// Writes the next group that nobody has taken until there is none.
    fn write_some(&self) -> Result<RawWrites> {
        sleep_closely();
        let mut latency = latencies()?;
        while let Some(group) = self.groups.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if self.pace == Pace::AsRecorded {
                sleep_until(self.start + (group.begun - self.first));
            }
            let file = self.opened.get(group.file).and_then(Option::as_ref);
            let file = file.ok_or_else(|| Error::new(&self.place, "a group of an unknown file"))?;
            let begun = now();
            file.write(group, &self.buffer.as_ref()[..group.bytes]).map_err(Error::at(&self.place))?;
            record(&mut latency, begun.elapsed());
        }
        Ok(RawWrites { elapsed: self.start.elapsed(), latency })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_repeated_where_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let begun = now();
        let group = |file, block: u64, bytes| {
            let begun = begun + Duration::from_millis(block);
            GroupWrite { file, offset: block * 4096, bytes, sync: true, begun, done: begun }
        };
        let groups = vec![group(1, 1, 8192), group(1, 3, 4096), group(2, 9, 4096)];
        let written = Written { groups, files: vec![1 << 20; 3], other_bytes: 0 };
        let raw = repeat(&dir.path().join("raw"), &written, |group| group.file < 2, (Pace::FullSpeed, 1)).unwrap();
        assert_eq!(raw.latency.len(), 2);
        let raw = repeat(&dir.path().join("raw"), &written, |_| true, (Pace::AsRecorded, 2)).unwrap();
        assert!(raw.elapsed >= Duration::from_millis(8), "{:?}", raw.elapsed);
        assert!(repeat(&dir.path().join("raw"), &written, |_| false, (Pace::FullSpeed, 1)).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }
}
