//! Faults as people see them: one sentence that says what to do, and an exit code scripts can tell apart.

use std::fmt;

/// Why a command ended without success.
///
/// Exit code 1: the work was tried and failed. Exit code 2: the request itself cannot be carried out as given (wrong path, bad
/// URL, busy port), so trying again without a change is of no use.
#[derive(Debug)]
pub struct Fault {
    sentence: String,
    exit_code: u8,
}

impl Fault {
    /// The work was tried and failed.
    pub fn failed(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), exit_code: 1 }
    }

    /// The request cannot be carried out as given.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), exit_code: 2 }
    }

    /// The same fault with one more sentence.
    #[must_use]
    pub(crate) fn with(self, sentence: &str) -> Self {
        Self { sentence: format!("{}.{sentence}", self.sentence), ..self }
    }

    /// The process's exit code: 1 or 2.
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.sentence)
    }
}

impl std::error::Error for Fault {}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Fault>() {
            Ok(fault) => fault,
            Err(error) => Self::failed(format!("{error:#}")),
        }
    }
}

/// Writes an error with all its causes as one line: `open ledger 7: read metadata: store closed`.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some libraries repeat their source in their own text; once is enough.
        if !line.contains(&cause_text) {
            line.push_str(": ");
            line.push_str(&cause_text);
        }
        source = cause.source();
    }
    line
}
