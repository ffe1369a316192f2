//! Settles *unknown* by reading back, for writes whose result can be recognised.
//!
//! A write that may have been done may also still be under way. So a state that still allows it proves nothing by itself; but
//! then the same write may be sent again under the same condition: at most one of the two can be done, and if it was the
//! first, the second meets the writer's own value.

use bytes::Bytes;

use crate::{CommitError, Error, Expect, Key, MetadataStore, Transaction, Version, Versioned, WriteError};

/// How often an unknown outcome is followed by another try.
const TRIES_MAX: usize = 4;

/// Puts `value` where `expect` holds. `ours` recognises the written value. `expect` must exclude the state afterwards, that is
/// be `Absent` or `At`.
pub(crate) async fn put(
    store: &dyn MetadataStore,
    key: &Key,
    value: &Bytes,
    expect: Expect,
    ours: impl Fn(&Versioned) -> bool + Send,
) -> Result<Version, WriteError<Option<Versioned>>> {
    put_fenced(store, key, value, expect, None, ours).await
}

/// As [`put`], under the condition that the key of the fence still has its version. A conflict with the fence has what was found
/// at *its* key.
pub(crate) async fn put_fenced(
    store: &dyn MetadataStore,
    key: &Key,
    value: &Bytes,
    expect: Expect,
    fence: Option<&(Key, Version)>,
    ours: impl Fn(&Versioned) -> bool + Send,
) -> Result<Version, WriteError<Option<Versioned>>> {
    let transaction = Transaction::new().put(key.clone(), value.clone(), expect);
    let transaction = match fence {
        Some((key, version)) => transaction.check(key.clone(), Expect::At(*version)),
        None => transaction,
    };
    let mut unsure: Option<Error> = None;
    for _ in 0..TRIES_MAX {
        match (store.commit(transaction.clone()).await, unsure.is_some()) {
            (Ok(done), _) => return Ok(done.put_version(0)),
            (Err(CommitError::NotDone(error)), false) => return Err(WriteError::NotDone(error)),
            (Err(CommitError::Conflict { found, .. }), false) => return Err(WriteError::Conflict(found)),
            // Only this try surely failed: what became of the one before is still to be settled.
            (Err(CommitError::NotDone(_) | CommitError::Conflict { .. }), true) => {}
            (Err(CommitError::Unknown(error)), _) => {
                unsure.get_or_insert(error);
            }
        }
        match store.get_quorum(key).await {
            Ok(Some(found)) if ours(&found) => return Ok(found.version),
            Ok(found) if expect.allows(found.as_ref().map(|found| found.version)) => {}
            // Someone else's value is there: after ours, or instead of it. An error: we cannot know.
            Ok(_) | Err(_) => break,
        }
    }
    Err(WriteError::Unknown(unsure.expect("the loop goes on only after an unknown outcome")))
}

/// Removes a key that is never created again once removed. Absence is success.
pub(crate) async fn delete(
    store: &dyn MetadataStore,
    key: &Key,
    expect: Expect,
) -> Result<(), WriteError<Option<Versioned>>> {
    let mut unsure: Option<Error> = None;
    for _ in 0..TRIES_MAX {
        let refused = match store.delete_if(key, expect).await {
            Ok(()) => return Ok(()),
            Err(CommitError::NotDone(error)) if unsure.is_none() => return Err(WriteError::NotDone(error)),
            Err(CommitError::NotDone(_)) => false,
            Err(CommitError::Conflict { .. }) => true,
            Err(CommitError::Unknown(error)) => {
                unsure.get_or_insert(error);
                false
            }
        };
        match store.get_quorum(key).await {
            Ok(None) => return Ok(()),
            Ok(Some(found)) if !expect.allows(Some(found.version)) => return Err(WriteError::Conflict(Some(found))),
            // The state allows it again, or for the first time since it was refused.
            Ok(Some(_)) => {}
            Err(error) if refused && unsure.is_none() => return Err(WriteError::NotDone(error)),
            Err(_) => break,
        }
    }
    match unsure {
        Some(error) => Err(WriteError::Unknown(error)),
        None => Err(WriteError::Conflict(None)),
    }
}
