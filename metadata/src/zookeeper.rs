//! The store of a cluster: ZooKeeper, version 3.6 or later, in the tree that BookKeeper's own clients use.
//!
//! Layout: what BookKeeper knows lies where BookKeeper looks for it, the rest beside it in hash trees; see `names`. A version is the
//! number of the transaction that wrote the value, a lease is a session. Consistency: a commit is one transaction of ZooKeeper,
//! see `commit` and `request`. A proof is a read behind a barrier, a hint a read of whichever member the session is with, but never
//! from before what this store has shown; see `links`.
//! Retries and failures: see `links` (how often a call is repeated) and `fault` (what an error says about a commit).
//! Crash: nothing is kept here. What is held by sessions of a process that died ends with them.

mod commit;
mod fault;
mod ids;
mod leases;
mod links;
mod listing;
mod names;
mod request;
mod target;
mod watching;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use common::rng::Rng;
use tokio::time::Instant;
use zookeeper_client::{Client, Error as ClientError};

use crate::{
    CommitError, Committed, Error, ErrorKind, GivenIds, Key, LeaseId, LedgerLayout, MetadataStore, Transaction,
    Versioned, WatchStream,
};
use leases::Leases;
use links::{Links, barrier};
use names::Names;
pub(crate) use target::Target;

/// How long [`ZooKeeperStore::open`] waits for a first answer: ZooKeeper may be starting as we are.
const OPEN_DEADLINE: Duration = Duration::from_secs(8);
const OPEN_POLL: Duration = Duration::from_millis(100);

/// A store in ZooKeeper.
pub struct ZooKeeperStore {
    shared: Arc<Shared>,
}

/// What the store and its watches use together.
struct Shared {
    links: Links,
    names: Names,
    /// The layout that the URI wants.
    wanted: Option<LedgerLayout>,
    /// The cluster's layout once it is known; it never changes.
    layout: OnceLock<LedgerLayout>,
    leases: Leases,
    scans: listing::Scans,
    rng: Rng,
}

impl Shared {
    /// The layout of the cluster's ledgers: what LAYOUT says, by proof; without one, what a new cluster would get.
    async fn layout(&self) -> Result<LedgerLayout, Error> {
        if let Some(known) = self.layout.get() {
            return Ok(*known);
        }
        let path = self.names.shared("LAYOUT");
        let read = |client: Client| {
            let path = path.clone();
            async move { proof(&client, &path).await }
        };
        let found = self.links.repeatable("read the layout of ledgers", read).await.map_err(|failure| failure.error)?;
        let Some(found) = found else { return Ok(self.layouts()[0]) };
        let unsupported = |why: String| Err(Error::new(ErrorKind::Unsupported, format!("open metadata: {why}")));
        let parsed = LedgerLayout::parse(&found.value).filter(|found| LedgerLayout::IN_ZOOKEEPER.contains(found));
        match (parsed, self.wanted) {
            (None, _) => {
                let text = String::from_utf8_lossy(&found.value).chars().take(200).collect::<String>();
                unsupported(format!("the ledgers are laid out as {text:?}, which this release does not read"))
            }
            (Some(found), Some(wanted)) if found != wanted => unsupported(format!(
                "the URI wants the layout {wanted:?}, the cluster has {found:?}; leave it out of the URI"
            )),
            (Some(found), _) => Ok(*self.layout.get_or_init(|| found)),
        }
    }

    /// As [`Shared::layout`] where one of the keys depends on it; keys of ours do not.
    async fn layout_for(&self, keys: impl IntoIterator<Item = &Key>) -> Result<LedgerLayout, Error> {
        let depends = keys.into_iter().any(names::in_shared_tree);
        if depends { self.layout().await } else { Ok(self.layouts()[0]) }
    }

    fn layouts(&self) -> &'static [LedgerLayout] {
        match self.wanted {
            // What a URI cannot want is nothing of ZooKeeper's.
            None | Some(LedgerLayout::Etcd) => &LedgerLayout::IN_ZOOKEEPER,
            Some(LedgerLayout::Hierarchical) => &[LedgerLayout::Hierarchical],
            Some(LedgerLayout::LegacyHierarchical) => &[LedgerLayout::LegacyHierarchical],
            Some(LedgerLayout::LongHierarchical) => &[LedgerLayout::LongHierarchical],
            Some(LedgerLayout::Flat) => &[LedgerLayout::Flat],
        }
    }

    /// A short wait before a commit is tried again that met another one.
    fn pause(&self) -> Duration {
        Duration::from_micros(self.rng.below(5000))
    }
}

/// Reads a znode behind a barrier. Both requests are under way at once: a session's requests are carried out in order.
async fn proof(client: &Client, path: &str) -> Result<Option<Versioned>, ClientError> {
    let (behind, read) = (barrier(client), client.get_data(path));
    let (behind, read) = futures::join!(behind, read);
    behind?;
    match read {
        Ok((value, stat)) => Ok(Some(commit::versioned(value, &stat))),
        Err(ClientError::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

impl ZooKeeperStore {
    /// Opens `zk://host:port,host:port/root` and waits for a first answer. `zk+hierarchical://` and the like name the layout of
    /// ledgers that the cluster must have, or gets when it is new.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a URI that cannot be read, [`ErrorKind::Unsupported`] for a cluster with another layout,
    /// [`ErrorKind::Unavailable`] when no member answered in time.
    pub async fn open(uri: &str) -> Result<Self, Error> {
        let target = Target::parse(uri)?;
        // Waits between tries need no seed that repeats: a server's time does not either.
        let rng = Rng::from_os();
        let shared = Shared {
            names: Names::new(&target.root),
            wanted: target.layout,
            layout: OnceLock::new(),
            links: Links::new(target, rng.fork()),
            leases: Leases::default(),
            scans: listing::Scans::default(),
            rng,
        };
        let store = Self { shared: Arc::new(shared) };
        store.wait_for_answer().await?;
        store.shared.layout().await?;
        Ok(store)
    }

    async fn wait_for_answer(&self) -> Result<(), Error> {
        let links = &self.shared.links;
        let mut cause = None;
        let asked = tokio::time::timeout(OPEN_DEADLINE, async {
            while let Err(failure) = links.session().await {
                tracing::debug!(error = %failure.error, "ZooKeeper does not answer yet");
                cause.get_or_insert(failure.error);
                tokio::time::sleep(OPEN_POLL).await;
            }
        });
        if asked.await.is_ok() {
            return Ok(());
        }
        let message = format!(
            "open metadata: no ZooKeeper answers at {} within {} s; check that it runs, that most of its members do, and that \
             this is the port for clients",
            links.endpoints(),
            OPEN_DEADLINE.as_secs(),
        );
        let error = Error::new(ErrorKind::Unavailable, message);
        Err(match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        })
    }
}

#[async_trait]
impl MetadataStore for ZooKeeperStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let shared = &self.shared;
        let place = shared.names.place(key, shared.layout_for([key]).await?)?;
        let read = |client: Client| {
            let place = &place;
            async move { listing::read_value(&client, place).await }
        };
        shared.links.repeatable(&format!("get metadata {key}"), read).await.map_err(|failure| failure.error)
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let shared = &self.shared;
        let place = shared.names.place(key, shared.layout_for([key]).await?)?;
        let read = |client: Client| {
            let place = &place;
            async move {
                match (proof(&client, place.path()).await?, place.other()) {
                    (None, Some(other)) => proof(&client, other).await,
                    (found, _) => Ok(found),
                }
            }
        };
        shared.links.repeatable(&format!("get metadata {key}"), read).await.map_err(|failure| failure.error)
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        commit::make_collections(&self.shared, &transaction).await?;
        commit::commit(&self.shared, &transaction).await
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        if limit == 0 {
            return Err(Error::new(ErrorKind::Invalid, "list keys: the limit is 0"));
        }
        listing::page(&self.shared, prefix, after, limit).await
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        watching::start(&self.shared, prefix).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        let began = Instant::now();
        loop {
            match self.shared.links.connect(ttl).await {
                Ok(client) => return self.shared.leases.grant(client, ttl),
                Err(failure) if began.elapsed() > links::PATIENCE => return Err(failure.error),
                Err(_) => tokio::time::sleep(OPEN_POLL).await,
            }
        }
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let kept = self.shared.leases.keep_alive(lease).await;
        if kept.is_err() {
            self.shared.links.shown_elsewhere();
        }
        kept
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let ended = self.shared.leases.revoke(lease).await;
        self.shared.links.shown_elsewhere();
        ended
    }

    fn layouts(&self) -> &[LedgerLayout] {
        self.shared.layouts()
    }

    async fn allocate_ledger_id(&self) -> Result<u64, Error> {
        ids::allocate(&self.shared).await
    }

    /// Numbers of sequential znodes only go up, and long ids are higher than short ones: the next one is higher than all.
    async fn given_ids(&self) -> Result<GivenIds, Error> {
        Ok(GivenIds::up_to(ids::behind_given(&self.shared).await?))
    }

    async fn skip_ids(&self, given: &GivenIds) -> Result<(), Error> {
        match given.highest() {
            Some(highest) => ids::skip(&self.shared, highest).await,
            None => Ok(()),
        }
    }
}
