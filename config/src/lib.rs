//! Configuration: serde structs filled from layers, and for every value the answer to "where does this come from".
//!
//! Layers, later ones win: the struct's `Default`, a [`Profile`], a TOML file, environment variables (`THERMOCLINE_A__B` sets
//! `a.b`), and the command line. [`load`] refuses what it does not understand: an unknown key is named with its source and the nearest known
//! key, a bad value is named with its key, its source and what would be accepted.
//!
//! # What a struct must do
//!
//! Each server owns its struct, with `#[serde(default, deny_unknown_fields)]` on every level and every field serialised (a
//! field that is set and not written out again counts as unknown). Sizes are [`ByteSize`], times are [`Span`]. Tables merge
//! key by key; arrays are replaced whole.

mod error;
mod explain;
mod layers;
mod load;
mod size;
mod span;

pub use error::ConfigError;
pub use load::{Loaded, Origin, Profile, Row, differences_from_defaults, load, load_from_process, to_toml};
pub use size::{ByteSize, ParseByteSizeError};
pub use span::{ParseSpanError, Span};

#[cfg(test)]
mod tests;
