//! The list of a ledger's entries on a bookie, as GET_LIST_OF_ENTRIES_OF_LEDGER carries it.
//!
//! A header of 64 bytes: version 0 and the number of groups, 32 bits each, then zeros. Then 24 bytes a group: first and last
//! start of a sequence (64 bits each), entries in a sequence and distance of starts (32 bits each). A group without a distance
//! is one sequence. Numbers are big-endian. Runs of neighbouring entries that are equally long and equally far apart, which striping
//! makes, are one group.

use std::ops::RangeInclusive;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ledger::EntryId;

const HEADER_BYTES: usize = 64;
const GROUP_BYTES: usize = 24;
const VERSION: i32 = 0;
/// Longest run of one group: its length is a signed 32-bit number.
const RUN_ENTRIES_MAX: u64 = i32::MAX as u64;

/// Longest distance of two sequences of one group: a signed 32-bit number too.
const PERIOD_MAX: u64 = i32::MAX as u64;

/// Collects runs of entries, in ascending order, and encodes them.
#[derive(Debug, Clone, Default)]
pub struct AvailabilityWriter {
    groups: BytesMut,
    count: u32,
    /// The last group, which may get more sequences.
    group: Option<Group>,
    /// First and last entry of the last run, which may get longer.
    run: Option<(u64, u64)>,
}

impl AvailabilityWriter {
    /// Adds an entry above all added so far; others are ignored.
    pub fn push(&mut self, entry: EntryId) {
        let entry = entry.get();
        match &mut self.run {
            Some((first, last)) if entry == *last + 1 && entry - *first < RUN_ENTRIES_MAX => *last = entry,
            Some((_, last)) if entry <= *last => {}
            _ => {
                self.end_run();
                self.run = Some((entry, entry));
            }
        }
    }

    /// Adds all entries from `first` to `last`, above all added so far.
    pub fn push_run(&mut self, first: EntryId, last: EntryId) {
        let mut next = first.get();
        while next <= last.get() {
            self.end_run();
            let end = last.get().min(next.saturating_add(RUN_ENTRIES_MAX - 1));
            self.run = Some((next, end));
            next = end + 1;
        }
    }

    fn end_run(&mut self) {
        let Some((first, last)) = self.run.take() else { return };
        let size = last - first + 1;
        if let Some(joined) = self.group.as_ref().and_then(|group| group.with(first, size)) {
            self.group = Some(joined);
            return;
        }
        self.end_group();
        self.group = Some(Group { first, last: first, size, period: 0 });
    }

    fn end_group(&mut self) {
        let Some(group) = self.group.take() else { return };
        let word = |number| u32::try_from(number).expect("runs and distances are cut at their longest");
        self.groups.put_u64(group.first);
        self.groups.put_u64(group.last);
        self.groups.put_u32(word(group.size));
        self.groups.put_u32(word(group.period));
        self.count += 1;
    }

    /// Bytes of the encoding so far.
    pub fn encoded_bytes(&self) -> usize {
        let open = match (&self.group, self.run) {
            (None, None) => 0,
            (Some(group), Some((first, last))) if group.with(first, last - first + 1).is_none() => 2,
            _ => 1,
        };
        HEADER_BYTES + self.groups.len() + open * GROUP_BYTES
    }

    /// The encoding.
    pub fn finish(mut self) -> Bytes {
        self.end_run();
        self.end_group();
        let mut out = BytesMut::with_capacity(HEADER_BYTES + self.groups.len());
        out.put_i32(VERSION);
        out.put_u32(self.count);
        out.resize(HEADER_BYTES, 0);
        out.put_slice(&self.groups);
        out.freeze()
    }
}

/// A list of entries that was received. Checked when it was decoded; takes no memory beyond the received bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Availability {
    groups: Bytes,
}

/// Sequences of equal length at equal distances.
#[derive(Debug, Clone)]
struct Group {
    first: u64,
    last: u64,
    size: u64,
    period: u64,
}

impl Group {
    fn read(mut bytes: &[u8]) -> Option<Self> {
        let (first, last) = (bytes.try_get_i64().ok()?, bytes.try_get_i64().ok()?);
        let (size, period) = (bytes.try_get_i32().ok()?, bytes.try_get_i32().ok()?);
        let group = Self {
            first: u64::try_from(first).ok()?,
            last: u64::try_from(last).ok()?,
            size: u64::try_from(size).ok()?,
            period: u64::try_from(period).ok()?,
        };
        let (span, apart) = (group.last.checked_sub(group.first)?, group.period >= group.size);
        let fits = if group.period == 0 { span == 0 } else { apart && span % group.period == 0 };
        (fits && group.size > 0 && group.last + group.size - 1 <= i64::MAX as u64).then_some(group)
    }

    fn end(&self) -> u64 {
        self.last + self.size
    }

    /// The group with one more sequence, behind its last one, if that fits.
    fn with(&self, start: u64, size: u64) -> Option<Self> {
        let period = start.checked_sub(self.last)?;
        let fits = size == self.size && (self.first == self.last || period == self.period);
        // Neighbours of one run that was cut at its longest stay apart: their distance is the length.
        (fits && period > size && period <= PERIOD_MAX).then_some(Self { last: start, period, ..*self })
    }

    fn contains(&self, entry: u64) -> bool {
        let Some(offset) = entry.checked_sub(self.first).filter(|_| entry < self.end()) else { return false };
        offset.checked_rem(self.period).unwrap_or(offset) < self.size
    }
}

impl Availability {
    /// Reads an encoding; `None` when it is cut short, of another version, or its groups overlap or are not sorted.
    pub fn decode(mut bytes: Bytes) -> Option<Self> {
        let mut header = bytes.get(..HEADER_BYTES)?;
        let (version, count) = (header.get_i32(), header.get_i32());
        bytes.advance(HEADER_BYTES);
        if version != VERSION || usize::try_from(count).ok()?.checked_mul(GROUP_BYTES)? != bytes.len() {
            return None;
        }
        let mut end = 0;
        for group in bytes.chunks_exact(GROUP_BYTES) {
            let group = Group::read(group)?;
            if group.first < end {
                return None;
            }
            end = group.end();
        }
        Some(Self { groups: bytes })
    }

    fn groups(&self) -> impl Iterator<Item = Group> {
        self.groups.chunks_exact(GROUP_BYTES).filter_map(Group::read)
    }

    /// Whether an entry is in the list.
    pub fn contains(&self, entry: EntryId) -> bool {
        self.groups().any(|group| group.contains(entry.get()))
    }

    /// The runs of neighbouring entries as they were sent, ascending.
    pub fn runs(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        self.groups().flat_map(|group| {
            let starts = (group.first..=group.last).step_by(usize::try_from(group.period.max(1)).unwrap_or(usize::MAX));
            starts.map(move |start| start..=start + group.size - 1)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn encode(entries: impl IntoIterator<Item = u64>) -> Bytes {
        let mut writer = AvailabilityWriter::default();
        for entry in entries {
            writer.push(EntryId::new(entry).unwrap());
        }
        let announced = writer.encoded_bytes();
        let bytes = writer.finish();
        assert_eq!(bytes.len(), announced);
        bytes
    }

    #[test]
    fn the_published_vector_holds() {
        let expected = format!(
            "0000000000000002{}{:016x}{:016x}0000000300000000{:016x}{:016x}0000000200000000",
            "00".repeat(56),
            0,
            0,
            5,
            5
        );
        assert_eq!(hex::encode(encode([0, 1, 2, 5, 6])), expected);
        assert_eq!(encode([]).len(), 64);
    }

    #[test]
    fn what_striping_leaves_is_one_group() {
        // A member of three with two copies: 0, 2, 3, 5, 6, 8, 9, ...
        let striped = |entries: u64| encode((0..entries).filter(|entry| entry % 3 != 1));
        assert_eq!(striped(1_000_000).len(), HEADER_BYTES + 2 * GROUP_BYTES, "the first, and all pairs behind it");
        let every_third = encode((0..1_000_000).step_by(3));
        let expected = format!("0000000000000001{}{:016x}{:016x}0000000100000003", "00".repeat(56), 0, 999_999);
        assert_eq!(hex::encode(every_third), expected);
        assert_eq!(encode([0, 10, 20, 21, 30, 31, 40, 41, 49]).len(), HEADER_BYTES + 3 * GROUP_BYTES);
        // Too far apart for the field.
        assert_eq!(encode([0, PERIOD_MAX + 1]).len(), HEADER_BYTES + 2 * GROUP_BYTES);
    }

    #[test]
    fn periods_of_others_are_read() {
        let mut bytes = encode([3, 4]).to_vec();
        // Starts at 3, 8, 13; two entries each.
        bytes[72..80].copy_from_slice(&13_u64.to_be_bytes());
        bytes[84..88].copy_from_slice(&5_u32.to_be_bytes());
        let read = Availability::decode(bytes.clone().into()).unwrap();
        assert_eq!(read.runs().collect::<Vec<_>>(), [3..=4, 8..=9, 13..=14]);
        let held: Vec<u64> = (0..20).filter(|entry| read.contains(EntryId::new(*entry).unwrap())).collect();
        assert_eq!(held, [3, 4, 8, 9, 13, 14]);
        bytes[84..88].copy_from_slice(&1_u32.to_be_bytes());
        assert_eq!(Availability::decode(bytes.into()), None, "sequences that overlap");
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = encode([1, 5]);
        assert!(Availability::decode(good.clone()).is_some());
        assert_eq!(Availability::decode(good.slice(..good.len() - 1)), None);
        assert_eq!(Availability::decode(good.slice(..63)), None);
        let with = |at: usize, byte: u8| {
            let mut changed = good.to_vec();
            changed[at] = byte;
            Availability::decode(changed.into())
        };
        assert_eq!(with(3, 1), None, "another version");
        assert_eq!(with(7, 3), None, "another number of groups");
        assert_eq!(with(4, 0x80), None, "a negative number of groups");
        assert_eq!(with(64, 0x80), None, "a negative entry");
        assert_eq!(with(83, 5), None, "groups that overlap");
        assert_eq!(with(83, 0), None, "an empty group");
    }

    proptest! {
        #[test]
        fn lists_come_back(entries in prop::collection::btree_set(0..300_u64, 0..100)) {
            let read = Availability::decode(encode(entries.iter().copied())).unwrap();
            let back: BTreeSet<u64> = read.runs().flatten().collect();
            prop_assert_eq!(&back, &entries);
            for entry in 0..300_u64 {
                prop_assert_eq!(read.contains(EntryId::new(entry).unwrap()), entries.contains(&entry));
            }
        }

        #[test]
        fn regular_lists_come_back(
            parts in prop::collection::vec((1..4_u64, 1..6_u64, 1..6_u64), 0..8),
        ) {
            let (mut entries, mut next) = (BTreeSet::new(), 0);
            for (size, gap, times) in parts {
                for _ in 0..times {
                    entries.extend(next..next + size);
                    next += size + gap;
                }
            }
            let read = Availability::decode(encode(entries.iter().copied())).unwrap();
            prop_assert_eq!(read.runs().flatten().collect::<BTreeSet<u64>>(), entries);
        }

        #[test]
        fn any_bytes_are_read_without_harm(
            head in 0..3_u8,
            tail in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut bytes = encode([]).to_vec();
            bytes[7] = head;
            bytes.extend(tail);
            if let Some(read) = Availability::decode(bytes.into()) {
                let _ = read.runs().take(10).count();
                let _ = read.contains(EntryId::ZERO);
            }
        }
    }
}
