//! Which cluster lies below a root: by the values that every cluster has, in the places where its layout has them. Pure.

use super::LAYOUTS;
use super::names::SIGNS;
use super::target::below_another;
use crate::{Error, ErrorKind, LedgerLayout};

/// A cluster's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) layout: LedgerLayout,
    /// Whether LAYOUT names it; otherwise only the place of what was found says so.
    pub(super) is_named: bool,
}

/// What the values of [`SIGNS`], layout and identity in turn, say; at an empty root those of the first alone.
pub(super) fn read(values: &[Option<Vec<u8>>]) -> Result<Option<Found>, Error> {
    let (keys_layout, keys_id, driver_layout, driver_id) = match values {
        [keys_layout, keys_id] => (keys_layout, keys_id, &None, &None),
        [keys_layout, keys_id, driver_layout, driver_id] => (keys_layout, keys_id, driver_layout, driver_id),
        _ => {
            let text = "find the layout of the cluster: etcd's answer does not fit the request";
            return Err(Error::new(ErrorKind::Damaged, text));
        }
    };
    let named = |value: &Option<Vec<u8>>| value.as_deref().and_then(LedgerLayout::parse);
    // The names are plain words: a `layout` with another value is of someone who shares the etcd.
    let driver_is_there = named(driver_layout) == Some(LedgerLayout::Etcd) || driver_id.is_some();
    match (keys_layout.is_some() || keys_id.is_some(), driver_is_there) {
        (false, false) => Ok(None),
        (true, true) => Err(Error::new(
            ErrorKind::Refused,
            format!(
                "open metadata: two clusters lie below this root of etcd, one by {} and {}, one by {} and {}; give each a root of its \
                 own, or remove what belongs to none",
                SIGNS[0].0, SIGNS[0].1, SIGNS[1].0, SIGNS[1].1
            ),
        )),
        (true, false) => {
            let named = named(keys_layout).filter(|layout| LAYOUTS[..2].contains(layout));
            Ok(Some(Found { layout: named.unwrap_or(LAYOUTS[0]), is_named: named.is_some() }))
        }
        (false, true) => {
            let named = named(driver_layout).filter(|layout| *layout == LedgerLayout::Etcd);
            Ok(Some(Found { layout: LedgerLayout::Etcd, is_named: named.is_some() }))
        }
    }
}

pub(super) fn check_wanted(found: LedgerLayout, wanted: Option<LedgerLayout>) -> Result<(), Error> {
    match wanted {
        Some(wanted) if wanted != found => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "open metadata: the URI wants the layout {wanted:?}, the cluster has {found:?}; leave it out of the URI"
            ),
        )),
        _ => Ok(()),
    }
}

/// The layout that a cluster below `root` would get.
pub(super) fn new_layout(root: &str, wanted: Option<LedgerLayout>) -> Result<LedgerLayout, Error> {
    let layout = wanted.unwrap_or(LAYOUTS[0]);
    // Among the keys of a cluster one level above. One that BookKeeper's driver made may lie there: it does not know ours.
    if layout != LedgerLayout::Etcd && root.ends_with("/ledgers") {
        let text = format!(
            "read etcd URI: {}; only clusters of BookKeeper's own layout may have it: etcd+apache://",
            below_another(root, "ledgers")
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(layout)
}

/// All layouts, that of the cluster or a wanted one alone.
pub(super) fn layouts(known: Option<LedgerLayout>) -> &'static [LedgerLayout] {
    let place = LAYOUTS.iter().position(|layout| Some(*layout) == known);
    place.map_or(&LAYOUTS[..], |place| &LAYOUTS[place..=place])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<Vec<u8>> {
        (!text.is_empty()).then(|| text.as_bytes().to_vec())
    }

    #[test]
    fn a_cluster_is_known_by_what_it_has_and_where() {
        let [long, hierarchical, driver] = LAYOUTS.map(LedgerLayout::value);
        for (values, want) in [
            (["", "", "", ""], None),
            ([long, "id", "", ""], Some((LedgerLayout::LongHierarchical, true))),
            ([hierarchical, "", "", ""], Some((LedgerLayout::Hierarchical, true))),
            (["", "id", "", ""], Some((LedgerLayout::LongHierarchical, false))),
            ([driver, "id", "", ""], Some((LedgerLayout::LongHierarchical, false))),
            (["", "", driver, "id"], Some((LedgerLayout::Etcd, true))),
            (["", "", "", "id"], Some((LedgerLayout::Etcd, false))),
            (["", "", long, "id"], Some((LedgerLayout::Etcd, false))),
            (["", "", "someone's", ""], None),
            ([long, "id", "someone's", ""], Some((LedgerLayout::LongHierarchical, true))),
        ] {
            let found = read(&values.map(value)).unwrap();
            assert_eq!(found.map(|found| (found.layout, found.is_named)), want, "{values:?}");
        }
        let alone = read(&[long, "id"].map(value)).unwrap().unwrap();
        assert_eq!((alone.layout, alone.is_named), (LedgerLayout::LongHierarchical, true));
        let two = read(&["", "id", "", "id"].map(value)).unwrap_err();
        assert_eq!(two.kind(), ErrorKind::Refused);
        assert!(two.to_string().contains("two clusters lie below this root"), "{two}");
        assert_eq!(read(&[]).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn what_the_uri_wants_must_be_there() {
        check_wanted(LedgerLayout::Etcd, None).unwrap();
        check_wanted(LedgerLayout::Etcd, Some(LedgerLayout::Etcd)).unwrap();
        let other = check_wanted(LedgerLayout::Etcd, Some(LedgerLayout::Hierarchical)).unwrap_err();
        assert!(other.to_string().contains("leave it out of the URI"), "{other}");
        assert_eq!(new_layout("/one", None).unwrap(), LedgerLayout::LongHierarchical);
        assert_eq!(new_layout("/x/ledgers", Some(LedgerLayout::Etcd)).unwrap(), LedgerLayout::Etcd);
        assert!(new_layout("/x/ledgers", None).unwrap_err().to_string().contains("segment \"ledgers\""));
        assert_eq!(layouts(Some(LedgerLayout::Etcd)), [LedgerLayout::Etcd]);
        assert_eq!(layouts(None), LAYOUTS);
    }
}
