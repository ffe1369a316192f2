use bytes::{BufMut, Bytes, BytesMut};
use ledger::EntryId;
use prost::Message;

use crate::Status;
use crate::bookkeeper::{self as wire, BkPacketHeader, OperationType, ProtocolVersion, Response};
use crate::server::{Incoming, Reply};
use crate::v2::frame_length;

/// The ids and the transaction that a version 3 reply carries, as they were sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recipient {
    pub(crate) txn: u64,
    pub(crate) operation: OperationType,
    pub(crate) ledger: i64,
    pub(crate) entry: i64,
    pub(crate) fencing: bool,
}

/// An envelope without a sub-message.
pub(crate) fn response(txn: u64, operation: i32, status: Status) -> Response {
    let version = Some(ProtocolVersion::VersionThree as i32);
    let header = BkPacketHeader { version, operation: Some(operation), txn_id: Some(txn), priority: None };
    Response { header: Some(header), status: Some(status.v3()), ..Response::default() }
}

pub(super) fn reply(message: &Response) -> Incoming {
    let mut out = BytesMut::new();
    encode_response(message, &mut out);
    Incoming::Reply(out.freeze())
}

pub(super) fn bare_reply(txn: u64, operation: i32, status: Status) -> Incoming {
    reply(&response(txn, operation, status))
}

/// Appends a frame with this message.
pub(crate) fn encode_response(message: &impl Message, out: &mut BytesMut) {
    let bytes = message.encoded_len();
    out.reserve(4 + bytes);
    out.put_u32(frame_length(bytes));
    message.encode(out).expect("a BytesMut grows as needed");
}

/// The outcome that a reply tells of an operation.
fn status_of(operation: OperationType, reply: &Reply) -> Status {
    match (operation, reply) {
        (OperationType::AddEntry, Reply::Added)
        | (OperationType::ReadEntry, Reply::Read { .. } | Reply::Next { .. })
        | (OperationType::WriteLac, Reply::LacWritten)
        | (OperationType::ForceLedger, Reply::Forced)
        | (OperationType::GetBookieInfo, Reply::BookieInfo { .. })
        | (OperationType::GetListOfEntriesOfLedger, Reply::Entries(_)) => Status::Ok,
        (OperationType::ReadLac, Reply::Lac { explicit: None, last_entry: None }) => Status::NoEntry,
        (OperationType::ReadLac, Reply::Lac { .. }) => Status::Ok,
        (_, Reply::Failed(status)) if *status != Status::Ok => *status,
        _ => {
            debug_assert!(false, "reply {reply:?} does not answer operation {operation:?}");
            Status::Io
        }
    }
}

pub(crate) fn encode_reply(to: Recipient, reply: &Reply, out: &mut BytesMut) {
    let outcome = status_of(to.operation, reply);
    let mut message = response(to.txn, to.operation as i32, outcome);
    let (status, ledger_id) = (Some(outcome.v3()), Some(to.ledger));
    match to.operation {
        OperationType::AddEntry => {
            message.add_response = Some(wire::AddResponse { status, ledger_id, entry_id: Some(to.entry) });
        }
        OperationType::ReadEntry => message.read_response = Some(read_response(to, status, reply)),
        OperationType::WriteLac => message.write_lac_response = Some(wire::WriteLacResponse { status, ledger_id }),
        OperationType::ForceLedger => {
            message.force_ledger_response = Some(wire::ForceLedgerResponse { status, ledger_id });
        }
        OperationType::GetBookieInfo => {
            let mut info = wire::GetBookieInfoResponse { status, ..Default::default() };
            if let Reply::BookieInfo { total_bytes, free_bytes } = reply {
                info.total_disk_capacity = total_bytes.map(to_i64);
                info.free_disk_space = free_bytes.map(to_i64);
            }
            message.get_bookie_info_response = Some(info);
        }
        OperationType::GetListOfEntriesOfLedger => {
            let availability_of_entries_of_ledger = entries(reply);
            let list = wire::GetListOfEntriesOfLedgerResponse { status, ledger_id, availability_of_entries_of_ledger };
            message.get_list_of_entries_of_ledger_response = Some(list);
        }
        _ => {
            let mut read = wire::ReadLacResponse { status, ledger_id, ..Default::default() };
            if let Reply::Lac { explicit, last_entry } = reply {
                read.lac_body = explicit.clone();
                read.last_entry_body = last_entry.clone();
            }
            message.read_lac_response = Some(read);
        }
    }
    encode_response(&message, out);
}

fn entries(reply: &Reply) -> Option<Bytes> {
    if let Reply::Entries(list) = reply { Some(list.clone()) } else { None }
}

fn read_response(to: Recipient, status: Option<i32>, reply: &Reply) -> wire::ReadResponse {
    let (ledger_id, entry_id) = (Some(to.ledger), Some(to.entry));
    let mut read = wire::ReadResponse { status, ledger_id, entry_id, ..Default::default() };
    match reply {
        Reply::Read { body, max_lac } => {
            read.body = Some(body.clone());
            read.max_lac = (!to.fencing).then(|| EntryId::option_to_i64(*max_lac));
        }
        Reply::Next { max_lac, entry, confirmed_ms } => {
            read.max_lac = Some(EntryId::option_to_i64(*max_lac));
            read.lac_update_timestamp = confirmed_ms.map(to_i64);
            if let Some((id, body)) = entry {
                read.entry_id = Some(id.as_i64());
                read.body = Some(body.clone());
            }
        }
        _ => {}
    }
    read
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
