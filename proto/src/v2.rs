//! Version 2, the binary layout: one big-endian header word (version, opcode, flags), then fixed fields.
//!
//! Replies echo version, opcode and ids of the request, because clients match them by (opcode, ledger, entry).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ledger::{EntryId, LedgerId, MASTER_KEY_BYTES, MasterKey};
use prost::Message;

use crate::bookkeeper::AuthMessage;
use crate::greeting::AUTH_DISABLED_PLUGIN;
use crate::request::BODY_BYTES_MIN;
use crate::server::{Address, CloseReason, Incoming, Reply, ReplyTo};
use crate::{ReadTarget, Request, Status};

/// Highest version this layout has; also the one clients send.
pub(crate) const VERSION_MAX: u8 = 2;

pub(crate) const OP_ADD: u8 = 1;
pub(crate) const OP_READ: u8 = 2;
pub(crate) const OP_AUTH: u8 = 3;
pub(crate) const OP_BATCH_READ: u8 = 7;

pub(crate) const FLAG_FENCE: u16 = 0x0001;
pub(crate) const FLAG_RECOVERY_ADD: u16 = 0x0002;
pub(crate) const FLAG_HIGH_PRIORITY: u16 = 0x0004;

/// Header, error code, ledger id, entry id: the start of every ADD and READ response.
pub(crate) const RESPONSE_HEAD_BYTES: usize = 24;

/// What comes before the first entry of a BATCH_READ response, length word of the frame included: head and request id.
///
/// The protocol counts so what a reply may have: this, and 4 bytes and its body for each entry.
pub const BATCH_HEAD_BYTES: usize = 4 + RESPONSE_HEAD_BYTES + 8;

/// Bytes before each entry of a BATCH_READ response: its length.
pub const BATCH_ENTRY_HEAD_BYTES: usize = 4;

/// A header word taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u8,
    pub(crate) opcode: u32,
    pub(crate) flags: u16,
}

impl Header {
    pub(crate) fn from_word(word: u32) -> Self {
        let [version, opcode, flags_high, flags_low] = word.to_be_bytes();
        if version == 0 {
            // Version 0 knows no flags: the whole word is the opcode.
            return Self { version, opcode: word, flags: 0 };
        }
        Self { version, opcode: u32::from(opcode), flags: u16::from_be_bytes([flags_high, flags_low]) }
    }

    pub(crate) fn word(version: u8, opcode: u8, flags: u16) -> u32 {
        if version == 0 {
            return u32::from(opcode);
        }
        let [flags_high, flags_low] = flags.to_be_bytes();
        u32::from_be_bytes([version, opcode, flags_high, flags_low])
    }
}

pub(crate) fn decode_request(mut payload: Bytes) -> Incoming {
    let Ok(word) = payload.try_get_u32() else { return Incoming::Close(CloseReason::Truncated) };
    let header = Header::from_word(word);
    match u8::try_from(header.opcode) {
        Ok(OP_ADD) => decode_add(header, payload),
        Ok(OP_READ) => decode_read(header, payload),
        Ok(OP_BATCH_READ) => decode_batch_read(header, payload),
        Ok(OP_AUTH) => decode_auth(header, payload),
        _ => Incoming::Close(CloseReason::UnsupportedOperation(header.opcode)),
    }
}

fn reply_to(header: Header, opcode: u8, ledger: i64, entry: i64) -> ReplyTo {
    ReplyTo(Address::V2 { version: header.version, opcode, ledger, entry, request: 0 })
}

fn refuse(reply_to: ReplyTo, status: Status) -> Incoming {
    Incoming::Reply(reply_to.to_frame(&Reply::Failed(status)))
}

/// After the header: master key, then the entry body, which starts with ledger id and entry id.
fn decode_add(header: Header, mut rest: Bytes) -> Incoming {
    let Some(master_key) = rest.get(..MASTER_KEY_BYTES).and_then(MasterKey::from_slice) else {
        return Incoming::Close(CloseReason::Truncated);
    };
    rest.advance(MASTER_KEY_BYTES);
    let body = rest;
    let mut fields = &body[..];
    let (Ok(raw_ledger), Ok(raw_entry)) = (fields.try_get_i64(), fields.try_get_i64()) else {
        return Incoming::Close(CloseReason::Truncated);
    };
    let reply_to = reply_to(header, OP_ADD, raw_ledger, raw_entry);
    if header.version > VERSION_MAX {
        return refuse(reply_to, Status::BadVersion);
    }
    let (Some(ledger), Some(entry)) = (LedgerId::new(raw_ledger), EntryId::new(raw_entry)) else {
        return refuse(reply_to, Status::BadRequest);
    };
    if body.len() < BODY_BYTES_MIN {
        return refuse(reply_to, Status::BadRequest);
    }
    let recovery = header.flags & FLAG_RECOVERY_ADD != 0;
    let high_priority = header.flags & FLAG_HIGH_PRIORITY != 0;
    let request = Request::Add { ledger, entry, master_key, body, recovery, high_priority, deferred_sync: false };
    Incoming::Request(reply_to, request)
}

/// After the header: ledger id, entry id, and for a fencing read of version 2 the master key.
fn decode_read(header: Header, mut rest: Bytes) -> Incoming {
    let (Ok(raw_ledger), Ok(raw_entry)) = (rest.try_get_i64(), rest.try_get_i64()) else {
        return Incoming::Close(CloseReason::Truncated);
    };
    let reply_to = reply_to(header, OP_READ, raw_ledger, raw_entry);
    if header.version > VERSION_MAX {
        return refuse(reply_to, Status::BadVersion);
    }
    let (Some(ledger), Some(target)) = (LedgerId::new(raw_ledger), ReadTarget::from_i64(raw_entry)) else {
        return refuse(reply_to, Status::BadRequest);
    };
    let (fence, master_key) = match fencing_key(header, rest) {
        Ok(key) => (key.is_some(), key),
        Err(FencingKey::NoRoom) => return refuse(reply_to, Status::Unauthorized),
        Err(FencingKey::Truncated) => return Incoming::Close(CloseReason::Truncated),
    };
    let high_priority = header.flags & FLAG_HIGH_PRIORITY != 0;
    Incoming::Request(reply_to, Request::Read { ledger, target, fence, master_key, high_priority })
}

/// Why a fencing read has no key.
enum FencingKey {
    /// Versions below 2 have no room for it, and without it nobody may fence.
    NoRoom,
    Truncated,
}

/// The key that follows a read with the fencing flag; `None` without the flag.
fn fencing_key(header: Header, rest: Bytes) -> Result<Option<MasterKey>, FencingKey> {
    if header.flags & FLAG_FENCE == 0 {
        return Ok(None);
    }
    if header.version < VERSION_MAX {
        return Err(FencingKey::NoRoom);
    }
    rest.get(..MASTER_KEY_BYTES).and_then(MasterKey::from_slice).map(Some).ok_or(FencingKey::Truncated)
}

/// After the header: ledger id, first entry id, request id, most entries, most bytes, and for a fencing read of version 2 the
/// master key.
fn decode_batch_read(header: Header, mut rest: Bytes) -> Incoming {
    let fields = (|| {
        let ids = (rest.try_get_i64().ok()?, rest.try_get_i64().ok()?);
        Some((ids, rest.try_get_i64().ok()?, rest.try_get_i32().ok()?, rest.try_get_i64().ok()?))
    })();
    let Some(((raw_ledger, raw_start), request, raw_count, raw_bytes)) = fields else {
        return Incoming::Close(CloseReason::Truncated);
    };
    let reply_to = ReplyTo(Address::V2 {
        version: header.version,
        opcode: OP_BATCH_READ,
        ledger: raw_ledger,
        entry: raw_start,
        request,
    });
    if header.version > VERSION_MAX {
        return refuse(reply_to, Status::BadVersion);
    }
    let (Some(ledger), Some(start)) = (LedgerId::new(raw_ledger), EntryId::new(raw_start)) else {
        return refuse(reply_to, Status::BadRequest);
    };
    let (fence, master_key) = match fencing_key(header, rest) {
        Ok(key) => (key.is_some(), key),
        Err(FencingKey::NoRoom) => return refuse(reply_to, Status::Unauthorized),
        Err(FencingKey::Truncated) => return Incoming::Close(CloseReason::Truncated),
    };
    let request = Request::BatchRead {
        ledger,
        start,
        count_max: u32::try_from(raw_count).ok().filter(|count| *count > 0),
        bytes_max: u64::try_from(raw_bytes).unwrap_or(0),
        fence,
        master_key,
        high_priority: header.flags & FLAG_HIGH_PRIORITY != 0,
    };
    Incoming::Request(reply_to, request)
}

/// There is no plug-in: every caller is told so and let in. The answer has version 2 whatever the request had.
fn decode_auth(header: Header, rest: Bytes) -> Incoming {
    let asked = AuthMessage::decode(rest).is_ok_and(|asked| is_complete(&asked));
    if header.version > VERSION_MAX || !asked {
        return Incoming::Close(CloseReason::Malformed);
    }
    Incoming::Reply(auth_frame(&auth_disabled()))
}

/// An authentication message as a frame, which has version 2 whatever version the other side spoke.
pub(crate) fn auth_frame(message: &AuthMessage) -> Bytes {
    let bytes = 4 + message.encoded_len();
    let mut out = BytesMut::with_capacity(4 + bytes);
    out.put_u32(frame_length(bytes));
    out.put_u32(Header::word(VERSION_MAX, OP_AUTH, 0));
    message.encode(&mut out).expect("a BytesMut grows as needed");
    out.freeze()
}

/// What a request is told whose caller has not shown who it is, from the first bytes of its payload: ADD and READ get an answer,
/// everything else is hung up on.
pub(crate) fn refuse_stranger(mut head: &[u8]) -> Result<Bytes, CloseReason> {
    let word = head.try_get_u32().map_err(|_| CloseReason::Truncated)?;
    let header = Header::from_word(word);
    let opcode = match u8::try_from(header.opcode) {
        Ok(OP_ADD) => {
            head = head.get(MASTER_KEY_BYTES..).ok_or(CloseReason::Truncated)?;
            OP_ADD
        }
        Ok(OP_READ) => OP_READ,
        _ => return Err(CloseReason::Unauthenticated),
    };
    let (Ok(ledger), Ok(entry)) = (head.try_get_i64(), head.try_get_i64()) else { return Err(CloseReason::Truncated) };
    Ok(reply_to(header, opcode, ledger, entry).to_frame(&Reply::Failed(Status::Unauthorized)))
}

pub(crate) fn auth_disabled() -> AuthMessage {
    AuthMessage { auth_plugin_name: Some(AUTH_DISABLED_PLUGIN.to_owned()), payload: Some(Bytes::new()) }
}

/// Whether an authentication message has the fields it must have.
pub(crate) fn is_complete(message: &AuthMessage) -> bool {
    message.auth_plugin_name.is_some() && message.payload.is_some()
}

/// The length word of a frame with this many payload bytes.
pub(crate) fn frame_length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a body came in a frame, so it is far below 4 GiB")
}

/// Where a version 2 reply goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recipient {
    pub(crate) version: u8,
    pub(crate) opcode: u8,
    pub(crate) ledger: i64,
    pub(crate) entry: i64,
    /// Of BATCH_READ only, whose replies carry it, failures included.
    pub(crate) request: i64,
}

pub(crate) fn encode_reply(to: Recipient, reply: &Reply, out: &mut BytesMut) {
    let (status, bodies) = match (to.opcode, reply) {
        (OP_ADD, Reply::Added) => (Status::Ok, &[][..]),
        (OP_READ, Reply::Read { body, .. }) => (Status::Ok, std::slice::from_ref(body)),
        (OP_BATCH_READ, Reply::Batch { entries }) => (Status::Ok, &entries[..]),
        (_, Reply::Failed(status)) if *status != Status::Ok => (*status, &[][..]),
        _ => {
            debug_assert!(false, "reply {reply:?} does not answer operation {}", to.opcode);
            (Status::Io, &[][..])
        }
    };
    let is_batch = to.opcode == OP_BATCH_READ;
    let (request_bytes, entry_head) = if is_batch { (8, BATCH_ENTRY_HEAD_BYTES) } else { (0, 0) };
    let content: usize = bodies.iter().map(|body| entry_head + body.len()).sum();
    let bytes = RESPONSE_HEAD_BYTES + request_bytes + content;
    out.reserve(4 + bytes);
    out.put_u32(frame_length(bytes));
    out.put_u32(Header::word(to.version, to.opcode, 0));
    out.put_i32(status.v2());
    out.put_i64(to.ledger);
    out.put_i64(to.entry);
    if is_batch {
        out.put_i64(to.request);
    }
    for body in bodies {
        if is_batch {
            out.put_u32(frame_length(body.len()));
        }
        out.put_slice(body);
    }
}
