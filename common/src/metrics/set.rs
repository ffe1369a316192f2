//! Metrics as they are shown: gathered by name, with labels, encoded when somebody asks.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::{By, Counter, Def, Gauge, Histogram, Label, Labels};

type Pair = (Cow<'static, str>, Cow<'static, str>);
type Compute = Arc<dyn Fn() -> Option<f64> + Send + Sync>;

/// Named metrics of one or more components. Sets are joined by [`Set::add`]; the same name from several components becomes one
/// metric, which their labels tell apart.
#[derive(Clone, Debug, Default)]
pub struct Set {
    metrics: BTreeMap<&'static str, Described>,
}

#[derive(Clone, Debug)]
struct Described {
    def: Def,
    kind: MetricType,
    /// The names of the labels, also where there is no sample yet.
    labels: Vec<Cow<'static, str>>,
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    labels: Vec<Pair>,
    value: Value,
}

#[derive(Clone)]
enum Value {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
    /// Asked for when it is shown; `None` shows nothing.
    Computed(Compute),
}

/// A metric as documentation names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// The name as scraped, `_total` of counters included.
    pub name: String,
    /// counter, gauge or histogram.
    pub kind: String,
    /// The names of its labels.
    pub labels: Vec<String>,
    /// What it means.
    pub help: String,
}

impl Set {
    /// A set without metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in another component's metrics.
    ///
    /// # Panics
    /// When both sets have a metric of one name with different meanings: the names would lie.
    pub fn add(&mut self, other: Set) {
        for (name, described) in other.metrics {
            let known = self.entry(described.def, described.kind);
            assert!(known.def == described.def && known.kind == described.kind, "{name} has one meaning");
            if known.labels.is_empty() {
                known.labels = described.labels;
            }
            known.samples.extend(described.samples);
        }
    }

    /// The same metrics with one more label, before the others: which of several like components they are of.
    #[must_use]
    pub fn with_label(mut self, name: &'static str, value: &str) -> Self {
        for described in self.metrics.values_mut() {
            described.labels.insert(0, Cow::Borrowed(name));
            for sample in &mut described.samples {
                sample.labels.insert(0, (Cow::Borrowed(name), Cow::Owned(value.to_owned())));
            }
        }
        self
    }

    /// A counter.
    pub fn counter(&mut self, def: Def, counter: &Counter) {
        self.push(def, MetricType::Counter, Vec::new(), Value::Counter(counter.clone()));
    }

    /// A counter for each value of a label.
    pub fn counters<L: Labels>(&mut self, def: Def, counters: &By<L, Counter>) {
        for (labels, counter) in counters.each() {
            self.push(def, MetricType::Counter, labels, Value::Counter(counter.clone()));
        }
    }

    /// A gauge.
    pub fn gauge(&mut self, def: Def, gauge: &Gauge) {
        self.push(def, MetricType::Gauge, Vec::new(), Value::Gauge(gauge.clone()));
    }

    /// A gauge for each value of a label.
    pub fn gauges<L: Labels>(&mut self, def: Def, gauges: &By<L, Gauge>) {
        for (labels, gauge) in gauges.each() {
            self.push(def, MetricType::Gauge, labels, Value::Gauge(gauge.clone()));
        }
    }

    /// A histogram.
    pub fn histogram(&mut self, def: Def, histogram: &Histogram) {
        self.push(def, MetricType::Histogram, Vec::new(), Value::Histogram(histogram.clone()));
    }

    /// A histogram for each value of a label.
    pub fn histograms<L: Labels>(&mut self, def: Def, histograms: &By<L, Histogram>) {
        for (labels, histogram) in histograms.each() {
            self.push(def, MetricType::Histogram, labels, Value::Histogram(histogram.clone()));
        }
    }

    /// A gauge that is computed when it is shown, or left out when there is nothing to say. `compute` must be quick, and must
    /// not keep alive what it looks at.
    pub fn computed(&mut self, def: Def, compute: impl Fn() -> Option<f64> + Send + Sync + 'static) {
        self.push(def, MetricType::Gauge, Vec::new(), Value::Computed(Arc::new(compute)));
    }

    /// As [`Set::computed`], for each value of a label.
    pub fn computed_by<L: Label + Send + Sync>(
        &mut self,
        def: Def,
        compute: impl Fn(L) -> Option<f64> + Send + Sync + 'static,
    ) {
        let compute = Arc::new(compute);
        for label in L::ALL {
            let (label, compute) = (*label, Arc::clone(&compute));
            let value = Value::Computed(Arc::new(move || compute(label)));
            self.push(def, MetricType::Gauge, vec![(L::NAME, label.text())], value);
        }
    }

    /// A counter that is kept elsewhere and asked for when it is shown.
    pub fn computed_counter(&mut self, def: Def, compute: impl Fn() -> Option<f64> + Send + Sync + 'static) {
        self.push(def, MetricType::Counter, Vec::new(), Value::Computed(Arc::new(compute)));
    }

    /// What the set holds, in order of names.
    pub fn shown(&self) -> Vec<Shown> {
        let shown = self.metrics.values().map(|described| Shown {
            name: match described.kind {
                MetricType::Counter => format!("{}_total", described.def.name),
                _ => described.def.name.to_owned(),
            },
            kind: described.kind.as_str().to_owned(),
            labels: described.labels.iter().map(|label| label.clone().into_owned()).collect(),
            help: described.def.help.to_owned(),
        });
        shown.collect()
    }

    fn push(&mut self, def: Def, kind: MetricType, labels: Vec<(&'static str, &'static str)>, value: Value) {
        let known = self.entry(def, kind);
        if known.labels.is_empty() {
            known.labels = labels.iter().map(|(name, _)| Cow::Borrowed(*name)).collect();
        }
        let labels = labels.into_iter().map(|(name, text)| (Cow::Borrowed(name), Cow::Borrowed(text))).collect();
        known.samples.push(Sample { labels, value });
    }

    fn entry(&mut self, def: Def, kind: MetricType) -> &mut Described {
        let fresh = || Described { def, kind, labels: Vec::new(), samples: Vec::new() };
        self.metrics.entry(def.name).or_insert_with(fresh)
    }
}

/// The metrics of a process, to which components add theirs as they come up. Cheap to clone; clones are the same shelf.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    set: Arc<RwLock<Set>>,
}

impl Shelf {
    /// An empty shelf.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a component's metrics.
    ///
    /// # Panics
    /// As [`Set::add`].
    pub fn add(&self, set: Set) {
        self.set.write().unwrap_or_else(PoisonError::into_inner).add(set);
    }

    /// What it holds, in order of names.
    pub fn shown(&self) -> Vec<Shown> {
        self.set.read().unwrap_or_else(PoisonError::into_inner).shown()
    }

    /// Has what it holds, now and later, shown by a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }
}

impl Collector for Shelf {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for described in self.set.read().unwrap_or_else(PoisonError::into_inner).metrics.values() {
            let Def { name, help } = described.def;
            let mut encoder = encoder.encode_descriptor(name, help, None, described.kind)?;
            for sample in &described.samples {
                if sample.labels.is_empty() {
                    sample.value.encode(described.kind, &mut encoder)?;
                } else {
                    sample.value.encode(described.kind, &mut encoder.encode_family(&sample.labels)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, kind: MetricType, encoder: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Self::Counter(counter) => encoder.encode_counter::<NoLabelSet, _, u64>(&counter.get(), None),
            Self::Gauge(gauge) => encoder.encode_gauge(&gauge.get()),
            Self::Histogram(histogram) => {
                let ranges = histogram.ranges();
                let count = ranges.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(histogram.sum(), count, &ranges, None)
            }
            Self::Computed(compute) => match (compute(), kind) {
                (None, _) => Ok(()),
                (Some(value), MetricType::Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
                (Some(value), _) => encoder.encode_gauge(&value),
            },
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counter(counter) => write!(f, "{}", counter.get()),
            Self::Gauge(gauge) => write!(f, "{}", gauge.get()),
            Self::Histogram(histogram) => write!(f, "{histogram:?}"),
            Self::Computed(compute) => write!(f, "{:?}", compute()),
        }
    }
}
