use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

macro_rules! wire_id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The highest id the 64-bit signed wire form can carry.
            pub const MAX: Self = Self(i64::MAX as u64);
            /// The id 0, which is valid.
            pub const ZERO: Self = Self(0);

            /// An id from any integer; `None` when it is negative or above [`Self::MAX`].
            pub fn new(value: impl TryInto<u64>) -> Option<Self> {
                value.try_into().ok().filter(|id| *id <= Self::MAX.0).map(Self)
            }

            /// The id as a number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The id in its signed wire form; never negative.
            pub const fn as_i64(self) -> i64 {
                self.0 as i64
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                text.parse::<u64>().ok().and_then(Self::new).ok_or_else(|| {
                    let found: String = text.chars().take(40).collect();
                    Error::new(ErrorKind::Id, format!(concat!("parse ", $word, " id {:?}: expected 0 to {}"), found, i64::MAX))
                })
            }
        }
    };
}

wire_id!(
    /// Names a ledger for ever: 0 to `i64::MAX`, never reused.
    LedgerId,
    "ledger"
);
wire_id!(
    /// The place of an entry in its ledger, counted from 0. Absence (`-1` on the wire) is `Option::None`.
    EntryId,
    "entry"
);

impl EntryId {
    /// The id after this one, which is also the open end of a range that ends with this entry. Stays at [`Self::MAX`] there.
    #[must_use]
    pub const fn next(self) -> Self {
        if self.0 < Self::MAX.0 { Self(self.0 + 1) } else { self }
    }

    /// The id before this one; `None` before the first entry.
    pub const fn prev(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The id `count` places further; `None` when no such id exists.
    pub fn checked_add(self, count: u64) -> Option<Self> {
        self.0.checked_add(count).and_then(Self::new)
    }

    /// How many ids lie in the half-open range from `start` to `self`; 0 when `self` is not above `start`.
    pub const fn since(self, start: Self) -> u64 {
        self.0.saturating_sub(start.0)
    }

    /// The signed wire form of an entry id that may be absent: `-1` stands for none.
    pub const fn option_to_i64(id: Option<Self>) -> i64 {
        match id {
            Some(id) => id.as_i64(),
            None => -1,
        }
    }

    /// Reads the signed wire form of an entry id that may be absent; the outer `None` is a number below `-1`.
    pub fn option_from_i64(value: i64) -> Option<Option<Self>> {
        if value == -1 { Some(None) } else { Self::new(value).map(Some) }
    }
}

/// Names a bookie: letters, digits and `: _ . -`; usually `host:port`. The word `readonly` is taken by the registration tree.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BookieId(Arc<str>);

impl BookieId {
    /// Checks the form of an id. Cold ids pass too: they stand in ledger metadata beside those of real bookies.
    ///
    /// # Errors
    /// When the text is empty, is `readonly`, or has a character that ids may not have.
    pub fn new(id: &str) -> Result<Self, Error> {
        let refuse = |why: &str| {
            let found: String = id.chars().take(80).collect();
            Err(Error::new(ErrorKind::Id, format!("parse bookie id {found:?}: {why}")))
        };
        if id.is_empty() {
            return refuse("it is empty");
        }
        if id == "readonly" {
            return refuse("the word is reserved");
        }
        if !id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'_' | b'.' | b'-')) {
            return refuse("only letters, digits and : _ . - are allowed");
        }
        Ok(Self(Arc::from(id)))
    }

    /// Checks an id that a bookie wants to carry: as [`BookieId::new`], and it must not have the form of a cold id.
    ///
    /// # Errors
    /// Those of [`BookieId::new`], or when the id has the form of a cold id.
    pub fn for_real_bookie(id: &str) -> Result<Self, Error> {
        let bookie = Self::new(id)?;
        if crate::is_cold(&bookie) {
            return Err(Error::new(
                ErrorKind::Id,
                format!("parse bookie id {id:?}: names of this form are reserved for the cold tier"),
            ));
        }
        Ok(bookie)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BookieId({})", self.0)
    }
}

impl FromStr for BookieId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
