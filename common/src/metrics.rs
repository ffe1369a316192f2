//! Numbers for operators: counters, gauges and histograms that cost one or two atomic operations, and the form they are shown in.
//!
//! A component makes its metrics inside itself, updates them by one method an event, and hands out a [`Set`]: what they are
//! called, what they mean, and where their values are. The composition root joins the sets of all components on a
//! [`Shelf`] and serves them.
//! So two nodes in one process never share a number, and nothing is global.
//!
//! # Rules
//!
//! - Names are `thermocline_<crate>_<what>_<unit>`; counters are shown with `_total` behind that.
//! - A label is a closed enum ([`Label`](crate::metrics::Label), made by [`labels!`](crate::labels)), never an id that grows with the data. All its values exist
//!   from the start with 0, so that a rate over a counter sees its first event.
//! - Nothing here takes a lock or allocates when an event is counted.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

mod set;

pub use set::{Set, Shelf, Shown};

/// What a metric is called and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Def {
    /// The name, unit last, without the `_total` of counters.
    pub name: &'static str,
    /// One sentence for people.
    pub help: &'static str,
}

impl Def {
    /// A definition.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help }
    }
}

/// A number that only grows. Cheap to clone; clones are the same counter.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Counts one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `by`.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down, never below 0. Cheap to clone; clones are the same gauge.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One more for as long as the guard lives.
    #[must_use = "the gauge falls again when the guard is dropped"]
    pub fn hold(&self) -> Held {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(self.clone())
    }
}

/// One of what a [`Gauge`] counts; given back on drop.
#[derive(Debug)]
pub struct Held(Gauge);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How often values fell into each of some ranges, and their sum. Cheap to clone; clones are the same histogram.
#[derive(Clone)]
pub struct Histogram(Arc<Ranges>);

struct Ranges {
    /// Upper bounds, inclusive, ascending, in the raw unit.
    bounds: Vec<u64>,
    /// One more than bounds: the last takes what is above all of them.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
    /// How many raw units make one shown unit.
    scale: f64,
}

/// Upper bounds of durations, in microseconds: fine where disks and networks answer, coarse where something is wrong.
const MICROSECONDS: [u64; 18] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    120_000_000,
];
const BYTES: [u64; 9] = [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const ITEMS: [u64; 9] = [1, 2, 5, 10, 30, 100, 300, 1_000, 3_000];

impl Histogram {
    /// Of durations, shown in seconds.
    pub fn seconds() -> Self {
        Self::new(&MICROSECONDS.map(|bound| bound * 1_000), 1e9)
    }

    /// Of sizes in bytes.
    pub fn bytes() -> Self {
        Self::new(&BYTES, 1.0)
    }

    /// Of how many there are of something.
    pub fn items() -> Self {
        Self::new(&ITEMS, 1.0)
    }

    fn new(bounds: &[u64], scale: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Ranges { bounds: bounds.to_vec(), counts, sum: AtomicU64::new(0), scale }))
    }

    /// Takes in a duration.
    pub fn took(&self, duration: Duration) {
        self.took_each(duration, 1);
    }

    /// Takes in the same duration `times` times, at the cost of one.
    pub fn took_each(&self, duration: Duration, times: u64) {
        self.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), times);
    }

    /// Takes in a size or a number of things.
    pub fn observe(&self, value: u64) {
        self.record(value, 1);
    }

    fn record(&self, value: u64, times: u64) {
        let ranges = &*self.0;
        let range = ranges.bounds.partition_point(|bound| *bound < value);
        ranges.counts[range].fetch_add(times, Ordering::Relaxed);
        ranges.sum.fetch_add(value.saturating_mul(times), Ordering::Relaxed);
    }

    /// How many values were taken in.
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Their sum, in the shown unit.
    pub fn sum(&self) -> f64 {
        self.0.sum.load(Ordering::Relaxed) as f64 / self.0.scale
    }

    /// Upper bounds in the shown unit, each with how many fell into its range alone; the last bound is infinity.
    fn ranges(&self) -> Vec<(f64, u64)> {
        let bounds = self.0.bounds.iter().map(|bound| *bound as f64 / self.0.scale).chain([f64::INFINITY]);
        bounds.zip(self.0.counts.iter().map(|count| count.load(Ordering::Relaxed))).collect()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({} values, sum {})", self.count(), self.sum())
    }
}

/// A closed set of values that a metric is split by. [`labels!`](crate::labels) makes one from an enum.
pub trait Label: Copy + fmt::Debug + 'static {
    /// The label's name.
    const NAME: &'static str;
    /// All values, each at its index.
    const ALL: &'static [Self];

    /// The value as shown.
    fn text(self) -> &'static str;

    /// The place in [`Label::ALL`].
    fn index(self) -> usize;
}

/// Makes a closed enum that metrics are split by: `labels! { /// Doc. pub enum Outcome("outcome") { /// Doc. Done = "done", } }`.
#[macro_export]
macro_rules! labels {
    ($(#[$meta:meta])* $vis:vis enum $name:ident($label:literal) { $($(#[$inner:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[$inner])* $variant,)+ }

        impl $crate::metrics::Label for $name {
            const NAME: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$variant,)+];

            fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// What a metric is split by: one [`Label`], or two as a pair.
pub trait Labels: Copy {
    /// How many combinations there are.
    fn combinations() -> usize;

    /// The place of this one among them.
    fn place(self) -> usize;

    /// Names and values of the combination at a place.
    fn named(place: usize) -> Vec<(&'static str, &'static str)>;
}

impl<A: Label> Labels for A {
    fn combinations() -> usize {
        A::ALL.len()
    }

    fn place(self) -> usize {
        self.index()
    }

    fn named(place: usize) -> Vec<(&'static str, &'static str)> {
        A::ALL.get(place).map(|value| (A::NAME, value.text())).into_iter().collect()
    }
}

impl<A: Label, B: Label> Labels for (A, B) {
    fn combinations() -> usize {
        A::ALL.len() * B::ALL.len()
    }

    fn place(self) -> usize {
        self.0.index() * B::ALL.len() + self.1.index()
    }

    fn named(place: usize) -> Vec<(&'static str, &'static str)> {
        let mut pairs = A::named(place / B::ALL.len());
        pairs.extend(B::named(place % B::ALL.len()));
        pairs
    }
}

/// One metric for each value of a label; finding one is an index. Cheap to clone; clones are the same metrics.
#[derive(Debug)]
pub struct By<L, M> {
    children: Arc<[M]>,
    labels: PhantomData<fn(L)>,
}

impl<L, M> Clone for By<L, M> {
    fn clone(&self) -> Self {
        Self { children: Arc::clone(&self.children), labels: PhantomData }
    }
}

impl<L: Labels, M> By<L, M> {
    /// One made by `make` for each value.
    pub fn new(make: impl Fn() -> M) -> Self {
        Self { children: (0..L::combinations()).map(|_| make()).collect(), labels: PhantomData }
    }

    /// The one of a value.
    pub fn of(&self, label: L) -> &M {
        &self.children[label.place()]
    }

    fn each(&self) -> impl Iterator<Item = (Vec<(&'static str, &'static str)>, &M)> {
        self.children.iter().enumerate().map(|(place, child)| (L::named(place), child))
    }
}

impl<L: Labels, M: Default> Default for By<L, M> {
    fn default() -> Self {
        Self::new(M::default)
    }
}

#[cfg(test)]
mod tests;
