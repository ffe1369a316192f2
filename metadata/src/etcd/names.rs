//! Keys as etcd has them: pure functions there and back.
//!
//! Everything lies behind the URI's root. What only we know is the key as it is, in every layout. What BookKeeper knows depends on the
//! layout of the cluster: in ours (long hierarchical) it is the key as it is, in Pulsar's (hierarchical) ledgers with short ids have
//! other names, see [`paths`], and in that of BookKeeper's own driver for etcd nearly everything has, see [`driver`]. The order of keys
//! is not the order of names then, so a listing is a sequence of [`Stretch`]es.

mod driver;
mod paths;

pub(super) use driver::WORDS;

use crate::engine::subtree;
use crate::{Error, ErrorKind, Key, LedgerLayout};

/// A half-open range of etcd's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Vec<u8>,
    pub(super) end: Vec<u8>,
}

/// A range of names whose order is that of their keys, once names of the other kind are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) span: Span,
    rows: Rows,
}

/// What a stretch is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// Whatever is there.
    All,
    /// Ledgers with short paths; those with long ones lie between them.
    Short,
    /// The reverse.
    Long,
}

/// What is written beside LAYOUT when a cluster is made, and what must not be there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Founding {
    /// Names of empty values that others look for, and the layout is not without.
    pub(super) markers: Vec<Vec<u8>>,
    /// The same, of which a cluster does as well without: our user may have no right to them.
    pub(super) marks: Vec<Vec<u8>>,
    /// Names that say that a cluster of another layout is there.
    pub(super) guards: Vec<Vec<u8>>,
}

/// What goes with LAYOUT when a cluster is removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Leaving {
    /// Whatever is there.
    pub(super) spans: Vec<Span>,
    /// As [`Founding::marks`]; one that has a value is someone else's, and stays.
    pub(super) marks: Vec<Vec<u8>>,
}

/// Puts the root before keys and takes it off again.
#[derive(Debug, Clone)]
pub(super) struct Names {
    root: String,
}

/// Values by which a cluster is found, layout and identity: as keys are, and as BookKeeper's driver has them.
pub(super) const SIGNS: [(&str, &str); 2] = [("/ledgers/LAYOUT", "/ledgers/INSTANCEID"), ("/layout", "/instanceid")];

impl Names {
    pub(super) fn new(root: String) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// Where a key's value is.
    pub(super) fn name(&self, key: &Key, layout: LedgerLayout) -> Result<Vec<u8>, Error> {
        let name = match layout {
            LedgerLayout::Etcd => driver::name(key),
            LedgerLayout::LongHierarchical => Some(key.as_str().to_owned()).filter(|name| !paths::is_mark(name)),
            _ => paths::name(key, layout),
        };
        match name {
            Some(name) => Ok(self.rooted(&name)),
            None => Err(Error::new(
                ErrorKind::Invalid,
                format!("find the place of {key}: a cluster of this layout has no such value"),
            )),
        }
    }

    /// The key of a name; `None` for names of others, that can share the etcd.
    pub(super) fn key(&self, name: &[u8], layout: LedgerLayout) -> Option<Key> {
        let name = std::str::from_utf8(name.strip_prefix(self.root.as_bytes())?).ok()?;
        match layout {
            LedgerLayout::Etcd => driver::key(name),
            LedgerLayout::LongHierarchical => Key::new(name).ok().filter(|_| !paths::is_mark(name)),
            _ => paths::key(name, layout),
        }
    }

    /// What lies strictly below `prefix` and after `after`, in the order of keys.
    pub(super) fn below(&self, prefix: &Key, after: Option<&Key>, layout: LedgerLayout) -> Vec<Stretch> {
        let (first, end) = subtree(prefix);
        let first = match after {
            Some(after) if after.as_str() >= end.as_str() => return Vec::new(),
            // The smallest text above `after`: keys hold no control characters.
            Some(after) if after.as_str() >= first.as_str() => format!("{after}\0"),
            _ => first,
        };
        let plain = || vec![(Rows::All, first.clone(), end.clone())];
        let found = match layout {
            LedgerLayout::Etcd if driver::is_taken(prefix.as_str()) => driver::stretches(&first, &end),
            LedgerLayout::Etcd | LedgerLayout::LongHierarchical => plain(),
            _ if in_shared_tree(prefix) => paths::stretches(&first, &end, layout),
            _ => plain(),
        };
        let rooted = |(rows, from, end): (Rows, String, String)| {
            let span = Span { from: self.rooted(&from), end: self.rooted(&end) };
            (span.from < span.end).then_some(Stretch { span, rows })
        };
        found.into_iter().filter_map(rooted).collect()
    }

    /// Where a stretch goes on when `name`, which is no row of it, was met.
    pub(super) fn behind(&self, name: &[u8], stretch: &Stretch) -> Option<Vec<u8>> {
        let name = std::str::from_utf8(name.strip_prefix(self.root.as_bytes())?).ok()?;
        paths::behind(name, stretch.rows).map(|text| self.rooted(&text))
    }

    /// A range that has `prefix` itself and what lies below it; and others, which are told apart by their keys.
    pub(super) fn watched(&self, prefix: &Key, layout: LedgerLayout) -> Span {
        let plain = || (prefix.as_str().to_owned(), subtree(prefix).1);
        let (from, end) = match layout {
            LedgerLayout::Etcd if driver::is_taken(prefix.as_str()) => driver::watched(prefix),
            LedgerLayout::Etcd | LedgerLayout::LongHierarchical => plain(),
            _ if in_shared_tree(prefix) => paths::watched(prefix, layout),
            _ => plain(),
        };
        Span { from: self.rooted(&from), end: self.rooted(&end) }
    }

    /// A name to ask for when any will do: one that whoever may use the store may read.
    pub(super) fn probe(&self) -> Vec<u8> {
        self.rooted(SIGNS[0].1)
    }

    /// The names of [`SIGNS`], one after the other. The driver has no cluster at an empty root: what lies there is someone else's.
    pub(super) fn signs(&self) -> Vec<Vec<u8>> {
        let places = if self.root.is_empty() { &SIGNS[..1] } else { &SIGNS[..] };
        places.iter().flat_map(|(layout, instance)| [self.rooted(layout), self.rooted(instance)]).collect()
    }

    pub(super) fn founding(&self, layout: LedgerLayout) -> Founding {
        let rooted = |names: &[&str]| names.iter().map(|name| self.rooted(name)).collect();
        match layout {
            LedgerLayout::Etcd => Founding {
                markers: rooted(&driver::MARKERS),
                marks: Vec::new(),
                // The root: where it is, the driver would make no cluster either. The last pair: a cluster one level above, whose tree
                // this root would lie in.
                guards: rooted(&["", SIGNS[0].0, SIGNS[0].1, "/LAYOUT", "/INSTANCEID"]),
            },
            _ => Founding {
                markers: Vec::new(),
                marks: self.marks(layout),
                // The last pair: a cluster whose root lies in the tree that is begun here.
                guards: match self.root.is_empty() {
                    true => rooted(&["/ledgers/layout", "/ledgers/instanceid"]),
                    false => rooted(&[SIGNS[1].0, SIGNS[1].1, "/ledgers/layout", "/ledgers/instanceid"]),
                },
            },
        }
    }

    /// Names of empty values that other clients take for a sign of a cluster; the driver's belong to its layout instead.
    pub(super) fn marks(&self, layout: LedgerLayout) -> Vec<Vec<u8>> {
        if layout == LedgerLayout::Etcd {
            return Vec::new();
        }
        // There is no empty key.
        let root = (!self.root.is_empty()).then_some("");
        root.iter().chain(&paths::MARKS).map(|name| self.rooted(name)).collect()
    }

    /// What goes with LAYOUT when a cluster is removed.
    pub(super) fn leaving(&self, layout: LedgerLayout) -> Leaving {
        let below = |name: &str| Span { from: self.rooted(&format!("{name}/")), end: self.rooted(&format!("{name}0")) };
        let spans = match layout {
            LedgerLayout::Etcd => {
                let markers = driver::MARKERS.iter().map(|name| self.exactly(name));
                markers.chain([below("/buckets")]).collect()
            }
            LedgerLayout::LongHierarchical => Vec::new(),
            _ => paths::OTHERS.iter().flat_map(|name| [self.exactly(name), below(name)]).collect(),
        };
        Leaving { spans, marks: self.marks(layout) }
    }

    /// A name that is no key's.
    pub(super) fn beside(&self, path: &str) -> Vec<u8> {
        self.rooted(path)
    }

    fn exactly(&self, name: &str) -> Span {
        let from = self.rooted(name);
        let end = [&from[..], b"\0"].concat();
        Span { from, end }
    }

    fn rooted(&self, text: &str) -> Vec<u8> {
        format!("{}{text}", self.root).into_bytes()
    }
}

/// Whether `key` lies in BookKeeper's tree, where names depend on the layout.
pub(super) fn in_shared_tree(key: &Key) -> bool {
    key.as_str() == "/ledgers" || key.as_str().starts_with("/ledgers/")
}

/// The part of a range of keys that lies in a directory, as names in another one.
fn moved(first: &str, end: &str, directory: &str, to: &str) -> Option<(String, String)> {
    // '0' is the character after '/'.
    let behind = |directory: &str| format!("{}0", directory.trim_end_matches('/'));
    let from = match first.strip_prefix(directory) {
        Some(rest) => format!("{to}{rest}"),
        None if first < directory => to.to_owned(),
        None => return None,
    };
    let end = match end.strip_prefix(directory) {
        Some(rest) => format!("{to}{rest}"),
        None if end > directory => behind(to),
        None => return None,
    };
    (from < end).then_some((from, end))
}

/// Whole seconds, at least as long as asked for.
pub(super) fn ttl_seconds(ttl: std::time::Duration) -> Result<i64, Error> {
    // What etcd takes at most.
    const SECONDS_MAX: i64 = 9_000_000_000;
    let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    match i64::try_from(seconds) {
        Ok(seconds) if seconds <= SECONDS_MAX => Ok(seconds.max(1)),
        _ => Err(Error::new(ErrorKind::Invalid, format!("grant lease: {ttl:?} is longer than etcd allows"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
