//! What is said on a connection before it is served: START_TLS and authentication. Decides only; whoever holds the connection does
//! the handshake and judges what a caller shows.
//!
//! # What is demanded
//! A server may offer or require TLS, and may have an authentication plug-in. While something is demanded that has not happened, the
//! connection is *locked*: requests are refused as those of a stranger, in words that depend on the version. A connection that is
//! not locked is served from the first frame on that is not START_TLS.
//!
//! # Order
//! START_TLS comes first, in clear, and alone: what follows it in clear must end the connection, or somebody on the way could put
//! requests in front of a caller's own. It is refused once the connection has TLS, and once it is served. AUTH is looked at only
//! where the connection may carry a secret: with TLS, or where TLS is not required.

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use crate::bookkeeper::{AuthMessage, BkPacketHeader, OperationType, ProtocolVersion, Request, StartTlsResponse};
use crate::server::{CloseReason, Protocol};
use crate::{Status, v2, v3};

/// Name that both sides use when no authentication plug-in is configured.
pub const AUTH_DISABLED_PLUGIN: &str = "AuthDisabledPlugin";

/// The first bytes of a payload that are enough to refuse it, however long it is.
pub const GREETING_HEAD_BYTES: usize = 128;

/// Whether a server has TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsDemand {
    /// It has none.
    #[default]
    Off,
    /// Who asks for it gets it; others are served in clear.
    Offered,
    /// Nothing is served in clear.
    Required,
}

/// What a server demands of a connection before it serves it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demands {
    /// TLS.
    pub tls: TlsDemand,
    /// The name of the authentication plug-in; `None`: nobody needs to say who it is.
    pub plugin: Option<String>,
}

/// What to do about a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Serve the connection, this frame first.
    Serve,
    /// Send this frame, then make the handshake and tell [`Greeter::secured`]. With bytes behind the request that were already
    /// received: hang up instead.
    StartTls(Bytes),
    /// Let the plug-in judge `payload`, and answer with `reply`.
    Authenticate {
        /// What the caller shows.
        payload: Bytes,
        /// How to answer.
        reply: AuthReply,
    },
    /// Send this frame and go on with the next one.
    Refuse(Bytes),
    /// Hang up.
    Close(CloseReason),
}

/// Answers an authentication in the form it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthReply {
    plugin: String,
    /// The transaction of version 3; version 2 has none.
    txn: Option<u64>,
}

impl AuthReply {
    /// The frame that says that the caller is let in. The connection is served from the next frame on.
    pub fn accepted(&self) -> Bytes {
        let message = AuthMessage { auth_plugin_name: Some(self.plugin.clone()), payload: Some(Bytes::new()) };
        let Some(txn) = self.txn else { return v2::auth_frame(&message) };
        let mut response = v3::response(txn, OperationType::Auth as i32, Status::Ok);
        response.auth_response = Some(message);
        frame(&response)
    }

    /// The frame that says that the caller is refused, where the version has one. The connection is to be closed behind it.
    pub fn refused(&self) -> Option<Bytes> {
        self.txn.map(|txn| bare(txn, OperationType::Auth as i32, Status::Unauthorized))
    }
}

/// The state of one connection until it is served.
#[derive(Debug, Clone)]
pub struct Greeter {
    demands: Demands,
    secured: bool,
    protocol: Protocol,
}

impl Greeter {
    /// A connection of which nothing was read.
    pub fn new(demands: Demands) -> Self {
        Self { demands, secured: false, protocol: Protocol::default() }
    }

    /// The connection has TLS now.
    pub fn secured(&mut self) {
        self.secured = true;
        // Only frames under TLS count: whoever sent the clear ones was nobody.
        self.protocol = Protocol::default();
    }

    /// Whether nothing is left to be said: serve without waiting for a frame.
    pub fn is_done(&self) -> bool {
        self.demands.plugin.is_none() && (self.secured || self.demands.tls == TlsDemand::Off)
    }

    /// Whether requests are refused.
    pub fn is_locked(&self) -> bool {
        self.demands.plugin.is_some() || self.is_bare()
    }

    /// Whether the connection lacks TLS that it must have.
    fn is_bare(&self) -> bool {
        self.demands.tls == TlsDemand::Required && !self.secured
    }

    /// Decides about a frame: its payload, or at least the first [`GREETING_HEAD_BYTES`] of one that is not `whole` yet. A frame that
    /// is too long to be waited for is neither START_TLS nor an authentication.
    pub fn step(&mut self, payload: &[u8], whole: bool) -> Step {
        let Some(&first) = payload.first() else { return self.close(CloseReason::Truncated) };
        match (self.protocol, first) {
            (Protocol::V2, _) => self.step_v2(payload, whole),
            (_, v3::FIRST_BYTE) => {
                self.protocol = Protocol::V3;
                self.step_v3(payload, whole)
            }
            (_, 0..=v2::VERSION_MAX) => {
                self.protocol = Protocol::V2;
                self.step_v2(payload, whole)
            }
            _ => self.close(CloseReason::UnknownProtocol(first)),
        }
    }

    /// Where nothing is demanded the server itself says what is wrong.
    fn close(&self, reason: CloseReason) -> Step {
        if self.is_locked() { Step::Close(reason) } else { Step::Serve }
    }

    fn step_v2(&self, payload: &[u8], whole: bool) -> Step {
        if !self.is_locked() {
            return Step::Serve;
        }
        let Some(word) = payload.first_chunk().map(|word| u32::from_be_bytes(*word)) else {
            return Step::Close(CloseReason::Truncated);
        };
        let header = v2::Header::from_word(word);
        if header.opcode != u32::from(v2::OP_AUTH) {
            return v2::refuse_stranger(payload).map_or_else(Step::Close, Step::Refuse);
        }
        let message = whole.then(|| AuthMessage::decode(&payload[4..]).ok()).flatten();
        let Some((plugin, payload)) = message.and_then(parts).filter(|_| header.version <= v2::VERSION_MAX) else {
            return Step::Close(CloseReason::Malformed);
        };
        match self.judge(plugin, payload, None) {
            Some(authenticate) => authenticate,
            None => Step::Close(CloseReason::Unauthenticated),
        }
    }

    fn step_v3(&self, payload: &[u8], whole: bool) -> Step {
        let request = whole.then(|| Request::decode(payload).ok()).flatten();
        if whole && request.is_none() {
            return self.close(CloseReason::Malformed);
        }
        let header = request.as_ref().map_or_else(|| header_of(payload), |request| request.header);
        let Some((version, operation, txn)) =
            header.and_then(|header| Some((header.version?, header.operation?, header.txn_id?)))
        else {
            return self.close(CloseReason::Malformed);
        };
        let is_known = version == ProtocolVersion::VersionThree as i32;
        match (OperationType::try_from(operation), request) {
            (Ok(OperationType::StartTls), Some(_)) if is_known && self.may_start_tls() => {
                let mut response = v3::response(txn, operation, Status::Ok);
                response.start_tls_response = Some(StartTlsResponse {});
                Step::StartTls(frame(&response))
            }
            // The server itself says what it says of them.
            _ if !self.is_locked() => Step::Serve,
            (Ok(OperationType::StartTls), _) => {
                let status = if is_known { Status::BadRequest } else { Status::BadVersion };
                Step::Refuse(bare(txn, operation, status))
            }
            (Ok(OperationType::Auth), Some(request)) if is_known => match request.auth_request.and_then(parts) {
                None => Step::Refuse(bare(txn, operation, Status::BadRequest)),
                Some((plugin, payload)) => self
                    .judge(plugin, payload, Some(txn))
                    .unwrap_or_else(|| Step::Refuse(bare(txn, operation, Status::Unauthorized))),
            },
            _ => Step::Refuse(bare(txn, operation, Status::Unauthorized)),
        }
    }

    fn may_start_tls(&self) -> bool {
        self.demands.tls != TlsDemand::Off && !self.secured
    }

    /// Hands on what a caller shows; `None` when it is shown to nobody, or would have been where everybody can read it.
    fn judge(&self, plugin: String, payload: Bytes, txn: Option<u64>) -> Option<Step> {
        if self.is_bare() || self.demands.plugin.as_ref() != Some(&plugin) {
            return None;
        }
        Some(Step::Authenticate { payload, reply: AuthReply { plugin, txn } })
    }
}

/// The header in the first bytes of a version 3 message.
fn header_of(head: &[u8]) -> Option<BkPacketHeader> {
    let mut rest = head.get(1..)?;
    let bytes = prost::decode_length_delimiter(&mut rest).ok()?;
    BkPacketHeader::decode(rest.get(..bytes)?).ok()
}

/// The two fields that an authentication message must have.
fn parts(message: AuthMessage) -> Option<(String, Bytes)> {
    Some((message.auth_plugin_name?, message.payload?))
}

fn bare(txn: u64, operation: i32, status: Status) -> Bytes {
    frame(&v3::response(txn, operation, status))
}

fn frame(response: &crate::bookkeeper::Response) -> Bytes {
    let mut out = BytesMut::new();
    v3::encode_response(response, &mut out);
    out.freeze()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
