//! Those who use the ledgers: writers, recovering clients, readers.

use std::ops::Range;

use bytes::Bytes;
use client::{CreateOptions, ErrorKind, LedgerReader, OpenMode, Opened};
use common::rng::Rng;
use futures::StreamExt as _;
use ledger::{DigestType, EntryId, LedgerId, Password, Quorums};

use crate::trace::with_causes;
use crate::world::{SimClient, World};

/// Names of client processes, for faults of their links.
pub const CLIENTS: [&str; 5] = ["writer-0", "writer-1", "recoverer-0", "recoverer-1", "reader"];

/// Writes one ledger after the other, each by a process of its own, until the run is over.
pub async fn writer(world: World, name: &'static str) {
    let rng = world.rng.fork();
    while !world.is_over() {
        write_ledger(&world, name, &rng).await;
        world.pause(&rng, 1..400).await;
    }
}

fn options(rng: &Rng) -> CreateOptions {
    let shapes = [(3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 1), (3, 2, 1)];
    let (ensemble, write, ack) = shapes[rng.below(shapes.len() as u64) as usize];
    let digests = [DigestType::Crc32c, DigestType::Crc32, DigestType::Hmac];
    CreateOptions {
        quorums: Quorums::new(ensemble, write, ack).expect("valid sizes"),
        digest: digests[rng.below(3) as usize],
        password: Password::new(&b"secret"[..]),
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

async fn write_ledger(world: &World, name: &str, rng: &Rng) {
    let (trace, history) = (&world.trace, &world.history);
    let process = world.client(name);
    let writer = match world.within("create", process.client.create(options(rng))).await {
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
        match world.within("append", writer.append(payload.clone())).await {
            Some(Ok(append)) => {
                history.appended(ledger, append.entry(), payload);
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
        0 => {
            trace.note(format_args!("{name} dies, ledger {ledger} is left open"));
            process.kill();
        }
        1 => trace.note(format_args!("{name} leaves ledger {ledger} open")),
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
pub async fn recoverer(world: World, name: &'static str) {
    let rng = world.rng.fork();
    let mut process = world.client(name);
    while !world.is_over() {
        world.pause(&rng, 50..2_500).await;
        let ledgers = world.history.ledgers();
        // The newest are those with something going on.
        let recent = &ledgers[ledgers.len().saturating_sub(5)..];
        let Some(ledger) = recent.get(rng.below(recent.len() as u64) as usize).copied() else { continue };
        if world.history.of(ledger).end.is_some() && rng.below(12) == 0 {
            delete(&world, &process, ledger, name).await;
        } else if rng.below(10) == 0 {
            // Dies on the way.
            world.trace.note(format_args!("{name}: recovers ledger {ledger} and dies"));
            let dies = tokio::time::sleep(std::time::Duration::from_millis(rng.below(100)));
            tokio::select! {
                biased;
                () = dies => {}
                _ = recover(&world, &process, ledger, name) => {}
            }
            process = world.client(name);
        } else {
            let _ = recover(&world, &process, ledger, name).await;
        }
    }
}

/// Opens a ledger with recovery.
pub async fn recover(
    world: &World,
    process: &SimClient,
    ledger: LedgerId,
    who: &str,
) -> Result<LedgerReader, Option<client::Error>> {
    world.trace.note(format_args!("{who}: recovers ledger {ledger}"));
    match world.within("recover", process.client.open(ledger, OpenMode::Recover, None)).await {
        Some(Ok(Opened::Hot(reader))) => {
            world.history.count(|counts| counts.recoveries += 1);
            world.history.closed(ledger, &reader.metadata(), who);
            Ok(reader)
        }
        Some(Ok(Opened::Cold(_))) => {
            world.history.violation(1, format!("{who}: ledger {ledger} is cold, and nobody has moved it"));
            Err(None)
        }
        Some(Err(error)) => {
            world.trace.note(format_args!("{who}: {}", with_causes(&error)));
            Err(Some(error))
        }
        None => Err(None),
    }
}

async fn delete(world: &World, process: &SimClient, ledger: LedgerId, who: &str) {
    world.history.mark(ledger, |history| history.deleted = true);
    match world.within("delete", process.client.delete(ledger)).await {
        Some(Ok(())) => {
            world.history.count(|counts| counts.deleted += 1);
            world.trace.note(format_args!("{who}: ledger {ledger} is deleted"));
        }
        Some(Err(error)) => world.trace.note(format_args!("{who}: {}", with_causes(&error))),
        None => {}
    }
}

/// Reads what is confirmed of open and closed ledgers until the run is over.
pub async fn reader(world: World, name: &'static str) {
    let rng = world.rng.fork();
    let process = world.client(name);
    while !world.is_over() {
        world.pause(&rng, 5..300).await;
        let ledgers = world.history.ledgers();
        let Some(ledger) = ledgers.get(rng.below(ledgers.len() as u64) as usize).copied() else { continue };
        let Some(opened) = world.within("open", process.client.open(ledger, OpenMode::ReadOnly, None)).await else {
            continue;
        };
        match opened {
            Ok(Opened::Hot(reader)) => tail(&world, &reader, &rng, name).await,
            Ok(Opened::Cold(_)) => world.history.violation(1, format!("{name}: ledger {ledger} is cold")),
            Err(error) => world.trace.note(format_args!("{name}: {}", with_causes(&error))),
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
                if absent.contains(&error.kind()) && !world.history.of(ledger).deleted {
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
