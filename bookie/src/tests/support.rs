use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::config::{ByteSize, Span};
use bytes::{Bytes, BytesMut};
use common::budget::ByteBudget;
use common::clock::{Clock, ManualClock};
use common::net::{BoxStream, Connector as _, MemoryNetwork};
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::{
    BookieId, DigestType, Digester, EntryHeader, EntryId, LedgerId, LedgerMetadata, MasterKey, Password, Quorums,
};
use metadata::{Bookies, Ledgers, MemoryStore, MetadataStore};
use proto::client::{
    AddFlags, PayloadV3, ResponseV2, ResponseV3, decode_response_v2, decode_response_v3, encode_add_v2,
    encode_read_lac_v3, encode_read_v2,
};
use proto::{FrameDecoder, ReadTarget, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::index::MemoryIndex;
use crate::*;

pub(super) const DIR: &str = "/bookie";
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Everything around a bookie that outlives it.
pub(super) struct World {
    pub(super) id: BookieId,
    pub(super) disk: MemoryDisk,
    pub(super) index: MemoryIndex,
    pub(super) metadata: Arc<dyn MetadataStore>,
    pub(super) network: MemoryNetwork,
    pub(super) config: BookieConfig,
    pub(super) clock: Clock,
    pub(super) time: ManualClock,
}

pub(super) fn small_config() -> BookieConfig {
    BookieConfig {
        segment_bytes: ByteSize::kib(128),
        disk_bytes_max: ByteSize::mib(64),
        disk_free_bytes_min: ByteSize::new(0),
        write_buffer_bytes: ByteSize::kib(64),
        collect_interval: Span::secs(3600),
        // Most of these bookies are alone: what they dropped is unknown. See `relay.rs` for the others.
        relay_concurrency: 0,
        ..BookieConfig::default()
    }
}

impl World {
    pub(super) fn new() -> Self {
        let (clock, time) = Clock::manual(1_700_000_000_000);
        Self {
            id: BookieId::new("bk1:3181").unwrap(),
            disk: MemoryDisk::new(),
            index: MemoryIndex::new(),
            metadata: Arc::new(MemoryStore::new()),
            network: MemoryNetwork::new(),
            config: small_config(),
            clock,
            time,
        }
    }

    pub(super) fn parts(&self, tasks: &TaskTree) -> BookieParts {
        BookieParts {
            id: self.id.clone(),
            dir: PathBuf::from(DIR),
            disk: Arc::new(self.disk.clone()),
            metadata: self.metadata.clone(),
            connector: Arc::new(self.network.clone()),
            listener: Box::new(self.network.listen(self.id.as_str())),
            clock: self.clock.clone(),
            rng: Rng::seeded(7),
            budget: ByteBudget::new("test", 64 << 20),
            tasks: tasks.clone(),
        }
    }

    pub(super) async fn try_start(&self) -> Result<Running, Error> {
        self.try_start_with(|parts| parts).await
    }

    pub(super) async fn try_start_with(
        &self,
        change: impl FnOnce(BookieParts) -> BookieParts,
    ) -> Result<Running, Error> {
        let tasks = TaskTree::root("test");
        let parts = change(self.parts(&tasks));
        let bookie = Bookie::start_with_index(self.config.clone(), parts, Arc::new(self.index.clone())).await?;
        Ok(Running { bookie, tasks, network: self.network.clone() })
    }

    pub(super) async fn start(&self) -> Running {
        self.try_start().await.unwrap()
    }

    /// The world as a power cut at this moment leaves it. The old bookie goes on in a world nobody looks at.
    pub(super) async fn crash(self, running: Running) -> Self {
        let (disk, index) = (self.disk.crash(), self.index.crash());
        running.stop().await;
        Self { disk, index, ..self }
    }

    pub(super) fn segment_files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = self.disk.files();
        files.into_iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "seg")).collect()
    }

    pub(super) fn ledgers(&self) -> Ledgers {
        Ledgers::new(self.metadata.clone())
    }

    /// Enters a ledger into metadata with one member.
    pub(super) async fn create_ledger(&self, id: u64, member: &str, closed: bool) {
        let member = BookieId::new(member).unwrap();
        let quorums = Quorums::new(1, 1, 1).unwrap();
        let metadata = LedgerMetadata::open(quorums, vec![member], DigestType::Crc32c, Password::empty()).unwrap();
        let metadata = if closed { metadata.closed(EntryId::new(0_u64), 1).unwrap() } else { metadata };
        self.ledgers().create(ledger(id), &metadata).await.unwrap();
    }

    pub(super) async fn registered(&self) -> Option<bool> {
        Bookies::new(self.metadata.clone()).get(&self.id).await.unwrap().map(|(_, writable)| writable)
    }
}

/// A bookie that runs.
pub(super) struct Running {
    pub(super) bookie: Bookie,
    pub(super) tasks: TaskTree,
    network: MemoryNetwork,
}

impl Running {
    pub(super) fn of(bookie: Bookie, tasks: TaskTree, world: &World) -> Self {
        Self { bookie, tasks, network: world.network.clone() }
    }

    pub(super) async fn connect(&self) -> Wire {
        Wire::new(self.network.connect(&self.bookie.address()).await.unwrap())
    }

    pub(super) async fn stop(self) {
        self.bookie.stop(PATIENCE).await.unwrap();
        assert_eq!(self.tasks.failure(), None);
    }
}

pub(super) fn ledger(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

pub(super) fn entry(id: u64) -> EntryId {
    EntryId::new(id).unwrap()
}

pub(super) fn key() -> MasterKey {
    MasterKey::derive(b"")
}

/// The body a writer would send.
pub(super) fn body(l: u64, e: u64, payload: &[u8]) -> Bytes {
    let header = EntryHeader { ledger: ledger(l), entry: entry(e), last_confirmed: entry(e).prev(), length: 1 };
    Digester::new(DigestType::Crc32c, &Password::empty()).seal(&header, payload)
}

/// The body of an explicit last-add-confirmed, as a writer would send it.
pub(super) fn lac_body(l: u64, lac: u64) -> Bytes {
    [&l.to_be_bytes()[..], &lac.to_be_bytes(), &[0xee, 0x41, 0x19, 0xb0]].concat().into()
}

/// One connection of version 2.
pub(super) struct Wire {
    stream: BoxStream,
    buffer: BytesMut,
    out: BytesMut,
}

pub(super) const RECOVERY: AddFlags = AddFlags { recovery: true, high_priority: true };

impl Wire {
    pub(super) fn new(stream: BoxStream) -> Self {
        Self { stream, buffer: BytesMut::new(), out: BytesMut::new() }
    }

    pub(super) fn put_add(&mut self, l: u64, e: u64, payload: &[u8], key: &MasterKey, flags: AddFlags) {
        encode_add_v2(key, &body(l, e, payload), flags, &mut self.out);
    }

    pub(super) fn put_read(&mut self, l: u64, target: ReadTarget, fence: Option<&MasterKey>) {
        encode_read_v2(ledger(l), target, fence, false, &mut self.out);
    }

    pub(super) async fn send(&mut self) {
        let out = self.out.split();
        self.stream.write_all(&out).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    pub(super) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Sends what the peer may not want any more.
    pub(super) async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// The payload of the next frame; `None` when the bookie has closed the connection.
    pub(super) async fn frame(&mut self) -> Option<Bytes> {
        self.frame_within(PATIENCE).await
    }

    async fn frame_within(&mut self, patience: Duration) -> Option<Bytes> {
        let mut decoder = FrameDecoder::new(64 << 20);
        let next = async {
            loop {
                if let Some(frame) = decoder.decode(&mut self.buffer).unwrap() {
                    return Some(frame);
                }
                if self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                    return None;
                }
            }
        };
        tokio::time::timeout(patience, next).await.expect("an answer in time")
    }

    pub(super) async fn reply(&mut self) -> ResponseV2 {
        decode_response_v2(self.frame().await.expect("the connection is open")).unwrap()
    }

    /// As [`Wire::reply`], with another patience.
    pub(super) async fn late_reply(&mut self, patience: Duration) -> ResponseV2 {
        decode_response_v2(self.frame_within(patience).await.expect("the connection is open")).unwrap()
    }

    /// As [`Wire::ask`], with another patience.
    pub(super) async fn late_ask(&mut self, patience: Duration, encode: impl FnOnce(&mut BytesMut)) -> ResponseV3 {
        encode(&mut self.out);
        self.send().await;
        decode_response_v3(self.frame_within(patience).await.expect("the connection is open")).unwrap()
    }

    pub(super) async fn reply_v3(&mut self) -> ResponseV3 {
        decode_response_v3(self.frame().await.expect("the connection is open")).unwrap()
    }

    /// Sends a version 3 request and waits for its answer. Such requests do not mix with others on a connection of version 2.
    pub(super) async fn ask(&mut self, encode: impl FnOnce(&mut BytesMut)) -> ResponseV3 {
        encode(&mut self.out);
        self.send().await;
        self.reply_v3().await
    }

    /// The explicit last-add-confirmed and the last entry of a ledger.
    pub(super) async fn read_lac(&mut self, l: u64) -> Result<(Option<Bytes>, Option<Bytes>), Status> {
        let reply = self.ask(|out| encode_read_lac_v3(7, ledger(l), out)).await;
        match reply.payload {
            PayloadV3::Lac { explicit, last_entry } => Ok((explicit, last_entry)),
            _ => Err(reply.status),
        }
    }

    pub(super) async fn add(&mut self, l: u64, e: u64, payload: &[u8]) -> Status {
        self.add_as(l, e, payload, &key(), AddFlags::default()).await
    }

    pub(super) async fn recover(&mut self, l: u64, e: u64, payload: &[u8]) -> Status {
        self.add_as(l, e, payload, &key(), RECOVERY).await
    }

    pub(super) async fn add_as(&mut self, l: u64, e: u64, payload: &[u8], key: &MasterKey, flags: AddFlags) -> Status {
        self.put_add(l, e, payload, key, flags);
        self.send().await;
        let reply = self.reply().await;
        assert_eq!((reply.ledger, reply.entry), (l as i64, e as i64));
        reply.status
    }

    async fn read_target(&mut self, l: u64, target: ReadTarget, fence: Option<&MasterKey>) -> Result<Bytes, Status> {
        self.put_read(l, target, fence);
        self.send().await;
        let reply = self.reply().await;
        assert_eq!((reply.ledger, reply.entry), (l as i64, target.as_i64()));
        if reply.status == Status::Ok { Ok(reply.body) } else { Err(reply.status) }
    }

    pub(super) async fn read(&mut self, l: u64, e: u64) -> Result<Bytes, Status> {
        self.read_target(l, ReadTarget::Entry(entry(e)), None).await
    }

    pub(super) async fn read_last(&mut self, l: u64) -> Result<Bytes, Status> {
        self.read_target(l, ReadTarget::Last, None).await
    }

    pub(super) async fn fence(&mut self, l: u64, key: &MasterKey) -> Result<Bytes, Status> {
        self.read_target(l, ReadTarget::Last, Some(key)).await
    }

    pub(super) async fn recovery_read(&mut self, l: u64, e: u64) -> Result<Bytes, Status> {
        self.read_target(l, ReadTarget::Entry(entry(e)), Some(&key())).await
    }

    /// Adds entries of 1 KiB until the bookie has sealed at least `segments` segments beyond those it has.
    pub(super) async fn fill(&mut self, running: &Running, l: u64, first: u64, segments: u64) -> u64 {
        let before = running.bookie.stats().segments;
        let mut e = first;
        while running.bookie.stats().segments < before + segments {
            assert_eq!(self.add(l, e, &payload(l, e)).await, Status::Ok);
            e += 1;
        }
        settle(|| running.bookie.sealed_segments() + 1 >= before + segments).await;
        e
    }
}

/// A payload of 1 KiB that no other entry has.
pub(super) fn payload(l: u64, e: u64) -> Vec<u8> {
    let mut payload = format!("{l}/{e}/").into_bytes();
    payload.resize(1024, (l + e) as u8);
    payload
}

/// Waits until a condition holds that background tasks bring about.
pub(super) async fn settle(reached: impl Fn() -> bool) {
    let wait = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the condition holds in time");
}

pub(super) fn segment_path(name: &str) -> PathBuf {
    Path::new(DIR).join("journal").join(name)
}
