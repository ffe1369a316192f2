//! Logging: `tracing` events to standard error, as text for people or JSON for machines.

use std::io::IsTerminal as _;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    for part in &parts {
        let bare = !part.contains(['=', '[', ']', '{', '}', '"', ':']);
        if part.is_empty() || (bare && LevelFilter::from_str(part).is_err()) {
            return Err(refuse(format!("{part:?} is no level")));
        }
    }
    EnvFilter::try_new(parts.join(",")).map_err(|error| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_lists_are_accepted() {
        for filter in [
            "info",
            "WARN",
            "off",
            "info,bookie=debug",
            "bookie::journal=trace",
            "info, client=debug",
            "warn,[task]=debug",
        ] {
            assert!(parse_filter(filter).is_ok(), "{filter}");
        }
    }

    #[test]
    fn a_bad_filter_is_named_with_what_to_write() {
        for (filter, cause) in [
            ("verbose", "\"verbose\" is no level"),
            ("info,bookie=loud", "bookie=loud"),
            ("", "it is empty"),
            ("info,", "\"\" is no level"),
        ] {
            let Err(error) = parse_filter(filter) else { panic!("{filter:?} was accepted") };
            let text = error.to_string();
            assert!(text.contains(&format!("{filter:?}")) && text.contains("info,bookie=debug"), "{text}");
            if !text.contains("bookie=loud") {
                assert!(text.contains(cause), "{text}");
            }
        }
    }

    #[test]
    fn formats_round_trip() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(format.to_string().parse::<LogFormat>().ok(), Some(format));
        }
        let text = "xml".parse::<LogFormat>().err().map(|error| error.to_string());
        assert_eq!(text.as_deref(), Some("read log format \"xml\": use text or json"));
    }
}
