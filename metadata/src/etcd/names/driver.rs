//! The names of BookKeeper's own driver for etcd.
//!
//! | key | name below the root |
//! |---|---|
//! | `/ledgers/LAYOUT`, `/ledgers/INSTANCEID` | `/layout`, `/instanceid` |
//! | a ledger's | `/ledgers/<uuid>`, the id being the lower half of the UUID |
//! | `/ledgers/available/<bookie>` | `/bookies/writable/<bookie>` |
//! | `/ledgers/available/readonly/<bookie>` | `/bookies/readonly/<bookie>` |
//! | `/ledgers/cookies/<bookie>` | the same without `/ledgers` |
//! | `/ledgers/underreplication/…` | the same without `/ledgers`, which the driver knows nothing of |
//! | any other that begins with none of the driver's words | the same |

use super::Rows;
use crate::{Key, LedgerLayout, layout};

/// Empty values that the driver makes with a cluster. The first is the root itself: that it is there says that a cluster is.
pub(super) const MARKERS: [&str; 8] =
    ["", "/cookies", "/bookies", "/bookies/writable", "/bookies/readonly", "/ledgers", "/buckets", "/underreplication"];

/// First segments of names that are the driver's.
pub(in crate::etcd) const WORDS: [&str; 7] =
    ["layout", "instanceid", "cookies", "bookies", "ledgers", "buckets", "underreplication"];

const READONLY: &str = "/ledgers/available/readonly/";
/// Collections that have other places, as (keys below, names below).
const MOVED: [(&str, &str); 4] = [
    // Before the one that it lies in.
    (READONLY, "/bookies/readonly/"),
    ("/ledgers/available/", "/bookies/writable/"),
    ("/ledgers/cookies/", "/cookies/"),
    ("/ledgers/underreplication/", "/underreplication/"),
];
const VALUES: [(&str, &str); 2] = [("/ledgers/INSTANCEID", "/instanceid"), ("/ledgers/LAYOUT", "/layout")];

/// Whether a key begins with a word of the driver: what is not moved from there has no name.
pub(super) fn is_taken(key: &str) -> bool {
    let first = key.trim_start_matches('/').split('/').next().unwrap_or_default();
    WORDS.contains(&first)
}

pub(super) fn name(key: &Key) -> Option<String> {
    if let Some(id) = layout::parse_ledger_key(key) {
        return Some(format!("/ledgers/{}", LedgerLayout::Etcd.path(id)?));
    }
    let text = key.as_str();
    let Some(below) = text.strip_prefix("/ledgers/") else {
        return (!is_taken(text)).then(|| text.to_owned());
    };
    if !layout::is_bookkeepers(below) {
        return None;
    }
    if let Some((_, name)) = VALUES.iter().find(|(value, _)| *value == text) {
        return Some((*name).to_owned());
    }
    MOVED.iter().find_map(|(keys, names)| Some(format!("{names}{}", text.strip_prefix(keys)?)))
}

pub(super) fn key(found: &str) -> Option<Key> {
    if let Some(path) = found.strip_prefix("/ledgers/") {
        return Some(layout::ledger_key(LedgerLayout::Etcd.id(path)?));
    }
    let value = VALUES.iter().find(|(_, name)| *name == found).map(|(key, _)| (*key).to_owned());
    let moved = || MOVED.iter().find_map(|(keys, names)| Some(format!("{keys}{}", found.strip_prefix(names)?)));
    let key = Key::new(&value.or_else(moved).unwrap_or_else(|| found.to_owned())).ok()?;
    (name(&key).as_deref() == Some(found)).then_some(key)
}

/// The names of the keys from `first` to `end`, in the order of keys.
pub(super) fn stretches(first: &str, end: &str) -> Vec<(Rows, String, String)> {
    let mut found = Vec::new();
    let ledgers = (layout::first_ledger_at(first), layout::first_ledger_at(end));
    if let (Some(from), to) = ledgers
        && Some(from) != to
        && let Some(from) = name(&layout::ledger_key(from))
    {
        // Behind the last id, ids would be negative.
        let to = to.and_then(|to| name(&layout::ledger_key(to)));
        found.push((Rows::All, from, to.unwrap_or_else(|| "/ledgers/00000000-0000-0000-8".to_owned())));
    }
    for (key, name) in VALUES {
        if first <= key && key < end {
            found.push((Rows::All, name.to_owned(), format!("{name}\0")));
        }
    }
    let mut add = |first: &str, end: &str, keys: &str| {
        let Some((_, names)) = MOVED.iter().find(|(moved, _)| *moved == keys) else { return };
        found.extend(super::moved(first, end, keys, names).map(|(from, end)| (Rows::All, from, end)));
    };
    // In the order of keys the read-only bookies lie among the writable ones.
    let behind = "/ledgers/available/readonly0";
    add(first, end.min(READONLY), "/ledgers/available/");
    add(first, end, READONLY);
    add(first.max(behind), end, "/ledgers/available/");
    add(first, end, "/ledgers/cookies/");
    add(first, end, "/ledgers/underreplication/");
    found
}

pub(super) fn watched(prefix: &Key) -> (String, String) {
    let range = |from: &str, end: &str| (from.to_owned(), end.to_owned());
    if let Some(name) = name(prefix) {
        let end = format!("{name}\0");
        return (name, end);
    }
    match prefix.as_str() {
        "/ledgers/available" => range("/bookies/", "/bookies0"),
        "/ledgers/available/readonly" => range("/bookies/readonly/", "/bookies/readonly0"),
        "/ledgers/cookies" => range("/cookies/", "/cookies0"),
        name if name.starts_with("/ledgers/underreplication") => range("/underreplication/", "/underreplication0"),
        _ => range("/bookies/", "/underreplication0"),
    }
}
