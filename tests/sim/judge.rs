//! What must hold at the end, and in the middle of a single fault.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::{Client, LedgerReader, OpenMode, Opened};
use common::net::Connector as _;
use common::rng::Rng;
use ledger::{ColdRecord, EntryHeader, EntryId, LedgerId, LedgerMetadata};
use metadata::Ledgers;
use proto::client::{AddFlags, decode_response_v2, encode_add_v2};
use proto::v1::Tier;
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use crate::actors::{Gateway, read, recover};
use crate::bookies::BOOKIE_PORT;
use crate::net::SimConnector;
use crate::trace::with_causes;
use crate::world::World;

/// The judge's host.
pub const JUDGE: &str = "judge";
/// Metadata answers are lost at times, so the judge asks more than once.
const TRIES: u32 = 12;

/// What the judge is asked to do.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// See [`audit`]. Whether the gateway can be reached is told with it.
    Audit { gateway: bool },
    /// See [`read_everything`]; it signs with this name.
    ReadEverything(&'static str),
    /// See [`try_old_writers`].
    TryOldWriters,
}

/// How orders reach the judge, and how it is known that all are carried out.
#[derive(Clone, Default)]
pub struct Orders {
    queue: Arc<Mutex<VecDeque<Order>>>,
    begun: Arc<Notify>,
    outstanding: Arc<AtomicUsize>,
}

impl Orders {
    pub fn give(&self, order: Order) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(order);
        self.begun.notify_one();
    }

    pub fn are_done(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed) == 0
    }

    async fn next(&self) -> Order {
        loop {
            let order = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match order {
                Some(order) => return order,
                None => self.begun.notified().await,
            }
        }
    }
}

/// The judge's process: nothing is done to it.
pub async fn run(world: World, orders: Orders) -> turmoil::Result {
    let process = world.process(JUDGE);
    let reach = Reach { client: process.client(), gateway: Gateway };
    loop {
        match orders.next().await {
            Order::Audit { gateway } => audit(&world, &reach, &process.rng, gateway).await,
            Order::ReadEverything(who) => read_everything(&world, &reach, who).await,
            Order::TryOldWriters => try_old_writers(&world).await,
        }
        orders.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The judge's ways to entries.
struct Reach {
    client: Client,
    gateway: Gateway,
}

/// While one bookie is away: what is confirmed of some ledgers is read, by a client whose own links are whole.
async fn audit(world: &World, reach: &Reach, rng: &Rng, gateway: bool) {
    let mut ledgers = world.history.ledgers();
    // With an ack quorum of one a single bookie may be all that has an entry.
    ledgers.retain(|ledger| world.history.of(*ledger).ack_quorum > 1);
    for _ in 0..3.min(ledgers.len()) {
        let ledger = ledgers[rng.below(ledgers.len() as u64) as usize];
        let looks = || async {
            match world.within("open", reach.client.open(ledger, OpenMode::ReadOnly, None)).await {
                Some(Ok(Opened::Hot(reader))) => read_confirmed(world, &reader, "auditor").await,
                Some(Ok(Opened::Cold(record))) if gateway => {
                    read_through_gateway(world, reach, ledger, &record.metadata, Tier::Unspecified, "auditor").await
                }
                Some(Ok(Opened::Cold(_))) => Ok(0),
                Some(Err(error)) => Err(with_causes(&error)),
                None => Err("told already".to_owned()),
            }
        };
        match persist(world, ledger, "auditor", looks).await {
            // An audit that read nothing has shown nothing.
            Ok(0) => {}
            Ok(count) => world.history.count(|counts| {
                counts.audits += 1;
                counts.audited += count;
            }),
            Err(problem) => {
                world.history.violation(3, format!("auditor: with one bookie away: ledger {ledger}: {problem}"));
            }
        }
    }
}

/// Looks again and again, because answers are lost at times, and gives how many entries were read. Nothing is wanted of a deleted
/// ledger.
async fn persist<F>(world: &World, ledger: LedgerId, who: &str, look: impl Fn() -> F) -> Result<u64, String>
where
    F: Future<Output = Result<u64, String>>,
{
    let mut problem = String::new();
    for _ in 0..TRIES {
        if world.history.of(ledger).deleted {
            return Ok(0);
        }
        match look().await {
            Ok(count) => {
                world.trace.note(format_args!("{who}: read {count} entries of ledger {ledger}"));
                return Ok(count);
            }
            Err(_) if world.history.of(ledger).deleted => return Ok(0),
            Err(text) => {
                world.trace.note(format_args!("{who}: ledger {ledger}: {text}"));
                problem = text;
            }
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    Err(problem)
}

async fn read_confirmed(world: &World, reader: &LedgerReader, who: &str) -> Result<u64, String> {
    let last = reader.last_confirmed().await.map_err(|error| with_causes(&error))?;
    let Some(last) = last else { return Ok(0) };
    let read = read(world, reader, EntryId::ZERO..last.next(), who).await;
    read.map_err(|error| error.map_or_else(|| "told already".to_owned(), |error| with_causes(&error)))
}

async fn read_through_gateway(
    world: &World,
    reach: &Reach,
    ledger: LedgerId,
    metadata: &LedgerMetadata,
    tier: Tier,
    who: &str,
) -> Result<u64, String> {
    let Some(last) = metadata.last_entry() else { return Ok(0) };
    reach.gateway.read(world, ledger, EntryId::ZERO..last.next(), tier, who).await
}

/// Everything is healed: closes every ledger and reads all of it by every path that should have it.
async fn read_everything(world: &World, reach: &Reach, who: &str) {
    for ledger in world.history.ledgers() {
        let looks = || async {
            let reader = recover(world, &reach.client, ledger, who).await;
            let reader =
                reader.map_err(|error| error.map_or_else(|| "told already".to_owned(), |e| with_causes(&e)))?;
            let hot = match &reader {
                Some(reader) => read_confirmed(world, reader, who).await?,
                None => 0,
            };
            let record = Ledgers::new(world.truth.clone()).get(ledger).await.map_err(|error| error.to_string())?;
            let Some(record) = record else { return Err("it does not exist".to_owned()) };
            let metadata = &record.metadata;
            let any = read_through_gateway(world, reach, ledger, metadata, Tier::Unspecified, who).await?;
            if ColdRecord::from_metadata(metadata).is_ok_and(|cold| cold.is_some()) {
                read_through_gateway(world, reach, ledger, metadata, Tier::Cold, who).await?;
            }
            if reader.is_some() && hot != any {
                return Err(format!("{hot} entries on bookies, {any} through the gateway"));
            }
            Ok(any)
        };
        if let Err(problem) = persist(world, ledger, who, looks).await {
            world.history.violation(1, format!("{who}: ledger {ledger}: {problem}"));
        }
    }
}

/// Invariant 5, at the bookies: nobody who still believes to be the writer of a recovered ledger gets an ack quorum.
async fn try_old_writers(world: &World) {
    for ledger in world.history.ledgers() {
        let history = world.history.of(ledger);
        let Some(end) = history.end else { continue };
        // A ledger that its writer closed was never fenced.
        if history.closing {
            continue;
        }
        // Its record may name others by now; those whom the writer knows are the ones that must refuse.
        let Some(metadata) = &history.metadata else { continue };
        let quorums = metadata.quorums();
        let Some((digester, key)) = metadata.digester().zip(metadata.master_key()) else { continue };
        let mut entry = end.map_or(EntryId::ZERO, EntryId::next);
        for _ in 0..quorums.ensemble() {
            let header = EntryHeader { ledger, entry, last_confirmed: end, length: 1 << 20 };
            let body = digester.seal(&header, b"from an old writer");
            let mut frame = BytesMut::new();
            encode_add_v2(&key, &body, AddFlags { recovery: false, high_priority: false }, &mut frame);
            let mut stored = 0;
            for index in quorums.write_set(entry) {
                let bookie = &metadata.ensemble_of(entry)[index];
                match ask(&format!("{bookie}:{BOOKIE_PORT}"), &frame).await {
                    Some(Status::Ok) => stored += 1,
                    Some(_) => {}
                    None => world
                        .history
                        .violation(8, format!("{bookie} gives no answer to an old writer of ledger {ledger}")),
                }
            }
            world.history.count(|counts| counts.probes += 1);
            if stored >= quorums.ack() {
                let text =
                    format!("entry {entry} of ledger {ledger}, recovered to {end:?}, was stored by {stored} bookies");
                world.history.violation(5, text);
            }
            entry = entry.next();
        }
    }
}

/// Sends one frame and waits for one answer.
async fn ask(address: &str, frame: &[u8]) -> Option<Status> {
    let exchange = async {
        let mut stream = SimConnector.connect(address).await.ok()?;
        stream.write_all(frame).await.ok()?;
        let (mut decoder, mut buffer) = (FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT), BytesMut::new());
        loop {
            if let Some(payload) = decoder.decode(&mut buffer).ok()? {
                let payload: Bytes = payload;
                return decode_response_v2(payload).ok().map(|response| response.status);
            }
            if stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), exchange).await.ok().flatten()
}
