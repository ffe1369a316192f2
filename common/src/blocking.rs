//! The one door to tokio's pool of blocking threads.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `work` on a thread where blocking is allowed and gives its result. `name` says what the thread does, in traces.
///
/// On a single-threaded runtime `work` runs in place: whoever asked for one thread gets one. A simulation needs that, because
/// the moment at which a second thread is done is no function of a seed; a test loses nothing, because it has nobody else to
/// serve. So `work` may wait for the machine (a disk, a processor), and where it waits for other tasks (a full channel, say)
/// it belongs to a program with a multi-threaded runtime.
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
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return span.in_scope(work);
    }
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn gives_the_result_of_another_thread() {
        let here = std::thread::current().id();
        let there = run_blocking("look around", || std::thread::current().id()).await;
        assert_ne!(there, here);
    }

    #[tokio::test]
    async fn a_single_threaded_runtime_does_it_in_place() {
        let here = std::thread::current().id();
        let there = run_blocking("look around", || std::thread::current().id()).await;
        assert_eq!(there, here);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    #[should_panic(expected = "on the other thread")]
    async fn a_panic_goes_on_in_the_caller() {
        run_blocking("fall", || panic!("on the other thread")).await
    }
}
