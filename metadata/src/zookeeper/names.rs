//! Keys as znodes: pure functions there and back.
//!
//! What BookKeeper knows lies in BookKeeper's tree, at `<root>`, under BookKeeper's names: ledgers by the cluster's layout, LAYOUT,
//! INSTANCEID, registrations and cookies. Everything else lies beside it at `<root>-own`, where no other process looks, in hash
//! trees: `<root>-own/<parents of the key>/@<bucket>/<last segment>`. The bucket is the last byte of the CRC32C of the last
//! segment, so one collection spreads over 256 directories, and no answer about one of them gets near ZooKeeper's limit. A name that
//! begins with `@` or holds what ZooKeeper does not take is written with `%`; so directories of keys and buckets differ.

use std::fmt::Write as _;

use crate::{Error, ErrorKind, Key, LedgerLayout, layout};

/// Where a key's value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A ledger: the path it is made at, and the other spelling under which it may have been made.
    Ledger { path: String, other: Option<String> },
    /// Another value in BookKeeper's tree; so many directories above it are removed with it when they are empty.
    Shared { path: String, pruned: usize },
    /// In a hash tree of ours.
    Own { bucket: String, path: String },
}

impl Place {
    pub(super) fn path(&self) -> &str {
        match self {
            Self::Ledger { path, .. } | Self::Shared { path, .. } | Self::Own { path, .. } => path,
        }
    }

    /// The directory whose version changes whenever one of its keys is made.
    pub(super) fn bucket(&self) -> Option<&str> {
        match self {
            Self::Own { bucket, .. } => Some(bucket),
            Self::Ledger { .. } | Self::Shared { .. } => None,
        }
    }

    /// How many directories above a removed value go with it when they are empty, as Java does it.
    pub(super) fn pruned(&self) -> usize {
        match self {
            Self::Ledger { .. } => usize::MAX,
            Self::Shared { pruned, .. } => *pruned,
            Self::Own { .. } => 0,
        }
    }

    pub(super) fn other(&self) -> Option<&str> {
        match self {
            Self::Ledger { other, .. } => other.as_deref(),
            Self::Shared { .. } | Self::Own { .. } => None,
        }
    }
}

/// The two trees of a cluster.
#[derive(Debug, Clone)]
pub(super) struct Names {
    root: String,
    own: String,
}

const LEDGERS: &str = "/ledgers";
const LEDGERS_BELOW: &str = "/ledgers/";

/// The directories of BookKeeper's tree that hold keys of ours; keys of theirs are no children of a key.
pub(super) const COLLECTIONS: [&str; 3] = ["available", "available/readonly", "cookies"];
/// The directories that auto-recovery makes when it is first used; its marks lie in a tree of their own.
pub(super) const REPAIR_COLLECTIONS: [&str; 2] = ["underreplication/auditorelection", "underreplication/locks"];
const REPAIR: &str = "underreplication";
/// Directories of hexadecimal digits above a mark.
pub(super) const MARK_LEVELS: usize = 4;
/// The values at the root.
pub(super) const VALUES: [&str; 2] = ["INSTANCEID", "LAYOUT"];

impl Names {
    pub(super) fn new(root: &str) -> Self {
        Self { root: root.to_owned(), own: format!("{root}-own") }
    }

    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// A path of BookKeeper's tree.
    pub(super) fn shared(&self, path: &str) -> String {
        format!("{}/{path}", self.root)
    }

    pub(super) fn place(&self, key: &Key, layout: LedgerLayout) -> Result<Place, Error> {
        let invalid = |why: &str| Error::new(ErrorKind::Invalid, format!("find the place of {key}: {why}"));
        if let Some(id) = layout::parse_ledger_key(key) {
            let path = layout.path(id).ok_or_else(|| invalid("the cluster's layout cannot hold this ledger id"))?;
            return Ok(Place::Ledger {
                path: self.shared(&path),
                other: layout.other_path(id).map(|p| self.shared(&p)),
            });
        }
        if let Some(path) = key.as_str().strip_prefix(LEDGERS_BELOW) {
            if !layout::is_bookkeepers(path) {
                return Err(invalid("BookKeeper's tree has no such value"));
            }
            let pruned = if layout::parse_mark_key(key).is_some() { MARK_LEVELS } else { 0 };
            return Ok(Place::Shared { path: self.shared(path), pruned });
        }
        let (parents, name) = key.as_str().rsplit_once('/').unwrap_or_default();
        let bucket = format!("{}/@{:02x}", self.directory_of(parents), crc32c::crc32c(name.as_bytes()) & 0xff);
        let path = format!("{bucket}/{}", escaped(name));
        Ok(Place::Own { bucket, path })
    }

    /// The directory of the keys below `prefix`, for a prefix that is not in BookKeeper's tree.
    pub(super) fn directory(&self, prefix: &Key) -> String {
        self.directory_of(prefix.as_str())
    }

    fn directory_of(&self, parents: &str) -> String {
        let mut path = self.own.clone();
        for segment in parents.split('/').skip(1) {
            path.push('/');
            path.push_str(&escaped(segment));
        }
        path
    }

    /// The key whose value is at `path`; `None` for directories and for what is not ours.
    pub(super) fn key(&self, path: &str, layout: LedgerLayout) -> Option<Key> {
        if let Some(below) = path.strip_prefix(&self.own).and_then(|rest| rest.strip_prefix('/')) {
            let is_there = |key: &Key| self.place(key, layout).is_ok_and(|place| place.path() == path);
            return own_key(below).filter(is_there);
        }
        let below = path.strip_prefix(&self.root)?.strip_prefix('/')?;
        if let Some(id) = layout.id(below) {
            return Some(layout::ledger_key(id));
        }
        layout::is_bookkeepers(below).then(|| Key::new(&format!("{LEDGERS_BELOW}{below}")).ok()).flatten()
    }

    /// The znodes to watch, with all that is below them, for changes of `prefix` and the keys below it.
    pub(super) fn watched(&self, prefix: &Key, layout: LedgerLayout) -> Result<Vec<String>, Error> {
        if prefix.as_str() == LEDGERS {
            return Ok(vec![self.root.clone()]);
        }
        if let Some(below) = prefix.as_str().strip_prefix(LEDGERS_BELOW) {
            return match self.place(prefix, layout) {
                Ok(place) => {
                    let other = place.other().map(str::to_owned);
                    Ok(std::iter::once(place.path().to_owned()).chain(other).collect())
                }
                Err(_) if COLLECTIONS.contains(&below) || below.starts_with(REPAIR) => Ok(vec![self.shared(below)]),
                // Levels of the ledgers' tree are others in another layout; events are sorted out by their keys.
                Err(_) => Ok(vec![self.root.clone()]),
            };
        }
        Ok(vec![self.place(prefix, layout)?.path().to_owned(), self.directory(prefix)])
    }
}

/// Whether `prefix` lies in BookKeeper's tree.
pub(super) fn in_shared_tree(prefix: &Key) -> bool {
    prefix.as_str() == LEDGERS || prefix.as_str().starts_with(LEDGERS_BELOW)
}

fn own_key(below: &str) -> Option<Key> {
    let (rest, name) = below.rsplit_once('/')?;
    let (parents, bucket) = rest.rsplit_once('/').unwrap_or(("", rest));
    if !is_bucket(bucket) {
        return None;
    }
    let mut key = String::new();
    for segment in parents.split('/').filter(|segment| !segment.is_empty()).chain([name]) {
        key.push('/');
        key.push_str(&unescaped(segment)?);
    }
    Key::new(&key).ok()
}

/// Whether a child of a directory holds keys, and no further directories.
pub(super) fn is_bucket(name: &str) -> bool {
    name.starts_with('@')
}

/// A segment of a key as the name of a znode.
pub(super) fn escaped(segment: &str) -> String {
    let dots = segment.bytes().all(|byte| byte == b'.');
    let mut name = String::with_capacity(segment.len());
    for (place, byte) in segment.bytes().enumerate() {
        let first_of_its_kind = place == 0 && (byte == b'@' || dots);
        if byte == b'%' || first_of_its_kind || !(b' '..=b'~').contains(&byte) {
            let _ = write!(name, "%{byte:02X}");
        } else {
            name.push(char::from(byte));
        }
    }
    name
}

/// The segment that [`escaped`] made `name` of; `None` for names it does not make.
pub(super) fn unescaped(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let (byte, tail) = match byte {
            b'%' => {
                let (digits, tail) = tail.split_at_checked(2)?;
                (u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?, tail)
            }
            byte => (byte, tail),
        };
        bytes.push(byte);
        rest = tail;
    }
    let segment = String::from_utf8(bytes).ok()?;
    (escaped(&segment) == name).then_some(segment)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use ::ledger::{BookieId, LedgerId};
    use proptest::prelude::*;
    use uuid::Uuid;

    const LAYOUT: LedgerLayout = LedgerLayout::Hierarchical;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    /// The table of `docs/formats/metadata-keys.md`.
    #[test]
    fn golden_places() {
        let names = Names::new("/ledgers");
        let bookie = BookieId::new("10.0.0.1:3181").unwrap();
        let ledger = LedgerId::new(255).unwrap();
        for (key, path) in [
            (layout::ledger_key(ledger), "/ledgers/00/0000/L0255"),
            (layout::layout_key(), "/ledgers/LAYOUT"),
            (layout::instance_key(), "/ledgers/INSTANCEID"),
            (layout::available_key(&bookie), "/ledgers/available/10.0.0.1:3181"),
            (layout::readonly_key(&bookie), "/ledgers/available/readonly/10.0.0.1:3181"),
            (layout::cookie_key(&bookie), "/ledgers/cookies/10.0.0.1:3181"),
            (layout::mark_key(ledger), "/ledgers/underreplication/ledgers/0000/0000/0000/00ff/urL0000000255"),
            (layout::repair_lock_key(ledger), "/ledgers/underreplication/locks/urL0000000255"),
            (layout::recovery_disabled_key(), "/ledgers/underreplication/disable"),
            (layout::auditor_votes_root(), "/ledgers/underreplication/auditorelection"),
            (layout::commit_counter_key(), "/ledgers-own/thermocline/@72/commit-counter"),
            (layout::attempt_key(ledger), "/ledgers-own/thermocline/attempts/@e6/00000000000000ff"),
            (
                layout::catalog_key(ledger, Uuid::nil()),
                "/ledgers-own/thermocline/catalog/@fb/00000000000000ff-00000000-0000-0000-0000-000000000000",
            ),
        ] {
            let place = names.place(&key, LAYOUT).unwrap();
            assert_eq!(place.path(), path);
            assert_eq!(names.key(path, LAYOUT), Some(key));
        }
        let ledger = names.place(&layout::ledger_key(ledger), LAYOUT).unwrap();
        assert_eq!(ledger.other(), Some("/ledgers/00/0000/0255"));
    }

    #[test]
    fn directories_are_no_keys_and_no_places() {
        let names = Names::new("/a/ledgers");
        for name in [
            "/ledgers/available",
            "/ledgers/available/readonly",
            "/ledgers/available/readonly/a/b",
            "/ledgers/available/a/b",
            "/ledgers/cookies",
            "/ledgers/idgen/ID-0000000001",
            "/ledgers/underreplication",
            "/ledgers/underreplication/locks",
            "/ledgers/underreplication/ledgers/0000",
            "/ledgers/x",
        ] {
            assert_eq!(names.place(&key(name), LAYOUT).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
            assert_eq!(names.key(&format!("/a{name}"), LAYOUT), None, "{name}");
        }
        for path in
            ["/a/ledgers-own", "/a/ledgers-own/x", "/a/ledgers-own/x/@00", "/a/ledgers-owner/@00/x", "/a", "/b/@00/x"]
        {
            assert_eq!(names.key(path, LAYOUT), None, "{path}");
        }
        let long = key("/ledgers/000/0000/0000/0000/L0001");
        let legacy = key("/ledgers/000/0000/0021/4748/L3647");
        assert_eq!(names.place(&long, LAYOUT).unwrap().path(), "/a/ledgers/00/0000/L0001");
        assert!(names.place(&legacy, LedgerLayout::LegacyHierarchical).is_err());
    }

    #[test]
    fn watches_cover_a_key_and_what_is_below_it() {
        let names = Names::new("/l");
        let watched = |name: &str| names.watched(&key(name), LAYOUT).unwrap();
        assert_eq!(watched("/ledgers"), ["/l"]);
        assert_eq!(watched("/ledgers/available"), ["/l/available"]);
        assert_eq!(watched("/ledgers/000/0000/0000/0000/L0001"), ["/l/00/0000/L0001", "/l/00/0000/0001"]);
        assert_eq!(watched("/ledgers/000"), ["/l"]);
        assert_eq!(watched("/s/a")[1], "/l-own/s/a");
        assert_eq!(names.key(&watched("/s/a")[0], LAYOUT), Some(key("/s/a")));
    }

    #[test]
    fn names_that_zookeeper_does_not_take_are_escaped() {
        for (segment, name) in [
            ("a", "a"),
            ("@a@", "%40a@"),
            ("50%", "50%25"),
            (".", "%2E"),
            ("..", "%2E."),
            (".a", ".a"),
            ("ä", "%C3%A4"),
        ] {
            assert_eq!(escaped(segment), name);
            assert_eq!(unescaped(name).as_deref(), Some(segment));
        }
        for name in ["@a", "%", "%4", "%zz", "%61", "%ff", ".", "%c3%a4"] {
            assert_eq!(unescaped(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn keys_come_back(name in "(/[^/\\p{Cc}]{1,9}){1,4}") {
            let names = Names::new("/ledgers");
            let key = key(&name);
            if !in_shared_tree(&key) {
                let place = names.place(&key, LAYOUT).unwrap();
                prop_assert_eq!(names.key(place.path(), LAYOUT), Some(key));
            }
        }

        #[test]
        fn any_path_is_an_answer(path in "/ledgers(-own)?(/[@a-z0-9L%]{1,5}){0,5}") {
            let names = Names::new("/ledgers");
            if let Some(key) = names.key(&path, LAYOUT) {
                let place = names.place(&key, LAYOUT).unwrap();
                prop_assert!(place.path() == path || place.other() == Some(&path));
            }
        }
    }
}
