//! An administrator's word that a bookie takes no entries: a file in its directory, which holds over restarts and needs no port.

use std::path::Path;

use crate::disk::Disk;
use crate::error::Error;
use crate::identity::known_id;
use ledger::BookieId;

/// Stands in a bookie's directory while an administrator wants it read-only. It holds why, for people.
pub(crate) const READ_ONLY_FILE: &str = "READONLY";
/// Longest reason, in bytes.
pub const READ_ONLY_REASON_BYTES_MAX: usize = 1024;

/// Makes the bookie of a directory read-only, running or not, until [`end_read_only`]: a running one sees it within about a second.
/// With whose directory it is; `None` where that is no bookie's, and nothing is changed then.
///
/// # Errors
/// [`Error::Config`] for a reason that is too long; when the disk refuses it.
pub async fn begin_read_only(disk: &dyn Disk, dir: &Path, reason: &str) -> Result<Option<BookieId>, Error> {
    if reason.len() > READ_ONLY_REASON_BYTES_MAX {
        return Err(Error::Config(format!("a reason has at most {READ_ONLY_REASON_BYTES_MAX} bytes")));
    }
    let Some(id) = known_id(disk, dir).await? else { return Ok(None) };
    let path = dir.join(READ_ONLY_FILE);
    disk.write_file(&path, reason.as_bytes()).await.map_err(Error::disk("write", &path))?;
    Ok(Some(id))
}

/// Takes the word back. With whose directory it is, and whether the word stood there.
///
/// # Errors
/// When the disk refuses it; the word may stand then.
pub async fn end_read_only(disk: &dyn Disk, dir: &Path) -> Result<Option<(BookieId, bool)>, Error> {
    let Some(id) = known_id(disk, dir).await? else { return Ok(None) };
    let stood = reason(disk, dir).await?.is_some();
    if stood {
        let path = dir.join(READ_ONLY_FILE);
        disk.remove(&path).await.map_err(Error::disk("remove", &path))?;
        disk.sync_dir(dir).await.map_err(Error::disk("sync", dir))?;
    }
    Ok(Some((id, stood)))
}

/// Why an administrator wants the bookie read-only; `None` when it may take entries.
///
/// # Errors
/// When the disk does not tell: nothing is known then.
pub(crate) async fn reason(disk: &dyn Disk, dir: &Path) -> Result<Option<String>, Error> {
    let path = dir.join(READ_ONLY_FILE);
    // Whatever is in it, or however much, the file says it.
    let found = match disk.read_file(&path, READ_ONLY_REASON_BYTES_MAX).await {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Some(Vec::new()),
        found => found.map_err(Error::disk("read", &path))?,
    };
    Ok(found.map(|text| {
        let text = String::from_utf8_lossy(&text);
        let text: String = text.trim().chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        let why = if text.is_empty() { "no reason is given" } else { &text };
        format!("an administrator wants it so ({READ_ONLY_FILE} in its directory): {why}")
    }))
}
