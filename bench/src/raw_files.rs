//! Files read raw, and dropped from the system's page cache.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::plan::{Error, Result};

const READ_BYTES: usize = 1 << 20;

/// Reads the first `bytes` of a file with large reads.
pub(crate) fn read_through(file: &File, bytes: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut at = 0;
    while at < bytes {
        let part = (bytes - at).min(READ_BYTES as u64);
        file.read_exact_at(&mut buffer[..part as usize], at)?;
        at += part;
    }
    Ok(())
}

/// Makes the next read of the files come from the disk. Pages that are not written back yet stay.
pub(crate) fn drop_from_page_cache<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    for path in files {
        let place = || format!("drop {} from the page cache", path.display());
        let file = File::open(path).map_err(Error::at(place()))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(Error::at(place()))?;
    }
    Ok(())
}
