use std::time::Duration;

/// How a client waits and how much it keeps in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// How long a bookie may take to acknowledge an add before its member counts as failed. Default 5 s.
    pub add_timeout: Duration,
    /// How long a bookie may take to answer a read before the next replica is asked. Default 5 s.
    pub read_timeout: Duration,
    /// How long opening a connection may take, looking up the address included. Default 5 s.
    pub connect_timeout: Duration,
    /// How long one operation on the metadata store may take before its outcome counts as unknown. Default 30 s.
    pub metadata_timeout: Duration,
    /// The largest frame sent or accepted, in bytes, length word included. Default 5,253,120.
    pub frame_bytes_max: usize,
    /// How many entries one reader asks for ahead of its consumer. Default 256.
    pub read_window_entries: usize,
    /// How many bytes one reader asks for ahead of its consumer; one entry is always allowed. Default 4 MiB.
    pub read_window_bytes: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            add_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            metadata_timeout: Duration::from_secs(30),
            frame_bytes_max: proto::FRAME_BYTES_MAX_DEFAULT,
            read_window_entries: 256,
            read_window_bytes: 4 * 1024 * 1024,
        }
    }
}

impl ClientConfig {
    /// How often deadlines are looked at; one look serves all requests of a connection.
    pub(crate) fn check_interval(&self) -> Duration {
        let shortest = self.add_timeout.min(self.read_timeout);
        (shortest / 8).clamp(Duration::from_millis(5), Duration::from_millis(500))
    }
}
