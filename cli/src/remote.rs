//! Talking to a running node over gRPC.

use std::time::Duration;

use proto::v1::ledgers_client::LedgersClient;
use proto::v1::ledgers_server::LedgersServer;
use proto::v1::tiering_client::TieringClient;
use proto::v1::tiering_server::TieringServer;
use tonic::server::NamedService as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::Fault;
use crate::fault::chain;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a command needs from an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Writes and reads ledgers: gateways and standalone nodes.
    Ledgers,
    /// Orders and status: offloaders and standalone nodes.
    Tiering,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Ledgers => LedgersServer::<()>::NAME,
            Self::Tiering => TieringServer::<()>::NAME,
        }
    }

    /// What to say about an endpoint that does not have it.
    fn missing(self) -> &'static str {
        match self {
            Self::Ledgers => "is an offloader, which serves no ledgers: name a gateway with --endpoint",
            Self::Tiering => {
                "is a gateway, which knows its ledgers only: status and offload orders go to an offloader, name one with --endpoint"
            }
        }
    }
}

/// A connection to a node.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    channel: Channel,
}

impl Remote {
    /// Connects, or says in one sentence why it cannot.
    pub(crate) async fn connect(endpoint: &str) -> Result<Self, Fault> {
        let with_scheme = if endpoint.contains("://") { endpoint.to_owned() } else { format!("http://{endpoint}") };
        let target = Endpoint::from_shared(with_scheme)
            .map_err(|_| {
                Fault::usage(format!("--endpoint {endpoint}: not a URL; write it like http://127.0.0.1:9600"))
            })?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        let channel = target.connect().await.map_err(|error| {
            Fault::failed(format!(
                "no node answers at {endpoint} ({}). Start one with `thermocline standalone`, or name another with --endpoint",
                chain(&error)
            ))
        })?;
        Ok(Self { channel })
    }

    /// As [`Remote::connect`], to an endpoint that must have `service`.
    pub(crate) async fn connect_for(endpoint: &str, service: Service) -> Result<Self, Fault> {
        let remote = Self::connect(endpoint).await?;
        let request = HealthCheckRequest { service: service.name().to_owned() };
        match HealthClient::new(remote.channel.clone()).check(request).await {
            Err(status) if status.code() == Code::NotFound => {
                Err(Fault::usage(format!("{endpoint} {}", service.missing())))
            }
            // Other answers say nothing about the service; the call itself will.
            _ => Ok(remote),
        }
    }

    pub(crate) fn ledgers(&self) -> LedgersClient<Channel> {
        LedgersClient::new(self.channel.clone())
            .max_decoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::GRPC_MESSAGE_BYTES_MAX)
    }

    pub(crate) fn tiering(&self) -> TieringClient<Channel> {
        TieringClient::new(self.channel.clone())
    }
}

/// A node's refusal as a sentence.
pub(crate) fn refused(what: impl std::fmt::Display, status: &Status) -> Fault {
    let text = status.message();
    let text = if text.is_empty() { status.code().description() } else { text };
    let what = what.to_string();
    // Most refusals name the ledger themselves.
    let sentence = if text.contains(&what) { text.to_owned() } else { format!("{what}: {text}") };
    match status.code() {
        Code::InvalidArgument | Code::NotFound | Code::OutOfRange | Code::FailedPrecondition => Fault::usage(sentence),
        _ => Fault::failed(sentence),
    }
}
