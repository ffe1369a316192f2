//! Makes the index of a bookie anew from its journal segments.
//!
//! Everything in the index follows from the segments but two things: which ledgers were dropped (the tombstones), and what was known of
//! those whose last segment is gone. The tombstones are taken over from the old index where that can be read. Where it cannot, or where
//! a segment has lost something, the bookie is marked: at its next start it asks metadata and the other members of its ledgers, and tells
//! nothing as absent until then (`limbo.rs`).
//!
//! # Order
//! The new index is made beside the old one, and takes its place once it is complete: the old one is moved aside, the new one to its place,
//! and then the old one is removed. The mark is put before that. A crash in between leaves a directory without an index, or with a blank one
//! of a start that was refused: the same command puts the old one back and begins anew.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::blocking::run_blocking;
use common::clock::Clock;
use common::shutdown::TaskTree;

use crate::config::BookieConfig;
use crate::disk::{BLOCK_BYTES, Disk, LocalDisk, read_one};
use crate::error::Error;
use crate::format::SegmentId;
use crate::identity::{Directories, VERSION_FILE};
use crate::index::rows::{self, LedgerSegment, SegmentRow, TombstoneKind};
use crate::index::{Index, RocksIndex};
use crate::journal::{Reread, Tail, enter, reread, seal, walk};
use crate::limbo::{Limbo, MARK_FILE, put_mark};
use crate::store::{SealedFile, Store, Tombstones};
use crate::wipe::{self, FORMATTING_FILE};

/// Where the new index is made.
pub(crate) const NEW_INDEX: &str = "index.new";
/// Where the old one stands until the new one has its place.
pub(crate) const OLD_INDEX: &str = "index.old";
/// Tombstones written with one write.
const CHUNKS: usize = 500;

/// What [`rebuild_index`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// The id of the bookie.
    pub bookie: String,
    /// Segments whose own index was whole and was taken as it is.
    pub sealed: u64,
    /// Segments that were read again record by record and were given an index.
    pub reread: u64,
    /// Segments that cannot be read; they were left as they are, and the new index does not name them.
    pub unreadable: Vec<String>,
    /// Segments that the old index names and that are not there.
    pub lost: Vec<String>,
    /// Groups of the journal that are damaged or missing.
    pub damaged_groups: u64,
    /// Bytes of all segments, all of which were read.
    pub bytes: u64,
    /// Entries in them.
    pub entries: u64,
    /// Ledgers with something stored.
    pub ledgers: u64,
    /// Ledgers that were dropped, taken over from the old index; `None`: it could not be read.
    pub tombstones: Option<u64>,
    /// Whether something may be missing, so that the bookie's next start looks for it.
    pub marked: bool,
}

/// Makes the index of the bookie in `dir` anew. The bookie must not run. `progress` is told how many bytes of segments were read, and
/// of how many. Not cancel-safe, but may be begun again.
///
/// # Errors
/// [`Error::Identity`] when `dir` is no bookie's, its bookie runs, its index is another bookie's, or it is being formatted; else what the
/// disk refused. Nothing was lost then that was there.
pub async fn rebuild_index(dir: &Path, progress: impl Fn(u64, u64)) -> Result<Rebuilt, Error> {
    let dirs = Directories::of(dir);
    let cookie = cookie_of(dirs.clone()).await?;
    let disk = Arc::new(LocalDisk::open(&dirs.journal).await.map_err(Error::disk("open", &dirs.journal))?);
    bring_back(&dirs, &cookie).await?;
    let old = Old::open(&dirs).await?;
    let fresh = dirs.root.join(NEW_INDEX);
    remove_dir(&fresh).await?;
    let index = Arc::new(RocksIndex::open(&fresh).await?);
    index.write(vec![rows::put_identity(&cookie)]).await?;
    let carried = old.carry_over(&*index, &cookie).await?;
    let bookie = metadata::Cookie::decode(cookie.as_bytes()).map(|cookie| cookie.bookie.to_string());
    let mut rebuilt = Rebuilt {
        bookie: bookie.unwrap_or_default(),
        tombstones: carried.as_ref().map(|carried| carried.tombstones),
        ..Rebuilt::default()
    };

    let tombstones = Tombstones::load(&*index).await?;
    let clock = Clock::system();
    let limbo = Limbo::new(true);
    let (config, tasks) = (BookieConfig::default(), TaskTree::root("rebuild"));
    let store =
        Store::new(config, dirs.journal.clone(), disk.clone(), index.clone(), clock, (tombstones, limbo), &tasks);
    let names = disk.list(&dirs.journal).await.map_err(Error::disk("list", &dirs.journal))?;
    let mut segments: Vec<SegmentId> = names.iter().filter_map(|name| SegmentId::from_file_name(name)).collect();
    segments.sort_unstable();
    let mut is_behind = false;
    if let Some(carried) = &carried {
        let mut opened = carried.opened;
        for id in segments.iter().filter(|id| **id > carried.opened) {
            if has_groups(&store, *id).await {
                opened = *id;
            }
        }
        is_behind = opened > carried.opened;
        // Spare ones were never opened for writing; a start removes them.
        segments.retain(|id| *id <= opened);
        let lost = carried.segments.iter().filter(|id| segments.binary_search(id).is_err());
        rebuilt.lost.extend(lost.map(|id| id.file_name()));
    }
    let opened = carried.as_ref().map(|carried| carried.opened).max(segments.last().copied());
    let sealed = carried.map(|carried| carried.sealed).unwrap_or_default();
    let mut sizes = Vec::with_capacity(segments.len());
    for id in &segments {
        sizes.push(file_bytes(&store, *id).await?);
    }
    let (total, mut before) = (sizes.iter().sum(), Before { id: SegmentId::NONE, last_sequence: 0 });
    let mark = dirs.root.join(MARK_FILE);
    let unsynced = run_blocking("mark", move || mark.exists()).await;
    if is_behind {
        tracing::warn!("the old index is older than the segments: what it says of dropped ledgers may be too");
    }
    if is_behind || rebuilt.tombstones.is_none() {
        // Now, since segments that are sealed anew tell less than before to a rebuild that is begun anew.
        put_mark(&*disk, &dirs.root).await?;
    }
    for (id, bytes) in segments.iter().zip(sizes) {
        progress(rebuilt.bytes, total);
        let tail = match () {
            () if unsynced => Tail::Unsynced,
            // Where a later one was opened and is lost, all groups of this one were durable.
            () if opened == Some(*id) => Tail::Last,
            () => Tail::Followed,
        };
        let source = Source { id: *id, bytes, was_sealed: sealed.contains(id), tail };
        if let Taken::Unreadable(error) = take_in(&store, &dirs.root, source, &mut before, &mut rebuilt).await? {
            tracing::error!(segment = %id, error = &error as &dyn std::error::Error, "segment cannot be read");
            rebuilt.unreadable.push(id.file_name());
        }
        rebuilt.bytes += bytes;
        store.table.trim(store.sealed_through());
    }
    // None is open: what could not be taken in is known as lost, and no start looks for it.
    if let Some(opened) = opened {
        index.write(vec![rows::put_opened(opened), rows::put_sealed(opened, before.last_sequence)]).await?;
    }
    rebuilt.ledgers = rows::count_ledgers(&*index).await?;
    rebuilt.marked = unsynced
        || is_behind
        || rebuilt.tombstones.is_none()
        || rebuilt.damaged_groups > 0
        || !rebuilt.unreadable.is_empty()
        || !rebuilt.lost.is_empty();
    progress(rebuilt.bytes, total);
    if rebuilt.marked {
        put_mark(&*disk, &dirs.root).await?;
    }
    // The last holders of the database and of its lock.
    drop((store, index));
    replace(old, dirs, fresh).await?;
    Ok(rebuilt)
}

async fn file_bytes(store: &Store, id: SegmentId) -> Result<u64, Error> {
    let path = store.sealed.path(id);
    let file = store.disk.open(&path).await.map_err(Error::disk("open", &path))?;
    Ok(file.facts().await.map_err(Error::disk("read", &path))?.bytes)
}

/// The text of the cookie, with which an index names its bookie.
pub(crate) async fn cookie_of(dirs: Directories) -> Result<String, Error> {
    run_blocking("cookie", move || read_cookies(&dirs)).await
}

fn read_cookies(dirs: &Directories) -> Result<String, Error> {
    let read = |path: PathBuf| match std::fs::read_to_string(&path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::disk("read", &path)(error)),
    };
    if read(dirs.root.join(FORMATTING_FILE))?.is_some() {
        return Err(Error::Identity(format!("{} is being formatted", dirs.root.display())));
    }
    match (read(dirs.root.join(VERSION_FILE))?, read(dirs.journal.join(VERSION_FILE))?) {
        (Some(root), Some(journal)) if root == journal => Ok(root),
        (None, _) | (_, None) => Err(Error::Identity(format!(
            "{} holds no bookie's data: it and its folder `journal` have not both a file {VERSION_FILE}",
            dirs.root.display()
        ))),
        _ => Err(Error::Identity(format!(
            "{VERSION_FILE} in {} and in its journal differ: these are of two bookies",
            dirs.root.display()
        ))),
    }
}

/// A segment to be taken in.
#[derive(Clone, Copy)]
struct Source {
    id: SegmentId,
    bytes: u64,
    /// As the old index says.
    was_sealed: bool,
    tail: Tail,
}

/// The last segment that was taken in.
struct Before {
    id: SegmentId,
    last_sequence: u64,
}

/// What the old index says that follows from no segment.
struct Carried {
    /// Dropped ledgers.
    tombstones: u64,
    /// Segments that should be there.
    segments: Vec<SegmentId>,
    /// Those of them that are sealed.
    sealed: BTreeSet<SegmentId>,
    /// The last segment opened for writing.
    opened: SegmentId,
}

/// The index as it is.
enum Old {
    Readable(Box<RocksIndex>),
    /// Locked as long as this lives, where there is one.
    Unreadable {
        _lock: Option<std::fs::File>,
    },
}

impl Old {
    async fn open(dirs: &Directories) -> Result<Self, Error> {
        let lock = async || {
            let index = dirs.index.clone();
            run_blocking("index-lock", move || wipe::lock(&index)).await
        };
        // First whether anybody uses it: that must not be taken for damage.
        let locked = lock().await?;
        if locked.is_none() {
            return Ok(Self::Unreadable { _lock: None });
        }
        drop(locked);
        match RocksIndex::open(&dirs.index).await {
            Ok(index) => Ok(Self::Readable(Box::new(index))),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the old index cannot be opened");
                Ok(Self::Unreadable { _lock: lock().await? })
            }
        }
    }

    /// Takes over what follows from no segment; `None` when it cannot be read, or was never there.
    async fn carry_over(&self, to: &dyn Index, cookie: &str) -> Result<Option<Carried>, Error> {
        let Self::Readable(index) = self else { return Ok(None) };
        let read = async {
            let from = &**index;
            let mut changes = Vec::new();
            let mut tombstones = 0;
            for kind in TombstoneKind::ALL {
                let set = rows::tombstones(from, kind).await?;
                tombstones += set.len();
                changes.extend(set.put_all(kind));
            }
            let rows_of = rows::segments(from).await?.into_iter().filter(|row| !row.dropping);
            let named: BTreeSet<SegmentId> = rows_of.map(|row| row.id).collect();
            let (opened, (sealed, _)) = (rows::opened(from).await?, rows::sealed(from).await?);
            let open = (sealed.next().get()..=opened.get()).map(SegmentId::new);
            let segments = named.iter().copied().chain(open).collect();
            let carried = Carried { tombstones, segments, sealed: named, opened };
            // One that is blank, or was not complete, says nothing.
            let identity = rows::identity(from).await?;
            if identity.as_ref().is_some_and(|found| found != cookie) {
                return Err(another_bookies());
            }
            Ok::<_, Error>(identity.map(|_| (carried, changes)))
        };
        let (carried, changes) = match read.await {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(None),
            Err(error @ Error::Identity(_)) => return Err(error),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the old index cannot be read");
                return Ok(None);
            }
        };
        for part in changes.chunks(CHUNKS) {
            to.write(part.to_vec()).await?;
        }
        Ok(Some(carried))
    }
}

fn another_bookies() -> Error {
    Error::Identity("the index is of another bookie: move it away".to_owned())
}

/// What became of a segment.
enum Taken {
    In,
    /// It is left as it is, and named.
    Unreadable(Error),
}

/// What a segment holds, unless that cannot be read. Of its own index the bookie knows what to do when it fails, and of others nobody.
fn readable<T>(read: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match read {
        Err(error @ (Error::Index { .. } | Error::IndexFull { .. })) => Err(error),
        read => Ok(read),
    }
}

/// Takes a segment into the index.
///
/// # Errors
/// When something cannot be written: the rebuild must begin anew.
async fn take_in(
    store: &Store,
    root: &Path,
    source: Source,
    before: &mut Before,
    rebuilt: &mut Rebuilt,
) -> Result<Taken, Error> {
    let (id, bytes) = (source.id, source.bytes);
    let path = store.sealed.path(id);
    let file = match store.disk.open(&path).await.map_err(Error::disk("open", &path)) {
        Ok(file) => file,
        Err(error) => return Ok(Taken::Unreadable(error)),
    };
    // Between neighbours no segment was dropped, so that no group may be missing there.
    let follows = before.id != SegmentId::NONE && before.id.next() == id;
    let after = (before.last_sequence, follows);
    let tail = source.tail;
    let Ok((sealed, ledgers)) = SealedFile::read_whole(id, path, file, bytes).await else {
        // Never sealed, or the index in it is damaged: its records tell the same.
        let (segment, missing) = match readable(reread(store, id, after, tail, Reread::Everything).await)? {
            Ok(read) => read,
            Err(error) => return Ok(Taken::Unreadable(error)),
        };
        store.add_unsealed(segment.clone());
        let entries = segment.index().entries;
        *before = Before { id, last_sequence: segment.index().last_sequence };
        if missing > 0 || source.was_sealed {
            // Once it is sealed again it looks whole, also to a rebuild that is begun anew.
            put_mark(&*store.disk, root).await?;
        }
        seal(store, &segment).await?;
        (rebuilt.reread, rebuilt.entries) = (rebuilt.reread + 1, rebuilt.entries + entries);
        // One that was sealed has lost at least its index, and nothing says that this is all.
        rebuilt.damaged_groups += missing.max(u64::from(source.was_sealed));
        return Ok(Taken::In);
    };
    let trailer = sealed.trailer();
    let (segment, mut missing) = match readable(reread(store, id, after, tail, Reread::Controls).await)? {
        Ok(read) => read,
        Err(error) => return Ok(Taken::Unreadable(error)),
    };
    missing += trailer.last_sequence.saturating_sub(segment.index().last_sequence);
    *before = Before { id, last_sequence: trailer.last_sequence };
    let mut batch = Vec::with_capacity(2 * ledgers.len());
    for row in &ledgers {
        let slot = store.slot(row.ledger).await?;
        let mut state = slot.lock();
        state.on_sealed(id, row);
        batch.push(rows::put_ledger(row.ledger, &state.row()));
        batch.push(rows::put_ledger_segment(row.ledger, &LedgerSegment { segment: id, entries: row.entries }));
        state.indexed = true;
    }
    let row = SegmentRow { id, file_bytes: bytes, entries: trailer.layout.entries, dropping: false };
    enter(store, &row, trailer.last_sequence, batch).await?;
    store.set_sealed_through(id);
    rebuilt.sealed += 1;
    rebuilt.entries += trailer.layout.entries;
    rebuilt.damaged_groups += missing;
    Ok(Taken::In)
}

/// Whether a segment was written to, or nobody can tell. One that was made halfway has no header yet.
async fn has_groups(store: &Store, id: SegmentId) -> bool {
    match walk(store, id, Tail::Unsynced, &mut |_| {}).await {
        Ok(walked) => walked.groups > 0 || walked.missing > 0,
        Err(_) => !has_no_header(store, id).await,
    }
}

async fn has_no_header(store: &Store, id: SegmentId) -> bool {
    let Ok(file) = store.disk.open(&store.sealed.path(id)).await else { return false };
    match file.facts().await {
        Ok(facts) if facts.bytes < BLOCK_BYTES as u64 => true,
        Ok(_) => read_one(&*file, 0..BLOCK_BYTES as u64).await.is_ok_and(|block| block.iter().all(|byte| *byte == 0)),
        Err(_) => false,
    }
}

/// Removes what a rebuild left that was cut short at its end. For a bookie whose index is known to be whole, before it serves: from then on
/// the index is newer than the one aside.
///
/// # Errors
/// When the disk refuses it.
pub(crate) async fn remove_leftovers(root: &Path) -> Result<(), Error> {
    for dir in [OLD_INDEX, NEW_INDEX].map(|name| root.join(name)) {
        if dir.is_dir() {
            tracing::info!(dir = %dir.display(), "an index that a rebuild left is removed");
            remove_dir(&dir).await?;
        }
    }
    Ok(())
}

async fn remove_dir(dir: &Path) -> Result<(), Error> {
    let path = dir.to_path_buf();
    run_blocking("index-remove", move || match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::disk("remove", &path)(error)),
        _ => Ok(()),
    })
    .await
}

/// Puts the new index in the place of the old one.
async fn replace(old: Old, dirs: Directories, fresh: PathBuf) -> Result<(), Error> {
    let aside = dirs.root.join(OLD_INDEX);
    let (root, from, to) = (dirs.root.clone(), dirs.index.clone(), aside.clone());
    run_blocking("index-replace", move || {
        // An open database writes where its directory was.
        drop(old);
        let _lock = wipe::lock(&from)?;
        match std::fs::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::disk("rename", &from)(error)),
            _ => {}
        }
        sync(&root)?;
        std::fs::rename(&fresh, &from).map_err(Error::disk("rename", &fresh))?;
        sync(&root)
    })
    .await?;
    remove_dir(&aside).await
}

/// Ends what a crash while one index took the place of the other has left: with a whole index the one aside is of no use any more, without
/// one it is the index.
async fn bring_back(dirs: &Directories, cookie: &str) -> Result<(), Error> {
    let aside = dirs.root.join(OLD_INDEX);
    if !aside.is_dir() {
        return Ok(());
    }
    let away = dirs.root.join(NEW_INDEX);
    if dirs.index.is_dir() {
        // One that does not open is what is left of a blank one: no bookie has served with it, or there would be none aside.
        let found = match Old::open(dirs).await? {
            Old::Readable(index) => rows::identity(&*index).await?,
            Old::Unreadable { .. } => None,
        };
        match found {
            Some(found) if found == cookie => return remove_dir(&aside).await,
            Some(_) => return Err(another_bookies()),
            None => remove_dir(&away).await?,
        }
    }
    let (root, to) = (dirs.root.clone(), dirs.index.clone());
    run_blocking("index-bring-back", move || {
        match std::fs::rename(&to, &away) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::disk("rename", &to)(error)),
            _ => {}
        }
        std::fs::rename(&aside, &to).map_err(Error::disk("rename", &aside))?;
        sync(&root)
    })
    .await
}

fn sync(dir: &Path) -> Result<(), Error> {
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::disk("sync", dir))
}
