use bytes::{Buf, Bytes};
use ledger::EntryId;
use prost::Message;

use crate::bookkeeper::{OperationType, Response};
use crate::v2::{Header, OP_ADD, OP_BATCH_READ, OP_READ};
use crate::{Availability, Status};

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
    /// WRITE_LAC (version 3 only).
    WriteLac,
    /// FORCE_LEDGER (version 3 only).
    ForceLedger,
    /// GET_BOOKIE_INFO (version 3 only).
    BookieInfo,
    /// GET_LIST_OF_ENTRIES_OF_LEDGER (version 3 only).
    ListEntries,
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

/// A version 2 reply to a BATCH_READ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchResponseV2 {
    /// The request's name.
    pub request: i64,
    /// Outcome. A number the protocol does not name reads as [`Status::Io`]: nothing is known.
    pub status: Status,
    /// Ledger id, as sent in the request.
    pub ledger: i64,
    /// First entry id, as sent in the request.
    pub start: i64,
    /// Bodies of consecutive entries from there; each is to be verified with the ledger's digest.
    pub entries: Vec<Bytes>,
}

/// Reads the payload of a version 2 reply frame to a BATCH_READ.
///
/// # Errors
/// The frame is too short, its entries do not fill it, or it answers another operation.
pub fn decode_batch_response_v2(mut payload: Bytes) -> Result<BatchResponseV2, ResponseError> {
    let truncated = |_| ResponseError::Truncated;
    let header = Header::from_word(payload.try_get_u32().map_err(truncated)?);
    if u8::try_from(header.opcode) != Ok(OP_BATCH_READ) {
        return Err(ResponseError::UnexpectedOperation(i64::from(header.opcode)));
    }
    let status = Status::from_v2(payload.try_get_i32().map_err(truncated)?).unwrap_or(Status::Io);
    let ledger = payload.try_get_i64().map_err(truncated)?;
    let start = payload.try_get_i64().map_err(truncated)?;
    let request = payload.try_get_i64().map_err(truncated)?;
    let mut entries = Vec::new();
    while status == Status::Ok && payload.has_remaining() {
        let bytes = usize::try_from(payload.try_get_i32().map_err(truncated)?).map_err(|_| ResponseError::Malformed)?;
        if bytes > payload.len() {
            return Err(ResponseError::Truncated);
        }
        entries.push(payload.split_to(bytes));
    }
    Ok(BatchResponseV2 { request, status, ledger, start, entries })
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
    /// Whether the protocol names the number of the outcome.
    pub is_named: bool,
    /// Ledger id, as sent in the request; -1 when the server did not say, and where there is none.
    pub ledger: i64,
    /// Entry id, as sent in the request, or of the entry that a long poll brought; -1 when the server did not say, and for
    /// operations without one.
    pub entry: i64,
    /// What a success carries.
    pub payload: PayloadV3,
}

/// What a successful version 3 reply carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadV3 {
    /// A failure, or an operation whose success says all.
    None,
    /// An entry.
    Entry {
        /// Entry body.
        body: Bytes,
        /// Highest last-add-confirmed the bookie knows.
        max_lac: Option<EntryId>,
    },
    /// A long poll that brought no entry.
    Confirmed {
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
    /// Sizes of the disks in bytes, of what was asked for.
    BookieInfo {
        /// All space.
        total_bytes: Option<u64>,
        /// Free space.
        free_bytes: Option<u64>,
    },
    /// Entries of a ledger on the bookie.
    Entries(Availability),
}

/// Status and ids of the sub-message that answers an operation; -1 for what was not said.
fn sub_message(operation: Operation, message: &Response) -> Option<(Option<i32>, i64, i64)> {
    let (status, ledger, entry) = match operation {
        Operation::Add => message.add_response.as_ref().map(|add| (add.status, add.ledger_id, add.entry_id))?,
        Operation::Read => message.read_response.as_ref().map(|read| (read.status, read.ledger_id, read.entry_id))?,
        Operation::ReadLac => message.read_lac_response.as_ref().map(|read| (read.status, read.ledger_id, None))?,
        Operation::WriteLac => message.write_lac_response.map(|write| (write.status, write.ledger_id, None))?,
        Operation::ForceLedger => message.force_ledger_response.map(|force| (force.status, force.ledger_id, None))?,
        Operation::BookieInfo => message.get_bookie_info_response.map(|info| (info.status, None, None))?,
        Operation::ListEntries => {
            let list = message.get_list_of_entries_of_ledger_response.as_ref()?;
            (list.status, list.ledger_id, None)
        }
    };
    Some((status, ledger.unwrap_or(-1), entry.unwrap_or(-1)))
}

/// Reads the payload of a version 3 reply frame.
///
/// # Errors
/// The message does not decode, lacks a field that it must have, contradicts itself, or answers an operation that clients here
/// never send.
pub fn decode_response_v3(payload: Bytes) -> Result<ResponseV3, ResponseError> {
    let malformed = ResponseError::Malformed;
    let message = Response::decode(payload).map_err(|_| ResponseError::Malformed)?;
    let header = message.header.unwrap_or_default();
    let (Some(raw_operation), Some(txn), Some(outer)) = (header.operation, header.txn_id, message.status) else {
        return Err(malformed);
    };
    let operation = match OperationType::try_from(raw_operation) {
        Ok(OperationType::AddEntry) => Operation::Add,
        Ok(OperationType::ReadEntry) => Operation::Read,
        Ok(OperationType::ReadLac) => Operation::ReadLac,
        Ok(OperationType::WriteLac) => Operation::WriteLac,
        Ok(OperationType::ForceLedger) => Operation::ForceLedger,
        Ok(OperationType::GetBookieInfo) => Operation::BookieInfo,
        Ok(OperationType::GetListOfEntriesOfLedger) => Operation::ListEntries,
        _ => return Err(ResponseError::UnexpectedOperation(i64::from(raw_operation))),
    };
    let (inner, ledger, entry) = match sub_message(operation, &message) {
        Some((inner, ledger, entry)) => (inner.ok_or(ResponseError::Malformed)?, ledger, entry),
        // Servers may leave the sub-message out of a failure, never out of a success.
        None if outer != Status::Ok.v3() => (outer, -1, -1),
        None => return Err(malformed),
    };
    if inner != outer {
        return Err(ResponseError::StatusMismatch { outer, inner });
    }
    let named = Status::from_v3(outer);
    let status = named.unwrap_or(Status::Io);
    let payload = if status == Status::Ok { success(operation, message).ok_or(malformed)? } else { PayloadV3::None };
    Ok(ResponseV3 { txn, operation, status, is_named: named.is_some(), ledger, entry, payload })
}

/// What a success carries; `None` when it lacks what it must have.
fn success(operation: Operation, message: Response) -> Option<PayloadV3> {
    Some(match operation {
        Operation::Read => {
            let read = message.read_response?;
            match (read.body, read.max_lac) {
                (Some(body), max_lac) => {
                    PayloadV3::Entry { body, max_lac: EntryId::option_from_i64(max_lac.unwrap_or(-1))? }
                }
                (None, Some(max_lac)) => PayloadV3::Confirmed { max_lac: EntryId::option_from_i64(max_lac)? },
                (None, None) => return None,
            }
        }
        Operation::ReadLac => {
            let read = message.read_lac_response?;
            PayloadV3::Lac { explicit: read.lac_body, last_entry: read.last_entry_body }
        }
        Operation::BookieInfo => {
            let info = message.get_bookie_info_response?;
            let bytes = |raw: Option<i64>| raw.map(u64::try_from).transpose().ok();
            PayloadV3::BookieInfo {
                total_bytes: bytes(info.total_disk_capacity)?,
                free_bytes: bytes(info.free_disk_space)?,
            }
        }
        Operation::ListEntries => {
            let list = message.get_list_of_entries_of_ledger_response?;
            PayloadV3::Entries(Availability::decode(list.availability_of_entries_of_ledger?)?)
        }
        Operation::Add | Operation::WriteLac | Operation::ForceLedger => PayloadV3::None,
    })
}
