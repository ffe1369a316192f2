//! The doubles of outside services under the client the product uses.
#![allow(clippy::unwrap_used, missing_docs)]

mod http;
mod s3;
