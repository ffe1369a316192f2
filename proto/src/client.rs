//! The client's end of a BookKeeper connection: adds and reads in version 2, everything else in version 3.
//!
//! Replies of version 2 are matched by (operation, ledger id, entry id), and identical requests can be in flight: keep the
//! pending ones of a key in order. Replies of version 3 are matched by (transaction number, operation).

mod greeting;
mod response;

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ledger::{EntryId, LedgerId, MASTER_KEY_BYTES, MasterKey};

pub use greeting::{Greeted, decode_greeting_v3, encode_auth_v3, encode_start_tls_v3};
pub use response::{
    BatchResponseV2, Operation, PayloadV3, ResponseError, ResponseV2, ResponseV3, decode_batch_response_v2,
    decode_response_v2, decode_response_v3,
};

use crate::bookkeeper::{
    AddRequest, BkPacketHeader, ForceLedgerRequest, GetBookieInfoRequest, GetListOfEntriesOfLedgerRequest,
    OperationType, ProtocolVersion, ReadLacRequest, ReadRequest, Request, WriteLacRequest, add_request, read_request,
};
use crate::v2::{
    FLAG_FENCE, FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, Header, OP_ADD, OP_BATCH_READ, OP_READ, VERSION_MAX,
    frame_length,
};
use crate::v3::{INFO_FREE, INFO_TOTAL, WRITE_FLAG_DEFERRED_SYNC, encode_response as encode_message};
use crate::{PollTarget, ReadTarget};

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
    let bits = read_flags(fence.is_some(), high_priority);
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

fn read_flags(fence: bool, high_priority: bool) -> u16 {
    (if fence { FLAG_FENCE } else { 0 }) | (if high_priority { FLAG_HIGH_PRIORITY } else { 0 })
}

/// What a BATCH_READ asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRead<'a> {
    /// Ledger to read.
    pub ledger: LedgerId,
    /// First entry.
    pub start: EntryId,
    /// Names the request: replies are matched by it alone.
    pub request: i64,
    /// Most entries; `None` leaves the bound to the bytes.
    pub count_max: Option<u32>,
    /// Most bytes of the reply; see [`crate::BATCH_HEAD_BYTES`]. At least one entry comes whatever its size.
    pub bytes_max: u64,
    /// The key, when the ledger is to be fenced before it is read.
    pub fence: Option<&'a MasterKey>,
    /// Served ahead of normal requests.
    pub high_priority: bool,
}

/// Appends a version 2 BATCH_READ frame. Bookies of Apache BookKeeper before 4.17 close the connection at it.
pub fn encode_batch_read_v2(read: &BatchRead<'_>, out: &mut BytesMut) {
    let bytes = 40 + if read.fence.is_some() { MASTER_KEY_BYTES } else { 0 };
    out.reserve(4 + bytes);
    out.put_u32(frame_length(bytes));
    out.put_u32(Header::word(VERSION_MAX, OP_BATCH_READ, read_flags(read.fence.is_some(), read.high_priority)));
    out.put_i64(read.ledger.as_i64());
    out.put_i64(read.start.as_i64());
    out.put_i64(read.request);
    out.put_i32(read.count_max.map_or(0, |count| i32::try_from(count).unwrap_or(i32::MAX)));
    out.put_i64(i64::try_from(read.bytes_max).unwrap_or(i64::MAX));
    if let Some(master_key) = read.fence {
        out.put_slice(master_key.as_bytes());
    }
}

fn request(txn_id: u64, operation: OperationType, high_priority: bool) -> Request {
    let priority = high_priority.then_some(HIGH_PRIORITY);
    let (version, operation) = (Some(ProtocolVersion::VersionThree as i32), Some(operation as i32));
    Request {
        header: Some(BkPacketHeader { version, operation, txn_id: Some(txn_id), priority }),
        ..Request::default()
    }
}

/// Appends a version 3 READ_LAC frame.
pub fn encode_read_lac_v3(txn: u64, ledger: LedgerId, out: &mut BytesMut) {
    let mut message = request(txn, OperationType::ReadLac, false);
    message.read_lac_request = Some(ReadLacRequest { ledger_id: Some(ledger.as_i64()) });
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
        ledger_id: Some(ledger.as_i64()),
        entry_id: Some(target.as_i64()),
        master_key: fence.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        flag: fence.map(|_| read_request::Flag::FenceLedger as i32),
        ..ReadRequest::default()
    });
    encode_message(&message, out);
}

/// Marks the last frame in `out`, a version 3 request that begins at `start`, as asked on behalf of another caller: whoever gets it
/// answers from what it has, and asks nobody else.
pub fn mark_relayed(start: usize, out: &mut BytesMut) {
    crate::v3::mark(start, out);
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
        ledger_id: Some(ledger.as_i64()),
        entry_id: Some(entry.as_i64()),
        master_key: Some(Bytes::copy_from_slice(master_key.as_bytes())),
        body: Some(body.clone()),
        write_flags: deferred_sync.then_some(WRITE_FLAG_DEFERRED_SYNC),
    });
    encode_message(&message, out);
}

/// Appends a version 3 READ frame that waits for a last-add-confirmed above `previous`; without `patience` it does not wait.
pub fn encode_long_poll_v3(
    txn: u64,
    ledger: LedgerId,
    target: PollTarget,
    previous: Option<EntryId>,
    patience: Option<Duration>,
    out: &mut BytesMut,
) {
    let (entry, flag) = match target {
        PollTarget::Read(target) => (target, None),
        PollTarget::Next => (ReadTarget::Last, Some(read_request::Flag::EntryPiggyback as i32)),
    };
    let mut message = request(txn, OperationType::ReadEntry, false);
    message.read_request = Some(ReadRequest {
        ledger_id: Some(ledger.as_i64()),
        entry_id: Some(entry.as_i64()),
        master_key: None,
        previous_lac: Some(EntryId::option_to_i64(previous)),
        time_out: patience.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
        flag,
    });
    encode_message(&message, out);
}

/// Appends a version 3 WRITE_LAC frame. `body` is the whole body and names the same ledger and last-add-confirmed.
pub fn encode_write_lac_v3(
    txn: u64,
    ledger: LedgerId,
    lac: Option<EntryId>,
    master_key: &MasterKey,
    body: &Bytes,
    out: &mut BytesMut,
) {
    let mut message = request(txn, OperationType::WriteLac, false);
    message.write_lac_request = Some(WriteLacRequest {
        ledger_id: Some(ledger.as_i64()),
        lac: Some(EntryId::option_to_i64(lac)),
        master_key: Some(Bytes::copy_from_slice(master_key.as_bytes())),
        body: Some(body.clone()),
    });
    encode_message(&message, out);
}

/// Appends a version 3 FORCE_LEDGER frame.
pub fn encode_force_ledger_v3(txn: u64, ledger: LedgerId, out: &mut BytesMut) {
    let mut message = request(txn, OperationType::ForceLedger, false);
    message.force_ledger_request = Some(ForceLedgerRequest { ledger_id: Some(ledger.as_i64()) });
    encode_message(&message, out);
}

/// Appends a version 3 GET_BOOKIE_INFO frame.
pub fn encode_bookie_info_v3(txn: u64, total: bool, free: bool, out: &mut BytesMut) {
    let requested = (if total { INFO_TOTAL } else { 0 }) | (if free { INFO_FREE } else { 0 });
    let mut message = request(txn, OperationType::GetBookieInfo, false);
    message.get_bookie_info_request = Some(GetBookieInfoRequest { requested: Some(requested) });
    encode_message(&message, out);
}

/// Appends a version 3 GET_LIST_OF_ENTRIES_OF_LEDGER frame.
pub fn encode_list_entries_v3(txn: u64, ledger: LedgerId, out: &mut BytesMut) {
    let mut message = request(txn, OperationType::GetListOfEntriesOfLedger, false);
    let list = GetListOfEntriesOfLedgerRequest { ledger_id: Some(ledger.as_i64()) };
    message.get_list_of_entries_of_ledger_request = Some(list);
    encode_message(&message, out);
}
