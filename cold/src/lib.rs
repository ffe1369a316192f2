//! The cold tier: one Parquet object per sealed ledger, and the object store that keeps them.
//!
//! An object has one row per entry, from which the entry's body is rebuilt bit for bit; any Parquet engine reads it without code
//! from us. The layout is in `docs/formats/cold-object.md`; the reasons in `docs/decisions/0004-cold-object-parquet.md`.
//!
//! - [`ObjectWriter`] turns rows into bytes, [`Upload`] brings bytes to a store, [`verify_object`] proves that they are there.
//! - [`ObjectReader`] reads row groups (one GET each) and single entries.
//! - [`ColdStore`] is the store: bounded, retried, its answers checked.
//!
//! **Invariant:** bytes that are not what was written are an error that names the object, never another payload and never a panic.
//! **Invariant:** nothing here deletes an object (but [`ColdStore::check`], [`ColdStore::probe`] and [`ColdStore::measure`] what they
//! have just written themselves), and no key is written twice.

mod digest;
mod encoder;
mod error;
mod faults;
mod footer;
mod limits;
mod metrics;
mod object;
mod page_header;
mod policy;
mod reader;
mod row;
mod schema;
mod store;
pub mod suite;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing;
mod writer;

pub use error::{Error, ErrorKind, Result};
pub use faults::{Fault, FaultStore, Traffic};
pub use limits::Limits;
pub use object::{ObjectMeta, ObjectSummary};
pub use policy::policy;
pub use reader::{EntryRead, GroupInfo, ObjectReader, RowGroup, verify_object};
pub use row::Row;
pub use store::{
    AccessKey, Capability, ChecksumHeader, CloudOptions, ColdStore, Finding, ObjectFacts, StoreOptions, StoreReport,
    StoreSpeed, Upload, Uploaded,
};
pub use writer::ObjectWriter;
