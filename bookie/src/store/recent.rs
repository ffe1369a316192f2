use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::disk::{AlignedBuffer, BLOCK_BYTES};
use crate::format::{Place, SegmentId};

/// The newest groups of the journal, as they went to the disk: readers of the tail are served from here.
///
/// Whole groups are kept and dropped, oldest first, so that the memory is exactly what is counted, and an entry costs no
/// allocation of its own.
#[derive(Debug)]
pub(crate) struct RecentGroups {
    bytes_max: u64,
    groups: Mutex<Groups>,
}

#[derive(Debug, Default)]
struct Groups {
    bytes: u64,
    queue: VecDeque<Group>,
}

#[derive(Debug)]
struct Group {
    segment: SegmentId,
    start: u32,
    content: Bytes,
    /// What it occupies, slack included.
    memory_bytes: u64,
}

impl RecentGroups {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, groups: Mutex::default() }
    }

    /// Keeps a durable group that begins at `start` of its segment and has `bytes` before its padding.
    pub(crate) fn push(&self, segment: SegmentId, start: u32, buffer: AlignedBuffer, bytes: usize) {
        // A small group would keep mostly padding alive.
        let (content, memory_bytes) = if bytes < buffer.len() / 2 || bytes < 2 * BLOCK_BYTES {
            (Bytes::copy_from_slice(&buffer.as_ref()[..bytes]), bytes as u64)
        } else {
            let memory_bytes = (buffer.len() + BLOCK_BYTES) as u64;
            (Bytes::from_owner(buffer).slice(..bytes), memory_bytes)
        };
        if memory_bytes > self.bytes_max {
            return;
        }
        let mut groups = self.lock();
        groups.bytes += memory_bytes;
        groups.queue.push_back(Group { segment, start, content, memory_bytes });
        while groups.bytes > self.bytes_max {
            let Some(oldest) = groups.queue.pop_front() else { break };
            groups.bytes -= oldest.memory_bytes;
        }
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
    fn a_small_group_keeps_no_padding() {
        let recent = RecentGroups::new(40_000);
        for group in 0..100_u32 {
            recent.push(SegmentId::new(1), group * 4096, AlignedBuffer::copy_of(&[1; 100]), 100);
        }
        assert_eq!(recent.bytes(), 10_000);
    }
}
