//! Versions, conditions and transactions: the vocabulary of a write.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;

use crate::{Error, ErrorKind, Key};

/// The most operations one transaction may hold.
pub const OPS_MAX: usize = 64;

/// The most bytes the values of one transaction may hold together (ZooKeeper's request limit is 1 MiB less one).
pub const VALUE_BYTES_MAX: usize = 1_000_000;

/// The version of a key's value.
///
/// Opaque: compare for equality, and use the order only to tell which of two states of **one store** is later. Every commit
/// that changes something gets a higher version than all before it, whatever the key, so a key that is deleted and created
/// again never shows a version it had before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    pub(crate) const fn new(revision: u64) -> Self {
        Self(revision)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// Names a lease of one store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u64);

impl LeaseId {
    pub(crate) const fn new(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease-{:x}", self.0)
    }
}

/// A value with its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// Its version.
    pub version: Version,
    /// The lease the key dies with, if any.
    pub lease: Option<LeaseId>,
}

/// What must be true of a key for a transaction to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists, in whatever version.
    Present,
    /// The key exists in exactly this version.
    At(Version),
}

impl Expect {
    /// Whether a key whose current version is `found` satisfies this.
    #[must_use]
    pub fn allows(self, found: Option<Version>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => found.is_none(),
            Self::Present => found.is_some(),
            Self::At(version) => found == Some(version),
        }
    }
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Changes nothing; the transaction is done only if `expect` holds.
    Check {
        /// The key.
        key: Key,
        /// The condition.
        expect: Expect,
    },
    /// Sets the value. The key's lease becomes `lease`: putting without a lease makes a leased key permanent.
    Put {
        /// The key.
        key: Key,
        /// The new value.
        value: Bytes,
        /// The condition.
        expect: Expect,
        /// The lease to bind the key to.
        lease: Option<LeaseId>,
    },
    /// Removes the key. With [`Expect::Any`] an absent key is not an error.
    Delete {
        /// The key.
        key: Key,
        /// The condition.
        expect: Expect,
    },
}

impl Op {
    /// The key the operation is about.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Check { key, .. } | Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// The operation's condition.
    #[must_use]
    pub fn expect(&self) -> Expect {
        match self {
            Self::Check { expect, .. } | Self::Put { expect, .. } | Self::Delete { expect, .. } => *expect,
        }
    }
}

/// Operations that are done together or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transaction {
    ops: Vec<Op>,
}

impl Transaction {
    /// An empty transaction; an empty one cannot be committed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    pub fn check(self, key: Key, expect: Expect) -> Self {
        self.with(Op::Check { key, expect })
    }

    /// Adds a write.
    pub fn put(self, key: Key, value: impl Into<Bytes>, expect: Expect) -> Self {
        self.with(Op::Put { key, value: value.into(), expect, lease: None })
    }

    /// Adds a write of a key that dies with `lease`.
    pub fn put_leased(self, key: Key, value: impl Into<Bytes>, expect: Expect, lease: LeaseId) -> Self {
        self.with(Op::Put { key, value: value.into(), expect, lease: Some(lease) })
    }

    /// Adds a removal.
    pub fn delete(self, key: Key, expect: Expect) -> Self {
        self.with(Op::Delete { key, expect })
    }

    /// Adds an operation.
    pub fn with(mut self, op: Op) -> Self {
        self.ops.push(op);
        self
    }

    /// The operations, in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Checks the rules every driver relies on: 1 to [`OPS_MAX`] operations, each key at most once, at most
    /// [`VALUE_BYTES_MAX`] bytes of values.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the rule that is broken.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |fault: String| Err(Error::new(ErrorKind::Invalid, format!("check transaction: {fault}")));
        if self.ops.is_empty() {
            return refuse("it has no operation".into());
        }
        if self.ops.len() > OPS_MAX {
            return refuse(format!("it has {} operations, at most {OPS_MAX} are allowed", self.ops.len()));
        }
        let mut keys = BTreeSet::new();
        let mut value_bytes = 0_usize;
        for op in &self.ops {
            if !keys.insert(op.key()) {
                return refuse(format!("the key {} occurs twice", op.key()));
            }
            if let Op::Put { value, .. } = op {
                value_bytes = value_bytes.saturating_add(value.len());
            }
        }
        if value_bytes > VALUE_BYTES_MAX {
            return refuse(format!("its values are {value_bytes} bytes, at most {VALUE_BYTES_MAX} are allowed"));
        }
        Ok(())
    }
}

/// The result of a transaction that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// For each operation the version its key has now; `None` where the key does not exist now.
    pub versions: Vec<Option<Version>>,
}

impl Committed {
    /// The version a put got.
    ///
    /// # Panics
    /// If operation `op` was not a put: that is a mistake of the caller.
    #[must_use]
    pub fn put_version(&self, op: usize) -> Version {
        self.versions[op].expect("a put that was done has a version")
    }
}
