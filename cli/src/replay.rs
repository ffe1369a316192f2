//! Reading a range of a ledger through the gateway's stream with byte credits.

use bytes::Bytes;
use proto::v1::read_entries_request::Message;
use proto::v1::{Entry, ReadCredit, ReadEntriesRequest, ReadEntriesResponse, ReadStart, Tier};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::remote::Remote;

/// How far the server may run ahead of us, in payload bytes.
const WINDOW_BYTES: u64 = 4 * 1024 * 1024;

/// What to read: entries `from..to` (to the end without `to`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) ledger: u64,
    pub(crate) from: u64,
    pub(crate) to: Option<u64>,
    pub(crate) tier: Tier,
}

/// A running read.
pub(crate) struct Replay {
    credits: mpsc::Sender<ReadEntriesRequest>,
    answers: Streaming<ReadEntriesResponse>,
}

impl Replay {
    /// Opens the stream.
    pub(crate) async fn start(node: &Remote, range: Range) -> Result<Self, Status> {
        let (credits, requests) = mpsc::channel(16);
        let start = ReadStart {
            ledger_id: range.ledger,
            first_entry_id: range.from,
            end_entry_id: range.to,
            tier: range.tier.into(),
            follow: false,
            initial_credit_bytes: WINDOW_BYTES,
            password: Bytes::new(),
        };
        credits
            .try_send(ReadEntriesRequest { message: Some(Message::Start(start)) })
            .expect("the channel is empty and its receiver alive");
        let answers = node.ledgers().read_entries(ReceiverStream::new(requests)).await?.into_inner();
        Ok(Self { credits, answers })
    }

    /// The next entries, or none at the end of the range. Grants the server as many bytes as it returns.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Entry>>, Status> {
        let Some(answer) = self.answers.message().await? else { return Ok(None) };
        let bytes = answer.entries.iter().map(|entry| entry.payload.len() as u64).sum();
        let credit = ReadEntriesRequest { message: Some(Message::Credit(ReadCredit { bytes })) };
        // A server that has sent everything no longer listens for credits; the stream's end says so next.
        let _ = self.credits.send(credit).await;
        Ok(Some(answer.entries))
    }
}
