//! Sealing an entry on the writer and opening it on the reader, for each digest.

use std::hint::black_box;

use bench::{PAYLOAD_BYTES, payload};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ledger::{DigestType, Digester, EntryHeader, EntryId, LedgerId, Password};

const DIGESTS: [(&str, DigestType); 4] = [
    ("crc32c", DigestType::Crc32c),
    ("crc32", DigestType::Crc32),
    ("hmac", DigestType::Hmac),
    ("dummy", DigestType::Dummy),
];

fn header(payload_bytes: usize) -> EntryHeader {
    EntryHeader {
        ledger: LedgerId::MAX,
        entry: EntryId::ZERO.next(),
        last_confirmed: Some(EntryId::ZERO),
        length: payload_bytes as u64,
    }
}

fn seal(c: &mut Criterion) {
    let mut group = c.benchmark_group("seal");
    for (name, digest) in DIGESTS {
        let digester = Digester::new(digest, &Password::empty());
        for bytes in PAYLOAD_BYTES {
            let (header, payload) = (header(bytes), payload(bytes));
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, bytes), |b| {
                b.iter(|| digester.seal(black_box(&header), black_box(&payload)));
            });
        }
    }
    group.finish();
}

fn open(c: &mut Criterion) {
    let mut group = c.benchmark_group("open");
    for (name, digest) in DIGESTS {
        let digester = Digester::new(digest, &Password::empty());
        for bytes in PAYLOAD_BYTES {
            let header = header(bytes);
            let body = digester.seal(&header, &payload(bytes));
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, bytes), |b| {
                b.iter(|| digester.open(header.ledger, Some(header.entry), black_box(&body)).expect("just sealed"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, seal, open);
criterion_main!(benches);
