use std::fmt;

use bytes::Bytes;
use sha1::{Digest, Sha1};
use subtle::ConstantTimeEq;

/// The bytes of a master key on the wire.
pub const MASTER_KEY_BYTES: usize = 20;

/// A ledger's password: opens its master key and its HMAC digests. May be empty. Never shown by `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password(Bytes);

impl Password {
    /// A password of these bytes.
    pub fn new(password: impl Into<Bytes>) -> Self {
        Self(password.into())
    }

    /// The empty password, which is legal and common.
    pub const fn empty() -> Self {
        Self(Bytes::new())
    }

    /// The password in clear, as ledger metadata stores it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether the password has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares in constant time.
    pub fn ct_eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(redacted)")
    }
}

/// The 20 bytes that a client shows a bookie to be let at a ledger. Equality takes constant time; `Debug` shows nothing.
#[derive(Clone, Copy)]
pub struct MasterKey([u8; MASTER_KEY_BYTES]);

impl MasterKey {
    /// The key of all zeros, which tools send for "no key".
    pub const EMPTY: Self = Self([0; MASTER_KEY_BYTES]);

    /// The key of a ledger with this password, for every digest type. An empty password gives a real key too.
    pub fn derive(password: &[u8]) -> Self {
        Self(prefixed_sha1(b"ledger", password))
    }

    /// A key as it came over the wire.
    pub const fn from_bytes(bytes: [u8; MASTER_KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// A key from a slice of exactly 20 bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The key as it goes over the wire.
    pub const fn as_bytes(&self) -> &[u8; MASTER_KEY_BYTES] {
        &self.0
    }

    /// Whether this is the key of all zeros.
    pub fn is_empty(&self) -> bool {
        self.ct_eq(&Self::EMPTY)
    }

    /// Compares in constant time.
    pub fn ct_eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl PartialEq for MasterKey {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other)
    }
}

impl Eq for MasterKey {}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(redacted)")
    }
}

/// The HMAC key of a ledger with this password.
pub(crate) fn mac_key(password: &[u8]) -> [u8; 20] {
    prefixed_sha1(b"mac", password)
}

fn prefixed_sha1(prefix: &[u8], password: &[u8]) -> [u8; 20] {
    let mut hash = Sha1::new();
    hash.update(prefix);
    hash.update(password);
    hash.finalize().into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
