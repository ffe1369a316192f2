use serde::{Deserialize, Serialize};

/// A ratio above this is a mistake of the bench: nothing is faster than the machine it runs on.
pub const RATIO_MAX: f64 = 1.02;

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates.
    Higher,
    /// Times.
    Lower,
}

/// A number that explains a row, for example how much of a core the work took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// What a row must reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// For people.
    pub text: String,
    /// Reached.
    pub met: bool,
}

/// One figure with the machine's limit beside it.
///
/// The first ten fields are the form that scripts may rely on; more may be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The target's number in the list of what the product must reach, for example `P2`.
    pub id: String,
    /// What was measured, with sizes.
    pub what: String,
    /// The product's figure.
    pub value: f64,
    /// Unit of value and limit.
    pub unit: String,
    /// The same work done raw.
    pub limit: f64,
    /// The share of the limit that was reached, 1 = as good as the machine: `value / limit` for rates, `limit / value` for times.
    pub ratio: f64,
    /// What must be reached; empty for a row that only explains another.
    pub target: String,
    /// Whether it was; absent without a target.
    pub met: Option<bool>,
    /// Where it was measured.
    pub machine: String,
    /// From which commit.
    pub commit: String,
    /// Which way is good.
    pub better: Better,
    /// What the limit is.
    pub limit_is: String,
    /// Pairs of a product run and a raw run; the row is the median pair.
    pub pairs: usize,
    /// The lowest and the highest ratio of the pairs.
    pub ratio_spread: [f64; 2],
    /// `release`, or `dev` for a build whose figures mean nothing.
    pub build: String,
    /// How much work: `full`, `quick` or `smoke`.
    pub scale: String,
    /// The system's load average of one minute at the start and at the end: what else ran.
    pub load: [f64; 2],
    /// Numbers that explain the row.
    pub facts: Vec<Fact>,
}

/// A measured pair.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// The product's figure.
    pub(crate) value: f64,
    /// The raw figure.
    pub(crate) limit: f64,
    pub(crate) facts: Vec<Fact>,
}

/// What is common to the pairs of a row.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: &'static str,
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) limit_is: &'static str,
}

impl Pair {
    fn ratio(&self, better: Better) -> f64 {
        match better {
            Better::Higher => self.value / self.limit,
            Better::Lower => self.limit / self.value,
        }
    }

    /// The value of a fact; 0 when there is none of that name.
    pub(crate) fn fact(&self, name: &str) -> f64 {
        self.facts.iter().find(|fact| fact.name == name).map_or(0.0, |fact| fact.value)
    }
}

pub(crate) fn fact(name: &str, value: f64, unit: &str) -> Fact {
    Fact { name: name.to_owned(), value, unit: unit.to_owned() }
}

/// The pair with the median ratio, the lower one of an even number.
pub(crate) fn median_pair(better: Better, pairs: &[Pair]) -> Option<&Pair> {
    let mut sorted: Vec<&Pair> = pairs.iter().collect();
    sorted.sort_by(|a, b| a.ratio(better).total_cmp(&b.ratio(better)));
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

impl Row {
    /// The row of some pairs; `None` without any. `judge` sees the median pair and its ratio. What belongs to the whole run (machine,
    /// commit, build, load) is filled in by [`Row::stamp`].
    pub(crate) fn of(
        head: Head,
        pairs: &[Pair],
        scale: crate::Scale,
        judge: impl FnOnce(&Pair, f64) -> Option<Target>,
    ) -> Option<Self> {
        let Head { id, what, unit, better, limit_is } = head;
        let median = median_pair(better, pairs)?;
        let ratio = median.ratio(better);
        let target = judge(median, ratio);
        let ratios = || pairs.iter().map(|pair| pair.ratio(better));
        Some(Self {
            id: id.to_owned(),
            what,
            value: median.value,
            unit: unit.to_owned(),
            limit: median.limit,
            ratio,
            met: target.as_ref().map(|target| target.met),
            target: target.map_or_else(String::new, |target| target.text),
            machine: String::new(),
            commit: String::new(),
            better,
            limit_is: limit_is.to_owned(),
            pairs: pairs.len(),
            ratio_spread: [ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max)],
            build: String::new(),
            scale: scale.name().to_owned(),
            load: [0.0; 2],
            facts: median.facts.clone(),
        })
    }

    /// Says where, from what and beside what else it was measured.
    pub fn stamp(&mut self, machine: &str, commit: &str, build: &str, load: [f64; 2]) {
        self.machine = machine.to_owned();
        self.commit = commit.to_owned();
        self.build = build.to_owned();
        self.load = load;
    }

    /// Why the row cannot be true, if it cannot: it beats the machine, or a number is missing.
    pub fn fault(&self) -> Option<String> {
        let Self { id, what, ratio, value, limit, .. } = self;
        if !(value.is_finite() && limit.is_finite() && *value > 0.0 && *limit > 0.0) {
            return Some(format!("the bench is wrong: {id} ({what}): value {value} and limit {limit} must be above 0"));
        }
        (*ratio > RATIO_MAX).then(|| {
            format!("the bench is wrong: {id} ({what}) reaches {ratio:.2} of the machine's limit, and nothing is faster than the machine; measure again when it is quiet, and if it stays mistrust the bench")
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Scale;

    fn head(better: Better) -> Head {
        Head { id: "P2", what: "1 KiB".to_owned(), unit: "MiB/s", better, limit_is: "raw" }
    }

    fn pairs(values: &[(f64, f64)]) -> Vec<Pair> {
        values.iter().map(|(value, limit)| Pair { value: *value, limit: *limit, facts: Vec::new() }).collect()
    }

    #[test]
    fn the_row_is_the_median_pair() {
        let pairs = pairs(&[(90.0, 100.0), (10.0, 100.0), (50.0, 100.0)]);
        let judge = |_: &Pair, ratio: f64| Some(Target { text: "half".to_owned(), met: ratio >= 0.5 });
        let row = Row::of(head(Better::Higher), &pairs, Scale::Quick, judge).unwrap();
        assert_eq!((row.value, row.limit, row.ratio, row.met), (50.0, 100.0, 0.5, Some(true)));
        assert_eq!((row.ratio_spread, row.pairs), ([0.1, 0.9], 3));
        assert_eq!(row.fault(), None);
    }

    #[test]
    fn times_reach_the_limit_from_above() {
        let row = Row::of(head(Better::Lower), &pairs(&[(4.0, 2.0)]), Scale::Full, |_, _| None).unwrap();
        assert_eq!((row.ratio, row.met, row.target.as_str()), (0.5, None, ""));
    }

    #[test]
    fn whoever_beats_the_machine_has_measured_wrongly() {
        for (better, value, limit) in [(Better::Higher, 103.0, 100.0), (Better::Lower, 97.0, 100.0)] {
            let row = Row::of(head(better), &pairs(&[(value, limit)]), Scale::Full, |_, _| None).unwrap();
            assert!(row.fault().unwrap().starts_with("the bench is wrong: P2"), "{row:?}");
        }
        for (value, limit) in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0)] {
            assert!(
                Row::of(head(Better::Higher), &pairs(&[(value, limit)]), Scale::Full, |_, _| None)
                    .unwrap()
                    .fault()
                    .is_some()
            );
        }
    }
}
