//! The store of a cluster: etcd, version 3.4 or later.
//!
//! Layout: a key is a key of etcd behind the URI's root, see `names` for which; a version is its *mod revision*, a lease is etcd's
//! lease. The layout of the cluster is found by its LAYOUT and INSTANCEID, wherever they are; see [`Shared::layout`].
//! Consistency: a commit is one transaction of etcd. A proof is a linearizable read. A hint may come from a member that lags or is
//! cut off, but never from before what this store has already shown: it remembers the highest revision it has seen and asks for
//! a proof instead when a hint is older. So *watch, then list* misses nothing, whichever members answer.
//! Retries and failures: see `links` (who is asked, and how often) and `fault` (what an error says about a commit).
//! Crash: nothing is kept here. Leases of a process that died end by themselves.

mod fault;
mod ids;
mod links;
mod names;
mod request;
mod sign;
mod target;
mod watching;

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use common::rng::Rng;
use etcd_client::{Error as ClientError, GetOptions, GetResponse, Txn, TxnOp, TxnOpResponse, TxnResponse};
use tokio::time::Instant;

use crate::engine::Page;
use crate::{
    CommitError, Committed, Error, ErrorKind, GivenIds, Key, LeaseId, LedgerLayout, MetadataStore, Op, Transaction,
    Versioned, WatchStream,
};
use fault::{Failure, Verdict};
use links::{From, Links};
use names::{Names, Stretch};
use request::Answer;
pub(crate) use target::{Access, Target};

/// How long [`EtcdStore::open`] waits for a first answer: etcd may be starting as we are.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);
const OPEN_POLL: Duration = Duration::from_millis(100);

/// The longest answer to a listing. Longer ones are not taken in; fewer rows are asked for then.
const LISTING_BYTES_MAX: usize = 8 << 20;
/// The most rows asked for at once.
const LISTING_ROWS_MAX: usize = 4096;
const LISTING_ROWS_BEGIN: usize = 512;

/// A store in etcd.
pub struct EtcdStore {
    shared: Arc<Shared>,
    /// How many rows of a listing fit into an answer, as it went so far.
    listing_rows: AtomicUsize,
}

/// What the store and its watches use together.
struct Shared {
    links: Links,
    names: Names,
    /// The layout that the URI wants.
    wanted: Option<LedgerLayout>,
    /// The cluster's layout once it is known; it never changes.
    layout: OnceLock<LedgerLayout>,
    /// Which of the keys that BookKeeper's driver counts with is next.
    bucket: AtomicU64,
    /// The highest revision that anything told by this store reflects.
    seen: AtomicI64,
    rng: Rng,
}

/// Layouts of a cluster below a root of etcd; the first is that of a new one.
const LAYOUTS: [LedgerLayout; 3] = [LedgerLayout::LongHierarchical, LedgerLayout::Hierarchical, LedgerLayout::Etcd];

impl Shared {
    /// The layout of the cluster: what stands below the root says it, by proof. Without a cluster, what a new one would get.
    async fn layout(&self) -> Result<LedgerLayout, Error> {
        if let Some(known) = self.layout.get() {
            return Ok(*known);
        }
        let signs = self.names.signs();
        let look = |client: etcd_client::Client| {
            let gets: Vec<_> = signs.iter().map(|name| TxnOp::get(name.clone(), None)).collect();
            async move { client.kv_client().txn(Txn::new().and_then(gets)).await }
        };
        let what = "find the layout of the cluster";
        let found = self.links.repeatable(what, From::Led, look).await.map_err(|failure| failure.error)?;
        self.learn(found.header().map_or(0, etcd_client::ResponseHeader::revision));
        let values: Vec<Option<Vec<u8>>> = found
            .op_responses()
            .into_iter()
            .map(|answer| match answer {
                TxnOpResponse::Get(mut got) => got.take_kvs().pop().map(|row| row.into_key_value().1),
                _ => None,
            })
            .collect();
        match sign::read(&values)? {
            Some(found) if found.is_named => {
                sign::check_wanted(found.layout, self.wanted)?;
                Ok(*self.layout.get_or_init(|| found.layout))
            }
            // What is no layout of ours is refused by whoever opens the cluster.
            Some(found) => Ok(found.layout),
            None => sign::new_layout(self.names.root(), self.wanted),
        }
    }

    /// As [`Shared::layout`] where one of the keys depends on it; others have the same name in every layout.
    async fn layout_for(&self, keys: impl IntoIterator<Item = &Key>) -> Result<LedgerLayout, Error> {
        match self.layout.get() {
            Some(known) => Ok(*known),
            None if keys.into_iter().any(names::in_shared_tree) => self.layout().await,
            None => Ok(self.wanted.unwrap_or(LAYOUTS[0])),
        }
    }

    fn learn(&self, revision: i64) {
        self.seen.fetch_max(revision, Ordering::AcqRel);
    }

    /// A transaction, at most once.
    async fn send(&self, txn: &Txn) -> Result<TxnResponse, Failure> {
        let call = |client: etcd_client::Client| {
            let txn = txn.clone();
            async move { client.kv_client().max_decoding_message_size(request::ANSWER_BYTES_MAX).txn(txn).await }
        };
        self.links.once("commit metadata", call).await
    }

    /// A read as a proof.
    async fn prove(&self, what: &str, name: &[u8], options: &GetOptions) -> Result<GetResponse, Failure> {
        let response = self.links.repeatable(what, From::Led, read(name, options)).await?;
        self.learn(revision_of(&response));
        Ok(response)
    }

    /// A read as a hint: of the nearest member if it is not behind what was told already.
    async fn hint(&self, what: &str, name: &[u8], options: &GetOptions) -> Result<GetResponse, Failure> {
        let seen = self.seen.load(Ordering::Acquire);
        let local = options.clone().with_serializable();
        let response = self.links.repeatable(what, From::Any, read(name, &local)).await?;
        if revision_of(&response) < seen {
            return self.prove(what, name, options).await;
        }
        self.learn(revision_of(&response));
        Ok(response)
    }
}

fn revision_of(response: &GetResponse) -> i64 {
    response.header().map_or(0, etcd_client::ResponseHeader::revision)
}

fn read(
    name: &[u8],
    options: &GetOptions,
) -> impl Fn(etcd_client::Client) -> futures::future::BoxFuture<'static, Result<GetResponse, ClientError>> {
    move |client| {
        let (name, options) = (name.to_vec(), options.clone());
        Box::pin(async move {
            let mut rows = client.kv_client().max_decoding_message_size(LISTING_BYTES_MAX);
            rows.get(name, Some(options)).await
        })
    }
}

fn first_row(mut response: GetResponse) -> Option<Versioned> {
    response.take_kvs().into_iter().next().map(request::versioned)
}

impl EtcdStore {
    /// Opens `etcd://host:port,host:port/root`, or `etcds://` for TLS, and waits for a first answer. `etcd+apache://` and the like
    /// name the layout that the cluster must have, or gets when it is new. User, password and certificates come from the environment,
    /// see `docs/operations/etcd.md`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a URI that cannot be read and for credentials that etcd refuses, [`ErrorKind::Unsupported`] for
    /// a cluster with another layout, [`ErrorKind::Refused`] where two clusters lie below one root, [`ErrorKind::Unavailable`] when no
    /// endpoint answered in time.
    pub async fn open(uri: &str) -> Result<Self, Error> {
        Self::open_as(Target::parse(uri)?, Access::from_environment()?).await
    }

    pub(crate) async fn open_as(target: Target, access: Access) -> Result<Self, Error> {
        let (names, wanted) = (Names::new(target.root.clone()), target.layout);
        // Waits between tries need no seed that repeats: a server's time does not either.
        let rng = Rng::from_os();
        let links = Links::new(target, access, rng.fork());
        // As BookKeeper's driver does: processes begin in different places.
        let bucket = AtomicU64::new(rng.next_u64());
        let shared = Shared { links, names, wanted, layout: OnceLock::new(), bucket, seen: AtomicI64::new(0), rng };
        let store = Self { shared: Arc::new(shared), listing_rows: AtomicUsize::new(LISTING_ROWS_BEGIN) };
        store.wait_for_answer().await?;
        store.shared.layout().await?;
        Ok(store)
    }

    async fn wait_for_answer(&self) -> Result<(), Error> {
        let shared = &self.shared;
        let give_up = Instant::now() + OPEN_DEADLINE;
        let (name, options) = (shared.names.probe(), GetOptions::new().with_count_only());
        let mut cause = None;
        // Ends with the first answer or with the time: `prove` alone would not wait for a server that is just starting.
        let asked = tokio::time::timeout_at(give_up, async {
            loop {
                match shared.prove("open metadata", &name, &options).await {
                    Ok(_) => return Ok(()),
                    Err(failure) if !failure.is_passing() => return Err(failure),
                    Err(failure) => {
                        tracing::debug!(error = %failure.error, "etcd does not answer yet");
                        cause.get_or_insert(failure.error);
                        tokio::time::sleep(OPEN_POLL).await;
                    }
                }
            }
        });
        match asked.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(failure)) if !matches!(failure.verdict, Verdict::Denied | Verdict::TokenRefused) => {
                return Err(failure.error);
            }
            Ok(Err(failure)) => {
                let message = "open metadata: etcd refuses this user; check THERMOCLINE_ETCD_USER and _PASSWORD, and that \
                               the user may read and write below the root";
                return Err(Error::new(ErrorKind::Invalid, message).caused_by(failure.error));
            }
            Err(_) => {}
        }
        let message = format!(
            "open metadata: no etcd answers at {} within {} s; check that it runs, that most of its members do, and that this \
             is the port for clients",
            shared.links.endpoints(),
            OPEN_DEADLINE.as_secs(),
        );
        let error = Error::new(ErrorKind::Unavailable, message);
        Err(match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        })
    }
}

impl EtcdStore {
    /// The first rows of a stretch; none when there are none.
    async fn page(
        &self,
        prefix: &Key,
        layout: LedgerLayout,
        mut stretch: Stretch,
        limit: usize,
    ) -> Result<Vec<(Key, Versioned)>, Error> {
        let shared = &self.shared;
        let what = format!("list metadata below {prefix}");
        loop {
            let rows = self.listing_rows.load(Ordering::Relaxed).clamp(1, LISTING_ROWS_MAX);
            let asked = rows.min(limit);
            let options = GetOptions::new()
                .with_range(stretch.span.end.clone())
                .with_limit(i64::try_from(asked).unwrap_or(i64::MAX));
            let mut response = match shared.hint(&what, &stretch.span.from, &options).await {
                Ok(response) => response,
                Err(failure) if failure.verdict == Verdict::TooLong && asked > 1 => {
                    self.listing_rows.store((asked / 4).max(1), Ordering::Relaxed);
                    continue;
                }
                Err(failure) => return Err(failure.error),
            };
            let mut more = response.more();
            let found = response.take_kvs();
            let bytes: usize = found.iter().map(|row| row.key().len() + row.value().len()).sum();
            if found.len() == rows && bytes < LISTING_BYTES_MAX / 4 {
                self.listing_rows.store(rows * 2, Ordering::Relaxed);
            }
            if let Some(last) = found.last() {
                stretch.span.from = [last.key(), b"\0"].concat();
            }
            let mut page = Page::default();
            for row in found {
                if let Some(behind) = shared.names.behind(row.key(), &stretch) {
                    more = behind < stretch.span.end;
                    stretch.span.from = behind;
                    break;
                }
                // Names that are no keys are someone else's.
                let Some(key) = shared.names.key(row.key(), layout) else { continue };
                if !page.push(key, request::versioned(row), limit) {
                    break;
                }
            }
            if !page.rows.is_empty() || !more {
                return Ok(page.rows);
            }
        }
    }
}

#[async_trait]
impl MetadataStore for EtcdStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let shared = &self.shared;
        let name = shared.names.name(key, shared.layout_for([key]).await?)?;
        let response = shared.hint(&format!("get metadata {key}"), &name, &GetOptions::new()).await;
        response.map(first_row).map_err(|failure| failure.error)
    }

    async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let shared = &self.shared;
        let name = shared.names.name(key, shared.layout_for([key]).await?)?;
        let response = shared.prove(&format!("get metadata {key}"), &name, &GetOptions::new()).await;
        response.map(first_row).map_err(|failure| failure.error)
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        transaction.validate().map_err(CommitError::NotDone)?;
        let shared = &self.shared;
        let layout = shared.layout_for(transaction.ops().iter().map(Op::key)).await.map_err(CommitError::NotDone)?;
        let build = |marks| request::build(&shared.names, layout, &transaction, marks).map_err(CommitError::NotDone);
        let mut request = build(true)?;
        let mut sent = shared.send(&request.txn).await;
        // The root and `/ledgers` lie outside of what a user needs otherwise. A denied transaction was surely not done.
        if request.has_marks && sent.as_ref().is_err_and(|failure| failure.verdict == Verdict::Denied) {
            request = build(false)?;
            sent = shared.send(&request.txn).await;
        }
        let response = sent.map_err(Failure::of_commit)?;
        let Some(answer) = Answer::read(&response, &request) else {
            let message = "commit metadata: etcd's answer does not fit the request";
            return Err(CommitError::Unknown(Error::new(ErrorKind::Damaged, message)));
        };
        shared.learn(answer.revision);
        answer.settle(&transaction)
    }

    async fn list(&self, prefix: &Key, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, Versioned)>, Error> {
        if limit == 0 {
            return Err(Error::new(ErrorKind::Invalid, "list keys: the limit is 0"));
        }
        let shared = &self.shared;
        let layout = shared.layout_for([prefix]).await?;
        for stretch in shared.names.below(prefix, after, layout) {
            let rows = self.page(prefix, layout, stretch, limit).await?;
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
        Ok(Vec::new())
    }

    async fn watch(&self, prefix: &Key) -> Result<WatchStream, Error> {
        watching::start(&self.shared, prefix).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, Error> {
        let seconds = names::ttl_seconds(ttl)?;
        // Should an answer be lost, the lease it told of holds nothing and ends by itself.
        let call = |client: etcd_client::Client| async move { client.lease_client().grant(seconds, None).await };
        let granted = self.shared.links.repeatable("grant lease", From::Led, call).await;
        granted.map(|granted| LeaseId::new(granted.id().cast_unsigned())).map_err(|failure| failure.error)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let call = |client: etcd_client::Client| async move {
            match client.lease_client().keep_alive(lease.raw().cast_signed()).await {
                Ok(_) => Ok(true),
                Err(ClientError::LeaseKeepAliveError(reason)) if reason == "lease not found" => Ok(false),
                Err(error) => Err(error),
            }
        };
        match self.shared.links.repeatable("keep lease alive", From::Led, call).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::new(ErrorKind::LeaseGone, format!("use lease {lease}: it has ended"))),
            Err(failure) => Err(failure.error),
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let call =
            |client: etcd_client::Client| async move { client.lease_client().revoke(lease.raw().cast_signed()).await };
        match self.shared.links.repeatable("revoke lease", From::Led, call).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.error.kind() == ErrorKind::LeaseGone => Ok(()),
            Err(failure) => Err(failure.error),
        }
    }

    fn layouts(&self) -> &[LedgerLayout] {
        sign::layouts(self.shared.layout.get().copied().or(self.shared.wanted))
    }

    async fn allocate_ledger_id(&self) -> Result<u64, Error> {
        ids::allocate(&self.shared, self).await
    }

    async fn given_ids(&self) -> Result<GivenIds, Error> {
        ids::given(&self.shared, self).await
    }

    async fn skip_ids(&self, given: &GivenIds) -> Result<(), Error> {
        ids::skip(&self.shared, self, given).await
    }

    async fn mark_cluster(&self) -> Result<(), Error> {
        let shared = &self.shared;
        let layout = shared.layout().await?;
        let marks = shared.names.marks(layout);
        if marks.is_empty() {
            return Ok(());
        }
        let place = shared.names.name(&crate::layout::layout_key(), layout)?;
        let txn = request::mark_all(place, marks);
        shared.send(&txn).await.map(drop).map_err(|failure| failure.error)
    }

    /// BookKeeper's driver looks at the names of registrations only.
    fn clients_resolve_by_registration(&self) -> bool {
        self.layouts()[0] != LedgerLayout::Etcd
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod access_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
