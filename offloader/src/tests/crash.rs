use ledger::Tier;

use super::world::{OWNER_TTL, World};
use crate::error::ErrorKind;
use crate::observe::Step;

/// A process that dies before or after any step, and the next one, or the same one, that finishes: at every point the ledger is
/// whole, and in the end it is released with one object named and every other condemned.
#[tokio::test(start_paused = true)]
async fn a_crash_at_any_step_is_finished_by_the_next_process() {
    for step in [
        Step::ReadLedger,
        Step::ClaimAttempt,
        Step::Upload,
        Step::ReadBack,
        Step::Commit,
        Step::ProveRelease,
        Step::Release,
    ] {
        for after in [false, true] {
            for same_process in [false, true] {
                crash_at(step, after, same_process).await;
            }
        }
    }
}

async fn crash_at(step: Step, after: bool, same_process: bool) {
    let when = format!("{step:?}, after: {after}, same process: {same_process}");
    let mut world = World::new().await;
    let ledger = world.ledger(5, 300).await;
    world.script.halt(step, after);
    let error = world.offloader.offload_now(ledger, true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Halted, "{when}");
    world.assert_readable(ledger).await;
    if !same_process {
        world.new_process();
        // The dead one's lease runs out.
        tokio::time::sleep(OWNER_TTL * 2).await;
    }
    let report = world.offloader.offload_now(ledger, true).await.unwrap();
    assert_eq!(report.tier, Tier::Released, "{when}");
    let committed = matches!((step, after), (Step::Commit, true) | (Step::ProveRelease | Step::Release, _));
    assert_eq!(report.uploaded, !committed, "what was committed is not written again: {when}");
    assert_eq!(report.released, (step, after) != (Step::Release, true), "{when}");
    world.assert_readable(ledger).await;
    world.assert_tidy().await;
    let written = matches!((step, after), (Step::Upload, true) | (Step::ReadBack, _) | (Step::Commit, false));
    assert_eq!(world.keys().await.len(), 1 + usize::from(written), "{when}");
    let claimed = written || matches!((step, after), (Step::ClaimAttempt, true) | (Step::Upload, false));
    assert_eq!(world.abandoned().await.len(), usize::from(claimed), "{when}");
}

#[tokio::test(start_paused = true)]
async fn the_next_process_waits_for_the_lease_of_the_one_before() {
    let mut world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    world.script.halt(Step::Upload, true);
    world.offloader.offload_now(ledger, false).await.unwrap_err();
    world.new_process();
    let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    tokio::time::sleep(OWNER_TTL * 2).await;
    assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
    world.assert_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_while_a_failed_attempt_is_abandoned_is_made_good() {
    for after in [false, true] {
        let world = World::new().await;
        let ledger = world.ledger(5, 30).await;
        *world.bookies.fail_after.lock().unwrap() = Some(3);
        world.script.halt(Step::Abandon, after);
        let error = world.offloader.offload_now(ledger, false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "the first cause is told: {error}");
        *world.bookies.fail_after.lock().unwrap() = None;
        assert!(world.offloader.offload_now(ledger, false).await.unwrap().uploaded);
        assert_eq!(world.abandoned().await.len(), 1);
        world.assert_tidy().await;
    }
}
