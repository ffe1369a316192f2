use std::cell::Cell;

use super::*;

#[derive(Debug, PartialEq)]
enum Fault {
    Passing(u32),
    Lasting,
}

fn policy() -> RetryPolicy {
    RetryPolicy {
        initial: Duration::from_millis(10),
        factor: 2.0,
        max: Duration::from_millis(100),
        deadline: Duration::from_secs(1),
    }
}

async fn run(
    script: impl Fn(u32) -> Result<&'static str, Fault>,
    cancel: &CancellationToken,
) -> (u32, Result<&'static str, Fault>) {
    let calls = Cell::new(0);
    let retryable = |error: &Fault| matches!(error, Fault::Passing(_));
    let outcome = retry(&policy(), &Rng::seeded(1), cancel, retryable, async || {
        calls.set(calls.get() + 1);
        script(calls.get())
    })
    .await;
    (calls.get(), outcome)
}

#[tokio::test(start_paused = true)]
async fn passing_faults_are_tried_again() {
    let script = |call| if call < 4 { Err(Fault::Passing(call)) } else { Ok("done") };
    assert_eq!(run(script, &CancellationToken::new()).await, (4, Ok("done")));
}

#[tokio::test(start_paused = true)]
async fn a_lasting_fault_ends_at_once_and_is_told() {
    let script = |call| Err(if call == 1 { Fault::Passing(1) } else { Fault::Lasting });
    assert_eq!(run(script, &CancellationToken::new()).await, (2, Err(Fault::Lasting)));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_it_with_the_first_cause() {
    let started = Instant::now();
    let (calls, outcome) = run(|call| Err(Fault::Passing(call)), &CancellationToken::new()).await;
    assert_eq!(outcome, Err(Fault::Passing(1)));
    assert!(calls > 5, "{calls} calls");
    assert!(started.elapsed() <= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_the_wait_with_the_first_cause() {
    let cancel = CancellationToken::new();
    let script = |call| {
        if call == 3 {
            cancel.cancel();
        }
        Err(Fault::Passing(call))
    };
    assert_eq!(run(script, &cancel).await, (3, Err(Fault::Passing(1))));
    assert_eq!(run(|call| Err(Fault::Passing(call)), &cancel).await, (1, Err(Fault::Passing(1))));
}

#[test]
fn waits_grow_to_the_maximum_and_are_jittered() {
    let rng = Rng::seeded(3);
    let mut backoff = policy().backoff();
    for step_ms in [10, 20, 40, 80, 100, 100] {
        let wait = backoff.next_wait(&rng);
        let step = Duration::from_millis(step_ms);
        assert!(wait >= step / 2 && wait <= step, "{wait:?} for a step of {step:?}");
    }
    let still = RetryPolicy { factor: 0.1, ..policy() };
    let mut backoff = still.backoff();
    assert!((0..9).all(|_| backoff.next_wait(&rng) >= Duration::from_millis(5)));
}

/// Callers retry inside spawned tasks, with operations that borrow.
#[tokio::test(start_paused = true)]
async fn it_can_be_spawned_with_borrows() {
    let task = tokio::spawn(async move {
        let name = String::from("x");
        let cancel = CancellationToken::new();
        retry(
            &policy(),
            &Rng::seeded(1),
            &cancel,
            |_: &()| true,
            async || {
                tokio::task::yield_now().await;
                Ok(name.len())
            },
        )
        .await
    });
    assert_eq!(task.await.unwrap(), Ok(1));
}
