//! Gives space back: drops ledgers that metadata proves to be deleted or to live elsewhere, and removes the segments that then
//! hold nothing else.
//!
//! # Protocol
//! 1. Pick sealed segments and read which ledgers they hold.
//! 2. For each ledger without a tombstone read metadata as a hint, then those that may go by proof; the proofs begin after the pick.
//!    Absent: *deleted*. Closed with this bookie in no segment: *gone*, which is proved under the ledger's lock, see `elsewhere`.
//!    Anything else, an error above all: keep. A ledger with a recent recovery add is kept whatever metadata says.
//!    With the first answer that metadata is away the questions end, and with the bookie's stop; the next run asks again.
//!    After the last answer the store is asked, by proof, whether it still is the bookie's cluster. If it is not, *absent* says
//!    nothing of this bookie's ledgers: a cluster is removed by taking its identity away first. Everything is kept then.
//! 3. Make the tombstones durable.
//!    Those of deleted ledgers first, and step 4 with them: space is not given back later because locks take their time.
//! 4. A segment whose ledgers are all deleted or gone: take its rows out of the index and mark it as being dropped (synced),
//!    remove the file, sync the directory, take the mark away.
//!
//! # Crash
//! Between 3 and 4 the next run goes on. Within 4 the mark is found at the next start, which removes the file.

mod elsewhere;
mod requests;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::shutdown::TaskTree;
use futures::{Stream, StreamExt as _};
use ledger::{BookieId, LedgerId, LedgerMetadata};
use metadata::{Cluster, InstanceId, Ledgers, MetadataStore, UnderReplication};

use crate::error::Error;
use crate::format::SegmentId;
use crate::index::rows::{self, SegmentRow};
use crate::ledger_state::{Tombstone, Verdict};
use crate::store::Store;

/// Metadata reads that are under way at the same time.
const ASK_CONCURRENCY: usize = 8;
/// Ledgers that one run asks metadata about; the next run goes on behind them.
const ASK_MAX: usize = 10_000;
/// Tombstones made durable with one write.
const VERDICT_BATCH: usize = 500;
/// Index rows removed with one write.
const DROP_BATCH: usize = 2_000;

/// What one run of the collector did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Sealed segments looked at.
    pub segments: u64,
    /// Ledgers metadata was asked about.
    pub ledgers_asked: u64,
    /// Ledgers found to be deleted.
    pub ledgers_deleted: u64,
    /// Ledgers found to live elsewhere.
    pub ledgers_gone: u64,
    /// Ledgers kept because metadata gave no answer, or not as this bookie's cluster.
    pub ledgers_unknown: u64,
    /// Ledgers that live elsewhere and were kept because another process was changing their replicas.
    pub ledgers_locked: u64,
    /// Ledgers that live elsewhere and were kept because they are marked as lacking replicas.
    pub ledgers_marked: u64,
    /// Whether it ended before everything was asked, since metadata was away or the bookie stops. The next run asks again.
    pub cut_short: bool,
    /// Segments removed.
    pub segments_removed: u64,
    /// Bytes given back.
    pub bytes_freed: u64,
}

pub(crate) struct Collector {
    store: Arc<Store>,
    metadata: Arc<dyn MetadataStore>,
    ledgers: Ledgers,
    /// The locks of those who change replicas.
    repair: UnderReplication,
    /// The cluster the bookie started in.
    instance: InstanceId,
    me: BookieId,
    tasks: TaskTree,
    /// Whether the log knows that the cluster is not there; once is enough.
    told_no_cluster: AtomicBool,
    /// One run at a time; holds where the next run begins to ask.
    cursor: tokio::sync::Mutex<SegmentId>,
}

/// A picked segment and the ledgers it holds.
struct Picked {
    row: SegmentRow,
    ledgers: Vec<LedgerId>,
}

/// Ledgers that may go, by hints.
#[derive(Default)]
struct Hints {
    absent: Vec<LedgerId>,
    elsewhere: Vec<LedgerId>,
}

/// What the metadata of a ledger says about this bookie's copy.
pub(crate) fn judge(metadata: Option<&LedgerMetadata>, me: &BookieId) -> Option<Tombstone> {
    let Some(metadata) = metadata else { return Some(Tombstone::Deleted) };
    let named = metadata.segments().iter().any(|segment| segment.ensemble.contains(me));
    (metadata.is_closed() && !named).then_some(Tombstone::Gone)
}

impl Collector {
    /// Runs end early, and in order, when `tasks` are asked to stop.
    pub(crate) fn new(
        store: Arc<Store>,
        metadata: Arc<dyn MetadataStore>,
        instance: InstanceId,
        me: BookieId,
        tasks: TaskTree,
    ) -> Self {
        let (ledgers, repair) = (Ledgers::new(metadata.clone()), UnderReplication::new(metadata.clone()));
        let (told_no_cluster, cursor) = (AtomicBool::new(false), tokio::sync::Mutex::new(SegmentId::NONE));
        Self { store, metadata, ledgers, repair, instance, me, tasks, told_no_cluster, cursor }
    }

    /// One run over the sealed segments. Not cancel-safe, but a run that stops anywhere is completed by the next.
    pub(crate) async fn run(&self) -> Result<CollectReport, Error> {
        let report = self.run_once().await;
        self.ask_for_releases().await;
        self.store.metrics.collected(report.as_ref().ok());
        report
    }

    async fn run_once(&self) -> Result<CollectReport, Error> {
        let mut cursor = self.cursor.lock().await;
        let mut report = CollectReport::default();
        if let Some(reason) = self.store.condition.failure() {
            return Err(Error::JournalFailed(reason.to_owned()));
        }
        {
            // What an earlier run could not write for want of space; until it is written nothing is dropped.
            let held = self.store.tombstones.one_writer().await;
            self.store.write_tombstones(&held).await?;
        }
        let begin = *cursor;
        let (mut picked, undecided) = self.pick(&mut cursor).await;
        report.segments = picked.len() as u64;
        let mut hints = self.ask(undecided, &mut report).await;
        // What was found before an answer failed is proved all the same: the first proof that fails ends that.
        let cut = std::mem::take(&mut report.cut_short);
        let mut deleted = self.prove_deleted(std::mem::take(&mut hints.absent), &mut report).await;
        report.cut_short |= cut;
        if !deleted.is_empty() && !self.is_my_cluster(&mut report).await {
            report.ledgers_unknown += deleted.len() as u64;
            deleted.clear();
        }
        self.decide(&deleted, &mut report).await?;
        self.drop_dead(&mut picked, &mut report).await?;
        if report.cut_short {
            *cursor = begin;
        }
        // Locks that cannot be had keep nobody from asking about the ledgers behind these.
        if !report.cut_short {
            self.drop_elsewhere(&hints.elsewhere, &mut report).await?;
            self.drop_dead(&mut picked, &mut report).await?;
        } else {
            report.ledgers_unknown += hints.elsewhere.len() as u64;
        }
        if report.ledgers_unknown > 0 {
            tracing::warn!(
                ledgers = report.ledgers_unknown,
                "metadata gave no answer about some ledgers; they are kept"
            );
        }
        if report.ledgers_locked + report.ledgers_marked > 0 {
            tracing::info!(
                locked = report.ledgers_locked,
                marked = report.ledgers_marked,
                "ledgers that live elsewhere are kept: others hold their locks, or they are marked as lacking replicas; marks that stay \
                 want a worker of auto-recovery"
            );
        }
        if report.segments_removed > 0 {
            let left = rows::count_ledgers(&*self.store.index).await?;
            self.store.indexed_ledgers.store(left, Ordering::Relaxed);
        }
        if report.segments_removed > 0 || report.ledgers_deleted + report.ledgers_gone > 0 {
            tracing::info!(?report, "collected");
        }
        Ok(report)
    }

    /// Removes those of the segments whose ledgers are all deleted or gone.
    async fn drop_dead(&self, picked: &mut Vec<Picked>, report: &mut CollectReport) -> Result<(), Error> {
        let dead =
            |ledger: &LedgerId| matches!(self.store.tombstones.of(*ledger), Some(Tombstone::Deleted | Tombstone::Gone));
        for segment in picked.extract_if(.., |segment| segment.ledgers.iter().all(dead)) {
            drop_segment(&self.store, &segment.row, &segment.ledgers).await?;
            report.segments_removed += 1;
            report.bytes_freed += segment.row.file_bytes;
        }
        Ok(())
    }

    /// The next of the answers; `None` at their end, and when no more are to be waited for: metadata is away, or the bookie stops.
    async fn next_answer<T>(
        &self,
        answers: &mut (impl Stream<Item = T> + Unpin),
        report: &mut CollectReport,
    ) -> Option<T> {
        if report.cut_short {
            return None;
        }
        let answer = self.tasks.token().run_until_cancelled(answers.next()).await;
        report.cut_short |= answer.is_none();
        answer.flatten()
    }

    /// The sealed segments, oldest first, and the ledgers in them that need a verdict.
    async fn pick(&self, cursor: &mut SegmentId) -> (Vec<Picked>, BTreeSet<LedgerId>) {
        let rows = self.store.sealed.rows();
        let (mut picked, mut undecided) = (Vec::new(), BTreeSet::new());
        let start = rows.partition_point(|row| row.id <= *cursor);
        *cursor = SegmentId::NONE;
        for row in rows[start..].iter().chain(&rows[..start]) {
            let Some(ledgers) = self.ledgers_of(row.id).await else { continue };
            let new = ledgers.iter().filter(|ledger| needs_verdict(self.store.tombstones.of(**ledger)));
            undecided.extend(new.copied());
            picked.push(Picked { row: *row, ledgers });
            if undecided.len() >= ASK_MAX {
                *cursor = row.id;
                break;
            }
        }
        picked.sort_by_key(|segment| segment.row.id);
        (picked, undecided)
    }

    /// The ledgers of a segment, from its own checked index. A segment that cannot be read is kept, and named in the log.
    async fn ledgers_of(&self, id: SegmentId) -> Option<Vec<LedgerId>> {
        let read = async {
            let Some(file) = self.store.sealed.open(id).await? else { return Ok(None) };
            let (mut ledgers, mut block) = (Vec::new(), 0);
            while let Some(rows) = file.ledgers(block).await? {
                ledgers.extend(rows.iter().map(|row| row.ledger));
                block += 1;
            }
            Ok::<_, Error>(Some(ledgers))
        };
        read.await.unwrap_or_else(|error| {
            tracing::error!(segment = %id, error = &error as &dyn std::error::Error, "segment cannot be collected");
            None
        })
    }

    /// Which of the ledgers may go, by hints: most may not, and a proof costs the metadata more.
    async fn ask(&self, undecided: BTreeSet<LedgerId>, report: &mut CollectReport) -> Hints {
        report.ledgers_asked = undecided.len() as u64;
        let mut left = undecided.len() as u64;
        let mut answers = futures::stream::iter(undecided)
            .map(async |ledger| (ledger, self.ledgers.get(ledger).await))
            .buffer_unordered(ASK_CONCURRENCY);
        let mut hints = Hints::default();
        while let Some((ledger, answer)) = self.next_answer(&mut answers, report).await {
            left -= 1;
            match answer {
                Ok(record) => match judge(record.as_ref().map(|record| &record.metadata), &self.me) {
                    Some(Tombstone::Deleted) => hints.absent.push(ledger),
                    Some(_) => hints.elsewhere.push(ledger),
                    None => {}
                },
                Err(error) => no_verdict(ledger, &error, report),
            }
        }
        report.ledgers_unknown += left;
        hints.absent.sort_unstable();
        hints.elsewhere.sort_unstable();
        hints
    }

    /// Those of `absent` that are proved to be deleted.
    async fn prove_deleted(&self, absent: Vec<LedgerId>, report: &mut CollectReport) -> Vec<Verdict> {
        let mut left = absent.len() as u64;
        let mut answers = futures::stream::iter(absent)
            .map(async |ledger| (ledger, self.ledgers.get_quorum(ledger).await))
            .buffer_unordered(ASK_CONCURRENCY);
        let mut verdicts = Vec::new();
        while let Some((ledger, answer)) = self.next_answer(&mut answers, report).await {
            left -= 1;
            match answer {
                Ok(None) => verdicts.push(Verdict { ledger, tombstone: Tombstone::Deleted, last: None }),
                Ok(Some(_)) => {}
                Err(error) => no_verdict(ledger, &error, report),
            }
        }
        report.ledgers_unknown += left;
        verdicts.sort_by_key(|verdict| verdict.ledger);
        verdicts
    }

    /// Whether the store still holds the cluster this bookie started in. Asked after the answers it is to confirm.
    async fn is_my_cluster(&self, report: &mut CollectReport) -> bool {
        let found = Cluster::open(&*self.metadata).await;
        if matches!(&found, Ok(Some(found)) if *found == self.instance) {
            self.told_no_cluster.store(false, Ordering::Relaxed);
            return true;
        }
        let mine = &self.instance;
        match found {
            Err(error) => {
                report.cut_short = true;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "whose ledgers metadata holds is unknown; no ledger is dropped now");
            }
            Ok(found) if !self.told_no_cluster.swap(true, Ordering::Relaxed) => tracing::error!(
                %mine,
                ?found,
                "metadata does not hold this bookie's cluster any more; no ledger is dropped until it does"
            ),
            Ok(_) => {}
        }
        false
    }

    async fn decide(&self, verdicts: &[Verdict], report: &mut CollectReport) -> Result<(), Error> {
        let store = &self.store;
        let grace_ms = u64::try_from(store.config.recovery_grace.duration().as_millis()).unwrap_or(u64::MAX);
        for batch in verdicts.chunks(VERDICT_BATCH) {
            let one_writer = store.tombstones.one_writer().await;
            for verdict in batch {
                let slot = store.slot(verdict.ledger).await?;
                let mut state = slot.lock();
                let fresh = store.clock.wall_ms().saturating_sub(state.recovery_ms) < grace_ms;
                if state.recovery_ms != 0 && fresh {
                    continue;
                }
                // In memory first: from here on nothing more is admitted that the tombstone forbids.
                state.tombstone = Some(verdict.tombstone);
                store.tombstones.set(verdict.ledger, verdict.tombstone);
                drop(state);
                slot.tell_news();
                match verdict.tombstone {
                    Tombstone::Deleted => report.ledgers_deleted += 1,
                    Tombstone::Gone | Tombstone::Revived => report.ledgers_gone += 1,
                }
            }
            // On a failure memory says more than the index: nothing is dropped on it.
            store.write_tombstones(&one_writer).await?;
        }
        Ok(())
    }
}

fn no_verdict(ledger: LedgerId, error: &metadata::Error, report: &mut CollectReport) {
    report.ledgers_unknown += 1;
    report.cut_short |= error.kind() == metadata::ErrorKind::Unavailable;
    tracing::debug!(%ledger, error = error as &dyn std::error::Error, "no verdict");
}

fn needs_verdict(tombstone: Option<Tombstone>) -> bool {
    !matches!(tombstone, Some(Tombstone::Deleted | Tombstone::Gone))
}

/// Removes a segment whose ledgers all have a durable tombstone.
async fn drop_segment(store: &Store, row: &SegmentRow, ledgers: &[LedgerId]) -> Result<(), Error> {
    for batch in ledgers.chunks(DROP_BATCH) {
        let changes = batch.iter().map(|ledger| rows::delete_ledger_segment(*ledger, row.id));
        store.write_index(changes.collect()).await?;
    }
    let mark = SegmentRow { dropping: true, ..*row };
    let mut changes = vec![rows::put_segment(&mark)];
    // What is known of a deleted ledger is said by its tombstone; of a gone one the key is still needed.
    let deleted = ledgers.iter().filter(|ledger| store.tombstones.of(**ledger) == Some(Tombstone::Deleted));
    changes.extend(deleted.map(|ledger| rows::delete_ledger(*ledger)));
    store.write_index(changes).await?;
    store.sealed.remove(row.id);
    for ledger in ledgers {
        if let Some(slot) = store.cached(*ledger) {
            slot.lock().forget_segments();
        }
    }
    remove_marked(store, &mark).await
}

/// Removes the file of a segment that is marked as being dropped, then the mark.
pub(crate) async fn remove_marked(store: &Store, row: &SegmentRow) -> Result<(), Error> {
    let path = store.sealed.path(row.id);
    match store.disk.remove(&path).await {
        Ok(()) => {}
        // A run before a crash came this far.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Disk { action: "remove", path, source }),
    }
    store.disk.sync_dir(&store.journal_dir).await.map_err(Error::disk("sync", &store.journal_dir))?;
    store.allocated_bytes.fetch_sub(row.file_bytes, Ordering::Relaxed);
    match store.write_index(vec![rows::delete_segment(row.id)]).await {
        Ok(()) => {}
        // The mark of a file that is gone does no harm, and the next start takes it away.
        Err(error) if error.is_index_full() => {}
        Err(error) => return Err(error),
    }
    tracing::debug!(segment = %row.id, bytes = row.file_bytes, "segment removed");
    Ok(())
}
