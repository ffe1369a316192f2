//! Who may speak over BookKeeper's wire, and unheard by whom: START_TLS and tokens, both ends of them.
//!
//! # Layout
//! - [`Guard`] stands before a server: the [`Listener`](common::net::Listener) it makes hands on connections that have said what is
//!   demanded of them, so that servers know nothing of it. What is demanded in which words is decided by [`proto::Greeter`].
//! - [`Introduced`] is a [`Connector`](common::net::Connector) whose connections have introduced themselves, so that clients know
//!   nothing of it either.
//!
//! # Bounds
//! A connection has [`GREETING_DEADLINE`] and a few frames to be let in, and costs some 20 KiB meanwhile; what is not needed of a long
//! frame is thrown away as it comes. Greetings are bounded in number; over it, connections wait in the system's queue. One host has a
//! part of them; more of its connections are closed at once. Warnings about strangers are bounded too: the rest is counted.
//!
//! # Files
//! Certificates, keys and tokens are read at the start, where an error ends it, and again once a while before a connection is greeted.
//! New ones count from then on for new connections; those that cannot be used are told once and change nothing. A certificate that is
//! not valid now is one of those, but for the start, where it is no reason not to serve.
//!
//! # What is never done
//! Tokens and keys are in no log line and no error. A token is compared by its hash, in the same time whether and where it matches.

mod config;
mod connector;
mod crowd;
mod error;
mod files;
mod greet;
mod listener;
mod metrics;
mod stream;
mod tls;
mod tokens;

pub use config::{ConnectConfig, ConnectTls, GuardConfig, GuardTls};
pub use connector::Introduced;
pub use error::Error;
pub use greet::GREETING_DEADLINE;
pub use listener::Guard;
pub use metrics::ConnectMetrics;
pub use tokens::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TOKEN_PLUGIN};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
