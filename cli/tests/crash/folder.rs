//! The folder of one run: removed at the end, kept and named when the test fails.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub struct Folder {
    dir: Option<TempDir>,
    /// What to do to see it again.
    about: String,
}

impl Folder {
    pub fn new(about: impl Into<String>) -> Self {
        let dir = tempfile::Builder::new().prefix("thermocline-crash-").tempdir_in("/var/tmp").unwrap();
        Self { dir: Some(dir), about: about.into() }
    }

    pub fn path(&self) -> &Path {
        self.dir.as_ref().expect("there until dropped").path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            eprintln!("VIOLATION in {}; its folder is kept: {}", self.about, dir.keep().display());
        }
    }
}
