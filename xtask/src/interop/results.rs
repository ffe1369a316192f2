//! What came of the methods of a class, in the lines that `RunClass` writes as it goes.

use std::fs;
use std::path::Path;

use crate::run::Counts;

/// What came of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Results {
    pub(super) passed: u64,
    /// Methods that failed, each with what was thrown.
    pub(super) failed: Vec<(String, String)>,
    /// Methods that BookKeeper itself leaves out, with its reason.
    pub(super) skipped: Vec<(String, String)>,
    /// Bookies of ours that were started.
    pub(super) ours: u64,
    /// Bookies that tests brought with them, to misbehave.
    pub(super) own: u64,
    /// Whether it ran to its end.
    pub(super) ended: bool,
}

/// The line that is added when a class has run to its end.
pub(super) const END: &str = "(end)";

impl Results {
    pub(super) fn run(&self) -> u64 {
        self.passed + self.failed.len() as u64
    }

    pub(super) fn counts(&self) -> Counts {
        let unfinished = u64::from(!self.ended);
        // What BookKeeper leaves out is no test of ours that is ignored.
        Counts { passed: self.passed, failed: self.failed.len() as u64 + unfinished, ignored: 0 }
    }

    /// `passed of run`, as the documentation has it.
    pub(super) fn cell(&self) -> String {
        format!("{} of {}", self.passed, self.run())
    }

    /// Reads the results in `file`; none if there is no such file.
    pub(super) fn read(file: &Path) -> Option<Self> {
        fs::read_to_string(file).ok().map(|text| parse(&text))
    }
}

fn parse(text: &str) -> Results {
    let mut results = Results::default();
    for line in text.lines() {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap_or("");
        let (method, came, _, ours, own, why) = (next(), next(), next(), next(), next(), next());
        let named = (method.to_owned(), why.to_owned());
        match (method, came) {
            (END, _) => results.ended = true,
            (_, "passed") => results.passed += 1,
            (_, "failed") => results.failed.push(named),
            (_, "skipped") => results.skipped.push(named),
            _ => continue,
        }
        results.ours += ours.parse().unwrap_or(0);
        results.own += own.parse().unwrap_or(0);
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_summed() {
        let text =
            "a\tpassed\t12\t3\t0\t\nb\tfailed\t5\t4\t1\tError: x\nc\tskipped\t0\t0\t0\tflaky\na\tpassed\t1\t3\t0\t\n";
        let results = parse(text);
        assert_eq!(results.cell(), "2 of 3");
        assert_eq!(results.failed, [("b".to_owned(), "Error: x".to_owned())]);
        assert_eq!((results.ours, results.own, results.skipped.len()), (10, 1, 1));
        // Its JVM was ended before it was done: that is a failure too.
        assert_eq!(results.counts(), Counts { passed: 2, failed: 2, ignored: 0 });
        assert_eq!(parse(&format!("{text}{END}\n")).counts(), Counts { passed: 2, failed: 1, ignored: 0 });
    }
}
