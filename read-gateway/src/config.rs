use std::time::Duration;

use config::{ByteSize, Span};
use serde::{Deserialize, Serialize};

/// A shorter deadline would be over before an object is opened.
const MIN_DEADLINE: Duration = Duration::from_millis(100);

/// Settings of a read gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// Memory for row groups of cold objects, those being fetched included. A row group takes up to about 80 MiB while it is
    /// decoded, usually far less; the part that is not needed for that is a cache. At least 16 MiB.
    pub cache_bytes: ByteSize,
    /// Memory for the indexes of open cold objects. A large object has some hundred KiB of them.
    pub footer_cache_bytes: ByteSize,
    /// Memory for messages on their way to readers, about 1 MiB for each that reads at full speed. At least 8 MiB.
    pub send_bytes: ByteSize,
    /// Memory for the first and last entries of ledgers that clients of BookKeeper's protocol ask for when everything else is used up.
    /// Auditors judge ledgers by them. At least 24 MiB.
    pub ends_bytes: ByteSize,
    /// Payload bytes a reader may be sent before it grants any, when it does not say.
    pub initial_credit_bytes: ByteSize,
    /// How long one batch of entries may take to come from a tier before the other tier is tried.
    pub read_timeout: Span,
    /// How long to wait for memory before a read is refused.
    pub memory_timeout: Span,
    /// How long a reader may neither take a message nor grant credit before its stream is ended.
    pub session_idle: Span,
    /// How long a request of BookKeeper's protocol is tried before its client is told to try again later. Less than the client's own
    /// timeout, which is 5 s by default.
    pub bookkeeper_deadline: Span,
    /// Connections of BookKeeper's protocol that may be open at one time; each takes some KiB while it is idle. A client has some to
    /// each cold id, of which there are 64 for each member of an ensemble.
    pub bookkeeper_connections_max: usize,
    /// Ledgers that may have a live writer here at one time; each takes some tens of KiB.
    pub writers_max: usize,
    /// Bookies a new ledger is spread over, when its creator does not say.
    pub ensemble_size: u32,
    /// Copies of each entry, when the creator does not say.
    pub write_quorum: u32,
    /// Durable copies that confirm an entry, when the creator does not say.
    pub ack_quorum: u32,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            cache_bytes: ByteSize::mib(128),
            footer_cache_bytes: ByteSize::mib(16),
            send_bytes: ByteSize::mib(32),
            ends_bytes: ByteSize::mib(24),
            initial_credit_bytes: ByteSize::mib(4),
            read_timeout: Span::secs(60),
            memory_timeout: Span::secs(20),
            session_idle: Span::secs(600),
            bookkeeper_deadline: Span::secs(4),
            bookkeeper_connections_max: 16_384,
            writers_max: 10_000,
            ensemble_size: 3,
            write_quorum: 3,
            ack_quorum: 2,
        }
    }
}

/// A setting that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidConfig(String);

impl std::fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidConfig {}

impl GatewayConfig {
    /// Checks what types cannot say.
    ///
    /// # Errors
    /// Names the first setting that cannot work and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let at_least = |name: &str, size: ByteSize, least: ByteSize| {
            if size < least {
                return Err(InvalidConfig(format!(
                    "check gateway settings: {name} is {size}, at least {least} is needed"
                )));
            }
            Ok(())
        };
        at_least("cache_bytes", self.cache_bytes, ByteSize::mib(16))?;
        at_least("footer_cache_bytes", self.footer_cache_bytes, ByteSize::mib(1))?;
        at_least("send_bytes", self.send_bytes, ByteSize::mib(8))?;
        at_least("ends_bytes", self.ends_bytes, ByteSize::mib(24))?;
        if self.bookkeeper_connections_max == 0 || self.bookkeeper_deadline.duration() < MIN_DEADLINE {
            return Err(InvalidConfig(
                "check gateway settings: bookkeeper_connections_max must be at least 1, bookkeeper_deadline at least 100ms"
                    .to_owned(),
            ));
        }
        at_least("initial_credit_bytes", self.initial_credit_bytes, ByteSize::new(1))?;
        ledger::Quorums::new(self.ensemble_size, self.write_quorum, self.ack_quorum)
            .map(|_| ())
            .map_err(|error| InvalidConfig(format!("check gateway settings: {error}")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_nonsense_is_named() {
        GatewayConfig::default().validate().unwrap();
        let small = GatewayConfig { cache_bytes: ByteSize::mib(1), ..GatewayConfig::default() };
        assert!(small.validate().unwrap_err().to_string().contains("cache_bytes"));
        let quorums = GatewayConfig { ack_quorum: 4, ..GatewayConfig::default() };
        quorums.validate().unwrap_err();
    }
}
