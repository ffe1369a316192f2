//! The `thermocline` program: every command, and the composition root of the standalone node.
//!
//! A library beside the binary so that tests start the same node in their own process. `standalone` and `roles` are the places that
//! know concrete implementations (which metadata driver, which disk, which network); everything else takes traits.
//!
//! - [`args`]: the command line, with the texts that teach it.
//! - [`cluster`]: processes of a cluster on this machine, for the cluster demo and tests.
//! - [`standalone`]: three bookies, metadata, offloader and gateway in one process.
//! - [`demo`]: the main job on real logs, with its verdict.
//! - [`admin`], [`health`]: metrics and health over HTTP, for operators.
//! - [`kill_at`]: the crash tests' way to die at a step of the offload protocol.
//! - [`profile`]: choices of a bookie's settings for kinds of disks.
//! - `roles`: bookie, offloader and gateway as processes of their own.
//! - [`run`]: from parsed arguments to an exit code.

pub mod admin;
pub mod args;
pub mod cluster;
mod commands;
mod confirm;
pub mod demo;
mod doctor;
mod fault;
pub mod health;
pub mod kill_at;
mod output;
pub mod profile;
mod remote;
mod replay;
mod roles;
mod settings;
pub mod standalone;
mod stores;

pub use commands::run;
pub use fault::Fault;
pub use settings::{BookieSettings, GatewaySettings, OffloaderSettings, Settings};
