//! The names that Pulsar's driver for etcd has, those of BookKeeper's tree in ZooKeeper: keys as they are, except that ledgers lie by
//! a layout that need not be the long hierarchical one.

use super::Rows;
use crate::ledger_layout::SHORT_END;
use crate::{Key, LedgerLayout, layout};

/// Directories of the tree as empty values. Pulsar looks for the first to know whether there is a cluster, and formats what it takes for
/// none; BookKeeper's driver looks for its root, which can be the first as well.
pub(super) const MARKS: [&str; 3] = ["/ledgers", "/ledgers/available", "/ledgers/available/readonly"];
/// What other clients keep in the tree: how far ids went, and whether lost replicas are repaired. The next cluster has its own.
pub(super) const OTHERS: [&str; 4] =
    ["/ledgers/idgen", "/ledgers/idgen-long", "/ledgers/underreplication", "/ledgers/disableHealthCheck"];

pub(super) fn is_mark(name: &str) -> bool {
    MARKS.contains(&name)
}

const LEDGERS: &str = "/ledgers/";
/// Behind every short path, and behind every name that begins with a digit.
const BEHIND_SHORT: &str = "/ledgers/22";
const BEHIND_LEDGERS: &str = "/ledgers/:";

pub(super) fn name(key: &Key, layout: LedgerLayout) -> Option<String> {
    if let Some(id) = layout::parse_ledger_key(key) {
        return Some(format!("{LEDGERS}{}", layout.path(id)?));
    }
    let below = key.as_str().strip_prefix(LEDGERS);
    let fits = below.map_or(key.as_str() != "/ledgers", layout::is_bookkeepers);
    fits.then(|| key.as_str().to_owned())
}

pub(super) fn key(found: &str, layout: LedgerLayout) -> Option<Key> {
    if let Some(id) = found.strip_prefix(LEDGERS).and_then(|below| layout.id(below)) {
        let key = layout::ledger_key(id);
        return (name(&key, layout).as_deref() == Some(found)).then_some(key);
    }
    Key::new(found).ok().filter(|key| name(key, layout).as_deref() == Some(found))
}

/// The names of the keys from `first` to `end`, in the order of keys: short paths, long paths, what is no ledger.
pub(super) fn stretches(first: &str, end: &str, layout: LedgerLayout) -> Vec<(Rows, String, String)> {
    let mut found = Vec::new();
    let place = |id| layout.path(id).map(|path| format!("{LEDGERS}{path}"));
    if let Some(from) = layout::first_ledger_at(first) {
        let to = layout::first_ledger_at(end);
        let is_short = |id: ledger::LedgerId| id.get() < SHORT_END;
        if is_short(from)
            && let Some(from) = place(from)
        {
            let to = to.filter(|to| is_short(*to)).and_then(place);
            found.push((Rows::Short, from, to.unwrap_or_else(|| BEHIND_SHORT.to_owned())));
        }
        let first_long = ledger::LedgerId::new(SHORT_END).filter(|long| *long > from).unwrap_or(from);
        if to.is_none_or(|to| to > first_long)
            && let Some(from) = place(first_long)
        {
            found.push((Rows::Long, from, to.and_then(place).unwrap_or_else(|| BEHIND_LEDGERS.to_owned())));
        }
    }
    found.push((Rows::All, first.max(BEHIND_LEDGERS).to_owned(), end.to_owned()));
    found
}

/// Where a stretch of one kind of paths goes on when it meets the other kind: the first two digits are common to both, and a slash
/// sorts before every digit.
pub(super) fn behind(found: &str, rows: Rows) -> Option<String> {
    let digits = found.strip_prefix(LEDGERS)?.split('/').next()?;
    let two: u8 = digits.get(..2).filter(|two| two.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()?;
    match (rows, digits.len()) {
        // Behind all long paths that begin with these two.
        (Rows::Short, 3) => {
            Some(if two == 99 { BEHIND_LEDGERS.to_owned() } else { format!("{LEDGERS}{:02}/", two + 1) })
        }
        // Behind all short ones.
        (Rows::Long, 2) => Some(format!("{LEDGERS}{two:02}0")),
        _ => None,
    }
}

pub(super) fn watched(prefix: &Key, layout: LedgerLayout) -> (String, String) {
    if layout::parse_ledger_key(prefix).is_some()
        && let Some(name) = name(prefix, layout)
    {
        let end = format!("{name}\0");
        return (name, end);
    }
    let among_ledgers = prefix.as_str().strip_prefix(LEDGERS).is_some_and(|below| below < ":");
    match among_ledgers {
        true => (LEDGERS.to_owned(), BEHIND_LEDGERS.to_owned()),
        false => (prefix.as_str().to_owned(), crate::engine::subtree(prefix).1),
    }
}
