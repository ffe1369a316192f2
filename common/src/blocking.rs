//! The one door to tokio's pool of blocking threads.

/// Runs `work` on a thread where blocking is allowed and gives its result. `name` says what the thread does, in traces.
///
/// A panic in `work` goes on in the caller, as if it had been called in place.
///
/// Not cancel-safe: when the returned future is dropped `work` still runs to its end, only its result is lost.
pub async fn run_blocking<T, F>(name: &'static str, work: F) -> T
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let span = tracing::trace_span!("blocking", name);
    // The one allowed use: everyone else comes through this function.
    #[allow(clippy::disallowed_methods)]
    let handle = tokio::task::spawn_blocking(move || span.in_scope(work));
    match handle.await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled before it began: the runtime is going down, and this task is about to be dropped with it.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gives_the_result() {
        assert_eq!(run_blocking("add", || 1 + 1).await, 2);
    }

    #[tokio::test]
    #[should_panic(expected = "on the other thread")]
    async fn a_panic_goes_on_in_the_caller() {
        run_blocking("fall", || panic!("on the other thread")).await
    }
}
