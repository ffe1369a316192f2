//! The reader of cold objects.
//!
//! ## Overview
//! [`ObjectReader::open`] reads the tail (one GET) and keeps what it says. [`ObjectReader::read_group`] reads a row group (one GET of
//! its contiguous bytes) and decodes it. [`ObjectReader::read_entry`] reads one row through the page index: at most two GETs at a
//! time, of the pages it needs. Nothing is cached here but the tail.
//!
//! ## Consistency
//! Objects never change. Each answer is held to the size the cold record names and to checksums: the tail to the record's, a row
//! group and a page to the footer's, a body to its row's. What does not match is an error that names the object, the row group and
//! the entry, and never another payload.
//!
//! ## Memory
//! Sizes are checked against [`Limits`] before anything is reserved. What is fetched or decoded belongs to the caller's budget:
//! [`GroupInfo::fetch_bytes`], [`GroupInfo::decoded_bytes`] and [`RowGroup::memory_bytes`] say how much.
//!
//! ## Cancellation
//! Every future may be dropped at any time.

mod decode;
mod group;
mod point;
mod tail;
mod verify;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ledger::{ColdRecord, EntryId, LedgerId};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::Limits;
use crate::object::ObjectSummary;
use crate::store::ColdStore;

pub use group::RowGroup;
pub use point::EntryRead;
pub use verify::verify_object;

use tail::Tail;

/// Decoding more than this is done on a thread for blocking work.
const INLINE_DECODE_BYTES: u64 = 256 << 10;

/// Where a row group is and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// The place of the row group in its object.
    pub index: usize,
    /// The first entry.
    pub first: EntryId,
    /// The entry after the last one.
    pub end: EntryId,
    /// Rows.
    pub rows: u32,
    /// Where its bytes are in the object.
    pub range: Range<u64>,
    /// An upper bound of what it takes in memory when decoded.
    pub decoded_bytes: u64,
}

impl GroupInfo {
    /// Bytes of the one GET that reads it.
    pub fn fetch_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// An open object. Cheap to clone.
#[derive(Clone)]
pub struct ObjectReader {
    inner: Arc<Inner>,
}

struct Inner {
    store: ColdStore,
    key: Arc<str>,
    limits: Limits,
    summary: ObjectSummary,
    tail: Tail,
    groups: Vec<GroupInfo>,
}

impl ObjectReader {
    /// Opens the object that a ledger's cold record names, with one GET.
    ///
    /// # Errors
    /// `NotFound` when the store does not have it; `Damaged` when size, checksum or content differ from the record;
    /// `Unsupported` for another format version.
    pub async fn open(store: &ColdStore, instance_id: &str, ledger: LedgerId, record: &ColdRecord) -> Result<Self> {
        if record.pack.is_some() {
            let key = record.object_key(instance_id, ledger);
            return Err(Error::new(ErrorKind::Unsupported, format!("read object {key}: packs are not known here")));
        }
        Self::open_summary(store, instance_id, ledger, &record.into()).await
    }

    /// Opens an object by what its writer found. As [`ObjectReader::open`].
    ///
    /// # Errors
    /// Those of [`ObjectReader::open`].
    pub async fn open_summary(
        store: &ColdStore,
        instance_id: &str,
        ledger: LedgerId,
        summary: &ObjectSummary,
    ) -> Result<Self> {
        Self::open_at(store, instance_id, ledger, summary, Limits::v1()).await
    }

    async fn open_at(
        store: &ColdStore,
        instance_id: &str,
        ledger: LedgerId,
        summary: &ObjectSummary,
        limits: Limits,
    ) -> Result<Self> {
        let key: Arc<str> = ColdRecord::key_of(instance_id, ledger, summary.object).into();
        let tail_bytes = u64::from(summary.footer_bytes);
        if summary.footer_offset.checked_add(tail_bytes) != Some(summary.object_bytes) || tail_bytes > limits.tail_bytes
        {
            return Err(Error::damaged(&key, "the cold record puts its tail at an impossible place"));
        }
        let range = summary.footer_offset..summary.object_bytes;
        let bytes = store.get_range(&key, range, Some(summary.object_bytes)).await?;
        let parse = {
            let (key, summary, instance_id) = (Arc::clone(&key), summary.clone(), instance_id.to_owned());
            move || tail::read(&key, &bytes, &summary, &instance_id, ledger, &limits)
        };
        let tail = maybe_blocking("read footer", tail_bytes, parse).await?;
        let groups = tail
            .groups
            .iter()
            .enumerate()
            .map(|(index, group)| GroupInfo {
                index,
                first: group.first,
                end: group.last.next(),
                rows: group.rows,
                range: group.range.clone(),
                // What is declared, or the stored bytes where pages are slices of them, and 40 bytes of tables a row.
                decoded_bytes: group.raw_bytes.max(group.range.end - group.range.start)
                    + u64::from(group.rows) * 40
                    + 4_096,
            })
            .collect();
        Ok(Self {
            inner: Arc::new(Inner { store: store.clone(), key, limits, summary: summary.clone(), tail, groups }),
        })
    }

    /// The object's key.
    pub fn key(&self) -> &str {
        &self.inner.key
    }

    /// The ledger.
    pub fn ledger(&self) -> LedgerId {
        self.inner.tail.identity.ledger
    }

    /// What is known of the whole object.
    pub fn summary(&self) -> &ObjectSummary {
        &self.inner.summary
    }

    /// The ledger's metadata when the object was written, as it was stored then but with an empty password.
    pub fn metadata_snapshot(&self) -> &[u8] {
        &self.inner.tail.identity.metadata
    }

    /// Rows of the object.
    pub fn entries(&self) -> u64 {
        self.inner.summary.entries
    }

    /// The row groups, in order of entries.
    pub fn row_groups(&self) -> &[GroupInfo] {
        &self.inner.groups
    }

    /// The row group that has an entry, or would have it; `None` outside of the object's entries.
    pub fn group_of(&self, entry: EntryId) -> Option<&GroupInfo> {
        let groups = &self.inner.groups;
        let after = groups.partition_point(|group| group.first <= entry);
        let group = groups.get(after.checked_sub(1)?)?;
        // An id between two row groups is missing; the group before it says so.
        (entry < group.end || after < groups.len()).then_some(group)
    }

    /// Bytes this open object keeps in memory.
    pub fn memory_bytes(&self) -> u64 {
        let groups = self.inner.groups.capacity() * size_of::<GroupInfo>();
        self.inner.tail.memory_bytes() + groups as u64 + size_of::<Inner>() as u64
    }

    /// Reads and decodes a row group: one GET. The caller has room for [`GroupInfo::fetch_bytes`] and
    /// [`GroupInfo::decoded_bytes`] together while it runs.
    ///
    /// # Errors
    /// `NotFound`, `Damaged`, or what keeps the store from answering; `Invalid` when there is no such row group.
    pub async fn read_group(&self, index: usize) -> Result<RowGroup> {
        let bytes = self.fetch_group(index).await?;
        self.decode_group(index, bytes).await
    }

    /// The bytes of a row group: the GET of [`ObjectReader::read_group`], for those who decode elsewhere.
    ///
    /// # Errors
    /// Those of [`ObjectReader::read_group`].
    pub async fn fetch_group(&self, index: usize) -> Result<Bytes> {
        let info = self.info(index)?;
        self.get(info.range.clone()).await
    }

    /// Decodes the bytes of a row group.
    ///
    /// # Errors
    /// `Damaged` when they are not what was written.
    pub async fn decode_group(&self, index: usize, bytes: Bytes) -> Result<RowGroup> {
        let info = self.info(index)?;
        if bytes.len() as u64 != info.fetch_bytes() {
            return Err(Error::damaged(
                self.key(),
                format_args!("row group {index}: {} bytes, expected {}", bytes.len(), info.fetch_bytes()),
            ));
        }
        let inner = Arc::clone(&self.inner);
        let decode = move || RowGroup::decode(&inner.key, &inner.tail, index, bytes, &inner.limits);
        maybe_blocking("decode row group", info.decoded_bytes, decode).await
    }

    fn info(&self, index: usize) -> Result<&GroupInfo> {
        self.inner.groups.get(index).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("read object {}: it has no row group {index}", self.inner.key))
        })
    }

    async fn get(&self, range: Range<u64>) -> Result<Bytes> {
        self.inner.store.get_range(&self.inner.key, range, Some(self.inner.summary.object_bytes)).await
    }
}

impl std::fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectReader({})", self.inner.key)
    }
}

async fn maybe_blocking<T: Send + 'static>(
    name: &'static str,
    bytes: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= INLINE_DECODE_BYTES { work() } else { common::blocking::run_blocking(name, work).await }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
