use std::time::Duration;

use bytes::{Buf, Bytes};
use ledger::{EntryId, LAC_HEADER_BYTES, LedgerId, MasterKey};
use prost::Message;

use super::{INFO_FREE, INFO_TOTAL, NO_ID, WRITE_FLAG_DEFERRED_SYNC, encode, hop};
use crate::bookkeeper::{self as wire, OperationType, ProtocolVersion, add_request, read_request};
use crate::request::{BODY_BYTES_MIN, LAC_BODY_BYTES_MAX};
use crate::server::{Address, CloseReason, Incoming, Reply, ReplyTo};
use crate::v2::{auth_disabled, is_complete};
use crate::{PollTarget, ReadTarget, Request, Status};

/// What stands before the digest of an explicit last-add-confirmed: ledger id and entry id.
const LAC_BODY_BYTES_MIN: usize = LAC_HEADER_BYTES;

pub(crate) fn decode_request(payload: Bytes) -> Incoming {
    let Ok(request) = wire::Request::decode(payload.clone()) else { return Incoming::Close(CloseReason::Malformed) };
    // Without these three no answer would be understood.
    let Some((version, operation, txn)) =
        request.header.as_ref().and_then(|header| Some((header.version?, header.operation?, header.txn_id?)))
    else {
        return Incoming::Close(CloseReason::Malformed);
    };
    let bad_version = version != ProtocolVersion::VersionThree as i32;
    let known = OperationType::try_from(operation).ok().filter(|operation| is_served(*operation));
    match known {
        Some(operation) => {
            let (ledger, entry) = ids(operation, &request);
            let relayed = is_relayed(operation) && hop::is_marked(&payload);
            let to = |fencing| ReplyTo(Address::V3 { txn, operation, ledger, entry, fencing, relayed });
            let decoded = if bad_version { Err(Status::BadVersion) } else { decode_served(operation, request) };
            match decoded {
                Ok(request) => {
                    let fencing = matches!(request, Request::Read { fence: true, .. });
                    Incoming::Request(to(fencing), request)
                }
                Err(status) => Incoming::Reply(to(false).to_frame(&Reply::Failed(status))),
            }
        }
        None if bad_version => encode::bare_reply(txn, operation, Status::BadVersion),
        None if operation == OperationType::Auth as i32 && request.auth_request.as_ref().is_some_and(is_complete) => {
            let mut response = encode::response(txn, operation, Status::Ok);
            response.auth_response = Some(auth_disabled());
            encode::reply(&response)
        }
        None => encode::bare_reply(txn, operation, Status::BadRequest),
    }
}

fn is_served(operation: OperationType) -> bool {
    matches!(
        operation,
        OperationType::ReadEntry
            | OperationType::AddEntry
            | OperationType::WriteLac
            | OperationType::ReadLac
            | OperationType::GetBookieInfo
            | OperationType::ForceLedger
            | OperationType::GetListOfEntriesOfLedger
    )
}

/// Whether a bookie may ask another one for what this operation wants.
fn is_relayed(operation: OperationType) -> bool {
    matches!(operation, OperationType::ReadEntry | OperationType::ReadLac)
}

/// The ids as they were sent, for the answer; -1 for those that were not.
fn ids(operation: OperationType, request: &wire::Request) -> (i64, i64) {
    let (ledger, entry) = match operation {
        OperationType::ReadEntry => {
            request.read_request.as_ref().map_or((None, None), |read| (read.ledger_id, read.entry_id))
        }
        OperationType::AddEntry => {
            request.add_request.as_ref().map_or((None, None), |add| (add.ledger_id, add.entry_id))
        }
        OperationType::WriteLac => (request.write_lac_request.as_ref().and_then(|write| write.ledger_id), None),
        OperationType::ReadLac => (request.read_lac_request.and_then(|read| read.ledger_id), None),
        OperationType::ForceLedger => (request.force_ledger_request.and_then(|force| force.ledger_id), None),
        OperationType::GetListOfEntriesOfLedger => {
            (request.get_list_of_entries_of_ledger_request.and_then(|list| list.ledger_id), None)
        }
        _ => (None, None),
    };
    (ledger.unwrap_or(NO_ID), entry.unwrap_or(NO_ID))
}

fn decode_served(operation: OperationType, request: wire::Request) -> Result<Request, Status> {
    let high_priority = request.header.is_some_and(|header| header.priority() > 0);
    let decoded = match operation {
        OperationType::ReadEntry => request.read_request.map(|read| decode_read(read, high_priority)),
        OperationType::AddEntry => request.add_request.map(|add| decode_add(add, high_priority)),
        OperationType::WriteLac => request.write_lac_request.map(decode_write_lac),
        OperationType::ReadLac => {
            request.read_lac_request.map(|read| Ok(Request::ReadLac { ledger: ledger_id(read.ledger_id)? }))
        }
        OperationType::GetBookieInfo => request.get_bookie_info_request.map(|info| {
            let asked = info.requested.unwrap_or(0);
            Ok(Request::BookieInfo { total: asked & INFO_TOTAL != 0, free: asked & INFO_FREE != 0 })
        }),
        OperationType::ForceLedger => {
            request.force_ledger_request.map(|force| Ok(Request::ForceLedger { ledger: ledger_id(force.ledger_id)? }))
        }
        OperationType::GetListOfEntriesOfLedger => request
            .get_list_of_entries_of_ledger_request
            .map(|list| Ok(Request::ListEntries { ledger: ledger_id(list.ledger_id)? })),
        _ => None,
    };
    decoded.unwrap_or(Err(Status::BadRequest))
}

fn ledger_id(raw: Option<i64>) -> Result<LedgerId, Status> {
    raw.and_then(LedgerId::new).ok_or(Status::BadRequest)
}

fn decode_read(read: wire::ReadRequest, high_priority: bool) -> Result<Request, Status> {
    let ledger = ledger_id(read.ledger_id)?;
    let target = read.entry_id.and_then(ReadTarget::from_i64).ok_or(Status::BadRequest)?;
    let master_key = read.master_key.as_deref().and_then(MasterKey::from_slice);
    match read.flag.map(read_request::Flag::try_from) {
        // The fence wins over everything that would wait.
        Some(Ok(read_request::Flag::FenceLedger)) => {
            // A key that is missing or of the wrong size cannot be the ledger's.
            let master_key = Some(master_key.ok_or(Status::Unauthorized)?);
            Ok(Request::Read { ledger, target, fence: true, master_key, high_priority })
        }
        Some(Ok(read_request::Flag::EntryPiggyback)) => {
            if target != ReadTarget::Last {
                return Err(Status::BadRequest);
            }
            let previous = read.previous_lac.and_then(EntryId::option_from_i64).ok_or(Status::BadRequest)?;
            Ok(Request::LongPoll { ledger, target: PollTarget::Next, previous, patience: patience(read.time_out) })
        }
        Some(Err(_)) => Err(Status::BadRequest),
        None => match read.previous_lac {
            None => Ok(Request::Read { ledger, target, fence: false, master_key, high_priority }),
            Some(previous) => {
                let previous = EntryId::option_from_i64(previous).ok_or(Status::BadRequest)?;
                let target = PollTarget::Read(target);
                Ok(Request::LongPoll { ledger, target, previous, patience: patience(read.time_out) })
            }
        },
    }
}

/// A time to wait in milliseconds; below zero it is over at once.
fn patience(time_out: Option<i64>) -> Option<Duration> {
    time_out.map(|time| Duration::from_millis(u64::try_from(time).unwrap_or(0)))
}

fn decode_add(add: wire::AddRequest, high_priority: bool) -> Result<Request, Status> {
    let deferred_sync = add.write_flags() & WRITE_FLAG_DEFERRED_SYNC != 0;
    let (Some(raw_ledger), Some(raw_entry), Some(master_key), Some(body)) =
        (add.ledger_id, add.entry_id, add.master_key, add.body)
    else {
        return Err(Status::BadRequest);
    };
    if body.len() < BODY_BYTES_MIN {
        return Err(Status::BadRequest);
    }
    let mut fields = &body[..];
    // The entry is stored under the ids in its body and acknowledged under those of the request, so they must agree.
    if (fields.get_i64(), fields.get_i64()) != (raw_ledger, raw_entry) {
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
    let master_key = MasterKey::from_slice(&master_key).ok_or(Status::Unauthorized)?;
    Ok(Request::Add { ledger, entry, master_key, body, recovery, high_priority, deferred_sync })
}

fn decode_write_lac(write: wire::WriteLacRequest) -> Result<Request, Status> {
    let (Some(raw_lac), Some(master_key), Some(body)) = (write.lac, write.master_key, write.body) else {
        return Err(Status::BadRequest);
    };
    let ledger = ledger_id(write.ledger_id)?;
    if !(LAC_BODY_BYTES_MIN..=LAC_BODY_BYTES_MAX).contains(&body.len()) {
        return Err(Status::BadRequest);
    }
    let mut fields = &body[..];
    // Readers believe the body, so it must say what the request says.
    if (fields.get_i64(), fields.get_i64()) != (ledger.as_i64(), raw_lac) {
        return Err(Status::BadRequest);
    }
    let lac = EntryId::option_from_i64(raw_lac).ok_or(Status::BadRequest)?;
    let master_key = MasterKey::from_slice(&master_key).ok_or(Status::Unauthorized)?;
    Ok(Request::WriteLac { ledger, lac, master_key, body })
}
