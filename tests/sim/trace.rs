//! What happened in a run, line by line with simulated time: for people who look for a cause, and to compare two runs of a seed.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The events of one run. Clones are the same trace.
#[derive(Clone)]
pub struct Trace {
    start: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Trace {
    /// An empty trace that begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), lines: Arc::default() }
    }

    /// Adds a line.
    pub fn note(&self, text: impl fmt::Display) {
        let line = format!("{:>11.3} {text}", self.start.elapsed().as_secs_f64() * 1000.0);
        self.lock().push(line);
    }

    /// All lines.
    pub fn lines(&self) -> Vec<String> {
        self.lock().clone()
    }

    /// A number that is the same for the same lines, in every process.
    pub fn digest(lines: &[String]) -> u64 {
        let mut hasher = DefaultHasher::new();
        lines.hash(&mut hasher);
        hasher.finish()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the log of the code under test into the trace, and keeps its ERROR lines: none is expected, whatever is done to it.
pub struct LogCapture {
    trace: Trace,
    errors: Arc<Mutex<Vec<String>>>,
}

impl LogCapture {
    /// A subscriber, and where it puts ERROR lines.
    pub fn new(trace: &Trace) -> (Self, Arc<Mutex<Vec<String>>>) {
        let errors = Arc::<Mutex<Vec<String>>>::default();
        (Self { trace: trace.clone(), errors: errors.clone() }, errors)
    }
}

impl Subscriber for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = format!("log {} {}:", event.metadata().level(), event.metadata().target());
        event.record(&mut Fields(&mut line));
        if *event.metadata().level() == Level::ERROR {
            self.errors.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
        }
        self.trace.note(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let _ = write!(self.0, " {}={:?}", field.name(), with_causes(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// An error with its causes in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
