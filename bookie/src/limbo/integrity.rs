//! Finds out what was lost, and brings it back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use ledger::{BookieId, EntryId, LedgerId, LedgerMetadata, MasterKey};
use metadata::{Cluster, InstanceId, Ledgers, MetadataStore};
use proto::Status;
use roaring::RoaringTreemap;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::Mark;
use crate::error::Error;
use crate::index::rows::LedgerSet;
use crate::journal::{Completion, describe};
use crate::ledger_state::Tombstone;
use crate::relay::decide::ClosedLedger;
use crate::relay::{Copies, RelayParts};
use crate::store::{Add, BookieState, LedgerSlot, Store};

/// Ledgers that metadata lists at a time.
const PAGE: usize = 1000;
/// Fences that wait for the journal at the same time.
const FENCES: usize = 256;
/// Copies that are asked for at the same time.
const COPIES: usize = 16;
/// The first pause before metadata is asked again that gave no list; each is twice the one before.
const LIST_AGAIN: Duration = Duration::from_secs(1);
/// The pause before the ledgers that are left in limbo are looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// The longest that one look at metadata may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Entries that are compared before other tasks get their turn.
const STRIDE: u64 = 4096;
/// Missing entries of a ledger that are kept in memory.
const MISSING: usize = 4096;

/// See [`super::Limbo`].
pub(crate) struct Integrity {
    store: Arc<Store>,
    metadata: Arc<dyn MetadataStore>,
    ledgers: Ledgers,
    instance: InstanceId,
    me: BookieId,
    copies: Copies,
    mark: Arc<Mark>,
}

/// What became of a ledger in limbo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// All is here that should be, or nothing should be.
    Proven,
    /// It is not closed, or lives elsewhere and is still to be dropped: time will tell.
    Waits,
}

/// What one look at all ledgers in limbo came to.
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    proven: u64,
    waiting: u64,
    failed: u64,
    entries: u64,
}

impl Integrity {
    pub(crate) fn new(parts: &RelayParts, mark: Arc<Mark>) -> Self {
        Self {
            store: parts.store.clone(),
            metadata: parts.metadata.clone(),
            ledgers: Ledgers::new(parts.metadata.clone()),
            instance: parts.instance.clone(),
            me: parts.me.clone(),
            copies: Copies::new(parts),
            mark,
        }
    }

    /// Works until no ledger is in limbo. To be begun after the registration of this run: whoever lists in the session that has
    /// committed it sees no older state. May be dropped at any point; the next start does it over.
    pub(crate) async fn run(self) {
        let mut pause = LIST_AGAIN;
        while self.store.limbo.is_everything() {
            match self.list().await {
                Ok(ledgers) => {
                    tracing::info!(ledgers = ledgers.len(), "ledgers in limbo: what may be lost of them is looked for");
                    self.store.limbo.narrow(ledgers);
                    self.store.condition.limbo_is_listed();
                }
                Err(error) => {
                    let why = describe(&error);
                    tracing::warn!(why, "the bookie stays read-only: which ledgers it may have lost is not known yet");
                    if self.store.condition.failure().is_some() {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LOOK_AGAIN);
                }
            }
        }
        // What is fetched must be stored. Without space it is tried all the same: it may come meanwhile.
        let mut state = self.store.condition.watch();
        let _ = tokio::time::timeout(LOOK_AGAIN, state.wait_for(|state| *state == BookieState::Writable)).await;
        let mut told = None;
        while !self.store.limbo.is_empty() {
            // Nothing can be stored any more; the next start goes on.
            if self.store.condition.failure().is_some() {
                return;
            }
            let report = self.look().await;
            let state = (report.waiting, report.failed);
            // Ledgers may stay open for days.
            if report.proven + report.entries > 0 || told.replace(state) != Some(state) {
                tracing::info!(?report, "ledgers in limbo were looked at");
            }
            if !self.store.limbo.is_empty() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        // A segment with holes that is not sealed yet would be taken for a damaged one without the mark.
        let _ = self.store.seal_waits.subscribe().wait_for(|waits| !*waits).await;
        match self.mark.proven().await {
            Ok(()) => tracing::info!("nothing is missing: no ledger is in limbo any more"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "nothing is missing, and the next start will look again");
            }
        }
    }

    /// The ledgers that name this bookie, fenced for good.
    async fn list(&self) -> Result<LedgerSet, Error> {
        let (mut named, mut elsewhere, mut after) = (LedgerSet::default(), Vec::new(), None);
        loop {
            let page = tokio::time::timeout(PATIENCE, self.ledgers.list_each(after, PAGE)).await;
            let page =
                page.unwrap_or_else(|_| Err(late())).map_err(|error| Error::metadata("list the ledgers", error))?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            for (ledger, record) in &page {
                if is_dropped(self.store.tombstones.of(*ledger)) {
                    continue;
                }
                match record {
                    Ok(record) if !names(&record.metadata, &self.me) => {
                        // One that was brought back, and is not wanted any more, says by its tombstone what is unknown.
                        if record.metadata.is_closed() && self.store.tombstones.of(*ledger).is_none() {
                            elsewhere.push(*ledger);
                        }
                    }
                    // What cannot be read may name this bookie.
                    Ok(_) | Err(_) => named.insert(*ledger),
                }
            }
        }
        self.confirm_cluster().await?;
        self.mark_gone(&elsewhere, &mut named).await?;
        {
            // Those that were skipped may stand in memory alone, since an earlier try found no space for them.
            let held = self.store.tombstones.one_writer().await;
            self.store.write_tombstones(&held).await?;
        }
        let mut after = None;
        loop {
            let batch: Vec<LedgerId> = named.behind(after).take(FENCES).collect();
            let Some(last) = batch.last() else { break };
            after = Some(*last);
            let fenced = join_all(batch.iter().map(|ledger| self.fence(*ledger))).await;
            fenced.into_iter().collect::<Result<(), Error>>()?;
        }
        let flushed = self.flush().await;
        flushed.map_err(|status| Error::JournalFailed(format!("fences could not be synced: {status:?}")))?;
        Ok(named)
    }

    /// Ledgers that are closed and live elsewhere may have been here: their tombstones may be lost with an index. Those of which something
    /// is here are the collector's, which asks for a proof; until it has one they are in limbo.
    async fn mark_gone(&self, ledgers: &[LedgerId], named: &mut LedgerSet) -> Result<(), Error> {
        for batch in ledgers.chunks(PAGE) {
            let held = self.store.tombstones.one_writer().await;
            for ledger in batch {
                let slot = self.store.slot(*ledger).await?;
                let mut state = slot.lock();
                if state.exists || state.pending > 0 {
                    named.insert(*ledger);
                } else {
                    (state.exists, state.tombstone) = (true, Some(Tombstone::Gone));
                    self.store.tombstones.set(*ledger, Tombstone::Gone);
                }
            }
            self.store.write_tombstones(&held).await?;
        }
        Ok(())
    }

    /// What was listed, or was absent, counts only in the cluster this bookie belongs to.
    async fn confirm_cluster(&self) -> Result<(), Error> {
        let found = tokio::time::timeout(PATIENCE, Cluster::open(&*self.metadata)).await;
        let found =
            found.unwrap_or_else(|_| Err(late())).map_err(|error| Error::metadata("read the cluster", error))?;
        if found.as_ref() == Some(&self.instance) {
            return Ok(());
        }
        Err(Error::Identity(format!("metadata does not hold cluster {}, to which this bookie belongs", self.instance)))
    }

    async fn fence(&self, ledger: LedgerId) -> Result<(), Error> {
        let slot = self.store.slot(ledger).await?;
        self.store.fence_unasked(&slot).await.map_err(|status| {
            Error::JournalFailed(format!("ledger {ledger} could not be fenced: the journal answered {status:?}"))
        })
    }

    /// Looks at every ledger in limbo once.
    async fn look(&self) -> Report {
        let (mut report, mut after, mut told) = (Report::default(), None, false);
        loop {
            let page = self.store.limbo.page(after, PAGE);
            let Some(last) = page.last() else { return report };
            after = Some(*last);
            for ledger in page {
                match self.examine(ledger, &mut report.entries).await {
                    Ok(Finding::Proven) => {
                        self.store.limbo.prove(ledger);
                        report.proven += 1;
                    }
                    Ok(Finding::Waits) => report.waiting += 1,
                    Err(why) => {
                        report.failed += 1;
                        if !std::mem::replace(&mut told, true) {
                            tracing::warn!(%ledger, why, "a ledger stays in limbo; it is tried again");
                        }
                    }
                }
            }
        }
    }

    /// Compares what is here of a ledger with what should be, and fetches what is missing.
    async fn examine(&self, id: LedgerId, fetched: &mut u64) -> Result<Finding, String> {
        let slot = self.store.slot(id).await.map_err(|error| error.to_string())?;
        // From now on the tombstone says what may be told, once it is durable: it may stand in memory alone.
        if is_dropped(slot.lock().tombstone) {
            let held = self.store.tombstones.one_writer().await;
            self.store.write_tombstones(&held).await.map_err(|error| error.to_string())?;
            return Ok(Finding::Proven);
        }
        let found = tokio::time::timeout(PATIENCE, self.ledgers.get_quorum(id)).await;
        let Some(record) = found.unwrap_or_else(|_| Err(late())).map_err(|error| error.to_string())? else {
            self.confirm_cluster().await.map_err(|error| error.to_string())?;
            return Ok(Finding::Proven);
        };
        let metadata = record.metadata;
        if metadata.is_closed() && !names(&metadata, &self.me) && slot.lock().tombstone == Some(Tombstone::Revived) {
            // Brought back, and not wanted any more: the tombstone says that what is missing is unknown.
            return Ok(Finding::Proven);
        }
        let Some(closed) = ClosedLedger::of(&metadata).filter(|_| names(&metadata, &self.me)) else {
            return Ok(Finding::Waits);
        };
        let turns = Semaphore::new(1);
        let held = self.store.held_entries(&slot, &turns).await.map_err(|error| error.to_string())?;
        let before = *fetched;
        let mut next = Some(EntryId::ZERO);
        while let Some(from) = next {
            let missing;
            (missing, next) = self.missing(&held, &closed, from).await;
            self.fetch(&slot, &metadata, &closed, &missing, fetched).await?;
        }
        if *fetched > before {
            self.flush().await.map_err(|status| format!("what was fetched could not be synced: {status:?}"))?;
        }
        Ok(Finding::Proven)
    }

    /// Entries from `from` on that should be here and are not, no more than [`MISSING`], and where to go on.
    async fn missing(
        &self,
        held: &RoaringTreemap,
        closed: &ClosedLedger,
        from: EntryId,
    ) -> (Vec<EntryId>, Option<EntryId>) {
        let (mut missing, mut next) = (Vec::new(), Some(from));
        while let Some(entry) = next.filter(|entry| closed.last.is_some_and(|last| *entry <= last)) {
            if missing.len() == MISSING {
                return (missing, next);
            }
            if entry.get() % STRIDE == 0 {
                tokio::task::yield_now().await;
            }
            if !held.contains(entry.get()) && closed.is_held_by(entry, &self.me) {
                missing.push(entry);
            }
            next = EntryId::new(entry.get() + 1);
        }
        (missing, None)
    }

    async fn fetch(
        &self,
        slot: &Arc<LedgerSlot>,
        metadata: &LedgerMetadata,
        closed: &ClosedLedger,
        missing: &[EntryId],
        fetched: &mut u64,
    ) -> Result<(), String> {
        let digester = metadata.digester();
        let key = metadata.master_key().or(slot.lock().master_key).unwrap_or(MasterKey::EMPTY);
        let sound = |entry: EntryId, body: &Bytes| match &digester {
            Some(digester) => digester.open(slot.id(), Some(entry), body).map(drop).map_err(|error| error.to_string()),
            // Metadata of old formats says nothing of the digest: what can be checked is what the body says of itself.
            None => match ledger::peek(body) {
                Ok(peek) if (peek.ledger, peek.entry) == (slot.id(), entry) => Ok(()),
                Ok(peek) => Err(format!("it gives entry {} of ledger {}", peek.entry, peek.ledger)),
                Err(error) => Err(error.to_string()),
            },
        };
        let mut copies = futures::stream::iter(missing.iter().copied())
            .map(async |entry| {
                let copied = self.copies.get((slot.id(), closed), entry, |body| sound(entry, body)).await;
                let (body, permit) = copied.map_err(|why| format!("entry {entry} has no copy: {why}"))?;
                let add = Add {
                    entry,
                    last_confirmed: ledger::peek(&body).ok().and_then(|peek| peek.last_confirmed),
                    master_key: key,
                    body,
                    recovery: true,
                    high_priority: true,
                    permit: Some(Arc::new(permit)),
                    received: Instant::now(),
                };
                let stored = self.add(slot, add).await;
                stored.map_err(|status| format!("entry {entry} could not be stored: {status:?}"))
            })
            .buffer_unordered(COPIES);
        while let Some(stored) = copies.next().await {
            stored?;
            *fetched += 1;
            self.store.metrics.restored();
        }
        Ok(())
    }

    async fn add(&self, slot: &Arc<LedgerSlot>, add: Add) -> Result<(), Status> {
        let (done, stored) = completion();
        match self.store.add(slot, add, done, false) {
            Ok(()) => stored.await.unwrap_or(Err(Status::Io)),
            // A tombstone has come meanwhile.
            Err(_) => Err(Status::UnknownLedgerState),
        }
    }

    /// Brings what was stored to stable storage, with `sync = "never"` too.
    async fn flush(&self) -> Result<(), Status> {
        let (done, flushed) = completion();
        self.store.force(done);
        flushed.await.unwrap_or(Err(Status::Io))
    }
}

impl Store {
    /// Fences a ledger without anyone asking for it, whether or not anything is known of it. Returns once the fence is in the journal.
    async fn fence_unasked(&self, slot: &Arc<LedgerSlot>) -> Result<(), Status> {
        if slot.lock().is_fenced_for_good() {
            return Ok(());
        }
        let (done, fenced) = completion();
        self.queue_fence(slot, done);
        fenced.await.unwrap_or(Err(Status::Io))
    }
}

fn completion() -> (Completion, oneshot::Receiver<Result<(), Status>>) {
    let (sender, receiver) = oneshot::channel();
    // A receiver that is gone has nobody left to tell.
    let done: Completion = Box::new(move |result, _| {
        let _ = sender.send(result);
    });
    (done, receiver)
}

fn names(metadata: &LedgerMetadata, me: &BookieId) -> bool {
    metadata.segments().iter().any(|segment| segment.ensemble.contains(me))
}

/// Whether nothing of the ledger is to be here. One that was brought back after its drop is a copy like others.
fn is_dropped(tombstone: Option<Tombstone>) -> bool {
    matches!(tombstone, Some(Tombstone::Deleted | Tombstone::Gone))
}

fn late() -> metadata::Error {
    metadata::Error::new(metadata::ErrorKind::Unavailable, format!("no answer within {PATIENCE:?}"))
}
