//! Byte credit of one reader.
//!
//! The reader grants payload bytes; an entry may be sent while less has been sent than was granted. So what is sent never exceeds
//! the grants by more than one entry, whatever the size of that entry.

/// Granted and used bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    granted: u64,
    sent: u64,
}

impl Credit {
    pub(crate) fn new(granted: u64) -> Self {
        Self { granted, sent: 0 }
    }

    /// Adds to what may be sent; more than can be counted is without limit.
    pub(crate) fn grant(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
    }

    /// Whether the next entry may be sent.
    pub(crate) fn is_open(self) -> bool {
        self.sent < self.granted
    }

    /// Bytes that may be sent before the last entry, which may exceed them.
    pub(crate) fn left(self) -> u64 {
        self.granted.saturating_sub(self.sent)
    }

    pub(crate) fn spend(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_larger_than_the_credit_is_sent_and_paid_back() {
        let mut credit = Credit::new(10);
        assert!(credit.is_open());
        credit.spend(100);
        assert!(!credit.is_open());
        credit.grant(90);
        assert!(!credit.is_open(), "the debt is paid, nothing more");
        credit.grant(1);
        assert_eq!((credit.is_open(), credit.left()), (true, 1));
    }

    #[test]
    fn grants_saturate() {
        let mut credit = Credit::new(u64::MAX - 1);
        credit.grant(u64::MAX);
        credit.spend(u64::MAX - 1);
        assert!(credit.is_open());
    }
}
