//! End to end: a whole node in this process, real files, real sockets, real objects; and the checks that need several roles.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod cold_ids;
mod damage;
mod etcd;
mod failures;
mod faults;
mod metrics;
mod offload_world;
mod outsiders;
mod restart;
mod road;
mod s3;
mod security;
mod support;
