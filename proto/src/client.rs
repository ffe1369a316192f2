//! The client's end of a BookKeeper connection: adds and reads in version 2, READ_LAC in version 3.
//!
//! Replies of version 2 are matched by (operation, ledger id, entry id), and identical requests can be in flight: keep the
//! pending ones of a key in order. Replies of version 3 are matched by (transaction number, operation).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ledger::{EntryId, LedgerId, MASTER_KEY_BYTES, MasterKey};
use prost::Message;

use crate::bookkeeper::{
    AddRequest, BkPacketHeader, OperationType, ProtocolVersion, ReadLacRequest, ReadRequest, Request, Response,
    add_request, read_request,
};
use crate::v2::{
    FLAG_FENCE, FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, Header, OP_ADD, OP_READ, VERSION_MAX, frame_length,
};
use crate::v3::{WRITE_FLAG_DEFERRED_SYNC, encode_response as encode_message};
use crate::{ReadTarget, Status};

/// Priority that Java clients send; any value above 0 means the same.
const HIGH_PRIORITY: u32 = 100;

/// Bytes of a version 2 ADD frame before the entry body.
pub const ADD_HEAD_BYTES: usize = 4 + 4 + MASTER_KEY_BYTES;

/// Kind of an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddFlags {
    /// Written by a recovering client: passes the fence.
    pub recovery: bool,
    /// Served ahead of normal requests.
    pub high_priority: bool,
}

/// The bytes of a version 2 ADD frame that come before the body, for senders that write both without copying the body.
pub fn add_head_v2(master_key: &MasterKey, body_bytes: usize, flags: AddFlags) -> [u8; ADD_HEAD_BYTES] {
    let mut bits = 0;
    if flags.recovery {
        bits |= FLAG_RECOVERY_ADD;
    }
    if flags.high_priority {
        bits |= FLAG_HIGH_PRIORITY;
    }
    let mut head = [0; ADD_HEAD_BYTES];
    head[0..4].copy_from_slice(&frame_length(ADD_HEAD_BYTES - 4 + body_bytes).to_be_bytes());
    head[4..8].copy_from_slice(&Header::word(VERSION_MAX, OP_ADD, bits).to_be_bytes());
    head[8..].copy_from_slice(master_key.as_bytes());
    head
}

/// Appends a version 2 ADD frame; `body` is the whole entry body.
pub fn encode_add_v2(master_key: &MasterKey, body: &[u8], flags: AddFlags, out: &mut BytesMut) {
    out.reserve(ADD_HEAD_BYTES + body.len());
    out.put_slice(&add_head_v2(master_key, body.len(), flags));
    out.put_slice(body);
}

/// Appends a version 2 READ frame. With `fence`, the bookie fences the ledger before it reads.
///
/// A fencing read of the last entry is sent with normal priority, a recovery read (fencing, of one entry) with high priority, by
/// convention of existing clients.
pub fn encode_read_v2(
    ledger: LedgerId,
    target: ReadTarget,
    fence: Option<&MasterKey>,
    high_priority: bool,
    out: &mut BytesMut,
) {
    let mut bits = 0;
    if fence.is_some() {
        bits |= FLAG_FENCE;
    }
    if high_priority {
        bits |= FLAG_HIGH_PRIORITY;
    }
    let bytes = 20 + if fence.is_some() { MASTER_KEY_BYTES } else { 0 };
    out.reserve(4 + bytes);
    out.put_u32(frame_length(bytes));
    out.put_u32(Header::word(VERSION_MAX, OP_READ, bits));
    out.put_i64(ledger.as_i64());
    out.put_i64(target.as_i64());
    if let Some(master_key) = fence {
        out.put_slice(master_key.as_bytes());
    }
}

fn request(txn_id: u64, operation: OperationType, high_priority: bool) -> Request {
    let priority = high_priority.then_some(HIGH_PRIORITY);
    let version = ProtocolVersion::VersionThree as i32;
    Request { header: BkPacketHeader { version, operation: operation as i32, txn_id, priority }, ..Request::default() }
}

/// Appends a version 3 READ_LAC frame.
pub fn encode_read_lac_v3(txn: u64, ledger: LedgerId, out: &mut BytesMut) {
    let mut message = request(txn, OperationType::ReadLac, false);
    message.read_lac_request = Some(ReadLacRequest { ledger_id: ledger.as_i64() });
    encode_message(&message, out);
}

/// Appends a version 3 READ frame; see [`encode_read_v2`].
pub fn encode_read_v3(
    txn: u64,
    ledger: LedgerId,
    target: ReadTarget,
    fence: Option<&MasterKey>,
    high_priority: bool,
    out: &mut BytesMut,
) {
    let mut message = request(txn, OperationType::ReadEntry, high_priority);
    message.read_request = Some(ReadRequest {
        ledger_id: ledger.as_i64(),
        entry_id: target.as_i64(),
        master_key: fence.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        flag: fence.map(|_| read_request::Flag::FenceLedger as i32),
        ..ReadRequest::default()
    });
    encode_message(&message, out);
}

/// Appends a version 3 ADD frame. The ids must be those in `body`.
#[expect(clippy::too_many_arguments, reason = "one argument per field of the message")]
pub fn encode_add_v3(
    txn: u64,
    ledger: LedgerId,
    entry: EntryId,
    master_key: &MasterKey,
    body: &Bytes,
    flags: AddFlags,
    deferred_sync: bool,
    out: &mut BytesMut,
) {
    let mut message = request(txn, OperationType::AddEntry, flags.high_priority);
    message.add_request = Some(AddRequest {
        flag: flags.recovery.then_some(add_request::Flag::RecoveryAdd as i32),
        ledger_id: ledger.as_i64(),
        entry_id: entry.as_i64(),
        master_key: Bytes::copy_from_slice(master_key.as_bytes()),
        body: body.clone(),
        write_flags: deferred_sync.then_some(WRITE_FLAG_DEFERRED_SYNC),
    });
    encode_message(&message, out);
}

/// A reply that cannot be understood; close the connection, because nothing after it can be trusted either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// It ends before the fields it must have.
    #[error("read response: frame too short")]
    Truncated,
    /// An operation that is never asked for.
    #[error("read response: unexpected operation {0}")]
    UnexpectedOperation(i64),
    /// The protobuf message does not decode, or lacks the sub-message of a success.
    #[error("read response: malformed message")]
    Malformed,
    /// Outer and inner status differ.
    #[error("read response: status {outer} outside and {inner} inside")]
    StatusMismatch {
        /// Status of the envelope.
        outer: i32,
        /// Status of the sub-message.
        inner: i32,
    },
}

/// Operation of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// ADD.
    Add,
    /// READ.
    Read,
    /// READ_LAC (version 3 only).
    ReadLac,
}

/// A version 2 reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseV2 {
    /// [`Operation::Add`] or [`Operation::Read`].
    pub operation: Operation,
    /// Outcome. A number the protocol does not name reads as [`Status::Io`]: nothing is known.
    pub status: Status,
    /// Ledger id, as sent in the request.
    pub ledger: i64,
    /// Entry id, as sent in the request: -1 for the last entry.
    pub entry: i64,
    /// Entry body of a successful READ, else empty.
    pub body: Bytes,
}

/// Reads the payload of a version 2 reply frame.
///
/// # Errors
/// The frame is too short or answers an operation that clients here never send.
pub fn decode_response_v2(mut payload: Bytes) -> Result<ResponseV2, ResponseError> {
    let truncated = |_| ResponseError::Truncated;
    let header = Header::from_word(payload.try_get_u32().map_err(truncated)?);
    let operation = match u8::try_from(header.opcode) {
        Ok(OP_ADD) => Operation::Add,
        Ok(OP_READ) => Operation::Read,
        _ => return Err(ResponseError::UnexpectedOperation(i64::from(header.opcode))),
    };
    let status = Status::from_v2(payload.try_get_i32().map_err(truncated)?).unwrap_or(Status::Io);
    let ledger = payload.try_get_i64().map_err(truncated)?;
    let entry = payload.try_get_i64().map_err(truncated)?;
    let body = if operation == Operation::Read && status == Status::Ok { payload } else { Bytes::new() };
    Ok(ResponseV2 { operation, status, ledger, entry, body })
}

/// A version 3 reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseV3 {
    /// Transaction number of the request.
    pub txn: u64,
    /// Operation of the request.
    pub operation: Operation,
    /// Outcome. A number the protocol does not name reads as [`Status::Io`]: nothing is known.
    pub status: Status,
    /// Ledger id, as sent in the request; -1 when the server did not say.
    pub ledger: i64,
    /// Entry id, as sent in the request; -1 when the server did not say, and for READ_LAC.
    pub entry: i64,
    /// What a success carries.
    pub payload: PayloadV3,
}

/// What a successful version 3 reply carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadV3 {
    /// A failure, or an add.
    None,
    /// An entry.
    Entry {
        /// Entry body.
        body: Bytes,
        /// Highest last-add-confirmed the bookie knows.
        max_lac: Option<EntryId>,
    },
    /// Last-add-confirmed candidates, each to be verified with the ledger's digest.
    Lac {
        /// Explicit last-add-confirmed body.
        explicit: Option<Bytes>,
        /// Body of the bookie's highest entry.
        last_entry: Option<Bytes>,
    },
}

/// Reads the payload of a version 3 reply frame.
///
/// # Errors
/// The message does not decode, contradicts itself, or answers an operation that clients here never send.
pub fn decode_response_v3(payload: Bytes) -> Result<ResponseV3, ResponseError> {
    let message = Response::decode(payload).map_err(|_| ResponseError::Malformed)?;
    let operation = match OperationType::try_from(message.header.operation) {
        Ok(OperationType::AddEntry) => Operation::Add,
        Ok(OperationType::ReadEntry) => Operation::Read,
        Ok(OperationType::ReadLac) => Operation::ReadLac,
        _ => return Err(ResponseError::UnexpectedOperation(i64::from(message.header.operation))),
    };
    let ids = match operation {
        Operation::Add => message.add_response.as_ref().map(|add| (add.status, add.ledger_id, add.entry_id)),
        Operation::Read => message.read_response.as_ref().map(|read| (read.status, read.ledger_id, read.entry_id)),
        Operation::ReadLac => message.read_lac_response.as_ref().map(|read| (read.status, read.ledger_id, -1)),
    };
    let outer = message.status;
    let (inner, ledger, entry) = match ids {
        Some(ids) => ids,
        // Servers may leave the sub-message out of a failure, never out of a success.
        None if outer != Status::Ok.v3() => (outer, -1, -1),
        None => return Err(ResponseError::Malformed),
    };
    if inner != outer {
        return Err(ResponseError::StatusMismatch { outer, inner });
    }
    let status = Status::from_v3(outer).unwrap_or(Status::Io);
    let payload = match (status, message.read_response, message.read_lac_response) {
        (Status::Ok, Some(read), _) if operation == Operation::Read => {
            let body = read.body.ok_or(ResponseError::Malformed)?;
            let max_lac = EntryId::option_from_i64(read.max_lac.unwrap_or(-1)).ok_or(ResponseError::Malformed)?;
            PayloadV3::Entry { body, max_lac }
        }
        (Status::Ok, _, Some(read)) if operation == Operation::ReadLac => {
            PayloadV3::Lac { explicit: read.lac_body, last_entry: read.last_entry_body }
        }
        _ => PayloadV3::None,
    };
    Ok(ResponseV3 { txn: message.header.txn_id, operation, status, ledger, entry, payload })
}
