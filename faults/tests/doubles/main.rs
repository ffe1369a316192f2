//! The doubles of outside services under the client the product uses, and the scripts that start the real ones.
#![allow(clippy::unwrap_used, missing_docs)]

mod http;
mod s3;
mod scripts;
