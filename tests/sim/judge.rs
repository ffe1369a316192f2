//! What must hold at the end, and in the middle of a single fault.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::{LedgerReader, OpenMode, Opened};
use common::rng::Rng;
use ledger::{EntryHeader, EntryId, LedgerId};
use metadata::Ledgers;
use proto::client::{AddFlags, decode_response_v2, encode_add_v2};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::actors::{read, recover};
use crate::trace::with_causes;
use crate::world::{SimClient, World};

/// Metadata answers are lost at times, so the judge asks more than once.
const TRIES: u32 = 12;

/// While one bookie is away: what is confirmed of some ledgers is read, by a client whose own links are whole.
pub async fn audit(world: &World, rng: &Rng) {
    let process = world.client("auditor");
    let mut ledgers = world.history.ledgers();
    // With an ack quorum of one a single bookie may be all that has an entry.
    ledgers.retain(|ledger| world.history.of(*ledger).ack_quorum > 1);
    for _ in 0..3.min(ledgers.len()) {
        let ledger = ledgers[rng.below(ledgers.len() as u64) as usize];
        world.history.count(|counts| counts.audits += 1);
        if let Err(problem) = audit_ledger(world, &process, ledger).await {
            world.history.violation(1, format!("auditor: with one bookie away: ledger {ledger}: {problem}"));
        }
    }
}

async fn audit_ledger(world: &World, process: &SimClient, ledger: LedgerId) -> Result<(), String> {
    let mut problem = String::new();
    for _ in 0..TRIES {
        let outcome = match world.within("open", process.client.open(ledger, OpenMode::ReadOnly, None)).await {
            Some(Ok(Opened::Hot(reader))) => read_confirmed(world, &reader, "auditor").await,
            Some(Ok(Opened::Cold(_))) => Err("it is cold".to_owned()),
            Some(Err(error)) => Err(with_causes(&error)),
            None => return Ok(()),
        };
        match outcome {
            Ok(count) => {
                world.trace.note(format_args!("auditor: read {count} entries of ledger {ledger}"));
                return Ok(());
            }
            Err(_) if world.history.of(ledger).deleted => return Ok(()),
            Err(text) => problem = text,
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

/// Everything is healed: closes every ledger and reads all that was acknowledged.
pub async fn read_everything(world: &World, who: &str) {
    let process = world.client(who);
    for ledger in world.history.ledgers() {
        if let Err(problem) = read_ledger(world, &process, ledger, who).await {
            world.history.violation(1, format!("{who}: ledger {ledger}: {problem}"));
        }
    }
}

async fn read_ledger(world: &World, process: &SimClient, ledger: LedgerId, who: &str) -> Result<(), String> {
    let mut problem = String::new();
    for _ in 0..TRIES {
        let history = world.history.of(ledger);
        if history.deleted {
            return Ok(());
        }
        match recover(world, process, ledger, who).await {
            Ok(reader) => match read_confirmed(world, &reader, who).await {
                Ok(count) => {
                    // Whatever lies beyond the end was told when the end was.
                    world.trace.note(format_args!("{who}: read {count} entries of ledger {ledger}"));
                    return Ok(());
                }
                Err(text) => problem = text,
            },
            Err(Some(error)) => problem = with_causes(&error),
            Err(None) => return Err("told already".to_owned()),
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    Err(problem)
}

/// Invariant 5, at the bookies: nobody who still believes to be the writer of a recovered ledger gets an ack quorum.
pub async fn try_old_writers(world: &World) {
    let ledgers = Ledgers::new(world.metadata.clone());
    for ledger in world.history.ledgers() {
        let history = world.history.of(ledger);
        let Some(end) = history.end else { continue };
        // A ledger that its writer closed was never fenced.
        if history.closing {
            continue;
        }
        let Ok(Some(record)) = ledgers.get_quorum(ledger).await else { continue };
        let (metadata, quorums) = (&record.metadata, record.metadata.quorums());
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
                match ask(world, &format!("{bookie}:3181"), &frame).await {
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
async fn ask(world: &World, address: &str, frame: &[u8]) -> Option<Status> {
    let exchange = async {
        let mut stream = world.net.connector("old-writer").connect(address).await.ok()?;
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
