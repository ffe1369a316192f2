//! Where members answer, and the connections to these places: one each, opened when it is needed.
//!
//! A member is found by its registration, which is kept for a short time and looked up anew once it led nowhere: cold ids move from
//! gateway to gateway. While it cannot be looked up the place that it led to is the best there is. All cold ids of a ledger lead to
//! one place, which is asked once.
//!
//! # Bounds
//! [`LOOKUPS_MAX`] registrations are looked up at the same time. No more than a part of all questions is under way at one place: the
//! others go on to the next one. A place that takes no connection is tried by one of those who would ask
//! it, and again after a pause: the others go on to the next place at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::budget::ByteBudget;
use common::metrics::Gauge;
use common::net::Connector;
use common::shutdown::TaskTree;
use ledger::BookieId;
use metadata::Bookies;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::link::{Answer, Asked, Link, Question};

/// How long a registration is believed without a look.
const ADDRESS_KEPT: Duration = Duration::from_secs(30);
/// How long a member stays known to be registered nowhere.
const ABSENCE_KEPT: Duration = Duration::from_secs(1);
/// How long a member is believed to be where it was, after a look that found no metadata.
const SILENCE_KEPT: Duration = Duration::from_secs(1);
/// How long such a look may take where the member is known to have been somewhere.
const PATIENCE: Duration = Duration::from_millis(300);
const ADDRESSES_MAX: usize = 4096;
/// Registrations that are looked up at the same time.
const LOOKUPS_MAX: usize = 16;
/// How long a place that took no connection is left alone.
const REFUSED: Duration = Duration::from_millis(250);
/// Places with a connection at the same time.
const LINKS_MAX: usize = 64;
/// Questions that wait for a connection, beside those it has sent.
const QUEUE: usize = 64;
/// How long a place that gave no answer is asked after the others.
const SUSPECTED: Duration = Duration::from_secs(10);
/// How much longer than a question may take a place may be silent: one that answers at its own deadline is alive.
const SILENCE: Duration = Duration::from_secs(2);
/// What an answer of version 3 may have beside an entry that came in the longest frame of version 2.
const ANSWER_HEAD_BYTES: usize = 256;

/// An address, and the members that are found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: String,
    pub(super) members: Vec<BookieId>,
}

/// Why there is no answer of a place.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("it did not answer in time")]
    Late,
    #[error("the connection was lost")]
    Lost,
    #[error("it took no connection a moment ago")]
    Refused,
    #[error("too many others wait for it")]
    Crowded(Crowd),
}

/// Those who wait for a place.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    address: String,
    places: Arc<Semaphore>,
}

/// What a question needs to be under way at a place.
#[derive(Debug)]
pub(super) struct Pass {
    address: String,
    _one: OwnedSemaphorePermit,
}

impl Crowd {
    /// Waits in line for the place. Cancel-safe.
    pub(super) async fn pass(&self) -> Option<Pass> {
        // The semaphore is never closed.
        let one = self.places.clone().acquire_owned().await.ok()?;
        Some(Pass { address: self.address.clone(), _one: one })
    }

    fn try_pass(&self) -> Option<Pass> {
        let one = self.places.clone().try_acquire_owned().ok()?;
        Some(Pass { address: self.address.clone(), _one: one })
    }
}

/// What a place is asked with.
pub(super) struct PeersParts {
    pub(super) bookies: Bookies,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) budget: ByteBudget,
    pub(super) tasks: TaskTree,
    /// This bookie's own address, where nobody is asked.
    pub(super) own_address: String,
    pub(super) frame_bytes_max: usize,
    /// Questions that may be under way at one place.
    pub(super) place_part: usize,
    /// The longest that a question may take.
    pub(super) deadline: Duration,
    /// Counts connections.
    pub(super) connections: Gauge,
}

#[derive(Clone)]
struct Line {
    questions: mpsc::Sender<Asked>,
    /// Whether the place took the connection.
    connected: Arc<AtomicBool>,
    used: Instant,
}

/// Where a member was found.
#[derive(Clone)]
struct Found {
    /// `None`: nowhere.
    address: Option<String>,
    fresh_until: Instant,
}

/// See the module.
pub(super) struct Peers {
    parts: PeersParts,
    addresses: Mutex<BTreeMap<BookieId, Found>>,
    lookups: Semaphore,
    links: Mutex<BTreeMap<String, Line>>,
    /// Places that gave no answer lately.
    suspects: Mutex<BTreeMap<String, Instant>>,
    /// What those who ask take a part of, by place.
    crowds: Mutex<BTreeMap<String, Arc<Semaphore>>>,
    /// Places that took no connection lately.
    refused: Arc<Mutex<BTreeMap<String, Instant>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    pub(super) fn new(parts: PeersParts) -> Self {
        Self {
            parts,
            addresses: Mutex::default(),
            lookups: Semaphore::new(LOOKUPS_MAX),
            links: Mutex::default(),
            suspects: Mutex::default(),
            crowds: Mutex::default(),
            refused: Arc::default(),
        }
    }

    /// The places of some members in their order, suspects behind the others, and how many members have none. Cancel-safe.
    pub(super) async fn places(&self, members: &[BookieId]) -> (Vec<Place>, usize) {
        let (mut places, mut unknown) = (Vec::<Place>::new(), 0);
        for member in members {
            match self.address(member).await {
                Some(address) if address != self.parts.own_address => {
                    match places.iter_mut().find(|place| place.address == address) {
                        Some(place) => place.members.push(member.clone()),
                        None => places.push(Place { address, members: vec![member.clone()] }),
                    }
                }
                _ => unknown += 1,
            }
        }
        let (suspects, now) = (lock(&self.suspects), Instant::now());
        places.sort_by_key(|place| suspects.get(&place.address).is_some_and(|until| *until > now));
        (places, unknown)
    }

    async fn address(&self, member: &BookieId) -> Option<String> {
        if let Some(found) = self.found(member) {
            return found.address;
        }
        let older = lock(&self.addresses).get(member).and_then(|found| found.address.clone());
        let looked = match older {
            Some(_) => tokio::time::timeout(PATIENCE, self.look_up(member)).await.unwrap_or(None),
            None => self.look_up(member).await,
        };
        let (address, kept) = match looked {
            Some(address @ Some(_)) => (address, ADDRESS_KEPT),
            Some(None) => (None, ABSENCE_KEPT),
            // Not every read is to wait for that.
            None => (Some(older?), SILENCE_KEPT),
        };
        let mut addresses = lock(&self.addresses);
        if addresses.len() >= ADDRESSES_MAX {
            addresses.clear();
        }
        addresses.insert(member.clone(), Found { address: address.clone(), fresh_until: Instant::now() + kept });
        address
    }

    /// The address of a member, if it has one; `None` without an answer of metadata.
    async fn look_up(&self, member: &BookieId) -> Option<Option<String>> {
        // The semaphore is never closed.
        let _one = self.lookups.acquire().await.ok();
        // Others may have looked meanwhile.
        if let Some(found) = self.found(member) {
            return Some(found.address);
        }
        match self.parts.bookies.get(member).await {
            Ok(found) => Some(found.map(|(info, _)| info.address)),
            Err(error) => {
                tracing::debug!(%member, error = &error as &dyn std::error::Error, "look up a member to relay a read");
                None
            }
        }
    }

    /// Where a member was found, if that is still believed.
    fn found(&self, member: &BookieId) -> Option<Found> {
        lock(&self.addresses).get(member).filter(|found| found.fresh_until > Instant::now()).cloned()
    }

    fn crowd(&self, address: &str) -> Crowd {
        let mut crowds = lock(&self.crowds);
        if crowds.len() >= LINKS_MAX && !crowds.contains_key(address) {
            // Nobody asks there, or waits for it.
            crowds.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let places = crowds.entry(address.to_owned());
        let places = places.or_insert_with(|| Arc::new(Semaphore::new(self.parts.place_part)));
        Crowd { address: address.to_owned(), places: places.clone() }
    }

    /// Asks a place, with a `pass` if there is one for it. One that gives no answer in time is looked up anew the next time. Cancel-safe.
    ///
    /// # Errors
    /// When there is no answer.
    pub(super) async fn ask(
        &self,
        place: &Place,
        question: &Question,
        until: Instant,
        pass: &mut Option<Pass>,
    ) -> Result<Answer, NoAnswer> {
        let _pass = match pass.take_if(|pass| pass.address == place.address) {
            Some(pass) => pass,
            None => {
                let crowd = self.crowd(&place.address);
                crowd.try_pass().ok_or(NoAnswer::Crowded(crowd))?
            }
        };
        let asked = tokio::time::timeout_at(until, self.ask_line(&place.address, question, until)).await;
        let answer = asked.unwrap_or(Err(NoAnswer::Late));
        match &answer {
            Ok(_) => drop(lock(&self.suspects).remove(&place.address)),
            Err(_) => self.doubt(place),
        }
        answer
    }

    async fn ask_line(&self, address: &str, question: &Question, until: Instant) -> Result<Answer, NoAnswer> {
        loop {
            let Some((line, is_new)) = self.line(address) else { return Err(NoAnswer::Refused) };
            let (answer, answered) = oneshot::channel();
            let asked = Asked { question: question.clone(), until, answer };
            if line.questions.send(asked).await.is_ok()
                && let Ok(answer) = answered.await
            {
                return Ok(answer);
            }
            // One that was open before may have ended for want of questions, or with its peer's process. One that never was open would
            // not be the next time either.
            if is_new || !line.connected.load(Ordering::Acquire) {
                return Err(NoAnswer::Lost);
            }
        }
    }

    fn doubt(&self, place: &Place) {
        let now = Instant::now();
        {
            let mut suspects = lock(&self.suspects);
            suspects.retain(|_, until| *until > now);
            suspects.insert(place.address.clone(), now + SUSPECTED);
        }
        let mut addresses = lock(&self.addresses);
        for member in &place.members {
            if let Some(found) = addresses.get_mut(member) {
                found.fresh_until = now;
            }
        }
    }

    /// The way to a place, and whether it was opened now; `None` when the place took no connection a moment ago.
    fn line(&self, address: &str) -> Option<(Line, bool)> {
        let (mut links, now) = (lock(&self.links), Instant::now());
        if let Some(line) = links.get_mut(address).filter(|line| !line.questions.is_closed()) {
            line.used = now;
            return Some((line.clone(), false));
        }
        if lock(&self.refused).get(address).is_some_and(|until| *until > now) {
            return None;
        }
        links.retain(|_, line| !line.questions.is_closed());
        if links.len() >= LINKS_MAX
            && let Some(oldest) = links.iter().min_by_key(|(_, line)| line.used).map(|(address, _)| address.clone())
        {
            // It ends once what it was asked is answered.
            links.remove(&oldest);
        }
        let (questions, queue) = mpsc::channel(QUEUE);
        let line = Line { questions, connected: Arc::default(), used: now };
        links.insert(address.to_owned(), line.clone());
        self.open(address.to_owned(), line.connected.clone(), queue);
        Some((line, true))
    }

    fn open(&self, address: String, connected: Arc<AtomicBool>, mut queue: mpsc::Receiver<Asked>) {
        let parts = &self.parts;
        let (connector, tasks, connections) = (parts.connector.clone(), parts.tasks.clone(), parts.connections.clone());
        let frame_bytes_max = parts.frame_bytes_max.saturating_add(ANSWER_HEAD_BYTES);
        let link = Link::new(parts.budget.clone(), frame_bytes_max, parts.deadline + SILENCE);
        let refused = self.refused.clone();
        let serve = async move {
            let stream = connector.connect(&address).await.inspect_err(|_| {
                let (mut refused, now) = (lock(&refused), Instant::now());
                refused.retain(|_, until| *until > now);
                refused.insert(address.clone(), now + REFUSED);
            })?;
            connected.store(true, Ordering::Release);
            let _open = connections.hold();
            link.run(stream, &mut queue).await
        };
        let task = async move {
            let end = tokio::select! {
                () = tasks.stopping() => return,
                end = serve => end,
            };
            if let Err(loss) = end {
                tracing::debug!(%loss, "a connection to relay reads is over");
            }
        };
        self.parts.tasks.spawn("relay connection", task);
    }
}
