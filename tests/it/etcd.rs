//! What the typed repositories promise, over a link to a real etcd that loses replies: every success is there, none is doubled, and
//! what was surely not done is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::rng::Rng;
use faults::Etcd;
use faults::tcp::{Behaviour, Proxy};
use ledger::{BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Password, Quorums};
use metadata::{
    AttemptError, AttemptState, Attempts, BookieInfo, Bookies, Cluster, ErrorKind, LeaseId, Ledgers, MetadataStore,
    Mode, NewAttempt, UpdateError, Version, WriteError,
};
use tokio::time::Instant;

use crate::support::{DEADLINE, eventually};

const WORKERS: u64 = 8;
const LEDGERS_EACH: usize = 25;

/// A store over a link that can fail, and one beside it that sees what really happened.
struct World {
    proxy: Proxy,
    store: Arc<dyn MetadataStore>,
    truth: Arc<dyn MetadataStore>,
    _etcd: Etcd,
}

impl World {
    async fn start() -> Option<Self> {
        if Etcd::is_missing_for("etcd") {
            return None;
        }
        let etcd = Etcd::start().await.unwrap();
        let proxy = Proxy::start(etcd.endpoint()).await.unwrap();
        let store = metadata::open(&format!("etcd://{}/cluster", proxy.address())).await.unwrap();
        let truth = metadata::open(&etcd.uri("/cluster")).await.unwrap();
        Some(Self { proxy, store, truth, _etcd: etcd })
    }
}

/// Lets replies get lost for a moment, then breaks the connections, again and again.
async fn spoil(proxy: &Proxy, rng: Rng) {
    loop {
        tokio::time::sleep(Duration::from_millis(20 + rng.below(80))).await;
        proxy.set(Behaviour::swallow_replies());
        tokio::time::sleep(Duration::from_millis(5 + rng.below(20))).await;
        proxy.reset_connections();
        proxy.set(if rng.below(4) == 0 { Behaviour::refuse() } else { Behaviour::pass() });
        tokio::time::sleep(Duration::from_millis(5 + rng.below(20))).await;
        proxy.set(Behaviour::pass());
    }
}

/// Carries `mark` twice: the token, which any change takes away, and the time, which stays.
fn metadata_of(mark: i64) -> LedgerMetadata {
    let bookies = ["b1:3181", "b2:3181", "b3:3181"].map(|id| BookieId::new(id).unwrap());
    LedgerMetadata::open(Quorums::new(3, 3, 2).unwrap(), bookies.to_vec(), DigestType::Crc32c, Password::empty())
        .unwrap()
        .with_ctoken(mark)
        .unwrap()
        .with_ctime_ms(mark)
        .unwrap()
}

/// What a writer knows of a ledger at its end.
#[derive(Debug)]
enum Known {
    Created(Version),
    Closed(Version),
    NotCreated,
    CreateUnknown,
    CloseUnknown,
}

async fn write_ledger(ledgers: &Ledgers, id: LedgerId, mark: i64) -> Known {
    let metadata = metadata_of(mark);
    let created = match ledgers.create(id, &metadata).await {
        Ok(version) => version,
        Err(WriteError::NotDone(_)) => return Known::NotCreated,
        Err(WriteError::Unknown(_)) => return Known::CreateUnknown,
        Err(error @ WriteError::Conflict(_)) => panic!("ledger {id} was given to one writer only: {error:?}"),
    };
    let closed = metadata.closed(EntryId::new(9), 1000).unwrap();
    match ledgers.update(id, &closed, created).await {
        Ok(version) => Known::Closed(version),
        Err(UpdateError::NotDone(_)) => Known::Created(created),
        Err(UpdateError::Unknown(_)) => Known::CloseUnknown,
        Err(error @ UpdateError::Conflict(_)) => panic!("nobody else closes ledger {id}: {error:?}"),
    }
}

async fn allocate(ledgers: &Ledgers) -> LedgerId {
    let give_up = Instant::now() + DEADLINE;
    loop {
        match ledgers.allocate_id().await {
            Ok(id) => return id,
            Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < give_up => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_over_a_link_that_loses_replies() {
    let Some(world) = World::start().await else { return };
    let ledgers = Ledgers::new(Arc::clone(&world.store));
    let writers = (0..WORKERS).map(|worker| {
        let ledgers = ledgers.clone();
        tokio::spawn(async move {
            let rng = Rng::seeded(worker);
            let mut known = Vec::new();
            for _ in 0..LEDGERS_EACH {
                let id = allocate(&ledgers).await;
                let mark = i64::from_ne_bytes((rng.next_u64() >> 1 | 1).to_ne_bytes());
                known.push((id, mark, write_ledger(&ledgers, id, mark).await));
            }
            known
        })
    });
    let written = futures::future::join_all(writers.collect::<Vec<_>>());
    let written = tokio::select! {
        written = written => written,
        () = spoil(&world.proxy, Rng::seeded(7)) => unreachable!("it never ends"),
    };
    let known: Vec<_> = written.into_iter().flat_map(Result::unwrap).collect();

    let truth = Ledgers::new(Arc::clone(&world.truth));
    let mut counts = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for (id, mark, known) in &known {
        assert!(ids.insert(*id), "ledger {id} was given twice");
        let found = truth.get_quorum(*id).await.unwrap();
        if let Some(found) = &found {
            assert_eq!(found.metadata.ctime_ms(), Some(*mark), "ledger {id} is someone else's");
        }
        let found = found.map(|found| (found.version, found.metadata.is_closed()));
        let (name, holds) = match known {
            Known::Created(version) => ("created", found == Some((*version, false))),
            Known::Closed(version) => ("closed", found == Some((*version, true))),
            Known::NotCreated => ("not created", found.is_none()),
            Known::CreateUnknown => ("create unknown", !found.is_some_and(|(_, closed)| closed)),
            Known::CloseUnknown => ("close unknown", found.is_some()),
        };
        assert!(holds, "ledger {id}: known {known:?}, found {found:?}");
        *counts.entry(name).or_insert(0) += 1;
    }
    let mut listed = BTreeSet::new();
    let mut after = None;
    loop {
        let page = truth.list(after, 37).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        after = Some(*last);
        listed.extend(page.into_iter().map(|(id, _)| id));
    }
    assert!(listed.is_subset(&ids), "a ledger nobody was told of");
    let traffic = world.proxy.traffic();
    println!("ledgers: {counts:?}; link: {traffic:?}");
    assert!(traffic.bytes_swallowed > 0 && traffic.connections > 10, "the link was hardly spoiled: {traffic:?}");
    assert!(counts.get("closed").is_some_and(|count| *count > 100), "hardly anything was done: {counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_over_a_link_that_loses_replies() {
    let Some(world) = World::start().await else { return };
    let lease = world.truth.grant_lease(Duration::from_secs(600)).await.unwrap();
    let truth = Attempts::new(Arc::clone(&world.truth));
    truth.register_owner("one", lease).await.unwrap();
    let workers = (0..4_u64).map(|worker| {
        let attempts = Attempts::new(Arc::clone(&world.store));
        tokio::spawn(async move {
            let rng = Rng::seeded(100 + worker);
            let mut begun = Vec::new();
            for step in 0..15_u64 {
                let ledger = LedgerId::new(1 + worker * 100 + step).unwrap();
                let uuid = rng.uuid();
                let new = NewAttempt {
                    uuid,
                    ledger,
                    key: format!("ab/{uuid}.parquet"),
                    owner: "one".to_owned(),
                    started_ms: 1,
                };
                match attempts.begin(new).await {
                    Ok(record) => {
                        let abandoned = step.is_multiple_of(3) && attempts.abandon(&record).await.is_ok();
                        begun.push((record, abandoned));
                    }
                    Err(AttemptError::NotDone(_) | AttemptError::Unknown(_)) => {}
                    Err(error) => panic!("nobody else settles ledger {ledger}: {error:?}"),
                }
            }
            begun
        })
    });
    let begun = futures::future::join_all(workers.collect::<Vec<_>>());
    let begun = tokio::select! {
        begun = begun => begun,
        () = spoil(&world.proxy, Rng::seeded(8)) => unreachable!("it never ends"),
    };
    let begun: Vec<_> = begun.into_iter().flat_map(Result::unwrap).collect();
    assert!(begun.len() > 20, "hardly anything was done: {}", begun.len());
    let counters: BTreeSet<_> = begun.iter().map(|(record, _)| record.attempt.counter).collect();
    assert_eq!(counters.len(), begun.len(), "a number was given twice");
    assert!(truth.counter().await.unwrap() >= *counters.last().unwrap());
    let condemned = truth.list_abandoned(None, 1000).await.unwrap();
    let condemned: BTreeSet<_> = condemned.into_iter().map(|record| record.attempt.uuid).collect();
    for (record, abandoned) in begun {
        let running = truth.get(record.attempt.ledger).await.unwrap();
        let is_condemned = condemned.contains(&record.attempt.uuid);
        match running {
            Some(found) => {
                assert_eq!(found.version, record.version);
                assert_eq!(found.attempt.state, AttemptState::Running);
                assert!(!abandoned && !is_condemned, "never both");
            }
            None => assert!(is_condemned, "an attempt that ended without a commit condemns its object"),
        }
    }
}

fn info(id: &BookieId) -> BookieInfo {
    BookieInfo::at(id.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_and_registrations_over_a_link_that_loses_replies() {
    let Some(world) = World::start().await else { return };
    let work = async {
        let openers = (0..8).map(|seed| {
            let store = Arc::clone(&world.store);
            tokio::spawn(async move {
                let give_up = Instant::now() + DEADLINE;
                loop {
                    match Cluster::init_or_open(&*store, &Rng::seeded(seed)).await {
                        Ok(id) => return id,
                        Err(error) => assert!(Instant::now() < give_up, "{error}"),
                    }
                }
            })
        });
        let ids: BTreeSet<_> =
            futures::future::join_all(openers.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(ids.len(), 1, "one cluster, one identity");

        let bookies = Bookies::new(Arc::clone(&world.store));
        let id = BookieId::new("b1:3181").unwrap();
        let mut held: Option<(LeaseId, Version)> = None;
        for round in 0..20 {
            let Ok(lease) = world.store.grant_lease(Duration::from_secs(60)).await else { continue };
            let mode = if round % 2 == 0 { Mode::Writable } else { Mode::ReadOnly };
            let lease = held.map_or(lease, |(lease, _)| lease);
            if let Ok(version) = bookies.register_as(&id, &info(&id), lease, mode).await {
                held = Some((lease, version));
            }
            if held.is_some() {
                let kept = world.store.keep_alive(lease).await;
                assert!(kept.is_ok() || kept.unwrap_err().kind() == ErrorKind::Unavailable, "the lease lives");
            }
        }
        held
    };
    let held = tokio::select! {
        held = work => held,
        () = spoil(&world.proxy, Rng::seeded(9)) => unreachable!("it never ends"),
    };
    let (lease, _) = held.expect("one of many tries gets through");
    world.proxy.set(Behaviour::pass());
    world.proxy.reset_connections();
    let bookies = Bookies::new(Arc::clone(&world.truth));
    assert_eq!(bookies.list().await.unwrap().len(), 1, "a bookie is registered once, in one mode");
    world.store.revoke(lease).await.unwrap();
    eventually("the registration ends with its lease", async || bookies.list().await.unwrap().is_empty()).await;
}
