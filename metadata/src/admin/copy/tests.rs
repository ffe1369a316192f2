use super::*;
use crate::Key;
use crate::Versioned;

fn row(key: &str, value: &'static str, version: u64) -> Row {
    let value = bytes::Bytes::from_static(value.as_bytes());
    (Key::new(key).expect("a key"), Versioned { value, version: Version::new(version), lease: None })
}

#[test]
fn rows_are_compared_by_key_and_value_and_never_by_version() {
    let (a, a_later, a_other, b) = (row("/a", "x", 1), row("/a", "x", 9), row("/a", "y", 1), row("/b", "x", 1));
    assert_eq!(step(None, None), Step::End);
    assert_eq!(step(Some(&a), None), Step::Put);
    assert_eq!(step(None, Some(&a)), Step::Remove);
    assert_eq!(step(Some(&a), Some(&a_later)), Step::Equal);
    assert_eq!(step(Some(&a), Some(&a_other)), Step::Replace);
    assert_eq!(step(Some(&a), Some(&b)), Step::Put);
    assert_eq!(step(Some(&b), Some(&a)), Step::Remove);
}

fn identity(instance: &str) -> Identity {
    Identity { instance: instance.parse().expect("an id"), name: None }
}

fn survey(target: State) -> Survey {
    Survey {
        source: State::Cluster(identity("one")),
        live: Vec::new(),
        attempts: 0,
        carried: Counts::default(),
        left: Counts::default(),
        target,
        stranger: None,
        same_store: false,
    }
}

fn unfinished(work: Work, instance: &str) -> State {
    of_copy(work, instance, 1)
}

fn of_copy(work: Work, instance: &str, copy: u128) -> State {
    let copy = Uuid::from_u128(copy);
    let marker = Marker { work, identity: identity(instance), begun_ms: 1, run: Uuid::nil(), copy, closing: false };
    State::Unfinished(marker, Version::new(3))
}

#[test]
fn what_stands_in_the_way_is_said() {
    let refusal = |survey: &Survey| survey.way(false).expect_err("refused").to_string();
    assert_eq!(survey(State::Empty).way(false).expect("allowed").1, Way::Begin);
    assert!(matches!(survey(unfinished(Work::Copy, "one")).way(false).expect("allowed").1, Way::GoOn(..)));
    assert_eq!(survey(State::Cluster(identity("one"))).way(false).expect("allowed").1, Way::Compare);
    assert!(refusal(&survey(State::Cluster(identity("two")))).contains("another cluster, two"));
    assert!(refusal(&survey(unfinished(Work::Copy, "two"))).contains("the copy of cluster two"));
    assert!(refusal(&survey(unfinished(Work::Format, "one"))).contains("the removal of cluster one"));
    assert!(refusal(&survey(State::Headless)).contains("no INSTANCEID"));
    let twice = Survey { same_store: true, ..survey(State::Cluster(identity("one"))) };
    assert!(refusal(&twice).contains("one store, named twice"));
    let strange = Survey { stranger: Some("/ledgers/x".into()), ..survey(State::Empty) };
    assert!(refusal(&strange).contains("/ledgers/x"));
    for source in [State::Empty, State::Headless, unfinished(Work::Copy, "one")] {
        assert!(refusal(&Survey { source, ..survey(State::Empty) }).contains("nothing to copy from"));
    }
    let moved = || unfinished(Work::Moved, "one");
    assert!(refusal(&Survey { source: moved(), ..survey(State::Empty) }).contains("was moved from here"));
    let went_on = Survey { source: moved(), ..survey(unfinished(Work::Copy, "one")) };
    assert!(matches!(went_on.way(false).expect("allowed").1, Way::GoOn(..)));
    let by_another = Survey { source: moved(), ..survey(of_copy(Work::Copy, "one", 2)) };
    assert!(refusal(&by_another).contains("by another copy"));
    assert!(refusal(&survey(moved())).contains("the target cannot be used"));
    let live = vec![Live { kind: Kind::Bookie, name: "b1".into() }];
    assert!(refusal(&Survey { live, ..survey(State::Empty) }).contains("1 bookie (b1)"));
    let busy = Survey { attempts: 2, ..survey(State::Empty) };
    assert!(refusal(&busy).contains("--abandon-attempts"));
    assert_eq!(busy.way(true).expect("allowed").1, Way::Begin);
}
