//! What our own key-value pairs in the Parquet footer say: whose object this is, and the checksums Parquet itself does not keep.

use ledger::LedgerId;
use parquet::file::metadata::KeyValue;
use uuid::Uuid;

/// The format version written, and the only one read.
pub(crate) const FORMAT: &str = "1";

const KEY_FORMAT: &str = "thermocline.format";
const KEY_INSTANCE: &str = "thermocline.instance";
const KEY_GENERATION: &str = "thermocline.generation";
const KEY_LEDGER: &str = "thermocline.ledger";
const KEY_ENTRIES: &str = "thermocline.entries";
const KEY_PAYLOAD_BYTES: &str = "thermocline.payload_bytes";
const KEY_METADATA: &str = "thermocline.metadata";
const KEY_CHECKSUMS: &str = "thermocline.checksums";

/// Whose object it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) instance_id: String,
    pub(crate) object: Uuid,
    pub(crate) ledger: LedgerId,
    pub(crate) entries: u64,
    pub(crate) payload_bytes: u64,
    /// The ledger's metadata when the object was written, in its stored form, its password empty.
    pub(crate) metadata: Vec<u8>,
}

/// Which of the optional columns have any value in a row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extras(u8);

impl Extras {
    pub(crate) const RAW: Self = Self(1);
    pub(crate) const REDACTED: Self = Self(2);
    pub(crate) const TS: Self = Self(4);

    pub(crate) fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The checksums of a row group: of its bytes, and of each of its pages (column by column, in file order).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupChecksums {
    pub(crate) extras: Extras,
    pub(crate) crc32c: u32,
    pub(crate) pages: Vec<u32>,
}

/// The key-value pairs of an object.
pub(crate) fn to_pairs(identity: &Identity, checksums: &[GroupChecksums]) -> Vec<KeyValue> {
    let pair = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
    vec![
        pair(KEY_FORMAT, FORMAT.to_owned()),
        pair(KEY_INSTANCE, identity.instance_id.clone()),
        pair(KEY_GENERATION, identity.object.to_string()),
        pair(KEY_LEDGER, identity.ledger.to_string()),
        pair(KEY_ENTRIES, identity.entries.to_string()),
        pair(KEY_PAYLOAD_BYTES, identity.payload_bytes.to_string()),
        pair(KEY_METADATA, hex::encode(&identity.metadata)),
        pair(KEY_CHECKSUMS, hex::encode(encode_checksums(checksums))),
    ]
}

/// Why a footer was refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Another format version, or not one of our objects.
    Unsupported(String),
    /// Ours, but malformed.
    Damaged(String),
}

/// Reads the pairs of an object. `groups` is the number of its row groups. Keys this version does not know are passed over.
pub(crate) fn from_pairs(pairs: &[KeyValue], groups: usize) -> Result<(Identity, Vec<GroupChecksums>), Refusal> {
    let find = |key: &str| pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref());
    match find(KEY_FORMAT) {
        Some(FORMAT) => {}
        Some(other) => {
            return Err(Refusal::Unsupported(format!("format version {other:?} is not known here, expected {FORMAT}")));
        }
        None => return Err(Refusal::Unsupported("it is a Parquet file without a thermocline.format".to_owned())),
    }
    let need = |key: &str| find(key).ok_or_else(|| Refusal::Damaged(format!("footer has no {key}")));
    let bad = |key: &str| Refusal::Damaged(format!("footer value {key} is malformed"));
    let identity = Identity {
        instance_id: need(KEY_INSTANCE)?.to_owned(),
        object: Uuid::try_parse(need(KEY_GENERATION)?).map_err(|_| bad(KEY_GENERATION))?,
        ledger: need(KEY_LEDGER)?.parse().map_err(|_| bad(KEY_LEDGER))?,
        entries: need(KEY_ENTRIES)?.parse().map_err(|_| bad(KEY_ENTRIES))?,
        payload_bytes: need(KEY_PAYLOAD_BYTES)?.parse().map_err(|_| bad(KEY_PAYLOAD_BYTES))?,
        metadata: hex::decode(need(KEY_METADATA)?).map_err(|_| bad(KEY_METADATA))?,
    };
    let checksums = hex::decode(need(KEY_CHECKSUMS)?).map_err(|_| bad(KEY_CHECKSUMS))?;
    let checksums = decode_checksums(&checksums, groups).ok_or_else(|| bad(KEY_CHECKSUMS))?;
    Ok((identity, checksums))
}

/// For each row group: flags `u8`, CRC32C `u32`, page count `u32`, then a CRC32C `u32` for each page; big-endian.
fn encode_checksums(groups: &[GroupChecksums]) -> Vec<u8> {
    let mut out = Vec::new();
    for group in groups {
        out.push(group.extras.0);
        out.extend_from_slice(&group.crc32c.to_be_bytes());
        out.extend_from_slice(&u32::try_from(group.pages.len()).unwrap_or(u32::MAX).to_be_bytes());
        for page in &group.pages {
            out.extend_from_slice(&page.to_be_bytes());
        }
    }
    out
}

fn decode_checksums(mut bytes: &[u8], groups: usize) -> Option<Vec<GroupChecksums>> {
    fn number(bytes: &mut &[u8]) -> Option<u32> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        *bytes = rest;
        Some(u32::from_be_bytes(*head))
    }
    let mut out = Vec::new();
    for _ in 0..groups {
        let (flags, rest) = bytes.split_first()?;
        bytes = rest;
        let crc32c = number(&mut bytes)?;
        let pages = usize::try_from(number(&mut bytes)?).ok()?;
        // Bounded by what is there before anything is reserved.
        let (page_bytes, rest) = bytes.split_at_checked(pages.checked_mul(4)?)?;
        bytes = rest;
        let pages =
            page_bytes.chunks_exact(4).map(|crc| u32::from_be_bytes([crc[0], crc[1], crc[2], crc[3]])).collect();
        out.push(GroupChecksums { extras: Extras(*flags), crc32c, pages });
    }
    bytes.is_empty().then_some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn checksums_round_trip(groups in prop::collection::vec((any::<u8>(), any::<u32>(), prop::collection::vec(any::<u32>(), 0..9)), 0..9)) {
            let groups: Vec<_> =
                groups.into_iter().map(|(flags, crc32c, pages)| GroupChecksums { extras: Extras(flags), crc32c, pages }).collect();
            let bytes = encode_checksums(&groups);
            prop_assert_eq!(decode_checksums(&bytes, groups.len()), Some(groups.clone()));
            prop_assert_eq!(decode_checksums(&bytes, groups.len() + 1), None);
            if !bytes.is_empty() {
                prop_assert_eq!(decode_checksums(&bytes[..bytes.len() - 1], groups.len()), None);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), groups in 0usize..4) {
            let _ = decode_checksums(&bytes, groups);
        }
    }
}
