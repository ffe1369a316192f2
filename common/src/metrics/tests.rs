use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;

crate::labels! {
    /// How it went.
    enum Outcome("outcome") {
        Done = "done",
        Failed = "failed",
    }
}

crate::labels! {
    /// What was done.
    enum Kind("kind") {
        Get = "get",
        Put = "put",
    }
}

fn text(set: Set) -> String {
    let (shelf, mut registry) = (Shelf::new(), Registry::default());
    shelf.register(&mut registry);
    shelf.add(set);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

const CALLS: Def = Def::new("calls", "Calls.");

#[test]
fn every_value_of_a_label_is_shown_from_the_start() {
    let calls: By<(Kind, Outcome), Counter> = By::default();
    calls.of((Kind::Put, Outcome::Failed)).add(3);
    let mut set = Set::new();
    set.counters(CALLS, &calls);
    let expected = "# HELP calls Calls.\n# TYPE calls counter\n\
        calls_total{kind=\"get\",outcome=\"done\"} 0\n\
        calls_total{kind=\"get\",outcome=\"failed\"} 0\n\
        calls_total{kind=\"put\",outcome=\"done\"} 0\n\
        calls_total{kind=\"put\",outcome=\"failed\"} 3\n# EOF\n";
    assert_eq!(text(set), expected);
}

#[test]
fn components_of_one_kind_become_one_metric() {
    let (one, two) = (Counter::default(), Counter::default());
    two.add(7);
    let mut all = Set::new();
    for (name, counter) in [("b-1", &one), ("b-2", &two)] {
        let mut set = Set::new();
        set.counter(CALLS, counter);
        all.add(set.with_label("bookie", name));
    }
    assert_eq!(all.shown()[0].labels, ["bookie"]);
    let expected = "# HELP calls Calls.\n# TYPE calls counter\n\
        calls_total{bookie=\"b-1\"} 0\ncalls_total{bookie=\"b-2\"} 7\n# EOF\n";
    assert_eq!(text(all), expected);
}

#[test]
#[should_panic(expected = "one meaning")]
fn one_name_with_two_meanings_is_refused() {
    let mut all = Set::new();
    all.counter(CALLS, &Counter::default());
    let mut other = Set::new();
    other.gauge(CALLS, &Gauge::default());
    all.add(other);
}

#[test]
fn a_histogram_shows_cumulative_ranges_in_seconds() {
    let latency = Histogram::seconds();
    latency.took(Duration::from_micros(100));
    latency.took_each(Duration::from_millis(2), 3);
    latency.took(Duration::from_secs(1_000));
    let mut set = Set::new();
    set.histogram(Def::new("latency_seconds", "Latency."), &latency);
    let text = text(set);
    for line in [
        "latency_seconds_bucket{le=\"0.0001\"} 1",
        "latency_seconds_bucket{le=\"0.001\"} 1",
        "latency_seconds_bucket{le=\"0.0025\"} 4",
        "latency_seconds_bucket{le=\"120.0\"} 4",
        "latency_seconds_bucket{le=\"+Inf\"} 5",
        "latency_seconds_count 5",
        "latency_seconds_sum 1000.0061",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
    }
}

#[test]
fn a_gauge_falls_when_its_guard_goes() {
    let gauge = Gauge::default();
    let first = gauge.hold();
    let second = gauge.hold();
    assert_eq!(gauge.get(), 2);
    drop((first, second));
    assert_eq!(gauge.get(), 0);
}

#[test]
fn what_has_nothing_to_say_is_left_out() {
    let mut set = Set::new();
    set.computed(Def::new("age_seconds", "Age."), || None);
    set.computed_by(Def::new("state", "State."), |outcome: Outcome| Some(f64::from(outcome == Outcome::Done)));
    let expected = "# HELP age_seconds Age.\n# TYPE age_seconds gauge\n# HELP state State.\n# TYPE state gauge\n\
        state{outcome=\"done\"} 1.0\nstate{outcome=\"failed\"} 0.0\n# EOF\n";
    assert_eq!(text(set), expected);
}
