use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use ledger::{EntryId, LedgerId};
use proto::{ReadTarget, Status};

use super::{LedgerSlot, Store};
use crate::disk::DiskFile;
use crate::error::Error;
use crate::format::{Place, RECORD_HEADER_BYTES, SegmentId, decode_record};
use crate::index::rows;
use crate::index::rows::LedgerSegment;
use crate::ledger_state::Tombstone;

/// Records closer together than this are read in one go.
const READ_GAP_BYTES: u64 = 8 << 10;
/// Longest read that several records are joined into.
const READ_JOINED_BYTES_MAX: u64 = 512 << 10;

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) entry: EntryId,
    pub(crate) body: Bytes,
    /// Highest last-add-confirmed the bookie knows of the ledger.
    pub(crate) last_confirmed: Option<EntryId>,
}

/// Where an entry lies on the disk.
pub(crate) struct Spot {
    ledger: LedgerId,
    entry: EntryId,
    last_confirmed: Option<EntryId>,
    segment: SegmentId,
    place: Place,
    file: Arc<dyn DiskFile>,
    path: Arc<Path>,
}

impl Spot {
    /// Bytes the entry's record has.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.place.bytes)
    }

    /// Most that a read of this entry brings into memory when one of `before` goes with it: its record, and what lies between
    /// the two where they are close, which is kept as long as any of both. The sum over spots is never less than [`Store::fetch`]
    /// of all of them reads, in whatever order they lie.
    pub(crate) fn bytes_behind(&self, before: Option<&Spot>) -> u64 {
        let gap = before.map_or(0, |before| {
            let gap = self.place.offset.checked_sub(before.place.offset).map(u64::from);
            let gap = gap.and_then(|apart| apart.checked_sub(before.bytes()));
            // Apart or out of order: a read of its own, or a gap to another one.
            gap.filter(|gap| *gap < READ_GAP_BYTES && self.segment == before.segment).unwrap_or(READ_GAP_BYTES)
        });
        gap + self.bytes()
    }
}

impl Located {
    /// Bytes of the entry's body.
    pub(crate) fn body_bytes(&self) -> u64 {
        match self {
            Self::Here(found) => found.body.len() as u64,
            Self::There(spot) => spot.bytes().saturating_sub(RECORD_HEADER_BYTES as u64),
        }
    }
}

/// The first half of a read.
pub(crate) enum Located {
    /// It was in memory.
    Here(Fetched),
    /// It must be read from the disk.
    There(Spot),
}

impl Store {
    /// What can be said of a read without waiting; `None` when the index or the disk must be asked, or adds are on their way.
    pub(crate) fn read_memory(&self, slot: &LedgerSlot, target: ReadTarget) -> Option<Result<Fetched, Status>> {
        let (entry, last_confirmed) = match self.resolve(slot, target) {
            Ok(found) => found,
            Err(status) if is_absent(status) && slot.has_queued() => return None,
            Err(status) => return Some(Err(status)),
        };
        let newest = self.unsealed().into_iter().next_back()?;
        let place = newest.find(slot.id(), entry)?;
        let bytes = self.recent.get(newest.id(), place)?;
        Some(check(&bytes, slot.id(), entry, last_confirmed).map_err(|what| {
            tracing::error!(ledger = %slot.id(), %entry, what, "the write buffer holds other bytes than were written");
            Status::Io
        }))
    }

    /// The entry that is meant, and the last-add-confirmed to tell.
    fn resolve(&self, slot: &LedgerSlot, target: ReadTarget) -> Result<(EntryId, Option<EntryId>), Status> {
        let unproven = self.limbo.covers(slot.id());
        let state = slot.lock();
        match state.tombstone {
            Some(Tombstone::Deleted) => return Err(Status::NoLedger),
            _ if state.exists => {}
            _ if unproven => return Err(Status::UnknownLedgerState),
            _ => return Err(Status::NoLedger),
        }
        let entry = match (target, state.max_entry) {
            (ReadTarget::Entry(entry), _) => entry,
            // What was dropped, or lost, may have been higher.
            (ReadTarget::Last, _) if state.tombstone.is_some() || unproven => return Err(Status::UnknownLedgerState),
            (ReadTarget::Last, Some(entry)) => entry,
            (ReadTarget::Last, None) => return Err(Status::NoEntry),
        };
        Ok((entry, state.last_confirmed))
    }

    /// Whether an entry can be looked for without the index.
    pub(crate) fn needs_no_index(&self, slot: &LedgerSlot, target: ReadTarget) -> bool {
        slot.lock().segments.is_some()
            || match self.resolve(slot, target) {
                Ok((entry, _)) => self.unsealed().iter().any(|segment| segment.find(slot.id(), entry).is_some()),
                Err(_) => true,
            }
    }

    /// Asks the index what it takes to look for an entry, if it does. Cancel-safe.
    pub(crate) async fn prepare(&self, slot: &LedgerSlot, target: ReadTarget) {
        if !self.needs_no_index(slot, target) {
            // A failure is told by the search.
            let _ = self.ledger_segments(slot).await;
        }
    }

    /// Finds an entry, newest segment first. What cannot be told for sure is an error, never "no entry". Cancel-safe.
    pub(crate) async fn locate(&self, slot: &LedgerSlot, target: ReadTarget) -> Result<Located, Status> {
        // Before the search: what is fetched again is visible before its ledger is out of limbo.
        let unproven = self.limbo.covers(slot.id());
        let (entry, last_confirmed) = self.resolve(slot, target)?;
        match self.search(slot, entry, last_confirmed).await {
            Ok(Some(located)) => Ok(located),
            // The look at the tombstone comes after the search: a segment that was dropped meanwhile left one.
            Ok(None) => match (slot.lock().tombstone, target) {
                (Some(Tombstone::Deleted), _) => Err(Status::NoLedger),
                (Some(_), _) => Err(Status::UnknownLedgerState),
                (None, ReadTarget::Entry(_)) if unproven => Err(Status::UnknownLedgerState),
                (None, ReadTarget::Entry(_)) => Err(Status::NoEntry),
                (None, ReadTarget::Last) => {
                    tracing::error!(ledger = %slot.id(), %entry, "the highest entry of the ledger is in no segment");
                    Err(Status::Io)
                }
            },
            Err(error) => {
                tracing::error!(ledger = %slot.id(), %entry, error = &error as &dyn std::error::Error, "find entry");
                Err(Status::Io)
            }
        }
    }

    async fn search(
        &self,
        slot: &LedgerSlot,
        entry: EntryId,
        last_confirmed: Option<EntryId>,
    ) -> Result<Option<Located>, Error> {
        let ledger = slot.id();
        let spot = |segment, place, file: &Arc<dyn DiskFile>, path: &Arc<Path>| Spot {
            ledger,
            entry,
            last_confirmed,
            segment,
            place,
            file: file.clone(),
            path: path.clone(),
        };
        for segment in self.unsealed().iter().rev() {
            let Some(place) = segment.find(ledger, entry) else { continue };
            if let Some(bytes) = self.recent.get(segment.id(), place) {
                let fetched = check(&bytes, ledger, entry, last_confirmed);
                return fetched.map(|found| Some(Located::Here(found))).map_err(|what| {
                    Error::damaged(&segment.path, u64::from(place.offset), format!("in the write buffer: {what}"))
                });
            }
            return Ok(Some(Located::There(spot(segment.id(), place, &segment.file, &segment.path))));
        }
        for row in self.ledger_segments(slot).await?.iter().rev() {
            if !row.entries.is_some_and(|(first, last)| first <= entry && entry <= last) {
                continue;
            }
            // Not there any more: dropped while we looked, or not sealed yet and searched above.
            let Some(file) = self.sealed.open(row.segment).await? else { continue };
            if let Some(place) = self.sealed.find(&file, ledger, entry).await? {
                return Ok(Some(Located::There(spot(file.id, place, &file.file, &file.path))));
            }
        }
        Ok(None)
    }

    /// The sealed segments with entries of a ledger, oldest first; from memory after the first time. Cancel-safe.
    pub(super) async fn ledger_segments(&self, slot: &LedgerSlot) -> Result<Arc<[LedgerSegment]>, Error> {
        let epoch = {
            let state = slot.lock();
            if let Some(segments) = &state.segments {
                return Ok(segments.clone());
            }
            state.segments_epoch
        };
        // Shared with those only who looked after the same change: an older look at the index may miss what was sealed since.
        let load = || {
            let (index, ledger) = (self.index.clone(), slot.id());
            async move { Ok(rows::ledger_segments(&*index, ledger).await?.into()) }.boxed()
        };
        let segments: Arc<[LedgerSegment]> = self.segments_loads.get((slot.id(), epoch), || None, load).await?;
        let mut state = slot.lock();
        if state.segments_epoch == epoch {
            state.segments = Some(segments.clone());
        }
        Ok(segments)
    }

    /// Reads entries from the disk: one hop for each segment, neighbours together. Answers are in the order of `spots`.
    pub(crate) async fn fetch(&self, spots: &[Spot]) -> Vec<Result<Fetched, Status>> {
        let mut answers: Vec<Result<Fetched, Status>> = spots.iter().map(|_| Err(Status::Io)).collect();
        let mut order: Vec<usize> = (0..spots.len()).collect();
        order.sort_by_key(|at| (spots[*at].segment, spots[*at].place.offset));
        for run in order.chunk_by(|a, b| spots[*a].segment == spots[*b].segment) {
            let joined = join_neighbours(run.iter().map(|at| spots[*at].place));
            let file = &spots[run[0]].file;
            let contents = file.read(joined.iter().map(|(range, _)| range.clone()).collect()).await;
            let mut rest = run.iter();
            for ((range, count), content) in joined.into_iter().zip(contents) {
                for at in rest.by_ref().take(count) {
                    answers[*at] = finish(&spots[*at], range.start, &content);
                }
            }
        }
        answers
    }
}

/// Whether an answer says that there is no such entry.
pub(crate) fn is_absent(status: Status) -> bool {
    matches!(status, Status::NoEntry | Status::NoLedger)
}

/// Joins sorted places into ranges to read; each with how many places it serves.
fn join_neighbours(places: impl Iterator<Item = Place>) -> Vec<(std::ops::Range<u64>, usize)> {
    let mut joined: Vec<(std::ops::Range<u64>, usize)> = Vec::new();
    for place in places {
        let (start, end) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.bytes));
        match joined.last_mut() {
            Some((range, count))
                if start <= range.end + READ_GAP_BYTES && end - range.start <= READ_JOINED_BYTES_MAX =>
            {
                range.end = range.end.max(end);
                *count += 1;
            }
            _ => joined.push((start..end, 1)),
        }
    }
    joined
}

fn finish(spot: &Spot, range_start: u64, content: &std::io::Result<Bytes>) -> Result<Fetched, Status> {
    let damaged = |what: &str| {
        tracing::error!(
            ledger = %spot.ledger, entry = %spot.entry, file = %spot.path.display(), offset = spot.place.offset,
            "read entry: {what}"
        );
        Status::Io
    };
    let content = content.as_ref().map_err(|error| damaged(&error.to_string()))?;
    let start = (u64::from(spot.place.offset) - range_start) as usize;
    let end = start + spot.place.bytes as usize;
    if end > content.len() {
        return Err(damaged("the disk gave too few bytes"));
    }
    check(&content.slice(start..end), spot.ledger, spot.entry, spot.last_confirmed).map_err(|what| damaged(&what))
}

/// Checks that the bytes are the record that was looked for.
fn check(bytes: &Bytes, ledger: LedgerId, entry: EntryId, last_confirmed: Option<EntryId>) -> Result<Fetched, String> {
    let record = decode_record(bytes).map_err(|damage| damage.0)?;
    if !record.kind.is_entry() || record.ledger != ledger || record.entry != entry {
        return Err(format!("the record is about entry {} of ledger {}", record.entry, record.ledger));
    }
    Ok(Fetched { entry, body: bytes.slice_ref(record.body), last_confirmed })
}
