//! The node, killed before and after every step of the offload protocol.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;

use cli::kill_at::When;
use metadata::Attempts;
use offloader::Step;
use proto::v1::LedgerTier;

use crate::acks::AckLog;
use crate::calls::Calls;
use crate::standalone::Site;
use crate::{counts, eventually, seed};

/// How a node is brought to a step.
pub enum Road {
    /// An order to settle and release a closed ledger comes by it.
    Order,
    /// A process dies with an attempt under way, the ledger is deleted, and the next process must abandon the attempt.
    Abandon,
}

/// No wildcard: a new step does not compile before somebody says how a node is brought to it.
pub fn road(step: Step) -> Road {
    match step {
        Step::ReadLedger
        | Step::ClaimAttempt
        | Step::Upload
        | Step::ReadBack
        | Step::Commit
        | Step::ProveRelease
        | Step::Release => Road::Order,
        Step::Abandon => Road::Abandon,
    }
}

/// Whether a node that died there had committed the ledger's object.
pub fn is_committed(when: When, step: Step) -> bool {
    (when, step) == (When::After, Step::Commit) || matches!(step, Step::ProveRelease | Step::Release)
}

const MANUAL: &[&str] = &["--set", "offloader.enabled=false"];
const QUICK: &[&str] = &["--set", "offloader.settle_after=0s", "--set", "offloader.hot_retention=0s"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_is_killed_before_and_after_every_step() {
    let seed = seed();
    let site = Site::new(format!("every step, CRASH_SEED={seed}"), seed, &[]);
    let mut killed = BTreeSet::new();
    for step in Step::ALL {
        for when in When::ALL {
            println!("killed {} {}", when.name(), step.name());
            match road(step) {
                Road::Order => by_order(&site, when, step).await,
                Road::Abandon => by_abandoning(&site, when, step).await,
            }
            counts::add(format!("kills {} {}", when.name(), step.name()), 1);
            killed.insert((step, when));
        }
    }
    let all: BTreeSet<_> = Step::ALL.into_iter().flat_map(|step| When::ALL.map(|when| (step, when))).collect();
    assert_eq!(killed, all, "each step was reached, and the node was killed there");
    counts::tell();
}

/// Writes and closes a ledger.
pub async fn written(acks: &AckLog, calls: &mut Calls, entries: u64) -> u64 {
    let mut created = None;
    // Registrations may lapse on a busy machine, and come back.
    eventually("enough bookies are registered for a ledger", async || match calls.create().await {
        Ok(ledger) => {
            created = Some(ledger);
            true
        }
        Err(status) if status.code() == tonic::Code::Unavailable => false,
        Err(status) => panic!("create a ledger: {status}"),
    })
    .await;
    let ledger = created.expect("it was created");
    acks.created(ledger);
    let mut appends = calls.append(ledger).await.unwrap();
    let mut next = 0;
    while next < entries {
        let count = 20.min(entries - next);
        appends.send((next..next + count).map(|entry| acks.payload(ledger, entry)).collect()).await;
        let end = next + count;
        while next < end {
            let run = appends.acknowledged().await.unwrap();
            acks.acked(ledger, run.first_entry_id, run.count);
            counts::add("entries acknowledged", run.count);
            next += run.count;
        }
    }
    drop(appends);
    let closed = calls.close(ledger).await.unwrap();
    acks.closed(ledger, closed.last_entry_id, closed.length);
    ledger
}

/// Writes a ledger and orders it to be offloaded by a node that dies at the step. Gives the ledger.
async fn die_at(site: &Site, when: When, step: Step) -> u64 {
    let moment = format!("{}:{}", when.name(), step.name());
    let mut node = site.start(&[MANUAL, &["--kill-at", &moment]].concat());
    let mut calls = Calls::to(&node.endpoint());
    let ledger = written(&site.acks, &mut calls, 60).await;
    let answer = calls.offload(ledger, true).await;
    assert!(answer.is_err(), "{moment}: a node that must be dead answers {answer:?}");
    let status = node.ended().await;
    assert_eq!(status.signal(), Some(9), "{moment}: {status}");
    ledger
}

async fn by_order(site: &Site, when: When, step: Step) {
    let ledger = die_at(site, when, step).await;
    site.check_records().await;
    let named = site.acks.ledgers()[&ledger].object.is_some();
    assert_eq!(named, is_committed(when, step), "whether the dead node had committed");
    // The next process finishes it unasked.
    let node = site.start(QUICK);
    let mut calls = Calls::to(&node.endpoint());
    eventually(&format!("ledger {ledger} is released"), async || {
        calls.get(ledger).await.unwrap().tier() == LedgerTier::Released
    })
    .await;
    site.check_reads(&calls).await;
    node.kill9();
    site.check_records().await;
    assert_no_attempt(site).await;
}

async fn by_abandoning(site: &Site, when: When, step: Step) {
    let ledger = die_at(site, When::After, Step::Upload).await;
    let moment = format!("{}:{}", when.name(), step.name());
    let mut node = site.start(&[MANUAL, &["--kill-at", &moment]].concat());
    let mut calls = Calls::to(&node.endpoint());
    site.acks.deleted(ledger);
    // Whether the node lives to answer is all the same: it dies when it looks for work.
    let _ = calls.delete(ledger).await;
    let status = node.ended().await;
    assert_eq!(status.signal(), Some(9), "{moment}: {status}");
    site.check_records().await;
    let node = site.start(QUICK);
    let mut calls = Calls::to(&node.endpoint());
    site.check_reads(&calls).await;
    assert_eq!(calls.get(ledger).await.unwrap_err().code(), tonic::Code::NotFound);
    // Another ledger goes all the way: a scan that has finished it has come by what is left of the deleted one.
    let other = written(&site.acks, &mut calls, 5).await;
    eventually(&format!("ledger {other} is released"), async || {
        calls.get(other).await.unwrap().tier() == LedgerTier::Released
    })
    .await;
    node.kill9();
    let store = site.metadata().await;
    let condemned = Attempts::new(store).list_abandoned(None, 10_000).await.unwrap();
    let condemned = condemned.iter().filter(|attempt| attempt.attempt.ledger.get() == ledger).count();
    assert_eq!(condemned, 1, "{moment}: the object of the deleted ledger is condemned, once");
    assert_no_attempt(site).await;
}

/// Nothing is left of the work of those that died.
async fn assert_no_attempt(site: &Site) {
    let running = Attempts::new(site.metadata().await).list(None, 10).await.unwrap();
    assert!(running.is_empty(), "{running:?}");
}
