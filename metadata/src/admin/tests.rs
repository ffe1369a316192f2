//! Whole clusters in memory: made, counted, removed and copied, with every step failing once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::ledger::{BookieId, DigestType, LedgerId, LedgerMetadata, Password, Quorums};
use bytes::Bytes;
use common::rng::Rng;
use uuid::Uuid;

use super::copy::{Copied, CopyOptions, Survey, copy, survey};
use super::*;
use crate::{
    Attempts, BookieInfo, Bookies, Cluster, Cookie, Cookies, FaultKind, FaultyStore, GatewayInfo, Gateways, Ledgers,
    MemoryStore, MetadataStore, NewAttempt, layout,
};

const HOUR: Duration = Duration::from_secs(3600);
const LEDGERS: u64 = 150;

fn quiet() -> impl Fn(u64) + Sync {
    |_| {}
}

fn name() -> ClusterName {
    "logs-eu".parse().unwrap()
}

fn bookie(number: u64) -> BookieId {
    BookieId::new(&format!("b{number}:3181")).unwrap()
}

fn faulty() -> Arc<FaultyStore> {
    Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())))
}

/// A cluster with some of everything that stays when every process is gone.
async fn filled(store: &Arc<FaultyStore>) -> Identity {
    let shared: Arc<dyn MetadataStore> = store.clone();
    let identity = init(&*shared, &Rng::seeded(1), Some(&name())).await.unwrap();
    let ledgers = Ledgers::new(shared.clone());
    for number in 0..LEDGERS {
        let id = ledgers.allocate_id().await.unwrap();
        let members = (0..3).map(|member| bookie((number + member) % 5)).collect();
        let quorums = Quorums::new(3, 3, 2).unwrap();
        let open = LedgerMetadata::open(quorums, members, DigestType::Crc32c, Password::empty()).unwrap();
        let open = open.with_ctoken(i64::try_from(number).unwrap() + 1).unwrap();
        let metadata = if number % 2 == 0 { open.in_recovery().unwrap().closed(None, 0).unwrap() } else { open };
        ledgers.create(id, &metadata).await.unwrap();
    }
    let cookies = Cookies::new(shared.clone());
    for number in 0..5 {
        let dirs = || vec!["journal".to_owned()];
        let cookie = Cookie::new(bookie(number), dirs(), dirs(), identity.instance.as_str()).unwrap();
        cookies.create(&cookie).await.unwrap();
    }
    identity
}

async fn attempt(store: &Arc<FaultyStore>, ledger: u64) {
    let new = NewAttempt {
        uuid: Uuid::from_u128(u128::from(ledger)),
        ledger: LedgerId::new(ledger).unwrap(),
        key: "ab/x.parquet".into(),
        owner: "gone".into(),
        started_ms: 1,
    };
    Attempts::new(store.clone()).begin(new).await.unwrap();
}

/// Registers one of each; they live until the lease is revoked.
async fn live_ones(store: &Arc<FaultyStore>) -> crate::LeaseId {
    let lease = store.grant_lease(HOUR).await.unwrap();
    let info = BookieInfo::at("10.0.0.1:3181");
    Bookies::new(store.clone()).register(&bookie(1), &info, lease).await.unwrap();
    Attempts::new(store.clone()).register_owner("offloader", lease).await.unwrap();
    let gateway = GatewayInfo { id: "g1".into(), endpoint: "http://10.0.0.2:9600".into(), bookkeeper: None };
    Gateways::new(store.clone()).register(&gateway, lease).await.unwrap();
    lease
}

fn options(run: u128) -> FormatOptions {
    FormatOptions { run: Uuid::from_u128(run), now_ms: 5, force: false }
}

async fn format_once(store: &Arc<FaultyStore>, run: u128) -> Result<Counts, Error> {
    let found = state(&**store).await?;
    format(&**store, &found, options(run), &quiet()).await
}

async fn keys(store: &dyn MetadataStore) -> Vec<(String, Bytes)> {
    let mut all = Vec::new();
    for root in [layout::ledgers_root(), layout::thermocline_root()] {
        let mut walk = walk::Walk::all(store, root);
        while let Some((key, row)) = walk.next().await.unwrap() {
            all.push((key.to_string(), row.value));
        }
    }
    all
}

/// Without those that say whether the cluster is open here.
async fn clusters_keys(store: &dyn MetadataStore) -> Vec<(String, Bytes)> {
    let mut all = keys(store).await;
    all.retain(|(key, _)| key != layout::instance_key().as_str() && key != layout::maintenance_key().as_str());
    all
}

#[tokio::test]
async fn a_cluster_is_made_once() {
    let store = faulty();
    assert_eq!(state(&*store).await.unwrap(), State::Empty);
    let identity = init(&*store, &Rng::seeded(1), Some(&name())).await.unwrap();
    assert_eq!(state(&*store).await.unwrap(), State::Cluster(identity.clone()));
    assert_eq!(Cluster::init_or_open(&*store, &Rng::seeded(2)).await.unwrap(), identity.instance);
    let refused = init(&*store, &Rng::seeded(3), None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.to_string().contains(&format!("logs-eu ({})", identity.instance)), "{refused}");
    assert_eq!(identity.to_type(), "logs-eu");

    let store = faulty();
    let identity = init(&*store, &Rng::seeded(1), None).await.unwrap();
    assert_eq!(identity.to_type(), identity.instance.as_str(), "one without a name is called by its identity");
}

#[tokio::test]
async fn a_lost_answer_of_init_is_settled() {
    let store = faulty();
    store.fail_next(FaultKind::NotAppliedUnknown);
    init(&*store, &Rng::seeded(1), Some(&name())).await.unwrap_err();
    assert_eq!(state(&*store).await.unwrap(), State::Empty);
    store.fail_next(FaultKind::AppliedUnknown);
    let identity = init(&*store, &Rng::seeded(2), Some(&name())).await.unwrap();
    assert_eq!(state(&*store).await.unwrap(), State::Cluster(identity));
}

#[tokio::test]
async fn a_census_counts_everything() {
    let store = faulty();
    filled(&store).await;
    attempt(&store, 3).await;
    let lease = live_ones(&store).await;
    store.create(&layout::ledger_key(LedgerId::new(9000_u64).unwrap()), Bytes::from_static(b"?")).await.unwrap();
    let told = AtomicU64::new(0);
    let census = census(&*store, &|done| told.store(done, Ordering::Relaxed)).await.unwrap();
    assert_eq!((census.ledgers.open, census.ledgers.hot, census.ledgers.unreadable), (LEDGERS / 2, LEDGERS / 2, 1));
    for (kind, count) in [
        (Kind::Ledger, LEDGERS + 1),
        (Kind::Cookie, 5),
        (Kind::Bookie, 1),
        (Kind::Attempt, 1),
        (Kind::Owner, 1),
        (Kind::Gateway, 1),
        (Kind::Counter, 1),
        (Kind::Ids, 1),
        (Kind::Name, 1),
    ] {
        assert_eq!(census.keys.of(kind), count, "{kind:?}");
    }
    assert_eq!(census.keys.total(), keys(&*store).await.len() as u64);
    let live = live(&*store).await.unwrap();
    assert_eq!(live_sentence(&live), "1 bookie (b1:3181), 1 gateway (g1), 1 offloader (offloader)");
    store.revoke(lease).await.unwrap();

    let naming = ledgers_naming(&*store, &bookie(0), &quiet()).await.unwrap();
    assert_eq!((naming.count, naming.first.len(), naming.unreadable), (LEDGERS * 3 / 5, 5, 1));
    assert_eq!(ledgers_naming(&*store, &bookie(8), &quiet()).await.unwrap().count, 0);
}

#[tokio::test]
async fn formatting_leaves_nothing() {
    let store = faulty();
    filled(&store).await;
    attempt(&store, 3).await;
    let before = keys(&*store).await.len() as u64;
    assert_eq!(format_once(&store, 1).await.unwrap().total(), before);
    assert_eq!(keys(&*store).await, []);
    assert_eq!(format_once(&store, 2).await.unwrap_err().kind(), ErrorKind::Refused, "there is no cluster any more");
    init(&*store, &Rng::seeded(9), None).await.unwrap();
}

#[tokio::test]
async fn a_cluster_in_use_is_not_formatted_unless_forced() {
    let store = faulty();
    let identity = filled(&store).await;
    let lease = live_ones(&store).await;
    let before = keys(&*store).await;
    let refused = format_once(&store, 1).await.unwrap_err();
    assert!(refused.to_string().contains("in use by 1 bookie (b1:3181)"), "{refused}");
    assert_eq!(keys(&*store).await, before, "nothing was changed");
    assert_eq!(Cluster::open(&*store).await.unwrap(), Some(identity.instance));
    let found = state(&*store).await.unwrap();
    format(&*store, &found, FormatOptions { force: true, ..options(2) }, &quiet()).await.unwrap();
    assert_eq!(keys(&*store).await, []);
    store.revoke(lease).await.unwrap();
}

/// Every commit of a run fails in every way in turn; in between nobody can take the rest for a cluster, and the next run ends it.
#[tokio::test]
async fn a_format_that_stops_anywhere_is_seen_and_gone_on_with() {
    for kind in [FaultKind::FailBefore, FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        for commits in 0.. {
            let store = faulty();
            let identity = filled(&store).await;
            for _ in 0..commits {
                store.fail_next(FaultKind::Delay(Duration::ZERO));
            }
            store.fail_next(kind);
            let first = format_once(&store, 1).await;
            if store.outstanding() > 0 {
                assert!(first.is_ok() && commits > 5, "{kind:?}: every commit had its turn");
                break;
            }
            match state(&*store).await.unwrap() {
                State::Empty => assert_eq!(keys(&*store).await, [], "{kind:?} {commits}"),
                State::Cluster(found) => assert_eq!((found, commits), (identity, 0), "{kind:?}"),
                State::Unfinished(marker, _) => {
                    assert!(first.is_err());
                    assert_eq!((marker.work, marker.identity), (Work::Format, identity));
                    let opened = Cluster::init_or_open(&*store, &Rng::seeded(7)).await.unwrap_err();
                    assert_eq!(opened.kind(), ErrorKind::Damaged, "nobody opens the rest, or makes a cluster over it");
                    let refused = init(&*store, &Rng::seeded(7), None).await.unwrap_err();
                    assert!(refused.to_string().contains("run `thermocline cluster format` again"), "{refused}");
                }
                State::Headless => panic!("{kind:?} {commits}: no word of what happened"),
            }
            if state(&*store).await.unwrap() != State::Empty {
                format_once(&store, 2).await.unwrap();
            }
            assert_eq!(keys(&*store).await, []);
        }
    }
}

#[tokio::test]
async fn a_second_format_takes_over() {
    let store = faulty();
    filled(&store).await;
    let found = state(&*store).await.unwrap();
    let taken = std::sync::OnceLock::new();
    let other = store.clone();
    let told = move |_: u64| {
        taken.get_or_init(|| {
            // In the middle of the first run.
            futures::executor::block_on(async {
                let marker = Marker::read(&*other).await.unwrap().unwrap();
                let mine = Marker { run: Uuid::from_u128(2), ..marker.0 };
                other.put_if(&layout::maintenance_key(), mine.encode().into(), crate::Expect::Any).await.unwrap();
            });
        });
    };
    let refused = format(&*store, &found, options(1), &told).await.unwrap_err();
    assert!(refused.to_string().contains("another run took over"), "{refused}");
    format_once(&store, 3).await.unwrap();
}

fn copy_options(run: u128) -> CopyOptions {
    CopyOptions { run: Uuid::from_u128(run), now_ms: 5, abandon_attempts: false }
}

async fn copy_once(from: &Arc<FaultyStore>, to: &Arc<FaultyStore>, options: CopyOptions) -> Result<Copied, Error> {
    let (from, to): (Arc<dyn MetadataStore>, Arc<dyn MetadataStore>) = (from.clone(), to.clone());
    let found: Survey = survey(&*from, &*to, &quiet()).await?;
    copy(&from, &to, &found, options, &quiet(), &quiet()).await
}

#[tokio::test]
async fn a_copy_is_equal_and_opens() {
    let (from, to) = (faulty(), faulty());
    let identity = filled(&from).await;
    let cold = ::ledger::ColdId::for_member(LedgerId::new(1_u64).unwrap(), 0, "cold.thermocline", 3181).unwrap();
    let info = BookieInfo::at("10.0.0.9:3181");
    let key = crate::layout::readonly_key(&cold.to_bookie_id());
    from.create(&key, info.encode().unwrap().into()).await.unwrap();
    from.create(&crate::Key::new("/thermocline/policies/p").unwrap(), "later".into()).await.unwrap();
    from.create(&crate::Key::new("/ledgers/underreplication/x").unwrap(), "other".into()).await.unwrap();
    let done = copy_once(&from, &to, copy_options(1)).await.unwrap();
    assert_eq!((done.identity.clone(), done.only_compared, done.equal, done.removed), (identity.clone(), false, 0, 0));
    assert_eq!(done.verified.keys.of(Kind::Ledger), LEDGERS);
    assert_eq!(done.written, done.verified.keys.total());
    assert_eq!(state(&*to).await.unwrap(), State::Cluster(identity));
    let mut want = clusters_keys(&*from).await;
    want.retain(|(key, _)| key != "/ledgers/underreplication/x");
    assert_eq!(clusters_keys(&*to).await, want);
    // Nobody works on the source any more: what is made at the target from now on would be absent there.
    let State::Unfinished(Marker { work: Work::Moved, identity: left, .. }, _) = state(&*from).await.unwrap() else {
        panic!("the source is not left");
    };
    assert_eq!(left, done.identity);
    let opened = Cluster::init_or_open(&*from, &Rng::seeded(7)).await.unwrap_err();
    assert_eq!(opened.kind(), ErrorKind::Damaged, "{opened}");
    let elsewhere = copy_once(&from, &faulty(), copy_options(9)).await.unwrap_err();
    assert!(elsewhere.to_string().contains("was moved from here"), "{elsewhere}");
    // Ids go on where they were.
    let id = Ledgers::new(to.clone()).allocate_id().await.unwrap();
    assert_eq!(id.get(), LEDGERS + 1);

    let made = crate::layout::ledger_key(id);
    to.create(&made, Bytes::from_static(b"?")).await.unwrap();
    let differ = copy_once(&from, &to, copy_options(2)).await.unwrap_err();
    assert!(differ.to_string().contains(&format!("differ in 1 keys, first {made}")), "{differ}");
    to.delete_if(&made, crate::Expect::Any).await.unwrap();
    let again = copy_once(&from, &to, copy_options(3)).await.unwrap();
    assert!(again.only_compared && again.written == 0);
}

#[tokio::test]
async fn a_copy_that_stops_anywhere_is_seen_and_gone_on_with() {
    for kind in [FaultKind::FailBefore, FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        for commits in 0.. {
            let (from, to) = (faulty(), faulty());
            let identity = filled(&from).await;
            for _ in 0..commits {
                to.fail_next(FaultKind::Delay(Duration::ZERO));
            }
            to.fail_next(kind);
            let first = copy_once(&from, &to, copy_options(1)).await;
            if to.outstanding() > 0 {
                assert!(first.is_ok() && commits > 5, "{kind:?}: every commit had its turn");
                break;
            }
            match state(&*to).await.unwrap() {
                State::Empty => assert_eq!(commits, 0),
                State::Cluster(found) => assert_eq!(found, identity),
                State::Unfinished(marker, _) => {
                    assert_eq!((marker.work, &marker.identity), (Work::Copy, &identity));
                    let opened = Cluster::init_or_open(&*to, &Rng::seeded(7)).await.unwrap_err();
                    assert_eq!(opened.kind(), ErrorKind::Damaged, "half a copy is no cluster");
                }
                State::Headless => panic!("{kind:?} {commits}: no word of what happened"),
            }
            // The source went on meanwhile: one ledger more, one less.
            let ledgers = Ledgers::new(from.clone());
            if !matches!(state(&*to).await.unwrap(), State::Cluster(_)) {
                ledgers.delete(LedgerId::new(2_u64).unwrap(), None).await.unwrap();
            }
            copy_once(&from, &to, copy_options(2)).await.unwrap();
            assert_eq!(clusters_keys(&*to).await, clusters_keys(&*from).await, "{kind:?} {commits}");
            assert!(matches!(state(&*to).await.unwrap(), State::Cluster(found) if found == identity));
        }
    }
}

#[tokio::test]
async fn a_copy_is_refused_while_the_source_lives_or_settles() {
    let (from, to) = (faulty(), faulty());
    filled(&from).await;
    let lease = live_ones(&from).await;
    let refused = copy_once(&from, &to, copy_options(1)).await.unwrap_err();
    assert!(refused.to_string().contains("source is in use by"), "{refused}");
    from.revoke(lease).await.unwrap();

    attempt(&from, 3).await;
    let refused = copy_once(&from, &to, copy_options(2)).await.unwrap_err();
    assert!(refused.to_string().contains("have not ended at the source: 1"), "{refused}");
    assert_eq!(keys(&*to).await, [], "nothing was written before");
    let done = copy_once(&from, &to, CopyOptions { abandon_attempts: true, ..copy_options(3) }).await.unwrap();
    assert_eq!((done.abandoned, done.verified.keys.of(Kind::Abandoned)), (1, 1));
    assert_eq!(clusters_keys(&*to).await, clusters_keys(&*from).await);
}

#[tokio::test]
async fn a_store_named_twice_is_no_copy() {
    let store = faulty();
    filled(&store).await;
    let before = keys(&*store).await;
    let error = copy_once(&store, &store, copy_options(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("one store, named twice"), "{error}");
    assert_eq!(keys(&*store).await, before);
}

#[tokio::test]
async fn a_copy_given_up_can_be_formatted_away() {
    let (from, to) = (faulty(), faulty());
    filled(&from).await;
    to.fail_next(FaultKind::Delay(Duration::ZERO));
    to.fail_next(FaultKind::FailBefore);
    copy_once(&from, &to, copy_options(1)).await.unwrap_err();
    format_once(&to, 2).await.unwrap();
    assert_eq!(keys(&*to).await, []);
    copy_once(&from, &to, copy_options(3)).await.unwrap();
}

/// Leaves a copy before its commit number `commits` in the target, counted from 0.
async fn cut_short(from: &Arc<FaultyStore>, to: &Arc<FaultyStore>, run: u128, commits: u64) {
    for _ in 0..commits {
        to.fail_next(FaultKind::Delay(Duration::ZERO));
    }
    to.fail_next(FaultKind::FailBefore);
    copy_once(from, to, copy_options(run)).await.unwrap_err();
    assert_eq!(to.outstanding(), 0);
}

/// How many commits in the target come before the one that opens it.
async fn commits_of_a_copy() -> u64 {
    for commits in 1.. {
        let (from, to) = (faulty(), faulty());
        filled(&from).await;
        (0..commits).for_each(|_| to.fail_next(FaultKind::Delay(Duration::ZERO)));
        copy_once(&from, &to, copy_options(1)).await.unwrap();
        if to.outstanding() > 0 {
            return commits - 2;
        }
    }
    unreachable!("a copy ends")
}

#[tokio::test]
async fn a_source_is_left_for_one_target() {
    let (from, first, second) = (faulty(), faulty(), faulty());
    let identity = filled(&from).await;
    cut_short(&from, &second, 1, 2).await;
    copy_once(&from, &first, copy_options(2)).await.unwrap();
    // The first is the cluster from here on; the second was begun in earnest, by the same source, and holds an older one.
    Ledgers::new(first.clone()).delete(LedgerId::new(5_u64).unwrap(), None).await.unwrap();
    let refused = copy_once(&from, &second, copy_options(3)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.to_string().contains("by another copy"), "{refused}");
    assert!(matches!(state(&*second).await.unwrap(), State::Unfinished(..)), "nobody opens it");
    assert_eq!(state(&*first).await.unwrap(), State::Cluster(identity));
    format_once(&second, 4).await.unwrap();
    assert_eq!(keys(&*second).await, []);
}

#[tokio::test]
async fn of_two_copies_at_once_one_target_opens() {
    let (from, first, second) = (faulty(), faulty(), faulty());
    filled(&from).await;
    let shared = |store: &Arc<FaultyStore>| -> Arc<dyn MetadataStore> { store.clone() };
    let found = survey(&*from, &*second, &quiet()).await.unwrap();
    let taken = std::sync::OnceLock::new();
    let (source, target) = (from.clone(), first.clone());
    // While the second reads both sides again.
    let told = move |_: u64| {
        taken.get_or_init(|| {
            futures::executor::block_on(copy_once(&source, &target, copy_options(2))).unwrap();
        });
    };
    let both = copy(&shared(&from), &shared(&second), &found, copy_options(1), &quiet(), &told).await;
    let refused = both.unwrap_err();
    assert!(refused.to_string().contains("by another copy"), "{refused}");
    assert!(matches!(state(&*first).await.unwrap(), State::Cluster(_)));
    assert!(matches!(state(&*second).await.unwrap(), State::Unfinished(..)));
}

#[tokio::test]
async fn a_target_whose_source_may_be_left_is_not_formatted() {
    let last = commits_of_a_copy().await;
    let (from, to) = (faulty(), faulty());
    let identity = filled(&from).await;
    cut_short(&from, &to, 1, last).await;
    assert!(matches!(state(&*from).await.unwrap(), State::Unfinished(Marker { work: Work::Moved, .. }, _)));
    let before = keys(&*to).await;
    let refused = format_once(&to, 2).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.to_string().contains("run the same `thermocline metadata copy` again"), "{refused}");
    assert_eq!(keys(&*to).await, before, "here is all that is left of the cluster");
    copy_once(&from, &to, copy_options(3)).await.unwrap();
    assert_eq!(state(&*to).await.unwrap(), State::Cluster(identity));

    // Before the source was left an administrator may still decide otherwise, who knows that.
    let (from, to) = (faulty(), faulty());
    let identity = filled(&from).await;
    from.fail_next(FaultKind::FailBefore);
    copy_once(&from, &to, copy_options(4)).await.unwrap_err();
    assert_eq!(state(&*from).await.unwrap(), State::Cluster(identity));
    format_once(&to, 5).await.unwrap_err();
    let found = state(&*to).await.unwrap();
    format(&*to, &found, FormatOptions { force: true, ..options(6) }, &quiet()).await.unwrap();
    assert_eq!(keys(&*to).await, []);
    copy_once(&from, &to, copy_options(7)).await.unwrap();
}
