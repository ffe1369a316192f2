use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::budget::ByteBudget;
use common::clock::Clock;
use common::metrics::Set;
use common::net::{Connector, Listener, Offer};
use common::rng::Rng;
use common::shutdown::{StopError, TaskTree};
use ledger::BookieId;
use metadata::{BookieInfo, Cookies, InstanceId, MetadataStore};
use tokio::sync::{mpsc, watch};

use crate::collector::{CollectReport, Collector, remove_marked};
use crate::config::BookieConfig;
use crate::disk::Disk;
use crate::error::Error;
use crate::format::SegmentId;
use crate::held;
use crate::identity::{self, Directories};
use crate::index::{Index, RocksIndex, rows};
use crate::journal::{JournalWriter, Replayed, SEAL_QUEUE, SealJob, Sealer, SegmentMaker, begins_with_a_group, replay};
use crate::limbo::{Integrity, Limbo, Mark};
use crate::metrics::Metrics;
use crate::rebuild::remove_leftovers;
use crate::registration::Registration;
use crate::relay::{Relay, RelayParts};
use crate::server::{Server, accept};
use crate::stall::{Stall, StallCause, Stalls, Watcher};
use crate::store::{BookieState, OpenSegment, Store, Tombstones};

/// How often a read-only bookie looks whether there is space again.
const SPACE_CHECK: Duration = Duration::from_secs(1);

/// How often it is looked for an administrator's word.
const HOLD_CHECK: Duration = Duration::from_secs(1);

/// How often it is looked at what stalls.
const STALL_CHECK: Duration = Duration::from_millis(500);

/// What a bookie is given.
pub struct BookieParts {
    /// Its id, for life.
    pub id: BookieId,
    /// Its directory, which is its own.
    pub dir: PathBuf,
    /// The way to files.
    pub disk: Arc<dyn Disk>,
    /// The metadata of the cluster.
    pub metadata: Arc<dyn MetadataStore>,
    /// The way to other bookies.
    pub connector: Arc<dyn Connector>,
    /// Where connections come from; its address is registered, and what it offers.
    pub listener: Box<dyn Listener>,
    /// Wall time.
    pub clock: Clock,
    /// Randomness.
    pub rng: Rng,
    /// The memory that requests and replies share with the rest of the process.
    pub budget: ByteBudget,
    /// Where its tasks live.
    pub tasks: TaskTree,
}

/// What a bookie holds and does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookieStats {
    /// Journal segments, sealed or not, without spare ones.
    pub segments: u64,
    /// Segments reserved in advance.
    pub spare_segments: u64,
    /// Bytes that segments occupy or reserve.
    pub allocated_bytes: u64,
    /// Entries in all segments; one that was added again later counts once a segment.
    pub entries: u64,
    /// Ledgers with something stored; approximate while segments are being sealed.
    pub ledgers: u64,
    /// Ledgers that were dropped.
    pub tombstones: u64,
    /// Ledgers of which entries may be missing after a stop without order, as far as they are known.
    pub limbo: u64,
    /// Whether adds are taken.
    pub state: BookieState,
}

/// A running storage node.
pub struct Bookie {
    id: BookieId,
    dir: PathBuf,
    address: String,
    store: Arc<Store>,
    collector: Arc<Collector>,
    maker: Arc<SegmentMaker>,
    tasks: TaskTree,
}

impl Bookie {
    /// Checks the directory, reads back what is stored, then serves and registers. The index is RocksDB in `dir/index`.
    ///
    /// # Errors
    /// A sentence that says what does not fit; nothing is served or registered then, and nothing was removed or cut.
    pub async fn start(config: BookieConfig, parts: BookieParts) -> Result<Self, Error> {
        let root = parts.dir.clone();
        let open = async || Ok(Arc::new(RocksIndex::open(&root.join("index")).await?) as Arc<dyn Index>);
        // On the heap: all of the store is made in there.
        Box::pin(Self::start_inner(config, parts, open, async || remove_leftovers(&root).await)).await
    }

    /// As [`Bookie::start`], with another index.
    ///
    /// # Errors
    /// As [`Bookie::start`].
    pub async fn start_with_index(
        config: BookieConfig,
        parts: BookieParts,
        index: Arc<dyn Index>,
    ) -> Result<Self, Error> {
        Box::pin(Self::start_inner(config, parts, async || Ok(index), async || Ok(()))).await
    }

    /// As [`Bookie::start`], with an index that is opened when the directory is known to be the bookie's. `tidy` removes what is older than
    /// the index, once that is known to be whole and before anything is served.
    pub(crate) async fn start_inner(
        config: BookieConfig,
        parts: BookieParts,
        open_index: impl AsyncFnOnce() -> Result<Arc<dyn Index>, Error>,
        tidy: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Self, Error> {
        config.validate()?;
        let BookieParts { id, dir, disk, metadata, connector, listener, clock, rng, budget, tasks } = parts;
        let (dirs, cookies) = (Directories::of(&dir), Cookies::new(metadata.clone()));
        let identity = identity::check(&*disk, &dirs, &*metadata, &cookies, &id, &rng).await?;
        identity.intend(&*disk, &dirs).await?;
        let index = open_index().await?;
        identity.confirm(&*disk, &dirs, &cookies, &*index).await?;

        let (mark, unproven) = Mark::look(disk.clone(), dirs.root.clone(), config.sync).await?;
        let mark = Arc::new(mark);
        let tombstones = Tombstones::load(&*index).await?;
        let limbo = Limbo::new(unproven);
        let tasks = tasks.child("bookie");
        let loads = tasks.child("loads");
        let store = Arc::new(Store::new(config, dirs.journal, disk, index, clock, (tombstones, limbo), &loads));
        if unproven {
            store.condition.enter_limbo(
                "entries may be missing here, since a run that did not sync did not stop in order or the index was rebuilt (UNPROVEN in \
                 its directory): which ledgers that concerns is not known yet"
                    .to_owned(),
            );
        }
        store.condition.hold(held::reason(&*store.disk, &dirs.root).await?);
        let restored = restore(&store).await?;
        tidy().await?;
        let maker = Arc::new(SegmentMaker::new(store.clone(), rng, restored.next));
        let (seal, jobs) = mpsc::channel(SEAL_QUEUE);
        let mut writer = JournalWriter::new(store.clone(), maker.clone(), seal, restored.last_sequence);
        writer.open_first().await?;
        mark.put().await?;
        let Restored { last_sequence, entries, next, .. } = restored;
        tracing::info!(bookie = %id, last_sequence, entries, %next, unsealed = restored.unsealed.len(), "journal open");

        let (address, offer) = (listener.address(), listener.offer());
        let instance = identity.instance().clone();
        let connections = tasks.child("server");
        let parts = RelayParts {
            store: store.clone(),
            metadata: metadata.clone(),
            instance: instance.clone(),
            me: id.clone(),
            address: address.clone(),
            connector,
            budget: budget.clone(),
            tasks: connections.clone(),
        };
        let integrity =
            unproven.then(|| Integrity::new(&RelayParts { tasks: tasks.clone(), ..parts.clone() }, mark.clone()));
        let relay = Relay::new(parts);
        let server = Arc::new(Server::new(store.clone(), relay, &budget, connections));
        let collector = Collector::new(store.clone(), metadata.clone(), instance.clone(), id.clone(), tasks.clone());
        let collector = Arc::new(collector);
        let bookie = Self { id, dir: dirs.root, address, store, collector, maker, tasks };
        bookie.serve((writer, mark), (jobs, restored.unsealed), server, listener);
        match bookie.register(metadata, instance, offer).await {
            Ok(()) => {
                if let Some(integrity) = integrity {
                    let stopping = bookie.tasks.clone();
                    bookie.tasks.spawn("integrity", async move {
                        // What is cut off is done over by the next start.
                        stopping.token().run_until_cancelled(integrity.run()).await;
                    });
                }
                Ok(bookie)
            }
            Err(error) => {
                // The cause is told; what still runs ends with the deadline.
                let _ = bookie.stop(Duration::from_secs(5)).await;
                Err(error)
            }
        }
    }

    fn serve(
        &self,
        (writer, mark): (JournalWriter, Arc<Mark>),
        (jobs, replayed): (mpsc::Receiver<SealJob>, Vec<Arc<OpenSegment>>),
        server: Arc<Server>,
        listener: Box<dyn Listener>,
    ) {
        let (store, maker) = (self.store.clone(), self.maker.clone());
        let connections = server.tasks.clone();
        let written = store.clone();
        self.tasks.spawn_critical("journal", async move {
            writer.run().await?;
            mark.end(&written).await;
            Ok::<(), Error>(())
        });
        self.tasks.spawn_critical(
            "sealer",
            Sealer { store: store.clone(), maker: maker.clone(), jobs, replayed, ended: false }.run(),
        );
        connections.spawn_critical("accept", accept(server, listener));
        let tasks = self.tasks.clone();
        self.tasks.spawn("drain", async move {
            tasks.stopping().await;
            // Connections answer what they have taken in, which the journal must still write; then it may end.
            let patience = store.config.write_timeout.duration();
            if let Err(late) = connections.stop(patience).await {
                tracing::warn!(%late, "connections are cut off");
            }
            store.queue.close();
        });
        self.tasks.spawn("collector", collect_often(self.store.clone(), self.collector.clone(), self.tasks.clone()));
        self.tasks.spawn("space", watch_space(self.store.clone(), maker, self.tasks.clone()));
        self.tasks.spawn("held", watch_hold(self.store.clone(), self.dir.clone(), self.tasks.clone()));
        self.tasks.spawn("stalls", watch_stalls(self.store.clone(), self.tasks.clone()));
    }

    async fn register(
        &self,
        metadata: Arc<dyn MetadataStore>,
        instance: InstanceId,
        offer: Offer,
    ) -> Result<(), Error> {
        let mut registration = Registration {
            store: metadata,
            instance,
            id: self.id.clone(),
            info: BookieInfo { address: self.address.clone(), offer, relays: self.store.config.relay_concurrency > 0 },
            ttl: self.store.config.registration_ttl.duration(),
            state: self.store.condition.watch(),
            requests: self.store.release_requests.subscribe(),
        };
        let lease = registration.begin().await?;
        self.tasks.spawn("registration", registration.run(lease, self.tasks.clone()));
        Ok(())
    }

    /// Its id.
    pub fn id(&self) -> &BookieId {
        &self.id
    }

    /// Where it listens, as registered.
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Its metrics, labelled with its id. They keep nothing of the bookie alive.
    pub fn metrics(&self) -> Set {
        Metrics::shown(&self.store).with_label("bookie", self.id.as_str())
    }

    /// Ledgers whose drop was held back by a lock, and by a mark.
    #[cfg(test)]
    pub(crate) fn held_back(&self) -> (u64, u64) {
        self.store.metrics.held_back()
    }

    /// Its state, now and whenever it changes. Keeps nothing of the bookie alive.
    pub fn watch_state(&self) -> watch::Receiver<BookieState> {
        self.store.condition.watch()
    }

    /// What it waits for longer than it should, whenever that is asked. Keeps nothing of the bookie alive.
    pub fn stalls(&self) -> Stalls {
        self.store.stalls.clone()
    }

    /// What it holds now.
    pub fn stats(&self) -> BookieStats {
        let store = &self.store;
        BookieStats {
            segments: store.sealed.count().0 + store.unsealed().len() as u64,
            spare_segments: store.spare_segments.load(Ordering::Relaxed),
            allocated_bytes: store.allocated_bytes.load(Ordering::Relaxed),
            entries: store.entries(),
            ledgers: store.ledgers(),
            tombstones: store.tombstones.count(),
            limbo: store.limbo.count(),
            state: store.condition.state(),
        }
    }

    #[cfg(test)]
    pub(crate) fn waiting_polls(&self) -> u64 {
        self.store.metrics.long_polls.get()
    }

    #[cfg(test)]
    pub(crate) fn sealed_segments(&self) -> u64 {
        self.store.sealed.count().0
    }

    /// Runs the collector now. Not cancel-safe, but a run that stops anywhere is completed by the next.
    ///
    /// # Errors
    /// When the disk or the index failed. Metadata that gives no answer is not an error: its ledgers are kept.
    pub async fn collect_now(&self) -> Result<CollectReport, Error> {
        let report = self.collector.run().await;
        look_for_space(&self.store, &self.maker).await;
        report
    }

    /// Stops: takes nothing new, answers what was taken in, writes what is queued, gives its registration back.
    ///
    /// # Errors
    /// Names the tasks that did not end by the deadline.
    pub async fn stop(self, deadline: Duration) -> Result<(), StopError> {
        self.tasks.stop(deadline).await
    }
}

/// What start found.
struct Restored {
    /// Of the last valid group.
    last_sequence: u64,
    /// Entries that were read again.
    entries: u64,
    /// Segments that wait for space in the index.
    unsealed: Vec<Arc<OpenSegment>>,
    /// Above every segment id ever used.
    next: SegmentId,
}

/// Brings store, index and directory together.
async fn restore(store: &Store) -> Result<Restored, Error> {
    let (index, dir) = (&*store.index, &store.journal_dir);
    let opened = rows::opened(index).await?;
    let (sealed_through, last_sequence) = rows::sealed(index).await?;
    let mut known = BTreeMap::new();
    for row in rows::segments(index).await? {
        store.allocated_bytes.fetch_add(row.file_bytes, Ordering::Relaxed);
        if row.dropping {
            remove_marked(store, &row).await?;
        } else {
            known.insert(row.id, row);
        }
    }
    let names = store.disk.list(dir).await.map_err(Error::disk("list", dir))?;
    let present: BTreeSet<SegmentId> = names.iter().filter_map(|name| SegmentId::from_file_name(name)).collect();
    let unsealed: Vec<SegmentId> = (sealed_through.next().get()..=opened.get()).map(SegmentId::new).collect();
    if let Some(missing) = known.keys().chain(&unsealed).find(|id| !present.contains(id)) {
        let path = dir.join(missing.file_name());
        let what = "the segment file is missing; bring it back, or remove this bookie from the cluster";
        return Err(Error::damaged(&path, 0, what));
    }
    store.set_sealed_through(sealed_through);
    for row in known.into_values() {
        store.sealed.insert(row);
    }
    store.indexed_ledgers.store(rows::count_ledgers(index).await?, Ordering::Relaxed);
    let Replayed { last_sequence, entries, unsealed } = replay(store, &unsealed, last_sequence).await?;
    for spare in present.iter().filter(|id| **id > opened) {
        // Never opened for writing: that would stand in the index, synced before the first write.
        let path = dir.join(spare.file_name());
        if begins_with_a_group(store, *spare).await? {
            let what = "the index is older than this segment: make it anew with `thermocline bookie rebuild-index`";
            return Err(Error::damaged(&path, 0, what));
        }
        store.disk.remove(&path).await.map_err(Error::disk("remove", &path))?;
    }
    store.disk.sync_dir(dir).await.map_err(Error::disk("sync", dir))?;
    // The ids between sealed and opened have no gap: a missing one would be told from a lost file by nothing.
    Ok(Restored { last_sequence, entries, unsealed, next: opened.max(sealed_through).next() })
}

async fn collect_often(store: Arc<Store>, collector: Arc<Collector>, tasks: TaskTree) {
    loop {
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(store.config.collect_interval.duration()) => {}
        }
        match collector.run().await {
            Ok(_) => {}
            Err(error) if error.is_index_full() => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the collector waits for space");
            }
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "collector"),
        }
    }
}

/// Ends read-only by itself once there is space.
async fn watch_space(store: Arc<Store>, maker: Arc<SegmentMaker>, tasks: TaskTree) {
    loop {
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(SPACE_CHECK) => look_for_space(&store, &maker).await,
        }
    }
}

/// Looks whether an administrator wants the bookie read-only.
async fn watch_hold(store: Arc<Store>, dir: PathBuf, tasks: TaskTree) {
    loop {
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(HOLD_CHECK) => {}
        }
        match held::reason(&*store.disk, &dir).await {
            Ok(reason) => store.condition.hold(reason),
            // What stood last stands.
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the administrator's word is unknown")
            }
        }
    }
}

/// Tells the log what stalls, and turns the bookie read-only while its journal does.
async fn watch_stalls(store: Arc<Store>, tasks: TaskTree) {
    let mut watcher = Watcher::default();
    loop {
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(STALL_CHECK) => {}
        }
        if watcher.stood_still(store.clock.now()) {
            store.stalls.begin_anew();
        }
        let stalls = store.stalls.now();
        let verdict = watcher.look(&stalls, store.clock.now());
        if verdict.tell {
            let why: Vec<String> = stalls.iter().map(Stall::to_string).collect();
            tracing::warn!(why = why.join("; "), "the bookie is stalled");
        }
        if verdict.over {
            tracing::info!("the bookie is not stalled any more");
        }
        let reason = || format!("{} does not answer", StallCause::Journal);
        store.condition.journal_stalls(verdict.journal_stalls.then(reason));
    }
}

async fn look_for_space(store: &Store, maker: &SegmentMaker) {
    // Without an answer the last one stays.
    if let Ok(free) = store.disk.free_bytes(&store.journal_dir).await {
        store.metrics.disk_free(free);
    }
    if !store.condition.lacks_space() {
        return;
    }
    if maker.has_priority_space().await {
        store.condition.take_priority();
    }
    // A full segment that waits for the index is tried again by the sealer: real rows, and more of them than a probe.
    if *store.seal_waits.borrow() || !store.index_takes_writes().await {
        return;
    }
    // Not for one more segment only, which would be full at once and refuse again.
    if !maker.has_room_to_go_on().await {
        return;
    }
    // A segment in hand is the proof that adds can be taken.
    if maker.prepare_spare().await.is_ok() {
        store.condition.writable_again();
    }
}
