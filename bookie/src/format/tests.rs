use bytes::Bytes;
use ledger::{EntryId, LedgerId, MasterKey};
use proptest::prelude::*;

use super::*;
use crate::disk::BLOCK_BYTES;

const SEGMENT: SegmentHeader = SegmentHeader { id: SegmentId::new(7), nonce: 0x0123_4567_89ab_cdef };

fn ledger(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn entry(id: u64) -> EntryId {
    EntryId::new(id).unwrap()
}

#[derive(Clone, Debug, PartialEq)]
struct Owned {
    kind: RecordKind,
    ledger: LedgerId,
    entry: EntryId,
    body: Vec<u8>,
}

impl Owned {
    fn record(&self) -> Record<'_> {
        Record { kind: self.kind, ledger: self.ledger, entry: self.entry, body: &self.body }
    }
}

fn owned() -> impl Strategy<Value = Owned> {
    let kinds = [
        RecordKind::Entry,
        RecordKind::RecoveryEntry,
        RecordKind::Fence,
        RecordKind::MasterKey,
        RecordKind::ExplicitLac,
        RecordKind::Tombstone,
    ];
    let kind = prop::sample::select(kinds.to_vec());
    let ids = (0..=i64::MAX as u64, 0..=i64::MAX as u64);
    (kind, ids, prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(kind, (l, e), body)| Owned {
        kind,
        ledger: ledger(l),
        entry: entry(e),
        body,
    })
}

fn group_of(records: &[Owned], sequence: u64) -> (Vec<u8>, Vec<Place>) {
    group_behind(records, sequence, 0)
}

fn group_behind(records: &[Owned], sequence: u64, unsettled: u32) -> (Vec<u8>, Vec<Place>) {
    let bytes = records.iter().map(|owned| Record::encoded_bytes(owned.body.len())).sum();
    let mut writer = GroupWriter::with_room(bytes);
    let places = records.iter().map(|owned| writer.push(&owned.record())).collect();
    (writer.finish(&SEGMENT, sequence, unsettled).as_ref().to_vec(), places)
}

fn read_group(bytes: &[u8]) -> Option<(u64, Vec<(Owned, Place)>)> {
    let head = GroupHead::peek(bytes, &SEGMENT, bytes.len() as u64)?;
    let records = decode_group(&head, &bytes[..head.bytes as usize]).ok()?;
    let owned = |record: &Record<'_>| Owned {
        kind: record.kind,
        ledger: record.ledger,
        entry: record.entry,
        body: record.body.to_vec(),
    };
    Some((head.sequence, records.iter().map(|(record, place)| (owned(record), *place)).collect()))
}

proptest! {
    #[test]
    fn groups_come_back(records in prop::collection::vec(owned(), 0..20), sequence: u64) {
        let (bytes, places) = group_of(&records, sequence);
        prop_assert_eq!(bytes.len() % BLOCK_BYTES, 0);
        let expected: Vec<_> = records.iter().cloned().zip(places).collect();
        prop_assert_eq!(read_group(&bytes), Some((sequence, expected.clone())));
        for (owned, place) in expected {
            let record = &bytes[place.offset as usize..(place.offset + place.bytes) as usize];
            prop_assert_eq!(decode_record(record).unwrap(), owned.record());
        }
    }

    #[test]
    fn a_changed_group_is_refused(
        records in prop::collection::vec(owned(), 1..5), at: prop::sample::Index, bit in 0..8_u8,
    ) {
        let (mut bytes, places) = group_of(&records, 3);
        let end = places.last().map(|place| (place.offset + place.bytes) as usize).unwrap();
        bytes[at.index(end)] ^= 1 << bit;
        prop_assert_eq!(read_group(&bytes), None);
    }

    #[test]
    fn a_changed_record_is_refused(owned in owned(), at: prop::sample::Index, bit in 0..8_u8) {
        let (bytes, places) = group_of(std::slice::from_ref(&owned), 3);
        let mut record = bytes[places[0].offset as usize..(places[0].offset + places[0].bytes) as usize].to_vec();
        let at = at.index(record.len());
        record[at] ^= 1 << bit;
        prop_assert!(decode_record(&record).is_err());
        record[at] ^= 1 << bit;
        record.pop();
        prop_assert!(decode_record(&record).is_err());
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_group(&bytes);
        let _ = decode_record(&bytes);
        let _ = SegmentHeader::decode(&bytes);
        let _ = Trailer::decode(&bytes, bytes.len() as u64);
        let _ = Directory::decode(&bytes);
        let _ = LedgerRow::decode_block(&bytes);
        let _ = EntryBlock::decode(Bytes::from(bytes));
    }

    #[test]
    fn any_bytes_behind_a_right_start_are_read_without_harm(tail in prop::collection::vec(any::<u8>(), 0..300), cut in 0..48_usize) {
        let (group, _) = group_of(&[], 1);
        let mut bytes = group[..cut].to_vec();
        bytes.extend(tail);
        // What was cut off may come again by chance; it ends in zeros.
        prop_assume!(!bytes.starts_with(&group[..GROUP_HEADER_BYTES]));
        prop_assert_eq!(read_group(&bytes), None);
    }

    #[test]
    fn entry_blocks_find_what_they_hold(rows in prop::collection::btree_map((0..50_u64, 0..50_u64), any::<u32>(), 0..300)) {
        let rows: Vec<EntryRow> = rows
            .into_iter()
            .map(|((l, e), offset)| EntryRow { ledger: ledger(l), entry: entry(e), place: Place { offset, bytes: 9 } })
            .collect();
        let block = encode_entry_block(&rows);
        let read = EntryBlock::decode(Bytes::from(block.clone())).unwrap();
        prop_assert_eq!(read.rows(), rows.len());
        for l in 0..50 {
            let expected = rows.iter().filter(|row| row.ledger == ledger(l)).map(|row| row.entry);
            prop_assert!(read.entries_of(ledger(l)).eq(expected));
        }
        for l in 0..50 {
            for e in 0..50 {
                let expected = rows.iter().find(|row| row.ledger == ledger(l) && row.entry == entry(e));
                prop_assert_eq!(read.find(ledger(l), entry(e)), expected.map(|row| row.place));
            }
        }
        for at in 0..block.len() {
            let mut changed = block.clone();
            changed[at] ^= 1;
            prop_assert!(EntryBlock::decode(Bytes::from(changed)).is_err());
        }
    }

    #[test]
    fn parts_of_a_sealed_segment_do_not_overlap(groups in 1..100_u64, entries in 0..5000_u64, ledgers in 0..1000_u64) {
        let layout = SealedLayout { groups_end: groups * BLOCK_BYTES as u64, entries, ledgers };
        let mut end = layout.groups_end;
        let mut block = 0;
        while let Some(range) = layout.entry_block(block) {
            prop_assert_eq!(range.start, end);
            (end, block) = (range.end, block + 1);
        }
        prop_assert_eq!(u64::from(block), entries.div_ceil(ENTRY_BLOCK_ROWS as u64));
        block = 0;
        while let Some(range) = layout.ledger_block(block) {
            prop_assert_eq!(range.start, end);
            (end, block) = (range.end, block + 1);
        }
        prop_assert_eq!(u64::from(block), ledgers.div_ceil(LEDGER_BLOCK_ROWS as u64));
        prop_assert_eq!(layout.directory().start, end);
        prop_assert!(layout.file_bytes() >= layout.directory().end + BLOCK_BYTES as u64);
        prop_assert_eq!(layout.file_bytes() % BLOCK_BYTES as u64, 0);
        let trailer = Trailer { segment: SEGMENT, last_sequence: 4, layout };
        prop_assert_eq!(Trailer::decode(&trailer.encode(), layout.file_bytes()), Ok(trailer));
        prop_assert!(Trailer::decode(&trailer.encode(), layout.file_bytes() + 1).is_err());
    }

    #[test]
    fn the_directory_names_the_block_that_would_hold_an_entry(keys in prop::collection::btree_set((0..20_u64, 0..20_u64), 1..40), wanted in (0..20_u64, 0..20_u64)) {
        let mut directory = Directory::default();
        for (l, e) in &keys {
            directory.push(&EntryRow { ledger: ledger(*l), entry: entry(*e), place: Place { offset: 0, bytes: 0 } });
        }
        let expected = keys.iter().rposition(|key| *key <= wanted).map(|at| at as u32);
        prop_assert_eq!(directory.block_of(ledger(wanted.0), entry(wanted.1)), expected);
        prop_assert_eq!(Directory::decode(&directory.encode()), Ok(directory));
    }
}

#[test]
fn headers_come_back_and_changed_ones_are_refused() {
    let block = SEGMENT.encode();
    assert_eq!(SegmentHeader::decode(&block), Ok(SEGMENT));
    let trailer = Trailer {
        segment: SEGMENT,
        last_sequence: 4,
        layout: SealedLayout { groups_end: 8192, entries: 3, ledgers: 2 },
    };
    let (sealed, bytes) = (trailer.encode(), trailer.layout.file_bytes());
    for at in 0..96 {
        if at < 28 {
            let mut changed = block;
            changed[at] ^= 1;
            assert!(SegmentHeader::decode(&changed).is_err(), "header byte {at}");
        }
        let mut changed = sealed;
        changed[at] ^= 1;
        // Bytes between the numbers and the checksum are zero, and checked too.
        assert!(Trailer::decode(&changed, bytes).is_err(), "trailer byte {at}");
    }
    assert!(SegmentHeader::decode(&block[..27]).is_err());
    assert!(Trailer::decode(&sealed[..95], bytes).is_err());
}

#[test]
fn a_group_of_another_segment_is_none() {
    let (bytes, _) = group_of(&[], 1);
    for other in [SegmentHeader { nonce: 1, ..SEGMENT }, SegmentHeader { id: SegmentId::new(8), ..SEGMENT }] {
        assert_eq!(GroupHead::peek(&bytes, &other, 4096), None);
    }
    assert!(GroupHead::peek(&bytes, &SEGMENT, 48).is_some());
    assert_eq!(GroupHead::peek(&bytes, &SEGMENT, 47), None, "longer than what is left");
}

#[test]
fn segments_are_found_by_their_names() {
    let id = SegmentId::new(0xab);
    assert_eq!(id.file_name(), "00000000000000ab.seg");
    assert_eq!(SegmentId::from_file_name("00000000000000ab.seg"), Some(id));
    for other in [
        "ab.seg",
        "00000000000000AB.seg",
        "00000000000000ab",
        "00000000000000ab.seg.tmp",
        "VERSION",
        "+0000000000000ab.seg",
    ] {
        assert_eq!(SegmentId::from_file_name(other), None, "{other}");
    }
}

/// A sealed segment with one group, as version 1 writes it.
fn sample() -> Vec<u8> {
    let record =
        |kind, entry_id, body: &[u8]| Owned { kind, ledger: ledger(1), entry: entry(entry_id), body: body.to_vec() };
    let key = MasterKey::derive(b"");
    let records = [
        record(RecordKind::MasterKey, 0, key.as_bytes()),
        record(RecordKind::Entry, 0, b"first body"),
        record(RecordKind::RecoveryEntry, 2, b"recovered body"),
        record(RecordKind::Fence, 0, b""),
    ];
    let (group, places) = group_of(&records, 5);
    let groups_end = (BLOCK_BYTES + group.len()) as u64;
    let place = |place: Place| Place { offset: place.offset + BLOCK_BYTES as u32, ..place };
    let rows = [(0, places[1]), (2, places[2])];
    let rows = rows.map(|(id, at)| EntryRow { ledger: ledger(1), entry: entry(id), place: place(at) });
    let ledgers = [LedgerRow {
        ledger: ledger(1),
        entries: Some((entry(0), entry(2))),
        count: 2,
        recovery_ms: 1_700_000_000_000,
        max_entry: Some(entry(2)),
        last_confirmed: None,
        master_key: Some(key),
        fenced: true,
    }];
    let mut directory = Directory::default();
    directory.push(&rows[0]);
    let layout = SealedLayout { groups_end, entries: 2, ledgers: 1 };
    let mut file = SEGMENT.encode().to_vec();
    file.extend(group);
    file.extend(encode_entry_block(&rows));
    file.extend(encode_ledger_block(&ledgers));
    file.extend(directory.encode());
    file.resize(file.len().next_multiple_of(BLOCK_BYTES), 0);
    file.extend(Trailer { segment: SEGMENT, last_sequence: 5, layout }.encode());
    file
}

#[test]
fn the_golden_segment_is_still_read_and_written() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/segment-v1.seg");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, sample()).unwrap();
    }
    let file = std::fs::read(path).unwrap();
    assert_eq!(file, sample(), "what is written changed: a new version is needed, and this one must still be read");
    assert_eq!(SegmentHeader::decode(&file).unwrap(), SEGMENT);
    let at = file.len() - BLOCK_BYTES;
    let trailer = Trailer::decode(&file[at..], file.len() as u64).unwrap();
    let part = |range: std::ops::Range<u64>| &file[range.start as usize..range.end as usize];
    let block = EntryBlock::decode(Bytes::copy_from_slice(part(trailer.layout.entry_block(0).unwrap()))).unwrap();
    let place = block.find(ledger(1), entry(2)).unwrap();
    let record = decode_record(&file[place.offset as usize..(place.offset + place.bytes) as usize]).unwrap();
    assert_eq!((record.kind, record.body), (RecordKind::RecoveryEntry, &b"recovered body"[..]));
    let rows = LedgerRow::decode_block(part(trailer.layout.ledger_block(0).unwrap())).unwrap();
    assert!(rows[0].fenced && rows[0].master_key == Some(MasterKey::derive(b"")));
    assert_eq!((rows[0].entries, rows[0].last_confirmed), (Some((entry(0), entry(2))), None));
    assert_eq!(Directory::decode(part(trailer.layout.directory())).unwrap().block_of(ledger(1), entry(0)), Some(0));
}

/// An open segment that a crash left with a hole: groups 6, 7 and 8 were at the disk together, and 7 never came.
fn overlapped() -> Vec<u8> {
    let entry_of = |id: u64, body: &[u8]| {
        let (kind, ledger, entry, body) = (RecordKind::Entry, ledger(1), entry(id), body.to_vec());
        Owned { kind, ledger, entry, body }
    };
    let group = |id: u64, unsettled| group_behind(&[entry_of(id, b"a body")], id, unsettled).0;
    let hole = vec![0; BLOCK_BYTES];
    [SEGMENT.encode().to_vec(), group(5, 0), group(6, 0), hole, group(8, 2)].concat()
}

#[test]
fn the_golden_segment_with_a_hole_is_still_read_and_written() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/segment-v1-overlapped.seg");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, overlapped()).unwrap();
    }
    let file = std::fs::read(path).unwrap();
    assert_eq!(file, overlapped(), "what is written changed: this must still be read");
    let heads: Vec<_> = file[BLOCK_BYTES..]
        .chunks(BLOCK_BYTES)
        .map(|block| {
            let head = GroupHead::peek(block, &SEGMENT, BLOCK_BYTES as u64)?;
            decode_group(&head, &block[..head.bytes as usize]).ok()?;
            Some((head.sequence, head.settled_through()))
        })
        .collect();
    assert_eq!(heads, [Some((5, 4)), Some((6, 5)), None, Some((8, 5))]);
}

#[test]
fn a_group_is_checked_part_by_part() {
    let body = vec![9; 3 * BLOCK_BYTES];
    let record = Owned { kind: RecordKind::Entry, ledger: ledger(1), entry: entry(1), body };
    let (mut bytes, places) = group_of(&[record], 5);
    bytes.truncate((places[0].offset + places[0].bytes) as usize);
    let check = |bytes: &[u8], step: usize| {
        let mut check = GroupCheck::new(bytes).unwrap();
        bytes[GROUP_HEADER_BYTES..].chunks(step).for_each(|part| check.put(part));
        check.holds()
    };
    assert!(check(&bytes, 1) && check(&bytes, 5000) && check(&bytes, 1 << 20));
    assert!(GroupCheck::new(&bytes[..GROUP_HEADER_BYTES - 1]).is_none());
    for at in [0, 39, 40, 44, 48, bytes.len() - 1] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        assert!(!check(&flipped, 5000), "byte {at}");
    }
}
