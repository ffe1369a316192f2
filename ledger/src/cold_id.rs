//! Cold ids: the names that take the place of bookies in the metadata of a released ledger, `c<shard>-<i>.<domain>:<port>`.
//!
//! The shard is a fixed function of the ledger id and `i` is the member's index in the ensemble, so a ledger's cold names never
//! change, whatever gateway answers to them. The function is part of the stored format: see [`ledger_hash`].

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::ids::{BookieId, LedgerId};

/// How many shards cold ids are spread over.
pub const COLD_SHARDS: u8 = 64;

/// A member of a released ledger.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ColdId {
    shard: u8,
    index: u32,
    domain: String,
    port: u16,
}

impl ColdId {
    /// The cold name of member `index` of a ledger's ensemble.
    ///
    /// # Errors
    /// When the domain is not made of labels of letters, digits and `-` joined by dots, or the port is 0.
    pub fn for_member(ledger: LedgerId, index: u32, domain: &str, port: u16) -> Result<Self, Error> {
        Self::checked(shard_of(ledger), index, domain, port).ok_or_else(|| {
            Error::new(ErrorKind::Id, format!("make cold id of domain {domain:?} and port {port}: malformed"))
        })
    }

    /// The cold name of member `index` of the ledgers of a shard.
    ///
    /// # Errors
    /// Those of [`ColdId::for_member`], and when the shard is not below [`COLD_SHARDS`].
    pub fn of_shard(shard: u8, index: u32, domain: &str, port: u16) -> Result<Self, Error> {
        Self::checked(shard, index, domain, port).ok_or_else(|| {
            let what = format!("make cold id of shard {shard}, domain {domain:?} and port {port}: malformed");
            Error::new(ErrorKind::Id, what)
        })
    }

    /// The cold names of all `ensemble` members of a ledger, in order.
    ///
    /// # Errors
    /// Those of [`ColdId::for_member`].
    pub fn for_ledger(ledger: LedgerId, ensemble: u32, domain: &str, port: u16) -> Result<Vec<Self>, Error> {
        (0..ensemble).map(|index| Self::for_member(ledger, index, domain, port)).collect()
    }

    /// The shard, below [`COLD_SHARDS`].
    pub fn shard(&self) -> u8 {
        self.shard
    }

    /// The member's index in the ensemble.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What follows the first dot, without the port.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The port, never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The name as it stands in ledger metadata.
    pub fn to_bookie_id(&self) -> BookieId {
        BookieId::new(&self.to_string()).expect("a checked domain has only characters that ids may have")
    }

    /// Reads the name of a member; `None` when it is a real bookie's.
    pub fn from_bookie_id(id: &BookieId) -> Option<Self> {
        Self::parse(id.as_str())
    }

    fn checked(shard: u8, index: u32, domain: &str, port: u16) -> Option<Self> {
        let label_ok = |label: &str| {
            !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        (shard < COLD_SHARDS && port != 0 && domain.split('.').all(label_ok)).then(|| Self {
            shard,
            index,
            domain: domain.to_owned(),
            port,
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let (name, port) = text.rsplit_once(':')?;
        let (member, domain) = name.split_once('.')?;
        let (shard, index) = member.strip_prefix('c')?.split_once('-')?;
        Self::checked(decimal(shard)?, decimal(index)?, domain, decimal(port)?)
    }
}

/// Reads a number that is written the one way `Display` writes it: no sign, no leading zeros.
fn decimal<T: FromStr>(text: &str) -> Option<T> {
    let canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

impl fmt::Display for ColdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}-{}.{}:{}", self.shard, self.index, self.domain, self.port)
    }
}

impl FromStr for ColdId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text).ok_or_else(|| {
            let found: String = text.chars().take(80).collect();
            Error::new(ErrorKind::Id, format!("parse cold id {found:?}: expected c<shard>-<index>.<domain>:<port>"))
        })
    }
}

/// Whether a member's name has the form of a cold id.
pub fn is_cold(id: &BookieId) -> bool {
    ColdId::from_bookie_id(id).is_some()
}

/// A fixed 64-bit mix of a ledger id (the splitmix64 finaliser). Shards and object key prefixes are made of it, so it is part
/// of the stored formats and never changes.
pub const fn ledger_hash(ledger: LedgerId) -> u64 {
    let mut x = ledger.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The shard of a ledger: its hash modulo [`COLD_SHARDS`].
pub const fn shard_of(ledger: LedgerId) -> u8 {
    (ledger_hash(ledger) % COLD_SHARDS as u64) as u8
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
