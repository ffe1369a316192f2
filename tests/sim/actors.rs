//! Those who use the ledgers: writers, recovering clients, readers.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, CreateOptions, ErrorKind, LedgerReader, OpenMode, Opened};
use common::rng::Rng;
use futures::StreamExt as _;
use ledger::{DigestType, EntryId, LedgerId, Password, Quorums};
use proto::v1::ledgers_client::LedgersClient;
use proto::v1::read_entries_request::Message as Ask;
use proto::v1::{self, Tier};
use tonic::Code;

use crate::net::channel;
use crate::tiering::GATEWAY_ADDRESS;
use crate::trace::with_causes;
use crate::world::{Process, World};

/// How long a read through the gateway may take.
const SILENCE: Duration = Duration::from_secs(10);
/// What opens every ledger.
const PASSWORD: &[u8] = b"secret";

/// Hosts of those who write, recover and read.
pub const WRITERS: [&str; 2] = ["writer-0", "writer-1"];
pub const RECOVERERS: [&str; 2] = ["recoverer-0", "recoverer-1"];
pub const READERS: [&str; 2] = ["reader", "gateway-reader"];

/// Writes one ledger after the other, each by a client of its own, until the run is over.
pub async fn writer(world: World, name: &'static str) -> turmoil::Result {
    let process = world.process(name);
    while !world.is_over() {
        write_ledger(&world, name, &process).await;
        world.pause(&process.rng, 1..400).await;
    }
    Ok(())
}

fn options(rng: &Rng) -> CreateOptions {
    let shapes = [(3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 1), (3, 2, 1)];
    let (ensemble, write, ack) = shapes[rng.below(shapes.len() as u64) as usize];
    let digests = [DigestType::Crc32c, DigestType::Crc32, DigestType::Hmac];
    CreateOptions {
        quorums: Quorums::new(ensemble, write, ack).expect("valid sizes"),
        digest: digests[rng.below(3) as usize],
        password: Password::new(PASSWORD),
        custom: Vec::new(),
    }
}

fn payload(rng: &Rng) -> Bytes {
    let bytes = match rng.below(40) {
        0 => 0,
        1 => 20_000 + rng.below(30_000),
        _ => 1 + rng.below(600),
    };
    let mut payload = vec![0; bytes as usize];
    rng.fill(&mut payload);
    payload.into()
}

async fn write_ledger(world: &World, name: &str, process: &Process) {
    let (trace, history, rng) = (&world.trace, &world.history, &process.rng);
    let client = process.client();
    let writer = match world.within("create", client.create(options(rng))).await {
        Some(Ok(writer)) => writer,
        Some(Err(error)) => return trace.note(format_args!("{name}: {}", with_causes(&error))),
        None => return,
    };
    let ledger = writer.id();
    history.created(ledger, writer.metadata());
    let mut appends = Vec::new();
    let mut confirmed = None;
    for _ in 0..rng.below(250) {
        if rng.below(3) == 0 {
            world.pause(rng, 1..12).await;
        }
        let payload = payload(rng);
        history.appends(ledger, payload.clone());
        match world.within("append", writer.append(payload)).await {
            Some(Ok(append)) => {
                history.appended(ledger, append.entry());
                appends.push(tokio::spawn(follow(world.clone(), ledger, append)));
            }
            Some(Err(error)) => {
                trace.note(format_args!("{name}: {}", with_causes(&error)));
                break;
            }
            None => break,
        }
        let now = writer.last_confirmed();
        if now < confirmed {
            history.violation(2, format!("{name}: ledger {ledger} was confirmed to {confirmed:?}, now to {now:?}"));
        }
        confirmed = now;
        history.confirmed(ledger, confirmed, name);
        if world.is_over() {
            break;
        }
    }
    match rng.below(4) {
        0 | 1 => trace.note(format_args!("{name} leaves ledger {ledger} open")),
        _ => {
            history.mark(ledger, |history| history.closing = true);
            match world.within("close", writer.close()).await {
                Some(Ok(metadata)) => history.closed(ledger, &metadata, name),
                Some(Err(error)) => trace.note(format_args!("{name}: {}", with_causes(&error))),
                None => {}
            }
        }
    }
    for append in appends {
        append.await.expect("a follower does not panic");
    }
}

/// Waits for the outcome of an append.
async fn follow(world: World, ledger: LedgerId, append: client::Append) {
    let entry = append.entry();
    match world.within("the outcome of an append", append).await {
        Some(Ok(told)) => {
            if told != entry {
                world.history.violation(2, format!("append {entry} of ledger {ledger} was told to be entry {told}"));
            }
            world.history.acknowledged(ledger, entry);
        }
        Some(Err(error)) => world.history.failed(ledger, entry, error.may_have_happened()),
        None => {}
    }
}

/// Takes ledgers from their writers until the run is over; deletes some that are closed.
pub async fn recoverer(world: World, name: &'static str) -> turmoil::Result {
    let process = world.process(name);
    let (client, rng) = (process.client(), &process.rng);
    while !world.is_over() {
        world.pause(rng, 50..2_500).await;
        let ledgers = world.history.ledgers();
        // The newest are those with something going on.
        let recent = &ledgers[ledgers.len().saturating_sub(5)..];
        let Some(ledger) = recent.get(rng.below(recent.len() as u64) as usize).copied() else { continue };
        if world.history.of(ledger).end.is_some() && rng.below(12) == 0 {
            delete(&world, &client, ledger, name).await;
        } else if rng.below(10) == 0 {
            // Gives up on the way.
            world.trace.note(format_args!("{name}: recovers ledger {ledger} and gives up"));
            let gives_up = tokio::time::sleep(Duration::from_millis(rng.below(100)));
            tokio::select! {
                biased;
                () = gives_up => {}
                _ = recover(&world, &client, ledger, name) => {}
            }
        } else {
            let _ = recover(&world, &client, ledger, name).await;
        }
    }
    Ok(())
}

/// Opens a ledger with recovery; no reader when it has left the bookies.
pub async fn recover(
    world: &World,
    client: &Client,
    ledger: LedgerId,
    who: &str,
) -> Result<Option<LedgerReader>, Option<client::Error>> {
    world.trace.note(format_args!("{who}: recovers ledger {ledger}"));
    match world.within("recover", client.open(ledger, OpenMode::Recover, None)).await {
        Some(Ok(Opened::Hot(reader))) => {
            world.history.count(|counts| counts.recoveries += 1);
            world.history.closed(ledger, &reader.metadata(), who);
            Ok(Some(reader))
        }
        Some(Ok(Opened::Cold(record))) => {
            world.history.closed(ledger, &record.metadata, who);
            Ok(None)
        }
        Some(Err(error)) => {
            world.trace.note(format_args!("{who}: {}", with_causes(&error)));
            Err(Some(error))
        }
        None => Err(None),
    }
}

async fn delete(world: &World, client: &Client, ledger: LedgerId, who: &str) {
    world.history.mark(ledger, |history| history.deleted = true);
    match world.within("delete", client.delete(ledger)).await {
        Some(Ok(())) => {
            world.history.count(|counts| counts.deleted += 1);
            world.trace.note(format_args!("{who}: ledger {ledger} is deleted"));
        }
        Some(Err(error)) => world.trace.note(format_args!("{who}: {}", with_causes(&error))),
        None => {}
    }
}

/// Reads what is confirmed of open and closed ledgers from the bookies until the run is over.
pub async fn reader(world: World, name: &'static str) -> turmoil::Result {
    let process = world.process(name);
    let (client, rng) = (process.client(), &process.rng);
    while !world.is_over() {
        world.pause(rng, 5..300).await;
        let ledgers = world.history.ledgers();
        let Some(ledger) = ledgers.get(rng.below(ledgers.len() as u64) as usize).copied() else { continue };
        match world.within("open", client.open(ledger, OpenMode::ReadOnly, None)).await {
            Some(Ok(Opened::Hot(reader))) => tail(&world, &reader, rng, name).await,
            Some(Ok(Opened::Cold(record))) => world.history.closed(ledger, &record.metadata, name),
            Some(Err(error)) => world.trace.note(format_args!("{name}: {}", with_causes(&error))),
            None => {}
        }
    }
    Ok(())
}

/// Reads ranges of closed ledgers through the gateway until the run is over.
pub async fn gateway_reader(world: World, name: &'static str) -> turmoil::Result {
    let process = world.process(name);
    let (gateway, rng) = (Gateway, &process.rng);
    while !world.is_over() {
        world.pause(rng, 5..400).await;
        let mut ledgers = world.history.ledgers();
        ledgers.retain(|ledger| world.history.of(*ledger).end.is_some());
        let Some(ledger) = ledgers.get(rng.below(ledgers.len() as u64) as usize).copied() else { continue };
        let Some(Some(last)) = world.history.of(ledger).end else { continue };
        let first = EntryId::new(rng.below(last.get() + 1)).expect("a small id");
        let count = 1 + rng.below(last.get() + 1 - first.get());
        let end = EntryId::new(first.get() + count).expect("a small id");
        if let Err(text) = gateway.read(&world, ledger, first..end, Tier::Unspecified, name).await {
            world.trace.note(format_args!("{name}: ledger {ledger}: {text}"));
        }
    }
    Ok(())
}

/// The way to the gateway from the host that runs. Each read has a connection of its own: one that has many behind it remembers
/// streams that were reset for a second of real time, and a few of them, so that what it sends would depend on the machine.
pub struct Gateway;

impl Gateway {
    /// Reads a range that is within a closed ledger. Only a failure to reach enough of the world is an excuse.
    pub async fn read(
        &self,
        world: &World,
        ledger: LedgerId,
        range: Range<EntryId>,
        tier: Tier,
        who: &str,
    ) -> Result<u64, String> {
        // A lost message silences the connection for good, and nothing else tells.
        let reads = self.read_unbounded(world, ledger, range, tier, who);
        let read = tokio::time::timeout(SILENCE, reads).await;
        read.unwrap_or_else(|_| Err(format!("through the gateway: no answer within {SILENCE:?}")))
    }

    async fn read_unbounded(
        &self,
        world: &World,
        ledger: LedgerId,
        range: Range<EntryId>,
        tier: Tier,
        who: &str,
    ) -> Result<u64, String> {
        let start = v1::ReadStart {
            ledger_id: ledger.get(),
            first_entry_id: range.start.get(),
            end_entry_id: Some(range.end.get()),
            tier: tier.into(),
            follow: false,
            initial_credit_bytes: 32 << 10,
            password: Bytes::from_static(PASSWORD),
        };
        let (credit, requests) = tokio::sync::mpsc::channel(64);
        let start = v1::ReadEntriesRequest { message: Some(Ask::Start(start)) };
        credit.send(start).await.map_err(|error| error.to_string())?;
        let mut next = range.start;
        let outcome = async {
            let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
            let ledgers = LedgersClient::new(channel(GATEWAY_ADDRESS));
            let mut ledgers = ledgers.max_decoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX);
            let mut answers = ledgers.read_entries(requests).await?.into_inner();
            while let Some(answer) = answers.message().await? {
                let mut bytes = 0;
                for entry in answer.entries {
                    if entry.entry_id != next.get() {
                        let text = format!("{who}: entry {} of ledger {ledger} came, not {next}", entry.entry_id);
                        world.history.violation(6, text);
                    }
                    bytes += entry.payload.len() as u64;
                    world.history.count(|counts| match entry.tier() {
                        Tier::Cold => counts.gateway_cold += 1,
                        _ => counts.gateway_hot += 1,
                    });
                    world.history.read(ledger, next, &entry.payload, who);
                    next = next.next();
                }
                let grant = v1::ReadEntriesRequest { message: Some(Ask::Credit(v1::ReadCredit { bytes })) };
                // The server may have sent all there is, and listen no more.
                let _ = credit.try_send(grant);
            }
            Ok::<(), tonic::Status>(())
        };
        match outcome.await {
            Ok(()) if next == range.end => Ok(range.end.since(range.start)),
            Ok(()) => {
                let text = format!("the stream ended before entry {next}");
                world.history.violation(1, format!("{who}: ledger {ledger}, through the gateway: {text}"));
                Err(text)
            }
            Err(status) => {
                let absent = [Code::DataLoss, Code::OutOfRange, Code::NotFound, Code::PermissionDenied];
                if absent.contains(&status.code()) && !world.history.of(ledger).deleted {
                    let text = format!("{who}: entry {next} of ledger {ledger}, through the gateway: {status}");
                    world.history.violation(1, text);
                }
                Err(format!("entry {next} through the gateway: {:?}: {}", status.code(), status.message()))
            }
        }
    }
}

/// Follows one ledger for a while.
async fn tail(world: &World, reader: &LedgerReader, rng: &Rng, name: &str) {
    let ledger = reader.id();
    let mut confirmed = None;
    for _ in 0..1 + rng.below(6) {
        match world.within("last confirmed", reader.last_confirmed()).await {
            Some(Ok(now)) => {
                if now < confirmed {
                    let text = format!("{name}: ledger {ledger} was confirmed to {confirmed:?}, now to {now:?}");
                    world.history.violation(2, text);
                }
                confirmed = now;
                world.history.confirmed(ledger, now, name);
            }
            Some(Err(error)) => return world.trace.note(format_args!("{name}: {}", with_causes(&error))),
            None => return,
        }
        let Some(last) = confirmed else { return };
        let first = EntryId::new(rng.below(last.get() + 1)).expect("a small id");
        if let Err(Some(error)) = read(world, reader, first..last.next(), name).await {
            world.trace.note(format_args!("{name}: {}", with_causes(&error)));
        }
        world.pause(rng, 1..80).await;
    }
}

/// Reads a range that is confirmed. Only a failure to reach enough of the world is an excuse for an entry that does not come.
pub async fn read(
    world: &World,
    reader: &LedgerReader,
    range: Range<EntryId>,
    who: &str,
) -> Result<u64, Option<client::Error>> {
    let ledger = reader.id();
    let mut entries = Box::pin(reader.read(range.clone()));
    let mut next = range.start;
    loop {
        match world.within("read", entries.next()).await {
            Some(Some(Ok(found))) => {
                let id = found.entry.header.entry;
                if id != next {
                    world.history.violation(6, format!("{who}: entry {id} of ledger {ledger} came, not {next}"));
                }
                world.history.read(ledger, id, &found.entry.payload, who);
                next = id.next();
            }
            Some(Some(Err(error))) => {
                let absent =
                    [ErrorKind::Damaged, ErrorKind::NoSuchEntry, ErrorKind::NotConfirmed, ErrorKind::NoSuchLedger];
                let history = world.history.of(ledger);
                if absent.contains(&error.kind()) && !history.deleted && !history.released {
                    let text = format!("{who}: entry {next} of ledger {ledger} is confirmed: {}", with_causes(&error));
                    world.history.violation(1, text);
                }
                return Err(Some(error));
            }
            Some(None) if next == range.end => return Ok(range.end.since(range.start)),
            Some(None) => {
                world.history.violation(1, format!("{who}: a read of ledger {ledger} ended before entry {next}"));
                return Err(None);
            }
            None => return Err(None),
        }
    }
}
