use bytes::Bytes;
use cold::StoreOptions;
use common::net::MemoryNetwork;
use common::rng::Rng;
use metadata::{FaultKind, FaultyStore, MemoryStore, MetadataStore, layout};
use object_store::memory::InMemory;
use proto::v1::append_request::Message as AppendMessage;
use proto::v1::ledgers_client::LedgersClient;
use proto::v1::read_entries_request::Message as ReadMessage;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Server};

use super::*;
use crate::testing::bookie::{bookies, client};

/// A cluster in memory with any number of gateways, each reached over a real gRPC connection.
struct Cluster {
    network: MemoryNetwork,
    store: Arc<dyn MetadataStore>,
    faults: Arc<FaultyStore>,
    cold: ColdStore,
    tasks: TaskTree,
}

impl Cluster {
    async fn start() -> Self {
        let network = MemoryNetwork::new();
        let faults = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
        let store: Arc<dyn MetadataStore> = Arc::clone(&faults) as _;
        let tasks = TaskTree::root("test");
        bookies(&network, &store, &tasks).await;
        let cold = ColdStore::new(Arc::new(InMemory::new()), StoreOptions::default(), Rng::seeded(3));
        Self { network, store, faults, cold, tasks }
    }

    async fn gateway(&self, seed: u64) -> (LedgersService, Calls) {
        let parts = GatewayParts {
            client: client(&self.network, &self.store, &self.tasks, seed),
            ledgers: Ledgers::new(Arc::clone(&self.store)),
            cold: self.cold.clone(),
            instance_id: "instance-1".to_owned(),
            budget: ByteBudget::new("all", 256 << 20),
            tasks: self.tasks.clone(),
        };
        let service = LedgersService::new(parts, GatewayConfig::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (server, stopping) = (service.clone().into_server(), self.tasks.clone());
        self.tasks.spawn("grpc", async move {
            let stopped = async move { stopping.stopping().await };
            let incoming = TcpListenerStream::new(listener);
            Server::builder().add_service(server).serve_with_incoming_shutdown(incoming, stopped).await.unwrap();
        });
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        (service, Calls(LedgersClient::new(channel)))
    }
}

struct Calls(LedgersClient<Channel>);

impl Calls {
    async fn create(&mut self) -> u64 {
        self.0.create_ledger(v1::CreateLedgerRequest::default()).await.unwrap().into_inner().ledger_id
    }

    /// Opens an append stream.
    async fn appending(&mut self, ledger_id: u64) -> (mpsc::Sender<v1::AppendRequest>, Streaming<v1::AppendResponse>) {
        let (sender, receiver) = mpsc::channel(64);
        let open = v1::AppendOpen { ledger_id, password: Bytes::new() };
        sender.send(v1::AppendRequest { message: Some(AppendMessage::Open(open)) }).await.unwrap();
        let answers = self.0.append(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        (sender, answers)
    }

    /// Appends payloads, and checks that they are acknowledged in order from `first` on.
    async fn append(&mut self, ledger: u64, first: u64, payloads: &[Bytes]) -> std::result::Result<(), Status> {
        let (sender, mut answers) = self.appending(ledger).await;
        for chunk in payloads.chunks(10) {
            let entries = v1::AppendEntries { payloads: chunk.to_vec() };
            // After an error nobody listens, and the answer says why.
            let _ = sender.send(v1::AppendRequest { message: Some(AppendMessage::Entries(entries)) }).await;
        }
        drop(sender);
        let mut next = first;
        while let Some(run) = answers.message().await? {
            assert_eq!(run.first_entry_id, next);
            next += run.count;
        }
        assert_eq!(next, first + payloads.len() as u64);
        Ok(())
    }

    async fn read(&mut self, ledger_id: u64) -> std::result::Result<Vec<Bytes>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let start = v1::ReadStart { ledger_id, initial_credit_bytes: u64::MAX, ..v1::ReadStart::default() };
        sender.send(v1::ReadEntriesRequest { message: Some(ReadMessage::Start(start)) }).await.unwrap();
        let mut answers = self.0.read_entries(ReceiverStream::new(receiver)).await?.into_inner();
        let mut payloads = Vec::new();
        while let Some(answer) = answers.message().await? {
            payloads.extend(answer.entries.into_iter().map(|entry| entry.payload));
        }
        Ok(payloads)
    }

    async fn close(&mut self, ledger_id: u64) -> std::result::Result<v1::Ledger, Status> {
        let request = v1::CloseLedgerRequest { ledger_id, password: Bytes::new() };
        Ok(self.0.close_ledger(request).await?.into_inner())
    }

    async fn last_confirmed(&mut self, ledger_id: u64) -> v1::LastConfirmedResponse {
        self.0.last_confirmed(v1::LastConfirmedRequest { ledger_id }).await.unwrap().into_inner()
    }
}

fn payloads(range: std::ops::Range<u64>) -> Vec<Bytes> {
    range.map(|place| Bytes::from(format!("payload {place}").repeat(place as usize % 40))).collect()
}

#[tokio::test]
async fn the_life_of_a_ledger() {
    let cluster = Cluster::start().await;
    let (service, mut calls) = cluster.gateway(1).await;
    let ledger = calls.create().await;
    assert_eq!(service.live_writers(), 1);
    assert_eq!(calls.last_confirmed(ledger).await, v1::LastConfirmedResponse { entry_id: None, closed: false });
    calls.append(ledger, 0, &payloads(0..95)).await.unwrap();
    assert_eq!(calls.last_confirmed(ledger).await.entry_id, Some(94));
    assert_eq!(calls.read(ledger).await.unwrap(), payloads(0..95), "the last confirmed entry is readable at once");
    calls.append(ledger, 95, &payloads(95..100)).await.unwrap();

    let closed = calls.close(ledger).await.unwrap();
    assert_eq!((closed.state(), closed.last_entry_id), (v1::LedgerState::Closed, Some(99)));
    assert_eq!((closed.tier(), closed.ensemble_size, closed.ack_quorum), (v1::LedgerTier::Hot, 3, 2));
    assert_eq!(closed.length, payloads(0..100).iter().map(|payload| payload.len() as u64).sum::<u64>());
    assert_eq!(service.live_writers(), 0);
    assert_eq!(calls.close(ledger).await.unwrap(), closed, "closing again is no error");
    let got = calls.0.get_ledger(v1::GetLedgerRequest { ledger_id: ledger }).await.unwrap().into_inner();
    assert_eq!(got, closed);
    assert_eq!(calls.read(ledger).await.unwrap(), payloads(0..100));
    assert_eq!(calls.last_confirmed(ledger).await, v1::LastConfirmedResponse { entry_id: Some(99), closed: true });

    let error = calls.append(ledger, 100, &payloads(0..1)).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("closed"), "{error}");

    calls.0.delete_ledger(v1::DeleteLedgerRequest { ledger_id: ledger }).await.unwrap();
    let error = calls.0.delete_ledger(v1::DeleteLedgerRequest { ledger_id: ledger }).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(calls.read(ledger).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(calls.close(ledger).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(calls.append(ledger, 0, &payloads(0..1)).await.unwrap_err().code(), Code::NotFound);
    cluster.tasks.stop(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn what_was_confirmed_stays_so_when_closing_fails() {
    let cluster = Cluster::start().await;
    let (service, mut calls) = cluster.gateway(1).await;
    let ledger = calls.create().await;
    calls.append(ledger, 0, &payloads(0..30)).await.unwrap();
    // Neither the writer nor a recovery gets anything into the metadata.
    for _ in 0..2 {
        cluster.faults.fail_next_on(&layout::ledger_key(LedgerId::new(ledger).unwrap()), FaultKind::FailBefore);
    }
    assert_eq!(calls.close(ledger).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(cluster.faults.outstanding(), 0);
    assert_eq!(calls.last_confirmed(ledger).await, v1::LastConfirmedResponse { entry_id: Some(29), closed: false });
    assert_eq!(calls.read(ledger).await.unwrap(), payloads(0..30));
    let error = calls.append(ledger, 30, &payloads(0..1)).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");

    let closed = calls.close(ledger).await.unwrap();
    assert_eq!((closed.state(), closed.last_entry_id), (v1::LedgerState::Closed, Some(29)));
    assert_eq!(service.live_writers(), 0);
}

#[tokio::test]
async fn a_ledger_of_another_gateway_is_taken_over_by_closing_it() {
    let cluster = Cluster::start().await;
    let (first_service, mut first) = cluster.gateway(1).await;
    let (_, mut second) = cluster.gateway(2).await;
    let ledger = first.create().await;
    first.append(ledger, 0, &payloads(0..30)).await.unwrap();

    let error = second.append(ledger, 30, &payloads(0..1)).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("close it"), "says what to do: {error}");

    let closed = second.close(ledger).await.unwrap();
    assert_eq!((closed.state(), closed.last_entry_id), (v1::LedgerState::Closed, Some(29)));
    let error = first.append(ledger, 30, &payloads(0..1)).await.unwrap_err();
    assert_eq!(error.code(), Code::Aborted, "its writer is fenced: {error}");
    assert_eq!(first.close(ledger).await.unwrap(), closed);
    assert_eq!(first_service.live_writers(), 0);
    for calls in [&mut first, &mut second] {
        assert_eq!(calls.read(ledger).await.unwrap(), payloads(0..30));
    }
}

#[tokio::test]
async fn a_ledger_has_one_append_stream_at_a_time() {
    let cluster = Cluster::start().await;
    let (_, mut calls) = cluster.gateway(1).await;
    let ledger = calls.create().await;
    let (sender, mut answers) = calls.appending(ledger).await;
    let entries = v1::AppendEntries { payloads: payloads(3..4) };
    sender.send(v1::AppendRequest { message: Some(AppendMessage::Entries(entries)) }).await.unwrap();
    assert_eq!(answers.message().await.unwrap(), Some(v1::AppendResponse { first_entry_id: 0, count: 1 }));
    let error = calls.append(ledger, 1, &payloads(0..1)).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    drop(sender);
    assert_eq!(answers.message().await.unwrap(), None);
    calls.append(ledger, 1, &payloads(0..1)).await.unwrap();
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused() {
    let cluster = Cluster::start().await;
    let (_, mut calls) = cluster.gateway(1).await;
    let plain = v1::CreateLedgerRequest::default();
    let reserved = [("thermocline/cold".to_owned(), Bytes::new())].into();
    let requests = [
        v1::CreateLedgerRequest { ensemble_size: 1, write_quorum: 2, ..plain.clone() },
        v1::CreateLedgerRequest { ack_quorum: 4, ..plain.clone() },
        v1::CreateLedgerRequest { digest_type: 9, ..plain.clone() },
        v1::CreateLedgerRequest { custom: reserved, ..plain.clone() },
    ];
    for request in requests {
        assert_eq!(calls.0.create_ledger(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    // One size alone brings the others down with it.
    let single = v1::CreateLedgerRequest { ensemble_size: 1, ..plain.clone() };
    let ledger = calls.0.create_ledger(single).await.unwrap().into_inner().ledger_id;
    let closed = calls.close(ledger).await.unwrap();
    assert_eq!((closed.ensemble_size, closed.write_quorum, closed.ack_quorum), (1, 1, 1));
    let five = v1::CreateLedgerRequest { ensemble_size: 5, ..plain };
    let error = calls.0.create_ledger(five).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains("writable bookies"), "{error}");

    let error = calls.0.get_ledger(v1::GetLedgerRequest { ledger_id: u64::MAX }).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let bad_page = v1::ListLedgersRequest { page_token: "x".into(), ..v1::ListLedgersRequest::default() };
    assert_eq!(calls.0.list_ledgers(bad_page).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_password_guards_writing_reading_and_closing() {
    let cluster = Cluster::start().await;
    let (_, mut calls) = cluster.gateway(1).await;
    let request = v1::CreateLedgerRequest { password: "secret".into(), ..v1::CreateLedgerRequest::default() };
    let ledger = calls.0.create_ledger(request).await.unwrap().into_inner().ledger_id;
    assert_eq!(calls.append(ledger, 0, &payloads(0..1)).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(calls.close(ledger).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(calls.read(ledger).await.unwrap_err().code(), Code::PermissionDenied);
    let close = v1::CloseLedgerRequest { ledger_id: ledger, password: "secret".into() };
    calls.0.close_ledger(close).await.unwrap();
    assert_eq!(calls.close(ledger).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn ledgers_are_listed_in_pages_and_custom_values_are_shown() {
    let cluster = Cluster::start().await;
    let (_, mut calls) = cluster.gateway(1).await;
    let mut made = Vec::new();
    for place in 0..5u8 {
        let custom = [("topic".to_owned(), Bytes::from(vec![place]))].into();
        let request = v1::CreateLedgerRequest { custom, ..v1::CreateLedgerRequest::default() };
        made.push(calls.0.create_ledger(request).await.unwrap().into_inner().ledger_id);
    }
    let mut listed = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListLedgersRequest { page_size: 2, page_token };
        let page = calls.0.list_ledgers(request).await.unwrap().into_inner();
        assert!(page.ledgers.len() <= 2);
        listed.extend(page.ledgers);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(listed.iter().map(|ledger| ledger.ledger_id).collect::<Vec<_>>(), made);
    for (place, ledger) in listed.iter().enumerate() {
        assert_eq!(ledger.custom["topic"], vec![place as u8]);
        assert_eq!((ledger.state(), ledger.segments[0].bookies.len()), (v1::LedgerState::Open, 3));
    }
}

#[tokio::test]
async fn an_orderly_stop_closes_what_is_open() {
    let cluster = Cluster::start().await;
    let (service, mut calls) = cluster.gateway(1).await;
    let ledger = calls.create().await;
    calls.append(ledger, 0, &payloads(0..10)).await.unwrap();
    service.close_writers(Duration::from_secs(10)).await.unwrap();
    let got = calls.0.get_ledger(v1::GetLedgerRequest { ledger_id: ledger }).await.unwrap().into_inner();
    assert_eq!((got.state(), got.last_entry_id), (v1::LedgerState::Closed, Some(9)));
    cluster.tasks.stop(Duration::from_secs(10)).await.unwrap();
    assert!(calls.0.create_ledger(v1::CreateLedgerRequest::default()).await.is_err());
}
