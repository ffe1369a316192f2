//! The one retry helper: bounded by a deadline, cancellable, jittered, and it keeps the first cause.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::rng::Rng;

/// How long to wait between tries and when to give up.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The wait after the first failure.
    pub initial: Duration,
    /// How much longer each next wait is; values under 1 count as 1.
    pub factor: f64,
    /// The longest wait.
    pub max: Duration,
    /// No try begins later than this after the first one began.
    pub deadline: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(50),
            factor: 2.0,
            max: Duration::from_secs(2),
            deadline: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// The waits of this policy, one after the other, without end.
    pub fn backoff(&self) -> Backoff {
        Backoff { next: self.initial.min(self.max), factor: self.factor.max(1.0), max: self.max }
    }
}

/// The growing waits of a [`RetryPolicy`].
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    factor: f64,
    max: Duration,
}

impl Backoff {
    /// The next wait: between half of the step and the whole of it, so that many callers do not come back together.
    pub fn next_wait(&mut self, rng: &Rng) -> Duration {
        let step = self.next;
        let grown = step.as_secs_f64() * self.factor;
        self.next = Duration::try_from_secs_f64(grown).unwrap_or(self.max).min(self.max);
        step.mul_f64(0.5 + rng.fraction() / 2.0)
    }
}

/// Calls `op` until it succeeds, fails with an error that is not retryable, or time is up.
///
/// An error that is not retryable is returned as it is. When the deadline or `cancel` ends the waiting, the **first** error is
/// returned: later ones are often only its echo ("connection refused" after "disk full"). `op` is called at least once, also
/// when `cancel` is already cancelled, since there is nothing else to return.
///
/// `op` is never dropped half-way: it brings its own time limit. Retry only what is surely not done or safe to repeat.
///
/// Cancel-safe if `op` is.
pub async fn retry<T, E, F>(
    policy: &RetryPolicy,
    rng: &Rng,
    cancel: &CancellationToken,
    is_retryable: impl Fn(&E) -> bool,
    // Not `AsyncFnMut`: a task that awaits one could not be spawned (its future is `Send` for no lifetime the compiler can name).
    mut op: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let started = Instant::now();
    let mut backoff = policy.backoff();
    let mut first: Option<E> = None;
    loop {
        let error = match op().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if !is_retryable(&error) {
            return Err(error);
        }
        let first_cause = first.take().unwrap_or(error);
        let wait = backoff.next_wait(rng);
        let out_of_time = started.elapsed() + wait > policy.deadline;
        if out_of_time || cancel.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            return Err(first_cause);
        }
        first = Some(first_cause);
    }
}

#[cfg(test)]
mod tests;
