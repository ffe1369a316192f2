//! The metadata of a cluster: one small trait, its drivers, and typed views of what is stored.
//!
//! [`MetadataStore`] is what the rest of the workspace knows: versioned keys, small atomic transactions whose answer is
//! *done*, *surely not done* or *unknown*, ordered listing, watches and leases. [`open`] turns a URI into a store and is the
//! only place that knows drivers, so a new driver changes only this crate. Every driver passes [`suite::run`].
//!
//! On top of it stand small repositories, one a kind of record: [`Cluster`], [`Ledgers`], [`Bookies`], [`Cookies`],
//! [`Attempts`], [`Catalog`], [`Gateways`], [`ColdShards`] and [`UnderReplication`]; [`admin`] is what an administrator does to a whole cluster. Where each record lives is said once, in [`layout`] and in `docs/formats/metadata-keys.md`.

pub mod admin;
mod attempts;
mod bookies;
mod catalog;
mod cluster;
mod cold_shards;
mod cookies;
mod counter;
mod decide;
mod embedded;
mod engine;
mod error;
mod etcd;
mod faulty;
mod gateways;
mod given_ids;
mod key;
pub mod layout;
mod leases;
mod ledger_layout;
mod ledgers;
mod listing;
mod memory;
mod metrics;
mod open;
mod record;
mod release_requests;
mod resolve;
mod store;
pub mod suite;
mod text_format;
mod transaction;
mod underreplication;
mod watch;
mod zookeeper;

pub use attempts::{Attempt, AttemptError, AttemptRecord, AttemptState, Attempts, NewAttempt};
pub use bookies::{BookieInfo, Bookies, Mode, RegisterError};
pub use catalog::{Catalog, CatalogEntry, CommitOffload, CommitOffloadError};
pub use cluster::{Cluster, InstanceId};
pub use cold_shards::{ColdNames, ColdRegistrations, ColdShards, OwnedShard, ShardOwner};
pub use cookies::{
    Cookie, CookieMismatch, CookieVerdict, Cookies, LocalCookie, RemoveCookieError, StoredCookie, verify,
};
pub use embedded::EmbeddedStore;
pub use error::{CommitError, Error, ErrorKind, WriteError};
pub use etcd::EtcdStore;
pub use faulty::{FaultHits, FaultKind, FaultRates, FaultyStore};
pub use gateways::{GatewayInfo, Gateways};
pub use given_ids::GivenIds;
pub use key::{KEY_BYTES_MAX, Key};
pub use ledger_layout::LedgerLayout;
pub use ledgers::{LedgerRecord, Ledgers, UpdateError};
pub use memory::MemoryStore;
pub use metrics::MeteredStore;
pub use open::{open, shown};
pub use release_requests::ReleaseRequests;
pub use store::{MetadataStore, scan};
pub use transaction::{Committed, Expect, LeaseId, OPS_MAX, Op, Transaction, VALUE_BYTES_MAX, Version, Versioned};
pub use underreplication::{Locked, Mark, RepairLock, StoredMark, UnderReplication};
pub use watch::{WatchEvent, WatchStream};
pub use zookeeper::ZooKeeperStore;
