//! Simulation: the real roles on a seeded, single-threaded runtime.
#![allow(clippy::unwrap_used, missing_docs)]

#[cfg(not(tokio_unstable))]
compile_error!("the simulation needs --cfg tokio_unstable: a RUSTFLAGS variable replaces the flags of .cargo/config.toml, unset it");
