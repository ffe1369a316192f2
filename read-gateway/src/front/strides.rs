//! Whether the reads of one connection go through a ledger in order.
//!
//! A client asks for one entry at a time, and its cold ids share an owner, so a scan of a ledger comes as entries a few apart: every
//! one of them, or every E-th where a connection is one member's. Values in, values out.

use ledger::{EntryId, LedgerId};

use crate::cold_tier::bodies::Access;

/// Ledgers of one connection that are remembered.
const LEDGERS: usize = 32;
/// Reads at most so far apart are of one scan. More than any ensemble, and requests overtake each other a little.
const NEAR: u64 = 64;

/// The last reads of a connection.
#[derive(Debug, Default)]
pub(super) struct Strides {
    /// The latest last.
    ledgers: Vec<(LedgerId, EntryId)>,
}

impl Strides {
    /// Notes a read and says how it is expected to go on.
    pub(super) fn note(&mut self, ledger: LedgerId, entry: EntryId) -> Access {
        let before =
            self.ledgers.iter().position(|(known, _)| *known == ledger).map(|place| self.ledgers.remove(place).1);
        if self.ledgers.len() >= LEDGERS {
            self.ledgers.remove(0);
        }
        self.ledgers.push((ledger, entry));
        match before {
            Some(before) if before != entry && before.get().abs_diff(entry.get()) <= NEAR => Access::Scan,
            _ => Access::Point,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn note(strides: &mut Strides, ledger: u64, entry: u64) -> Access {
        strides.note(LedgerId::new(ledger).unwrap(), EntryId::new(entry).unwrap())
    }

    #[test]
    fn entries_a_few_apart_are_a_scan_whatever_else_is_read_between() {
        let mut strides = Strides::default();
        assert_eq!(note(&mut strides, 1, 0), Access::Point);
        assert_eq!(note(&mut strides, 2, 500), Access::Point);
        assert_eq!(note(&mut strides, 1, 3), Access::Scan);
        assert_eq!(note(&mut strides, 2, 501), Access::Scan);
        assert_eq!(note(&mut strides, 1, 1), Access::Scan, "overtaken");
        assert_eq!(note(&mut strides, 2, 9_000), Access::Point);
        assert_eq!(note(&mut strides, 2, 9_000), Access::Point, "the same again goes nowhere");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut strides = Strides::default();
        for ledger in 0..1_000 {
            note(&mut strides, ledger, 0);
        }
        assert_eq!(strides.ledgers.len(), LEDGERS);
        assert_eq!(note(&mut strides, 999, 1), Access::Scan);
        assert_eq!(note(&mut strides, 0, 1), Access::Point, "forgotten");
    }
}
