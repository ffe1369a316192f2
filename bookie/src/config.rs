use config::{ByteSize, Span};
use serde::{Deserialize, Serialize};

use crate::disk::BLOCK_BYTES;
use crate::error::Error;
use crate::format::SealedLayout;

/// Whether the journal syncs before it acknowledges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// Every acknowledged entry survives a power cut of this machine.
    #[default]
    Always,
    /// Acknowledged entries survive the end of the process, not a power cut: only with replicas on other machines. After a stop that was
    /// not in order the bookie asks metadata and those replicas what it should hold; until then what is missing is unknown.
    Never,
}

/// Settings of a storage node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BookieConfig {
    /// Size of a journal segment. Space comes back a segment at a time, so small disks want small segments.
    pub segment_bytes: ByteSize,
    /// Most that all segments together may occupy; beyond it the bookie is read-only until the collector frees some.
    pub disk_bytes_max: ByteSize,
    /// Space of the file system that is left to others; the bookie is read-only before it goes below.
    pub disk_free_bytes_min: ByteSize,
    /// Space that is kept for entries of high priority, those of recovery and repair, while the bookie is read-only: so far they
    /// may exceed `disk_bytes_max` and go below `disk_free_bytes_min`. 0 refuses them too.
    pub priority_reserve_bytes: ByteSize,
    /// Memory for the newest groups of the journal, from which readers of the tail are served.
    pub write_buffer_bytes: ByteSize,
    /// Memory for index blocks of sealed segments.
    pub index_cache_bytes: ByteSize,
    /// Most that adds may occupy between the socket and the disk.
    pub add_bytes_max: ByteSize,
    /// Most that replies to reads may occupy between the disk and the socket.
    pub read_bytes_max: ByteSize,
    /// How long an add may wait for its share of `add_bytes_max` before it is refused as too many requests.
    pub add_wait: Span,
    /// Most that one write to the journal carries, one longer entry excepted; never more than a quarter of a segment.
    pub group_bytes_max: ByteSize,
    /// How many writes of the journal, each with its sync, may be under way at the same time where writes go around the page cache;
    /// through it always one.
    pub journal_writes: usize,
    /// How many batches of reads go to the disk at the same time.
    pub read_concurrency: usize,
    /// How long a read may take, and whatever else asks the index or the disk, before it is answered as too many requests: most of the
    /// time that clients give a bookie.
    pub read_deadline: Span,
    /// Reads of ledgers that moved away which may be under way to their present members at the same time, no more than an eighth of
    /// them for one connection, and no more than half of them at one address. 0: such reads are answered as unknown.
    pub relay_concurrency: usize,
    /// Most that answers of those members may occupy on their way to the socket, no more than an eighth of it, or one answer, for one
    /// connection.
    pub relay_bytes_max: ByteSize,
    /// How long such a read is tried before it is answered as too many requests: most of the time that clients give a bookie.
    pub relay_deadline: Span,
    /// Connections that are served at the same time; those beyond it are closed at once.
    pub connections_max: usize,
    /// Reads that may wait for a higher last-add-confirmed at the same time, no more than a quarter of them on one connection
    /// once half of them wait; beyond it they are answered without waiting.
    pub long_polls_max: usize,
    /// Longest frame accepted and sent, length word included.
    pub frame_bytes_max: ByteSize,
    /// Whether the journal syncs before it acknowledges: `always`, or `never`, where a power cut may take acknowledged entries from this
    /// bookie and the others must have them.
    pub sync: SyncMode,
    /// How often segments are looked through for ledgers that may be dropped.
    pub collect_interval: Span,
    /// From which share of what segments may occupy, in percent, the bookie asks offloaders to release the ledgers of its oldest
    /// segments. Until then they stay for as long as offloaders let them. 100: it never asks.
    pub release_request_percent: u64,
    /// How long a ledger is kept after a recovery add, whatever metadata says: repair is under way.
    pub recovery_grace: Span,
    /// How long a reply may wait for a peer that takes nothing before its connection is closed.
    pub write_timeout: Span,
    /// Life of the registration in metadata without a sign of life.
    pub registration_ttl: Span,
}

impl Default for BookieConfig {
    fn default() -> Self {
        Self {
            segment_bytes: ByteSize::mib(256),
            disk_bytes_max: ByteSize::gib(64),
            disk_free_bytes_min: ByteSize::gib(1),
            priority_reserve_bytes: ByteSize::mib(256),
            write_buffer_bytes: ByteSize::mib(32),
            index_cache_bytes: ByteSize::mib(8),
            add_bytes_max: ByteSize::mib(32),
            read_bytes_max: ByteSize::mib(32),
            add_wait: Span::millis(500),
            group_bytes_max: ByteSize::mib(1),
            journal_writes: 4,
            read_concurrency: 8,
            read_deadline: Span::secs(4),
            relay_concurrency: 256,
            relay_bytes_max: ByteSize::mib(16),
            relay_deadline: Span::secs(4),
            connections_max: 10_000,
            long_polls_max: 10_000,
            frame_bytes_max: ByteSize::new(proto::FRAME_BYTES_MAX_DEFAULT as u64),
            sync: SyncMode::Always,
            collect_interval: Span::secs(60),
            release_request_percent: 50,
            recovery_grace: Span::secs(3600),
            write_timeout: Span::secs(30),
            registration_ttl: Span::secs(10),
        }
    }
}

impl BookieConfig {
    /// Most that one write to the journal carries: a group larger than a segment would be given a larger segment, and space
    /// would come back in larger pieces than the segment size promises.
    pub(crate) fn group_bytes(&self) -> u64 {
        self.group_bytes_max.bytes().min(self.segment_bytes.bytes() / 4)
    }

    /// Size of a segment for entries of high priority: several fit what is kept, so that the first give space back before the last
    /// is full.
    pub(crate) fn priority_segment_bytes(&self) -> u64 {
        let part = self.segment_bytes.bytes().min(self.priority_reserve_bytes.bytes() / 8);
        part.next_multiple_of(BLOCK_BYTES as u64)
    }

    /// What requests and answers may take of the memory a bookie is given.
    pub fn request_bytes(&self) -> u64 {
        let relay = if self.relay_concurrency == 0 { 0 } else { self.relay_bytes_max.bytes() };
        self.add_bytes_max.bytes() + self.read_bytes_max.bytes() + relay
    }

    /// Checks that the values fit each other.
    ///
    /// # Errors
    /// [`Error::Config`] naming the first setting that does not.
    pub fn validate(&self) -> Result<(), Error> {
        let rules: [(bool, &str); 16] = [
            (self.segment_bytes.bytes() >= SEGMENT_BYTES_MIN, "segment_bytes must be at least 64KiB"),
            (self.segment_bytes.bytes() <= SEGMENT_BYTES_MAX, "segment_bytes must be at most 2GiB"),
            (self.disk_bytes_max >= self.segment_bytes, "disk_bytes_max must be at least segment_bytes"),
            (self.frame_bytes_max.bytes() >= 1024, "frame_bytes_max must be at least 1KiB"),
            (self.frame_bytes_max.bytes() <= FRAME_BYTES_LIMIT, "frame_bytes_max must be at most 256MiB"),
            (self.group_bytes_max.bytes() >= 4096, "group_bytes_max must be at least 4KiB"),
            (self.group_bytes_max.bytes() <= FRAME_BYTES_LIMIT, "group_bytes_max must be at most 256MiB"),
            (self.journal_writes > 0, "journal_writes must be at least 1"),
            (self.journal_writes <= JOURNAL_WRITES_LIMIT, "journal_writes must be at most 16"),
            (self.read_concurrency > 0, "read_concurrency must be at least 1"),
            (!self.read_deadline.duration().is_zero(), "read_deadline must be longer than 0s"),
            (self.connections_max > 0, "connections_max must be at least 1"),
            (!self.relay_deadline.duration().is_zero(), "relay_deadline must be longer than 0s"),
            (self.long_polls_max <= LONG_POLLS_LIMIT, "long_polls_max must be at most 16000"),
            (!self.collect_interval.duration().is_zero(), "collect_interval must be longer than 0s"),
            ((1..=100).contains(&self.release_request_percent), "release_request_percent must be 1 to 100"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::Config((*rule).to_owned())),
            None => Ok(()),
        }
    }
}

const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Places in a segment are 32 bits.
const SEGMENT_BYTES_MAX: u64 = 2 << 30;
const FRAME_BYTES_LIMIT: u64 = 256 << 20;
const JOURNAL_WRITES_LIMIT: usize = 16;
/// Fewer than one connection may have open, so that none is filled by requests that only wait.
const LONG_POLLS_LIMIT: usize = 16_000;

/// Entries after which a segment is sealed even when it has space: bounds the memory of its index to 16 MiB.
pub(crate) const SEGMENT_ENTRIES_MAX: u64 = 1 << 20;
/// Size of the segments that take fences when no space is left for entries.
pub(crate) const CONTROL_SEGMENT_BYTES: u64 = 1 << 20;
/// Space of a segment that only keys and fences may use, so that a ledger can be fenced when the disk is full: a sixteenth, at
/// most this much.
pub(crate) const CONTROL_RESERVE_BYTES_MAX: u64 = 256 << 10;
/// Size of a control segment where not even the usual one fits.
pub(crate) const CONTROL_SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// How far control segments together may exceed the disk budget.
pub(crate) const CONTROL_BYTES_MAX: u64 = 32 << 20;

const _: () = assert!(SEGMENT_ENTRIES_MAX < u32::MAX as u64);

/// Bytes to keep free behind the groups of a segment with so many rows.
pub(crate) fn room_needed(entries: u64, ledgers: u64) -> u64 {
    SealedLayout::room_needed(entries, ledgers)
}
