//! The load: writers that keep the acknowledgement log, readers that check what it promises, and orders to offload.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::rng::Rng;
use proto::v1::Tier;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use crate::acks::AckLog;
use crate::calls::Calls;
use crate::{counts, sweep};

/// How long a range may refuse to be read: far longer than anybody is down.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// What writers do.
#[derive(Clone, Copy)]
pub struct Load {
    /// Entries of a ledger, at most.
    pub entries_max: u64,
    /// Entries of a message, at most.
    pub batch_max: u64,
}

/// When a task of the load ends: when it is told to. What fails meanwhile is tried again, since somebody is being killed.
#[derive(Clone)]
pub struct Until(pub watch::Receiver<bool>);

impl Until {
    fn is_over(&self) -> bool {
        *self.0.borrow()
    }

    /// What is left to do after a failure that a kill explains.
    async fn after(&self, doing: &str, status: &Status) {
        expect_gone(doing, status);
        counts::add("requests that failed and were tried again", 1);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Requests under way, to be looked at when somebody is killed.
static APPENDS: AtomicU64 = AtomicU64::new(0);
static READS: AtomicU64 = AtomicU64::new(0);

struct UnderWay(&'static AtomicU64);

impl UnderWay {
    fn begin(what: &'static AtomicU64) -> Self {
        what.fetch_add(1, Ordering::SeqCst);
        Self(what)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for a moment at which appends and reads are under way, and says whether it is one.
pub async fn amid_work() -> bool {
    for _ in 0..10_000 {
        if APPENDS.load(Ordering::SeqCst) > 0 && READS.load(Ordering::SeqCst) > 0 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// Writes ledger after ledger.
pub async fn write(mut calls: Calls, log: AckLog, rng: Rng, load: Load, until: Until) {
    while !until.is_over() {
        if let Err(status) = write_one(&mut calls, &log, &rng, load, &until).await {
            until.after("write", &status).await;
        }
    }
}

async fn write_one(calls: &mut Calls, log: &AckLog, rng: &Rng, load: Load, until: &Until) -> Result<(), Status> {
    let ledger = calls.create().await?;
    log.created(ledger);
    let entries = 1 + rng.below(load.entries_max);
    let mut appends = calls.append(ledger).await?;
    let mut next = 0;
    while next < entries && !until.is_over() {
        let count = (1 + rng.below(load.batch_max)).min(entries - next);
        let _under_way = UnderWay::begin(&APPENDS);
        appends.send((next..next + count).map(|entry| log.payload(ledger, entry)).collect()).await;
        let end = next + count;
        while next < end {
            let run = appends.acknowledged().await?;
            assert_eq!(run.first_entry_id, next, "ledger {ledger}: acknowledgements out of order");
            log.acked(ledger, run.first_entry_id, run.count);
            counts::add("entries acknowledged", run.count);
            next += run.count;
        }
        if rng.below(4) == 0 {
            let seen = calls.last_confirmed(ledger).await?.entry_id;
            log.confirmed(ledger, seen, true);
        }
    }
    drop(appends);
    // Some ledgers stay open: their writer dies with the node.
    if rng.below(5) > 0 {
        let closed = calls.close(ledger).await?;
        log.closed(ledger, closed.last_entry_id, closed.length);
    }
    Ok(())
}

/// Reads acknowledged entries, from any tier.
pub async fn read(mut calls: Calls, log: AckLog, rng: Rng, until: Until) {
    while !until.is_over() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let known: Vec<_> =
            log.ledgers().into_iter().filter(|(_, promises)| !promises.acked.is_empty() && !promises.deleted).collect();
        if known.is_empty() {
            continue;
        }
        let (ledger, promises) = known[rng.below(known.len() as u64) as usize].clone();
        let from = rng.below(promises.acked.len() as u64);
        let to = (from + 1 + rng.below(100)).min(promises.acked.len() as u64);
        read_range(&mut calls, &log, ledger, from..to, &until).await;
    }
}

/// Reads a range until it comes, whoever is killed meanwhile: another one in its place would excuse its loss.
async fn read_range(calls: &mut Calls, log: &AckLog, ledger: u64, range: Range<u64>, until: &Until) {
    let begun = Instant::now();
    loop {
        let under_way = UnderWay::begin(&READS);
        let read = calls.read(ledger, range.start, Some(range.end), Tier::Unspecified);
        let read = timeout(READ_DEADLINE, read).await;
        drop(under_way);
        let status = match read {
            Ok(Ok(entries)) => {
                return sweep::check_entries("a read under load", log, ledger, range.start, range.end, &entries);
            }
            Ok(Err(status)) => status,
            Err(_) => panic!("ledger {ledger} {range:?}: a read has no answer within {READ_DEADLINE:?}"),
        };
        // The confirmed end of a ledger whose writer died is found by whoever closes it.
        let is_open = log.ledgers()[&ledger].closed.is_none();
        if is_open && status.code() == Code::OutOfRange {
            return;
        }
        until.after("read", &status).await;
        if until.is_over() {
            return;
        }
        let waited = begun.elapsed();
        assert!(waited < READ_DEADLINE, "ledger {ledger} {range:?}: not readable for {waited:?}: {status:?}");
    }
}

/// Orders closed ledgers to be offloaded.
pub async fn offload(mut calls: Calls, log: AckLog, rng: Rng, until: Until) {
    while !until.is_over() {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let known: Vec<_> =
            log.ledgers().into_iter().filter(|(_, promises)| promises.closed.is_some() && !promises.deleted).collect();
        if known.is_empty() {
            continue;
        }
        let (ledger, _) = &known[rng.below(known.len() as u64) as usize];
        match calls.offload(*ledger, rng.below(2) == 0).await {
            Ok(result) => {
                if let Some(cold) = result.cold {
                    log.settled(*ledger, &cold.object_key);
                }
            }
            Err(status) => until.after("offload", &status).await,
        }
    }
}

/// A killed process shows as a broken connection or an outcome nobody knows. Anything else is a violation.
fn expect_gone(doing: &str, status: &Status) {
    let gone = matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::Aborted | Code::DeadlineExceeded
    );
    assert!(gone, "{doing}: {status:?}");
}
