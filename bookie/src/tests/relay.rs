//! Reads of ledgers that moved away, between a whole bookie and members that answer as they are told.

mod answers;
mod bounds;
mod members;
mod proofs;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::config::{ByteSize, Span};
use bytes::{Bytes, BytesMut};
use common::budget::ByteBudget;
use common::net::{BoxStream, Listener as _, MemoryNetwork};
use ledger::{BookieId, DigestType, EntryId, LedgerMetadata, MasterKey, Password, Quorums};
use metadata::{BookieInfo, Expect, FaultKind, FaultyStore, MemoryStore, Transaction, layout};
use proto::client::{
    BatchRead, Operation, PayloadV3, decode_batch_response_v2, encode_batch_read_v2, encode_list_entries_v3,
    encode_long_poll_v3, encode_read_lac_v3, encode_read_v3, mark_relayed,
};
use proto::{
    BATCH_ENTRY_HEAD_BYTES, BATCH_HEAD_BYTES, FrameDecoder, Incoming, PollTarget, Protocol, ReadTarget, Reply, Request,
    Status, decode_request,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::support::*;
use crate::{BookieConfig, BookieParts};

/// The last entry of ledger 1, far above those that the bookie had.
const LAST: u64 = 5_000;

/// What a member does with a read.
#[derive(Clone)]
enum Act {
    Tell(Reply),
    Nothing,
    /// The bytes of a whole frame.
    Send(Bytes),
    Close,
}

/// What a member was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    entry: u64,
    key: Option<MasterKey>,
    marked: bool,
}

/// A member behind an address of its own.
#[derive(Clone, Default)]
struct Member {
    asked: Arc<Mutex<Vec<Question>>>,
}

impl Member {
    fn asked(&self) -> Vec<Question> {
        self.asked.lock().unwrap().clone()
    }

    fn entries(&self) -> Vec<u64> {
        self.asked().iter().map(|question| question.entry).collect()
    }

    async fn serve(self, mut stream: BoxStream, act: Arc<dyn Fn(u64) -> Act + Send + Sync>) -> Option<()> {
        let (mut decoder, mut input, mut protocol) = (FrameDecoder::new(1 << 20), BytesMut::new(), Protocol::default());
        loop {
            let Some(payload) = decoder.decode(&mut input).unwrap() else {
                match stream.read_buf(&mut input).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => continue,
                }
            };
            let Incoming::Request(to, request) = decode_request(&mut protocol, payload) else { panic!("no request") };
            let Request::Read { ledger: asked, target: ReadTarget::Entry(entry), master_key, .. } = request else {
                panic!("only entries are asked for, not {request:?}")
            };
            assert_eq!(asked, ledger(1));
            let question = Question { entry: entry.get(), key: master_key, marked: to.is_relayed() };
            self.asked.lock().unwrap().push(question);
            let frame = match act(entry.get()) {
                Act::Tell(reply) => to.to_frame(&reply),
                Act::Send(frame) => frame,
                Act::Nothing => continue,
                Act::Close => return None,
            };
            stream.write_all(&frame).await.ok()?;
        }
    }
}

/// A bookie that has dropped ledger 1, and the network its members are in.
struct Moved {
    world: World,
    running: Running,
    budget: ByteBudget,
}

fn relaying() -> BookieConfig {
    BookieConfig { relay_concurrency: 16, relay_deadline: Span::secs(4), ..small_config() }
}

impl Moved {
    /// The members of the ledger are named as the addresses they are registered at.
    async fn to(members: &[&str]) -> Self {
        Self::with(World { config: relaying(), ..World::new() }, members).await
    }

    /// One whose requests end soon, for what is never answered.
    async fn hasty(members: &[&str]) -> Self {
        let config = BookieConfig { relay_deadline: Span::millis(400), ..relaying() };
        Self::with(World { config, ..World::new() }, members).await
    }

    async fn with(world: World, members: &[&str]) -> Self {
        let budget = ByteBudget::new("test", 64 << 20);
        let running = world.try_start_with(|parts| BookieParts { budget: budget.clone(), ..parts }).await.unwrap();
        running.connect().await.fill(&running, 1, 0, 2).await;
        let members: Vec<BookieId> = members.iter().map(|member| BookieId::new(member).unwrap()).collect();
        for member in &members {
            register(&world, member, member.as_str()).await;
        }
        world.ledgers().create(ledger(1), &closed(members)).await.unwrap();
        assert_eq!(running.bookie.collect_now().await.unwrap().ledgers_gone, 1);
        Self { world, running, budget }
    }

    fn member(&self, address: &str, act: impl Fn(u64) -> Act + Send + Sync + 'static) -> Member {
        member(&self.world.network, address, act)
    }

    fn has(&self, address: &str) -> Member {
        self.member(address, has)
    }

    /// Metadata names others from now on, in which every entry has `copies`.
    async fn moves_to(&self, members: &[&str], copies: u32) {
        let members = members.iter().map(|member| BookieId::new(member).unwrap()).collect();
        let version = self.world.ledgers().get(ledger(1)).await.unwrap().unwrap().version;
        self.world.ledgers().update(ledger(1), &closed_with(members, copies), version).await.unwrap();
    }

    async fn connect(&self) -> Wire {
        self.running.connect().await
    }

    async fn stop(self) {
        settle(|| self.budget.used_bytes() == 0).await;
        self.running.stop().await;
    }
}

fn member(network: &MemoryNetwork, address: &str, act: impl Fn(u64) -> Act + Send + Sync + 'static) -> Member {
    let (member, act) = (Member::default(), Arc::new(act));
    let mut listener = network.listen(address);
    let serving = member.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serving.clone().serve(stream, act.clone()));
        }
    });
    member
}

/// The metadata of the ledger, closed, with all entries on all members.
fn closed(members: Vec<BookieId>) -> LedgerMetadata {
    let count = u32::try_from(members.len()).unwrap();
    closed_with(members, count)
}

fn closed_with(members: Vec<BookieId>, copies: u32) -> LedgerMetadata {
    let quorums = Quorums::new(u32::try_from(members.len()).unwrap(), copies, 1).unwrap();
    let metadata = LedgerMetadata::open(quorums, members, DigestType::Crc32c, Password::empty()).unwrap();
    metadata.closed(EntryId::new(LAST), 1).unwrap()
}

/// Has all entries of the ledger.
fn has(entry: u64) -> Act {
    Act::Tell(Reply::Read { body: cold(entry), max_lac: None })
}

fn tells(status: Status) -> impl Fn(u64) -> Act {
    move |_| Act::Tell(Reply::Failed(status))
}

/// The body that members have of an entry.
fn cold(entry: u64) -> Bytes {
    body(1, entry, &payload(1, entry))
}

async fn register(world: &World, id: &BookieId, address: &str) {
    let value = BookieInfo::at(address).encode().unwrap();
    let put = Transaction::new().put(layout::readonly_key(id), value, Expect::Any);
    world.metadata.commit(put).await.unwrap();
}

async fn read_v3(wire: &mut Wire, entry_id: u64) -> (Status, PayloadV3) {
    let target = ReadTarget::Entry(entry(entry_id));
    let reply = wire.ask(|out| encode_read_v3(9, ledger(1), target, None, false, out)).await;
    assert_eq!((reply.txn, reply.ledger, reply.entry), (9, 1, entry_id as i64));
    (reply.status, reply.payload)
}
