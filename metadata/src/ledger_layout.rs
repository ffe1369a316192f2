//! How ledgers lie in a tree: BookKeeper's layouts, as pure functions from ids to paths and back.
//!
//! A layout is named by the value of LAYOUT, for the whole life of a cluster. In the hierarchical one, ids that fit 31 bits have the
//! short path `dd/dddd/Ldddd` and the others the long one `ddd/dddd/dddd/dddd/Ldddd`; the first level tells them apart by its length.
//! Some clients leave out the `L` of the short path, so a ledger can be found under either spelling. BookKeeper's driver for etcd has a
//! layout of its own, with ids written as UUIDs.

use ledger::LedgerId;
use uuid::Uuid;

/// The first id that a short path cannot hold.
pub(crate) const SHORT_END: u64 = 2_147_483_647;

/// How ledgers lie in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LedgerLayout {
    /// Short paths for ids below 2^31 - 1, long ones for the others: what BookKeeper and Pulsar choose by themselves.
    Hierarchical,
    /// Short paths only.
    LegacyHierarchical,
    /// Long paths only: the order of paths is the order of ids.
    LongHierarchical,
    /// All ledgers in one directory.
    Flat,
    /// What BookKeeper's driver for etcd makes: the id as the lower half of a UUID. There the whole cluster lies in other places.
    Etcd,
}

impl LedgerLayout {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Hierarchical, Self::LegacyHierarchical, Self::LongHierarchical, Self::Flat, Self::Etcd];
    /// Those of a cluster in ZooKeeper; the first is the one that BookKeeper and Pulsar choose by themselves.
    pub const IN_ZOOKEEPER: [Self; 4] =
        [Self::Hierarchical, Self::LegacyHierarchical, Self::LongHierarchical, Self::Flat];

    /// The value of LAYOUT, as Java writes it: no line feed at the end.
    #[must_use]
    pub const fn value(self) -> &'static str {
        match self {
            Self::Hierarchical => "2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
            Self::LegacyHierarchical => "2\norg.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory:1",
            Self::LongHierarchical => "2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1",
            Self::Flat => "2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1",
            Self::Etcd => "2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0",
        }
    }

    /// The layout a value of LAYOUT names; white space at its end does not matter.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.value().as_bytes() == value.trim_ascii_end())
    }

    /// Where a ledger's record is, below the root and without a slash before it. `None`: the layout cannot hold the id.
    #[must_use]
    pub fn path(self, id: LedgerId) -> Option<String> {
        match self {
            Self::Hierarchical if id.get() < SHORT_END => Some(short(id.get(), "L")),
            Self::Hierarchical | Self::LongHierarchical => Some(long(id.get())),
            Self::LegacyHierarchical => (id.get() < SHORT_END).then(|| short(id.get(), "L")),
            Self::Flat => Some(format!("L{:010}", id.get())),
            Self::Etcd => Some(Uuid::from_u64_pair(0, id.get()).to_string()),
        }
    }

    /// The short path without its `L`, where some clients put a ledger.
    #[must_use]
    pub fn other_path(self, id: LedgerId) -> Option<String> {
        let has_short = matches!(self, Self::Hierarchical | Self::LegacyHierarchical) && id.get() < SHORT_END;
        has_short.then(|| short(id.get(), ""))
    }

    /// The ledger whose record is at `path` under either spelling; `None` for every other path.
    #[must_use]
    pub fn id(self, path: &str) -> Option<LedgerId> {
        if self == Self::Etcd {
            let (high, low) = Uuid::try_parse(path).ok()?.as_u64_pair();
            return LedgerId::new(low).filter(|id| high == 0 && self.path(*id).as_deref() == Some(path));
        }
        let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut digits = String::with_capacity(19);
        digits.extend(parents.chars().filter(|c| *c != '/'));
        digits.push_str(name.strip_prefix('L').unwrap_or(name));
        if digits.len() > 19 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let id = LedgerId::new(digits.parse::<u64>().ok()?)?;
        let is = |found: Option<String>| found.is_some_and(|found| found == path);
        (is(self.path(id)) || is(self.other_path(id))).then_some(id)
    }

    /// The trees of digits that hold the ledgers, in the order of ids: the digits of each level, the leaves last.
    pub(crate) fn trees(self) -> &'static [&'static [u32]] {
        const SHORT: &[u32] = &[2, 4, 4];
        const LONG: &[u32] = &[3, 4, 4, 4, 4];
        match self {
            Self::Hierarchical => &[SHORT, LONG],
            Self::LegacyHierarchical => &[SHORT],
            Self::LongHierarchical => &[LONG],
            Self::Flat => &[&[10]],
            Self::Etcd => &[],
        }
    }
}

fn short(id: u64, mark: &str) -> String {
    let digits = format!("{id:010}");
    format!("{}/{}/{mark}{}", &digits[..2], &digits[2..6], &digits[6..])
}

fn long(id: u64) -> String {
    let digits = format!("{id:019}");
    format!("{}/{}/{}/{}/L{}", &digits[..3], &digits[3..7], &digits[7..11], &digits[11..15], &digits[15..])
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
    fn paths_are_those_of_java() {
        for (number, hierarchical, long) in [
            (0, "00/0000/L0000", "000/0000/0000/0000/L0000"),
            (1, "00/0000/L0001", "000/0000/0000/0000/L0001"),
            (10_000, "00/0001/L0000", "000/0000/0000/0001/L0000"),
            (123_456_789, "01/2345/L6789", "000/0000/0001/2345/L6789"),
            (2_147_483_646, "21/4748/L3646", "000/0000/0021/4748/L3646"),
            (2_147_483_647, "000/0000/0021/4748/L3647", "000/0000/0021/4748/L3647"),
            (4_294_967_301, "000/0000/0042/9496/L7301", "000/0000/0042/9496/L7301"),
            (12_345_678_901_234, "000/0012/3456/7890/L1234", "000/0012/3456/7890/L1234"),
            (9_223_372_036_854_775_807, "922/3372/0368/5477/L5807", "922/3372/0368/5477/L5807"),
        ] {
            let ledger = id(number);
            assert_eq!(LedgerLayout::Hierarchical.path(ledger).unwrap(), hierarchical);
            assert_eq!(LedgerLayout::LongHierarchical.path(ledger).unwrap(), long);
            let fits = number < 2_147_483_647;
            let legacy = LedgerLayout::LegacyHierarchical.path(ledger);
            assert_eq!(legacy.as_deref(), fits.then_some(hierarchical));
            assert_eq!(LedgerLayout::Hierarchical.other_path(ledger).is_some(), fits);
            assert_eq!(LedgerLayout::LongHierarchical.other_path(ledger), None);
        }
        assert_eq!(LedgerLayout::Flat.path(id(1)).unwrap(), "L0000000001");
        assert_eq!(LedgerLayout::Flat.path(id(12_345_678_901)).unwrap(), "L12345678901");
        assert_eq!(LedgerLayout::Hierarchical.other_path(id(1)).unwrap(), "00/0000/0001");
        assert_eq!(LedgerLayout::Hierarchical.id("00/0000/0001"), Some(id(1)));
    }

    #[test]
    fn other_paths_are_no_ledgers() {
        for path in [
            "LAYOUT",
            "INSTANCEID",
            "available/L0001",
            "idgen/ID-0000000001",
            "00/0000/L001",
            "00/0000/L0001/x",
            "00/0000",
            "00",
            "+0/0000/L0001",
            "00/00L0/L0001",
            "L0000000001",
            "000/0000/0000/0000/L0001",
            "999/9999/9999/9999/L9999",
            "",
        ] {
            assert_eq!(LedgerLayout::Hierarchical.id(path), None, "{path}");
        }
        assert_eq!(LedgerLayout::LongHierarchical.id("00/0000/L0001"), None);
        assert_eq!(LedgerLayout::LongHierarchical.id("000/0000/0000/0000/0001"), None);
        assert_eq!(LedgerLayout::Flat.id("0000000001"), None);
        for path in [
            "00000000-0000-0000-8000-000000000001",
            "00000000-0000-0001-0000-000000000001",
            "00000000000000000000000000000001",
            "00000000-0000-0000-0A00-000000000001",
            "{00000000-0000-0000-0000-000000000001}",
        ] {
            assert_eq!(LedgerLayout::Etcd.id(path), None, "{path}");
        }
    }

    #[test]
    fn uuids_are_those_of_java() {
        for (number, path) in [
            (1, "00000000-0000-0000-0000-000000000001"),
            (5 << 56 | 1, "00000000-0000-0000-0500-000000000001"),
            (127 << 56 | 0xabcdef, "00000000-0000-0000-7f00-000000abcdef"),
            (i64::MAX.unsigned_abs(), "00000000-0000-0000-7fff-ffffffffffff"),
        ] {
            assert_eq!(LedgerLayout::Etcd.path(id(number)).unwrap(), path);
        }
    }

    #[test]
    fn values_are_those_of_java() {
        for layout in LedgerLayout::ALL {
            assert_eq!(LedgerLayout::parse(layout.value().as_bytes()), Some(layout));
            assert_eq!(LedgerLayout::parse(format!("{}\n", layout.value()).as_bytes()), Some(layout));
        }
        for value in ["", "2", "1\nflat", "2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:1"] {
            assert_eq!(LedgerLayout::parse(value.as_bytes()), None);
        }
    }

    proptest! {
        #[test]
        fn paths_parse_back(number in prop_oneof![0..=i64::MAX.unsigned_abs(), 0..5_000_000_000_u64]) {
            for layout in LedgerLayout::ALL {
                for path in [layout.path(id(number)), layout.other_path(id(number))].into_iter().flatten() {
                    prop_assert_eq!(layout.id(&path), Some(id(number)));
                }
            }
        }

        #[test]
        fn any_text_is_an_answer(text in "[0-9L/]{0,30}") {
            for layout in LedgerLayout::ALL {
                if let Some(id) = layout.id(&text) {
                    prop_assert!(layout.path(id) == Some(text.clone()) || layout.other_path(id) == Some(text.clone()));
                }
            }
        }
    }
}
