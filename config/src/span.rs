use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// A length of time, written `250ms`, `5s`, `10m`, `2h`, `7d` or in parts: `1h 30m`.
///
/// What `Display` writes is exact and reads back as the same length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

impl Span {
    /// Exactly `duration`.
    pub const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    /// `count` milliseconds.
    pub const fn millis(count: u64) -> Self {
        Self(Duration::from_millis(count))
    }

    /// `count` seconds.
    pub const fn secs(count: u64) -> Self {
        Self(Duration::from_secs(count))
    }

    /// The length.
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&humantime::format_duration(self.0).to_string())
    }
}

/// A text that is no [`Span`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; write a time such as 250ms, 5s, 10m, 2h, 7d")]
pub struct ParseSpanError {
    cause: String,
}

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |error: humantime::DurationError| {
            let cause = match error {
                humantime::DurationError::UnknownUnit { unit, .. } if unit.is_empty() => {
                    format!("{text:?} has no unit")
                }
                humantime::DurationError::UnknownUnit { unit, .. } => format!("unknown unit {unit:?}"),
                humantime::DurationError::NumberOverflow => format!("{text:?} is too long"),
                _ => format!("{text:?} is no length of time"),
            };
            ParseSpanError { cause }
        };
        humantime::parse_duration(text.trim()).map(Self).map_err(refuse)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpanVisitor;

        impl Visitor<'_> for SpanVisitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, such as \"250ms\", \"5s\", \"10m\", \"2h\", \"7d\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(SpanVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_read() {
        for (text, ms) in [
            ("250ms", 250),
            ("5s", 5_000),
            ("10m", 600_000),
            ("1h 30m", 5_400_000),
            (" 2h ", 7_200_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(text.parse(), Ok(Span::millis(ms)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_what_to_write() {
        for (text, cause) in [
            ("5", "\"5\" has no unit"),
            ("5 parsecs", "unknown unit \"parsecs\""),
            ("", "\"\" is no length"),
            ("-5s", "\"-5s\" is no length"),
        ] {
            let error = text.parse::<Span>().unwrap_err().to_string();
            assert!(error.starts_with(cause), "{error}");
            assert!(error.ends_with("write a time such as 250ms, 5s, 10m, 2h, 7d"), "{error}");
        }
        assert!("99999999999999999999y".parse::<Span>().is_err());
    }

    proptest! {
        #[test]
        fn display_reads_back(seconds in 0..=u64::from(u32::MAX), nanos in 0..1_000_000_000_u32) {
            let span = Span(Duration::new(seconds, nanos));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = text.parse::<Span>();
        }
    }
}
