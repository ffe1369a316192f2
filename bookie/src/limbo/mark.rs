use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::SyncMode;
use crate::disk::Disk;
use crate::error::Error;
use crate::store::Store;

/// Stands in a bookie's directory while its content may be less than what it acknowledged, should the run that put it there not end in
/// order.
pub(crate) const MARK_FILE: &str = "UNPROVEN";
const MARK_BYTES_MAX: usize = 4 << 10;
const TEXT: &str = "This bookie ran without syncing its journal (sync = \"never\"). If it did not stop in order, entries that it acknowledged may\n\
be missing here: at its next start it asks metadata and the other members of its ledgers, and removes this file once nothing is\n\
missing. Do not remove it by hand: what was lost would then be told as if it never was.\n";

const TEXT_REBUILT: &str = "The index of this bookie was rebuilt from its segments, and something was missing: at its next start it asks metadata and the other\n\
members of its ledgers, and removes this file once nothing is missing. Do not remove it by hand: what was lost would then be told as\n\
if it never was.\n";

/// Puts the mark by hand, for a directory whose bookie does not run.
///
/// # Errors
/// When the disk refuses it.
pub(crate) async fn put_mark(disk: &dyn Disk, root: &Path) -> Result<(), Error> {
    let path = root.join(MARK_FILE);
    disk.write_file(&path, TEXT_REBUILT.as_bytes()).await.map_err(Error::disk("write", &path))
}

/// The mark of a run that may lose what it acknowledges.
pub(crate) struct Mark {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    path: PathBuf,
    sync: SyncMode,
}

impl Mark {
    /// Looks for the mark of an earlier run. With whether there is one.
    ///
    /// # Errors
    /// When the disk refuses it.
    pub(crate) async fn look(disk: Arc<dyn Disk>, root: PathBuf, sync: SyncMode) -> Result<(Self, bool), Error> {
        let mark = Self { path: root.join(MARK_FILE), disk, root, sync };
        let found = mark.is_there().await?;
        Ok((mark, found))
    }

    async fn is_there(&self) -> Result<bool, Error> {
        let found = self.disk.read_file(&self.path, MARK_BYTES_MAX).await;
        Ok(found.map_err(Error::disk("read", &self.path))?.is_some())
    }

    /// Puts the mark where this run needs one. To be called before anything is acknowledged, and not before the journal was read: a start
    /// that is refused for what it finds there has lost nothing by it, and the next one must find the same.
    ///
    /// # Errors
    /// When the disk refuses it.
    pub(crate) async fn put(&self) -> Result<(), Error> {
        if self.sync == SyncMode::Never && !self.is_there().await? {
            let written = self.disk.write_file(&self.path, TEXT.as_bytes()).await;
            written.map_err(Error::disk("write", &self.path))?;
        }
        Ok(())
    }

    /// Nothing is in limbo any more. The mark goes, unless this run needs one of its own.
    ///
    /// # Errors
    /// When the disk refuses it; the mark may stand then, which costs another check at the next start.
    pub(crate) async fn proven(&self) -> Result<(), Error> {
        match self.sync {
            SyncMode::Always => self.remove().await,
            SyncMode::Never => Ok(()),
        }
    }

    /// The journal has ended in order. The mark of a run that did not sync goes once all it wrote is durable.
    pub(crate) async fn end(&self, store: &Store) {
        let has_holes = *store.seal_waits.borrow();
        let is_proven = store.limbo.is_empty() && store.condition.failure().is_none() && !has_holes;
        if self.sync == SyncMode::Always || !is_proven {
            return;
        }
        let ended = async {
            // Sealed segments were synced when they were sealed.
            for segment in store.unsealed() {
                segment.file.sync().await.map_err(Error::disk("sync", &segment.path))?;
            }
            self.remove().await
        };
        if let Err(error) = ended.await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the next start checks whether anything was lost, since this stop was not in order");
        }
    }

    async fn remove(&self) -> Result<(), Error> {
        if self.is_there().await? {
            self.disk.remove(&self.path).await.map_err(Error::disk("remove", &self.path))?;
            self.disk.sync_dir(&self.root).await.map_err(Error::disk("sync", &self.root))?;
        }
        Ok(())
    }
}
