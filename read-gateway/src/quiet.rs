use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Waits for a future that may be done at once, without being woken by what it does on the way to its own end.
///
/// The caches do their housekeeping within a caller's future, when some real time has gone by, and its end wakes that caller for
/// nothing. A useless turn of a task costs little, but when it comes is no function of a simulation's seed, and it shifts the
/// turns of all others.
///
/// As cancel-safe as the future.
pub(crate) async fn quietly<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Poll::Ready(output),
        // Something else is waited for: now with someone to wake.
        Poll::Pending => future.as_mut().poll(context),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_future_that_wakes_itself_and_is_done_wakes_nobody() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let noisy = poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Ready(7)
        });
        let mut future = pin!(quietly(noisy));
        assert_eq!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(7));
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn what_comes_later_wakes_its_waiter() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let waiter = tokio::spawn(quietly(receiver));
        tokio::task::yield_now().await;
        sender.send(7).unwrap();
        assert_eq!(waiter.await.unwrap(), Ok(7));
    }
}
