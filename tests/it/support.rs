//! A node for tests and the calls on it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use cli::Settings;
use cli::standalone::Node;
use proto::v1::append_request::Message as AppendMessage;
use proto::v1::ledgers_client::LedgersClient;
use proto::v1::read_entries_request::Message as ReadMessage;
use proto::v1::tiering_client::TieringClient;
use proto::v1::{
    AppendEntries, AppendOpen, AppendRequest, CloseLedgerRequest, CreateLedgerRequest, Entry, GetLedgerRequest, Ledger,
    OffloadLedgerRequest, OffloadResult, ReadCredit, ReadEntriesRequest, ReadStart, Tier,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

/// How long any single wait of a test may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Settings with small segments and quick collection, so that release shows on the disk. The policy releases nothing by itself:
/// a test that looks at a settled ledger must find it settled.
pub fn settings(dir: &Path) -> Settings {
    Settings::for_demo(dir, None, 256 * 1024, Duration::from_secs(24 * 3600))
}

/// A running node in a folder of its own.
pub struct TestNode {
    pub node: Node,
    pub dir: TempDir,
}

impl TestNode {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let node = Node::start(settings(dir.path())).await.unwrap();
        Self { node, dir }
    }

    /// Stops the node in order and starts it again on the same folder.
    pub async fn restart(self) -> Self {
        self.node.stop().await.unwrap();
        let node = Node::start(settings(self.dir.path())).await.unwrap();
        Self { node, dir: self.dir }
    }

    pub async fn calls(&self) -> Calls {
        Calls::connect(&self.node.endpoint()).await
    }

    pub fn cold_dir(&self) -> PathBuf {
        self.dir.path().join("cold")
    }
}

/// The gRPC calls of a node.
#[derive(Clone)]
pub struct Calls {
    pub ledgers: LedgersClient<Channel>,
    pub tiering: TieringClient<Channel>,
}

impl Calls {
    pub async fn connect(endpoint: &str) -> Self {
        let channel = tonic::transport::Endpoint::from_shared(endpoint.to_owned()).unwrap().connect().await.unwrap();
        let ledgers = LedgersClient::new(channel.clone())
            .max_decoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX);
        Self { ledgers, tiering: TieringClient::new(channel) }
    }

    pub async fn create(&mut self) -> u64 {
        self.ledgers.create_ledger(CreateLedgerRequest::default()).await.unwrap().into_inner().ledger_id
    }

    /// Appends payloads in messages of `per_message` and returns how many were acknowledged, in order.
    pub async fn append(&mut self, ledger_id: u64, payloads: &[Bytes], per_message: usize) -> Result<u64, Status> {
        let (sender, receiver) = mpsc::channel(payloads.len() / per_message.max(1) + 2);
        let open = AppendOpen { ledger_id, password: Bytes::new() };
        sender.try_send(AppendRequest { message: Some(AppendMessage::Open(open)) }).unwrap();
        for chunk in payloads.chunks(per_message) {
            let entries = AppendEntries { payloads: chunk.to_vec() };
            sender.try_send(AppendRequest { message: Some(AppendMessage::Entries(entries)) }).unwrap();
        }
        drop(sender);
        let mut answers = self.ledgers.append(ReceiverStream::new(receiver)).await?.into_inner();
        let mut next = None;
        let mut acknowledged = 0;
        while let Some(run) = answers.message().await? {
            assert!(next.is_none_or(|next| next == run.first_entry_id), "acknowledgements out of order: {run:?}");
            next = Some(run.first_entry_id + run.count);
            acknowledged += run.count;
        }
        Ok(acknowledged)
    }

    pub async fn close(&mut self, ledger_id: u64) -> Result<Ledger, Status> {
        let request = CloseLedgerRequest { ledger_id, password: Bytes::new() };
        Ok(self.ledgers.close_ledger(request).await?.into_inner())
    }

    pub async fn get(&mut self, ledger_id: u64) -> Result<Ledger, Status> {
        Ok(self.ledgers.get_ledger(GetLedgerRequest { ledger_id }).await?.into_inner())
    }

    /// Writes and closes a ledger.
    pub async fn written(&mut self, payloads: &[Bytes]) -> u64 {
        let ledger = self.create().await;
        assert_eq!(self.append(ledger, payloads, 500).await.unwrap(), payloads.len() as u64);
        self.close(ledger).await.unwrap();
        ledger
    }

    pub async fn offload(&mut self, ledger_id: u64, release: bool) -> Result<OffloadResult, Status> {
        Ok(self.tiering.offload_ledger(OffloadLedgerRequest { ledger_id, release }).await?.into_inner())
    }

    /// Reads a range with small credits, as a slow reader would.
    pub async fn read(&mut self, ledger_id: u64, from: u64, to: Option<u64>, tier: Tier) -> Result<Vec<Entry>, Status> {
        let credit_bytes = 64 * 1024;
        let (sender, receiver) = mpsc::channel(4);
        let start = ReadStart {
            ledger_id,
            first_entry_id: from,
            end_entry_id: to,
            tier: tier.into(),
            follow: false,
            initial_credit_bytes: credit_bytes,
            password: Bytes::new(),
        };
        sender.try_send(ReadEntriesRequest { message: Some(ReadMessage::Start(start)) }).unwrap();
        let mut answers = self.ledgers.read_entries(ReceiverStream::new(receiver)).await?.into_inner();
        let mut entries = Vec::new();
        while let Some(answer) = answers.message().await? {
            let bytes = answer.entries.iter().map(|entry| entry.payload.len() as u64).sum();
            entries.extend(answer.entries);
            let _ = sender.send(ReadEntriesRequest { message: Some(ReadMessage::Credit(ReadCredit { bytes })) }).await;
        }
        Ok(entries)
    }

    /// Reads a whole ledger and asserts that it is exactly `payloads`, all from `tier` when one is named.
    pub async fn assert_holds(&mut self, ledger: u64, payloads: &[Bytes], tier: Tier) {
        let entries = self.read(ledger, 0, None, tier).await.unwrap();
        assert_eq!(entries.len(), payloads.len(), "ledger {ledger}");
        for (place, (entry, payload)) in entries.iter().zip(payloads).enumerate() {
            assert_eq!(entry.entry_id, place as u64);
            assert_eq!(&entry.payload, payload, "ledger {ledger} entry {place}");
            if tier != Tier::Unspecified {
                assert_eq!(entry.tier(), tier, "ledger {ledger} entry {place}");
            }
        }
    }
}

/// Payloads of all kinds: empty, one byte, lines, binary, large.
pub fn payloads(seed: u64, count: usize) -> Vec<Bytes> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..count)
        .map(|place| {
            let bytes = match place % 50 {
                0 => 0,
                1 => 1,
                2 => rng.random_range(10_000..60_000),
                _ => rng.random_range(20..400),
            };
            let mut payload = vec![0; bytes];
            rng.fill(&mut payload[..]);
            Bytes::from(payload)
        })
        .collect()
}

/// Waits until a condition on the world holds; panics with `what` past the deadline.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let reached = tokio::time::timeout(DEADLINE, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(reached.await.is_ok(), "not within {DEADLINE:?}: {what}");
}

/// All objects below a folder.
pub fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(objects(&path));
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            found.push(path);
        }
    }
    found.sort();
    found
}
