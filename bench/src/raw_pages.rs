//! The least that must be done to have a ledger's payload in an object: compress it page by page, write the bytes, make them durable. And the
//! least to read it back: read the bytes, decompress every page.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::content::Pool;
use crate::cpu::CpuTimes;
use crate::plan::{Error, Result};
use crate::timing::{join, thread};

/// Sizes and level of the cold object's payload pages.
const PAGE_BYTES: usize = 128 << 10;
const GROUP_BYTES: usize = 8 << 20;
const LEVEL: i32 = 1;

/// Processor time of the two halves.
pub(crate) struct RawCold {
    pub(crate) write: Duration,
    pub(crate) read: Duration,
}

/// Does both with the payloads of `entries` entries, in a file in `dir` that is removed afterwards.
pub(crate) fn write_and_read(dir: &Path, pool: &Pool, entries: u64, compress: bool) -> Result<RawCold> {
    let (path, pool) = (dir.join("raw-object"), pool.clone());
    let place = format!("raw object {}", path.display());
    let work = {
        let path = path.clone();
        thread("load-raw", move || -> std::io::Result<RawCold> {
            let begun = CpuTimes::now();
            let pages = write(&path, &pool, entries, compress)?;
            let written = CpuTimes::now();
            read(&path, &pages, compress)?;
            let done = CpuTimes::now();
            Ok(RawCold { write: written.load_since(&begun), read: done.load_since(&written) })
        })?
    };
    let outcome = join(work);
    std::fs::remove_file(&path).map_err(Error::at(&place))?;
    outcome.map_err(Error::at(place))
}

/// Writes the object; the stored size of each page.
fn write(path: &Path, pool: &Pool, entries: u64, compress: bool) -> std::io::Result<Vec<usize>> {
    let mut file = File::create(path)?;
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    let (mut page, mut group, mut pages) =
        (Vec::with_capacity(2 * PAGE_BYTES), Vec::with_capacity(GROUP_BYTES), Vec::new());
    for entry in 0..entries {
        page.extend_from_slice(&pool.payload(entry));
        if page.len() < PAGE_BYTES && entry + 1 < entries {
            continue;
        }
        let before = group.len();
        if compress {
            group.extend_from_slice(&compressor.compress(&page)?);
        } else {
            group.extend_from_slice(&page);
        }
        pages.push(group.len() - before);
        page.clear();
        if group.len() >= GROUP_BYTES || entry + 1 == entries {
            file.write_all(&group)?;
            group.clear();
        }
    }
    file.sync_all()?;
    Ok(pages)
}

fn read(path: &Path, pages: &[usize], compress: bool) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut decompressor = zstd::bulk::Decompressor::new()?;
    let (mut stored, mut page) = (Vec::new(), Vec::with_capacity(4 * PAGE_BYTES));
    for bytes in pages {
        stored.resize(*bytes, 0);
        file.read_exact(&mut stored)?;
        if compress {
            decompressor.decompress_to_buffer(&stored, &mut page)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::content::Content;

    #[test]
    fn both_halves_take_time_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::new(Content::LogLines, 1024);
        for compress in [true, false] {
            let raw = write_and_read(dir.path(), &pool, 2_000, compress).unwrap();
            assert!(raw.write > Duration::ZERO && raw.read > Duration::ZERO);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
