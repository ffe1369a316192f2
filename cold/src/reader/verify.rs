use common::budget::ByteBudget;
use futures::{StreamExt, TryStreamExt, stream};
use ledger::LedgerId;

use super::tail::MAGIC_BYTES;
use super::{ObjectReader, RowGroup};
use crate::digest::LedgerDigest;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::object::ObjectSummary;
use crate::store::ColdStore;

/// Row groups in flight.
const AHEAD: usize = 2;

/// Reads a whole object back from the store, past every cache, and proves that it is what its writer meant: the whole-object
/// checksum, ids contiguous from 0, each row's body, number of entries, payload bytes and ledger digest.
///
/// At most two row groups are in memory at a time; their bytes are admitted by `budget`.
///
/// # Errors
/// `Damaged` with the first difference, `NotFound`, or what keeps the store from answering.
pub async fn verify_object(
    store: &ColdStore,
    instance_id: &str,
    ledger: LedgerId,
    expected: &ObjectSummary,
    budget: &ByteBudget,
) -> Result<()> {
    let tail_permit = budget.acquire(u64::from(expected.footer_bytes)).await;
    let reader = ObjectReader::open_at(store, instance_id, ledger, expected, Limits::v1()).await?;
    drop(tail_permit);
    let head = reader.get(0..MAGIC_BYTES).await?;
    let mut proof = Proof { crc32c: crc32c::crc32c(&head), next: 0, payload_bytes: 0, digest: LedgerDigest::default() };

    let mut groups = stream::iter(0..reader.row_groups().len())
        .map(|index| {
            let reader = &reader;
            async move {
                let info = reader.info(index)?;
                // Admitted in order: a later row group never holds what an earlier one waits for.
                let permit = budget.acquire(info.fetch_bytes() + info.decoded_bytes).await;
                let bytes = reader.fetch_group(index).await?;
                Ok::<_, Error>((index, bytes, permit))
            }
        })
        .buffered(AHEAD);
    while let Some((index, bytes, permit)) = groups.try_next().await? {
        proof.crc32c = crc32c::crc32c_append(proof.crc32c, &bytes);
        let group = reader.decode_group(index, bytes).await?;
        proof = super::maybe_blocking("check row group", group.memory_bytes(), move || proof.add(&group)).await?;
        drop(permit);
    }
    // The tail's own checksum was found right when it was opened, and it is the writer's own.
    proof.crc32c = crc32c::crc32c_combine(proof.crc32c, expected.footer_crc32c, expected.footer_bytes as usize);
    proof.finish(reader.key(), expected)
}

struct Proof {
    crc32c: u32,
    next: u64,
    payload_bytes: u64,
    digest: LedgerDigest,
}

impl Proof {
    fn add(mut self, group: &RowGroup) -> Result<Self> {
        for place in 0..group.len() {
            let row = group.row(place)?;
            if row.entry.get() != self.next {
                return Err(group.damaged(format_args!("entry {} stands where entry {} must", row.entry, self.next)));
            }
            self.next += 1;
            self.payload_bytes += row.payload_bytes();
            self.digest.add(row.entry, row.crc32c);
        }
        Ok(self)
    }

    fn finish(self, key: &str, expected: &ObjectSummary) -> Result<()> {
        let differs = |what: &str, found: String, want: String| {
            Err(Error::damaged(key, format_args!("{what} is {found}, expected {want}")))
        };
        if self.crc32c != expected.object_crc32c {
            return differs(
                "whole-object crc32c",
                format!("{:08x}", self.crc32c),
                format!("{:08x}", expected.object_crc32c),
            );
        }
        if self.next != expected.entries {
            return differs("number of entries", self.next.to_string(), expected.entries.to_string());
        }
        if self.payload_bytes != expected.payload_bytes {
            return differs("sum of payload bytes", self.payload_bytes.to_string(), expected.payload_bytes.to_string());
        }
        if let Some(want) = expected.ledger_digest {
            let found = self.digest.finish();
            if found != want {
                return differs("ledger digest", hex::encode(found), hex::encode(want));
            }
        }
        Ok(())
    }
}
