//! Version 3, protobuf: an envelope with a header and one sub-message.
//!
//! Replies carry the caller's transaction number and operation, by which clients match them, and the sub-message with the ids as
//! sent, on errors too. The outer status always equals the inner one: Java looks at the inner one only after an outer "ok", and
//! the Rust client of the ecosystem refuses a mismatch.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ledger::{EntryId, LedgerId, MasterKey};
use prost::Message;

use crate::bookkeeper::{
    self as wire, BkPacketHeader, OperationType, ProtocolVersion, ReadLacResponse, ReadResponse, Response, add_request,
    read_request,
};
use crate::request::BODY_BYTES_MIN;
use crate::server::{Address, CloseReason, Incoming, Reply, ReplyTo};
use crate::v2::{auth_disabled, frame_length};
use crate::{ReadTarget, Request, Status};

/// Field 1, length-delimited: the header every version 3 message starts with.
pub(crate) const FIRST_BYTE: u8 = 0x0a;

/// Bit 0 of the write flags.
pub(crate) const WRITE_FLAG_DEFERRED_SYNC: i32 = 1;

/// Stands for an id in a reply to a request that had none.
const NO_ID: i64 = -1;

pub(crate) fn decode_request(payload: Bytes) -> Incoming {
    let Ok(request) = wire::Request::decode(payload) else { return Incoming::Close(CloseReason::Malformed) };
    let header = request.header;
    let bad_version = header.version != ProtocolVersion::VersionThree as i32;
    let high_priority = header.priority() > 0;
    let to = |operation, ledger, entry| {
        ReplyTo(Address::V3 { txn: header.txn_id, operation, ledger, entry, fencing: false })
    };
    let operation = OperationType::try_from(header.operation);
    let ids = match operation {
        Ok(OperationType::ReadEntry) => request.read_request.as_ref().map(|read| (read.ledger_id, read.entry_id)),
        Ok(OperationType::AddEntry) => request.add_request.as_ref().map(|add| (add.ledger_id, add.entry_id)),
        Ok(OperationType::ReadLac) => request.read_lac_request.as_ref().map(|read| (read.ledger_id, NO_ID)),
        _ => None,
    };
    match operation {
        Ok(operation @ (OperationType::ReadEntry | OperationType::AddEntry | OperationType::ReadLac)) => {
            let (ledger, entry) = ids.unwrap_or((NO_ID, NO_ID));
            let to = to(operation, ledger, entry);
            if bad_version {
                return refuse(to, Status::BadVersion);
            }
            let decoded = match operation {
                OperationType::ReadEntry => request.read_request.map(|read| decode_read(read, high_priority)),
                OperationType::AddEntry => request.add_request.map(|add| decode_add(add, high_priority)),
                _ => request.read_lac_request.map(|read| decode_read_lac(&read)),
            };
            match decoded.unwrap_or(Err(Status::BadRequest)) {
                Ok(request) => {
                    let fencing = matches!(request, Request::Read { fence: true, .. });
                    let to = ReplyTo(Address::V3 { txn: header.txn_id, operation, ledger, entry, fencing });
                    Incoming::Request(to, request)
                }
                Err(status) => refuse(to, status),
            }
        }
        _ if bad_version => bare_reply(&header, Status::BadVersion),
        Ok(OperationType::Auth) if request.auth_request.is_some() => {
            let mut response = response(header.txn_id, header.operation, Status::Ok);
            response.auth_response = Some(auth_disabled());
            let mut out = BytesMut::new();
            encode_response(&response, &mut out);
            Incoming::Reply(out.freeze())
        }
        _ => bare_reply(&header, Status::BadRequest),
    }
}

fn refuse(reply_to: ReplyTo, status: Status) -> Incoming {
    Incoming::Reply(reply_to.to_frame(&Reply::Failed(status)))
}

/// The answer to an operation that is not served: header and status, no sub-message.
fn bare_reply(header: &BkPacketHeader, status: Status) -> Incoming {
    let mut out = BytesMut::new();
    encode_response(&response(header.txn_id, header.operation, status), &mut out);
    Incoming::Reply(out.freeze())
}

fn decode_read(read: wire::ReadRequest, high_priority: bool) -> Result<Request, Status> {
    let (Some(ledger), Some(target)) = (LedgerId::new(read.ledger_id), ReadTarget::from_i64(read.entry_id)) else {
        return Err(Status::BadRequest);
    };
    match read.flag.map(read_request::Flag::try_from) {
        Some(Ok(read_request::Flag::FenceLedger)) => {
            // A key that is missing or of the wrong size cannot be the ledger's.
            let master_key = read.master_key.as_deref().and_then(MasterKey::from_slice).ok_or(Status::Unauthorized)?;
            Ok(Request::Read { ledger, target, fence: true, master_key: Some(master_key), high_priority })
        }
        // Long polls and piggybacked reads are not served yet.
        Some(_) => Err(Status::BadRequest),
        None if read.previous_lac.is_some() => Err(Status::BadRequest),
        None => {
            let master_key = read.master_key.as_deref().and_then(MasterKey::from_slice);
            Ok(Request::Read { ledger, target, fence: false, master_key, high_priority })
        }
    }
}

fn decode_add(add: wire::AddRequest, high_priority: bool) -> Result<Request, Status> {
    if add.body.len() < BODY_BYTES_MIN {
        return Err(Status::BadRequest);
    }
    let mut fields = &add.body[..];
    let (raw_ledger, raw_entry) = (fields.get_i64(), fields.get_i64());
    // The entry is stored under the ids in its body and acknowledged under those of the request, so they must agree.
    if (raw_ledger, raw_entry) != (add.ledger_id, add.entry_id) {
        return Err(Status::BadRequest);
    }
    let (Some(ledger), Some(entry)) = (LedgerId::new(raw_ledger), EntryId::new(raw_entry)) else {
        return Err(Status::BadRequest);
    };
    let recovery = match add.flag.map(add_request::Flag::try_from) {
        None => false,
        Some(Ok(add_request::Flag::RecoveryAdd)) => true,
        Some(Err(_)) => return Err(Status::BadRequest),
    };
    let master_key = MasterKey::from_slice(&add.master_key).ok_or(Status::Unauthorized)?;
    let deferred_sync = add.write_flags() & WRITE_FLAG_DEFERRED_SYNC != 0;
    Ok(Request::Add { ledger, entry, master_key, body: add.body, recovery, high_priority, deferred_sync })
}

fn decode_read_lac(read: &wire::ReadLacRequest) -> Result<Request, Status> {
    LedgerId::new(read.ledger_id).map(|ledger| Request::ReadLac { ledger }).ok_or(Status::BadRequest)
}

fn response(txn_id: u64, operation: i32, status: Status) -> Response {
    Response {
        header: BkPacketHeader { version: ProtocolVersion::VersionThree as i32, operation, txn_id, priority: None },
        status: status.v3(),
        ..Response::default()
    }
}

/// Appends a frame with this message.
pub(crate) fn encode_response(message: &impl Message, out: &mut BytesMut) {
    let bytes = message.encoded_len();
    out.reserve(4 + bytes);
    out.put_u32(frame_length(bytes));
    message.encode(out).expect("a BytesMut grows as needed");
}

pub(crate) fn encode_reply(
    txn: u64,
    operation: OperationType,
    ledger_id: i64,
    entry_id: i64,
    fencing: bool,
    reply: &Reply,
    out: &mut BytesMut,
) {
    let status = match (operation, reply) {
        (OperationType::AddEntry, Reply::Added) | (OperationType::ReadEntry, Reply::Read { .. }) => Status::Ok,
        (OperationType::ReadLac, Reply::Lac { explicit: None, last_entry: None }) => Status::NoEntry,
        (OperationType::ReadLac, Reply::Lac { .. }) => Status::Ok,
        (_, Reply::Failed(status)) if *status != Status::Ok => *status,
        _ => {
            debug_assert!(false, "reply {reply:?} does not answer operation {operation:?}");
            Status::Io
        }
    };
    let mut message = response(txn, operation as i32, status);
    let status = status.v3();
    match operation {
        OperationType::AddEntry => message.add_response = Some(wire::AddResponse { status, ledger_id, entry_id }),
        OperationType::ReadEntry => {
            let mut read = ReadResponse { status, ledger_id, entry_id, ..ReadResponse::default() };
            if let Reply::Read { body, max_lac } = reply {
                read.body = Some(body.clone());
                read.max_lac = (!fencing).then(|| EntryId::option_to_i64(*max_lac));
            }
            message.read_response = Some(read);
        }
        _ => {
            let mut read = ReadLacResponse { status, ledger_id, ..ReadLacResponse::default() };
            if let Reply::Lac { explicit, last_entry } = reply {
                read.lac_body = explicit.clone();
                read.last_entry_body = last_entry.clone();
            }
            message.read_lac_response = Some(read);
        }
    }
    encode_response(&message, out);
}
