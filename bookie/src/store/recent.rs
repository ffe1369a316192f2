use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::disk::{AlignedBuffer, BLOCK_BYTES};
use crate::format::{Place, SegmentId};

/// The newest groups of the journal, as they went to the disk: readers of the tail are served from here.
///
/// Whole groups are kept and dropped, oldest first, so that the memory is exactly what is counted, and an entry costs no
/// allocation of its own. The memory of a dropped group that nobody reads any more serves for a group to come.
#[derive(Debug)]
pub(crate) struct RecentGroups {
    bytes_max: u64,
    groups: Mutex<Groups>,
}

#[derive(Debug, Default)]
struct Groups {
    /// Of all groups and spare buffers.
    bytes: u64,
    queue: VecDeque<Group>,
    /// Of dropped groups, the last one newest.
    spare: VecDeque<AlignedBuffer>,
    spare_bytes: u64,
}

/// The part of the memory that may wait for groups to come.
const SPARE_SHARE: u64 = 8;

#[derive(Debug)]
struct Group {
    segment: SegmentId,
    start: u32,
    content: Bytes,
    /// What `content` is a part of, where that is a buffer as it went to the disk.
    buffer: Option<Arc<AlignedBuffer>>,
    /// What it occupies, slack included.
    memory_bytes: u64,
}

/// Lets bytes be read from a buffer that comes back when they are no longer.
struct Shared(Arc<AlignedBuffer>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().as_ref()
    }
}

fn memory_bytes(buffer: &AlignedBuffer) -> u64 {
    (buffer.capacity() + BLOCK_BYTES) as u64
}

impl Groups {
    fn drop_oldest(&mut self, bytes_max: u64) -> bool {
        let Some(Group { content, buffer, memory_bytes, .. }) = self.queue.pop_front() else { return false };
        drop(content);
        let may_wait = self.spare_bytes + memory_bytes <= bytes_max / SPARE_SHARE;
        match buffer.and_then(Arc::into_inner).filter(|_| may_wait) {
            Some(buffer) => {
                self.spare_bytes += memory_bytes;
                self.spare.push_back(buffer);
            }
            None => self.bytes -= memory_bytes,
        }
        true
    }

    /// Forgets a spare buffer; it is freed or used.
    fn take_spare(&mut self, at: usize) -> Option<AlignedBuffer> {
        let spare = self.spare.remove(at)?;
        self.spare_bytes -= memory_bytes(&spare);
        self.bytes -= memory_bytes(&spare);
        Some(spare)
    }
}

impl RecentGroups {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, groups: Mutex::default() }
    }

    /// Keeps a durable group that begins at `start` of its segment and has `bytes` before its padding.
    pub(crate) fn push(&self, segment: SegmentId, start: u32, buffer: AlignedBuffer, bytes: usize) {
        // A small group would keep mostly padding alive.
        let (content, buffer, memory_bytes) = if bytes < buffer.len() / 2 || bytes < 2 * BLOCK_BYTES {
            (Bytes::copy_from_slice(&buffer.as_ref()[..bytes]), None, bytes as u64)
        } else {
            let (memory_bytes, buffer) = (memory_bytes(&buffer), Arc::new(buffer));
            (Bytes::from_owner(Shared(buffer.clone())).slice(..bytes), Some(buffer), memory_bytes)
        };
        if memory_bytes > self.bytes_max {
            return;
        }
        let mut groups = self.lock();
        groups.bytes += memory_bytes;
        groups.queue.push_back(Group { segment, start, content, buffer, memory_bytes });
        while groups.bytes > self.bytes_max && groups.drop_oldest(self.bytes_max) {}
    }

    /// A buffer for a group of so many bytes, with any content.
    pub(crate) fn buffer(&self, bytes: usize) -> AlignedBuffer {
        let mut groups = self.lock();
        // One that is much longer would keep memory that serves nobody.
        let fits = |spare: &AlignedBuffer| spare.capacity() >= bytes && spare.capacity() / 5 * 4 <= bytes;
        if let Some(at) = groups.spare.iter().position(fits)
            && let Some(buffer) = groups.take_spare(at).and_then(|spare| spare.reused(bytes))
        {
            return buffer;
        }
        // None fits what is written now: the oldest makes room for one that may.
        groups.take_spare(0);
        drop(groups);
        AlignedBuffer::zeroed(bytes)
    }

    /// The bytes of a record, when its group is still here.
    pub(crate) fn get(&self, segment: SegmentId, place: Place) -> Option<Bytes> {
        let groups = self.lock();
        let after = groups.queue.partition_point(|group| (group.segment, group.start) <= (segment, place.offset));
        let group = groups.queue.get(after.checked_sub(1)?)?;
        if group.segment != segment {
            return None;
        }
        let start = (place.offset - group.start) as usize;
        let end = start + place.bytes as usize;
        (end <= group.content.len()).then(|| group.content.slice(start..end))
    }

    /// Bytes kept now.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_groups_within_its_bytes() {
        let recent = RecentGroups::new(40_000);
        for group in 0..10_u32 {
            let content = vec![group as u8; 10_000];
            recent.push(SegmentId::new(1), 4096 + group * 12_288, AlignedBuffer::copy_of(&content), 10_000);
        }
        assert!(recent.bytes() <= 40_000);
        let place = |group: u32| Place { offset: 4096 + group * 12_288 + 100, bytes: 50 };
        assert_eq!(recent.get(SegmentId::new(1), place(9)).unwrap()[..], [9; 50]);
        assert_eq!(recent.get(SegmentId::new(1), place(0)), None);
        assert_eq!(recent.get(SegmentId::new(2), place(9)), None);
        assert_eq!(recent.get(SegmentId::new(0), place(9)), None);
        let beyond = Place { offset: place(9).offset, bytes: 9_901 };
        assert_eq!(recent.get(SegmentId::new(1), beyond), None, "not a record of this group");
    }

    #[test]
    fn the_memory_of_a_dropped_group_serves_again_unless_somebody_reads_it() {
        let recent = RecentGroups::new(400_000);
        let place = |group: u32| Place { offset: group * 20_480, bytes: 100 };
        let push = |group: u32, buffer: AlignedBuffer| {
            recent.push(SegmentId::new(1), group * 20_480, buffer, 19_000);
            assert!(recent.bytes() <= 400_000);
        };
        push(0, AlignedBuffer::copy_of(&[0xa0; 20_000]));
        let read = recent.get(SegmentId::new(1), place(0)).unwrap();
        for group in 1..60 {
            let mut buffer = recent.buffer(20_000);
            buffer.as_mut().fill(group as u8);
            push(group, buffer);
            assert_eq!(recent.get(SegmentId::new(1), place(group)).unwrap()[..], [group as u8; 100]);
            assert_eq!(read[..], [0xa0; 100]);
        }
        assert!(recent.buffer(20_000).as_ref().iter().any(|byte| *byte != 0), "memory of a dropped group");
        assert!(recent.buffer(4096).as_ref().iter().all(|byte| *byte == 0), "too long to serve a small group");
    }

    #[test]
    fn a_small_group_keeps_no_padding() {
        let recent = RecentGroups::new(40_000);
        for group in 0..100_u32 {
            recent.push(SegmentId::new(1), group * 4096, AlignedBuffer::copy_of(&[1; 100]), 100);
        }
        assert_eq!(recent.bytes(), 10_000);
    }
}
