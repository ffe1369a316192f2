//! What clients and servers of `thermocline.v1` must agree on beyond the messages.

/// Encoded descriptors of `thermocline.v1`, comments included, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/thermocline.v1.descriptors.bin"));

/// Largest gRPC message either side must accept, in bytes.
///
/// Larger than tonic's default of 4 MiB, because one entry can be larger than that; pass it to `max_decoding_message_size` and
/// `max_encoding_message_size` of every client and server.
pub const GRPC_MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Payload bytes after which a sender should close a batch of entries and start the next message.
///
/// An entry that is larger travels alone.
pub const GRPC_BATCH_BYTES: usize = 1024 * 1024;
