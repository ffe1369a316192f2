//! A transaction as etcd's, and its answer back: one exchange decides and does everything.
//!
//! Each operation has one request in the branch of success (a put, a removal, or a look at a key that is only checked) and one in
//! the branch of failure (a look at the key), so that answers go by the place of the operation. A transaction that puts LAYOUT where
//! none is makes a cluster: what else the layout wants there is put behind the operations, and signs of a cluster of another layout are
//! conditions. One that removes LAYOUT removes the same again.

use bytes::Bytes;
use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::names::{Founding, Leaving, Names};
use crate::{
    CommitError, Committed, Error, ErrorKind, Expect, LeaseId, LedgerLayout, Op, Transaction, Version, Versioned,
    layout,
};

/// The most bytes of an answer: [`crate::OPS_MAX`] values of the longest request that etcd takes.
pub(super) const ANSWER_BYTES_MAX: usize = 128 << 20;

/// A transaction for etcd, and the shape of its answer.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) txn: Txn,
    ops: usize,
    /// Requests behind those of the operations: in the branch of success, and in that of failure.
    beside: (usize, usize),
    /// Whether some of them are for marks.
    pub(super) has_marks: bool,
}

/// Without `marks`, a cluster that is made or removed has none of what only other clients look for.
pub(super) fn build(
    names: &Names,
    layout: LedgerLayout,
    transaction: &Transaction,
    marks: bool,
) -> Result<Request, Error> {
    let ops = transaction.ops();
    let placed = ops.iter().map(|op| Ok((op, names.name(op.key(), layout)?))).collect::<Result<Vec<_>, Error>>()?;
    let mut compares: Vec<_> = placed.iter().filter_map(|(op, name)| compare(name.clone(), op.expect())).collect();
    let done = placed.iter().map(|(op, name)| match op {
        Op::Check { .. } => TxnOp::get(name.clone(), Some(GetOptions::new().with_keys_only())),
        Op::Put { value, lease, .. } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease.raw().cast_signed()));
            TxnOp::put(name.clone(), value.to_vec(), options)
        }
        Op::Delete { .. } => TxnOp::delete(name.clone(), None),
    });
    let mut done: Vec<_> = done.collect();
    let mut refused: Vec<_> = placed.iter().map(|(_, name)| TxnOp::get(name.clone(), None)).collect();
    let founding = if ops.iter().any(founds) { names.founding(layout) } else { Founding::default() };
    let leaving = if ops.iter().any(leaves) { names.leaving(layout) } else { Leaving::default() };
    let Founding { markers, guards, .. } = founding;
    done.extend(markers.into_iter().map(|name| TxnOp::put(name, Vec::new(), None)));
    done.extend(
        leaving.spans.into_iter().map(|span| TxnOp::delete(span.from, Some(DeleteOptions::new().with_range(span.end)))),
    );
    let marking = founding.marks.into_iter().map(mark);
    let marking: Vec<_> = marking.chain(leaving.marks.into_iter().map(unmark)).filter(|_| marks).collect();
    let has_marks = !marking.is_empty();
    done.extend(marking);
    let beside = (done.len() - ops.len(), guards.len());
    for guard in guards {
        compares.extend(compare(guard.clone(), Expect::Absent));
        refused.push(TxnOp::get(guard, Some(GetOptions::new().with_keys_only())));
    }
    Ok(Request { txn: Txn::new().when(compares).and_then(done).or_else(refused), ops: ops.len(), beside, has_marks })
}

/// Puts the marks of a cluster that has a LAYOUT at `layout`, where they are not.
pub(super) fn mark_all(layout: Vec<u8>, marks: Vec<Vec<u8>>) -> Txn {
    let compare: Vec<_> = compare(layout, Expect::Present).into_iter().collect();
    Txn::new().when(compare).and_then(marks.into_iter().map(mark).collect::<Vec<_>>())
}

/// Puts an empty value where none is.
fn mark(name: Vec<u8>) -> TxnOp {
    let compare: Vec<_> = compare(name.clone(), Expect::Absent).into_iter().collect();
    TxnOp::txn(Txn::new().when(compare).and_then([TxnOp::put(name, Vec::new(), None)]))
}

/// Removes an empty value; others stay.
fn unmark(name: Vec<u8>) -> TxnOp {
    let compare = Compare::value(name.clone(), CompareOp::Equal, Vec::new());
    TxnOp::txn(Txn::new().when([compare]).and_then([TxnOp::delete(name, None)]))
}

/// Whether an operation makes a cluster.
fn founds(op: &Op) -> bool {
    matches!(op, Op::Put { expect: Expect::Absent, .. }) && *op.key() == layout::layout_key()
}

/// Whether it removes one.
fn leaves(op: &Op) -> bool {
    matches!(op, Op::Delete { .. }) && *op.key() == layout::layout_key()
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
    /// Whether there is a sign of a cluster of another layout.
    pub(super) guarded: bool,
}

impl Answer {
    /// `None` for an answer that is not to this request.
    pub(super) fn read(response: &TxnResponse, request: &Request) -> Option<Self> {
        let revision = response.header()?.revision();
        let succeeded = response.succeeded();
        let mut found: Vec<_> = response
            .op_responses()
            .into_iter()
            .map(|answer| match answer {
                TxnOpResponse::Get(mut got) => got.take_kvs().into_iter().next().map(versioned),
                _ => None,
            })
            .collect();
        let beside = if succeeded { request.beside.0 } else { request.beside.1 };
        let fits = found.len() == request.ops + beside && revision > 0;
        let guarded = !succeeded && found.iter().skip(request.ops).any(Option::is_some);
        found.truncate(request.ops);
        fits.then_some(Self { revision, succeeded, found, guarded })
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
            None if self.guarded => Err(CommitError::NotDone(Error::new(
                ErrorKind::Refused,
                "make a cluster: below this root of etcd lies one of another layout, or a part of one, made at the same time or below \
                 its own root; use it, or name another root",
            ))),
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
