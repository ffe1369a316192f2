//! Which requests fail, and how.

use std::time::Duration;

use super::operation::{Operation, Request};

/// What goes wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The store does not hear of it; the client is answered with this status and S3 error code.
    Status(u16, String),
    /// It is carried out, and the client is answered with this status and S3 error code.
    StatusAfter(u16, String),
    /// The store does not hear of it; the client's connection is reset.
    Reset,
    /// It is carried out and answered, and the client's connection is reset before a byte of the answer: nobody knows it happened.
    DropReply,
    /// The store gets this many bytes of the body, then both connections break.
    CutRequest(u64),
    /// The client gets this many bytes of the answer's body, less than its header promised, then an end.
    CutReply(u64),
    /// The client is answered with status 200 and an error in the body. The store hears of the request only if `applied`.
    ErrorInOk {
        /// The S3 error code.
        code: String,
        /// Whether it is carried out all the same.
        applied: bool,
    },
    /// It is passed on so much later.
    Delay(Duration),
    /// Its bodies take the time this many bytes a second need, each way.
    Bandwidth(u64),
}

impl Fault {
    /// A store that is overloaded: 503 `SlowDown`, not carried out.
    pub fn slow_down() -> Self {
        Self::Status(503, "SlowDown".to_owned())
    }

    /// A conditional write that met another: 409 `ConditionalRequestConflict`, not carried out.
    pub fn conflict() -> Self {
        Self::Status(409, "ConditionalRequestConflict".to_owned())
    }

    /// A reply that says 200 and then `InternalError`, not carried out: how the joining of parts is known to fail.
    pub fn error_in_ok() -> Self {
        Self::ErrorInOk { code: "InternalError".to_owned(), applied: false }
    }
}

/// Which of the requests that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    Nth(u64),
    First(u64),
}

/// Picks requests and says what goes wrong with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    operation: Option<Operation>,
    key: Option<String>,
    which: Which,
    fault: Fault,
}

/// A rule without its fault.
#[derive(Debug, Clone)]
#[must_use]
pub struct Picks {
    operation: Option<Operation>,
    key: Option<String>,
    which: Which,
}

impl Rule {
    /// Picks requests of one operation.
    pub fn on(operation: Operation) -> Picks {
        Picks { operation: Some(operation), key: None, which: Which::All }
    }

    /// Picks requests of every operation.
    pub fn any() -> Picks {
        Picks { operation: None, key: None, which: Which::All }
    }
}

impl Picks {
    /// Only those whose key matches: `*` stands for any characters, `/` included.
    pub fn key(mut self, pattern: impl Into<String>) -> Self {
        self.key = Some(pattern.into());
        self
    }

    /// Only the n-th of them, from 1, counted from when the rule was added.
    pub fn nth(mut self, n: u64) -> Self {
        self.which = Which::Nth(n);
        self
    }

    /// Only the first n of them.
    pub fn first(mut self, n: u64) -> Self {
        self.which = Which::First(n);
        self
    }

    /// What goes wrong.
    pub fn fault(self, fault: Fault) -> Rule {
        Rule { operation: self.operation, key: self.key, which: self.which, fault }
    }
}

/// A rule with its counts.
#[derive(Debug)]
pub(super) struct Armed {
    rule: Rule,
    matched: u64,
    pub(super) done: u64,
}

impl Armed {
    pub(super) fn new(rule: Rule) -> Self {
        Self { rule, matched: 0, done: 0 }
    }

    /// The fault of a request, if this rule picks it. Counts it.
    pub(super) fn pick(&mut self, request: &Request) -> Option<Fault> {
        let rule = &self.rule;
        if rule.operation.is_some_and(|operation| operation != request.operation)
            || rule.key.as_ref().is_some_and(|pattern| !matches(pattern, &request.key))
        {
            return None;
        }
        self.matched += 1;
        let picked = match rule.which {
            Which::All => true,
            Which::Nth(n) => self.matched == n,
            Which::First(n) => self.matched <= n,
        };
        picked.then(|| {
            self.done += 1;
            rule.fault.clone()
        })
    }
}

/// Whether a text is what a pattern with `*` describes.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(head) else { return false };
    // The shortest stretch for this star that lets the rest match.
    text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: Operation, key: &str) -> Request {
        Request { operation, bucket: "b".to_owned(), key: key.to_owned(), range: None, part: None, condition: None }
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/bc", false),
            ("*", "", true),
            ("*.parquet", "7f/x/y.parquet", true),
            ("*.parquet", "7f/x/y.parquet2", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXc", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn occurrences_are_counted_among_those_that_match() {
        let mut rule = Armed::new(Rule::on(Operation::Put).key("a*").nth(2).fault(Fault::Reset));
        assert_eq!(rule.pick(&request(Operation::Put, "a1")), None);
        assert_eq!(rule.pick(&request(Operation::Get, "a2")), None);
        assert_eq!(rule.pick(&request(Operation::Put, "b")), None);
        assert_eq!(rule.pick(&request(Operation::Put, "a3")), Some(Fault::Reset));
        assert_eq!(rule.pick(&request(Operation::Put, "a4")), None);
        assert_eq!(rule.done, 1);
        let mut rule = Armed::new(Rule::any().first(2).fault(Fault::Reset));
        let picked = (0..4).filter(|_| rule.pick(&request(Operation::List, "")).is_some()).count();
        assert_eq!((picked, rule.done), (2, 2));
    }
}
