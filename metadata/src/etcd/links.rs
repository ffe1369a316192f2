//! The way to the members: which one is asked, for how long, and who is asked next.
//!
//! Each endpoint has a client of its own, never a balanced channel over all of them: which member gets a request is decided here,
//! and so is whether it may be sent again. Calls that may be repeated go on to the next endpoint. A commit does so only when it was
//! surely not done: no connection was made, or the member has no leader. Neither tonic nor etcd-client sends a request twice by itself, except after *invalid auth token*, which
//! etcd answers before it looks at the request.
//!
//! A call that got no answer takes its connection down with it: the member may be gone without a word, and the next call should
//! find that out by connecting, not by waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::retry::RetryPolicy;
use common::rng::Rng;
use etcd_client::{Client, ConnectOptions};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::fault::{Failure, Verdict};
use super::target::{Access, Target};

/// How long one call of the store may take.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// How long one of several members may take before the next is asked.
const TURN_DEADLINE: Duration = Duration::from_secs(2);
/// How long calls are tried again that members refuse quickly.
const PATIENCE: Duration = Duration::from_secs(2);
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
    rng: Rng,
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
    pub(super) fn new(target: Target, access: Access, rng: Rng) -> Self {
        let slot = || Mutex::new(None);
        let links = target.endpoints.iter();
        let links = links.map(|endpoint| Link { endpoint: endpoint.clone(), led: slot(), any: slot() }).collect();
        Self { links, current: AtomicUsize::new(0), target, access, rng }
    }

    pub(super) fn endpoints(&self) -> String {
        self.target.endpoints.join(", ")
    }

    /// A call that may be repeated, whatever became of it.
    pub(super) async fn repeatable<T, F>(
        &self,
        what: &str,
        from: From,
        call: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let turn = if self.links.len() == 1 { CALL_DEADLINE } else { TURN_DEADLINE };
        self.until_answered(what, from, turn, call, Failure::is_passing).await
    }

    /// A call that is sent again only when it was surely not done.
    pub(super) async fn once<T, F>(&self, what: &str, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let not_done = |failure: &Failure| failure.is_passing() && failure.verdict != Verdict::Unclear;
        self.until_answered(what, From::Led, CALL_DEADLINE, call, not_done).await
    }

    /// Asks each member in turn, a single one twice, since its old connection may have ended unnoticed; then all again after a
    /// while, so that an election or a restart is not seen outside. Gives the first failure: later ones are often its echo.
    async fn until_answered<T, F>(
        &self,
        what: &str,
        from: From,
        turn_deadline: Duration,
        call: impl Fn(Client) -> F,
        may_repeat: impl Fn(&Failure) -> bool,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let began = Instant::now();
        let give_up = began + CALL_DEADLINE;
        let mut backoff = RetryPolicy { max: Duration::from_millis(500), ..RetryPolicy::default() }.backoff();
        let mut first: Option<Failure> = None;
        let mut tries = 0;
        // Each member has tokens of its own, and a restarted one knows none.
        let mut renewals_left = self.access.user.as_ref().map_or(0, |_| self.links.len());
        loop {
            let failure = match self.ask(what, from, give_up.min(Instant::now() + turn_deadline), &call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            tries += 1;
            // Whose token a member does not know is asked for the password again, whatever failed before: after a restart the first
            // failure may be that of the old connection.
            let renewed = failure.verdict == Verdict::TokenRefused && renewals_left > 0;
            renewals_left -= usize::from(renewed);
            if !renewed && !may_repeat(&failure) {
                return Err(failure);
            }
            let first_failure = first.take().unwrap_or(failure);
            if tries >= self.links.len().max(2) {
                let wait = backoff.next_wait(&self.rng);
                if began.elapsed() + wait >= PATIENCE {
                    return Err(first_failure);
                }
                tokio::time::sleep(wait).await;
            }
            first = Some(first_failure);
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
        let (failure, useless) = match asked.await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => {
                let failure = Failure::answered(what, &turn.link.endpoint, &error);
                let has_old_token = failure.verdict == Verdict::TokenRefused;
                (failure, has_old_token)
            }
            Err(_) => (Failure::silent(what, &turn.link.endpoint, began.elapsed()), true),
        };
        if useless {
            turn.give_back(used.as_ref());
        }
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
    /// Lets go of a client that got no answer or whose token is refused, if it is still the one that others would use. Someone
    /// who holds the slot now is about to replace it.
    fn give_back(&self, used: Option<&Arc<Client>>) {
        let Ok(mut slot) = self.slot.try_lock() else { return };
        if let (Some(held), Some(used)) = (slot.as_ref(), used)
            && Arc::ptr_eq(held, used)
        {
            *slot = None;
        }
    }
}
