//! The way to the members: which one is asked, for how long, and who is asked next.
//!
//! Each endpoint has a client of its own, never a balanced channel over all of them: which member gets a request is decided here,
//! and so is whether it may be sent again. Calls that may be repeated go on to the next endpoint. A commit does so only when no
//! connection was made. Neither tonic nor etcd-client sends a request twice by itself, except after *invalid auth token*, which
//! etcd answers before it looks at the request.
//!
//! A call that got no answer takes its connection down with it: the member may be gone without a word, and the next call should
//! find that out by connecting, not by waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::fault::Failure;
use super::target::{Access, Target};

/// How long one call of the store may take.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// How long one of several members may take before the next is asked.
const TURN_DEADLINE: Duration = Duration::from_secs(2);
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Pings find peers that vanished while a watch is open. etcd closes connections that ping more often than every 5 seconds, or
/// with nothing under way.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_DEADLINE: Duration = Duration::from_secs(5);

/// Which members may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// Only one that knows a leader; any other refuses at once.
    Led,
    /// Any, also one that is cut off from the others.
    Any,
}

/// The endpoints, and the one in use.
pub(super) struct Links {
    links: Vec<Link>,
    current: AtomicUsize,
    target: Target,
    access: Access,
}

struct Link {
    endpoint: String,
    led: Slot,
    any: Slot,
}

/// A client once one was needed; taken out again when it got no answer.
type Slot = Mutex<Option<Arc<Client>>>;

/// A client in use, and where it came from.
struct Turn<'a> {
    link: &'a Link,
    slot: &'a Slot,
    place: usize,
}

impl Links {
    /// Connects nothing yet.
    pub(super) fn new(target: Target, access: Access) -> Self {
        let slot = || Mutex::new(None);
        let links = target.endpoints.iter();
        let links = links.map(|endpoint| Link { endpoint: endpoint.clone(), led: slot(), any: slot() }).collect();
        Self { links, current: AtomicUsize::new(0), target, access }
    }

    pub(super) fn endpoints(&self) -> String {
        self.target.endpoints.join(", ")
    }

    /// A call that may be repeated: asked of each member until one answers, of a single one twice, since its old connection may
    /// have ended unnoticed.
    pub(super) async fn repeatable<T, F>(
        &self,
        what: &str,
        from: From,
        call: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let give_up = Instant::now() + CALL_DEADLINE;
        let mut first: Option<Failure> = None;
        for _ in 0..self.links.len().max(2) {
            let deadline = match self.links.len() {
                1 => give_up,
                _ => give_up.min(Instant::now() + TURN_DEADLINE),
            };
            match self.ask(what, from, deadline, &call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) if !failure.is_passing() => return Err(failure),
                Err(failure) => {
                    first.get_or_insert(failure);
                }
            }
            if Instant::now() >= give_up {
                break;
            }
        }
        Err(first.expect("each try that went on left its failure"))
    }

    /// A call that is sent at most once.
    pub(super) async fn once<T, F>(&self, what: &str, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let give_up = Instant::now() + CALL_DEADLINE;
        let mut tried = 0;
        loop {
            tried += 1;
            match self.ask(what, From::Led, give_up, &call).await {
                Err(failure) if failure.verdict == super::fault::Verdict::NotSent && tried < self.links.len() => {}
                done => return done,
            }
        }
    }

    async fn ask<T, F>(
        &self,
        what: &str,
        from: From,
        deadline: Instant,
        call: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let began = Instant::now();
        let turn = self.turn(from);
        let mut used = None;
        let asked = timeout_at(deadline, async {
            let client = used.insert(self.client(&turn, from).await?);
            call(Client::clone(client)).await
        });
        let failure = match asked.await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => Failure::answered(what, &turn.link.endpoint, &error),
            Err(_) => {
                turn.give_back(used.as_ref()).await;
                Failure::silent(what, &turn.link.endpoint, began.elapsed())
            }
        };
        if failure.is_passing() {
            self.pass_on(turn.place);
        }
        Err(failure)
    }

    fn turn(&self, from: From) -> Turn<'_> {
        let place = self.current.load(Ordering::Relaxed) % self.links.len();
        let link = &self.links[place];
        Turn { link, slot: if from == From::Led { &link.led } else { &link.any }, place }
    }

    /// The next endpoint's turn, unless another call has passed on already.
    fn pass_on(&self, place: usize) {
        let next = (place + 1) % self.links.len();
        let _ = self.current.compare_exchange(place, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn client(&self, turn: &Turn<'_>, from: From) -> Result<Arc<Client>, etcd_client::Error> {
        let mut slot = turn.slot.lock().await;
        if let Some(client) = slot.as_ref() {
            return Ok(Arc::clone(client));
        }
        let options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_DEADLINE)
            .with_keep_alive(PING_INTERVAL, PING_DEADLINE)
            .with_keep_alive_while_idle(false)
            .with_require_leader(from == From::Led);
        let scheme = if self.target.tls { "https" } else { "http" };
        let url = format!("{scheme}://{}", turn.link.endpoint);
        let client = Arc::new(Client::connect([url], Some(self.access.apply(options, self.target.tls))).await?);
        Ok(Arc::clone(slot.insert(client)))
    }
}

impl Turn<'_> {
    /// Lets go of a client that got no answer, if it is still the one that others would use.
    async fn give_back(&self, used: Option<&Arc<Client>>) {
        let mut slot = self.slot.lock().await;
        if let (Some(held), Some(used)) = (slot.as_ref(), used)
            && Arc::ptr_eq(held, used)
        {
            *slot = None;
        }
    }
}
