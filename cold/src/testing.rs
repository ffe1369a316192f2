//! What the tests of this crate share.

use std::time::Duration;

use bytes::Bytes;
use common::retry::RetryPolicy;
use common::rng::Rng;
use ledger::{BookieId, DigestType, Digester, EntryHeader, EntryId, LedgerId, LedgerMetadata, Password, Quorums};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use uuid::Uuid;

use crate::{ColdStore, FaultStore, Limits, ObjectMeta, ObjectSummary, ObjectWriter, Result, Row, StoreOptions};

pub(crate) const INSTANCE: &str = "5b9a2f0e-1c0d-4c55-8a0f-6f0f2b9d7e11";
pub(crate) const PASSWORD: &[u8] = b"correct-horse-battery";

pub(crate) fn ledger() -> LedgerId {
    LedgerId::new(42).unwrap()
}

pub(crate) fn entry(id: u64) -> EntryId {
    EntryId::new(id).unwrap()
}

pub(crate) fn object() -> Uuid {
    Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef)
}

pub(crate) fn metadata() -> LedgerMetadata {
    let ensemble = (1..=3).map(|i| BookieId::new(&format!("bookie-{i}:3181")).unwrap()).collect();
    let quorums = Quorums::new(3, 3, 2).unwrap();
    LedgerMetadata::open(quorums, ensemble, DigestType::Crc32c, Password::new(PASSWORD.to_vec())).unwrap()
}

pub(crate) fn meta() -> ObjectMeta {
    ObjectMeta::new(INSTANCE, ledger(), object(), &metadata())
}

/// Rows as a writer of BookKeeper makes them.
pub(crate) fn rows(payloads: impl IntoIterator<Item = Vec<u8>>) -> Vec<Row> {
    let digester = Digester::new(DigestType::Crc32c, &Password::new(PASSWORD.to_vec()));
    let mut length = 0;
    let sealed = payloads.into_iter().enumerate().map(|(id, payload)| {
        length += payload.len() as u64;
        let id = entry(id as u64);
        let header = EntryHeader { ledger: ledger(), entry: id, last_confirmed: id.prev(), length };
        let body = digester.seal(&header, &payload);
        Row::from_entry(&digester.open(ledger(), Some(id), &body).unwrap())
    });
    sealed.collect()
}

/// Bytes that do not compress, the same for the same seed.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    Rng::seeded(seed).fill(&mut out);
    out
}

/// Text that compresses about three to one.
pub(crate) fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let rng = Rng::seeded(seed);
    let mut out = Vec::with_capacity(bytes + 80);
    while out.len() < bytes {
        let line = format!(
            "{{\"ts\":{},\"level\":\"info\",\"user\":\"{:x}\",\"message\":\"request served\"}}\n",
            rng.below(1 << 40),
            rng.next_u64()
        );
        out.extend_from_slice(line.as_bytes());
    }
    out.truncate(bytes);
    out
}

pub(crate) fn write_with(rows: &[Row], limits: Limits) -> Result<(Vec<u8>, ObjectSummary)> {
    let mut writer = ObjectWriter::new(meta(), limits);
    let mut out = Vec::new();
    for row in rows {
        if let Some(bytes) = writer.push(row.clone())? {
            out.extend_from_slice(&bytes);
        }
    }
    let (bytes, summary) = writer.finish()?;
    out.extend_from_slice(&bytes);
    Ok((out, summary))
}

pub(crate) fn write(rows: &[Row]) -> (Vec<u8>, ObjectSummary) {
    write_with(rows, Limits::v1()).unwrap()
}

/// Smaller row groups and pages, so that small objects have many.
pub(crate) fn small() -> Limits {
    Limits { group_encoded_bytes: 200 << 10, page_bytes: 4 << 10, page_rows: 64, group_rows: 500, ..Limits::v1() }
}

/// Quick to give up.
pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        retry: RetryPolicy {
            initial: Duration::from_millis(1),
            factor: 2.0,
            max: Duration::from_millis(4),
            deadline: Duration::from_millis(20),
        },
        request_deadline: Duration::from_secs(20),
        ..StoreOptions::default()
    }
}

pub(crate) fn cold_store() -> (ColdStore, FaultStore) {
    let faults = FaultStore::in_memory();
    (faults.cold_store(options(), Rng::seeded(1)), faults)
}

/// Puts bytes where the test object belongs, past every check.
pub(crate) async fn place(store: &FaultStore, bytes: impl Into<Bytes>) {
    let path = Path::parse(meta().key()).unwrap();
    store.put(&path, bytes.into().into()).await.unwrap();
    let _: &dyn ObjectStore = store;
    store.take_traffic();
}
