use ledger::EntryId;
use sha2::{Digest, Sha256};

/// The ledger digest under construction: SHA-256 over each row's entry id (`u64`) and body CRC32C (`u32`), both big-endian.
///
/// It says that two objects hold the same bodies in the same order. It is built of 32-bit checksums, so it tells damage and
/// mix-ups apart, not forgery.
#[derive(Clone, Default)]
pub(crate) struct LedgerDigest(Sha256);

impl LedgerDigest {
    pub(crate) fn add(&mut self, entry: EntryId, crc32c: u32) {
        self.0.update(entry.get().to_be_bytes());
        self.0.update(crc32c.to_be_bytes());
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}
