//! Proxies that fail on purpose, a model of a slow object store, and an S3 server in this process: what tests and benchmarks put
//! between the product and the services it talks to.

mod etcd;

pub use etcd::{Etcd, EtcdCluster, EtcdError};
