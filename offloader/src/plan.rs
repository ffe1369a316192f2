//! What a ledger needs next: values in, values out.

use std::time::Duration;

use ledger::{ColdRecord, DigestType, LedgerMetadata, LedgerState, MetadataFormat};
use tokio::time::Instant;

use crate::OffloaderConfig;

/// What is known of a ledger.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Its metadata.
    pub metadata: &'a LedgerMetadata,
    /// The attempt that runs for it.
    pub attempt: Option<AttemptFacts<'a>>,
    /// Since when it has been seen closed.
    pub closed_since: Option<Instant>,
    /// Since when it has been seen settled.
    pub settled_since: Option<Instant>,
    /// Whether a bookie asks for its release.
    pub is_requested: bool,
    /// The moment of the decision.
    pub now: Instant,
    /// The same by the wall clock, milliseconds since 1970: partial releases outlive processes.
    pub wall_ms: u64,
}

/// What is known of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptFacts<'a> {
    /// Whose it is.
    pub owner: &'a str,
    /// Whether another process owns it and shows that it lives.
    pub held_by_other: bool,
}

/// On whose word a ledger is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order<'a> {
    /// The policy decides.
    Policy(&'a OffloaderConfig),
    /// Somebody wants it now, whatever the policy says.
    Now {
        /// Whether it is to be released too.
        release: bool,
    },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Nothing, now and later, as long as the ledger stays as it is.
    Nothing(Why),
    /// Nothing before this moment.
    WaitUntil(Instant),
    /// Another process is at it.
    HeldByOther(String),
    /// An attempt was left behind that can never be committed: mark it.
    AbandonAttempt,
    /// Settle it; an attempt left behind is taken over.
    Settle,
    /// Release it.
    Release,
}

/// Why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is not closed.
    Open,
    /// It has no entries: nothing to offload.
    Empty,
    /// It is settled, and nobody asked for more.
    Settled,
    /// It is released.
    Released,
    /// The policy is switched off.
    Disabled,
    /// It is read often and small (cursors, schemas), so the policy leaves it hot.
    StaysHot,
    /// Its metadata does not say how digests are made, or there are none.
    NoDigest,
    /// Its metadata is of format 1, which cannot hold a cold record.
    FormatTooOld,
    /// Its cold record cannot be read: a human must look.
    BadColdRecord,
    /// Some of its bookies stay for a while, for readers that opened it before.
    PartlyReleased,
    /// All its members are cold, but it has no cold record: a human must look.
    NoColdRecord,
}

impl Why {
    /// The reason as part of a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Open => "it is not closed",
            Self::Empty => "it has no entries, so there is nothing to offload",
            Self::Settled => "it is settled",
            Self::Released => "it is released",
            Self::Disabled => "the offloader is switched off",
            Self::StaysHot => "it holds cursors or schemas, which stay hot",
            Self::NoDigest => "no digest protects its entries, so no single replica can be trusted; it stays hot",
            Self::FormatTooOld => "its metadata is of format 1, which cannot name an object; it stays hot",
            Self::BadColdRecord => "its cold record cannot be read",
            Self::PartlyReleased => {
                "it is partly released: one bookie of each write set stays for handle_grace, for readers that opened it before"
            }
            Self::NoColdRecord => "its members are cold ids, but it has no cold record",
        }
    }
}

/// Decides what a ledger needs next.
pub fn decide(facts: &Facts<'_>, order: Order<'_>) -> Plan {
    let metadata = facts.metadata;
    let LedgerState::Closed { last_entry, .. } = metadata.state() else { return Plan::Nothing(Why::Open) };
    if last_entry.is_none() {
        return Plan::Nothing(Why::Empty);
    }
    match ColdRecord::from_metadata(metadata) {
        Err(_) => Plan::Nothing(Why::BadColdRecord),
        Ok(Some(_)) => decide_settled(facts, order),
        Ok(None) if metadata.is_released() => Plan::Nothing(Why::NoColdRecord),
        Ok(None) => decide_hot(facts, order),
    }
}

fn decide_hot(facts: &Facts<'_>, order: Order<'_>) -> Plan {
    let metadata = facts.metadata;
    if metadata.format() == MetadataFormat::V1 {
        return Plan::Nothing(Why::FormatTooOld);
    }
    if matches!(metadata.digest_type(), None | Some(DigestType::Dummy)) {
        return Plan::Nothing(Why::NoDigest);
    }
    if let Order::Policy(policy) = order {
        if !policy.enabled {
            return Plan::Nothing(Why::Disabled);
        }
        if stays_hot(metadata) {
            return Plan::Nothing(Why::StaysHot);
        }
        let due = facts.closed_since.unwrap_or(facts.now) + policy.settle_after.duration();
        if facts.now < due {
            return Plan::WaitUntil(due);
        }
    }
    match facts.attempt {
        Some(attempt) if attempt.held_by_other => Plan::HeldByOther(attempt.owner.to_owned()),
        Some(_) | None => Plan::Settle,
    }
}

fn decide_settled(facts: &Facts<'_>, order: Order<'_>) -> Plan {
    if facts.attempt.is_some_and(|attempt| !attempt.held_by_other) {
        return Plan::AbandonAttempt;
    }
    if facts.metadata.is_released() {
        return Plan::Nothing(Why::Released);
    }
    let stays_ms = facts.metadata.partly_released_until().map_or(0, |until_ms| until_ms.saturating_sub(facts.wall_ms));
    match order {
        Order::Now { release: true } if stays_ms > 0 => Plan::Nothing(Why::PartlyReleased),
        Order::Now { release: true } => Plan::Release,
        Order::Now { release: false } => Plan::Nothing(Why::Settled),
        Order::Policy(policy) if !policy.enabled => Plan::Nothing(Why::Disabled),
        Order::Policy(_) if stays_ms > 0 => Plan::WaitUntil(facts.now + Duration::from_millis(stays_ms)),
        Order::Policy(policy) => {
            let (most, least) = (policy.hot_retention.duration(), policy.hot_retention_min.duration());
            let stays = if facts.is_requested { most.min(least) } else { most };
            let due = facts.settled_since.unwrap_or(facts.now) + stays;
            if facts.now < due { Plan::WaitUntil(due) } else { Plan::Release }
        }
    }
}

/// Whether the shipped policy leaves a ledger hot: those in which Pulsar keeps cursors and schemas. They are small, and read
/// when a topic is loaded.
fn stays_hot(metadata: &LedgerMetadata) -> bool {
    metadata.custom("pulsar/cursor").is_some() || metadata.custom("component") == Some(b"schema")
}

/// Whether an object written for `written` may be committed to `now`, another version of the same ledger's record: it must still
/// be closed at the same end, and no other object may have been committed.
pub fn may_recommit(written: &LedgerMetadata, now: &LedgerMetadata) -> bool {
    now.is_closed() && now.last_entry() == written.last_entry() && now.custom(ColdRecord::KEY).is_none()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
