use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Class;
use super::seal::seal;
use crate::disk::{AlignedBuffer, BLOCK_BYTES, DiskFile, read_one};
use crate::error::Error;
use crate::format::{
    GROUP_HEADER_BYTES, GroupCheck, GroupHead, Place, Record, SegmentHeader, SegmentId, Trailer, decode_group,
};
use crate::store::{Durable, LedgerSlot, OpenSegment, Store};

/// Read ahead during replay, in bytes.
const WINDOW_BYTES: u64 = 1 << 20;
/// Groups up to this length are read at once; a longer one is first checked in parts, so that a damaged length takes no memory.
const AT_ONCE_BYTES: u64 = 4 << 20;

/// What replay leaves the writer to go on from.
pub(crate) struct Replayed {
    /// Sequence of the last valid group.
    pub(crate) last_sequence: u64,
    /// Entries that were read again.
    pub(crate) entries: u64,
    /// Segments that could not be sealed because the index has no space, oldest first.
    pub(crate) unsealed: Vec<Arc<OpenSegment>>,
}

/// Replays the segments that the index does not cover, oldest first, and seals each where it ends.
///
/// Where everything is in limbo, the journal was not synced and may have holes anywhere: what is whole is taken, wherever it stands.
///
/// # Errors
/// Missing space for the index is none: segments are served unsealed. [`Error::Damaged`] when a group in the middle is damaged; then nothing was changed.
pub(crate) async fn replay(store: &Store, segments: &[SegmentId], mut last_sequence: u64) -> Result<Replayed, Error> {
    let mut replayed = Vec::new();
    let mut entries = 0;
    // All are read before the first is changed.
    for id in segments {
        let segment = Arc::new(open_segment(store, *id).await?);
        if is_cut(&segment).await? {
            let what = "the file is shorter than it was made, and its index is not at its end; bring it back whole";
            return Err(Error::damaged(&segment.path, segment.capacity, what));
        }
        segment.index_mut().last_sequence = last_sequence;
        let window = Window::new(&*segment.file, &segment.path, segment.capacity);
        let is_last = segments.last() == Some(id);
        let tail = match (store.limbo.is_everything(), is_last) {
            (true, _) => Tail::Unsynced,
            (false, true) => Tail::Last,
            (false, false) => Tail::Followed,
        };
        let reader = Reader { store, segment: &segment, window, tail, take: Reread::Everything };
        let end = reader.read_groups(last_sequence).await?;
        last_sequence = end.last_sequence;
        entries += segment.index().entries;
        store.add_unsealed(segment.clone());
        replayed.push((segment, end.dropped));
    }
    let mut unsealed = Vec::new();
    for (segment, dropped) in replayed {
        store.allocated_bytes.fetch_add(segment.capacity, Ordering::Relaxed);
        // In order: behind one that waits all wait.
        let mut overwritten = false;
        if unsealed.is_empty() {
            match seal(store, &segment).await {
                Ok(()) => continue,
                // The file has its own index and length by now; only the index does not have the rows.
                Err(error) if error.is_index_full() => overwritten = true,
                Err(error) => return Err(error),
            }
            store.seal_waits.send_replace(true);
        }
        // Sealing overwrites them, or cuts them off; behind the segments to come they would be taken for damage of this one.
        for offset in dropped.into_iter().filter(|_| !overwritten) {
            let (_, wiped) = segment.file.write(offset, AlignedBuffer::zeroed(BLOCK_BYTES), false).await;
            wiped.map_err(Error::disk("write", &segment.path))?;
        }
        // An earlier run may have written it without syncing; and that it was cut must last.
        segment.file.sync().await.map_err(Error::disk("sync", &segment.path))?;
        unsealed.push(segment);
    }
    Ok(Replayed { last_sequence, entries, unsealed })
}

/// What may be missing at the end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// No later segment was opened: what a crash kept from the disk.
    Last,
    /// A later one was: nothing.
    Followed,
    /// It was not synced: anything, anywhere.
    Unsynced,
}

/// What is taken from a segment that is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reread {
    Everything,
    /// Keys, fences and explicit last-add-confirmed: where its entries are is known.
    Controls,
}

/// Reads the groups of one segment again, past whatever is damaged, into the store's ledgers. With how many groups are damaged or
/// missing. The store must have everything in limbo. `last_sequence` is
/// that of the segment before; with `follows` nothing lies between the two.
///
/// # Errors
/// When the file cannot be read, or has no header.
pub(crate) async fn reread(
    store: &Store,
    id: SegmentId,
    (last_sequence, follows): (u64, bool),
    tail: Tail,
    take: Reread,
) -> Result<(Arc<OpenSegment>, u64), Error> {
    debug_assert!(store.limbo.is_everything(), "what is missing must not be told as absent afterwards");
    let segment = Arc::new(open_segment(store, id).await?);
    segment.index_mut().last_sequence = last_sequence;
    let window = Window::new(&*segment.file, &segment.path, segment.capacity);
    let reader = Reader { store, segment: &segment, window, tail, take };
    let end = reader.read_groups(if follows { last_sequence } else { 0 }).await?;
    let cut = u64::from(is_cut(&segment).await?);
    Ok((segment, end.missing.max(cut)))
}

/// A record as it stands in a segment.
pub(crate) struct Visited<'a> {
    /// Of its group.
    pub(crate) sequence: u64,
    pub(crate) record: Record<'a>,
    pub(crate) place: Place,
}

/// What a walk over a segment came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walked {
    pub(crate) groups: u64,
    pub(crate) last_sequence: u64,
    /// Groups that are damaged or missing between others.
    pub(crate) missing: u64,
}

/// Shows every record of a segment in the order of the file, past whatever is damaged. Nothing is changed.
///
/// # Errors
/// When the file cannot be read, or has no header.
pub(crate) async fn walk(
    store: &Store,
    id: SegmentId,
    tail: Tail,
    visit: &mut (dyn FnMut(Visited<'_>) + Send),
) -> Result<Walked, Error> {
    let segment = Arc::new(open_segment(store, id).await?);
    let window = Window::new(&*segment.file, &segment.path, segment.capacity);
    let mut reader = Reader { store, segment: &segment, window, tail, take: Reread::Everything };
    let (mut walked, mut next) = (Walked::default(), Some(BLOCK_BYTES as u64));
    while let Some(offset) = next {
        let Found::Group(head, group) = reader.group_at(offset).await? else {
            if reader.ends_at(offset, walked.last_sequence).await? {
                break;
            }
            next = reader.group_behind(offset, walked.last_sequence).await?;
            continue;
        };
        walked.missing += gap(walked.last_sequence, offset, &head);
        (walked.groups, walked.last_sequence) = (walked.groups + 1, head.sequence);
        let damaged = |damage: crate::format::Damage| Error::damaged(&segment.path, offset, damage.0);
        for (record, place) in decode_group(&head, &group).map_err(damaged)? {
            // Segments are shorter than 4 GiB.
            let place = Place { offset: (offset as u32).saturating_add(place.offset), ..place };
            visit(Visited { sequence: head.sequence, record, place });
        }
        next = Some(offset + (group.len() as u64).next_multiple_of(BLOCK_BYTES as u64));
    }
    walked.missing = walked.missing.max(u64::from(is_cut(&segment).await?));
    Ok(walked)
}

/// Groups that are missing before one. Before the first of a segment none needs to be: others may be dropped.
fn gap(last_sequence: u64, offset: u64, head: &GroupHead) -> u64 {
    match last_sequence {
        0 => u64::from(offset > BLOCK_BYTES as u64),
        last => head.sequence.saturating_sub(last + 1),
    }
}

/// Whether a segment was written to, as its first group tells. `false` for one that was made halfway.
///
/// # Errors
/// When the file cannot be read.
pub(crate) async fn begins_with_a_group(store: &Store, id: SegmentId) -> Result<bool, Error> {
    let path = store.sealed.path(id);
    let file = store.disk.open(&path).await.map_err(Error::disk("open", &path))?;
    let bytes = file.facts().await.map_err(Error::disk("read", &path))?.bytes;
    if bytes < 2 * BLOCK_BYTES as u64 {
        return Ok(false);
    }
    let blocks = read_one(&*file, 0..2 * BLOCK_BYTES as u64).await.map_err(Error::disk("read", &path))?;
    let (header, group) = blocks.split_at(BLOCK_BYTES);
    let Ok(header) = SegmentHeader::decode(header) else { return Ok(false) };
    Ok(GroupHead::peek(group, &header, bytes - BLOCK_BYTES as u64).is_some())
}

/// Whether something took the end of a file away: it is shorter than it was made, and not because it was sealed. Groups may be missing
/// there that nothing else would tell of.
async fn is_cut(segment: &OpenSegment) -> Result<bool, Error> {
    let (file, bytes) = (&*segment.file, segment.capacity);
    let read = async |range| read_one(file, range).await.map_err(Error::disk("read", &segment.path));
    let block = read(0..BLOCK_BYTES as u64).await?;
    let reserved =
        SegmentHeader::reserved_bytes(&block).map_err(|damage| Error::damaged(&segment.path, 0, damage.0))?;
    if reserved.is_none_or(|reserved| bytes >= reserved) {
        return Ok(false);
    }
    let trailer = read(bytes.saturating_sub(BLOCK_BYTES as u64)..bytes).await?;
    Ok(!Trailer::decode(&trailer, bytes).is_ok_and(|trailer| trailer.segment == segment.header))
}

async fn open_segment(store: &Store, id: SegmentId) -> Result<OpenSegment, Error> {
    let path = store.sealed.path(id);
    let file = store.disk.open(&path).await.map_err(Error::disk("open", &path))?;
    let facts = file.facts().await.map_err(Error::disk("read", &path))?;
    let block = read_one(&*file, 0..BLOCK_BYTES as u64).await.map_err(Error::disk("read the header of", &path))?;
    let header = SegmentHeader::decode(&block).map_err(|damage| Error::damaged(&path, 0, damage.0))?;
    if header.id != id {
        return Err(Error::damaged(&path, 0, format!("its name says segment {id}, its header segment {}", header.id)));
    }
    Ok(OpenSegment::new(header, path, file, facts.bytes, Class::Normal))
}

struct Reader<'a> {
    store: &'a Store,
    segment: &'a Arc<OpenSegment>,
    window: Window<'a>,
    tail: Tail,
    take: Reread,
}

/// Where the groups of a segment end.
struct End {
    last_sequence: u64,
    /// Where groups begin that came to the disk beside one that did not.
    dropped: Vec<u64>,
    /// Groups that are missing between others, where everything that is whole is taken.
    missing: u64,
}

/// What stands at a block boundary.
enum Found {
    Group(GroupHead, Bytes),
    Nothing,
}

impl Reader<'_> {
    /// Applies all groups up to the first that is not whole.
    async fn read_groups(mut self, mut last_sequence: u64) -> Result<End, Error> {
        let salvages = self.store.limbo.is_everything();
        let (mut offset, mut missing) = (BLOCK_BYTES as u64, 0);
        loop {
            match self.group_at(offset).await? {
                Found::Group(head, group) => {
                    if head.sequence != last_sequence + 1 {
                        // Of a segment that could not be read once another may have gone on with its numbers.
                        let is_first = offset == BLOCK_BYTES as u64;
                        if !salvages || (head.sequence <= last_sequence && !is_first) {
                            let what =
                                format!("group {} follows group {last_sequence}: groups are missing", head.sequence);
                            return Err(Error::damaged(&self.segment.path, offset, what));
                        }
                        missing += gap(last_sequence, offset, &head).max(u64::from(head.sequence <= last_sequence));
                    }
                    let end = offset + (group.len() as u64).next_multiple_of(BLOCK_BYTES as u64);
                    self.apply(&head, &group, offset, end).await?;
                    (last_sequence, offset) = (head.sequence, end);
                }
                Found::Nothing if salvages && self.ends_at(offset, last_sequence).await? => {
                    return Ok(End { last_sequence, dropped: Vec::new(), missing });
                }
                Found::Nothing if salvages => match self.group_behind(offset, last_sequence).await? {
                    Some(found) => offset = found,
                    None => return Ok(End { last_sequence, dropped: Vec::new(), missing }),
                },
                Found::Nothing => {
                    let dropped = self.groups_to_drop(offset, last_sequence).await?;
                    return Ok(End { last_sequence, dropped, missing });
                }
            }
        }
    }

    /// Whether the journal ends here as after an ordinary crash: what stands behind was never acknowledged.
    async fn ends_at(&mut self, offset: u64, last_sequence: u64) -> Result<bool, Error> {
        if self.tail != Tail::Last {
            return Ok(false);
        }
        match self.groups_to_drop(offset, last_sequence).await {
            Ok(_) => Ok(true),
            Err(Error::Damaged { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Where the next group begins behind a place without one.
    async fn group_behind(&mut self, offset: u64, last_sequence: u64) -> Result<Option<u64>, Error> {
        let mut next = offset + BLOCK_BYTES as u64;
        while next < self.window.file_bytes {
            if let Found::Group(head, _) = self.group_at(next).await?
                && head.sequence > last_sequence
            {
                return Ok(Some(next));
            }
            next += BLOCK_BYTES as u64;
        }
        Ok(None)
    }

    async fn group_at(&mut self, offset: u64) -> Result<Found, Error> {
        let left = self.window.file_bytes.saturating_sub(offset);
        if left < GROUP_HEADER_BYTES as u64 {
            return Ok(Found::Nothing);
        }
        let block = self.window.get(offset, GROUP_HEADER_BYTES as u64).await?;
        let Some(head) = GroupHead::peek(&block, &self.segment.header, left) else { return Ok(Found::Nothing) };
        if u64::from(head.bytes) > AT_ONCE_BYTES && !self.holds(offset, &head, &block).await? {
            return Ok(Found::Nothing);
        }
        let group = self.window.get(offset, u64::from(head.bytes)).await?;
        Ok(if decode_group(&head, &group).is_ok() { Found::Group(head, group) } else { Found::Nothing })
    }

    /// Whether a long group is as it was written.
    async fn holds(&mut self, offset: u64, head: &GroupHead, header: &[u8]) -> Result<bool, Error> {
        let Some(mut check) = GroupCheck::new(header) else { return Ok(false) };
        let (mut at, end) = (offset + GROUP_HEADER_BYTES as u64, offset + u64::from(head.bytes));
        while at < end {
            let part = self.window.get(at, WINDOW_BYTES.min(end - at)).await?;
            check.put(&part);
            at += part.len() as u64;
        }
        Ok(check.holds())
    }

    /// Groups that begin behind the end: what was at the disk together with a group that a crash kept from it.
    ///
    /// # Errors
    /// When one of them shows that the group which should begin at `end` was durable once.
    async fn groups_to_drop(&mut self, end: u64, last_sequence: u64) -> Result<Vec<u64>, Error> {
        let (missing, mut dropped) = (last_sequence + 1, Vec::new());
        let mut offset = end + BLOCK_BYTES as u64;
        while offset < self.window.file_bytes {
            let mut next = offset + BLOCK_BYTES as u64;
            if let Found::Group(head, group) = self.group_at(offset).await?
                && head.sequence > last_sequence
            {
                // All groups of a segment are durable before the next segment is opened.
                if head.settled_through() >= missing || self.tail != Tail::Last {
                    let what = format!(
                        "group {missing} is damaged, and group {} at offset {offset} shows that it was once complete; \
                         restore the file from a copy, or decommission this bookie",
                        head.sequence
                    );
                    return Err(Error::damaged(&self.segment.path, end, what));
                }
                dropped.push(offset);
                next = offset + (group.len() as u64).next_multiple_of(BLOCK_BYTES as u64);
            }
            offset = next;
        }
        if !dropped.is_empty() {
            let (groups, path) = (dropped.len(), self.segment.path.display());
            tracing::info!(%path, end, missing, groups, "a crash kept a group from the disk: those beside it are dropped");
        }
        Ok(dropped)
    }

    async fn apply(&self, head: &GroupHead, group: &Bytes, offset: u64, end: u64) -> Result<(), Error> {
        let mut records =
            decode_group(head, group).map_err(|damage| Error::damaged(&self.segment.path, offset, damage.0))?;
        if self.take == Reread::Controls {
            records.retain(|(record, _)| !record.kind.is_entry());
        }
        let start = u32::try_from(offset)
            .map_err(|_| Error::damaged(&self.segment.path, offset, "the segment is longer than a segment can be"))?;
        let mut slots: Vec<Arc<LedgerSlot>> = Vec::with_capacity(records.len());
        for (record, _) in &records {
            let slot = match slots.last() {
                Some(slot) if slot.id() == record.ledger => slot.clone(),
                _ => self.store.slot(record.ledger).await?,
            };
            slots.push(slot);
        }
        let durable: Vec<Durable<'_>> = records
            .iter()
            .zip(&slots)
            .map(|((record, place), slot)| durable(record, slot, Place { offset: start + place.offset, ..*place }))
            .collect();
        self.store.publish(self.segment, end, head.sequence, &durable, self.store.clock.wall_ms());
        Ok(())
    }
}

fn durable<'a>(record: &Record<'a>, slot: &'a Arc<LedgerSlot>, place: Place) -> Durable<'a> {
    let peeked = if record.kind.is_entry() { ledger::peek(record.body).ok() } else { None };
    Durable {
        kind: record.kind,
        slot,
        entry: record.entry,
        last_confirmed: peeked.and_then(|peek| peek.last_confirmed),
        body: record.body,
        place,
    }
}

/// Reads a file front to back in large steps.
struct Window<'a> {
    file: &'a dyn DiskFile,
    path: &'a Path,
    file_bytes: u64,
    start: u64,
    content: Bytes,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn DiskFile, path: &'a Path, file_bytes: u64) -> Self {
        Self { file, path, file_bytes, start: 0, content: Bytes::new() }
    }

    /// Bytes that the caller has checked to lie inside the file.
    async fn get(&mut self, offset: u64, bytes: u64) -> Result<Bytes, Error> {
        let inside = offset >= self.start && offset + bytes <= self.start + self.content.len() as u64;
        if !inside {
            let end = (offset + bytes.max(WINDOW_BYTES)).min(self.file_bytes);
            let content = read_one(self.file, offset..end).await;
            self.content = content.map_err(Error::disk("read", self.path))?;
            self.start = offset;
        }
        let from = (offset - self.start) as usize;
        Ok(self.content.slice(from..from + bytes as usize))
    }
}
