//! The `thermocline` program: every command, and the composition root of the standalone node.
//!
//! A library beside the binary so that tests start the same node in their own process. `standalone` is the one place that
//! knows concrete implementations (which metadata driver, which disk, which network); everything else takes traits.
//!
//! - [`args`]: the command line, with the texts that teach it.
//! - [`standalone`]: three bookies, metadata, offloader and gateway in one process.
//! - [`demo`]: the main job on real logs, with its verdict.
//! - [`admin`], [`health`]: metrics and health over HTTP, for operators.
//! - [`kill_at`]: the crash tests' way to die at a step of the offload protocol.
//! - [`run`]: from parsed arguments to an exit code.

pub mod admin;
pub mod args;
mod commands;
pub mod demo;
mod fault;
pub mod health;
pub mod kill_at;
mod output;
mod remote;
mod replay;
mod settings;
pub mod standalone;

pub use commands::run;
pub use fault::Fault;
pub use settings::Settings;
