//! What a client says before its requests: START_TLS and AUTH, both in version 3 form, which does not bind the connection.

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use super::{ResponseError, encode_message, request};
use crate::Status;
use crate::bookkeeper::{AuthMessage, OperationType, Response, StartTlsRequest};

/// Appends a START_TLS frame. Nothing may be sent behind it before its answer has come.
pub fn encode_start_tls_v3(txn: u64, out: &mut BytesMut) {
    let mut message = request(txn, OperationType::StartTls, false);
    message.start_tls_request = Some(StartTlsRequest {});
    encode_message(&message, out);
}

/// Appends a version 3 AUTH frame with a message of the plug-in of this name.
pub fn encode_auth_v3(txn: u64, plugin: &str, payload: Bytes, out: &mut BytesMut) {
    let mut message = request(txn, OperationType::Auth, false);
    message.auth_request = Some(AuthMessage { auth_plugin_name: Some(plugin.to_owned()), payload: Some(payload) });
    encode_message(&message, out);
}

/// What a server answered to START_TLS or AUTH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Greeted {
    /// To START_TLS: on [`Status::Ok`] the handshake begins.
    StartTls(Status),
    /// To AUTH.
    Auth {
        /// [`Status::Ok`], unless the caller is refused.
        status: Status,
        /// The server's plug-in, [`crate::AUTH_DISABLED_PLUGIN`] where it has none; not said with a refusal.
        plugin: Option<String>,
    },
}

/// Reads the payload of the frame that answers request `txn`.
///
/// # Errors
/// The message does not decode, answers another request, or lacks what a success must have.
pub fn decode_greeting_v3(txn: u64, payload: Bytes) -> Result<Greeted, ResponseError> {
    let message = Response::decode(payload).map_err(|_| ResponseError::Malformed)?;
    let header = message.header.unwrap_or_default();
    let (Some(operation), Some(status)) = (header.operation, message.status) else {
        return Err(ResponseError::Malformed);
    };
    if header.txn_id != Some(txn) {
        return Err(ResponseError::Malformed);
    }
    let status = Status::from_v3(status).unwrap_or(Status::Io);
    match OperationType::try_from(operation) {
        Ok(OperationType::StartTls) => Ok(Greeted::StartTls(status)),
        Ok(OperationType::Auth) => match message.auth_response {
            Some(AuthMessage { auth_plugin_name: Some(plugin), .. }) => {
                Ok(Greeted::Auth { status, plugin: Some(plugin) })
            }
            _ if status == Status::Ok => Err(ResponseError::Malformed),
            _ => Ok(Greeted::Auth { status, plugin: None }),
        },
        _ => Err(ResponseError::UnexpectedOperation(i64::from(operation))),
    }
}
