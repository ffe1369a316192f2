//! Whether this directory is this bookie's: cookies, compared before anything is opened.
//!
//! The cookie stands in metadata, in `VERSION` of the directory and of its journal, and in the index. A new bookie first writes
//! its intent (`VERSION.new`), so that a crash while it sets itself up leaves a directory that it recognises.

use std::io;
use std::path::{Path, PathBuf};

use common::rng::Rng;
use ledger::BookieId;
use metadata::{
    Cluster, Cookie, CookieMismatch, CookieVerdict, Cookies, InstanceId, LocalCookie, MetadataStore, WriteError,
};

use crate::disk::Disk;
use crate::error::Error;
use crate::format::SegmentId;
use crate::index::{Index, rows};
use crate::wipe::FORMATTING_FILE;

pub(crate) const VERSION_FILE: &str = "VERSION";
pub(crate) const INTENT_FILE: &str = "VERSION.new";
const COOKIE_BYTES_MAX: usize = 64 << 10;
/// What file systems put into an empty directory.
const FOREIGN_NAMES: [&str; 2] = ["lost+found", "VERSION.new.tmp"];

/// The cookie of a bookie of ours in a cluster: the same for each of its directories and in metadata.
///
/// # Errors
/// None for the names that are fixed today.
pub fn cookie_of(id: &BookieId, instance: &str) -> Result<Cookie, metadata::Error> {
    // Names instead of paths: the directory may be moved.
    Cookie::new(id.clone(), vec!["journal".into()], vec!["journal".into()], instance)
}

/// Directories of a bookie.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    pub(crate) root: PathBuf,
    pub(crate) journal: PathBuf,
    pub(crate) index: PathBuf,
}

impl Directories {
    pub(crate) fn of(root: &Path) -> Self {
        Self { root: root.to_path_buf(), journal: root.join("journal"), index: root.join("index") }
    }
}

/// A directory that may be used, and what is still to be done to make it this bookie's.
pub(crate) struct Identity {
    instance: InstanceId,
    cookie: Cookie,
    new: bool,
}

/// The id of the bookie whose data is in `dir`; `None` for a directory that is not a bookie's yet.
///
/// # Errors
/// When its cookie cannot be read.
pub async fn known_id(disk: &dyn Disk, dir: &Path) -> Result<Option<BookieId>, Error> {
    for name in [VERSION_FILE, INTENT_FILE] {
        if let Some(cookie) = read_cookie(disk, &dir.join(name)).await? {
            return Ok(Some(cookie.bookie));
        }
    }
    Ok(None)
}

/// Compares directory, metadata and configuration.
///
/// # Errors
/// [`Error::Identity`] with a sentence that says what does not fit and what to do.
pub(crate) async fn check(
    disk: &dyn Disk,
    dirs: &Directories,
    store: &dyn MetadataStore,
    cookies: &Cookies,
    id: &BookieId,
    rng: &Rng,
) -> Result<Identity, Error> {
    BookieId::for_real_bookie(id.as_str()).map_err(|error| Error::Identity(error.to_string()))?;
    disk.create_dir(&dirs.root).await.map_err(Error::disk("create", &dirs.root))?;
    let mark = dirs.root.join(FORMATTING_FILE);
    if disk.read_file(&mark, COOKIE_BYTES_MAX).await.map_err(Error::disk("read", &mark))?.is_some() {
        return Err(Error::Identity(format!(
            "the removal of the data in directory {} was begun and has not ended: run `thermocline bookie format` again",
            dirs.root.display()
        )));
    }
    let local = [local_cookie(disk, &dirs.root).await?, local_cookie(disk, &dirs.journal).await?];
    let known_here = local.iter().any(|local| local.cookie.is_some());
    let instance = if known_here {
        // A cluster that lost its identity must not get a new one from a bookie with data.
        Cluster::open(store).await.map_err(|error| Error::metadata("read the cluster", error))?
    } else {
        Some(Cluster::init_or_open(store, rng).await.map_err(|error| Error::metadata("read the cluster", error))?)
    };
    let Some(instance) = instance else {
        let text =
            format!("directory {} has data of a bookie, but the metadata store holds no cluster", dirs.root.display());
        return Err(Error::Identity(text));
    };
    let cookie = cookie_of(id, instance.as_str()).map_err(|error| Error::metadata("make the cookie", error))?;
    let stored = cookies.get(id).await.map_err(|error| Error::metadata("read the cookie", error))?;
    let stored = stored.map(|(cookie, _)| cookie);
    match metadata::verify(&local, stored.as_ref(), &cookie) {
        Ok(CookieVerdict::Known) => Ok(Identity { instance, cookie, new: false }),
        Ok(CookieVerdict::NewBookie) => {
            refuse_foreign_files(disk, dirs, &cookie).await?;
            Ok(Identity { instance, cookie, new: true })
        }
        Err(mismatch @ (CookieMismatch::Blank { .. } | CookieMismatch::NotInCluster { .. })) => {
            // The set-up of this very bookie, cut short after its cookie was stored?
            if intends(disk, dirs, &cookie).await? && !has_segments(disk, dirs).await? && stored.is_some() {
                return Ok(Identity { instance, cookie, new: true });
            }
            Err(Error::Identity(mismatch.to_string()))
        }
        Err(mismatch) => Err(Error::Identity(mismatch.to_string())),
    }
}

impl Identity {
    /// The cluster the directory belongs to.
    pub(crate) fn instance(&self) -> &InstanceId {
        &self.instance
    }

    /// Writes down that this directory is about to become this bookie's. To be called before anything is created in it.
    pub(crate) async fn intend(&self, disk: &dyn Disk, dirs: &Directories) -> Result<(), Error> {
        if self.new {
            let path = dirs.root.join(INTENT_FILE);
            disk.write_file(&path, self.cookie.encode().as_bytes()).await.map_err(Error::disk("write", &path))?;
            disk.create_dir(&dirs.journal).await.map_err(Error::disk("create", &dirs.journal))?;
        }
        Ok(())
    }

    /// Checks that the index belongs to this bookie; completes the set-up of a new one, metadata first.
    pub(crate) async fn confirm(
        &self,
        disk: &dyn Disk,
        dirs: &Directories,
        cookies: &Cookies,
        index: &dyn Index,
    ) -> Result<(), Error> {
        let text = self.cookie.encode();
        match rows::identity(index).await? {
            Some(found) if found == text => {}
            None if self.new => index.write(vec![rows::put_identity(&text)]).await?,
            found => {
                let (index, root, bookie) = (dirs.index.display(), dirs.root.display(), &self.cookie.bookie);
                let other = format!(
                    "bring the right directory back, or remove bookie {bookie} from the cluster and start it in an empty directory"
                );
                return Err(Error::Identity(match found {
                    Some(_) => format!("the index in {index} is of another bookie: {other}"),
                    None => format!(
                        "the index in {index} is blank: make it anew with `thermocline bookie rebuild-index --dir {root}`, {other}"
                    ),
                }));
            }
        }
        if !self.new {
            return Ok(());
        }
        match cookies.create(&self.cookie).await {
            Ok(_) => {}
            Err(WriteError::Conflict(Some(found))) if *found == self.cookie => {}
            Err(WriteError::Conflict(_)) => {
                let text = format!("another bookie called {} was set up at the same time", self.cookie.bookie);
                return Err(Error::Identity(text));
            }
            Err(WriteError::NotDone(error) | WriteError::Unknown(error)) => {
                return Err(Error::metadata("store the cookie", error));
            }
        }
        for dir in [&dirs.journal, &dirs.root] {
            let path = dir.join(VERSION_FILE);
            disk.write_file(&path, text.as_bytes()).await.map_err(Error::disk("write", &path))?;
        }
        let path = dirs.root.join(INTENT_FILE);
        disk.remove(&path).await.map_err(Error::disk("remove", &path))?;
        disk.sync_dir(&dirs.root).await.map_err(Error::disk("sync", &dirs.root))
    }
}

async fn local_cookie(disk: &dyn Disk, dir: &Path) -> Result<LocalCookie, Error> {
    let cookie = read_cookie(disk, &dir.join(VERSION_FILE)).await?;
    Ok(LocalCookie { dir: dir.display().to_string(), cookie })
}

async fn read_cookie(disk: &dyn Disk, path: &Path) -> Result<Option<Cookie>, Error> {
    let content = disk.read_file(path, COOKIE_BYTES_MAX).await.map_err(Error::disk("read", path))?;
    let decode = |content: Vec<u8>| {
        Cookie::decode(&content)
            .map_err(|error| Error::Identity(format!("the cookie {} is damaged: {error}", path.display())))
    };
    content.map(decode).transpose()
}

async fn intends(disk: &dyn Disk, dirs: &Directories, cookie: &Cookie) -> Result<bool, Error> {
    Ok(read_cookie(disk, &dirs.root.join(INTENT_FILE)).await?.as_ref() == Some(cookie))
}

async fn has_segments(disk: &dyn Disk, dirs: &Directories) -> Result<bool, Error> {
    match disk.list(&dirs.journal).await {
        Ok(names) => Ok(names.iter().any(|name| SegmentId::from_file_name(name).is_some())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Disk { action: "list", path: dirs.journal.clone(), source }),
    }
}

/// A new bookie begins in an empty directory, or in one where it began before.
async fn refuse_foreign_files(disk: &dyn Disk, dirs: &Directories, cookie: &Cookie) -> Result<(), Error> {
    if intends(disk, dirs, cookie).await? && !has_segments(disk, dirs).await? {
        return Ok(());
    }
    let names = disk.list(&dirs.root).await.map_err(Error::disk("list", &dirs.root))?;
    match names.iter().find(|name| !FOREIGN_NAMES.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Error::Identity(format!(
            "directory {} has no cookie but is not empty (it holds {name}): give bookie {} an empty directory, or bring its \
             VERSION file back",
            dirs.root.display(),
            cookie.bookie
        ))),
    }
}
