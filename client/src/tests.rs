//! The shell against bookies that speak the wire protocol over in-memory pipes.

mod fake;
mod reading;
mod recovering;
mod writing;

use std::sync::Arc;

use bytes::Bytes;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::MemoryNetwork;
use common::rng::Rng;
use common::shutdown::TaskTree;
use fake::FakeBookie;
use futures::StreamExt as _;
use ledger::{BookieId, DigestType, EntryId, Password, Quorums};
use metadata::{BookieInfo, Bookies, MemoryStore, MetadataStore};

use crate::{
    Client, ClientConfig, ClientParts, CreateOptions, Error, LedgerReader, LedgerWriter, OpenMode, Opened, ReadEntry,
};

const BUDGET_BYTES: u64 = 64 * 1024 * 1024;

/// Some fake bookies, a metadata store, and a client.
struct Cluster {
    network: MemoryNetwork,
    store: Arc<dyn MetadataStore>,
    bookies: Vec<FakeBookie>,
    tasks: TaskTree,
    budget: ByteBudget,
    client: Client,
}

fn id(entry: u64) -> EntryId {
    EntryId::new(entry).unwrap()
}

fn options(ensemble: u32, write: u32, ack: u32) -> CreateOptions {
    CreateOptions {
        quorums: Quorums::new(ensemble, write, ack).unwrap(),
        digest: DigestType::Crc32c,
        password: Password::new("secret"),
        custom: Vec::new(),
    }
}

fn payload(entry: u64) -> Bytes {
    Bytes::from(format!("payload of entry {entry}"))
}

impl Cluster {
    async fn start(bookies: usize) -> Self {
        Self::start_on(bookies, Arc::new(MemoryStore::new()), BUDGET_BYTES).await
    }

    async fn start_on(bookies: usize, store: Arc<dyn MetadataStore>, budget_bytes: u64) -> Self {
        let network = MemoryNetwork::new();
        let tasks = TaskTree::root("test");
        let lease = store.grant_lease(std::time::Duration::from_secs(365 * 24 * 3600)).await.unwrap();
        let mut started = Vec::new();
        for index in 0..bookies {
            let bookie = BookieId::new(&format!("bk{index}:3181")).unwrap();
            let address = format!("host{index}:3181");
            started.push(FakeBookie::start(&network, &tasks, &address));
            Bookies::new(Arc::clone(&store)).register(&bookie, &BookieInfo::at(address), lease).await.unwrap();
        }
        let budget = ByteBudget::new("test", budget_bytes);
        let client = client(&network, &store, &tasks, &budget, ClientConfig::default());
        Self { network, store, bookies: started, tasks, budget, client }
    }

    /// Another client of the same cluster, with connections of its own.
    fn another_client(&self) -> Client {
        client(&self.network, &self.store, &self.tasks, &self.budget, ClientConfig::default())
    }

    fn bookie(&self, member: &BookieId) -> &FakeBookie {
        let index: usize = member.as_str()[2..member.as_str().len() - 5].parse().unwrap();
        &self.bookies[index]
    }

    /// The bookie at an index of the ledger's only ensemble.
    fn member(&self, writer: &LedgerWriter, index: usize) -> &FakeBookie {
        self.bookie(&writer.metadata().last_segment().ensemble[index])
    }

    async fn open(&self, writer: &LedgerWriter, mode: OpenMode) -> Result<LedgerReader, Error> {
        match self.client.open(writer.id(), mode, Some(&Password::new("secret"))).await? {
            Opened::Hot(reader) => Ok(reader),
            Opened::Cold(_) => panic!("not released"),
        }
    }
}

fn client(
    network: &MemoryNetwork,
    store: &Arc<dyn MetadataStore>,
    tasks: &TaskTree,
    budget: &ByteBudget,
    config: ClientConfig,
) -> Client {
    let parts = ClientParts {
        metadata: Arc::clone(store),
        connector: Arc::new(network.clone()),
        clock: Clock::manual(1_700_000_000_000).0,
        rng: Rng::seeded(7),
        budget: budget.clone(),
        tasks: tasks.clone(),
    };
    Client::new(parts, config)
}

/// Appends entries `range` and waits until all are confirmed.
async fn append_all(writer: &LedgerWriter, range: std::ops::Range<u64>) {
    let mut appends = Vec::new();
    for entry in range {
        appends.push(writer.append(payload(entry)).await.unwrap());
    }
    for append in appends {
        let entry = append.entry();
        assert_eq!(append.await.unwrap(), entry);
    }
}

async fn read_all(reader: &LedgerReader, range: std::ops::Range<u64>) -> Vec<Result<ReadEntry, Error>> {
    reader.read(id(range.start)..id(range.end)).collect().await
}

async fn assert_holds(reader: &LedgerReader, entries: u64) {
    let read = read_all(reader, 0..entries).await;
    assert_eq!(read.len() as u64, entries);
    for (entry, read) in (0..).zip(read) {
        let read = read.unwrap();
        assert_eq!(read.entry.header.entry, id(entry));
        assert_eq!(read.entry.payload, payload(entry));
        assert_eq!(read.entry.to_body(), read.body);
    }
}
