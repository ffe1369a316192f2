//! Who works on the cluster now: the leased keys.

use std::fmt::Write as _;

use super::Kind;
use super::walk::Walk;
use crate::{Cluster, Error, Key, MetadataStore, layout};

const NAMED_MAX: usize = 5;

/// A process that holds a key under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// What it registered.
    pub kind: Kind,
    /// Its name there.
    pub name: String,
}

impl Live {
    pub(super) fn at(key: &Key) -> Self {
        Self { kind: Kind::of(key), name: key.name().to_owned() }
    }
}

/// Who is registered under a lease: bookies, gateways, offloaders, doctors, and whoever audits or repairs. One that died a moment ago is among them until its lease ends.
///
/// # Errors
/// Those of the store.
pub async fn live(store: &dyn MetadataStore) -> Result<Vec<Live>, Error> {
    // A proof first: listings that follow are at least as fresh.
    Cluster::open(store).await?;
    let mut found = Vec::new();
    let doctors = Key::known("/thermocline/doctor".to_owned());
    let (votes, locks) = (layout::auditor_votes_root(), layout::repair_locks_root());
    for root in [layout::available_root(), votes, locks, layout::owners_root(), layout::gateways_root(), doctors] {
        let mut walk = Walk::of(store, root, |_, row| row.lease.is_some());
        while let Some((key, _)) = walk.next().await? {
            found.push(Live::at(&key));
        }
    }
    Ok(found)
}

/// `2 bookies (b1, b2), 1 gateway (g)`.
#[must_use]
pub fn live_sentence(live: &[Live]) -> String {
    let kinds = [
        (Kind::Bookie, "bookie"),
        (Kind::Gateway, "gateway"),
        (Kind::Owner, "offloader"),
        (Kind::AutoRecovery, "vote or lock of auto-recovery"),
        (Kind::Doctor, "doctor"),
    ];
    let known = |live: &&Live| kinds.iter().any(|(kind, _)| *kind == live.kind);
    let mut text = String::new();
    for (kind, word) in
        kinds.map(|(kind, word)| (Some(kind), word)).into_iter().chain([(None, "other holder of a lease")])
    {
        let names: Vec<&str> = live
            .iter()
            .filter(|live| kind.map_or(!known(live), |kind| live.kind == kind))
            .map(|live| live.name.as_str())
            .collect();
        if names.is_empty() {
            continue;
        }
        let comma = if text.is_empty() { "" } else { ", " };
        let plural = if names.len() == 1 { "" } else { "s" };
        let more = if names.len() > NAMED_MAX { ", …" } else { "" };
        let shown = names[..names.len().min(NAMED_MAX)].join(", ");
        let _ = write!(text, "{comma}{} {word}{plural} ({shown}{more})", names.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_the_first_few() {
        let live = |kind, name: &str| Live { kind, name: name.to_owned() };
        let mut all: Vec<Live> = (1..=7).map(|number| live(Kind::Bookie, &format!("b{number}"))).collect();
        all.push(live(Kind::Gateway, "g"));
        all.push(live(Kind::Later, "x"));
        assert_eq!(
            live_sentence(&all),
            "7 bookies (b1, b2, b3, b4, b5, …), 1 gateway (g), 1 other holder of a lease (x)"
        );
        assert_eq!(live_sentence(&[]), "");
    }
}
