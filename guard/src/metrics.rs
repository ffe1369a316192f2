//! What is counted at the door.

use common::labels;
use common::metrics::{By, Counter, Def, Gauge, Held, Set};

const GREETINGS: Def =
    Def::new("thermocline_guard_greetings", "Connections of BookKeeper's protocol that have not been let in yet.");
const CONNECTIONS: Def = Def::new(
    "thermocline_guard_connections",
    "Connections of BookKeeper's protocol that came, by how they were let in or why they were not.",
);
const REFUSED: Def = Def::new(
    "thermocline_guard_refused_requests",
    "Requests that were refused because their connection had not been let in, and authentications for another plug-in.",
);
const RELOADS: Def = Def::new(
    "thermocline_guard_reloads",
    "Changes of certificate and token files that were seen, by whether they can be used.",
);

labels! {
    /// How a greeting ended.
    pub(crate) enum Ended("outcome") {
        Clear = "clear",
        Secured = "tls",
        Left = "left",
        Late = "late",
        Crowd = "crowd",
        Handshake = "handshake-failed",
        Token = "token-refused",
        Broke = "broke-protocol",
    }
}

labels! {
    enum Reload("outcome") {
        Used = "used",
        Failed = "failed",
    }
}

/// See the module. Cheap to clone; clones are the same numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    greetings: Gauge,
    connections: By<Ended, Counter>,
    refused: Counter,
    reloads: By<Reload, Counter>,
}

impl Metrics {
    /// Counts a connection as being greeted for as long as what is returned lives.
    pub(crate) fn greeting(&self) -> Held {
        self.greetings.hold()
    }

    pub(crate) fn ended(&self, how: Ended) {
        self.connections.of(how).inc();
    }

    pub(crate) fn request_refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn reloaded(&self) {
        self.reloads.of(Reload::Used).inc();
    }

    pub(crate) fn reload_failed(&self) {
        self.reloads.of(Reload::Failed).inc();
    }

    pub(crate) fn shown(&self) -> Set {
        let mut set = Set::new();
        set.gauge(GREETINGS, &self.greetings);
        set.counters(CONNECTIONS, &self.connections);
        set.counter(REFUSED, &self.refused);
        set.counters(RELOADS, &self.reloads);
        set
    }

    #[cfg(test)]
    pub(crate) fn count(&self, how: Ended) -> u64 {
        self.connections.of(how).get()
    }
}
