//! Generated code, kept apart from the lints that hold for ours.

/// Messages of BookKeeper's protocol version 3.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod bookkeeper {
    include!(concat!(env!("OUT_DIR"), "/bookkeeper.rs"));
}

/// gRPC API `thermocline.v1`: messages, clients and server traits.
///
/// The comments of the `.proto` files are the documentation; they are shown by server reflection too.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/thermocline.v1.rs"));
}
