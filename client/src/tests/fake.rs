use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use common::net::{BoxStream, Listener as _, MemoryNetwork};
use common::shutdown::TaskTree;
use ledger::{EntryId, LedgerId, MasterKey};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, Incoming, Protocol, ReadTarget, Reply, ReplyTo, Request, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

/// A bookie that keeps entries in memory and misbehaves on order.
#[derive(Clone)]
pub(super) struct FakeBookie {
    pub(super) address: String,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    ledgers: BTreeMap<LedgerId, Stored>,
    behaviour: Behaviour,
    connections: u64,
    adds: u64,
    reads: u64,
    recovery_adds: u64,
}

#[derive(Default)]
struct Stored {
    key: Option<MasterKey>,
    is_fenced: bool,
    entries: BTreeMap<EntryId, Bytes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Behaviour {
    #[default]
    Normal,
    /// Serves requests and keeps the answers until the behaviour changes.
    Holding,
    /// Serves requests and never answers.
    Silent,
    /// Closes the connection at the first request.
    Closing,
    /// Refuses adds.
    RefusingAdds(Status),
    /// Refuses reads.
    RefusingReads(Status),
}

impl FakeBookie {
    pub(super) fn start(network: &MemoryNetwork, tasks: &TaskTree, address: &str) -> Self {
        let bookie = Self { address: address.to_owned(), state: Arc::default(), changed: Arc::new(Notify::new()) };
        let mut listener = network.listen(address);
        let (accepting, children) = (bookie.clone(), tasks.clone());
        tasks.spawn("fake-bookie", async move {
            loop {
                let accepted = tokio::select! {
                    () = children.stopping() => return,
                    accepted = listener.accept() => accepted,
                };
                let Ok((stream, _)) = accepted else { return };
                accepting.lock().connections += 1;
                let (bookie, tasks) = (accepting.clone(), children.clone());
                children.spawn("fake-connection", async move {
                    tokio::select! {
                        () = tasks.stopping() => {}
                        () = bookie.serve(stream) => {}
                    }
                });
            }
        });
        bookie
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn behave(&self, behaviour: Behaviour) {
        self.lock().behaviour = behaviour;
        self.changed.notify_waiters();
    }

    pub(super) fn connections(&self) -> u64 {
        self.lock().connections
    }

    pub(super) fn adds(&self) -> u64 {
        self.lock().adds
    }

    pub(super) fn reads(&self) -> u64 {
        self.lock().reads
    }

    pub(super) fn recovery_adds(&self) -> u64 {
        self.lock().recovery_adds
    }

    pub(super) fn body(&self, ledger: LedgerId, entry: EntryId) -> Option<Bytes> {
        self.lock().ledgers.get(&ledger)?.entries.get(&entry).cloned()
    }

    pub(super) fn is_fenced(&self, ledger: LedgerId) -> bool {
        self.lock().ledgers.get(&ledger).is_some_and(|stored| stored.is_fenced)
    }

    pub(super) fn put(&self, ledger: LedgerId, entry: EntryId, body: Bytes) {
        self.lock().ledgers.entry(ledger).or_default().entries.insert(entry, body);
    }

    pub(super) fn remove(&self, ledger: LedgerId, entry: EntryId) -> Option<Bytes> {
        self.lock().ledgers.get_mut(&ledger)?.entries.remove(&entry)
    }

    async fn serve(&self, mut stream: BoxStream) {
        let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT);
        let mut protocol = Protocol::Undecided;
        let (mut incoming, mut outgoing) = (BytesMut::new(), BytesMut::new());
        loop {
            let changed = self.changed.notified();
            let is_quiet = matches!(self.lock().behaviour, Behaviour::Holding | Behaviour::Silent);
            if !is_quiet && !outgoing.is_empty() {
                if stream.write_all(&outgoing).await.is_err() {
                    return;
                }
                outgoing.clear();
            }
            tokio::select! {
                () = changed => continue,
                read = stream.read_buf(&mut incoming) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
            }
            if self.lock().behaviour == Behaviour::Closing {
                return;
            }
            while let Some(payload) = decoder.decode(&mut incoming).unwrap() {
                match proto::decode_request(&mut protocol, payload) {
                    Incoming::Request(reply_to, request) => self.handle(reply_to, request, &mut outgoing),
                    Incoming::Reply(frame) => outgoing.extend_from_slice(&frame),
                    Incoming::Close(_) => return,
                }
            }
        }
    }

    fn handle(&self, reply_to: ReplyTo, request: Request, out: &mut BytesMut) {
        let mut state = self.lock();
        let reply = state.answer(request);
        if state.behaviour != Behaviour::Silent {
            reply_to.encode(&reply, out);
        }
    }
}

impl State {
    fn answer(&mut self, request: Request) -> Reply {
        match request {
            Request::Add { ledger, entry, master_key, body, recovery, .. } => {
                self.adds += 1;
                self.recovery_adds += u64::from(recovery);
                if let Behaviour::RefusingAdds(status) = self.behaviour {
                    return Reply::Failed(status);
                }
                let stored = self.ledgers.entry(ledger).or_default();
                if *stored.key.get_or_insert(master_key) != master_key {
                    return Reply::Failed(Status::Unauthorized);
                }
                if stored.is_fenced && !recovery {
                    return Reply::Failed(Status::Fenced);
                }
                stored.entries.insert(entry, body);
                Reply::Added
            }
            Request::Read { ledger, target, fence, master_key, .. } => {
                self.reads += 1;
                if let Behaviour::RefusingReads(status) = self.behaviour {
                    return Reply::Failed(status);
                }
                if fence {
                    let stored = self.ledgers.entry(ledger).or_default();
                    let key = master_key.unwrap();
                    if *stored.key.get_or_insert(key) != key {
                        return Reply::Failed(Status::Unauthorized);
                    }
                    stored.is_fenced = true;
                }
                let Some(stored) = self.ledgers.get(&ledger) else { return Reply::Failed(Status::NoLedger) };
                let body = match target {
                    ReadTarget::Entry(entry) => stored.entries.get(&entry),
                    ReadTarget::Last => stored.entries.last_key_value().map(|(_, body)| body),
                };
                match body {
                    Some(body) => Reply::Read { body: body.clone(), max_lac: None },
                    None => Reply::Failed(Status::NoEntry),
                }
            }
            _ => Reply::Failed(Status::BadRequest),
        }
    }
}
