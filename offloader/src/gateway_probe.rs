use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use ledger::{EntryId, LedgerId, Password};
use proto::v1;
use proto::v1::ledgers_client::LedgersClient;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, ErrorKind, Result};
use crate::{Probed, ReleaseProbe};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const DOING: &str = "read through the gateway from";

/// Reads through a gateway's gRPC front, as its readers do. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GatewayProbe {
    ledgers: LedgersClient<Channel>,
}

impl GatewayProbe {
    /// A probe of the gateway at `endpoint`, such as `http://127.0.0.1:9600`. Connects when it is first used; must be made inside
    /// of a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when the endpoint is malformed.
    pub fn new(endpoint: &str) -> Result<Self> {
        let endpoint = Endpoint::from_shared(endpoint.to_owned()).map_err(|error| {
            Error::new(ErrorKind::Config, format!("use gateway endpoint {endpoint:?}: write it as http://host:port"))
                .caused_by(error)
        })?;
        Ok(Self::over(
            endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                // A gateway that vanished without a word must not hold the connection until TCP gives up.
                .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .connect_lazy(),
        ))
    }

    /// A probe over a connection that exists.
    pub fn over(channel: Channel) -> Self {
        Self { ledgers: LedgersClient::new(channel).max_decoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX) }
    }
}

#[async_trait]
impl ReleaseProbe for GatewayProbe {
    async fn read_cold(&self, ledger: LedgerId, entry: EntryId, password: Option<&Password>) -> Result<Probed> {
        let start = v1::ReadStart {
            ledger_id: ledger.get(),
            first_entry_id: entry.get(),
            end_entry_id: Some(entry.next().get()),
            tier: v1::Tier::Cold.into(),
            follow: false,
            initial_credit_bytes: proto::GRPC_MESSAGE_BYTES_MAX as u64,
            password: password.map(|password| bytes::Bytes::copy_from_slice(password.as_bytes())).unwrap_or_default(),
        };
        let start = v1::ReadEntriesRequest { message: Some(v1::read_entries_request::Message::Start(start)) };
        // The request side stays open: an end of it would be a wish to stop.
        let requests = futures::stream::iter([start]).chain(futures::stream::pending());
        let mut answers =
            self.ledgers.clone().read_entries(requests).await.map_err(|status| refused(ledger, &status))?.into_inner();
        while let Some(answer) = answers.message().await.map_err(|status| refused(ledger, &status))? {
            let Some(found) = answer.entries.into_iter().next() else { continue };
            let wrong = |what: &str| {
                Err(Error::of_ledger(ErrorKind::Damaged, DOING, ledger, format_args!("entry {entry}: {what}")))
            };
            if found.entry_id != entry.get() {
                return wrong("another entry came");
            }
            if found.tier() != v1::Tier::Cold {
                return wrong("it did not come from the cold tier");
            }
            let Some(last_confirmed) = found.last_confirmed.map(EntryId::new).map_or(Some(None), |id| id.map(Some))
            else {
                return wrong("its last confirmed entry is no entry id");
            };
            return Ok(Probed { payload: found.payload, last_confirmed, length: found.length });
        }
        Err(Error::of_ledger(
            ErrorKind::Damaged,
            DOING,
            ledger,
            format_args!("entry {entry}: the stream ended without it"),
        ))
    }
}

fn refused(ledger: LedgerId, status: &tonic::Status) -> Error {
    let kind = match status.code() {
        tonic::Code::DataLoss | tonic::Code::OutOfRange | tonic::Code::NotFound => ErrorKind::Damaged,
        tonic::Code::DeadlineExceeded => ErrorKind::Timeout,
        _ => ErrorKind::Unavailable,
    };
    Error::of_ledger(kind, DOING, ledger, status.message()).caused_by(status.clone())
}
