use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// A number of bytes, written `64MiB`, `1GB`, `4096B` or as a plain number of bytes.
///
/// Units are `B`, `kB MB GB TB` (powers of 1000) and `KiB MiB GiB TiB` (powers of 1024), in any case. What `Display` writes is
/// exact and reads back as the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// Largest first; binary before decimal, so that the shortest exact form wins in `Display`.
const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
];

impl ByteSize {
    /// Exactly `bytes`.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `count` × 1024 bytes.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` × 1024² bytes.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// `count` × 1024³ bytes.
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes as an index, saturating where an index is narrower.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        let text = match unit {
            Some((name, factor)) => format!("{}{name}", self.0 / factor),
            None => format!("{}B", self.0),
        };
        f.pad(&text)
    }
}

/// A text that is no [`ByteSize`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; write a size such as 64MiB, 1GB, 4KiB, or a number of bytes")]
pub struct ParseByteSizeError {
    cause: String,
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |cause: String| ParseByteSizeError { cause };
        let text = text.trim();
        let digits_end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
        let (number, unit) = (text[..digits_end].replace('_', ""), text[digits_end..].trim());
        if number.is_empty() {
            return Err(refuse(format!("{text:?} does not begin with a number")));
        }
        let factor = match unit {
            "" => 1,
            unit if unit.eq_ignore_ascii_case("b") => 1,
            unit => {
                let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
                known.map(|(_, factor)| *factor).ok_or_else(|| refuse(format!("unknown unit {unit:?}")))?
            }
        };
        scaled(&number, factor).map(Self).ok_or_else(|| refuse(format!("{text:?} is no whole number of bytes")))
    }
}

/// `number` × `factor`, exactly; `None` when that is no whole number of 64 bits.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let divisor = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let numerator: u128 = format!("{whole}{fraction}").parse().ok()?;
    let product = numerator.checked_mul(u128::from(factor))?;
    product.is_multiple_of(divisor).then(|| u64::try_from(product / divisor).ok())?
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 64MiB, 1GB, 4KiB, or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                let negative = |_| E::invalid_value(de::Unexpected::Signed(bytes), &self);
                u64::try_from(bytes).map(ByteSize).map_err(negative)
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_read() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("1GB", 1_000_000_000),
            ("4k B", 0),
            ("1.5KiB", 1_536),
            ("0.001kB", 1),
            ("1_000", 1_000),
            ("0", 0),
            ("512B", 512),
            ("18446744073709551615", u64::MAX),
        ] {
            let read = text.parse::<ByteSize>();
            if text == "4k B" {
                assert!(read.is_err());
            } else {
                assert_eq!(read, Ok(ByteSize(bytes)), "{text}");
            }
        }
    }

    #[test]
    fn other_texts_are_refused_with_what_to_write() {
        for text in [
            "",
            "MiB",
            "-1",
            "5 apples",
            "64M",
            "1.0005kB",
            "18446744073709551616",
            "99999999TiB",
            "1.2.3kB",
            ".",
            "1e3",
        ] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.ends_with("write a size such as 64MiB, 1GB, 4KiB, or a number of bytes"), "{text}: {error}");
        }
        assert!("64XB".parse::<ByteSize>().unwrap_err().to_string().starts_with("unknown unit \"XB\""));
    }

    #[test]
    fn display_is_short() {
        for (bytes, text) in [
            (64 << 20, "64MiB"),
            (1_000_000_000, "1GB"),
            (1 << 40, "1TiB"),
            (1_500, "1500B"),
            (3 << 9, "1536B"),
            (0, "0B"),
            (5_000, "5kB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|", ByteSize::kib(4)), "    4KiB|");
    }

    proptest! {
        #[test]
        fn display_reads_back(bytes: u64, shift in 0..64_u32) {
            let size = ByteSize(bytes >> shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = text.parse::<ByteSize>();
        }
    }
}
