//! The vocabulary of the log store: ids, quorum geometry, entry bodies and their digests, ledger metadata with its stored
//! formats, cold records and cold ids.
//!
//! Everything here is a value or a pure function: no I/O, no clock, no async. Bytes that come from elsewhere are never
//! trusted: a decoder answers with an error, it does not panic, and it allocates nothing that the input has not paid for.

mod body;
mod cold_id;
mod cold_record;
mod digest;
mod error;
mod ids;
mod keys;
mod metadata;
mod quorum;
mod service_info;

pub use body::{BODY_HEADER_BYTES, BodyError, Entry, EntryHeader, LAC_HEADER_BYTES, Peek, peek};
pub use cold_id::{COLD_SHARDS, ColdId, is_cold, ledger_hash, shard_of};
pub use cold_record::{COLD_RECORD_BYTES_MAX, ColdRecord, PackPlace};
pub use digest::{DigestType, Digester};
pub use error::{Error, ErrorKind};
pub use ids::{BookieId, EntryId, LedgerId};
pub use keys::{MASTER_KEY_BYTES, MasterKey, Password};
pub use metadata::{LedgerMetadata, LedgerState, MetadataFormat, Segment, Tier};
pub use quorum::Quorums;
pub use service_info::{BookieEndpoint, BookieServiceInfo};
