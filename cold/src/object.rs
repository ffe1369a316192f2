use ledger::{ColdRecord, LedgerId, LedgerMetadata};
use uuid::Uuid;

/// Whose object is to be written.
#[derive(Debug, Clone)]
pub struct ObjectMeta {
    pub(crate) instance_id: String,
    pub(crate) ledger: LedgerId,
    pub(crate) object: Uuid,
    pub(crate) metadata: Vec<u8>,
}

impl ObjectMeta {
    /// `object` is fresh for each attempt: no key is ever written twice. The ledger's metadata goes into the footer, so that it
    /// could be rebuilt from the bucket, with its password emptied: whoever reads the bucket must not learn it.
    pub fn new(instance_id: impl Into<String>, ledger: LedgerId, object: Uuid, metadata: &LedgerMetadata) -> Self {
        Self { instance_id: instance_id.into(), ledger, object, metadata: metadata.without_password().encode() }
    }

    /// The object's key in the store.
    pub fn key(&self) -> String {
        ColdRecord::key_of(&self.instance_id, self.ledger, self.object)
    }

    /// The object's identity.
    pub fn object(&self) -> Uuid {
        self.object
    }

    /// The ledger.
    pub fn ledger(&self) -> LedgerId {
        self.ledger
    }
}

/// What is known of a whole object: what its writer found, and what every reader holds it to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The object's identity; its key is made of it.
    pub object: Uuid,
    /// The object's size.
    pub object_bytes: u64,
    /// CRC32C of the whole object.
    pub object_crc32c: u32,
    /// Where the tail (page indexes and footer) begins; it ends with the object.
    pub footer_offset: u64,
    /// The size of the tail.
    pub footer_bytes: u32,
    /// CRC32C of the tail.
    pub footer_crc32c: u32,
    /// Rows.
    pub entries: u64,
    /// The sum of the rows' payload bytes.
    pub payload_bytes: u64,
    /// SHA-256 over each row's entry id (`u64`) and body CRC32C (`u32`), both big-endian, in order.
    pub ledger_digest: Option<[u8; 32]>,
}

impl ObjectSummary {
    /// The cold record of a ledger that has the object to itself.
    pub fn to_record(&self, store_id: u32, commit_counter: u64, length_differs: Option<u64>) -> ColdRecord {
        ColdRecord {
            store_id,
            object: self.object,
            object_bytes: self.object_bytes,
            object_crc32c: self.object_crc32c,
            footer_offset: self.footer_offset,
            footer_bytes: self.footer_bytes,
            footer_crc32c: self.footer_crc32c,
            entries: self.entries,
            payload_bytes: self.payload_bytes,
            ledger_digest: self.ledger_digest,
            commit_counter,
            pack: None,
            length_differs,
        }
    }
}

impl From<&ColdRecord> for ObjectSummary {
    fn from(record: &ColdRecord) -> Self {
        Self {
            object: record.object,
            object_bytes: record.object_bytes,
            object_crc32c: record.object_crc32c,
            footer_offset: record.footer_offset,
            footer_bytes: record.footer_bytes,
            footer_crc32c: record.footer_crc32c,
            entries: record.entries,
            payload_bytes: record.payload_bytes,
            ledger_digest: record.ledger_digest,
        }
    }
}

impl From<&ObjectSummary> for ObjectSummary {
    fn from(summary: &ObjectSummary) -> Self {
        summary.clone()
    }
}
