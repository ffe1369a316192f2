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
/// What the files of one end are counted as.
struct FileDefs {
    reloads: Def,
    certificate_end: Def,
}

const GUARD: FileDefs = FileDefs {
    reloads: Def::new(
        "thermocline_guard_reloads",
        "Changes of certificate and token files that were seen, by whether they can be used.",
    ),
    certificate_end: Def::new(
        "thermocline_guard_certificate_end_seconds",
        "Unix time at which the certificate that is shown to clients ends; 0 without one.",
    ),
};
const CONNECT: FileDefs = FileDefs {
    reloads: Def::new(
        "thermocline_connect_reloads",
        "Changes of the certificate and token files of outgoing connections that were seen, by whether they can be used.",
    ),
    certificate_end: Def::new(
        "thermocline_connect_certificate_end_seconds",
        "Unix time at which the certificate that is shown to servers ends; 0 without one.",
    ),
};

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

/// Of files that are read again. Cheap to clone; clones are the same numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileMetrics {
    reloads: By<Reload, Counter>,
    certificate_end: Gauge,
}

impl FileMetrics {
    pub(crate) fn reloaded(&self) {
        self.reloads.of(Reload::Used).inc();
    }

    pub(crate) fn reload_failed(&self) {
        self.reloads.of(Reload::Failed).inc();
    }

    /// Seconds since 1970, of the certificate that counts from now on.
    pub(crate) fn certificate_ends(&self, at: u64) {
        self.certificate_end.set(at);
    }

    fn show(&self, defs: FileDefs, set: &mut Set) {
        set.counters(defs.reloads, &self.reloads);
        set.gauge(defs.certificate_end, &self.certificate_end);
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        (self.reloads.of(Reload::Used).get(), self.reloads.of(Reload::Failed).get(), self.certificate_end.get())
    }
}

/// What a role's outgoing connections show of their files. Cheap to clone; clones are the same numbers.
#[derive(Clone, Debug, Default)]
pub struct ConnectMetrics(pub(crate) FileMetrics);

impl ConnectMetrics {
    /// As they are scraped; all 0 where nothing is configured.
    pub fn shown(&self) -> Set {
        let mut set = Set::new();
        self.0.show(CONNECT, &mut set);
        set
    }
}

/// See the module. Cheap to clone; clones are the same numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    greetings: Gauge,
    connections: By<Ended, Counter>,
    refused: Counter,
    pub(crate) files: FileMetrics,
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

    pub(crate) fn shown(&self) -> Set {
        let mut set = Set::new();
        set.gauge(GREETINGS, &self.greetings);
        set.counters(CONNECTIONS, &self.connections);
        set.counter(REFUSED, &self.refused);
        self.files.show(GUARD, &mut set);
        set
    }

    #[cfg(test)]
    pub(crate) fn count(&self, how: Ended) -> u64 {
        self.connections.of(how).get()
    }
}
