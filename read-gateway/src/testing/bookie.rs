//! Bookies in memory, for tests of what goes through the client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::{Client, ClientConfig, ClientParts};
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{BoxStream, Listener as _, MemoryNetwork};
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::{BookieId, EntryId, LedgerId};
use metadata::{BookieInfo, Bookies, MetadataStore};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, Incoming, Protocol, ReadTarget, Reply, Request, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Entries of one bookie, and whether the ledger is fenced.
type Stored = BTreeMap<LedgerId, (bool, BTreeMap<EntryId, Bytes>)>;

/// Three registered bookies.
pub(crate) async fn bookies(network: &MemoryNetwork, store: &Arc<dyn MetadataStore>, tasks: &TaskTree) {
    let lease = store.grant_lease(Duration::from_secs(3_600)).await.unwrap();
    for number in 1..=3 {
        let address = format!("bookie{number}:3181");
        let mut listener = network.listen(&address);
        let (stored, children) = (Arc::<Mutex<Stored>>::default(), tasks.clone());
        tasks.spawn("bookie", async move {
            loop {
                let accepted = tokio::select! {
                    () = children.stopping() => return,
                    accepted = listener.accept() => accepted,
                };
                let Ok((stream, _)) = accepted else { return };
                let (stored, tasks) = (Arc::clone(&stored), children.clone());
                children.spawn("connection", async move {
                    tokio::select! {
                        () = tasks.stopping() => {}
                        () = serve(stream, stored) => {}
                    }
                });
            }
        });
        let id = BookieId::new(&address).unwrap();
        Bookies::new(Arc::clone(store)).register(&id, &BookieInfo::at(address), lease).await.unwrap();
    }
}

/// A client of these bookies.
pub(crate) fn client(network: &MemoryNetwork, store: &Arc<dyn MetadataStore>, tasks: &TaskTree, seed: u64) -> Client {
    let parts = ClientParts {
        metadata: Arc::clone(store),
        connector: Arc::new(network.clone()),
        clock: Clock::following(1_000),
        rng: Rng::seeded(seed),
        budget: ByteBudget::new("client", 64 << 20),
        tasks: tasks.clone(),
    };
    Client::new(parts, ClientConfig::default())
}

async fn serve(mut stream: BoxStream, stored: Arc<Mutex<Stored>>) {
    let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT);
    let mut protocol = Protocol::default();
    let (mut incoming, mut outgoing) = (BytesMut::new(), BytesMut::new());
    while !matches!(stream.read_buf(&mut incoming).await, Ok(0) | Err(_)) {
        while let Some(payload) = decoder.decode(&mut incoming).unwrap() {
            match proto::decode_request(&mut protocol, payload) {
                Incoming::Request(to, request) => {
                    to.encode(&answer(&mut stored.lock().unwrap(), request), &mut outgoing)
                }
                Incoming::Reply(frame) => outgoing.extend_from_slice(&frame),
                Incoming::Close(_) => return,
            }
        }
        if stream.write_all(&outgoing).await.is_err() {
            return;
        }
        outgoing.clear();
    }
}

fn answer(stored: &mut Stored, request: Request) -> Reply {
    match request {
        Request::Add { ledger, entry, body, recovery, .. } => {
            let (fenced, entries) = stored.entry(ledger).or_default();
            if *fenced && !recovery {
                return Reply::Failed(Status::Fenced);
            }
            entries.insert(entry, body);
            Reply::Added
        }
        Request::Read { ledger, target, fence, .. } => {
            let (fenced, entries) = stored.entry(ledger).or_default();
            *fenced |= fence;
            let found = match target {
                ReadTarget::Entry(entry) => entries.get(&entry),
                ReadTarget::Last => entries.last_key_value().map(|(_, body)| body),
            };
            found.map_or(Reply::Failed(Status::NoEntry), |body| Reply::Read { body: body.clone(), max_lac: None })
        }
        Request::ReadLac { .. } => Reply::Failed(Status::NoEntry),
        _ => Reply::Failed(Status::BadRequest),
    }
}
