//! A look into the directory of a bookie that does not run. Nothing is changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use common::blocking::run_blocking;
use common::clock::Clock;
use common::shutdown::TaskTree;
use ledger::{EntryId, LedgerId};

use crate::config::BookieConfig;
use crate::disk::{Disk as _, LocalDisk};
use crate::error::Error;
use crate::format::{LedgerRow, Place, RecordKind, SegmentId};
use crate::identity::Directories;
use crate::index::MemoryIndex;
use crate::journal::{Tail, Visited, walk};
use crate::limbo::Limbo;
use crate::limbo::MARK_FILE;
use crate::rebuild::cookie_of;
use crate::store::{SealedFile, Store, Tombstones};
use crate::wipe;

/// The journal segments of a stopped bookie. Holds the lock of the directory.
pub struct Inspection {
    /// The id of the bookie.
    pub bookie: String,
    /// Number and length in bytes of each segment, oldest first.
    pub segments: Vec<(u64, u64)>,
    store: Store,
    /// A run that did not sync has not ended in order.
    unsynced: bool,
    /// `None`: there is no index to be locked.
    _lock: Option<std::fs::File>,
}

/// What [`Inspection::check`] found in a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentCheck {
    /// Whether the segment has an index of its own, all of which is readable.
    pub sealed: bool,
    /// Groups that are as they were written.
    pub groups: u64,
    /// Records in them.
    pub records: u64,
    /// Distinct entries.
    pub entries: u64,
    /// Ledgers with anything in the segment.
    pub ledgers: u64,
    /// Groups that are damaged or missing.
    pub damaged_groups: u64,
    /// Entries that the segment's own index does not have, or has elsewhere than they are.
    pub wrong_rows: u64,
}

impl SegmentCheck {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damaged_groups == 0 && self.wrong_rows == 0
    }
}

/// What the segments hold of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerSeen {
    /// Segments with anything of it.
    pub segments: u64,
    /// Entries; one that was added again in another segment counts twice.
    pub entries: u64,
    /// The lowest entry.
    pub first: Option<EntryId>,
    /// The highest entry.
    pub last: Option<EntryId>,
    /// Whether a fence was found.
    pub fenced: bool,
}

/// A record of the journal, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSeen {
    /// Where it begins in its segment.
    pub offset: u32,
    /// The group it is in.
    pub sequence: u64,
    /// What it says.
    pub kind: RecordKind,
    /// The ledger it is about.
    pub ledger: LedgerId,
    /// The entry, for those that carry one.
    pub entry: Option<EntryId>,
    /// Length of its body in bytes.
    pub bytes: u64,
}

impl Inspection {
    /// Opens the directory of a bookie that does not run.
    ///
    /// # Errors
    /// [`Error::Identity`] when it is no bookie's, or the bookie runs; else what the disk refused.
    pub async fn open(dir: &Path) -> Result<Self, Error> {
        let dirs = Directories::of(dir);
        let cookie = cookie_of(dirs.clone()).await?;
        let index_dir = dirs.index.clone();
        let mark = dirs.root.join(MARK_FILE);
        let unsynced = run_blocking("mark", move || mark.exists()).await;
        let lock = run_blocking("index-lock", move || wipe::lock(&index_dir)).await?;
        let disk = Arc::new(LocalDisk::open(&dirs.journal).await.map_err(Error::disk("open", &dirs.journal))?);
        let names = disk.list(&dirs.journal).await.map_err(Error::disk("list", &dirs.journal))?;
        let index = Arc::new(MemoryIndex::new());
        let tombstones = Tombstones::load(&*index).await?;
        let (config, clock, limbo) = (BookieConfig::default(), Clock::system(), Limbo::new(true));
        let tasks = TaskTree::root("inspect");
        let store = Store::new(config, dirs.journal, disk, index, clock, (tombstones, limbo), &tasks);
        let mut segments = Vec::new();
        for id in names.iter().filter_map(|name| SegmentId::from_file_name(name)) {
            let path = store.sealed.path(id);
            let file = store.disk.open(&path).await.map_err(Error::disk("open", &path))?;
            segments.push((id.get(), file.facts().await.map_err(Error::disk("read", &path))?.bytes));
        }
        segments.sort_unstable();
        let bookie = metadata::Cookie::decode(cookie.as_bytes()).map(|cookie| cookie.bookie.to_string());
        Ok(Self { bookie: bookie.unwrap_or_default(), segments, store, unsynced, _lock: lock })
    }

    fn tail(&self, segment: u64) -> Tail {
        // A spare one behind it has no groups, which is as if it were not there.
        match self.segments.last() {
            _ if self.unsynced => Tail::Unsynced,
            Some((last, _)) if *last <= segment + 1 => Tail::Last,
            _ => Tail::Followed,
        }
    }

    /// The name of a segment's file.
    #[must_use]
    pub fn file_name(segment: u64) -> String {
        SegmentId::new(segment).file_name()
    }

    /// Reads all of a segment, and compares its own index, where it has one, with its records.
    ///
    /// # Errors
    /// When the segment cannot be read at all.
    pub async fn check(&self, segment: (u64, u64)) -> Result<SegmentCheck, Error> {
        let (mut check, mut ledgers) = (SegmentCheck::default(), BTreeSet::new());
        let mut entries: HashMap<(LedgerId, EntryId), Place> = HashMap::new();
        let mut visit = |visited: Visited<'_>| {
            let record = visited.record;
            check.records += 1;
            ledgers.insert(record.ledger);
            if record.kind.is_entry() {
                entries.insert((record.ledger, record.entry), visited.place);
            }
        };
        let walked = walk(&self.store, SegmentId::new(segment.0), self.tail(segment.0), &mut visit).await?;
        (check.groups, check.damaged_groups) = (walked.groups, walked.missing);
        (check.entries, check.ledgers) = (entries.len() as u64, ledgers.len() as u64);
        let Ok((sealed, rows)) = self.sealed(segment).await else { return Ok(check) };
        check.sealed = true;
        check.damaged_groups += sealed.trailer().last_sequence.saturating_sub(walked.last_sequence);
        let indexed: u64 = rows.iter().map(|row| row.count).sum();
        for block in 0..sealed.trailer().layout.entry_blocks() {
            let block = sealed.entry_block(block).await?;
            for row in &rows {
                for entry in block.entries_of(row.ledger) {
                    let found = entries.get(&(row.ledger, entry));
                    // Of a damaged group the index knows more than the records, which is as it should be.
                    let differs = found.is_some() && block.find(row.ledger, entry).as_ref() != found;
                    check.wrong_rows += u64::from(differs);
                }
            }
        }
        check.wrong_rows += (entries.len() as u64).saturating_sub(indexed);
        Ok(check)
    }

    /// Adds what a segment holds of each ledger. Reads the segment's own index where it has one, else its records.
    ///
    /// # Errors
    /// When the segment cannot be read at all.
    pub async fn add_ledgers(
        &self,
        segment: (u64, u64),
        ledgers: &mut BTreeMap<LedgerId, LedgerSeen>,
    ) -> Result<(), Error> {
        let mut here: BTreeMap<LedgerId, LedgerSeen> = BTreeMap::new();
        if let Ok((_, rows)) = self.sealed(segment).await {
            for row in rows {
                let (first, last) = row.entries.unzip();
                let seen = LedgerSeen { segments: 1, entries: row.count, first, last, fenced: row.fenced };
                here.insert(row.ledger, seen);
            }
        } else {
            let mut visit = |visited: Visited<'_>| {
                let record = visited.record;
                let seen =
                    here.entry(record.ledger).or_insert_with(|| LedgerSeen { segments: 1, ..Default::default() });
                seen.fenced |= record.kind == RecordKind::Fence;
                if record.kind.is_entry() {
                    seen.entries += 1;
                    seen.first = Some(seen.first.map_or(record.entry, |first| first.min(record.entry)));
                    seen.last = seen.last.max(Some(record.entry));
                }
            };
            walk(&self.store, SegmentId::new(segment.0), self.tail(segment.0), &mut visit).await?;
        }
        for (ledger, more) in here {
            let seen = ledgers.entry(ledger).or_default();
            seen.segments += 1;
            seen.entries += more.entries;
            seen.first = [seen.first, more.first].into_iter().flatten().min();
            seen.last = seen.last.max(more.last);
            seen.fenced |= more.fenced;
        }
        Ok(())
    }

    /// Shows every record of a segment in the order of the file. With how many groups are damaged or missing between them.
    ///
    /// # Errors
    /// When the segment cannot be read at all.
    pub async fn records(&self, segment: u64, mut show: impl FnMut(RecordSeen) + Send) -> Result<u64, Error> {
        let mut visit = |visited: Visited<'_>| {
            let record = visited.record;
            show(RecordSeen {
                offset: visited.place.offset,
                sequence: visited.sequence,
                kind: record.kind,
                ledger: record.ledger,
                entry: record.kind.is_entry().then_some(record.entry),
                bytes: record.body.len() as u64,
            });
        };
        Ok(walk(&self.store, SegmentId::new(segment), self.tail(segment), &mut visit).await?.missing)
    }

    /// The segment's own index and its ledgers; an error where it has none, or one that is damaged.
    async fn sealed(&self, (id, bytes): (u64, u64)) -> Result<(SealedFile, Vec<LedgerRow>), Error> {
        let id = SegmentId::new(id);
        let path = self.store.sealed.path(id);
        let file = self.store.disk.open(&path).await.map_err(Error::disk("open", &path))?;
        SealedFile::read_whole(id, path, file, bytes).await
    }
}
