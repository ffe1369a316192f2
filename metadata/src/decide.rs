//! What a transaction does to a state: pure, shared by every store that decides for itself.

use bytes::Bytes;

use crate::{Key, LeaseId, Op, Transaction, Versioned};

/// The effect of a transaction whose conditions all hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// What to write, at most one a key, in the order of the operations. Removals of absent keys are left out.
    pub(crate) writes: Vec<Write>,
    /// For each operation how the key stands afterwards.
    pub(crate) after: Vec<After>,
}

/// One effect on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// The value and the lease it is bound to; `None` removes the key.
    pub value: Option<(Bytes, Option<LeaseId>)>,
}

/// How a key stands after the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Absent.
    Absent,
    /// As it was.
    Unchanged(crate::Version),
    /// With the version the commit will get.
    Written,
}

/// Why a transaction is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal<E> {
    /// A condition does not hold.
    Conflict { op: usize, found: Option<Versioned> },
    /// A put names a lease that is not alive.
    LeaseGone(LeaseId),
    /// The state could not be read.
    Lookup(E),
}

/// Decides all conditions against the one state that `lookup` shows; the caller holds that state still meanwhile.
pub(crate) fn decide<E>(
    transaction: &Transaction,
    mut lookup: impl FnMut(&Key) -> Result<Option<Versioned>, E>,
    lease_alive: impl Fn(LeaseId) -> bool,
) -> Result<Changes, Refusal<E>> {
    let mut writes = Vec::new();
    let mut after = Vec::with_capacity(transaction.ops().len());
    for (index, op) in transaction.ops().iter().enumerate() {
        let found = lookup(op.key()).map_err(Refusal::Lookup)?;
        let version = found.as_ref().map(|found| found.version);
        if !op.expect().allows(version) {
            return Err(Refusal::Conflict { op: index, found });
        }
        match op {
            Op::Check { .. } => after.push(version.map_or(After::Absent, After::Unchanged)),
            Op::Put { key, value, lease, .. } => {
                if let Some(lease) = lease.filter(|lease| !lease_alive(*lease)) {
                    return Err(Refusal::LeaseGone(lease));
                }
                writes.push(Write { key: key.clone(), value: Some((value.clone(), *lease)) });
                after.push(After::Written);
            }
            Op::Delete { key, .. } => {
                if version.is_some() {
                    writes.push(Write { key: key.clone(), value: None });
                }
                after.push(After::Absent);
            }
        }
    }
    Ok(Changes { writes, after })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Expect, Version};

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    fn state(key: &Key) -> Result<Option<Versioned>, ()> {
        Ok((key.as_str() == "/there").then(|| Versioned {
            value: Bytes::from_static(b"old"),
            version: Version::new(7),
            lease: None,
        }))
    }

    #[test]
    fn the_first_failed_condition_is_named() {
        let transaction = Transaction::new()
            .check(key("/there"), Expect::At(Version::new(7)))
            .put(key("/new"), "x", Expect::Present)
            .delete(key("/other"), Expect::Present);
        assert_eq!(decide(&transaction, state, |_| true).unwrap_err(), Refusal::Conflict { op: 1, found: None });
    }

    #[test]
    fn effects_and_versions_follow_the_operations() {
        let transaction = Transaction::new()
            .check(key("/there"), Expect::Present)
            .put(key("/new"), "x", Expect::Absent)
            .delete(key("/gone"), Expect::Any);
        let changes = decide(&transaction, state, |_| true).unwrap();
        assert_eq!(changes.after, [After::Unchanged(Version::new(7)), After::Written, After::Absent]);
        assert_eq!(changes.writes.len(), 1, "removing an absent key writes nothing");
    }

    #[test]
    fn a_dead_lease_refuses_the_put() {
        let lease = LeaseId::new(3);
        let transaction = Transaction::new().put_leased(key("/new"), "x", Expect::Any, lease);
        assert_eq!(decide(&transaction, state, |_| false).unwrap_err(), Refusal::LeaseGone(lease));
    }
}
