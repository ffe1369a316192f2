use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, Mac};
use sha1::Sha1;
use subtle::ConstantTimeEq;

use crate::error::{Error, ErrorKind};
use crate::keys::{Password, mac_key};

/// How the writer's digest of an entry is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DigestType {
    /// IEEE CRC-32 in 8 bytes, the upper four zero.
    Crc32,
    /// HMAC-SHA1 under a key made from the password, 20 bytes.
    Hmac,
    /// Castagnoli CRC in 4 bytes.
    Crc32c,
    /// No digest.
    Dummy,
}

impl DigestType {
    /// How many bytes the digest takes in a body.
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Crc32 => 8,
            Self::Hmac => 20,
            Self::Crc32c => 4,
            Self::Dummy => 0,
        }
    }

    /// The number that ledger metadata stores.
    pub const fn number(self) -> i32 {
        match self {
            Self::Crc32 => 1,
            Self::Hmac => 2,
            Self::Crc32c => 3,
            Self::Dummy => 4,
        }
    }

    /// The type of a number that ledger metadata stored.
    pub const fn from_number(number: i32) -> Option<Self> {
        match number {
            1 => Some(Self::Crc32),
            2 => Some(Self::Hmac),
            3 => Some(Self::Crc32c),
            4 => Some(Self::Dummy),
            _ => None,
        }
    }

    /// The name used by ledger metadata in its text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Hmac => "HMAC",
            Self::Crc32c => "CRC32C",
            Self::Dummy => "DUMMY",
        }
    }
}

impl fmt::Display for DigestType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DigestType {
    type Err = Error;

    /// Reads a name in any case; `MAC` is another name of `HMAC`.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text.to_ascii_uppercase().as_str() {
            "CRC32" => Ok(Self::Crc32),
            "HMAC" | "MAC" => Ok(Self::Hmac),
            "CRC32C" => Ok(Self::Crc32c),
            "DUMMY" => Ok(Self::Dummy),
            _ => {
                let found: String = text.chars().take(40).collect();
                Err(Error::new(
                    ErrorKind::Id,
                    format!("parse digest type {found:?}: expected crc32, crc32c, hmac or dummy"),
                ))
            }
        }
    }
}

/// Makes and checks the digests of one ledger. Cheap to clone.
#[derive(Clone)]
pub struct Digester(Inner);

#[derive(Clone)]
enum Inner {
    Crc32,
    Hmac(Box<Hmac<Sha1>>),
    Crc32c,
    Dummy,
}

impl Digester {
    /// The digester of a ledger; only HMAC uses the password.
    pub fn new(digest_type: DigestType, password: &Password) -> Self {
        Self(match digest_type {
            DigestType::Crc32 => Inner::Crc32,
            DigestType::Crc32c => Inner::Crc32c,
            DigestType::Dummy => Inner::Dummy,
            DigestType::Hmac => {
                let mac = Hmac::new_from_slice(&mac_key(password.as_bytes())).expect("HMAC takes a key of any length");
                Inner::Hmac(Box::new(mac))
            }
        })
    }

    /// How its digests are made.
    pub const fn digest_type(&self) -> DigestType {
        match self.0 {
            Inner::Crc32 => DigestType::Crc32,
            Inner::Hmac(_) => DigestType::Hmac,
            Inner::Crc32c => DigestType::Crc32c,
            Inner::Dummy => DigestType::Dummy,
        }
    }

    /// How many bytes its digests have.
    pub const fn digest_len(&self) -> usize {
        self.digest_type().digest_len()
    }

    /// The digest of two pieces as if they were one.
    pub(crate) fn digest(&self, head: &[u8], tail: &[u8]) -> DigestBytes {
        let mut out = DigestBytes { bytes: [0; 20], len: self.digest_len() };
        match &self.0 {
            Inner::Crc32 => {
                let mut crc = crc32fast::Hasher::new();
                crc.update(head);
                crc.update(tail);
                out.bytes[4..8].copy_from_slice(&crc.finalize().to_be_bytes());
            }
            Inner::Crc32c => {
                let crc = crc32c::crc32c_append(crc32c::crc32c(head), tail);
                out.bytes[..4].copy_from_slice(&crc.to_be_bytes());
            }
            Inner::Hmac(mac) => {
                let mut mac = mac.as_ref().clone();
                mac.update(head);
                mac.update(tail);
                out.bytes.copy_from_slice(&mac.finalize().into_bytes());
            }
            Inner::Dummy => {}
        }
        out
    }

    /// Whether `found` is the digest of the two pieces, compared in constant time.
    pub(crate) fn verify(&self, head: &[u8], tail: &[u8], found: &[u8]) -> bool {
        self.digest(head, tail).as_slice().ct_eq(found).into()
    }
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digester({})", self.digest_type())
    }
}

/// A digest of 0 to 20 bytes, kept on the stack.
pub(crate) struct DigestBytes {
    bytes: [u8; 20],
    len: usize,
}

impl DigestBytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
