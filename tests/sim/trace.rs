//! What happened in a run, line by line with simulated time: for people who look for a cause, and to compare two runs of a seed.
//! Messages of the network are too many for lines: they are counted, and a number tells two sequences of them apart.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The events of one run. Clones are the same trace.
#[derive(Clone, Default)]
pub struct Trace {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    lines: Vec<String>,
    /// The time when no host runs: the clock of the last one that did means nothing then.
    outside: Option<Duration>,
    messages: Messages,
    /// Whether each message gets a line.
    verbose: bool,
}

/// What the network did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Messages sent, delivered, received or lost.
    pub events: u64,
    /// Those that were sent and will never arrive.
    pub lost: u64,
    /// A number that is the same for the same events in the same order.
    pub digest: u64,
}

impl Trace {
    /// An empty trace, before any host runs. With SIM_MESSAGES in the environment every message gets a line.
    pub fn new() -> Self {
        let trace = Self::default();
        trace.lock().verbose = std::env::var_os("SIM_MESSAGES").is_some();
        trace.outside(Some(Duration::ZERO));
        trace
    }

    /// Adds a line.
    pub fn note(&self, text: impl fmt::Display) {
        let outside = self.lock().outside;
        let now = outside.or_else(turmoil::sim_elapsed).unwrap_or_default();
        let line = format!("{:>11.3} {text}", now.as_secs_f64() * 1000.0);
        self.lock().lines.push(line);
    }

    /// Sets the time while no host runs; `None` lets the hosts tell it.
    pub fn outside(&self, time: Option<Duration>) {
        self.lock().outside = time;
    }

    /// All lines.
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    /// What the network did.
    pub fn messages(&self) -> Messages {
        self.lock().messages
    }

    /// A number that is the same for the same lines, in every process.
    pub fn digest(lines: &[String]) -> u64 {
        let mut hasher = DefaultHasher::new();
        lines.hash(&mut hasher);
        hasher.finish()
    }

    fn message(&self, text: &str) {
        let state = &mut *self.lock();
        if state.outside.is_some() {
            // What a host says while it is being crashed comes in no order, and reaches nobody.
            return;
        }
        let messages = &mut state.messages;
        messages.events += 1;
        // The simulator's word for it.
        messages.lost += u64::from(text.starts_with("Drop"));
        let mut hasher = DefaultHasher::new();
        (messages.digest, text).hash(&mut hasher);
        messages.digest = hasher.finish();
        if state.verbose {
            // The simulator holds its clock while it tells this.
            state.lines.push(format!("            message {text}"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The simulator's own events.
const NETWORK: &str = "turmoil";

/// Takes the log of the code under test into the trace, and keeps its ERROR lines: none is expected, whatever is done to it.
pub struct LogCapture {
    trace: Trace,
    errors: Arc<Mutex<Vec<String>>>,
}

impl LogCapture {
    /// A subscriber, and where it puts ERROR lines.
    pub fn new(trace: &Trace) -> (Self, Arc<Mutex<Vec<String>>>) {
        LazyLock::force(&WITNESSES);
        let errors = Arc::<Mutex<Vec<String>>>::default();
        (Self { trace: trace.clone(), errors: errors.clone() }, errors)
    }
}

/// While fewer than two subscribers live, `tracing` asks only that of the thread which comes first to a call site, and keeps the
/// answer for all threads: a test without one would silence the messages of a simulation beside it. These two live for ever, and
/// want to be asked each time.
static WITNESSES: LazyLock<[Dispatch; 2]> = LazyLock::new(|| [Dispatch::new(Witness), Dispatch::new(Witness)]);

/// Hears nothing: it is no thread's subscriber.
struct Witness;

impl Subscriber for Witness {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Subscriber for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && (*metadata.level() <= Level::INFO || metadata.target() == NETWORK)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target() == NETWORK {
            let mut text = String::new();
            event.record(&mut Message(&mut text));
            return self.trace.message(&text);
        }
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

/// What is kept of an event of the network: what happened and between whom. What was in it is left out: it costs more than all else.
struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            "src" | "dst" => write!(self.0, " {value:?}"),
            _ => Ok(()),
        };
    }
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
