//! The bookie's journal: building a group of records for one sync, and reading it back at a restart.

use std::hint::black_box;

use bench::{PAYLOAD_BYTES, payload};
use bookie::format::{GroupHead, GroupWriter, Record, RecordKind, SegmentHeader, SegmentId, decode_group};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ledger::{EntryId, LedgerId};

/// Bytes of bodies in a group: what gathers while a sync is in flight.
const GROUP_BYTES: usize = 256 << 10;

const SEGMENT: SegmentHeader = SegmentHeader { id: SegmentId::new(7), nonce: 0x0123_4567_89ab_cdef };

fn record(index: usize, body: &[u8]) -> Record<'_> {
    let entry = EntryId::new(index as u64).expect("small");
    Record { kind: RecordKind::Entry, ledger: LedgerId::ZERO, entry, body }
}

fn groups(c: &mut Criterion) {
    for bytes in PAYLOAD_BYTES {
        let body = payload(bytes);
        let records = (GROUP_BYTES / bytes).max(1);
        let build = || {
            let mut writer = GroupWriter::with_room(records * Record::encoded_bytes(bytes));
            for index in 0..records {
                writer.push(black_box(&record(index, &body)));
            }
            writer.finish(&SEGMENT, 1, 0)
        };
        let throughput = Throughput::Bytes((records * bytes) as u64);

        let mut group = c.benchmark_group("build_group");
        group.throughput(throughput.clone());
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| b.iter(build));
        group.finish();

        let built = build();
        let block: &[u8] = built.as_ref();
        let head = GroupHead::peek(block, &SEGMENT, block.len() as u64).expect("just built");
        let content = &block[..head.bytes as usize];
        let mut group = c.benchmark_group("decode_group");
        group.throughput(throughput);
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            b.iter(|| decode_group(black_box(&head), black_box(content)).expect("just built").len());
        });
        group.finish();
    }
}

criterion_group!(benches, groups);
criterion_main!(benches);
