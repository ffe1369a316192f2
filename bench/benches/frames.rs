//! The wire: an ADD on its way in, its answers, and an entry on its way out.

use std::hint::black_box;

use bench::{PAYLOAD_BYTES, payload};
use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ledger::{DigestType, Digester, EntryHeader, EntryId, LedgerId, MasterKey, Password};
use proto::client::{AddFlags, decode_response_v2, encode_add_v2};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, Incoming, Protocol, Reply, decode_request};

/// Frames a server finds in its buffer after one read.
const FRAMES_PER_READ: usize = 16;

fn body(payload_bytes: usize) -> Bytes {
    let header =
        EntryHeader { ledger: LedgerId::MAX, entry: EntryId::ZERO, last_confirmed: None, length: payload_bytes as u64 };
    Digester::new(DigestType::Crc32c, &Password::empty()).seal(&header, &payload(payload_bytes))
}

fn add_frame(body: &Bytes) -> BytesMut {
    let mut frame = BytesMut::new();
    encode_add_v2(&MasterKey::derive(b""), body, AddFlags::default(), &mut frame);
    frame
}

fn encode_add(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode_add");
    let key = MasterKey::derive(b"");
    for bytes in PAYLOAD_BYTES {
        let body = body(bytes);
        let mut out = BytesMut::with_capacity(bytes + 4096);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            b.iter(|| {
                out.clear();
                encode_add_v2(&key, black_box(&body), AddFlags::default(), &mut out);
            });
        });
    }
    group.finish();
}

fn decode_adds(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode_adds");
    for bytes in PAYLOAD_BYTES {
        let frames = add_frame(&body(bytes)).repeat(FRAMES_PER_READ);
        group.throughput(Throughput::Bytes((bytes * FRAMES_PER_READ) as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT);
            b.iter_batched(
                || BytesMut::from(&frames[..]),
                |mut buffer| {
                    let mut protocol = Protocol::Undecided;
                    while let Some(frame) = decoder.decode(&mut buffer).expect("frames are whole") {
                        let incoming = decode_request(&mut protocol, frame);
                        assert!(matches!(incoming, Incoming::Request(..)));
                        black_box(incoming);
                    }
                    buffer
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn answers(c: &mut Criterion) {
    let mut group = c.benchmark_group("answer");
    let body = body(1 << 10);
    let payload = add_frame(&body).split_off(4).freeze();
    let mut protocol = Protocol::Undecided;
    let Incoming::Request(to, _) = decode_request(&mut protocol, payload) else { panic!("an add is a request") };
    let mut out = BytesMut::with_capacity(4096);
    group.bench_function("added", |b| {
        b.iter(|| {
            out.clear();
            to.encode(black_box(&Reply::Added), &mut out);
        });
    });
    let answer = to.to_frame(&Reply::Added).slice(4..);
    group.bench_function("read_added", |b| {
        b.iter(|| decode_response_v2(black_box(answer.clone())).expect("just made"));
    });
    group.finish();
}

criterion_group!(benches, encode_add, decode_adds, answers);
criterion_main!(benches);
