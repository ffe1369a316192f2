//! The gRPC calls of a node or a role.

use bytes::Bytes;
use proto::v1::append_request::Message as AppendMessage;
use proto::v1::ledgers_client::LedgersClient;
use proto::v1::read_entries_request::Message as ReadMessage;
use proto::v1::tiering_client::TieringClient;
use proto::v1::{
    AppendEntries, AppendOpen, AppendRequest, AppendResponse, CloseLedgerRequest, CreateLedgerRequest,
    DeleteLedgerRequest, Entry, GetLedgerRequest, LastConfirmedRequest, LastConfirmedResponse, Ledger,
    OffloadLedgerRequest, OffloadResult, ReadCredit, ReadEntriesRequest, ReadStart, StatusRequest, StatusResponse,
    Tier,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::DEADLINE;

#[derive(Clone)]
pub struct Calls {
    ledgers: LedgersClient<Channel>,
    tiering: TieringClient<Channel>,
}

impl Calls {
    /// Connects when the first call is made, so that a dead process shows as the error of a call.
    pub fn to(endpoint: &str) -> Self {
        let channel = tonic::transport::Endpoint::from_shared(endpoint.to_owned()).unwrap();
        let channel = channel.timeout(DEADLINE).connect_lazy();
        let ledgers = LedgersClient::new(channel.clone())
            .max_decoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX);
        Self { ledgers, tiering: TieringClient::new(channel) }
    }

    pub async fn create(&mut self) -> Result<u64, Status> {
        Ok(self.ledgers.create_ledger(CreateLedgerRequest::default()).await?.into_inner().ledger_id)
    }

    pub async fn close(&mut self, ledger_id: u64) -> Result<Ledger, Status> {
        let request = CloseLedgerRequest { ledger_id, password: Bytes::new() };
        Ok(self.ledgers.close_ledger(request).await?.into_inner())
    }

    pub async fn get(&mut self, ledger_id: u64) -> Result<Ledger, Status> {
        Ok(self.ledgers.get_ledger(GetLedgerRequest { ledger_id }).await?.into_inner())
    }

    pub async fn delete(&mut self, ledger_id: u64) -> Result<(), Status> {
        self.ledgers.delete_ledger(DeleteLedgerRequest { ledger_id }).await.map(drop)
    }

    pub async fn last_confirmed(&mut self, ledger_id: u64) -> Result<LastConfirmedResponse, Status> {
        Ok(self.ledgers.last_confirmed(LastConfirmedRequest { ledger_id }).await?.into_inner())
    }

    pub async fn offload(&mut self, ledger_id: u64, release: bool) -> Result<OffloadResult, Status> {
        Ok(self.tiering.offload_ledger(OffloadLedgerRequest { ledger_id, release }).await?.into_inner())
    }

    pub async fn status(&mut self) -> Result<StatusResponse, Status> {
        Ok(self.tiering.status(StatusRequest {}).await?.into_inner())
    }

    /// Opens a stream of appends.
    pub async fn append(&mut self, ledger_id: u64) -> Result<Appends, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let open = AppendOpen { ledger_id, password: Bytes::new() };
        let first = AppendRequest { message: Some(AppendMessage::Open(open)) };
        let opened = sender.send(first);
        let (answers, _) = tokio::join!(self.ledgers.append(ReceiverStream::new(receiver)), opened);
        Ok(Appends { sender, answers: answers?.into_inner() })
    }

    /// Reads a range; `to` is the entry to stop before.
    pub async fn read(&mut self, ledger_id: u64, from: u64, to: Option<u64>, tier: Tier) -> Result<Vec<Entry>, Status> {
        let credit_bytes = 1 << 20;
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
}

/// An open stream of appends.
pub struct Appends {
    sender: mpsc::Sender<AppendRequest>,
    answers: Streaming<AppendResponse>,
}

impl Appends {
    /// Sends payloads as one message.
    pub async fn send(&mut self, payloads: Vec<Bytes>) {
        let entries = AppendEntries { payloads };
        // A stream that is gone says so in its answers.
        let _ = self.sender.send(AppendRequest { message: Some(AppendMessage::Entries(entries)) }).await;
    }

    /// The next acknowledgement.
    pub async fn acknowledged(&mut self) -> Result<AppendResponse, Status> {
        self.answers.message().await?.ok_or_else(|| Status::unavailable("the stream ended"))
    }
}
