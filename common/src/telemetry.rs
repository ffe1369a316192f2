//! Logging: `tracing` events to standard error, as text for people or JSON for machines.

use std::io::IsTerminal as _;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text, coloured on a terminal.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(TelemetryError::Format(text.to_owned())),
        }
    }
}

impl std::fmt::Display for LogFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The format's name is unknown.
    #[error("read log format {0:?}: use text or json")]
    Format(String),
    /// The filter cannot be read.
    #[error(
        "read log filter {filter:?}: {cause}; use a level (error, warn, info, debug, trace) or a list such as \"info,bookie=debug\""
    )]
    Filter {
        /// The filter as given.
        filter: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Something else in this process already takes the events.
    #[error("start logging: it was already started in this process")]
    AlreadyStarted,
}

/// Sends events that pass `filter` to standard error. `filter` is a level or a list such as `info,bookie=debug`.
///
/// # Errors
///
/// A filter that cannot be read, or logging already started in this process.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let filter = parse_filter(filter)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|_| TelemetryError::AlreadyStarted)
}

/// A bare word that is no level would be read as a module's name and silence everything else; it is refused instead.
fn parse_filter(text: &str) -> Result<EnvFilter, TelemetryError> {
    let refuse = |cause: String| TelemetryError::Filter { filter: text.to_owned(), cause };
    if text.trim().is_empty() {
        return Err(refuse("it is empty".to_owned()));
    }
    for part in text.split(',').map(str::trim) {
        let bare = !part.contains(['=', '[', ']', '{', '}', '"', ':']);
        if bare && tracing_subscriber::filter::LevelFilter::from_str(part).is_err() {
            return Err(refuse(format!("{part:?} is no level")));
        }
    }
    EnvFilter::try_new(text).map_err(|error| refuse(error.to_string()))
}
