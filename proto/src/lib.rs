//! The protocols of Thermocline.
mod frame;
mod generated;
mod grpc;
mod status;
pub use frame::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, FrameError};
pub use generated::{bookkeeper, v1};
pub use grpc::{FILE_DESCRIPTOR_SET, GRPC_BATCH_BYTES, GRPC_MESSAGE_BYTES_MAX};
pub use status::Status;
