//! What entries carry: lines of a log, or bytes that no codec makes smaller.

use std::fmt::Write as _;

use bytes::Bytes;
use common::rng::Rng;

/// Distinct payloads; they repeat far beyond the reach of a codec that sees a page at a time.
const POOL_BYTES: usize = 32 << 20;

/// A kind of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Lines as services write them: a third of their size, or less, under zstd.
    LogLines,
    /// Random bytes.
    Incompressible,
}

impl Content {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LogLines => "log lines",
            Self::Incompressible => "incompressible payload",
        }
    }
}

/// Payloads of one size, the same for the same kind and size.
#[derive(Clone)]
pub(crate) struct Pool {
    bytes: Bytes,
    entry_bytes: usize,
}

impl Pool {
    pub(crate) fn new(content: Content, entry_bytes: usize) -> Self {
        let entries = (POOL_BYTES / entry_bytes).max(1);
        let rng = Rng::seeded(entry_bytes as u64);
        let bytes = match content {
            Content::LogLines => (0..entries as u64).flat_map(|number| line(&rng, number, entry_bytes)).collect(),
            Content::Incompressible => {
                let mut bytes = vec![0; entries * entry_bytes];
                rng.fill(&mut bytes);
                bytes
            }
        };
        Self { bytes: Bytes::from(bytes), entry_bytes }
    }

    /// The payload of an entry. Shares memory with all others.
    pub(crate) fn payload(&self, entry: u64) -> Bytes {
        let entries = (self.bytes.len() / self.entry_bytes) as u64;
        let start = (entry % entries) as usize * self.entry_bytes;
        self.bytes.slice(start..start + self.entry_bytes)
    }
}

const SERVICES: [&str; 6] = ["checkout", "inventory", "gateway", "payments", "search", "sessions"];
const LEVELS: [&str; 5] = ["INFO", "INFO", "INFO", "WARN", "ERROR"];
const WORDS: [&str; 24] = [
    "request",
    "completed",
    "retry",
    "upstream",
    "timeout",
    "connection",
    "customer",
    "order",
    "accepted",
    "cache",
    "miss",
    "lookup",
    "shard",
    "replica",
    "latency",
    "budget",
    "exceeded",
    "queued",
    "worker",
    "released",
    "session",
    "token",
    "refreshed",
    "after",
];

/// A line of JSON with identifiers and numbers of its own and a message, exactly `bytes` long.
fn line(rng: &Rng, number: u64, bytes: usize) -> Vec<u8> {
    let pick = |of: usize| usize::try_from(rng.below(of as u64)).unwrap_or(0);
    let mut line = String::with_capacity(bytes + 32);
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        "{{\"ts\":\"2026-11-30T{:02}:{:02}:{:02}.{:06}Z\",\"level\":\"{}\",\"service\":\"{}-{}\",\"trace\":\"{:016x}{:016x}\",\"span\":\"{:016x}\",\"user\":{},\"status\":{},\"duration_us\":{},\"message\":\"",
        number / 3_600_000 % 24,
        number / 60_000 % 60,
        number / 1_000 % 60,
        number * 997 % 1_000_000,
        LEVELS[pick(LEVELS.len())],
        SERVICES[pick(SERVICES.len())],
        rng.below(40),
        rng.next_u64(),
        rng.next_u64(),
        rng.next_u64(),
        rng.below(10_000_000),
        200 + rng.below(4) * 100,
        rng.below(3_000_000),
    );
    while line.len() < bytes.saturating_sub(2) {
        match rng.below(6) {
            0 => {
                let _ = write!(line, "id={:08x} ", rng.next_u64() as u32);
            }
            _ => {
                line.push_str(WORDS[pick(WORDS.len())]);
                line.push(' ');
            }
        }
    }
    line.truncate(bytes.saturating_sub(2));
    line.push_str("\"}");
    line.truncate(bytes);
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_shrink_to_a_third_and_random_bytes_do_not() {
        for (content, most, least) in [(Content::LogLines, 0.45, 0.2), (Content::Incompressible, 1.1, 0.99)] {
            let pool = Pool::new(content, 1024);
            let page: Vec<u8> = (0..128).flat_map(|entry| pool.payload(entry)).collect();
            let packed = zstd::bulk::compress(&page, 1).expect("zstd packs anything");
            let share = packed.len() as f64 / page.len() as f64;
            assert!((least..most).contains(&share), "{content:?}: {share}");
        }
    }

    #[test]
    fn payloads_have_their_size_and_repeat_late() {
        let pool = Pool::new(Content::LogLines, 1000);
        assert_eq!(pool.payload(3).len(), 1000);
        assert_ne!(pool.payload(3), pool.payload(4));
        assert_eq!(pool.payload(0), pool.payload((POOL_BYTES / 1000) as u64));
    }
}
