//! Ledger metadata as gRPC messages.

use bytes::Bytes;
use ledger::{ColdRecord, DigestType, LedgerId, LedgerState, Tier};
use metadata::LedgerRecord;
use proto::v1;

/// Custom values under this prefix are ours.
pub(crate) const RESERVED_PREFIX: &str = "thermocline/";

/// Everything that is known about a ledger, without its password.
pub(crate) fn describe(instance_id: &str, ledger: LedgerId, record: &LedgerRecord) -> v1::Ledger {
    let metadata = &record.metadata;
    let quorums = metadata.quorums();
    let (state, length) = match metadata.state() {
        LedgerState::Open => (v1::LedgerState::Open, 0),
        LedgerState::InRecovery => (v1::LedgerState::InRecovery, 0),
        LedgerState::Closed { length, .. } => (v1::LedgerState::Closed, length),
    };
    let tier = match metadata.tier() {
        Tier::Hot => v1::LedgerTier::Hot,
        Tier::Settled => v1::LedgerTier::Settled,
        Tier::Released => v1::LedgerTier::Released,
    };
    let digest_type = match metadata.digest_type() {
        None => v1::DigestType::Unspecified,
        Some(DigestType::Crc32) => v1::DigestType::Crc32,
        Some(DigestType::Hmac) => v1::DigestType::Hmac,
        Some(DigestType::Crc32c) => v1::DigestType::Crc32c,
        Some(DigestType::Dummy) => v1::DigestType::Dummy,
    };
    let custom = metadata.custom_values().iter().filter(|(key, _)| !key.starts_with(RESERVED_PREFIX));
    let segments = metadata.segments().iter().map(|segment| v1::Segment {
        first_entry_id: segment.first_entry.get(),
        bookies: segment.ensemble.iter().map(ToString::to_string).collect(),
    });
    v1::Ledger {
        ledger_id: ledger.get(),
        state: state.into(),
        last_entry_id: metadata.last_entry().map(ledger::EntryId::get),
        length,
        tier: tier.into(),
        ensemble_size: quorums.ensemble(),
        write_quorum: quorums.write(),
        ack_quorum: quorums.ack(),
        digest_type: digest_type.into(),
        segments: segments.collect(),
        custom: custom.map(|(key, value)| (key.clone(), Bytes::clone(value))).collect(),
        // A record that does not decode is shown by reads, which need it.
        cold: ColdRecord::from_metadata(metadata).ok().flatten().map(|cold| v1::ColdCopy {
            object_key: cold.object_key(instance_id, ledger),
            object_bytes: cold.object_bytes,
            entries: cold.entries,
            payload_bytes: cold.payload_bytes,
            object_crc32c: cold.object_crc32c,
            commit_counter: cold.commit_counter,
        }),
        created_ms: metadata.ctime_ms(),
        partly_released_until_ms: metadata.partly_released_until(),
    }
}

/// Reads a digest type from a message; unspecified is CRC-32C.
pub(crate) fn digest_type(value: i32) -> Option<DigestType> {
    match v1::DigestType::try_from(value).ok()? {
        v1::DigestType::Unspecified | v1::DigestType::Crc32c => Some(DigestType::Crc32c),
        v1::DigestType::Crc32 => Some(DigestType::Crc32),
        v1::DigestType::Hmac => Some(DigestType::Hmac),
        v1::DigestType::Dummy => Some(DigestType::Dummy),
    }
}
