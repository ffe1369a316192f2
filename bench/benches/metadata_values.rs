//! Stored metadata: a ledger's record read and written, and its key.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use ledger::{BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Password, Quorums, Segment};
use metadata::layout;

/// Segments of a ledger that lived through some failures.
const SEGMENTS: u64 = 20;

fn metadata() -> LedgerMetadata {
    let ensemble =
        ["10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181"].map(|id| BookieId::new(id).expect("valid")).to_vec();
    let quorums = Quorums::new(3, 3, 2).expect("valid");
    let mut metadata =
        LedgerMetadata::open(quorums, ensemble.clone(), DigestType::Crc32c, Password::empty()).expect("valid");
    for segment in 1..SEGMENTS {
        let first_entry = EntryId::new(segment * 1000).expect("small");
        metadata = metadata.with_segment(Segment { first_entry, ensemble: ensemble.clone() }).expect("ascending");
    }
    metadata
}

fn values(c: &mut Criterion) {
    let metadata = metadata();
    let value = metadata.encode();
    let mut group = c.benchmark_group("ledger_metadata");
    group.bench_function("encode", |b| b.iter(|| black_box(&metadata).encode()));
    group.bench_function("decode", |b| b.iter(|| LedgerMetadata::decode(black_box(&value)).expect("just encoded")));
    group.finish();

    let mut group = c.benchmark_group("ledger_key");
    let key = layout::ledger_key(LedgerId::MAX);
    group.bench_function("make", |b| b.iter(|| layout::ledger_key(black_box(LedgerId::MAX))));
    group.bench_function("parse", |b| b.iter(|| layout::parse_ledger_key(black_box(&key)).expect("just made")));
    group.finish();
}

criterion_group!(benches, values);
criterion_main!(benches);
