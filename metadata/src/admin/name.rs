//! The name by which people call the cluster. Its identity is INSTANCEID; the name is what they type to confirm.

use std::fmt;
use std::str::FromStr;

use crate::record::{RecordReader, RecordWriter};
use crate::{Error, ErrorKind, MetadataStore, layout};

const TAG_NAME: u8 = 1;
const NAME_BYTES_MAX: usize = 64;

/// A name such as `logs-eu`: 1 to 64 letters, digits, `-`, `_` or `.`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterName(String);

impl ClusterName {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        RecordWriter::new().bytes(TAG_NAME, self.0.as_bytes()).finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let text = RecordReader::open("cluster name", bytes)?.text(TAG_NAME)?;
        text.parse().map_err(|error| Error::new(ErrorKind::Damaged, "read cluster name").caused_by(error))
    }

    /// The name of the cluster in `store`, by proof; `None` when it has none.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn read(store: &dyn MetadataStore) -> Result<Option<Self>, Error> {
        store.get_quorum(&layout::name_key()).await?.map(|found| Self::decode(&found.value)).transpose()
    }
}

impl FromStr for ClusterName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.chars().all(fits) {
            let text = format!(
                "{:?} is no name for a cluster: write 1 to 64 letters, digits, '-', '_' or '.'",
                text.chars().take(80).collect::<String>()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let value = "logs-eu".parse::<ClusterName>().unwrap().encode();
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "010100076c6f67732d6575c52ce7d5");
        assert_eq!(ClusterName::decode(&value).unwrap().as_str(), "logs-eu");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert_eq!(bad.parse::<ClusterName>().unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
        "a".repeat(64).parse::<ClusterName>().unwrap();
    }
}
