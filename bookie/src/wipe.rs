//! Removing a bookie's local data, for an administrator. Works on real files, as the index does, and never beside a running bookie.
//!
//! # Order
//! 1. The index directory is locked, as a bookie that runs has it locked; nothing is touched while somebody else holds it.
//! 2. `FORMATTING` says whose data is being removed; from then on the next call goes on, whatever is left.
//! 3. The cookies go, so that no bookie starts here; then segments, then the index.
//! 4. Whoever called does what else is to be done, such as removing the cookie from metadata; then [`Wipe::finish`] removes `FORMATTING`.
//!
//! Names that are not a bookie's are refused before anything is removed. Symbolic links are not followed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use common::blocking::run_blocking;
use metadata::Cookie;

use crate::error::Error;
use crate::format::SegmentId;
use crate::held::READ_ONLY_FILE;
use crate::identity::{Directories, INTENT_FILE, VERSION_FILE};
use crate::limbo::MARK_FILE;
use crate::rebuild::{NEW_INDEX, OLD_INDEX};

/// Stands in the directory from before the first removal until after the last.
pub(crate) const FORMATTING_FILE: &str = "FORMATTING";
const COOKIE_BYTES_MAX: u64 = 64 << 10;
/// What a file written in one step leaves when it is cut short.
const TEMPORARY: &str = ".tmp";
const LOST_AND_FOUND: &str = "lost+found";

/// A bookie's directory, locked, of which everything may be removed.
#[derive(Debug)]
pub struct Wipe {
    dirs: Directories,
    cookie: Cookie,
    files: Vec<PathBuf>,
    bytes: u64,
    interrupted: bool,
    /// Locked as long as this lives; `None` where there is no index.
    _owner: Option<File>,
}

impl Wipe {
    /// Looks at a directory and locks it. Nothing is changed.
    ///
    /// # Errors
    /// [`Error::Identity`] with a sentence: no bookie's directory, in use, or with files that are not a bookie's.
    pub async fn prepare(dir: &Path) -> Result<Self, Error> {
        let dirs = Directories::of(dir);
        run_blocking("wipe-look", move || Self::look(dirs)).await
    }

    fn look(dirs: Directories) -> Result<Self, Error> {
        let root = dirs.root.display();
        if !dirs.root.is_dir() {
            return Err(Error::Identity(format!("{root} is not a directory")));
        }
        let mut cookie = None;
        for (name, interrupted) in [(FORMATTING_FILE, true), (VERSION_FILE, false), (INTENT_FILE, false)] {
            if let Some(found) = read_cookie(&dirs.root.join(name))? {
                cookie = Some((found, interrupted));
                break;
            }
        }
        let Some((cookie, interrupted)) = cookie else {
            let text =
                format!("{root} holds no bookie's data: it has no file {VERSION_FILE}; nothing is removed from it");
            return Err(Error::Identity(text));
        };
        let owner = lock(&dirs.index)?;
        let mut found = Found::default();
        found.take(&dirs.root, |name| {
            [VERSION_FILE, INTENT_FILE, FORMATTING_FILE, MARK_FILE, READ_ONLY_FILE]
                .iter()
                .any(|known| is_or_was(name, known))
        })?;
        found.take(&dirs.journal, |name| is_or_was(name, VERSION_FILE) || SegmentId::from_file_name(name).is_some())?;
        // Whatever the database calls its files; it shares its directory with nobody.
        found.take(&dirs.index, |_| true)?;
        found.take(&dirs.root.join(NEW_INDEX), |_| true)?;
        found.take(&dirs.root.join(OLD_INDEX), |_| true)?;
        if let Some(stranger) = found.strangers.first() {
            return Err(Error::Identity(format!(
                "{} is not a bookie's: move it away first; nothing was removed",
                stranger.display()
            )));
        }
        Ok(Self { dirs, cookie, files: found.files, bytes: found.bytes, interrupted, _owner: owner })
    }

    /// Whose data it is.
    #[must_use]
    pub fn cookie(&self) -> &Cookie {
        &self.cookie
    }

    /// How many files there are.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// How many bytes of the device they occupy.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether an earlier call was cut short here.
    #[must_use]
    pub fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Removes everything but the file that says so. Not cancel-safe: work that began goes on; a later [`Wipe::prepare`] finds the rest.
    ///
    /// # Errors
    /// [`Error::Disk`]; what is left is refused by a bookie and taken up by the next call.
    pub async fn remove(self) -> Result<Wiped, Error> {
        run_blocking("wipe", move || self.remove_all()).await
    }

    fn remove_all(self) -> Result<Wiped, Error> {
        let mark = self.dirs.root.join(FORMATTING_FILE);
        write_synced(&mark, self.cookie.encode().as_bytes()).map_err(Error::disk("write", &mark))?;
        sync(&self.dirs.root)?;
        // Without cookies no bookie starts here; this must be so before anything it needs is gone.
        for dir in [&self.dirs.root, &self.dirs.journal] {
            remove(&dir.join(VERSION_FILE))?;
            remove(&dir.join(INTENT_FILE))?;
            if dir.is_dir() {
                sync(dir)?;
            }
        }
        for path in self.files.iter().filter(|path| **path != mark) {
            remove(path)?;
        }
        let (new, old) = (self.dirs.root.join(NEW_INDEX), self.dirs.root.join(OLD_INDEX));
        for dir in [&self.dirs.journal, &self.dirs.index, &new, &old] {
            if dir.is_dir() {
                fs::remove_dir(dir).map_err(Error::disk("remove", dir))?;
            }
        }
        sync(&self.dirs.root)?;
        Ok(Wiped { root: self.dirs.root, mark, _owner: self._owner })
    }
}

/// A directory that is empty but for the file that says that it is being formatted.
#[derive(Debug)]
#[must_use = "the directory is not usable before finish"]
pub struct Wiped {
    root: PathBuf,
    mark: PathBuf,
    _owner: Option<File>,
}

impl Wiped {
    /// Removes that file: the directory is empty, and a new bookie may begin in it.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub async fn finish(self) -> Result<(), Error> {
        run_blocking("wipe-end", move || {
            remove(&self.mark)?;
            sync(&self.root)
        })
        .await
    }
}

/// Files that are a bookie's and names that are not.
#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    strangers: Vec<PathBuf>,
    bytes: u64,
}

impl Found {
    /// Sorts the names in `dir`, which need not exist.
    fn take(&mut self, dir: &Path, ours: impl Fn(&str) -> bool) -> Result<(), Error> {
        use std::os::unix::fs::MetadataExt as _;
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::disk("list", dir)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(Error::disk("list", dir))?;
            let (path, name) = (entry.path(), entry.file_name());
            let facts = fs::symlink_metadata(&path).map_err(Error::disk("look at", &path))?;
            let name = name.to_str().unwrap_or("");
            if facts.is_dir()
                && (name == "journal"
                    || name == "index"
                    || name == NEW_INDEX
                    || name == OLD_INDEX
                    || name == LOST_AND_FOUND)
            {
                continue;
            }
            if facts.is_file() && ours(name) {
                self.bytes += facts.blocks() * 512;
                self.files.push(path);
            } else {
                self.strangers.push(path);
            }
        }
        Ok(())
    }
}

fn is_or_was(name: &str, known: &str) -> bool {
    name.strip_suffix(TEMPORARY).unwrap_or(name) == known
}

fn read_cookie(path: &Path) -> Result<Option<Cookie>, Error> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::disk("look at", path)(error)),
        Ok(facts) if facts.is_file() && facts.len() <= COOKIE_BYTES_MAX => {}
        Ok(_) => return Err(Error::Identity(format!("{} is no cookie", path.display()))),
    }
    let bytes = fs::read(path).map_err(Error::disk("read", path))?;
    let damaged = |error| Error::Identity(format!("the cookie {} is damaged: {error}", path.display()));
    Cookie::decode(&bytes).map(Some).map_err(damaged)
}

/// Takes the lock that a bookie holds while it runs.
pub(crate) fn lock(index: &Path) -> Result<Option<File>, Error> {
    let dir = match File::open(index) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::disk("open", index)(error)),
    };
    let taken = rustix::fs::flock(&dir, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    taken.map(|()| Some(dir)).map_err(|_| {
        Error::Identity(format!("a bookie runs in it: {} is locked; stop that process first", index.display()))
    })
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::disk("remove", path)(error)),
        _ => Ok(()),
    }
}

fn sync(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::disk("sync", dir))
}
