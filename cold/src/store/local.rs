//! What a store in a local directory needs beside `LocalFileSystem::with_fsync`.
//!
//! That store syncs each file, its directory, and directories it creates for it. Two uploads that need the same new directory race:
//! the one that finds it there does not know whether its entry in the directory above is on disk yet. So after each write the
//! directories above the object are synced once in the life of this process, before the write counts as done.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use common::blocking::run_blocking;

#[derive(Clone)]
pub(super) struct LocalRoot {
    root: Arc<Path>,
    /// Directories whose entries are known to be on disk.
    synced: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl LocalRoot {
    /// Makes the directory, and those above it, and sees them on disk.
    pub(super) fn create(root: &Path) -> io::Result<Self> {
        let existing = root.ancestors().find(|dir| dir.exists()).map(Path::to_path_buf);
        std::fs::create_dir_all(root)?;
        for dir in root.ancestors() {
            sync_dir(dir)?;
            if existing.as_deref() == Some(dir) {
                break;
            }
        }
        let root = root.canonicalize()?;
        Ok(Self { root: root.into(), synced: Arc::default() })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Sees the directories between the root and the object `key`, which was just written, on disk.
    pub(super) async fn sync_above(&self, key: &str) -> io::Result<()> {
        let new: Vec<PathBuf> = {
            let synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
            let object = self.root.join(key);
            let dirs = object.ancestors().skip(1).take_while(|dir| *dir != &*self.root);
            dirs.filter(|dir| !synced.contains(*dir)).map(Path::to_path_buf).collect()
        };
        if new.is_empty() {
            return Ok(());
        }
        let synced = Arc::clone(&self.synced);
        run_blocking("sync directories", move || {
            for dir in new {
                // A directory's entry lies in the one above it.
                dir.parent().map_or(Ok(()), sync_dir)?;
                synced.lock().unwrap_or_else(PoisonError::into_inner).insert(dir);
            }
            Ok(())
        })
        .await
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}
