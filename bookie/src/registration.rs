//! Tells the cluster that the bookie is there, where, and whether it takes adds.

use std::time::Duration;

use common::shutdown::TaskTree;
use ledger::{BookieId, LedgerId};
use metadata::{
    BookieInfo, Bookies, Cluster, InstanceId, LeaseId, MetadataStore, Mode, RegisterError, ReleaseRequests,
};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Error;
use crate::store::BookieState;

/// Pause between tries to register.
const RETRY: Duration = Duration::from_millis(250);

pub(crate) struct Registration {
    pub(crate) store: Arc<dyn MetadataStore>,
    /// The cluster the bookie started in: it is shown in no other, that may have been made in its place.
    pub(crate) instance: InstanceId,
    pub(crate) id: BookieId,
    pub(crate) info: BookieInfo,
    pub(crate) ttl: Duration,
    pub(crate) state: watch::Receiver<BookieState>,
    /// What the bookie asks to be released.
    pub(crate) requests: watch::Receiver<Arc<[LedgerId]>>,
}

/// What was asked for last, and under which lease.
type Asked = Option<(LeaseId, Arc<[LedgerId]>)>;

fn mode(state: &BookieState) -> Mode {
    match state {
        BookieState::Writable => Mode::Writable,
        BookieState::ReadOnly { .. } => Mode::ReadOnly,
    }
}

impl Registration {
    /// Registers for the first time. The registration of a process that just died ends by itself, so a taken id is waited for.
    pub(crate) async fn begin(&mut self) -> Result<LeaseId, Error> {
        let patience = self.ttl * 2 + Duration::from_secs(5);
        let deadline = Instant::now() + patience;
        let mut told = false;
        loop {
            let failed = match self.try_begin().await {
                Ok(lease) => return Ok(lease),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                return Err(failed);
            }
            if !std::mem::replace(&mut told, true) {
                let error = &failed as &dyn std::error::Error;
                tracing::info!(
                    bookie = %self.id,
                    error,
                    "not registered yet; the registration of a process that died ends with its lease, waiting up to {patience:?}"
                );
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Asks the store, by proof, whether it still holds the bookie's cluster. [`Error::Identity`]: it surely does not.
    async fn check_cluster(&self) -> Result<(), Error> {
        let found = Cluster::id(&*self.store).await;
        match found.map_err(|error| Error::metadata("look whose cluster metadata holds", error))? {
            Some(found) if found == self.instance => Ok(()),
            found => {
                let found = found.map_or_else(|| "no cluster".to_owned(), |found| format!("cluster {found}"));
                let mine = &self.instance;
                Err(Error::Identity(format!(
                    "metadata holds {found} and not {mine}, to which this bookie belongs; it is registered nowhere else"
                )))
            }
        }
    }

    async fn try_begin(&mut self) -> Result<LeaseId, Error> {
        self.check_cluster().await?;
        let lease = self.store.grant_lease(self.ttl).await;
        let lease = lease.map_err(|error| Error::metadata("take a lease for the registration", error))?;
        match self.register(lease).await {
            Ok(()) => Ok(lease),
            Err(error) => {
                // A lease nobody keeps alive ends by itself, should this fail.
                let _ = self.store.revoke(lease).await;
                Err(match error {
                    RegisterError::Taken { .. } => {
                        Error::Identity(format!("{error}; two bookies must never run with one id"))
                    }
                    other => Error::metadata("register", other),
                })
            }
        }
    }

    async fn register(&mut self, lease: LeaseId) -> Result<(), RegisterError> {
        let mode = mode(&self.state.borrow_and_update());
        Bookies::new(self.store.clone()).register_as(&self.id, &self.info, lease, mode).await.map(|_| ())
    }

    /// [`Registration::check_cluster`] within a part of the lease's life that leaves time for the next beat. An answer that takes longer is
    /// none.
    async fn check_cluster_soon(&self, registered: bool) -> Result<(), Error> {
        // Who is registered asks again with each beat; who is not must get an answer first, and then beats soon.
        let patience = if registered { self.ttl / 6 } else { self.ttl / 2 };
        let asked = tokio::time::timeout(patience, self.check_cluster()).await;
        asked.unwrap_or_else(|_| {
            let late = metadata::Error::new(metadata::ErrorKind::Unavailable, format!("no answer within {patience:?}"));
            Err(Error::metadata("look whose cluster metadata holds", late))
        })
    }

    /// Shows that the bookie lives; registers where that is not so, or where it is not known to be so.
    async fn beat(&mut self, lease: &mut LeaseId, registered: bool) -> Result<(), Error> {
        let kept = self.store.keep_alive(*lease).await;
        if kept.is_ok()
            && let Err(error) = self.check_cluster_soon(registered).await
        {
            if matches!(error, Error::Identity(_)) {
                // Nobody may find it here. Should this fail, the next round ends it, or time does.
                let _ = self.store.revoke(*lease).await;
                return Err(error);
            }
            // Whose cluster it is stays unknown: what stands, stands, and nothing is written.
            return if registered { Ok(()) } else { Err(error) };
        }
        match kept {
            Ok(()) if registered => Ok(()),
            Ok(()) => self.register(*lease).await.map_err(|error| Error::metadata("register", error)),
            Err(error) if error.kind() == metadata::ErrorKind::LeaseGone => {
                *lease = self.try_begin().await?;
                Ok(())
            }
            Err(error) => Err(Error::metadata("keep the registration", error)),
        }
    }

    /// Tells what the bookie asks for now, unless that was told. What cannot be told is tried again with the next beat; requests
    /// are wishes, and the registration waits for none.
    async fn ask(&mut self, lease: LeaseId, asked: &mut Asked) {
        let wanted = self.requests.borrow_and_update().clone();
        let (of, told) = asked.as_ref().map_or((lease, &[][..]), |(of, told)| (*of, &told[..]));
        if told == &wanted[..] && (of == lease || wanted.is_empty()) {
            return;
        }
        let requests = ReleaseRequests::new(self.store.clone());
        match tokio::time::timeout(self.ttl / 6, requests.put(&self.id, &wanted, lease)).await {
            Ok(Ok(())) => *asked = Some((lease, wanted)),
            Ok(Err(error)) => {
                tracing::debug!(bookie = %self.id, error = &error as &dyn std::error::Error, "requests for releases wait");
            }
            Err(_) => tracing::debug!(bookie = %self.id, "requests for releases wait: metadata does not answer"),
        }
    }

    /// Keeps the registration alive and true until the bookie stops. While metadata is away the bookie serves on; the registration
    /// is kept if it comes back within the lease's life, and made anew otherwise.
    pub(crate) async fn run(mut self, mut lease: LeaseId, tasks: TaskTree) {
        let (mut kept, mut told) = (Instant::now(), false);
        let (mut registered, mut pause) = (true, self.ttl / 3);
        let mut asked = Asked::None;
        loop {
            tokio::select! {
                biased;
                () = tasks.stopping() => break,
                changed = self.state.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    registered = false;
                }
                changed = self.requests.changed() => {
                    if changed.is_err() {
                        break;
                    }
                }
                () = tokio::time::sleep(pause) => {}
            }
            let begun = Instant::now();
            match self.beat(&mut lease, registered).await {
                Ok(()) => {
                    if std::mem::take(&mut told) {
                        tracing::info!(bookie = %self.id, "registered again");
                    }
                    (kept, registered, pause) = (begun, true, self.ttl / 3);
                    self.ask(lease, &mut asked).await;
                }
                Err(error) => {
                    (registered, pause) = (false, RETRY);
                    let error = &error as &dyn std::error::Error;
                    // Until then the registration stands.
                    if kept.elapsed() >= self.ttl && !std::mem::replace(&mut told, true) {
                        tracing::warn!(bookie = %self.id, error, "the registration is lost; the bookie serves on and registers again as soon as it can");
                    } else {
                        tracing::debug!(bookie = %self.id, error, "the registration is tried again");
                    }
                }
            }
        }
        if let Err(error) = self.store.revoke(lease).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the registration ends by itself");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use async_trait::async_trait;
    use metadata::{
        CommitError, Committed, ErrorKind, Key, MemoryStore, Transaction, Versioned, WatchEvent, WatchStream,
    };

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    /// Metadata behind a link that can be cut.
    #[derive(Default)]
    struct Link {
        inner: MemoryStore,
        is_cut: AtomicBool,
        /// Seconds that a proof takes.
        slowness: AtomicU64,
    }

    impl Link {
        fn pass(&self) -> Result<(), metadata::Error> {
            match self.is_cut.load(Ordering::SeqCst) {
                true => Err(metadata::Error::new(ErrorKind::Unavailable, "cut")),
                false => Ok(()),
            }
        }
    }

    #[async_trait]
    impl MetadataStore for Link {
        async fn get(&self, key: &Key) -> Result<Option<Versioned>, metadata::Error> {
            self.pass()?;
            self.inner.get(key).await
        }

        async fn get_quorum(&self, key: &Key) -> Result<Option<Versioned>, metadata::Error> {
            self.pass()?;
            tokio::time::sleep(Duration::from_secs(self.slowness.load(Ordering::SeqCst))).await;
            self.inner.get_quorum(key).await
        }

        async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
            self.pass().map_err(CommitError::NotDone)?;
            self.inner.commit(transaction).await
        }

        async fn list(
            &self,
            prefix: &Key,
            after: Option<&Key>,
            limit: usize,
        ) -> Result<Vec<(Key, Versioned)>, metadata::Error> {
            self.pass()?;
            self.inner.list(prefix, after, limit).await
        }

        async fn watch(&self, prefix: &Key) -> Result<WatchStream, metadata::Error> {
            self.inner.watch(prefix).await
        }

        async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, metadata::Error> {
            self.pass()?;
            self.inner.grant_lease(ttl).await
        }

        async fn keep_alive(&self, lease: LeaseId) -> Result<(), metadata::Error> {
            self.pass()?;
            self.inner.keep_alive(lease).await
        }

        async fn revoke(&self, lease: LeaseId) -> Result<(), metadata::Error> {
            self.pass()?;
            self.inner.revoke(lease).await
        }
    }

    struct World {
        link: Arc<Link>,
        changes: WatchStream,
        state: watch::Sender<BookieState>,
        requests: watch::Sender<Arc<[LedgerId]>>,
        tasks: TaskTree,
    }

    impl World {
        async fn start() -> Self {
            let link = Arc::new(Link::default());
            let instance = Cluster::init_or_open(&*link, &common::rng::Rng::seeded(1)).await.unwrap();
            let changes = link.watch(&metadata::layout::available_root()).await.unwrap();
            let (state, receiver) = watch::channel(BookieState::Writable);
            let requests = watch::Sender::<Arc<[LedgerId]>>::default();
            let mut registration = Registration {
                store: link.clone(),
                instance,
                id: BookieId::new("b1:3181").unwrap(),
                info: BookieInfo::at("b1:3181"),
                ttl: TTL,
                state: receiver,
                requests: requests.subscribe(),
            };
            let lease = registration.begin().await.unwrap();
            let tasks = TaskTree::root("test");
            tasks.spawn("registration", registration.run(lease, tasks.clone()));
            let mut world = Self { link, changes, state, requests, tasks };
            assert_eq!(world.next(TTL).await, Some((true, true)));
            world
        }

        fn cut(&self, is_cut: bool) {
            self.link.is_cut.store(is_cut, Ordering::SeqCst);
        }

        /// Waits for the next change: what is registered as writable or as read-only, and whether it is there or gone.
        async fn next(&mut self, within: Duration) -> Option<(bool, bool)> {
            let event = tokio::time::timeout(within, self.changes.next()).await.ok()?;
            let (key, is_there) = match event {
                Some(WatchEvent::Put { key, .. }) => (key, true),
                Some(WatchEvent::Delete { key }) => (key, false),
                other => panic!("{other:?}"),
            };
            let (_, is_writable) = metadata::layout::parse_registration_key(&key).unwrap();
            Some((is_writable, is_there))
        }

        /// For this long the registration stands, although it may be written again.
        async fn stands(&mut self, time: Duration, writable: bool) {
            let end = Instant::now() + time;
            while let Some(change) = self.next(end - Instant::now()).await {
                assert_eq!(change, (writable, true), "nobody sees the outage");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_outage_of_metadata_is_not_seen() {
        let mut world = World::start().await;
        for _ in 0..5 {
            world.cut(true);
            world.stands(TTL / 2, true).await;
            world.cut(false);
            world.stands(TTL * 2, true).await;
        }
        world.tasks.stop(Duration::from_secs(5)).await.unwrap();
        assert_eq!(world.next(TTL).await, Some((true, false)), "an orderly stop gives it back");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_stands_with_the_registration_and_is_told_again_with_a_new_one() {
        let world = World::start().await;
        let listing = ReleaseRequests::new(world.link.clone());
        let listed = async || listing.list().await.unwrap().into_iter().map(LedgerId::get).collect::<Vec<u64>>();
        let ask = |ids: &[u64]| {
            world.requests.send_replace(ids.iter().map(|id| LedgerId::new(*id).unwrap()).collect());
        };
        ask(&[7, 3]);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(listed().await, [3, 7]);
        ask(&[4]);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(listed().await, [4]);
        world.cut(true);
        ask(&[5]);
        tokio::time::sleep(TTL * 3).await;
        world.cut(false);
        assert!(listed().await.is_empty(), "it ended with the lease");
        tokio::time::sleep(TTL).await;
        assert_eq!(listed().await, [5]);
        world.requests.send_replace(Arc::default());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(listed().await.is_empty());
        world.requests.send_replace([LedgerId::new(9).unwrap()].into());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(listed().await, [9]);
        world.tasks.stop(Duration::from_secs(5)).await.unwrap();
        assert!(listed().await.is_empty(), "an orderly stop takes it back");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_proofs_cost_no_registration() {
        let mut world = World::start().await;
        for slowness in [2, 4, 8] {
            world.link.slowness.store(slowness, Ordering::SeqCst);
            world.stands(TTL * 5, true).await;
        }
        // A change is told too, where its proofs fit into the lease's life.
        world.link.slowness.store(2, Ordering::SeqCst);
        world.state.send(BookieState::ReadOnly { reason: "full".to_owned(), for_good: false }).unwrap();
        let mut changes = [world.next(TTL).await, world.next(TTL).await];
        changes.sort();
        assert_eq!(changes, [Some((false, true)), Some((true, false))]);
        world.stands(TTL * 5, false).await;
        world.tasks.stop(Duration::from_secs(5)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_outage_ends_the_lease_and_a_new_one_is_taken() {
        let mut world = World::start().await;
        world.cut(true);
        assert_eq!(world.next(TTL * 2).await, Some((true, false)), "the lease ends");
        assert_eq!(world.next(TTL * 5).await, None);
        world.cut(false);
        assert_eq!(world.next(TTL * 2).await, Some((true, true)), "it is registered again");
        world.stands(TTL * 5, true).await;
        world.tasks.stop(Duration::from_secs(5)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_an_outage_is_told_afterwards() {
        let mut world = World::start().await;
        world.cut(true);
        world.state.send(BookieState::ReadOnly { reason: "full".to_owned(), for_good: false }).unwrap();
        world.stands(TTL / 2, true).await;
        world.cut(false);
        let mut changes = [world.next(TTL).await, world.next(TTL).await];
        changes.sort();
        assert_eq!(changes, [Some((false, true)), Some((true, false))], "one commit takes the one and puts the other");
        world.stands(TTL * 5, false).await;
        world.tasks.stop(Duration::from_secs(5)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_bookie_is_shown_in_its_own_cluster_only() {
        let mut world = World::start().await;
        let key = metadata::layout::instance_key();
        let own = world.link.inner.get_quorum(&key).await.unwrap().unwrap().value;
        world.link.inner.delete_if(&key, metadata::Expect::Present).await.unwrap();
        assert_eq!(world.next(TTL).await, Some((true, false)), "its cluster is gone");
        let other = Cluster::init_or_open(&*world.link, &common::rng::Rng::seeded(2)).await;
        // Without LAYOUT nobody makes one, so another is put there.
        assert!(other.is_err());
        world.link.inner.create(&key, "00000000-0000-4000-8000-000000000000".into()).await.unwrap();
        assert_eq!(world.next(TTL * 10).await, None, "it is not shown in another one");
        world.link.inner.put_if(&key, own, metadata::Expect::Present).await.unwrap();
        assert_eq!(world.next(TTL).await, Some((true, true)), "its own is back");
        world.stands(TTL * 5, true).await;
        world.tasks.stop(Duration::from_secs(5)).await.unwrap();
    }
}
