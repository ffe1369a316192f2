//! What every part of Thermocline needs and none of them owns: time, randomness, byte budgets, retries, orderly shutdown, the
//! seam to sockets, and logging. Nothing here knows a ledger.
//!
//! Two rules make the rest testable. Wall-clock time, OS randomness and threads for blocking work are reached only through
//! [`clock`], [`rng`] and [`blocking`] (`clippy.toml` bans the direct calls everywhere else), and sockets only through [`net`].
//! So a simulation can stand in for all of them.

pub mod blocking;
pub mod budget;
pub mod clock;
pub mod metrics;
pub mod net;
pub mod retry;
pub mod rng;
pub mod shutdown;
pub mod telemetry;
