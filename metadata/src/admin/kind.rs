//! What a key is of, from its name alone: pure.

use std::collections::BTreeMap;

use crate::{Key, Versioned, layout};

/// What a key of a cluster holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// How ledgers are laid out.
    Layout,
    /// The identity.
    Instance,
    /// A ledger's metadata.
    Ledger,
    /// A bookie's registration.
    Bookie,
    /// A bookie's cookie.
    Cookie,
    /// The mark of a ledger that lacks replicas.
    UnderReplicated,
    /// Another value of auto-recovery: a lock, a vote, a setting.
    AutoRecovery,
    /// Anything else of BookKeeper's tree: nothing that we write.
    Foreign,
    /// The cluster's name for people.
    Name,
    /// A counter.
    Counter,
    /// The counter that ledger ids come from, in stores that have no other way.
    Ids,
    /// A running attempt to settle a ledger.
    Attempt,
    /// An abandoned attempt.
    Abandoned,
    /// A live offloader.
    Owner,
    /// A live gateway.
    Gateway,
    /// What a bookie asks to be released.
    ReleaseRequest,
    /// How cold ids are named.
    ColdNames,
    /// A shard of cold ids that a gateway owns.
    Shard,
    /// A committed object.
    Catalog,
    /// A doctor that measures now.
    Doctor,
    /// Work of an administrator that is under way.
    Marker,
    /// A key of ours that this release does not know: of a later one.
    Later,
}

impl Kind {
    /// What `key` is, which lies below one of the two roots.
    #[must_use]
    pub fn of(key: &Key) -> Self {
        if layout::parse_ledger_key(key).is_some() {
            return Self::Ledger;
        }
        let name = key.as_str();
        let below = |root: Key| key.below(&root).is_some();
        match name {
            "/ledgers/LAYOUT" => Self::Layout,
            "/ledgers/INSTANCEID" => Self::Instance,
            "/thermocline/cluster" => Self::Name,
            "/thermocline/maintenance" => Self::Marker,
            "/thermocline/cold/names" => Self::ColdNames,
            "/thermocline/idgen" => Self::Ids,
            "/thermocline/commit-counter" => Self::Counter,
            _ if below(layout::available_root()) && layout::parse_registration_key(key).is_some() => Self::Bookie,
            _ if layout::parse_mark_key(key).is_some() => Self::UnderReplicated,
            _ if layout::is_underreplication(key) => Self::AutoRecovery,
            _ if below(layout::cookies_root()) => Self::Cookie,
            _ if below(layout::attempts_root()) => Self::Attempt,
            _ if below(layout::abandoned_root()) => Self::Abandoned,
            _ if below(layout::owners_root()) => Self::Owner,
            _ if below(layout::gateways_root()) => Self::Gateway,
            _ if below(layout::release_requests_root()) => Self::ReleaseRequest,
            _ if below(layout::shards_root()) => Self::Shard,
            _ if below(layout::catalog_root()) => Self::Catalog,
            _ if name.starts_with("/thermocline/doctor/") => Self::Doctor,
            _ if name.starts_with("/thermocline/") => Self::Later,
            _ => Self::Foreign,
        }
    }

    /// The word for many of it, in tables and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Layout => "layout",
            Self::Instance => "identity",
            Self::Ledger => "ledgers",
            Self::Bookie => "registrations of bookies",
            Self::Cookie => "cookies",
            Self::UnderReplicated => "ledgers that lack replicas",
            Self::AutoRecovery => "other keys of auto-recovery",
            Self::Foreign => "other keys of BookKeeper",
            Self::Name => "name",
            Self::Counter => "counters",
            Self::Ids => "counter of ledger ids",
            Self::Attempt => "running attempts",
            Self::Abandoned => "abandoned attempts",
            Self::Owner => "offloaders",
            Self::Gateway => "gateways",
            Self::ReleaseRequest => "requests for releases",
            Self::ColdNames => "names of cold ids",
            Self::Shard => "owned shards",
            Self::Catalog => "catalog entries",
            Self::Doctor => "doctors",
            Self::Marker => "maintenance",
            Self::Later => "keys of a later release",
        }
    }

    /// Whether a row goes along when the cluster moves to another store: what outlives every process, and whose value says the same
    /// under another version. Identity and layout go apart, and so do the ids that were given, which stores count in ways of their own; a
    /// running attempt never does (its version is its meaning).
    pub(super) fn is_carried(key: &Key, row: &Versioned) -> bool {
        row.lease.is_none()
            && matches!(
                Self::of(key),
                Self::Ledger
                    | Self::Bookie
                    | Self::Cookie
                    | Self::Name
                    | Self::Counter
                    | Self::Abandoned
                    | Self::ColdNames
                    | Self::Catalog
                    | Self::Later
            )
    }
}

/// How many keys of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Kind, u64>);

impl Counts {
    pub(super) fn add(&mut self, kind: Kind) {
        *self.0.entry(kind).or_default() += 1;
    }

    /// How many of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> u64 {
        self.0.get(&kind).copied().unwrap_or_default()
    }

    /// Kinds that occur, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        self.0.iter().map(|(kind, count)| (*kind, *count))
    }

    /// Of all kinds together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ::ledger::{BookieId, LedgerId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_key_of_the_layout_has_its_kind() {
        let (bookie, ledger) = (BookieId::new("10.0.0.1:3181").unwrap(), LedgerId::new(7_u64).unwrap());
        let other = |name: &str| Key::new(name).unwrap();
        for (key, kind) in [
            (layout::layout_key(), Kind::Layout),
            (layout::instance_key(), Kind::Instance),
            (layout::ledger_key(ledger), Kind::Ledger),
            (layout::available_key(&bookie), Kind::Bookie),
            (layout::readonly_key(&bookie), Kind::Bookie),
            (layout::cookie_key(&bookie), Kind::Cookie),
            (layout::name_key(), Kind::Name),
            (layout::maintenance_key(), Kind::Marker),
            (layout::idgen_key(), Kind::Ids),
            (layout::commit_counter_key(), Kind::Counter),
            (layout::attempt_key(ledger), Kind::Attempt),
            (layout::abandoned_key(Uuid::nil()), Kind::Abandoned),
            (layout::owners_root().join("o").unwrap(), Kind::Owner),
            (layout::gateway_key("g").unwrap(), Kind::Gateway),
            (layout::release_request_key(&bookie), Kind::ReleaseRequest),
            (layout::cold_names_key(), Kind::ColdNames),
            (layout::shard_key(7), Kind::Shard),
            (layout::catalog_key(ledger, Uuid::nil()), Kind::Catalog),
            (other("/thermocline/doctor/x"), Kind::Doctor),
            (other("/thermocline/policies/x"), Kind::Later),
            (layout::mark_key(ledger), Kind::UnderReplicated),
            (layout::repair_lock_key(ledger), Kind::AutoRecovery),
            (layout::recovery_disabled_key(), Kind::AutoRecovery),
            (other("/ledgers/idgen-long"), Kind::Foreign),
            (other("/ledgers/available/readonly"), Kind::Foreign),
            (other("/ledgers/underreplication/ledgers/0001"), Kind::Foreign),
        ] {
            assert_eq!(Kind::of(&key), kind, "{key}");
        }
    }
}
