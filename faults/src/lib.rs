//! Proxies that fail on purpose, a model of a slow object store, and an S3 server in this process: what tests and benchmarks put
//! between the product and the services it talks to.
//!
//! - [`tcp::Proxy`] stands before metadata or a bookie and knows only bytes: delay, refuse, reset, swallow replies, stall, cut.
//! - [`http::Proxy`] stands before an object store and knows its requests: the n-th part of an upload fails before or after it was
//!   applied, with a status, a lost reply, half a body, or an error in a reply that says 200. It logs every request.
//! - [`s3::Server`] is an object store that keeps its objects in memory and whose conditional writes are atomic.
//! - [`Etcd`], [`ZooKeeper`] and [`LocalStack`] are the real programs in processes of their own, where they are installed.
//! - [`model::StoreModel`] says how long a store takes to answer, from a seed.
//!
//! Everything listens on a free port of 127.0.0.1, changes its behaviour while it runs, and is gone when it is dropped: no task, no
//! socket is left.
//!
//! **Invariant:** the product links this crate for its benchmarks only; nothing on a production path goes through it.

mod etcd;
pub mod http;
mod localstack;
pub mod model;
mod pace;
pub mod s3;
mod skips;
mod stopped;
pub mod tcp;
mod zookeeper;

pub use etcd::{Etcd, EtcdCluster, EtcdError};
pub use localstack::{LocalStack, LocalStackError};
pub use skips::skipped;
pub use zookeeper::{ZooKeeper, ZooKeeperCluster, ZooKeeperError};
