//! Benchmarks of hot pure code: no sockets, no disk. What they all need to make their inputs is here.
//!
//! `cargo bench -p bench` measures, `cargo bench -p bench --bench frames` one file of them; with `-- --test` each runs once.

use common::rng::Rng;

/// The payload sizes measured, in bytes: a short log line, a usual one, a batch.
pub const PAYLOAD_BYTES: [usize; 3] = [100, 1 << 10, 64 << 10];

/// A payload that does not compress to nothing; the same for the same size.
pub fn payload(bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; bytes];
    Rng::seeded(bytes as u64).fill(&mut payload);
    payload
}
