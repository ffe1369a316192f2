use bytes::Bytes;
use cold::Fault;
use ledger::{DigestType, Tier};
use metadata::{FaultKind, NewAttempt, layout};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::world::{World, id, open_metadata};
use crate::error::ErrorKind;
use crate::observe::Step;
use crate::plan::{Plan, Why};

#[tokio::test(start_paused = true)]
async fn a_ledger_is_settled_and_named() {
    let world = World::new().await;
    let ledger = world.ledger(5, 3000).await;
    let before = world.record(ledger).await;
    let report = world.offloader.offload_now(ledger, false).await.unwrap();
    assert!(report.uploaded && !report.released);
    assert_eq!((report.tier, &report.end), (Tier::Settled, &Plan::Nothing(Why::Settled)));

    let after = world.record(ledger).await;
    assert_eq!(after.metadata.state(), before.metadata.state());
    assert_eq!(after.metadata.segments(), before.metadata.segments());
    let cold = world.cold_record(ledger).await.unwrap();
    assert_eq!(report.cold.as_ref(), Some(&cold));
    assert_eq!((cold.entries, cold.length_differs, cold.pack), (3000, None, None));
    let entry = world.catalog.get(ledger, cold.object).await.unwrap().unwrap();
    assert_eq!(entry.key, cold.object_key(world.instance.as_str(), ledger));
    assert_eq!((entry.object_bytes, entry.commit_counter), (cold.object_bytes, cold.commit_counter));
    assert_eq!(world.keys().await, [entry.key]);
    world.assert_readable(ledger).await;
    world.assert_tidy().await;

    let again = world.offloader.offload_now(ledger, false).await.unwrap();
    assert!(!again.uploaded);
    assert_eq!(*world.bookies.reads.lock().unwrap(), 1, "bookies were read once");
    let tallies = world.offloader.tallies();
    assert_eq!((tallies.settled, tallies.failed, tallies.abandoned), (1, 0, 0));
    assert_eq!(tallies.payload_bytes, cold.payload_bytes);
    assert_eq!(world.offloader.budget().used_bytes(), 0, "everything is given back");
}

#[tokio::test(start_paused = true)]
async fn ledgers_of_every_digest_but_none_are_settled() {
    let world = World::new().await;
    for (place, digest_type) in [DigestType::Crc32, DigestType::Hmac, DigestType::Crc32c].into_iter().enumerate() {
        let ledger = world.ledger_of(place as u64, 10, digest_type, |m| m).await;
        assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
        world.assert_readable(ledger).await;
    }
    let ledger = world.ledger_of(9, 10, DigestType::Dummy, |m| m).await;
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Hot);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_without_entries_needs_no_object() {
    let world = World::new().await;
    let ledger = world.ledger(1, 0).await;
    let report = world.offloader.offload_now(ledger, true).await.unwrap();
    assert_eq!((report.tier, report.end), (Tier::Hot, Plan::Nothing(Why::Empty)));
    assert!(!report.uploaded && !report.released && report.cold.is_none());
    assert!(world.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_settled_says_why() {
    let world = World::new().await;
    let error = world.offloader.offload_now(id(404), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchLedger, "{error}");
    world.ledgers.create(id(1), &open_metadata(DigestType::Crc32c)).await.unwrap();
    let error = world.offloader.offload_now(id(1), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotClosed, "{error}");
    assert_eq!(error.to_string(), "offload ledger 1: it is not closed");
}

#[tokio::test(start_paused = true)]
async fn a_byte_changed_before_the_read_back_is_never_committed() {
    let world = World::new().await;
    let ledger = world.ledger(5, 500).await;
    let objects = world.objects.clone();
    let cold = world.cold.clone();
    let attempts = world.attempts.clone();
    world.script.before(Step::ReadBack, move || async move {
        let key = Path::from(attempts.get(id(5)).await.unwrap().unwrap().attempt.key);
        let size = cold.head(key.as_ref()).await.unwrap().bytes as usize;
        let mut bytes = objects.get(&key).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[size / 3] ^= 1;
        objects.put_opts(&key, Bytes::from(bytes).into(), Default::default()).await.unwrap();
    });
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{}", error.chain());
    let keys = world.keys().await;
    assert!(error.chain().contains(&keys[0]), "names the object: {}", error.chain());
    assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Hot);
    assert_eq!(world.abandoned().await, keys, "condemned, and left where it is");
    assert!(world.catalog.list(None, 10).await.unwrap().is_empty());

    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    assert_eq!(world.keys().await.len(), 2);
    world.assert_readable(ledger).await;
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_leaves_the_ledger_hot() {
    let world = World::new().await;
    let ledger = world.ledger(5, 200).await;
    for fault in [Fault::FailPut, Fault::FailGet, Fault::CutGet(3), Fault::FlipGet(20)] {
        world.objects.inject(fault);
        let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Damaged), "{fault:?}");
        assert!(error.chain().contains("ledger 5"), "{}", error.chain());
        assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Hot, "{fault:?}");
    }
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    world.assert_readable(ledger).await;
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_of_the_store_is_found_out() {
    let world = World::new().await;
    let ledger = world.ledger(5, 200).await;
    world.objects.inject(Fault::LosePutReply);
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    world.assert_readable(ledger).await;
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_the_commit_is_recognised() {
    for fault in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        let world = World::new().await;
        let ledger = world.ledger(5, 200).await;
        world.store.fail_next_on(&layout::ledger_key(ledger), fault);
        let report = world.offloader.offload_now(ledger, false).await.unwrap();
        assert!(report.uploaded, "{fault:?}");
        assert_eq!(world.store.outstanding(), 0, "{fault:?} befell");
        assert_eq!(world.keys().await.len(), 1);
        world.assert_readable(ledger).await;
        world.assert_tidy().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_to_the_claim_are_recognised() {
    for fault in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        let world = World::new().await;
        let ledger = world.ledger(5, 20).await;
        world.store.fail_next_on(&layout::attempt_key(ledger), fault);
        assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded, "{fault:?}");
        assert_eq!(world.keys().await.len(), 1);
        world.assert_tidy().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_metadata_store_that_is_away_for_a_moment_costs_no_second_upload() {
    let world = World::new().await;
    let ledger = world.ledger(5, 200).await;
    for _ in 0..3 {
        world.store.fail_next_on(&layout::ledger_key(ledger), FaultKind::FailBefore);
    }
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    assert_eq!(world.script.count(Step::Upload), 1);
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_record_is_committed_to_without_a_second_upload() {
    let world = World::new().await;
    let ledger = world.ledger(5, 200).await;
    let ledgers = world.ledgers.clone();
    world.script.before(Step::Commit, move || async move {
        let record = ledgers.get_quorum(ledger).await.unwrap().unwrap();
        let changed = record.metadata.with_custom("auditor", "was here").unwrap();
        ledgers.update(ledger, &changed, record.version).await.unwrap();
    });
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    assert_eq!(world.record(ledger).await.metadata.custom("auditor"), Some(&b"was here"[..]), "the change is kept");
    assert_eq!((world.script.count(Step::Upload), world.keys().await.len()), (1, 1));
    world.assert_readable(ledger).await;
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn the_loser_against_another_object_abandons_and_leaves_its_own() {
    let world = World::new().await;
    let ledger = world.ledger(5, 200).await;
    let (ledgers, attempts) = (world.ledgers.clone(), world.attempts.clone());
    let other = id(77);
    world.ledger(77, 200).await;
    world.offloader.offload_now(other, false).await.unwrap();
    let mut theirs = world.cold_record(other).await.unwrap();
    theirs.commit_counter += 100;
    let expected = theirs.clone();
    world.script.before(Step::Commit, move || async move {
        assert!(attempts.get(ledger).await.unwrap().is_some());
        let record = ledgers.get_quorum(ledger).await.unwrap().unwrap();
        let settled = record.metadata.with_cold_record(&theirs).unwrap();
        ledgers.update(ledger, &settled, record.version).await.unwrap();
    });
    let report = world.offloader.offload_now(ledger, false).await.unwrap();
    assert!(!report.uploaded);
    assert_eq!(report.cold, Some(expected), "the winner's record stands");
    let abandoned = world.abandoned().await;
    assert_eq!(abandoned.len(), 1);
    assert!(world.keys().await.contains(&abandoned[0]), "its object is left for the sweeper");
    assert!(world.attempts.get(ledger).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_ledger_deleted_meanwhile_is_not_brought_back() {
    let world = World::new().await;
    let ledger = world.ledger(5, 200).await;
    let ledgers = world.ledgers.clone();
    world.script.before(Step::Commit, move || async move { ledgers.delete(ledger, None).await.unwrap() });
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchLedger);
    assert!(world.ledgers.get_quorum(ledger).await.unwrap().is_none());
    assert_eq!(world.abandoned().await, world.keys().await);
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn a_living_owner_is_left_alone() {
    let world = World::new().await;
    let ledger = world.ledger(5, 20).await;
    let store: std::sync::Arc<dyn metadata::MetadataStore> = world.store.clone();
    let lease = store.grant_lease(std::time::Duration::from_secs(3600)).await.unwrap();
    world.attempts.register_owner("someone", lease).await.unwrap();
    let theirs = NewAttempt {
        uuid: Default::default(),
        ledger,
        key: "k".to_owned(),
        owner: "someone".to_owned(),
        started_ms: 0,
    };
    let attempt = world.attempts.begin(theirs).await.unwrap();
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("someone"), "{error}");
    assert_eq!(world.attempts.get(ledger).await.unwrap(), Some(attempt), "untouched");

    store.revoke(lease).await.unwrap();
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded, "a dead one's is taken over");
    assert_eq!(world.abandoned().await, ["k"]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_stolen_during_the_upload_commits_nothing() {
    let world = World::new().await;
    let ledger = world.ledger(5, 20).await;
    let attempts = world.attempts.clone();
    let store: std::sync::Arc<dyn metadata::MetadataStore> = world.store.clone();
    world.script.before(Step::Commit, move || async move {
        let old = attempts.get(ledger).await.unwrap().unwrap();
        // Its lease runs out, and someone else takes over.
        tokio::time::sleep(super::world::OWNER_TTL * 2).await;
        let lease = store.grant_lease(std::time::Duration::from_secs(3600)).await.unwrap();
        attempts.register_owner("thief", lease).await.unwrap();
        let new = NewAttempt {
            uuid: Default::default(),
            ledger,
            key: "k".to_owned(),
            owner: "thief".to_owned(),
            started_ms: 0,
        };
        attempts.steal(&old, new).await.unwrap();
    });
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{}", error.chain());
    assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Hot);
    assert_eq!(world.abandoned().await, world.keys().await, "condemned by the thief");
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_not_whole_are_never_committed() {
    let world = World::new().await;
    let ledger = world.ledger(5, 50).await;
    let good = world.bookies.tables.lock().unwrap()[&ledger].clone();
    let mut gap = good.clone();
    gap.remove(20);
    let mut short = good.clone();
    short.pop();
    let mut damaged = good.clone();
    damaged[30].payload = Bytes::from("changed");
    let mut foreign = good.clone();
    foreign[3].header.ledger = id(6);
    for (name, table) in [("gap", gap), ("short", short), ("damaged", damaged), ("foreign", foreign), ("none", vec![])]
    {
        world.bookies.tables.lock().unwrap().insert(ledger, table);
        let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{name}: {}", error.chain());
        assert!(error.to_string().contains("ledger 5"), "{name}: {error}");
        assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Hot, "{name}");
    }
    world.bookies.tables.lock().unwrap().insert(ledger, good);
    assert!(world.keys().await.is_empty(), "not one object was finished");
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn bookies_that_fail_or_say_nothing_end_the_job_in_time() {
    let world = World::new().await;
    let ledger = world.ledger(5, 50).await;
    *world.bookies.fail_after.lock().unwrap() = Some(10);
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    *world.bookies.fail_after.lock().unwrap() = None;
    *world.bookies.hang_after.lock().unwrap() = Some(10);
    let started = tokio::time::Instant::now();
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(started.elapsed() < std::time::Duration::from_secs(62));
    world.assert_tidy().await;
    assert_eq!(world.offloader.budget().used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sealed_length_that_differs_is_noted() {
    let world = World::new().await;
    let ledger = world
        .ledger_of(5, 20, DigestType::Crc32c, |metadata| {
            open_metadata(DigestType::Crc32c).closed(metadata.last_entry(), 12_345).unwrap()
        })
        .await;
    world.offloader.offload_now(ledger, false).await.unwrap();
    let cold = world.cold_record(ledger).await.unwrap();
    assert_eq!(cold.length_differs, Some(12_345));
    assert_ne!(cold.payload_bytes, 12_345);
    assert_eq!(world.offloader.tallies().length_differs, 1);
}

#[tokio::test(start_paused = true)]
async fn several_orders_at_once_write_one_object() {
    let world = World::new().await;
    let ledger = world.ledger(5, 500).await;
    let orders = (0..5).map(|_| world.offloader.offload_now(ledger, false));
    let reports = futures::future::join_all(orders).await;
    assert_eq!(reports.into_iter().filter(|report| report.as_ref().unwrap().uploaded).count(), 1);
    assert_eq!(world.keys().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_stops_nothing() {
    let world = World::new().await;
    let ledger = world.ledger(5, 500).await;
    let (started, reached) = tokio::sync::oneshot::channel();
    let (gone, caller_gone) = tokio::sync::oneshot::channel();
    world.script.before(Step::Upload, move || async move {
        started.send(()).unwrap();
        caller_gone.await.unwrap();
    });
    {
        let order = world.offloader.offload_now(ledger, false);
        tokio::pin!(order);
        tokio::select! {
            _ = reached => {}
            done = &mut order => panic!("done before the upload: {done:?}"),
        }
    }
    gone.send(()).unwrap();
    // The next order waits for the first one's job and finds it done.
    assert!(!world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    assert_eq!(world.keys().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_does_not_wait_behind_one_that_waits_for_its_memory() {
    let world = World::new().await;
    let ledger = world.ledger(5, 5000).await;
    let budget = world.offloader.budget().clone();
    world.script.before(Step::Upload, move || async move {
        tokio::spawn(async move {
            while budget.used_bytes() == 0 {
                tokio::task::yield_now().await;
            }
            // As the read-back of another ledger: more than is free while this job runs.
            drop(budget.acquire(budget.limit_bytes()).await);
        });
    });
    let started = tokio::time::Instant::now();
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    assert!(started.elapsed() < std::time::Duration::from_secs(60));
}
