//! The interface.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;

use crate::{
    CommitError, Committed, Error, Expect, GivenIds, Key, LeaseId, LedgerLayout, Transaction, Version, Versioned,
    WatchStream, counter, layout,
};

/// A store of small versioned values that the nodes of one cluster share.
///
/// # Rules for every implementation
/// - Commits are linearizable: they have one order, and it agrees with real time.
/// - Every call ends: an implementation that talks to a server MUST put a deadline on it, and answer
///   [`crate::ErrorKind::Unavailable`] (reads) or [`CommitError::Unknown`] (writes already sent) when it passes.
/// - [`crate::suite::run`] MUST pass.
///
/// # Cancellation
/// Reads are cancel-safe. Dropping a write's future leaves its outcome unknown.
#[async_trait]
pub trait MetadataStore: Send + Sync + 'static {
    /// Reads a key as a **hint**.
    ///
    /// The answer MUST have been true at some moment, but MAY be old: a cache or a lagging server may give it. It MUST NOT be
    /// used as a proof of absence or of a state, above all not before something is deleted.
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error>;

    /// Reads a key as a **proof**: the answer, absence included, was true at some moment between call and return.
    ///
    /// MUST reflect every commit that was answered done before the call. MUST NOT be answered by a member that may lag behind
    /// the quorum, nor by a store that cannot tell whether an earlier commit was done; an error then, never a guess.
    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error>;

    /// Does a transaction: all conditions are checked against one state, and all operations are done or none.
    ///
    /// - The same key MUST NOT occur twice, and [`Transaction::validate`] MUST be applied before anything is sent.
    /// - A done commit MUST survive the crash of any process, and a later [`MetadataStore::get_quorum`] MUST see it.
    /// - All keys one commit writes get the same version; it MUST be higher than every version any key had before, deleted
    ///   keys included.
    /// - [`CommitError::Conflict`] and [`CommitError::NotDone`] MUST be answered only when nothing was and nothing will be done.
    ///   Whatever is not surely so MUST be [`CommitError::Unknown`]. An implementation MUST NOT retry a commit by itself once it
    ///   may have been received: the retry would meet its own first attempt as a conflict.
    /// - A put that names a lease which is not alive MUST be refused with [`crate::ErrorKind::LeaseGone`].
    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError>;

    /// Lists keys strictly below `prefix` in the order of their bytes, from the first one after `after`.
    ///
    /// Gives at most `limit` (at least 1). A page MAY be shorter for the store's own reasons; only an empty one says that the
    /// end is reached. Over all pages, a key that was there all the time MUST appear exactly once, however many others come and
    /// go; one that came or went meanwhile MAY appear. Freshness is that of [`MetadataStore::get`].
    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error>;

    /// Watches `prefix` itself and every key below it.
    ///
    /// Every change committed after this call returned MUST be told at least once, or the stream MUST say
    /// [`crate::WatchEvent::Lost`] and end. Changes of one key MAY be coalesced into the last; the last state of each key MUST
    /// be told. There is no order between keys. To follow a collection: watch first, then list; after `Lost`, begin again.
    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error>;

    /// Grants a lease that ends when nobody keeps it alive for `ttl`. Keys put under it are removed when it ends: not before
    /// `ttl` has passed since it was last kept alive, and soon after. Leases of an embedded store end with its process.
    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error>;

    /// Begins the lease's time anew.
    ///
    /// MUST answer [`crate::ErrorKind::LeaseGone`] when the lease has ended, even if its keys are not removed yet: the caller has
    /// lost what it held and must stop acting on it.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error>;

    /// Ends a lease now and removes its keys. Ending a lease that is gone is not an error.
    async fn revoke(&self, lease: LeaseId) -> Result<(), Error>;

    /// The layouts of ledgers that a cluster in this store may have; the first is that of a new one. Whatever it is, the keys stay
    /// those of [`crate::layout`]: the store finds the place. A wrapper MUST ask what it wraps.
    fn layouts(&self) -> &[LedgerLayout] {
        &[LedgerLayout::LongHierarchical]
    }

    /// An id for a ledger that no other process gets, whatever client it has; ids may be skipped. A wrapper MUST ask what it
    /// wraps: here it is the next number of a counter, in a store that BookKeeper's clients use it is a number of theirs.
    async fn allocate_ledger_id(&self) -> Result<u64, Error> {
        counter::next(self, &layout::idgen_key()).await
    }

    /// Which ids [`MetadataStore::allocate_ledger_id`] and the like of other clients may have given so far: none outside was. MAY use up
    /// an id to find out. A wrapper MUST ask what it wraps.
    async fn given_ids(&self) -> Result<GivenIds, Error> {
        counter::given(self, &layout::idgen_key()).await
    }

    /// Makes sure that [`MetadataStore::allocate_ledger_id`] gives none of `given`, for ever. May be repeated. A wrapper MUST ask what
    /// it wraps.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Refused`] when ids of this store cannot begin behind them; those of the store.
    async fn skip_ids(&self, given: &GivenIds) -> Result<(), Error> {
        counter::raise(self, &layout::idgen_key(), given.highest().unwrap_or(0)).await
    }

    /// Puts, beside a cluster that is there, what other clients look for to know that one is, where a release before this made it
    /// without. Done whenever a role starts; may be repeated.
    ///
    /// # Errors
    /// Those of the store. The cluster does without.
    async fn mark_cluster(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether BookKeeper's own clients find a bookie by what its registration says, so that a bookie's id may be any name: that of a
    /// ledger's member in the cold tier, for one. Where they do not, they take the id for a host and port. Ours read registrations
    /// everywhere. A wrapper MUST ask what it wraps.
    fn clients_resolve_by_registration(&self) -> bool {
        true
    }

    /// Commits one put that wants the key absent.
    async fn create(&self, key: &Key, value: Bytes) -> Result<Version, CommitError> {
        let done = self.commit(Transaction::new().put(key.clone(), value, Expect::Absent)).await?;
        Ok(done.put_version(0))
    }

    /// Commits one put.
    async fn put_if(&self, key: &Key, value: Bytes, expect: Expect) -> Result<Version, CommitError> {
        let done = self.commit(Transaction::new().put(key.clone(), value, expect)).await?;
        Ok(done.put_version(0))
    }

    /// Commits one removal.
    async fn delete_if(&self, key: &Key, expect: Expect) -> Result<(), CommitError> {
        self.commit(Transaction::new().delete(key.clone(), expect)).await.map(drop)
    }
}

/// All keys below `prefix`, read in pages of `page` as the stream is polled. Ends after the first error.
pub fn scan<'a>(
    store: &'a dyn MetadataStore,
    prefix: &'a Key,
    page: usize,
) -> impl Stream<Item = Result<(Key, Versioned), Error>> + Send + 'a {
    struct State {
        after: Option<Key>,
        ready: std::vec::IntoIter<(Key, Versioned)>,
        ended: bool,
    }
    let state = State { after: None, ready: Vec::new().into_iter(), ended: false };
    futures::stream::unfold(state, move |mut state| async move {
        loop {
            if let Some((key, value)) = state.ready.next() {
                state.after = Some(key.clone());
                return Some((Ok((key, value)), state));
            }
            if state.ended {
                return None;
            }
            match store.list(prefix, state.after.as_ref(), page).await {
                Ok(rows) if rows.is_empty() => return None,
                Ok(rows) => state.ready = rows.into_iter(),
                Err(error) => {
                    state.ended = true;
                    return Some((Err(error), state));
                }
            }
        }
    })
}
