//! The server's end of a BookKeeper connection: from frame to request, from reply to frame.
//!
//! # Versions
//! The first byte of a payload tells the version: `0x0A` opens a protobuf header (version 3), 0 to 2 is the version byte of the
//! binary layout. A connection that has sent one binary frame stays binary; protobuf frames do not bind it, because START_TLS
//! is sent in protobuf form even by clients that go on in version 2.
//!
//! # Who answers
//! Requests that a bookie serves come out as [`Incoming::Request`]. What the protocol answers by itself (wrong version, negative
//! ids, unsupported operations, authentication with no plug-in) comes out as a finished frame, [`Incoming::Reply`]. What it
//! answers by hanging up is [`Incoming::Close`].

use bytes::{Bytes, BytesMut};
use ledger::EntryId;

use crate::bookkeeper::OperationType;
use crate::{Request, Status, v2, v3};

/// What a connection has shown to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// No frame yet.
    #[default]
    Undecided,
    /// The binary layout, for good.
    V2,
    /// Protobuf frames so far; a binary frame may still follow.
    V3,
}

/// Why the protocol wants the connection closed without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The first byte belongs to neither protocol version.
    #[error("read request: first byte {0:#04x} belongs to no known protocol version")]
    UnknownProtocol(u8),
    /// The frame ends before the fields it must have.
    #[error("read request: frame too short for its operation")]
    Truncated,
    /// A version 2 operation that is not served.
    #[error("read request: version 2 operation {0} is not supported")]
    UnsupportedOperation(u32),
    /// The protobuf message does not decode.
    #[error("read request: malformed protobuf message")]
    Malformed,
    /// A version 2 request, other than ADD and READ, of a caller that has not shown who it is.
    #[error("read request: not allowed before authentication")]
    Unauthenticated,
}

/// What to do with a received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// Serve the request, then answer through [`ReplyTo::encode`], exactly once.
    Request(ReplyTo, Request),
    /// Send this complete frame, length word included.
    Reply(Bytes),
    /// Close the connection; no reply.
    Close(CloseReason),
}

/// The outcome of a request, to be encoded by its [`ReplyTo`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The entry is stored, durably unless deferred sync was asked for.
    Added,
    /// The entry.
    Read {
        /// The stored body, verbatim.
        body: Bytes,
        /// Highest last-add-confirmed known to the bookie. Sent on version 3 only, and not with fencing reads.
        max_lac: Option<EntryId>,
    },
    /// Consecutive entries from the one that was asked for; at least one.
    Batch {
        /// The stored bodies, verbatim.
        entries: Vec<Bytes>,
    },
    /// Answer to a [`Request::LongPoll`] for the next entry.
    Next {
        /// Highest last-add-confirmed known to the bookie.
        max_lac: Option<EntryId>,
        /// The entry behind the one the caller knew, when this bookie has it.
        entry: Option<(EntryId, Bytes)>,
        /// When the last-add-confirmed passed the caller's, in milliseconds since 1970; `None` when nothing was waited for.
        confirmed_ms: Option<u64>,
    },
    /// The explicit last-add-confirmed is stored durably.
    LacWritten,
    /// Everything acknowledged before is on stable storage.
    Forced,
    /// Sizes in bytes, of what was asked for.
    BookieInfo {
        /// All space there is.
        total_bytes: Option<u64>,
        /// What may still be written.
        free_bytes: Option<u64>,
    },
    /// The entries that are here, as [`crate::AvailabilityWriter`] encodes them.
    Entries(Bytes),
    /// Answer to [`Request::ReadLac`]. With neither part the caller is told "no entry".
    Lac {
        /// The explicit last-add-confirmed body, as last written.
        explicit: Option<Bytes>,
        /// Body of the highest entry.
        last_entry: Option<Bytes>,
    },
    /// The request failed. [`Status::Ok`] is not a failure and is sent as an I/O error.
    Failed(Status),
}

/// How to answer a request: version, operation, and the ids exactly as the caller sent them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo(pub(crate) Address);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    V2 { version: u8, opcode: u8, ledger: i64, entry: i64, request: i64 },
    V3 { txn: u64, operation: OperationType, ledger: i64, entry: i64, fencing: bool, relayed: bool },
}

impl ReplyTo {
    /// Appends the complete reply frame to `out`; a body is copied once, into `out`.
    ///
    /// A reply of the wrong kind for the request is a bug of the caller; it is sent as an I/O error, "nothing is known".
    pub fn encode(&self, reply: &Reply, out: &mut BytesMut) {
        match self.0 {
            Address::V2 { version, opcode, ledger, entry, request } => {
                v2::encode_reply(v2::Recipient { version, opcode, ledger, entry, request }, reply, out);
            }
            Address::V3 { txn, operation, ledger, entry, fencing, relayed: _ } => {
                v3::encode_reply(v3::Recipient { txn, operation, ledger, entry, fencing }, reply, out);
            }
        }
    }

    /// Whether another bookie asks on behalf of its own caller (see [`crate::client::mark_relayed`]): such a request MUST be
    /// answered from what is here.
    pub fn is_relayed(&self) -> bool {
        matches!(self.0, Address::V3 { relayed: true, .. })
    }

    /// The same frame in a buffer of its own.
    pub fn to_frame(&self, reply: &Reply) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(reply, &mut out);
        out.freeze()
    }
}

/// Reads one frame payload (without the length word) of a connection.
///
/// `protocol` is the connection's state, starting as [`Protocol::Undecided`].
pub fn decode_request(protocol: &mut Protocol, payload: Bytes) -> Incoming {
    let Some(&first) = payload.first() else { return Incoming::Close(CloseReason::Truncated) };
    match (*protocol, first) {
        (Protocol::V2, _) => v2::decode_request(payload),
        (_, v3::FIRST_BYTE) => {
            *protocol = Protocol::V3;
            v3::decode_request(payload)
        }
        (_, 0..=v2::VERSION_MAX) => {
            *protocol = Protocol::V2;
            v2::decode_request(payload)
        }
        _ => Incoming::Close(CloseReason::UnknownProtocol(first)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
