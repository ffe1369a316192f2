use std::time::Duration;

use ::config::{ByteSize, Span};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Bytes of the budget that one job needs to get on: an encoded row group being put together, a batch, and two parts.
pub(crate) const JOB_BYTES: u64 = 40 << 20;

/// What the offloader can be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OffloaderConfig {
    /// Whether ledgers are settled and released by themselves. Orders are carried out in any case.
    pub enabled: bool,
    /// How often the ledgers are looked through for work.
    pub scan_interval: Span,
    /// How long a ledger must have been seen closed before it is settled. Counted anew after a restart.
    pub settle_after: Span,
    /// How long a settled ledger is kept on bookies that have space enough. Counted anew after a restart.
    pub hot_retention: Span,
    /// How long it is kept on bookies that ask for its release, since space gets short; never longer than `hot_retention`.
    pub hot_retention_min: Span,
    /// How long one bookie of each write set stays a member of a ledger whose bookies cannot send readers on to the cold tier (those of
    /// Apache BookKeeper): readers that opened it before its release read on there. Stored with the ledger. 0s releases it at once.
    pub handle_grace: Span,
    /// How many ledgers are worked on at a time.
    pub ledgers_in_flight: usize,
    /// What all jobs together may hold in memory; at least 40 MiB for each ledger in flight.
    pub memory_max: ByteSize,
    /// After how long without a sign of life another offloader may take over what this one began.
    pub owner_ttl: Span,
    /// The longest wait for the next entry from bookies.
    pub read_timeout: Span,
    /// The longest wait for entries through one cold id, when a release is proved.
    pub probe_timeout: Span,
    /// The longest a job may take for one ledger; then it is given up and begun anew later.
    pub ledger_deadline: Span,
    /// The longest pause before a ledger whose job failed is tried again; the first pause is the scan interval.
    pub failure_pause_max: Span,
    /// The domain of cold ids: what released ledgers name as their members. Written into metadata for ever.
    pub cold_domain: String,
    /// The port of cold ids.
    pub cold_port: u16,
    /// Whether DNS has the names of cold ids. Looked at only where BookKeeper's clients take a bookie's id for its host and port, with
    /// metadata in etcd as their driver has it: releases wait there until this is said.
    pub cold_ids_in_dns: bool,
}

impl Default for OffloaderConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            scan_interval: Span::secs(10),
            settle_after: Span::secs(60),
            hot_retention: Span::secs(4 * 3600),
            hot_retention_min: Span::secs(600),
            handle_grace: Span::secs(48 * 3600),
            ledgers_in_flight: 2,
            memory_max: ByteSize::mib(128),
            owner_ttl: Span::secs(30),
            read_timeout: Span::secs(60),
            probe_timeout: Span::secs(30),
            ledger_deadline: Span::secs(3600),
            failure_pause_max: Span::secs(600),
            cold_domain: "cold.thermocline".to_owned(),
            cold_port: 3181,
            cold_ids_in_dns: false,
        }
    }
}

impl OffloaderConfig {
    /// How long a release waits for its cold ids to be registered and served before it is put off: part of `probe_timeout`.
    pub fn registration_patience(&self) -> Duration {
        self.probe_timeout.duration() / 3
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] with the key and what it may be.
    pub fn validate(&self) -> Result<()> {
        let refuse = |key: &str, why: &str| Err(Error::new(ErrorKind::Config, format!("check offloader.{key}: {why}")));
        let spans = [
            ("scan_interval", self.scan_interval),
            ("owner_ttl", self.owner_ttl),
            ("read_timeout", self.read_timeout),
            ("probe_timeout", self.probe_timeout),
            ("ledger_deadline", self.ledger_deadline),
        ];
        if let Some((key, _)) = spans.iter().find(|(_, span)| span.duration() < Duration::from_millis(1)) {
            return refuse(key, "it must be at least 1ms");
        }
        if self.ledgers_in_flight == 0 {
            return refuse("ledgers_in_flight", "it must be at least 1");
        }
        if self.memory_max.bytes() / JOB_BYTES < self.ledgers_in_flight as u64 {
            return refuse("memory_max", "it must be at least 40MiB for each of ledgers_in_flight");
        }
        let probe = ledger::ColdId::for_member(ledger::LedgerId::ZERO, 0, &self.cold_domain, self.cold_port);
        if probe.is_err() {
            return refuse("cold_domain", "it must be labels of letters, digits and - joined by dots, cold_port not 0");
        }
        Ok(())
    }
}
