//! What the values say: protobuf's text format, as Java prints and reads it.

use bytes::Bytes;

use crate::text_format::{Value, escape, fields};
use crate::{Error, ErrorKind};

/// A ledger that lacks replicas: `UnderreplicatedLedgerFormat`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mark {
    /// The members whose replicas are missing, in the order in which they were found out.
    pub replicas: Vec<String>,
    /// When it was marked, wall-clock milliseconds since 1970, if that is stored.
    pub ctime_ms: Option<i64>,
}

impl Mark {
    /// The stored value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut text = String::new();
        for replica in &self.replicas {
            quoted("replica", replica, &mut text);
        }
        if let Some(ctime) = self.ctime_ms {
            text.push_str(&format!("ctime: {ctime}\n"));
        }
        text.into()
    }

    /// Reads a stored value; fields of a later release are passed over.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] when it is malformed.
    pub fn decode(value: &[u8]) -> Result<Self, Error> {
        let mut mark = Self::default();
        for (name, value) in read("mark of a ledger that lacks replicas", value)? {
            match (name.as_str(), value) {
                ("replica", Value::Text(replica)) => mark.replicas.push(replica),
                ("ctime", Value::Word(ctime)) => {
                    mark.ctime_ms = Some(ctime.parse().map_err(|_| damaged("mark", "its time is no number"))?);
                }
                _ => {}
            }
        }
        Ok(mark)
    }
}

/// The value of a lock or a vote, which both name a bookie: `LockDataFormat`, `AuditorVoteFormat`.
pub(super) fn encode_holder(bookie: &str) -> Bytes {
    let mut text = String::new();
    quoted("bookieId", bookie, &mut text);
    text.into()
}

/// The bookie that a lock or a vote names; empty when it names none.
pub(super) fn decode_holder(value: &[u8]) -> Result<String, Error> {
    let found = read("holder of a lock", value)?.into_iter().find_map(|(name, value)| match value {
        Value::Text(text) if name == "bookieId" => Some(text),
        _ => None,
    });
    Ok(found.unwrap_or_default())
}

fn quoted(name: &str, value: &str, out: &mut String) {
    out.push_str(name);
    out.push_str(": \"");
    escape(value, out);
    out.push_str("\"\n");
}

fn read(what: &str, value: &[u8]) -> Result<Vec<(String, Value)>, Error> {
    let text = std::str::from_utf8(value).map_err(|_| damaged(what, "it is not text"))?;
    fields(text).map_err(|fault| damaged(what, &fault))
}

fn damaged(what: &str, fault: &str) -> Error {
    Error::new(ErrorKind::Damaged, format!("read {what}: {fault}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let mark = Mark { replicas: vec!["10.0.0.1:3181".into(), "b\"2".into()], ctime_ms: Some(1_700_000_000_123) };
        let text = b"replica: \"10.0.0.1:3181\"\nreplica: \"b\\\"2\"\nctime: 1700000000123\n";
        assert_eq!(mark.encode(), &text[..]);
        assert_eq!(Mark::decode(text).unwrap(), mark);
        assert_eq!(Mark::decode(b"").unwrap(), Mark::default());
        assert_eq!(encode_holder("10.0.0.1:3181"), &b"bookieId: \"10.0.0.1:3181\"\n"[..]);
        assert_eq!(decode_holder(b"bookieId: \"b\"").unwrap(), "b");
        assert_eq!(decode_holder(b"").unwrap(), "");
    }

    #[test]
    fn what_others_may_print_is_read() {
        let one_line = b"  later: 5, replica:'a' ctime: -1 replica: \"b\"";
        let mark = Mark { replicas: vec!["a".into(), "b".into()], ctime_ms: Some(-1) };
        assert_eq!(Mark::decode(one_line).unwrap(), mark);
        for bad in [&b"replica"[..], b"replica: \"a", b": 5", b"ctime: x", b"\xff", b"a b: 5"] {
            assert_eq!(Mark::decode(bad).unwrap_err().kind(), ErrorKind::Damaged, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(replicas: Vec<String>, ctime_ms: Option<i64>) {
            let mark = Mark { replicas, ctime_ms };
            prop_assert_eq!(Mark::decode(&mark.encode()).unwrap(), mark);
        }

        #[test]
        fn any_bytes_are_an_answer(value: Vec<u8>, text: String) {
            let _ = Mark::decode(&value);
            let _ = Mark::decode(text.as_bytes());
        }
    }
}
