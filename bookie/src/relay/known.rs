//! What is known of ledgers that were dropped: where they are now. Kept for a short time, because callers ask for one entry after
//! the other; and used for longer while metadata gives no answer, because members rarely change, and one that has not got an
//! entry any more only says so, which is told to nobody.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ledger::LedgerId;
use metadata::{Cluster, InstanceId, Ledgers, MetadataStore};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::decide::ClosedLedger;

/// How long a ledger is asked for without a look at its metadata. Its end does not change, and members that do not have it any more
/// are found out by asking them.
const KEPT: Duration = Duration::from_secs(30);
/// How long a ledger stays known to be deleted.
const ABSENCE_KEPT: Duration = Duration::from_secs(5);
/// How long metadata is believed to hold the bookie's cluster.
const CLUSTER_KEPT: Duration = Duration::from_secs(30);
/// How long metadata may take when there is older knowledge.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it is not asked then about what is known, once it gave no answer.
const SILENCE: Duration = Duration::from_secs(1);
const LEDGERS_MAX: usize = 4096;
/// Names of members in all ledgers together: some six MiB.
const MEMBERS_MAX: usize = 64 * 1024;
/// Looks at metadata that are under way at the same time.
const LOOKS_MAX: usize = 8;

/// What metadata says of a ledger.
#[derive(Clone, Debug)]
pub(super) enum Knowledge {
    /// It is closed; its members are here.
    Closed {
        ledger: Arc<ClosedLedger>,
        /// Whether it is the bookie's own ledger for sure: read by a quorum, in the cluster that the bookie started in. What is not may
        /// be another of the same id, of a cluster that was made anew in the same place.
        proven: bool,
        /// Whether metadata was to be asked and gave no answer: its members may have changed, but not its end.
        old: bool,
    },
    /// It does not exist, by proof.
    Absent,
}

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    #[error(transparent)]
    Metadata(#[from] metadata::Error),
    #[error("metadata does not say that the ledger is closed")]
    NotClosed,
    #[error("metadata does not hold this bookie's cluster any more")]
    OtherCluster,
}

struct Kept {
    knowledge: Knowledge,
    /// When the look began that brought it.
    since: Instant,
    /// Its place in the order of insertions.
    stamp: u64,
}

impl Kept {
    fn is_fresh(&self, now: Instant) -> bool {
        let kept = if matches!(self.knowledge, Knowledge::Absent) { ABSENCE_KEPT } else { KEPT };
        now.saturating_duration_since(self.since) < kept
    }

    fn members(&self) -> usize {
        match &self.knowledge {
            Knowledge::Closed { ledger, .. } => ledger.members(),
            Knowledge::Absent => 0,
        }
    }

    fn is_proven(&self) -> bool {
        matches!(self.knowledge, Knowledge::Absent | Knowledge::Closed { proven: true, .. })
    }
}

#[derive(Default)]
struct Cache {
    ledgers: BTreeMap<LedgerId, Kept>,
    /// Oldest first; those that were replaced since are passed over.
    order: VecDeque<(LedgerId, u64)>,
    members: usize,
    stamp: u64,
}

impl Cache {
    fn keep(&mut self, ledger: LedgerId, knowledge: Knowledge, since: Instant) {
        self.stamp += 1;
        let kept = Kept { knowledge, since, stamp: self.stamp };
        self.members += kept.members();
        self.order.push_back((ledger, self.stamp));
        if let Some(before) = self.ledgers.insert(ledger, kept) {
            self.members -= before.members();
        }
        while self.members > MEMBERS_MAX || self.ledgers.len() > LEDGERS_MAX || self.order.len() > 2 * LEDGERS_MAX {
            let Some((oldest, stamp)) = self.order.pop_front() else { return };
            if self.ledgers.get(&oldest).is_some_and(|kept| kept.stamp == stamp)
                && let Some(gone) = self.ledgers.remove(&oldest)
            {
                self.members -= gone.members();
            }
        }
    }
}

/// See the module.
pub(super) struct KnownLedgers {
    metadata: Arc<dyn MetadataStore>,
    ledgers: Ledgers,
    /// The cluster the bookie started in.
    instance: InstanceId,
    cache: Mutex<Cache>,
    looks: Semaphore,
    /// When metadata was last known to hold that cluster.
    confirmed: Mutex<Option<Instant>>,
    /// One asks, others wait.
    confirming: tokio::sync::Mutex<()>,
    /// Until when metadata is not asked about what is known, since it gave no answer.
    silent: Mutex<Option<Instant>>,
}

impl KnownLedgers {
    pub(super) fn new(metadata: Arc<dyn MetadataStore>, instance: InstanceId) -> Self {
        let ledgers = Ledgers::new(metadata.clone());
        Self {
            metadata,
            ledgers,
            instance,
            cache: Mutex::default(),
            looks: Semaphore::new(LOOKS_MAX),
            confirmed: Mutex::default(),
            confirming: tokio::sync::Mutex::default(),
            silent: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn confirmed_for(&self, time: Duration) -> bool {
        let confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        confirmed.is_some_and(|since| since.elapsed() < time)
    }

    /// Makes sure that metadata held the bookie's cluster at most [`CLUSTER_KEPT`] ago. Cancel-safe.
    async fn confirm(&self) -> Result<(), Unknown> {
        if self.confirmed_for(CLUSTER_KEPT) {
            return Ok(());
        }
        let _one = self.confirming.lock().await;
        if self.confirmed_for(CLUSTER_KEPT) {
            return Ok(());
        }
        self.confirm_now().await
    }

    /// Asks whether metadata holds the bookie's cluster. Cancel-safe.
    async fn confirm_now(&self) -> Result<(), Unknown> {
        let began = Instant::now();
        let is_mine = Cluster::open(&*self.metadata).await?.as_ref() == Some(&self.instance);
        *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = is_mine.then_some(began);
        if is_mine { Ok(()) } else { Err(Unknown::OtherCluster) }
    }

    /// What is known of a ledger, from what is kept or by a look at its metadata; without an answer of metadata what it said before.
    /// Cancel-safe.
    ///
    /// # Errors
    /// When metadata gives no answer that counts, and nothing is known.
    pub(super) async fn get(&self, ledger: LedgerId) -> Result<Knowledge, Unknown> {
        self.or_older(ledger, self.look(ledger)).await
    }

    /// What is known of a ledger by a quorum read of its metadata that began no earlier than `since`; without an answer of metadata
    /// what it said before, which is marked as old. Cancel-safe.
    ///
    /// # Errors
    /// As [`KnownLedgers::get`].
    pub(super) async fn prove(&self, ledger: LedgerId, since: Instant) -> Result<Knowledge, Unknown> {
        self.or_older(ledger, self.look_by_proof(ledger, since)).await
    }

    async fn or_older(
        &self,
        ledger: LedgerId,
        look: impl Future<Output = Result<Knowledge, Unknown>>,
    ) -> Result<Knowledge, Unknown> {
        let Some(older) = self.older(ledger) else { return look.await };
        if self.silent().is_some_and(|until| until > Instant::now()) {
            return Ok(older);
        }
        match tokio::time::timeout(PATIENCE, look).await {
            Ok(Err(Unknown::Metadata(_))) | Err(_) => {
                *self.silent() = Some(Instant::now() + SILENCE);
                // Others may have learned meanwhile that this is not the bookie's cluster.
                self.older(ledger).ok_or(Unknown::OtherCluster)
            }
            Ok(answer) => answer,
        }
    }

    fn silent(&self) -> MutexGuard<'_, Option<Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept of a closed ledger, however old, as long as the last word of metadata was that it holds the bookie's cluster.
    fn older(&self, ledger: LedgerId) -> Option<Knowledge> {
        self.confirmed_for(Duration::MAX).then_some(())?;
        match &self.lock().ledgers.get(&ledger)?.knowledge {
            Knowledge::Closed { ledger, proven, .. } => {
                Some(Knowledge::Closed { ledger: ledger.clone(), proven: *proven, old: true })
            }
            // It may be another's by now.
            Knowledge::Absent => None,
        }
    }

    async fn look(&self, ledger: LedgerId) -> Result<Knowledge, Unknown> {
        self.confirm().await?;
        if let Some(known) = self.kept(ledger, None) {
            return Ok(known);
        }
        let began = {
            // The semaphore is never closed.
            let _turn = self.looks.acquire().await.ok();
            // Others may have looked meanwhile.
            if let Some(known) = self.kept(ledger, None) {
                return Ok(known);
            }
            let began = Instant::now();
            // Only that a ledger is closed can be taken from a hint: it stays so.
            if let Some(record) = self.ledgers.get(ledger).await?
                && let Some(closed) = ClosedLedger::of(&record.metadata)
            {
                let closed = Knowledge::Closed { ledger: Arc::new(closed), proven: false, old: false };
                return Ok(self.keep(ledger, closed, began));
            }
            began
        };
        self.look_by_proof(ledger, began).await
    }

    async fn look_by_proof(&self, ledger: LedgerId, since: Instant) -> Result<Knowledge, Unknown> {
        // The semaphore is never closed.
        let _turn = self.looks.acquire().await.ok();
        if let Some(known) = self.kept(ledger, Some(since)) {
            return Ok(known);
        }
        let began = Instant::now();
        let found = self.ledgers.get_quorum(ledger).await?;
        let knowledge = match found {
            Some(record) => match ClosedLedger::of(&record.metadata) {
                Some(closed) => Knowledge::Closed { ledger: Arc::new(closed), proven: true, old: false },
                None => return Err(Unknown::NotClosed),
            },
            None => Knowledge::Absent,
        };
        // After the look: a cluster is removed by taking its identity away first, and one that is made anew in its place has another.
        // Neither what is absent there nor what is present is about this bookie's ledgers.
        self.confirm_now().await?;
        Ok(self.keep(ledger, knowledge, began))
    }

    /// What is kept of a ledger, if it is fresh enough; with `since`, if it was proven since then.
    fn kept(&self, ledger: LedgerId, since: Option<Instant>) -> Option<Knowledge> {
        let cache = self.lock();
        let kept = cache.ledgers.get(&ledger)?;
        let fits = match since {
            None => kept.is_fresh(Instant::now()),
            Some(since) => kept.is_proven() && kept.since >= since,
        };
        fits.then(|| kept.knowledge.clone())
    }

    fn keep(&self, ledger: LedgerId, knowledge: Knowledge, since: Instant) -> Knowledge {
        self.lock().keep(ledger, knowledge.clone(), since);
        knowledge
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ledger::{BookieId, DigestType, EntryId, LedgerMetadata, Password, Quorums};

    use super::*;

    fn closed(members: usize, proven: bool) -> Knowledge {
        let quorums = Quorums::new(u32::try_from(members).unwrap(), 1, 1).unwrap();
        let ensemble = vec![BookieId::new("a").unwrap(); members];
        let open = LedgerMetadata::open(quorums, ensemble, DigestType::Crc32c, Password::empty()).unwrap();
        let ledger = ClosedLedger::of(&open.closed(Some(EntryId::ZERO), 1).unwrap()).unwrap();
        Knowledge::Closed { ledger: Arc::new(ledger), proven, old: false }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_bounded_by_ledgers_and_by_members() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let id = |id: usize| LedgerId::new(id as u64).unwrap();
        for number in 0..2 * LEDGERS_MAX {
            cache.keep(id(number), closed(1, false), now);
        }
        assert_eq!((cache.ledgers.len(), cache.members), (LEDGERS_MAX, LEDGERS_MAX));
        assert!(cache.ledgers.contains_key(&id(2 * LEDGERS_MAX - 1)) && !cache.ledgers.contains_key(&id(0)));
        for _ in 0..3 * LEDGERS_MAX {
            cache.keep(id(0), closed(1, true), now);
        }
        assert!(cache.order.len() <= 2 * LEDGERS_MAX, "{}", cache.order.len());
        assert!(cache.ledgers[&id(0)].is_proven());
        for number in 0..10 {
            cache.keep(id(number), closed(MEMBERS_MAX / 4, false), now);
        }
        assert!(cache.members <= MEMBERS_MAX);
        assert_eq!(cache.members, cache.ledgers.values().map(Kept::members).sum::<usize>());
        cache.keep(id(1), closed(MEMBERS_MAX + 1, false), now);
        assert!(cache.members <= MEMBERS_MAX, "one that is larger than all is not kept");
    }
}
