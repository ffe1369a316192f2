use std::time::Duration;

use config::{ByteSize, Span};
use serde::{Deserialize, Serialize};

/// How a client waits and how much it keeps in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// How long a bookie may take to acknowledge an add before it counts as failed for that writer.
    pub add_timeout: Span,
    /// How long a bookie may take to answer a read before the next replica is asked.
    pub read_timeout: Span,
    /// How long opening a connection may take, looking up the address included.
    pub connect_timeout: Span,
    /// How long one operation on the metadata store may take before its outcome counts as unknown.
    pub metadata_timeout: Span,
    /// The largest frame sent or accepted, length word included; not above the bookies' limit.
    pub frame_bytes_max: ByteSize,
    /// How many entries one reader asks for ahead of its consumer.
    pub read_window_entries: usize,
    /// How many bytes one reader asks for ahead of its consumer, by estimate; one entry is always allowed.
    pub read_window_bytes: ByteSize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            add_timeout: Span::secs(5),
            read_timeout: Span::secs(5),
            connect_timeout: Span::secs(5),
            metadata_timeout: Span::secs(30),
            frame_bytes_max: ByteSize::new(proto::FRAME_BYTES_MAX_DEFAULT as u64),
            read_window_entries: 256,
            read_window_bytes: ByteSize::mib(4),
        }
    }
}

impl ClientConfig {
    /// How often deadlines are looked at; one look serves all requests of a connection.
    pub(crate) fn check_interval(&self) -> Duration {
        let shortest = self.add_timeout.min(self.read_timeout).duration();
        (shortest / 8).clamp(Duration::from_millis(5), Duration::from_millis(500))
    }
}
