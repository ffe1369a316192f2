//! Version 3, protobuf: an envelope with a header and one sub-message.
//!
//! Replies carry the caller's transaction number and operation, by which clients match them, and the sub-message with the ids as
//! sent, on errors too. The outer status always equals the inner one: Java looks at the inner one only after an outer "ok", and
//! the Rust client of the ecosystem refuses a mismatch.

mod decode;
mod encode;
mod hop;

pub(crate) use decode::decode_request;
pub(crate) use encode::{Recipient, encode_reply, encode_response, response};
pub(crate) use hop::mark;

/// Field 1, length-delimited: the header every version 3 message starts with.
pub(crate) const FIRST_BYTE: u8 = 0x0a;

/// Bit 0 of the write flags.
pub(crate) const WRITE_FLAG_DEFERRED_SYNC: i32 = 1;

/// Bits of what a GET_BOOKIE_INFO asks for.
pub(crate) const INFO_TOTAL: i64 = 1;
pub(crate) const INFO_FREE: i64 = 2;

/// Stands for an id in a reply to a request that had none.
const NO_ID: i64 = -1;
