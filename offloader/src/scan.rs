//! Looking for work: all ledgers, a page at a time, in the order of ids, so that the oldest come first.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::time::Duration;

use futures::StreamExt as _;
use ledger::{ColdId, ColdRecord, LedgerId, LedgerMetadata};
use metadata::ColdNames;
use tokio::time::MissedTickBehavior;

use crate::error::{ErrorKind, Result};
use crate::job::Wanted;
use crate::metrics::Census;
use crate::offloader::Inner;
use crate::plan::{self, AttemptFacts, Facts, Order, Plan};
use crate::release::MEMBERS_DEFAULT;

const PAGE: usize = 256;
/// The longest pause before a ledger whose cold ids nobody served is tried again.
const WAITING_PAUSE_MAX: Duration = Duration::from_secs(30);

impl Inner {
    pub(crate) async fn scan_until_stopped(&self) {
        let mut tick = tokio::time::interval(self.config.scan_interval.duration());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.tasks.token().run_until_cancelled(tick.tick()).await.is_some() {
            if let Err(error) = Box::pin(self.scan()).await {
                tracing::warn!(error = error.chain(), "look for ledgers to offload");
            }
        }
    }

    /// One pass over all ledgers; returns when the work it found is done.
    pub(crate) async fn scan(&self) -> Result<()> {
        let census = self.scan_once().await;
        self.metrics.scanned(census.as_ref().ok());
        census.map(drop)
    }

    async fn scan_once(&self) -> Result<Census> {
        let mut census = Census::default();
        let own = (self.config.cold_domain.clone(), self.config.cold_port);
        let mut names = BTreeMap::new();
        let mut attempts = self.running_attempts().await?;
        self.see_to_requests(&attempts).await?;
        let mut after = None;
        while !self.tasks.is_stopping() {
            let page = self.ledgers.list(after, PAGE).await.map_err(listing)?;
            let ids: Vec<LedgerId> = page.iter().map(|(id, _)| *id).collect();
            self.seen.keep_only(after, ids.last().copied(), &ids);
            let mut due = Vec::new();
            for (id, record) in &page {
                let owner = attempts.remove(id);
                let is_due = self.is_due(*id, &record.metadata, owner.as_deref());
                let unsettled = record.metadata.custom(ColdRecord::KEY).is_none();
                // What can never be settled is not remembered either.
                let waiting = self.seen.get(*id).closed_since.filter(|_| unsettled);
                census.count(&record.metadata, waiting);
                note_names(*id, &record.metadata, &own, &mut names);
                if is_due {
                    due.push(*id);
                }
            }
            drop(page);
            self.work(due).await;
            match ids.last() {
                Some(last) => after = Some(*last),
                None => break,
            }
        }
        // What is left was begun for ledgers that do not exist any more.
        self.work(attempts.into_keys().collect()).await;
        self.see_to_names(own, names).await;
        Ok(census)
    }

    /// Does first what bookies that are short of space ask for.
    async fn see_to_requests(&self, attempts: &BTreeMap<LedgerId, String>) -> Result<()> {
        match self.release_requests.list().await {
            Ok(ledgers) => self.requested.set(ledgers),
            Err(error) => {
                // The last ones stand: to release a ledger early that nobody asks for any more does no harm.
                tracing::warn!(error = &error as &dyn StdError, "look what bookies ask to be released");
            }
        }
        let requested = self.requested.all();
        self.metrics.requested(requested.len());
        let ids: Vec<LedgerId> = requested.iter().copied().collect();
        for ids in ids.chunks(PAGE) {
            let mut due = Vec::new();
            for id in ids {
                if self.tasks.is_stopping() {
                    return Ok(());
                }
                let owner = attempts.get(id).map(String::as_str);
                let record = self.ledgers.get(*id).await.map_err(listing)?;
                if record.is_some_and(|record| self.is_due(*id, &record.metadata, owner)) {
                    due.push(*id);
                }
            }
            self.work(due).await;
        }
        Ok(())
    }

    /// Sees to it that the cold ids of released ledgers are named, so that gateways register them: the names may be lost, or never
    /// have been written, where an older release did not know them.
    async fn see_to_names(&self, own: Names, mut found: BTreeMap<Names, u32>) {
        // The first that are written are the cluster's: of several those that this offloader is set up for.
        let own = found.remove(&own).map(|members| (own, members));
        for ((domain, port), members) in own.into_iter().chain(found) {
            let wanted = ColdNames { domain, port, members };
            let seen = async {
                let named = self.cold_shards.names().await?;
                if named.is_some_and(|named| named.members >= wanted.members && is_named(&named, &wanted)) {
                    return Ok(());
                }
                self.cold_shards.ensure_names(&wanted).await.map(drop)
            };
            if let Err(error) = seen.await {
                let (domain, port) = (&wanted.domain, wanted.port);
                let error = &error as &dyn StdError;
                tracing::warn!(
                    domain,
                    port,
                    error,
                    "cold ids of released ledgers are not named: nobody registers them"
                );
            }
        }
    }

    async fn running_attempts(&self) -> Result<BTreeMap<LedgerId, String>> {
        let mut attempts = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.attempts.list(after, PAGE).await.map_err(listing)?;
            let Some(last) = page.last() else { return Ok(attempts) };
            after = Some(last.attempt.ledger);
            attempts.extend(page.into_iter().map(|record| (record.attempt.ledger, record.attempt.owner)));
        }
    }

    /// Whether a job is worth while, as far as a listing can tell.
    fn is_due(&self, id: LedgerId, metadata: &LedgerMetadata, owner: Option<&str>) -> bool {
        let now = self.clock.now();
        // Whether the owner lives, the job asks.
        let attempt = owner.map(|owner| AttemptFacts { owner, held_by_other: false });
        let wall_ms = self.clock.wall_ms();
        let is_requested = self.requested.has(id);
        let mut facts =
            Facts { metadata, attempt, closed_since: None, settled_since: None, is_requested, now, wall_ms };
        let order = Order::Policy(&self.config);
        // What stays as it is must not take a place from those that wait for their time.
        if let Plan::Nothing(_) = plan::decide(&facts, order) {
            self.seen.forget(id);
            return false;
        }
        let settled = metadata.custom(ColdRecord::KEY).is_some();
        let Some(sight) = self.seen.note(id, settled, now) else { return false };
        if sight.not_before.is_some_and(|not_before| now < not_before) {
            return false;
        }
        (facts.closed_since, facts.settled_since) = (sight.closed_since, sight.settled_since);
        match plan::decide(&facts, order) {
            Plan::Settle | Plan::AbandonAttempt => true,
            Plan::Release => self.waiting.holds(now).is_none(),
            _ => false,
        }
    }

    async fn work(&self, due: Vec<LedgerId>) {
        let jobs = futures::stream::iter(due);
        jobs.for_each_concurrent(self.config.ledgers_in_flight, |id| self.by_policy(id)).await;
    }

    async fn by_policy(&self, id: LedgerId) {
        let error = match self.run(id, Wanted::Policy).await {
            Ok(report) if report.tier == ledger::Tier::Released => return self.seen.forget(id),
            Ok(_) => return self.seen.succeeded(id),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::NoSuchLedger => self.seen.forget(id),
            ErrorKind::Stopped => {}
            kind => {
                let (first, longest) = (self.config.scan_interval.duration(), self.config.failure_pause_max.duration());
                // What waits for gateways is not at fault itself, and goes on soon after they are back.
                let longest = if kind == ErrorKind::Waiting { longest.min(WAITING_PAUSE_MAX) } else { longest };
                self.seen.failed(id, self.clock.now(), first, longest);
                // Why releases wait is told once, and by the status.
                if matches!(kind, ErrorKind::Busy | ErrorKind::Waiting) {
                    tracing::debug!(ledger_id = id.get(), error = &error as &dyn StdError, "ledger left to others");
                } else {
                    tracing::warn!(
                        ledger_id = id.get(),
                        error = error.chain(),
                        "ledger not offloaded; it will be tried again"
                    );
                }
            }
        }
    }
}

/// How cold ids are named: their domain and port.
type Names = (String, u16);

/// Different names that are looked at in one pass, beside the offloader's own: all ledgers of a cluster have the same.
const NAMES_MAX: usize = 4;

/// Notes how the cold ids of a released ledger are named, be it in part, and the most members of a ledger with such names. Names that no
/// release gives are none: clients may write any into their ledgers.
fn note_names(ledger: LedgerId, metadata: &LedgerMetadata, own: &Names, names: &mut BTreeMap<Names, u32>) {
    if !metadata.is_closed() || !matches!(ColdRecord::from_metadata(metadata), Ok(Some(_))) {
        return;
    }
    let members = metadata.segments().iter().flat_map(|segment| (0_u32..).zip(&segment.ensemble));
    for (index, member) in members {
        let Some(id) = ColdId::from_bookie_id(member) else { continue };
        if id.shard() != ledger::shard_of(ledger) || id.index() != index || index >= ColdNames::MEMBERS_MAX {
            continue;
        }
        let key = (id.domain().to_owned(), id.port());
        if names.len() < NAMES_MAX || key == *own || names.contains_key(&key) {
            let most = names.entry(key).or_insert(MEMBERS_DEFAULT);
            *most = (*most).max(index.saturating_add(1));
        }
    }
}

fn is_named(named: &ColdNames, wanted: &ColdNames) -> bool {
    (&named.domain, named.port) == (&wanted.domain, wanted.port)
}

fn listing(error: metadata::Error) -> crate::Error {
    crate::Error::new(ErrorKind::Unavailable, "list ledgers").caused_by(error)
}
