use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::rng::Rng;

use super::{AlignedBuffer, Disk, DiskFile, FileFacts, MemoryDisk};

/// Pauses of a call are up to this long.
const PAUSE_MAX_US: u64 = 2_000;

/// What befalls a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The power is cut before anything is done.
    CutBefore,
    /// The power is cut when a write is at the disk and not synced; else as [`DiskFault::CutBefore`].
    CutWithin,
    /// The power is cut when all is done, and before anybody is told.
    CutAfter,
    /// The call fails with this. A write may have come to the disk all the same.
    Fail(io::ErrorKind),
}

/// A [`MemoryDisk`] whose calls take time, overtake each other, and meet the faults that were planned for them by their number. For tests.
///
/// Calls that change something are counted from 0. After a power cut every call fails, and [`FaultyDisk::left`] has what the disk
/// holds then.
#[derive(Clone)]
pub struct FaultyDisk {
    disk: MemoryDisk,
    shared: Arc<Shared>,
}

struct Shared {
    rng: Rng,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: u64,
    plan: BTreeMap<u64, DiskFault>,
    left: Option<MemoryDisk>,
}

impl FaultyDisk {
    /// Faults for a disk, with pauses by chance.
    #[must_use]
    pub fn new(disk: &MemoryDisk, rng: Rng) -> Self {
        Self { disk: disk.clone(), shared: Arc::new(Shared { rng, state: Mutex::default() }) }
    }

    /// Plans a fault for a call; another one for the same call is replaced.
    pub fn plan(&self, call: u64, fault: DiskFault) {
        self.lock().plan.insert(call, fault);
    }

    /// Calls that changed something, or tried to.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// What a power cut left; `None` while there was none.
    #[must_use]
    pub fn left(&self) -> Option<MemoryDisk> {
        self.lock().left.clone()
    }

    /// Cuts the power now, unless it is cut, and returns what is left.
    #[must_use]
    pub fn cut(&self) -> MemoryDisk {
        let mut state = self.lock();
        let rng = &self.shared.rng;
        // Of some cuts all that was not synced is lost, of others a part.
        let share = rng.below(3);
        state.left.get_or_insert_with(|| self.disk.crash_keeping(|| rng.below(2) < share && rng.below(4) != 0)).clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of the next call, if there is one.
    fn next(&self) -> Option<DiskFault> {
        let mut state = self.lock();
        let call = state.calls;
        state.calls += 1;
        state.plan.remove(&call)
    }

    fn check_power(&self) -> io::Result<()> {
        match &self.lock().left {
            None => Ok(()),
            Some(_) => Err(no_power()),
        }
    }

    fn cut_off<T>(&self) -> io::Result<T> {
        let _ = self.cut();
        Err(no_power())
    }

    async fn pause(&self) {
        tokio::time::sleep(Duration::from_micros(self.shared.rng.below(PAUSE_MAX_US))).await;
    }

    /// A call that changes something in one step.
    async fn change<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.check_power()?;
        let fault = self.next();
        self.pause().await;
        self.check_power()?;
        match fault {
            Some(DiskFault::CutBefore | DiskFault::CutWithin) => self.cut_off(),
            Some(DiskFault::Fail(kind)) => Err(kind.into()),
            Some(DiskFault::CutAfter) => {
                work.await?;
                self.cut_off()
            }
            None => work.await,
        }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FaultyFile { file, disk: self.clone() })
    }
}

fn no_power() -> io::Error {
    io::Error::other("the power is cut")
}

#[async_trait]
impl Disk for FaultyDisk {
    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.change(self.disk.create_dir(dir)).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.check_power()?;
        self.disk.list(dir).await
    }

    async fn read_file(&self, path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
        self.check_power()?;
        self.disk.read_file(path, bytes_max).await
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.change(self.disk.write_file(path, content)).await
    }

    async fn create(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.change(self.disk.create(path, bytes)).await.map(|file| self.wrap(file))
    }

    async fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.check_power()?;
        self.disk.open(path).await.map(|file| self.wrap(file))
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(self.disk.remove(path)).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.change(self.disk.sync_dir(dir)).await
    }

    async fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.check_power()?;
        self.disk.free_bytes(dir).await
    }

    async fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.check_power()?;
        self.disk.total_bytes(dir).await
    }
}

struct FaultyFile {
    file: Arc<dyn DiskFile>,
    disk: FaultyDisk,
}

impl FaultyFile {
    async fn write_in_steps(&self, offset: u64, content: &[u8], sync: bool) -> io::Result<()> {
        let disk = &self.disk;
        disk.check_power()?;
        let fault = disk.next();
        if fault == Some(DiskFault::CutBefore) {
            return disk.cut_off();
        }
        self.file.write(offset, AlignedBuffer::copy_of(content), false).await.1?;
        disk.pause().await;
        disk.check_power()?;
        match fault {
            Some(DiskFault::CutBefore | DiskFault::CutWithin) => return disk.cut_off(),
            Some(DiskFault::Fail(kind)) => return Err(kind.into()),
            Some(DiskFault::CutAfter) | None => {}
        }
        if sync {
            self.file.write(offset, AlignedBuffer::copy_of(content), true).await.1?;
        }
        if fault == Some(DiskFault::CutAfter) {
            return disk.cut_off();
        }
        Ok(())
    }
}

#[async_trait]
impl DiskFile for FaultyFile {
    async fn write(&self, offset: u64, buffer: AlignedBuffer, sync: bool) -> (AlignedBuffer, io::Result<()>) {
        let written = self.write_in_steps(offset, buffer.as_ref(), sync).await;
        (buffer, written)
    }

    async fn read(&self, ranges: Vec<Range<u64>>) -> Vec<io::Result<Bytes>> {
        match self.disk.check_power() {
            Ok(()) => self.file.read(ranges).await,
            Err(_) => ranges.iter().map(|_| Err(no_power())).collect(),
        }
    }

    async fn sync(&self) -> io::Result<()> {
        self.disk.change(self.file.sync()).await
    }

    async fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk.change(self.file.set_len(bytes)).await
    }

    fn overlaps(&self) -> bool {
        self.file.overlaps()
    }

    async fn facts(&self) -> io::Result<FileFacts> {
        self.disk.check_power()?;
        self.file.facts().await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::read_one;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn conforms() {
        super::super::suite::run(&FaultyDisk::new(&MemoryDisk::new(), Rng::seeded(1)), Path::new("/d")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_takes_what_was_not_synced_and_nothing_else() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let disk = FaultyDisk::new(&MemoryDisk::new(), Rng::seeded(seed));
            let (dir, path) = (Path::new("/d"), Path::new("/d/f"));
            disk.create_dir(dir).await.unwrap();
            let file = disk.create(path, 8192).await.unwrap();
            disk.sync_dir(dir).await.unwrap();
            file.write(0, AlignedBuffer::copy_of(&[1; 4096]), true).await.1.unwrap();
            disk.plan(disk.calls(), DiskFault::CutWithin);
            file.write(4096, AlignedBuffer::copy_of(&[2; 4096]), true).await.1.unwrap_err();
            file.sync().await.unwrap_err();
            let left = disk.left().unwrap().open(path).await.unwrap();
            let found = read_one(&*left, 0..8192).await.unwrap();
            assert_eq!(found[..4096], [1; 4096], "what was told to be synced is there");
            match found[4096..].iter().filter(|byte| **byte == 2).count() {
                0 => lost += 1,
                4096 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 20 && torn > 20, "{lost} {kept} {torn}");
    }
}
