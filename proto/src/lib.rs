//! The two protocols of Thermocline, without any I/O.
//!
//! - **BookKeeper's wire protocol**, versions 2 (fixed binary layout) and 3 (protobuf). [`FrameDecoder`] cuts a byte stream into frames; [`decode_request`] turns a frame
//!   into a typed [`Request`] plus the [`ReplyTo`] that encodes its answer, or directly into the answer that the protocol
//!   prescribes for what we do not serve; [`Greeter`] decides what is said before that, START_TLS and authentication; [`client`]
//!   holds the other end.
//! - **gRPC `thermocline.v1`**: generated from `protos/thermocline/v1`, in [`v1`].
//!
//! Every byte here may come from a stranger: decoding never panics, limits are checked before anything is allocated, and bodies
//! are slices of the received frame, not copies. Wire forms such as "-1 means the last entry" or inclusive ranges end here: the
//! typed side has [`ReadTarget`] and `Option`.

mod availability;
pub mod client;
mod frame;
mod generated;
mod greeting;
mod grpc;
mod request;
mod server;
mod status;
mod v2;
mod v3;

pub use availability::{Availability, AvailabilityWriter};
pub use frame::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, FrameError};
pub use generated::{bookkeeper, v1};
pub use greeting::{AUTH_DISABLED_PLUGIN, AuthReply, Demands, GREETING_HEAD_BYTES, Greeter, Step, TlsDemand};
pub use grpc::{FILE_DESCRIPTOR_SET, GRPC_BATCH_BYTES, GRPC_MESSAGE_BYTES_MAX};
pub use request::{LAC_BODY_BYTES_MAX, PollTarget, ReadTarget, Request};
pub use server::{CloseReason, Incoming, Protocol, Reply, ReplyTo, decode_request};
pub use status::Status;
pub use v2::{BATCH_ENTRY_HEAD_BYTES, BATCH_HEAD_BYTES};
