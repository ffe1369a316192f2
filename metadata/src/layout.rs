//! Where everything lives: pure functions from names to keys and back. `docs/formats/metadata-keys.md` lists them all.
//!
//! Under `/ledgers` the tree is BookKeeper's with the long hierarchical layout for every id, so that the order of keys is the
//! order of ids; a store whose cluster has another layout ([`crate::LedgerLayout`]) finds the place. What only we know lives under
//! `/thermocline`.

use ledger::{BookieId, LedgerId};
use uuid::Uuid;

use crate::Key;

fn fixed(name: &str) -> Key {
    Key::known(name.to_owned())
}

/// The root of BookKeeper's tree; ledgers come first below it.
#[must_use]
pub fn ledgers_root() -> Key {
    fixed("/ledgers")
}

/// Names the layout of the ledgers' tree.
#[must_use]
pub fn layout_key() -> Key {
    fixed("/ledgers/LAYOUT")
}

/// Holds the cluster's identity.
#[must_use]
pub fn instance_key() -> Key {
    fixed("/ledgers/INSTANCEID")
}

/// A ledger's metadata: 19 digits split 3/4/4/4/4.
#[must_use]
pub fn ledger_key(id: LedgerId) -> Key {
    let digits = format!("{:019}", id.get());
    Key::known(format!(
        "/ledgers/{}/{}/{}/{}/L{}",
        &digits[..3],
        &digits[3..7],
        &digits[7..11],
        &digits[11..15],
        &digits[15..]
    ))
}

/// The inverse of [`ledger_key`]; `None` for every other key.
#[must_use]
pub fn parse_ledger_key(key: &Key) -> Option<LedgerId> {
    let mut digits = String::with_capacity(19);
    let mut parts = key.as_str().strip_prefix("/ledgers/")?.split('/');
    for length in [3, 4, 4, 4] {
        digits.push_str(parts.next().filter(|part| part.len() == length)?);
    }
    digits.push_str(parts.next()?.strip_prefix('L').filter(|part| part.len() == 4)?);
    if parts.next().is_some() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    LedgerId::new(digits.parse::<u64>().ok()?)
}

/// Whether a key of the ledgers' tree sorts behind every ledger.
pub(crate) fn is_behind_ledgers(key: &Key) -> bool {
    // ':' is the character after '9'.
    key.as_str() >= "/ledgers/:"
}

/// The first ledger whose key is `text` or sorts behind it; `None`: no ledger's key does.
pub(crate) fn first_ledger_at(text: &str) -> Option<LedgerId> {
    let (mut below, mut end) = (0, i64::MAX.unsigned_abs() + 1);
    while below < end {
        let middle = below + (end - below) / 2;
        // Keys are in the order of ids.
        match LedgerId::new(middle).is_some_and(|id| ledger_key(id).as_str() < text) {
            true => below = middle + 1,
            false => end = middle,
        }
    }
    LedgerId::new(below)
}

/// Whether BookKeeper's tree has a value at `path` below its root that is no ledger's: identity, layout, a registration, a cookie, or
/// one of auto-recovery.
pub(crate) fn is_bookkeepers(path: &str) -> bool {
    const READONLY: &str = "readonly";
    match path.split_once('/') {
        None => matches!(path, "INSTANCEID" | "LAYOUT"),
        Some(("available", name)) => match name.split_once('/') {
            None => name != READONLY,
            Some((READONLY, name)) => !name.contains('/'),
            Some(_) => false,
        },
        Some(("cookies", name)) => !name.contains('/'),
        Some(("underreplication", _)) => {
            Key::new(&format!("/ledgers/{path}")).is_ok_and(|key| is_underreplication(&key))
        }
        Some(_) => false,
    }
}

/// The parent of the writable bookies, and of the read-only ones one level further.
#[must_use]
pub fn available_root() -> Key {
    fixed("/ledgers/available")
}

/// A writable bookie's registration.
#[must_use]
pub fn available_key(id: &BookieId) -> Key {
    Key::known(format!("/ledgers/available/{id}"))
}

/// The parent of the read-only bookies.
#[must_use]
pub fn readonly_root() -> Key {
    fixed("/ledgers/available/readonly")
}

/// A read-only bookie's registration.
#[must_use]
pub fn readonly_key(id: &BookieId) -> Key {
    Key::known(format!("/ledgers/available/readonly/{id}"))
}

/// The bookie of a registration key, and whether it is writable.
#[must_use]
pub fn parse_registration_key(key: &Key) -> Option<(BookieId, bool)> {
    let name = key.below(&available_root())?;
    let (name, writable) = match name.strip_prefix("readonly/") {
        Some(name) => (name, false),
        None => (name, true),
    };
    Some((BookieId::new(name).ok()?, writable))
}

/// The parent of the cookies: all bookies there ever were.
#[must_use]
pub fn cookies_root() -> Key {
    fixed("/ledgers/cookies")
}

/// A bookie's cookie.
#[must_use]
pub fn cookie_key(id: &BookieId) -> Key {
    Key::known(format!("/ledgers/cookies/{id}"))
}

/// The parent of all that auto-recovery knows.
#[must_use]
pub fn underreplication_root() -> Key {
    fixed("/ledgers/underreplication")
}

/// The parent of the marks of ledgers that lack replicas.
#[must_use]
pub fn marks_root() -> Key {
    fixed("/ledgers/underreplication/ledgers")
}

/// The mark of a ledger that lacks replicas: the id as four times four hexadecimal digits, then in decimal.
#[must_use]
pub fn mark_key(ledger: LedgerId) -> Key {
    let (id, hex) = (ledger.get(), format!("{:016x}", ledger.get()));
    Key::known(format!(
        "/ledgers/underreplication/ledgers/{}/{}/{}/{}/urL{id:010}",
        &hex[..4],
        &hex[4..8],
        &hex[8..12],
        &hex[12..]
    ))
}

/// The inverse of [`mark_key`]; `None` for every other key.
#[must_use]
pub fn parse_mark_key(key: &Key) -> Option<LedgerId> {
    let ledger = LedgerId::new(key.name().strip_prefix("urL")?.parse::<u64>().ok()?)?;
    (mark_key(ledger) == *key).then_some(ledger)
}

/// The parent of the locks of ledgers whose replicas are being changed.
#[must_use]
pub fn repair_locks_root() -> Key {
    fixed("/ledgers/underreplication/locks")
}

/// The lock of a ledger whose replicas are being changed.
#[must_use]
pub fn repair_lock_key(ledger: LedgerId) -> Key {
    Key::known(format!("/ledgers/underreplication/locks/urL{:010}", ledger.get()))
}

/// The inverse of [`repair_lock_key`]; `None` for every other key.
#[must_use]
pub fn parse_repair_lock_key(key: &Key) -> Option<LedgerId> {
    let ledger = LedgerId::new(key.name().strip_prefix("urL")?.parse::<u64>().ok()?)?;
    (repair_lock_key(ledger) == *key).then_some(ledger)
}

/// Stands while auto-recovery is switched off.
#[must_use]
pub fn recovery_disabled_key() -> Key {
    fixed("/ledgers/underreplication/disable")
}

/// The parent of the votes of those who would be auditor; the one with the lowest number is.
#[must_use]
pub fn auditor_votes_root() -> Key {
    fixed("/ledgers/underreplication/auditorelection")
}

/// Whether auto-recovery has a value at this key.
pub(crate) fn is_underreplication(key: &Key) -> bool {
    const VOTE: &str = "auditorelection/V_";
    let Some(below) = key.below(&underreplication_root()) else { return false };
    UNDERREPLICATION_VALUES.contains(&below)
        || below.strip_prefix(VOTE).is_some_and(|number| !number.is_empty() && !number.contains('/'))
        || parse_mark_key(key).is_some()
        || parse_repair_lock_key(key).is_some()
}

/// The single values of auto-recovery, below its root.
pub(crate) const UNDERREPLICATION_VALUES: [&str; 7] = [
    "LAYOUT",
    "auditorelection",
    "checkallledgersctime",
    "disable",
    "lostBookieRecoveryDelay",
    "placementpolicycheckctime",
    "replicascheckctime",
];

/// The counter that ledger ids come from.
#[must_use]
pub fn idgen_key() -> Key {
    fixed("/thermocline/idgen")
}

/// The counter of offload attempts; its highest value that was committed is what the object store's watermark remembers.
#[must_use]
pub fn commit_counter_key() -> Key {
    fixed("/thermocline/commit-counter")
}

/// The parent of the running attempts.
#[must_use]
pub fn attempts_root() -> Key {
    fixed("/thermocline/attempts")
}

/// The one running attempt to offload a ledger.
#[must_use]
pub fn attempt_key(ledger: LedgerId) -> Key {
    Key::known(format!("/thermocline/attempts/{:016x}", ledger.get()))
}

/// The parent of the abandoned attempts.
#[must_use]
pub fn abandoned_root() -> Key {
    fixed("/thermocline/abandoned")
}

/// An abandoned attempt: a condemnation of its object.
#[must_use]
pub fn abandoned_key(uuid: Uuid) -> Key {
    Key::known(format!("/thermocline/abandoned/{uuid}"))
}

/// The parent of the owners' leases.
#[must_use]
pub fn owners_root() -> Key {
    fixed("/thermocline/owners")
}

/// The parent of the gateways that serve now.
#[must_use]
pub fn gateways_root() -> Key {
    fixed("/thermocline/gateways")
}

/// A gateway's registration.
///
/// # Errors
/// [`crate::ErrorKind::Invalid`] when the name is empty, holds a slash or is too long.
pub fn gateway_key(id: &str) -> Result<Key, crate::Error> {
    if id.contains('/') {
        let text = format!("register gateway {id:?}: its name holds a slash");
        return Err(crate::Error::new(crate::ErrorKind::Invalid, text));
    }
    gateways_root().join(id)
}

/// The parent of what bookies ask to be released.
#[must_use]
pub fn release_requests_root() -> Key {
    fixed("/thermocline/release-requests")
}

/// The ledgers that a bookie asks to be released.
#[must_use]
pub fn release_request_key(id: &BookieId) -> Key {
    Key::known(format!("/thermocline/release-requests/{id}"))
}

/// The parent of what is known of cold ids: their names, and who owns which shard.
#[must_use]
pub fn cold_root() -> Key {
    fixed("/thermocline/cold")
}

/// How the cold ids of the cluster are named.
#[must_use]
pub fn cold_names_key() -> Key {
    fixed("/thermocline/cold/names")
}

/// The parent of the owned shards.
#[must_use]
pub fn shards_root() -> Key {
    fixed("/thermocline/cold/shards")
}

/// The owner of a shard.
#[must_use]
pub fn shard_key(shard: u8) -> Key {
    Key::known(format!("/thermocline/cold/shards/{shard:02}"))
}

/// The inverse of [`shard_key`]; `None` for every other key.
#[must_use]
pub fn parse_shard_key(key: &Key) -> Option<u8> {
    let shard = key.below(&shards_root())?.parse().ok().filter(|shard| *shard < ledger::COLD_SHARDS)?;
    (shard_key(shard) == *key).then_some(shard)
}

/// The parent of the catalog.
#[must_use]
pub fn catalog_root() -> Key {
    fixed("/thermocline/catalog")
}

/// A committed object.
#[must_use]
pub fn catalog_key(ledger: LedgerId, uuid: Uuid) -> Key {
    Key::known(format!("/thermocline/catalog/{:016x}-{uuid}", ledger.get()))
}

/// The root of what only we know.
#[must_use]
pub fn thermocline_root() -> Key {
    fixed("/thermocline")
}

/// The cluster's name for people.
#[must_use]
pub fn name_key() -> Key {
    fixed("/thermocline/cluster")
}

/// The marker of an administrator's work on the whole cluster that has not ended.
#[must_use]
pub fn maintenance_key() -> Key {
    fixed("/thermocline/maintenance")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(id: u64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    #[test]
    fn ledger_keys_are_those_of_the_long_layout() {
        for (number, path) in [
            (0, "/000/0000/0000/0000/L0000"),
            (1, "/000/0000/0000/0000/L0001"),
            (10_000, "/000/0000/0000/0001/L0000"),
            (123_456_789, "/000/0000/0001/2345/L6789"),
            (2_147_483_647, "/000/0000/0021/4748/L3647"),
            (4_294_967_301, "/000/0000/0042/9496/L7301"),
            (12_345_678_901_234, "/000/0012/3456/7890/L1234"),
            (9_223_372_036_854_775_807, "/922/3372/0368/5477/L5807"),
        ] {
            let key = ledger_key(id(number));
            assert_eq!(key.as_str(), format!("/ledgers{path}"));
            assert_eq!(parse_ledger_key(&key), Some(id(number)));
            assert!(!is_behind_ledgers(&key));
        }
    }

    #[test]
    fn other_keys_are_no_ledgers() {
        for name in [
            "/ledgers/LAYOUT",
            "/ledgers/available/L0001",
            "/ledgers/000/0000/0000/0000/0001",
            "/ledgers/000/0000/0000/0000/L001",
            "/ledgers/000/0000/0000/0000/L0001/x",
            "/ledgers/00/0000/L0001",
            "/ledgers/+00/0000/0000/0000/L0001",
            "/ledgers/999/9999/9999/9999/L9999",
        ] {
            assert_eq!(parse_ledger_key(&Key::new(name).unwrap()), None, "{name}");
        }
        for key in [layout_key(), instance_key(), available_root(), cookies_root()] {
            assert!(is_behind_ledgers(&key), "{key}");
        }
    }

    #[test]
    fn a_walk_begins_where_the_last_page_ended() {
        for (text, want) in [
            ("/ledgers/", Some(0)),
            ("/ledgers/000/0000/0000/0000/L0007", Some(7)),
            ("/ledgers/000/0000/0000/0000/L0007\0", Some(8)),
            ("/ledgers/000/0000/0000/0001/", Some(10_000)),
            ("/ledgers/000/0000/0021/", Some(2_100_000_000)),
            ("/ledgers/922/3372/0368/5477/L5807", Some(9_223_372_036_854_775_807)),
            ("/ledgers/922/3372/0368/5477/L5807\0", None),
            ("/ledgers/INSTANCEID", None),
            ("/ledgers/available/x\0", None),
            ("/ledgers/999/", None),
        ] {
            assert_eq!(first_ledger_at(text), want.map(id), "{text:?}");
        }
    }

    #[test]
    fn registrations_parse_back() {
        let bookie = BookieId::new("10.0.0.1:3181").unwrap();
        assert_eq!(parse_registration_key(&available_key(&bookie)), Some((bookie.clone(), true)));
        assert_eq!(parse_registration_key(&readonly_key(&bookie)), Some((bookie, false)));
        assert_eq!(parse_registration_key(&readonly_root()), None);
    }

    /// The examples of BookKeeper's own tree.
    #[test]
    fn marks_and_locks_are_where_auto_recovery_looks() {
        for (number, mark, lock) in [
            (123_456_789, "ledgers/0000/0000/075b/cd15/urL0123456789", "locks/urL0123456789"),
            (0, "ledgers/0000/0000/0000/0000/urL0000000000", "locks/urL0000000000"),
            (12_345_678_901_234, "ledgers/0000/0b3a/73ce/2ff2/urL12345678901234", "locks/urL12345678901234"),
        ] {
            let (mark_at, lock_at) = (mark_key(id(number)), repair_lock_key(id(number)));
            assert_eq!(mark_at.as_str(), format!("/ledgers/underreplication/{mark}"));
            assert_eq!(lock_at.as_str(), format!("/ledgers/underreplication/{lock}"));
            assert_eq!((parse_mark_key(&mark_at), parse_mark_key(&lock_at)), (Some(id(number)), None));
            assert_eq!((parse_repair_lock_key(&lock_at), parse_repair_lock_key(&mark_at)), (Some(id(number)), None));
            assert!(is_underreplication(&mark_at) && is_underreplication(&lock_at));
        }
        for name in ["disable", "auditorelection", "auditorelection/V_0000000001", "replicascheckctime"] {
            assert!(is_underreplication(&underreplication_root().join(name).unwrap()), "{name}");
        }
        for name in [
            "ledgers",
            "locks",
            "locks/urL1",
            "locks/x",
            "auditorelection/V_",
            "auditorelection/V_1/x",
            "ledgers/0000/0000/075b/cd15",
            "ledgers/0000/0000/075b/cd16/urL0123456789",
        ] {
            assert!(!is_underreplication(&underreplication_root().join(name).unwrap()), "{name}");
        }
    }

    #[test]
    fn shards_parse_back() {
        assert_eq!(shard_key(7).as_str(), "/thermocline/cold/shards/07");
        for shard in 0..ledger::COLD_SHARDS {
            assert_eq!(parse_shard_key(&shard_key(shard)), Some(shard));
        }
        for name in ["/thermocline/cold/shards/64", "/thermocline/cold/shards/7", "/thermocline/cold/names"] {
            assert_eq!(parse_shard_key(&Key::new(name).unwrap()), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn key_order_is_id_order(a in 0..=i64::MAX.unsigned_abs(), b in 0..=i64::MAX.unsigned_abs()) {
            prop_assert_eq!(mark_key(id(a)).cmp(&mark_key(id(b))), a.cmp(&b));
            prop_assert_eq!(parse_mark_key(&mark_key(id(a))), Some(id(a)));
            prop_assert_eq!(ledger_key(id(a)).cmp(&ledger_key(id(b))), a.cmp(&b));
            prop_assert_eq!(parse_ledger_key(&ledger_key(id(a))), Some(id(a)));
        }
    }
}
