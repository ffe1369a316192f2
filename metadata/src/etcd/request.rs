//! A transaction as etcd's, and its answer back: one exchange decides and does everything.
//!
//! Each operation has one request in the branch of success (a put, a removal, or a look at a key that is only checked) and one in
//! the branch of failure (a look at the key), so that answers go by the place of the operation.

use bytes::Bytes;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::names::Names;
use crate::{CommitError, Committed, Error, ErrorKind, Expect, LeaseId, Op, Transaction, Version, Versioned};

/// The most bytes of an answer: [`crate::OPS_MAX`] values of the longest request that etcd takes.
pub(super) const ANSWER_BYTES_MAX: usize = 128 << 20;

pub(super) fn build(names: &Names, transaction: &Transaction) -> Txn {
    let ops = transaction.ops();
    let compares: Vec<_> = ops.iter().filter_map(|op| compare(names.name(op.key()), op.expect())).collect();
    let done: Vec<_> = ops
        .iter()
        .map(|op| match op {
            Op::Check { key, .. } => TxnOp::get(names.name(key), Some(GetOptions::new().with_keys_only())),
            Op::Put { key, value, lease, .. } => {
                let options = lease.map(|lease| PutOptions::new().with_lease(lease.raw().cast_signed()));
                TxnOp::put(names.name(key), value.to_vec(), options)
            }
            Op::Delete { key, .. } => TxnOp::delete(names.name(key), None),
        })
        .collect();
    let refused: Vec<_> = ops.iter().map(|op| TxnOp::get(names.name(op.key()), None)).collect();
    Txn::new().when(compares).and_then(done).or_else(refused)
}

fn compare(name: Vec<u8>, expect: Expect) -> Option<Compare> {
    match expect {
        Expect::Any => None,
        // An absent key compares as revision 0.
        Expect::Absent => Some(Compare::mod_revision(name, CompareOp::Equal, 0)),
        Expect::Present => Some(Compare::mod_revision(name, CompareOp::Greater, 0)),
        Expect::At(version) => Some(Compare::mod_revision(name, CompareOp::Equal, version.raw().cast_signed())),
    }
}

/// What etcd answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The store's revision after it; that of the writes when there were any.
    pub(super) revision: i64,
    /// Whether all conditions held.
    pub(super) succeeded: bool,
    /// For each operation what its key was found to be, where that was asked.
    pub(super) found: Vec<Option<Versioned>>,
}

impl Answer {
    /// `None` for an answer that is not to this request.
    pub(super) fn read(response: &TxnResponse, ops: usize) -> Option<Self> {
        let revision = response.header()?.revision();
        let found: Vec<_> = response
            .op_responses()
            .into_iter()
            .map(|answer| match answer {
                TxnOpResponse::Get(mut got) => got.take_kvs().into_iter().next().map(versioned),
                _ => None,
            })
            .collect();
        (found.len() == ops && revision > 0).then_some(Self { revision, succeeded: response.succeeded(), found })
    }

    /// The outcome for the caller.
    pub(super) fn settle(self, transaction: &Transaction) -> Result<Committed, CommitError> {
        let ops = transaction.ops();
        if self.succeeded {
            let written = Version::new(self.revision.cast_unsigned());
            let versions = ops
                .iter()
                .zip(self.found)
                .map(|(op, found)| match op {
                    Op::Check { .. } => found.map(|found| found.version),
                    Op::Put { .. } => Some(written),
                    Op::Delete { .. } => None,
                })
                .collect();
            return Ok(Committed { versions });
        }
        let mut places = ops.iter().zip(self.found).enumerate();
        let broken = places.find(|(_, (op, found))| !op.expect().allows(found.as_ref().map(|found| found.version)));
        match broken {
            Some((op, (_, found))) => Err(CommitError::Conflict { op, found }),
            None => Err(CommitError::NotDone(Error::new(
                ErrorKind::Damaged,
                "commit metadata: etcd refused conditions that hold by its own answer",
            ))),
        }
    }
}

pub(super) fn versioned(row: KeyValue) -> Versioned {
    let version = Version::new(row.mod_revision().cast_unsigned());
    let lease = (row.lease() != 0).then(|| LeaseId::new(row.lease().cast_unsigned()));
    let (_, value) = row.into_key_value();
    Versioned { value: Bytes::from(value), version, lease }
}
