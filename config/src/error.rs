use std::path::PathBuf;

use crate::Origin;

/// Why a configuration was refused. Each message is a sentence that names the place and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("read config file {}: {}", .path.display(), read_cause(.source))]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("read config file {}: line {line}, column {column}: {cause}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// What the parser says.
        cause: String,
    },
    /// Nothing has this key.
    #[error("unknown key {key} ({origin}){hint}")]
    UnknownKey {
        /// The key, dotted.
        key: String,
        /// Who sets it.
        origin: Origin,
        /// The nearest known key, if one is near.
        suggestion: Option<String>,
        /// The end of the sentence: the suggestion or the keys there are.
        hint: String,
    },
    /// The value does not fit the key.
    #[error("set {key} to {value} ({origin}): {cause}")]
    InvalidValue {
        /// The key, dotted.
        key: String,
        /// The value as given, redacted if it is a secret.
        value: String,
        /// Who sets it.
        origin: Origin,
        /// What is wrong and what is accepted.
        cause: String,
    },
    /// A key of the command line or the environment cannot be taken apart.
    #[error("read key {key:?} ({origin}): write names joined with dots, such as bookie.listen")]
    MalformedKey {
        /// The key as given.
        key: String,
        /// Who gives it.
        origin: Origin,
    },
    /// Each value fits, all together do not.
    #[error("read configuration: {cause}")]
    Inconsistent {
        /// What the struct says.
        cause: String,
    },
    /// The struct cannot be written as TOML: a fault in the program, not of the user.
    #[error("write configuration as TOML: {cause}")]
    Unwritable {
        /// What the writer says.
        cause: String,
    },
}

fn read_cause(source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::NotFound => "no such file; give the path of an existing one".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied; make it readable for this user".to_owned(),
        std::io::ErrorKind::IsADirectory => "it is a folder; give a file".to_owned(),
        std::io::ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
        _ => source.to_string(),
    }
}
