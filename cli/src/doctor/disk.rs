//! The disk, measured the way a bookie writes: through [`bookie::LocalDisk`], into files whose space was reserved before.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bookie::disk::AlignedBuffer;
use bookie::{Disk as _, LocalDisk};
use common::blocking::run_blocking;
use common::clock::Clock;
use futures::future::join_all;
use tokio::time::Instant;

use super::facts::{Disk, Latency, Rate};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A file is at most this long, and at most an eighth of what is free.
const FILE_BYTES_MAX: u64 = 192 * MIB;
/// Samples of one kind at most.
const SAMPLES_MAX: u64 = 2_000;
/// What all series together may write.
const BYTES_MAX: u64 = 850 * MIB;

// Three series of 1 MiB fill a file each, two of 64 KiB and two of 4 KiB end with their samples.
const _: () = assert!(3 * FILE_BYTES_MAX + SAMPLES_MAX * 2 * (64 + 4) * KIB <= BYTES_MAX);

/// A directory of our own, removed with everything in it when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn create(place: &Path) -> Result<Self, String> {
        let dir = place.join(format!(".thermocline-doctor-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| {
            format!(
                "nothing can be written in {}: {error}; choose another directory, or give this user the right",
                place.display()
            )
        })?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("warning: remove {}: {error}", self.0.display());
        }
    }
}

/// One series of writes to a file of its own.
struct Series {
    write_bytes: u64,
    /// Writes under way at the same time; all of them are awaited before the next begin.
    at_once: usize,
    sync_each: bool,
    time: Duration,
    file_bytes: u64,
}

/// What a series found.
struct Found {
    samples: Vec<Duration>,
    rate: Rate,
}

/// Measures for about `time`, and writes at most [`BYTES_MAX`] meanwhile.
///
/// # Errors
/// A sentence: nothing can be written, there is no space, or a write failed.
pub(super) async fn measure(place: &Path, time: Duration, clock: &Clock) -> Result<Disk, String> {
    let failed = |error: std::io::Error| format!("write in {}: {error}", place.display());
    let scratch = Scratch::create(place)?;
    let disk = LocalDisk::open(&scratch.0).await.map_err(failed)?;
    let free_bytes = disk.free_bytes(&scratch.0).await.map_err(failed)?;
    let file_bytes = FILE_BYTES_MAX.min(free_bytes / 8 / MIB * MIB);
    if file_bytes < 8 * MIB {
        return Err(format!("{}: {} MiB are free, too few to measure with", place.display(), free_bytes / MIB));
    }
    let run = async |disk: &LocalDisk, write_bytes: u64, at_once: usize, sync_each: bool, percent: u32| {
        let series = Series { write_bytes, at_once, sync_each, time: time * percent / 100, file_bytes };
        series.run(disk, &scratch.0.join("series"), clock).await.map_err(failed)
    };
    let sync_4k = run(&disk, 4 * KIB, 1, true, 16).await?;
    let sync_64k = run(&disk, 64 * KIB, 1, true, 12).await?;
    let together = run(&disk, 64 * KIB, Disk::AT_ONCE, true, 10).await?;
    let sync_1m = run(&disk, MIB, 1, true, 22).await?;
    let stream = run(&disk, MIB, 1, false, 13).await?;
    let buffered = run(&LocalDisk::buffered(), MIB, 1, false, 13).await?;
    let growing = grow(scratch.0.join("growing"), time * 14 / 100, clock.clone()).await.map_err(failed)?;
    let all = [&sync_4k, &sync_64k, &together, &sync_1m, &stream, &buffered];
    let written_bytes = all.iter().map(|found| found.rate.bytes).sum::<u64>() + growing.len() as u64 * 4 * KIB;
    let none = || "the disk took not one write in time".to_owned();
    Ok(Disk {
        direct: disk.is_direct(),
        alone: sync_64k.rate,
        together: together.rate,
        journal: sync_1m.rate,
        stream: stream.rate,
        buffered: buffered.rate,
        sync_4k: Latency::of(sync_4k.samples).ok_or_else(none)?,
        sync_64k: Latency::of(sync_64k.samples).ok_or_else(none)?,
        sync_1m: Latency::of(sync_1m.samples).ok_or_else(none)?,
        fsync_growing: Latency::of(growing).ok_or_else(none)?,
        written_bytes,
    })
}

impl Series {
    /// Writes from front to back until time, file or samples are used up, at least once, and removes the file.
    async fn run(&self, disk: &LocalDisk, path: &Path, clock: &Clock) -> std::io::Result<Found> {
        let file = disk.create(path, self.file_bytes).await?;
        disk.sync_dir(path.parent().unwrap_or(path)).await?;
        let content = pattern(self.write_bytes);
        let mut buffers: Vec<_> = (0..self.at_once).map(|_| AlignedBuffer::copy_of(&content)).collect();
        let (mut samples, mut offset) = (Vec::new(), 0);
        let end = self.file_bytes.min(SAMPLES_MAX * self.write_bytes);
        let began = clock.now();
        while offset + self.write_bytes * self.at_once as u64 <= end {
            let write_began = clock.now();
            let mut writes = Vec::with_capacity(self.at_once);
            for buffer in buffers.drain(..) {
                writes.push(file.write(offset, buffer, self.sync_each));
                offset += self.write_bytes;
            }
            for (back, written) in join_all(writes).await {
                written?;
                buffers.push(back);
            }
            samples.push(clock.now() - write_began);
            if clock.now() - began >= self.time {
                break;
            }
        }
        if let (false, Some(buffer)) = (self.sync_each, buffers.pop()) {
            // A sync belongs to the rate: without it only the cache would be measured. The last block is written once more.
            let (_, synced) = file.write(offset - self.write_bytes, buffer, true).await;
            synced?;
        }
        let elapsed = clock.now() - began;
        drop(file);
        disk.remove(path).await?;
        Ok(Found { samples, rate: Rate { bytes: offset, elapsed } })
    }
}

/// Appends of 4 KiB to a growing file, each with fsync.
async fn grow(path: PathBuf, time: Duration, clock: Clock) -> std::io::Result<Vec<Duration>> {
    run_blocking("doctor", move || {
        let mut file = fs::File::create(&path)?;
        let block = pattern(4 * KIB);
        let mut samples = Vec::new();
        let began: Instant = clock.now();
        while (samples.len() as u64) < SAMPLES_MAX && (samples.is_empty() || clock.now() - began < time) {
            let write_began = clock.now();
            file.write_all(&block)?;
            file.sync_all()?;
            samples.push(clock.now() - write_began);
        }
        drop(file);
        fs::remove_file(&path)?;
        Ok(samples)
    })
    .await
}

/// Bytes that do not compress well and are no zeros, which some storage does not write at all.
fn pattern(bytes: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn measures_and_leaves_nothing() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = measure(dir.path(), Duration::from_millis(200), &Clock::system()).await.unwrap();
        assert!(disk.sync_4k.samples > 0 && disk.sync_4k.p50 <= disk.sync_4k.p99);
        assert!(disk.journal.per_second() > 0.0 && disk.written_bytes > 0);
        assert!(disk.alone.bytes >= 64 * KIB && disk.together.bytes >= 256 * KIB && disk.overlap_gain() > 0.0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_place_that_cannot_be_written_is_named() {
        let error = measure(Path::new("/proc"), Duration::from_millis(10), &Clock::system()).await.err().unwrap();
        assert!(error.contains("/proc"), "{error}");
    }
}
