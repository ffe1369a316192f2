use std::collections::BTreeMap;

use bytes::Bytes;
use common::rng::Rng;
use ledger::{BookieId, DigestType, EntryId, LedgerMetadata, LedgerState, Password, Quorums};

use crate::closing::{CloseMachine, CloseStep};
use crate::geometry::{Geometry, IndexSet};
use crate::lac::LacAnswer;
use crate::read::Problem;
use crate::recovery::{RecoveryAction, RecoveryEvent, RecoveryMachine, RecoveryRead};
use crate::writer::{AddAnswer, WriterAction, WriterEvent, WriterMachine};

/// A mistake built in on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    RecoveryReadsDoNotFence,
    /// A bookie says "no such entry" where it means "I do not know".
    ErrorsAreDenials,
    /// A bookie forgets its fence when it restarts.
    FenceIsForgotten,
    /// The metadata store takes any write.
    CloseIgnoresVersion,
}

/// What a run came to; two runs of one seed must be equal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    steps: u64,
    appended: u64,
    confirmed: u64,
    end: Option<EntryId>,
}

#[derive(Default)]
struct Bookie {
    fenced: bool,
    is_down: bool,
    entries: BTreeMap<EntryId, Stored>,
}

#[derive(Clone)]
struct Stored {
    last_confirmed: Option<EntryId>,
    length: u64,
    payload: Bytes,
}

#[derive(Clone)]
enum Request {
    Add { entry: EntryId, stored: Stored, recovery: bool },
    FenceAndReadLast,
    FenceAndRead { entry: EntryId },
    WriteMetadata { expected: u64, metadata: Box<LedgerMetadata> },
    ReadMetadata,
}

#[derive(Clone)]
enum Reply {
    Add(AddAnswer),
    Last(LacAnswer),
    Read(RecoveryRead),
    Written(u64),
    Conflict(u64, Box<LedgerMetadata>),
    Metadata(u64, Box<LedgerMetadata>),
}

#[derive(Clone)]
enum Message {
    Request { call: u64, request: Request },
    Reply { call: u64, request: Request, reply: Reply },
}

/// A request that its client still waits for.
struct Call {
    id: u64,
    client: usize,
    index: usize,
    request: Request,
}

enum Role {
    Writer { machine: WriterMachine, close: Option<CloseMachine> },
    Recoverer(RecoveryMachine),
}

struct Client {
    role: Role,
    version: u64,
    is_over: bool,
}

struct World {
    rng: Rng,
    flaw: Option<Flaw>,
    quorums: Quorums,
    bookies: Vec<Bookie>,
    metadata: LedgerMetadata,
    version: u64,
    messages: Vec<Message>,
    calls: Vec<Call>,
    /// The client and index each call belongs to, for replies that come late or twice.
    owners: BTreeMap<u64, (usize, usize)>,
    next_call: u64,
    clients: Vec<Client>,
    appended: u64,
    confirmed: u64,
    end: Option<LedgerState>,
    /// How many in a thousand answers of bookies are errors.
    errors: u64,
    /// How many in a hundred reads of the fencing round are lost.
    lost_fences: u64,
    /// Members to which all of them are lost.
    lossy: IndexSet,
    /// How often in a hundred turns the writer appends.
    busy: u64,
    /// Members that the writer, and that everyone else, reaches only slowly: what crosses such a link comes long after the rest.
    slow: [IndexSet; 2],
    /// One of so many turns gets a message across a slow link.
    slowness: u64,
    /// How much rarer than usual deadlines pass.
    patience: u64,
    broken: Option<String>,
}

fn payload_of(entry: EntryId) -> Bytes {
    let byte = u8::try_from(entry.get() % 251).expect("below 251");
    Bytes::from(vec![byte; usize::try_from(entry.get() % 7).expect("below 7")])
}

fn length_up_to(last: Option<EntryId>) -> u64 {
    (0..last.map_or(0, |last| last.get() + 1)).map(|entry| entry % 7).sum()
}

/// Runs a seed; the error says which invariant broke.
pub(super) fn run(seed: u64, flaw: Option<Flaw>) -> Result<Outcome, String> {
    let mut world = World::new(seed, flaw);
    let mut steps = 0;
    let faulty_steps = 50 + world.rng.below(600);
    while steps < faulty_steps {
        steps += 1;
        world.faulty_step();
        world.check()?;
    }
    // The faults stop. Whoever is left gets its answers; then somebody must be able to close.
    (world.errors, world.lost_fences, world.lossy) = (0, 0, IndexSet::EMPTY);
    for bookie in &mut world.bookies {
        bookie.is_down = false;
    }
    steps += world.settle()?;
    for _ in 0..3 {
        if world.end.is_none() {
            world.start_recovery();
            steps += world.settle()?;
        }
    }
    if world.end.is_none() {
        return Err("the ledger could not be closed without faults".to_owned());
    }
    world.check_closed()?;
    let end = world.metadata.last_entry();
    Ok(Outcome { steps, appended: world.appended, confirmed: world.confirmed, end })
}

impl World {
    fn new(seed: u64, flaw: Option<Flaw>) -> Self {
        let rng = Rng::seeded(seed);
        let sizes = [(3, 3, 2), (3, 2, 2), (3, 3, 3), (3, 2, 1), (4, 3, 2), (5, 3, 2), (5, 5, 3), (5, 4, 2), (1, 1, 1)];
        let (ensemble, write, ack) = sizes[rng.below(sizes.len() as u64) as usize];
        let quorums = Quorums::new(ensemble, write, ack).expect("valid sizes");
        let ids = (0..ensemble).map(|index| BookieId::new(&format!("bk{index}:3181")).expect("valid id")).collect();
        let metadata =
            LedgerMetadata::open(quorums, ids, DigestType::Crc32c, Password::empty()).expect("a full ensemble");
        let machine = WriterMachine::new(Geometry::new(quorums).expect("small ensemble"));
        let writer = Client { role: Role::Writer { machine, close: None }, version: 1, is_over: false };
        let errors = [0, 20, 100][rng.below(3) as usize];
        let lost_fences = [0, 0, 40][rng.below(3) as usize];
        let busy = [100, 30, 5][rng.below(3) as usize];
        let some_members = || (0..ensemble as usize).filter(|_| rng.below(4) == 0).collect();
        let mut slow = [some_members(), some_members()];
        let (mut lossy, mut slowness, mut patience) = (IndexSet::EMPTY, 10, [1, 10][rng.below(2) as usize]);
        if rng.below(4) == 0 {
            // The hardest case for a recovery: one member that it fails to fence and that the writer's adds reach late.
            let member = [rng.below(u64::from(ensemble)) as usize];
            slow = [member.into_iter().collect(), IndexSet::EMPTY];
            lossy = slow[0];
            (slowness, patience) = (300, 100);
        }
        Self {
            rng,
            flaw,
            quorums,
            bookies: (0..ensemble).map(|_| Bookie::default()).collect(),
            metadata,
            version: 1,
            messages: Vec::new(),
            calls: Vec::new(),
            owners: BTreeMap::new(),
            next_call: 0,
            clients: vec![writer],
            appended: 0,
            confirmed: 0,
            end: None,
            errors,
            lost_fences,
            lossy,
            busy,
            slow,
            slowness,
            patience,
            broken: None,
        }
    }

    fn faulty_step(&mut self) {
        match self.rng.below(100) {
            // A writer that appends without pause soon meets a fence; a quiet one is what recoveries must not overlook.
            0..=24 if self.rng.below(100) < self.busy => self.append(),
            0..=79 => self.deliver_any(),
            80..=84 if self.rng.below(self.patience) == 0 => self.give_up_any(),
            80..=84 => self.deliver_any(),
            85..=87 => self.drop_any(),
            88..=91 => self.repeat_any(),
            92..=95 => {
                let down = self.rng.below(self.bookies.len() as u64) as usize;
                let bookie = &mut self.bookies[down];
                bookie.is_down = !bookie.is_down;
                if self.flaw == Some(Flaw::FenceIsForgotten) {
                    bookie.fenced = false;
                }
            }
            96..=97 => {
                if self.clients.len() < 5 && self.rng.below(2) == 0 {
                    self.start_recovery();
                }
            }
            98 => {
                let dead = self.rng.below(self.clients.len() as u64) as usize;
                if self.rng.below(4) == 0 {
                    self.kill(dead);
                }
            }
            _ => {
                if self.rng.below(8) == 0 {
                    self.writer_event(WriterEvent::Close);
                }
            }
        }
    }

    /// Delivers everything, in any order, and gives up what nobody will answer.
    fn settle(&mut self) -> Result<u64, String> {
        let mut steps = 0;
        while !self.messages.is_empty() || !self.calls.is_empty() {
            steps += 1;
            if self.messages.is_empty() {
                self.give_up_any();
            } else {
                self.deliver_any();
            }
            self.check()?;
            if steps > 200_000 {
                return Err("the clients never come to rest".to_owned());
            }
        }
        Ok(steps)
    }

    // The network.

    fn send(&mut self, client: usize, index: usize, request: Request) {
        let id = self.next_call;
        self.next_call += 1;
        self.owners.insert(id, (client, index));
        self.calls.push(Call { id, client, index, request: request.clone() });
        // Losing just these leaves a member unfenced, which the later reads must make up for.
        let is_lost = self.lossy.contains(index) || self.rng.below(100) < self.lost_fences;
        if !matches!(request, Request::FenceAndReadLast) || !is_lost {
            self.messages.push(Message::Request { call: id, request });
        }
    }

    fn deliver_any(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let place = self.rng.below(self.messages.len() as u64) as usize;
        let (Message::Request { call, request } | Message::Reply { call, request, .. }) = &self.messages[place];
        let (client, index) = self.owners[call];
        let is_slow = self.slow[usize::from(client != 0)].contains(index)
            && !matches!(request, Request::WriteMetadata { .. } | Request::ReadMetadata);
        if is_slow && self.rng.below(self.slowness) != 0 {
            return;
        }
        match self.messages.swap_remove(place) {
            Message::Request { call, request } => {
                let (_, index) = self.owners[&call];
                if let Some(reply) = self.serve(index, &request) {
                    self.messages.push(Message::Reply { call, request, reply });
                }
            }
            Message::Reply { call, request, reply } => self.answer(call, request, reply),
        }
    }

    fn drop_any(&mut self) {
        if !self.messages.is_empty() {
            let place = self.rng.below(self.messages.len() as u64) as usize;
            self.messages.swap_remove(place);
        }
    }

    /// Replies may come twice; requests cannot, on one connection.
    fn repeat_any(&mut self) {
        if !self.messages.is_empty() {
            let place = self.rng.below(self.messages.len() as u64) as usize;
            if let reply @ Message::Reply { .. } = &self.messages[place] {
                self.messages.push(reply.clone());
            }
        }
    }

    /// A deadline passes; the request may still arrive later.
    fn give_up_any(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let place = self.rng.below(self.calls.len() as u64) as usize;
        let Call { client, index, request, .. } = self.calls.swap_remove(place);
        let problem = Problem::TimedOut;
        match request {
            Request::Add { entry, recovery: false, .. } => {
                self.client_add(client, index, entry, AddAnswer::Unknown);
            }
            Request::Add { entry, .. } => self.client_add(client, index, entry, AddAnswer::Unknown),
            Request::FenceAndReadLast => {
                let answer = LacAnswer::Problem(problem);
                self.recovery_event(client, RecoveryEvent::LacAnswered { index, answer });
            }
            Request::FenceAndRead { entry } => {
                let answer = RecoveryRead::Problem(problem);
                self.recovery_event(client, RecoveryEvent::ReadAnswered { entry, index, answer });
            }
            Request::WriteMetadata { .. } => self.metadata_unknown(client),
            // A shell that cannot read the metadata gives up.
            Request::ReadMetadata => self.kill(client),
        }
    }

    fn answer(&mut self, call: u64, request: Request, reply: Reply) {
        let (client, index) = self.owners[&call];
        let was_waiting = self.calls.iter().position(|waiting| waiting.id == call);
        if let Some(place) = was_waiting {
            self.calls.swap_remove(place);
        }
        match (request, reply) {
            (Request::Add { entry, .. }, Reply::Add(answer)) => self.client_add(client, index, entry, answer),
            (Request::FenceAndReadLast, Reply::Last(answer)) => {
                self.recovery_event(client, RecoveryEvent::LacAnswered { index, answer });
            }
            (Request::FenceAndRead { entry }, Reply::Read(answer)) => {
                self.recovery_event(client, RecoveryEvent::ReadAnswered { entry, index, answer });
            }
            // The metadata store is called, not messaged: an answer after the deadline reaches nobody.
            _ if was_waiting.is_none() => {}
            (_, Reply::Written(version)) => {
                self.clients[client].version = version;
                self.metadata_event(client, RecoveryEvent::Written);
            }
            (_, Reply::Conflict(version, found)) => {
                self.clients[client].version = version;
                self.metadata_event(client, RecoveryEvent::Conflict(Some(*found)));
            }
            (_, Reply::Metadata(version, found)) => {
                self.clients[client].version = version;
                self.metadata_event(client, RecoveryEvent::MetadataRead(Some(*found)));
            }
            _ => unreachable!("replies have the form of their request"),
        }
    }

    // The servers.

    fn serve(&mut self, index: usize, request: &Request) -> Option<Reply> {
        match request {
            Request::WriteMetadata { expected, metadata } => {
                if *expected != self.version && self.flaw != Some(Flaw::CloseIgnoresVersion) {
                    return Some(Reply::Conflict(self.version, Box::new(self.metadata.clone())));
                }
                self.version += 1;
                self.metadata = (**metadata).clone();
                if self.metadata.is_closed() {
                    self.on_closed();
                }
                return Some(Reply::Written(self.version));
            }
            Request::ReadMetadata => return Some(Reply::Metadata(self.version, Box::new(self.metadata.clone()))),
            _ => {}
        }
        let fails = self.rng.below(1000) < self.errors;
        let happens = !fails || self.rng.below(2) == 0;
        let overwrites = self.rng.below(2) == 0;
        let flaw = self.flaw;
        let bookie = &mut self.bookies[index];
        if bookie.is_down {
            return None;
        }
        let problem = Problem::Unknown;
        Some(match request {
            Request::Add { recovery: false, .. } if bookie.fenced => Reply::Add(AddAnswer::Fenced),
            Request::Add { entry, stored, .. } => {
                if happens && (overwrites || !bookie.entries.contains_key(entry)) {
                    bookie.entries.insert(*entry, stored.clone());
                }
                Reply::Add(match (fails, happens) {
                    (false, _) => AddAnswer::Stored,
                    (true, true) => AddAnswer::Unknown,
                    (true, false) => AddAnswer::NotStored,
                })
            }
            Request::FenceAndReadLast => {
                bookie.fenced |= happens;
                Reply::Last(match bookie.entries.last_key_value() {
                    _ if fails => LacAnswer::Problem(problem),
                    Some((_, stored)) => LacAnswer::Confirmed(stored.last_confirmed),
                    None => LacAnswer::Absent,
                })
            }
            Request::FenceAndRead { entry } => {
                bookie.fenced |= happens && flaw != Some(Flaw::RecoveryReadsDoNotFence);
                Reply::Read(match bookie.entries.get(entry) {
                    _ if fails && flaw == Some(Flaw::ErrorsAreDenials) => RecoveryRead::Absent,
                    _ if fails => RecoveryRead::Problem(problem),
                    Some(Stored { length, payload, .. }) => {
                        RecoveryRead::Found { payload: payload.clone(), length: *length }
                    }
                    None => RecoveryRead::Absent,
                })
            }
            Request::WriteMetadata { .. } | Request::ReadMetadata => unreachable!("served above"),
        })
    }

    // The clients.

    fn kill(&mut self, client: usize) {
        self.clients[client].is_over = true;
        self.calls.retain(|call| call.client != client);
    }

    fn start_recovery(&mut self) {
        let machine = RecoveryMachine::new(self.metadata.clone()).expect("small ensemble");
        let role = Role::Recoverer(machine);
        self.clients.push(Client { role, version: self.version, is_over: false });
        self.recovery_event(self.clients.len() - 1, RecoveryEvent::Start);
    }

    fn append(&mut self) {
        let Role::Writer { machine, .. } = &self.clients[0].role else { return };
        if machine.end().is_none() && !self.clients[0].is_over {
            let entry = EntryId::new(self.appended).expect("small id");
            self.appended += 1;
            self.writer_event(WriterEvent::Append { payload_bytes: payload_of(entry).len() as u64 });
        }
    }

    fn client_add(&mut self, client: usize, index: usize, entry: EntryId, answer: AddAnswer) {
        if client == 0 {
            self.writer_event(WriterEvent::Answered { index, entry, answer });
        } else {
            self.recovery_event(client, RecoveryEvent::AddAnswered { entry, index, answer });
        }
    }

    fn writer_event(&mut self, event: WriterEvent) {
        if self.clients[0].is_over {
            return;
        }
        let mut actions = Vec::new();
        let Role::Writer { machine, .. } = &mut self.clients[0].role else { return };
        machine.on(event, &mut actions);
        for action in actions {
            match action {
                WriterAction::Send { entry, last_confirmed, length, to } => {
                    let stored = Stored { last_confirmed, length, payload: payload_of(entry) };
                    self.send_all(0, to, &Request::Add { entry, stored, recovery: false });
                }
                WriterAction::Confirm { entry } => self.on_confirmed(entry),
                WriterAction::Fail { .. } | WriterAction::End(_) => {}
                WriterAction::WriteClosed { last_entry, length } => {
                    // What the writer knows is what it created; anything newer shows as a conflict.
                    let known = LedgerMetadata::open(
                        self.quorums,
                        self.metadata.last_segment().ensemble.clone(),
                        DigestType::Crc32c,
                        Password::empty(),
                    );
                    let mut close = CloseMachine::new(known.expect("a full ensemble"), last_entry, length);
                    let step = close.start();
                    if let Role::Writer { close: place, .. } = &mut self.clients[0].role {
                        *place = Some(close);
                    }
                    self.on_close_step(step);
                }
            }
        }
    }

    fn on_close_step(&mut self, step: CloseStep) {
        let expected = self.clients[0].version;
        match step {
            CloseStep::Write(metadata) => self.send(0, 0, Request::WriteMetadata { expected, metadata }),
            CloseStep::Read => self.send(0, 0, Request::ReadMetadata),
            CloseStep::Done(found) => {
                if self.end != Some(found.state()) {
                    self.broken = Some("a writer believes in another end".to_owned());
                }
                self.writer_event(WriterEvent::CloseOver { closed: true });
            }
            CloseStep::Failed(_) => self.writer_event(WriterEvent::CloseOver { closed: false }),
        }
    }

    fn metadata_unknown(&mut self, client: usize) {
        if client == 0 {
            let Role::Writer { close: Some(close), .. } = &mut self.clients[0].role else { return };
            let step = close.on_unknown();
            self.on_close_step(step);
        } else {
            self.recovery_event(client, RecoveryEvent::WriteUnknown);
        }
    }

    fn metadata_event(&mut self, client: usize, event: RecoveryEvent) {
        if client != 0 {
            self.recovery_event(client, event);
            return;
        }
        if self.clients[0].is_over {
            return;
        }
        let Role::Writer { close: Some(close), .. } = &mut self.clients[0].role else { return };
        let step = match event {
            RecoveryEvent::Written => close.on_written(),
            RecoveryEvent::Conflict(found) | RecoveryEvent::MetadataRead(found) => close.on_found(found),
            _ => return,
        };
        self.on_close_step(step);
    }

    fn recovery_event(&mut self, client: usize, event: RecoveryEvent) {
        if self.clients[client].is_over {
            return;
        }
        let mut actions = Vec::new();
        let Role::Recoverer(machine) = &mut self.clients[client].role else { return };
        machine.on(event, &mut actions);
        for action in actions {
            match action {
                RecoveryAction::WriteMetadata(metadata) => {
                    let expected = self.clients[client].version;
                    self.send(client, 0, Request::WriteMetadata { expected, metadata });
                }
                RecoveryAction::ReadMetadata => self.send(client, 0, Request::ReadMetadata),
                RecoveryAction::FenceAndReadLast { to } => self.send_all(client, to, &Request::FenceAndReadLast),
                RecoveryAction::FenceAndRead { entry, to } => {
                    self.send_all(client, to, &Request::FenceAndRead { entry });
                }
                RecoveryAction::AddAgain { entry, last_confirmed, length, payload, to } => {
                    if payload != payload_of(entry) || last_confirmed >= Some(entry) {
                        self.broken = Some(format!("entry {entry} is added again with other contents"));
                    }
                    let stored = Stored { last_confirmed, length, payload };
                    self.send_all(client, to, &Request::Add { entry, stored, recovery: true });
                }
                RecoveryAction::Done(found) => {
                    if self.end != Some(found.state()) {
                        self.broken = Some("a recovering client believes in another end".to_owned());
                    }
                    self.kill(client);
                }
                RecoveryAction::Failed(_) => self.kill(client),
            }
        }
    }

    fn send_all(&mut self, client: usize, to: IndexSet, request: &Request) {
        for index in to.iter() {
            self.send(client, index, request.clone());
        }
    }

    // The judges.

    fn holders(&self, entry: EntryId) -> u32 {
        let payload = payload_of(entry);
        let holds =
            |index: &usize| self.bookies[*index].entries.get(&entry).is_some_and(|held| held.payload == payload);
        u32::try_from(self.quorums.write_set(entry).filter(holds).count()).expect("a few bookies")
    }

    fn on_confirmed(&mut self, entry: EntryId) {
        let broken = if entry.get() != self.confirmed {
            Some(format!("entry {entry} is confirmed after {} others", self.confirmed))
        } else if self.holders(entry) < self.quorums.ack() {
            Some(format!("entry {entry} is confirmed and only {} members hold it", self.holders(entry)))
        } else if matches!(self.end, Some(LedgerState::Closed { last_entry, .. }) if Some(entry) > last_entry) {
            Some(format!("entry {entry} is confirmed behind the end {:?}", self.end))
        } else {
            None
        };
        self.confirmed += 1;
        self.broken = self.broken.take().or(broken);
    }

    fn on_closed(&mut self) {
        let state = self.metadata.state();
        if self.end.is_some_and(|end| end != state) {
            self.broken = Some(format!("the end changed from {:?} to {state:?}", self.end));
        }
        self.end = Some(state);
        if let Err(broken) = self.check_closed() {
            self.broken = Some(broken);
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.end.is_some() && !self.metadata.is_closed() {
            return Err("a closed ledger is open again".to_owned());
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn check_closed(&self) -> Result<(), String> {
        let LedgerState::Closed { last_entry, length } = self.metadata.state() else {
            return Err("the ledger is not closed".to_owned());
        };
        let entries = last_entry.map_or(0, |last| last.get() + 1);
        if entries < self.confirmed {
            return Err(format!("{} entries were confirmed, the ledger is closed with {entries}", self.confirmed));
        }
        if length != length_up_to(last_entry) {
            return Err(format!("the length is {length}, the payloads have {}", length_up_to(last_entry)));
        }
        for entry in (0..entries).filter_map(EntryId::new) {
            if self.holders(entry) < self.quorums.ack() {
                return Err(format!("entry {entry} of {entries} is held by {} members", self.holders(entry)));
            }
        }
        let claims = self.bookies.iter().flat_map(|bookie| bookie.entries.values()).map(|stored| stored.last_confirmed);
        match claims.max().flatten() {
            Some(claimed) if Some(claimed) > last_entry => Err(format!("a body claims that {claimed} is confirmed")),
            _ => Ok(()),
        }
    }
}
