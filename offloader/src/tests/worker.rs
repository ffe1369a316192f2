use std::time::Duration;

use ::config::Span;
use ledger::{BookieId, DigestType, LedgerId, Tier};
use metadata::{MetadataStore as _, ReleaseRequests};
use tokio::time::Instant;

use super::world::{World, id};
use crate::OffloaderConfig;
use crate::error::ErrorKind;
use crate::observe::Step;
use crate::seen::{Seen, Sight};

/// Waits, in paused time, until a ledger is in a tier.
async fn reaches(world: &World, ledger: LedgerId, tier: Tier) -> Duration {
    let started = Instant::now();
    while world.record(ledger).await.metadata.tier() != tier {
        assert!(started.elapsed() < Duration::from_secs(5 * 3600), "{ledger} never got {tier:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_policy_settles_and_releases_in_its_time() {
    let world = World::new().await;
    let (one, two) = (world.ledger(1, 40).await, world.ledger(2, 40).await);
    let cursor = world
        .ledger_of(3, 40, DigestType::Crc32c, |metadata| metadata.with_custom("pulsar/cursor", "c").unwrap())
        .await;
    world.offloader.start();
    let settled = reaches(&world, one, Tier::Settled).await;
    assert!((59..75).contains(&settled.as_secs()), "{settled:?}");
    let released = reaches(&world, one, Tier::Released).await;
    assert!((4 * 3600 - 5..4 * 3600 + 25).contains(&released.as_secs()), "{released:?}");
    reaches(&world, two, Tier::Released).await;
    assert_eq!(world.record(cursor).await.metadata.tier(), Tier::Hot);
    assert_eq!(world.offloader.inner.seen.get(cursor), Sight::default(), "what stays hot takes no place");
    world.assert_tidy().await;
    world.tasks.stop(Duration::from_secs(5)).await.unwrap();
    let list = world.attempts.owner_lives("x").await.unwrap();
    assert!(!list);
}

#[tokio::test(start_paused = true)]
async fn what_a_bookie_that_is_short_of_space_asks_for_is_released_early() {
    let world = World::new().await;
    let (asked, kept) = (world.ledger(1, 40).await, world.ledger(2, 40).await);
    let requests = ReleaseRequests::new(world.store.clone());
    let lease = world.store.grant_lease(Duration::from_secs(100_000)).await.unwrap();
    let bookie = BookieId::new("b1:3181").unwrap();
    let (open, unknown) = (world.open_ledger(3).await, id(99));
    requests.put(&bookie, &[asked, open, unknown], lease).await.unwrap();
    world.offloader.start();
    reaches(&world, asked, Tier::Settled).await;
    let released = reaches(&world, asked, Tier::Released).await;
    assert!((595..625).contains(&released.as_secs()), "not before hot_retention_min: {released:?}");
    assert_eq!(world.record(kept).await.metadata.tier(), Tier::Settled, "nobody asks for it");
    assert!(!world.record(open).await.metadata.is_closed());
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.record(kept).await.metadata.tier(), Tier::Settled);
    // Now that it has been settled for long enough, a request is met at once.
    requests.put(&bookie, &[kept], lease).await.unwrap();
    let released = reaches(&world, kept, Tier::Released).await;
    assert!(released.as_secs() < 15, "{released:?}");
    world.tasks.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_fails_is_tried_again_less_and_less_often() {
    let world = World::new().await;
    let ledger = world.ledger(1, 40).await;
    *world.bookies.fail_after.lock().unwrap() = Some(3);
    world.offloader.start();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let tries = *world.bookies.reads.lock().unwrap();
    assert!((8..25).contains(&tries), "{tries} tries in an hour");
    *world.bookies.fail_after.lock().unwrap() = None;
    reaches(&world, ledger, Tier::Settled).await;
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_order_settled_the_policy_releases() {
    let config =
        OffloaderConfig { settle_after: Span::secs(24 * 3600), hot_retention: Span::secs(5), ..Default::default() };
    let config = OffloaderConfig { scan_interval: Span::millis(500), ..config };
    let world = World::with(config).await;
    let (ordered, stays) = (world.ledger(1, 40).await, world.ledger(2, 40).await);
    world.offloader.start();
    world.offloader.offload_now(ordered, false).await.unwrap();
    let took = reaches(&world, ordered, Tier::Released).await;
    assert!((5..7).contains(&took.as_secs()), "{took:?}");
    assert_eq!(world.record(stays).await.metadata.tier(), Tier::Hot);
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_process_began_is_finished_without_being_asked() {
    let mut world = World::new().await;
    let ledger = world.ledger(1, 40).await;
    world.script.halt(Step::ReadBack, false);
    world.offloader.offload_now(ledger, false).await.unwrap_err();
    let deleted = world.ledger(2, 40).await;
    world.script.halt(Step::Upload, true);
    world.offloader.offload_now(deleted, false).await.unwrap_err();
    world.ledgers.delete(deleted, None).await.unwrap();
    world.new_process();
    world.offloader.start();
    reaches(&world, ledger, Tier::Released).await;
    assert_eq!(world.abandoned().await.len(), 2, "that of the deleted ledger too");
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn two_workers_share_the_ledgers_and_do_none_twice() {
    let mut world = World::new().await;
    let mut ledgers = Vec::new();
    for ledger in 1..=12 {
        ledgers.push(world.ledger(ledger, 40).await);
    }
    let first = world.offloader.clone();
    world.new_process();
    first.start();
    world.offloader.start();
    for ledger in ledgers {
        reaches(&world, ledger, Tier::Released).await;
    }
    assert_eq!(*world.bookies.reads.lock().unwrap(), 12, "each ledger was read once");
    assert_eq!(world.keys().await.len(), 12, "and written once");
    assert!(world.abandoned().await.is_empty());
    assert_eq!(first.tallies().settled + world.offloader.tallies().settled, 12);
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_jobs_and_answers_their_callers() {
    let world = World::new().await;
    let ledger = world.ledger(1, 40).await;
    *world.bookies.hang_after.lock().unwrap() = Some(3);
    world.offloader.start();
    let tasks = world.tasks.clone();
    world.script.before(Step::Upload, move || async move { tasks.ask_to_stop() });
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
    world.tasks.stop(Duration::from_secs(5)).await.unwrap();
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_takes_too_long_is_given_up() {
    let config = OffloaderConfig { ledger_deadline: Span::secs(10), ..Default::default() };
    let world = World::with(config).await;
    let ledger = world.ledger(1, 40).await;
    *world.bookies.hang_after.lock().unwrap() = Some(3);
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.to_string(), "offload ledger 1: given up after 10s");
    *world.bookies.hang_after.lock().unwrap() = None;
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn pauses_double_and_deleted_ledgers_are_forgotten() {
    let seen = Seen::default();
    let now = Instant::now();
    let (first, longest) = (Duration::from_secs(10), Duration::from_secs(60));
    seen.note(id(1), false, now).unwrap();
    for secs in [10, 20, 40, 60, 60] {
        seen.failed(id(1), now, first, longest);
        assert_eq!(seen.get(id(1)).not_before, Some(now + Duration::from_secs(secs)));
    }
    seen.succeeded(id(1));
    assert_eq!(seen.get(id(1)).not_before, None);
    seen.note(id(2), true, now).unwrap();
    seen.note(id(3), true, now).unwrap();
    seen.keep_only(Some(id(1)), Some(id(2)), &[]);
    assert_eq!(seen.get(id(2)).closed_since, None);
    assert_eq!(seen.get(id(3)).closed_since, Some(now));
    seen.keep_only(Some(id(2)), None, &[]);
    assert_eq!(seen.get(id(3)).closed_since, None);
    assert!(seen.get(id(1)).closed_since.is_some());
}
